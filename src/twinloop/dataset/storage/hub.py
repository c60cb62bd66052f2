"""Push a dataset folder to the Hugging Face Hub as one commit, and pull a dataset with verification of every file.

LeRobot finds a dataset by a tag equal to its ``codebase_version``, so a push to the main branch moves that tag. The
access token is found by ``huggingface_hub`` (variable ``HF_TOKEN``, or ``hf auth login``). The variable ``HF_ENDPOINT``
selects another server.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from twinloop.core.documents import read_bytes, read_json
from twinloop.core.errors import DatasetError, InputError, MissingDependencyError
from twinloop.core.files import sha256_file
from twinloop.core.redaction import redact_text
from twinloop.dataset.lerobot import layout
from twinloop.dataset.storage.dataset_files import MOST_FILES, require_disk_space, select_dataset_files
from twinloop.dataset.storage.snapshot import FolderLock, wrap_write_errors


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """One file in a commit of a Hub repository.

    Attributes:
        path: Path in the repository.
        size: Size in bytes.
        sha256: SHA-256 of the content for large files (LFS), otherwise empty.
        blob: Git's SHA-1 of the file.
    """

    path: str
    size: int
    sha256: str
    blob: str


def parse_entry(entry: Any) -> HubFile | None:
    """Convert an entry of the Hub's file listing to a `HubFile`; None if the entry is a folder."""
    if not hasattr(entry, "blob_id"):
        return None
    large = getattr(entry, "lfs", None)
    return HubFile(
        path=str(entry.path), size=int(entry.size), sha256=str(large.sha256) if large else "", blob=str(entry.blob_id)
    )


def refuse_outside(name: str, repo_id: str) -> None:
    """Check that a file name stays inside the dataset's folder and is not hidden.

    Raises:
        DatasetError: If it does not.
    """
    path = PurePosixPath(name)
    first = path.parts[0] if path.parts else ""
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in first or first in ("", ".cache"):
        raise DatasetError(
            f"{repo_id} names the file {name!r}, which leaves the dataset's folder or is hidden in it. Nothing was "
            "downloaded. Report it to the owner."
        )


def verify_files(stage: Path, files: Sequence[HubFile], repo_id: str) -> None:
    """Compare the sizes and hashes of downloaded files with the Hub's listing, and make the files non-executable.

    Args:
        stage: Folder of the download.
        files: Files of the listing.
        repo_id: Name of the repository for messages.

    Raises:
        DatasetError: If a file differs. The file is removed, so that the next pull downloads it again.
    """
    for file in files:
        path = stage / file.path
        if path.is_symlink() or not path.resolve().is_relative_to(stage.resolve()):
            raise DatasetError(f"{file.path} of {repo_id} is a link out of the folder. The download was refused.")
        if path.stat().st_size == file.size and _digest(path, file) == (file.sha256 or file.blob):
            path.chmod(0o644)  # data, not executable
            continue
        path.unlink()
        raise DatasetError(
            f"{file.path} of {repo_id} arrived damaged: its content does not match its hash. It was removed; pull "
            "again to download only the missing files."
        )


def remove_others(stage: Path, names: set[str]) -> None:
    """Remove all files except ``names`` from a download folder: they remain from an earlier pull of another commit.

    Args:
        stage: Folder of the download.
        names: Relative paths of the files to keep.
    """
    for path in sorted(stage.rglob("*"), reverse=True):
        if path.is_file() and path.relative_to(stage).as_posix() not in names:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _digest(path: Path, file: HubFile) -> str:
    """Return the hash that the Hub uses for a file: SHA-256 for large files, git's SHA-1 for small files."""
    if file.sha256:
        return sha256_file(path)
    data = read_bytes(path, file.size)
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


_INSTALL = "pip install 'twinloop[hub]'"
_REPO = "dataset"
_OURS = ("data/", "videos/", "images/", "meta/", "twinloop/")  # folders that a push replaces completely
_NEVER = (".*", "*/.*", "*.lock", "*.incomplete", "__pycache__/*", "*/__pycache__/*")
_MAIN = "main"
_ENDPOINT = "HF_ENDPOINT"
_OF_THE_HUB = {".gitattributes"}  # files that the Hub itself adds to every repository
_AT_ONCE = 8  # files being downloaded, huggingface_hub's own default


@dataclass(frozen=True, kw_only=True)
class PushResult:
    """Result of a push.

    Attributes:
        repo_id: Name of the repository.
        branch: Branch of the commit.
        commit: Hash of the commit.
        url: Web address of the commit.
        tag: Version tag that LeRobot uses, such as ``v3.0``; empty if another branch than main was pushed.
        files: Number of files.
        bytes: Total size of the files.
    """

    repo_id: str
    branch: str
    commit: str
    url: str
    tag: str
    files: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class PullResult:
    """Result of a pull.

    Attributes:
        repo_id: Name of the repository.
        commit: Hash of the downloaded commit.
        output: Folder of the dataset.
        files: Number of downloaded and verified files.
        bytes: Total size of these files.
        left_out: Paths in the commit that do not belong to a dataset and were not downloaded.
    """

    repo_id: str
    commit: str
    output: Path
    files: int
    bytes: int
    left_out: tuple[str, ...] = ()


