"""Writing a dataset into an object store: each commit is uploaded whole, and the pointer moves last."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from twinloop.core.errors import DatasetError, DatasetLockedError
from twinloop.core.files import dumps, sha256_file
from twinloop.core.profile import span
from twinloop.dataset import layout
from twinloop.dataset.admission import begin
from twinloop.dataset.fetch import fetch_files
from twinloop.dataset.progress import Progress
from twinloop.dataset.snapshot import next_snapshot
from twinloop.dataset.spec import DatasetSpec
from twinloop.dataset.store import POINTER, Commit, Entry, Store, of_block

# Of what is uploaded, a writer keeps locally what it reads again: frames for the quantiles, metadata, logs.
_KEPT = ("data/", "meta/", "twinloop/log/")


class StoreTarget:
    """An address in a store; a `target.Target`. ``path`` is a scratch folder with what the writer reads again.

    A store has no locks: a second writer is noticed when one of the two moves the pointer that the other one knows.

    Raises:
        DatasetError, MissingDependencyError, UnknownNameError: see `Store`.
    """

    def __init__(self, address: str) -> None:
        self._store, self._commit = Store(address), Commit()
        self.name = self._store.address
        self._scratch = tempfile.TemporaryDirectory(prefix="twinloop-store-", ignore_cleanup_errors=True)
        self.path, self.held = Path(self._scratch.name) / "dataset", True

    def begin(self, spec: DatasetSpec, *, resume: bool) -> Progress:
        """See `target.Target`; what was committed is downloaded as far as the writer reads it again."""
        commit = self._store.commit()
        strangers = self._store.names() - {"dataset", "commits", "log", POINTER} if not commit.number else set()
        if strangers:
            raise DatasetError(
                f"{self.name} holds objects that are not a twinloop dataset ({', '.join(sorted(strangers)[:3])}). "
                "Choose an empty or new address."
            )
        if commit.number:
            wanted = {path: entry for path, entry in commit.files.items() if not of_block(path) or _is_kept(path)}
            if not resume:
                wanted = {path: entry for path, entry in wanted.items() if not of_block(path)}
            with next_snapshot(self.path) as stage:
                fetch_files(self._store, wanted, stage)
        self._commit = commit
        return begin(self.path, spec, resume=resume, name=self.name)

    @contextlib.contextmanager
    def snapshot(self, *, final: bool = False) -> Iterator[Path]:
        """See `target.Target`: upload what is new, then a manifest, then the pointer."""
        with next_snapshot(self.path) as stage:
            yield stage
            with span("upload"):
                self._commit = self._upload(stage, final=final)
            for path in self._commit.blocks():
                if not _is_kept(path):
                    (stage / path).unlink(missing_ok=True)

    def release(self) -> None:
        """See `target.Target`."""
        self.held = False
        self._scratch.cleanup()

    def _upload(self, stage: Path, *, final: bool) -> Commit:
        number = self._commit.number + 1
        known, folder = self._commit.blocks(), f"commits/{number:06d}"
        paths = sorted(path.relative_to(stage).as_posix() for path in stage.rglob("*") if path.is_file())
        new = {path: f"dataset/{path}" if of_block(path) else f"{folder}/{path}" for path in paths if path not in known}
        self._store.upload({key: stage / path for path, key in new.items()})
        files = {**known, **{path: _entry(stage / path, key) for path, key in new.items()}}
        if final:
            self._publish(stage, [path for path in new if not of_block(path)])
        return self._move_pointer(number, files)

    def _publish(self, stage: Path, metadata: Sequence[str]) -> None:
        """Put the metadata beside the blocks' files, what makes it a dataset last."""
        rest = [path for path in metadata if path != layout.INFO]
        for group in (rest, [layout.INFO]):
            self._store.upload({f"dataset/{path}": stage / path for path in group})

    def _move_pointer(self, number: int, files: Mapping[str, Entry]) -> Commit:
        """Make a commit the current one: manifest first, then the pointer, then away with what nobody reads."""
        key = f"commits/{number:06d}/manifest.json"
        listed = {path: vars(entry) for path, entry in sorted(files.items())}
        manifest = dumps({"schema": layout.SCHEMA, "files": listed}).encode()
        self._store.write(key, manifest)
        if (self._store.read(POINTER) or b"") != self._commit.pointer:
            raise DatasetLockedError(
                f"Another writer has moved {self.name} on. Wait for it to end, stop it, or choose another address."
            )
        pointer = dumps(
            {"schema": layout.SCHEMA, "commit": number, "manifest": key, "sha256": hashlib.sha256(manifest).hexdigest()}
        ).encode()
        self._store.write(POINTER, pointer)
        self._store.remove(f"commits/{number - 2:06d}")
        return Commit(number=number, files=files, pointer=pointer)


def _entry(path: Path, key: str) -> Entry:
    return Entry(key=key, size=path.stat().st_size, sha256=sha256_file(path))


def _is_kept(path: str) -> bool:
    return path.startswith(_KEPT)