def push_dataset(
    folder: Path | str,
    repo_id: str,
    *,
    private: bool = False,
    branch: str | None = None,
    allow: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> PushResult:
    """Upload a LeRobot dataset as one commit, so that a reader sees all of it or nothing.

    The same commit removes dataset files in the repository that the folder does not have. Large files that an
    interrupted push has already sent are not sent again, because the Hub recognizes them by their hash.

    Args:
        folder: Folder of a dataset of any LeRobot version.
        repo_id: ``USER/NAME``; created if it does not exist.
        private: If true, make a new repository private; an existing one is not changed.
        branch: Branch to push to. None: the main branch, whose version tag then moves to the new commit.
        allow: Patterns of paths to upload, such as ``data/*``; empty for all.
        ignore: Patterns of paths to exclude.

    Raises:
        MissingDependencyError: If huggingface_hub is not installed.
        InputError: If the folder is not a dataset, or ``repo_id`` is not a repository name.
        DatasetError: If the Hub cannot be reached or refuses the push; the message gives the next step.
    """
    folder = Path(folder)
    if not (folder / layout.INFO).is_file():
        raise InputError(f"{folder} is not a LeRobot dataset: {layout.INFO} is missing. Give the folder that has it.")
    tag = str(read_json(folder / layout.INFO).get("codebase_version", ""))
    names = _select_files(folder, allow, ignore)
    hub = _import_hub()
    with _convert_hub_errors(repo_id, "pushed to"):
        hub.utils.validate_repo_id(repo_id)
        api = hub.HfApi(endpoint=os.environ.get(_ENDPOINT))
        api.create_repo(repo_id, repo_type=_REPO, private=private, exist_ok=True)
        if branch is not None:
            api.create_branch(repo_id, branch=branch, repo_type=_REPO, exist_ok=True)
        there = api.list_repo_files(repo_id, revision=branch, repo_type=_REPO)
        added = [hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=folder / name) for name in names]
        removed = [name for name in there if name not in set(names) and name.startswith(_OURS)]
        done = api.create_commit(
            repo_id,
            [*added, *(hub.CommitOperationDelete(path_in_repo=name) for name in removed)],
            commit_message=f"{tag} dataset: {len(names)} files",
            repo_type=_REPO,
            revision=branch,
        )
        if branch in (None, _MAIN) and tag:
            with contextlib.suppress(hub.errors.RevisionNotFoundError):
                api.delete_tag(repo_id, tag=tag, repo_type=_REPO)
            api.create_tag(repo_id, tag=tag, revision=done.oid, repo_type=_REPO)
    return PushResult(
        repo_id=repo_id,
        branch=branch or _MAIN,
        commit=done.oid,
        url=str(done.commit_url),
        tag=tag if branch in (None, _MAIN) else "",
        files=len(names),
        bytes=sum((folder / name).stat().st_size for name in names),
    )


def pull_dataset(
    repo_id: str,
    output: Path | str,
    *,
    revision: str | None = None,
    allow: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> PullResult:
    """Download one commit of a dataset, verify every file, and only then move the folder to ``output``.

    Only files that belong to a dataset are downloaded (`dataset_files`), and none of them is executable. After an
    interruption the downloaded files are in the folder ``.NAME.pull`` next to ``output``, and the same pull continues
    from them.

    Args:
        repo_id: ``USER/NAME``.
        output: An absent or empty folder.
        revision: Branch, tag (``v3.0``) or commit; None for the main branch.
        allow: Patterns of paths to download, such as ``data/*``; empty for all.
        ignore: Patterns of paths to exclude.

    Raises:
        MissingDependencyError: If huggingface_hub is not installed.
        InputError: If ``output`` is not empty, or ``repo_id`` is not a repository name.
        DatasetError: If the Hub cannot be reached or refuses, a path is outside the folder, there is too little disk
            space, or a file does not match its hash.
    """
    output = Path(output).absolute()
    _require_absent(output)
    hub = _import_hub()
    with _convert_hub_errors(repo_id, "pulled from"):
        hub.utils.validate_repo_id(repo_id)
        api = hub.HfApi(endpoint=os.environ.get(_ENDPOINT))
        commit = str(api.repo_info(repo_id, revision=revision, repo_type=_REPO).sha)
        listing = api.list_repo_tree(repo_id, recursive=True, revision=commit, repo_type=_REPO)
        tree = [parse_entry(entry) for entry in itertools.islice(listing, 2 * MOST_FILES)]
    wanted = [file for file in tree if file is not None and _matches_patterns(file.path, allow, ignore)]
    for file in wanted:
        refuse_outside(file.path, repo_id)
    belonging = select_dataset_files(file.path for file in wanted)
    files = [file for file in wanted if file.path in belonging]
    if not any(file.path == layout.INFO for file in files):
        raise DatasetError(f"{repo_id} at {commit[:12]} has no {layout.INFO}: it is not a dataset, or it was left out.")
    size = sum(file.size for file in files)
    require_disk_space(output, files=len(files), size=size, source=repo_id)
    _download_files(api, repo_id, commit, files, output)
    left_out = tuple(sorted({file.path for file in wanted} - belonging - _OF_THE_HUB))
    return PullResult(repo_id=repo_id, commit=commit, output=output, files=len(files), bytes=size, left_out=left_out)


def _require_absent(output: Path) -> None:
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f"{output} exists and is not an empty folder. Pull into a new one.")


def _download_files(api: Any, repo_id: str, commit: str, files: Sequence[HubFile], output: Path) -> None:
    """Download files into the folder ``.NAME.pull`` next to ``output``, verify them, and rename it to ``output``."""
    lock, stage = FolderLock(output), output.parent / f".{output.name}.pull"
    try:
        _require_absent(output)  # another process may have finished in between
        with wrap_write_errors(output), _convert_hub_errors(repo_id, "pulled from"):
            stage.mkdir(parents=True, exist_ok=True)
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                downloads = [pool.submit(_download, api, repo_id, commit, file.path, stage) for file in files]
                for download in downloads:
                    download.result()
        verify_files(stage, files, repo_id)
        with wrap_write_errors(output):
            shutil.rmtree(stage / ".cache", ignore_errors=True)
            remove_others(stage, {file.path for file in files})
            if output.exists():
                output.rmdir()
            stage.rename(output)
    finally:
        lock.release()


def _download(api: Any, repo_id: str, commit: str, name: str, stage: Path) -> None:
    api.hf_hub_download(repo_id, name, repo_type=_REPO, revision=commit, local_dir=stage)


def _select_files(folder: Path, allow: Sequence[str], ignore: Sequence[str]) -> list[str]:
    """Return the relative paths of the files to push, sorted.

    Raises:
        InputError: If a link leaves the folder, or there are no files to push.
    """
    names = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or not _matches_patterns(name, allow, (*ignore, *_NEVER)):
            continue
        if not path.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{path} is a link that leaves {folder}. Copy the file there, or leave it out.")
        names.append(name)
    if not names:
        raise InputError(f"--allow and --ignore leave no file of {folder} to push. Change them.")
    return names


def _matches_patterns(name: str, allow: Sequence[str], ignore: Sequence[str]) -> bool:
    wanted = not allow or any(fnmatch(name, pattern) for pattern in allow)
    return wanted and not any(fnmatch(name, pattern) for pattern in ignore)


def _import_hub() -> Any:
    try:
        import huggingface_hub  # pyright: ignore[reportMissingImports]
        import huggingface_hub.errors  # pyright: ignore[reportMissingImports]
        import huggingface_hub.utils  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise MissingDependencyError(
            "The Hub needs huggingface_hub, which is not installed.", remedy=_INSTALL
        ) from None
    return huggingface_hub


@contextlib.contextmanager
def _convert_hub_errors(repo_id: str, verb: str) -> Iterator[None]:
    """Convert errors of the Hub's client to one-line messages with the next step, as a context manager.

    Args:
        repo_id: Name of the repository.
        verb: Action for the message, such as ``pushed to``.

    Raises:
        DatasetError: If the Hub's client raises an error in the block.
        InputError: If ``repo_id`` is not a repository name.
    """
    from huggingface_hub import errors  # pyright: ignore[reportMissingImports]

    endpoint = os.environ.get(_ENDPOINT) or "https://huggingface.co"
    failed = f"{repo_id} cannot be {verb} {endpoint}"
    try:
        yield
    except errors.HFValidationError as error:
        raise InputError(
            f"{repo_id!r} is not the name of a repository on {endpoint}. Write it as USER/NAME."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise DatasetError(
            f"{failed}: there is no such dataset, or it is private and the token gives no access. Check the name, "
            "and set HF_TOKEN or run `hf auth login`."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise DatasetError(
            f"{failed}: it has no such branch, tag or commit. Omit --revision to use the main branch."
        ) from error
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        hint = "set HF_TOKEN to a token that may write, or run `hf auth login`" if status in (401, 403) else "try again"
        raise DatasetError(f"{failed} (HTTP {status}). No partial change was made there; {hint}.") from error
    except (
        getattr(errors, "HTTPError", OSError),
        OSError,
        RuntimeError,
    ) as error:  # an upload that fails in its thread raises RuntimeError
        reason = redact_text(str(error)).splitlines()[0] if str(error) else type(error).__name__
        raise DatasetError(
            f"{failed}: it cannot be reached ({reason[:200]}). Check the connection and HF_ENDPOINT, then run the "
            "same command again; it continues after the files already transferred."
        ) from error
