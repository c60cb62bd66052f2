"""Where a dataset is written: a local folder here, an object store in `store_target`; commits are whole in both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from twinloop.core.errors import DatasetError
from twinloop.dataset import layout
from twinloop.dataset.admission import begin
from twinloop.dataset.progress import Progress
from twinloop.dataset.snapshot import FolderLock, next_snapshot, recover, writing_to
from twinloop.dataset.spec import DatasetSpec

_LOCAL = ("file://", "local://")


class Target(Protocol):
    """A place that one writer holds; what it shows to readers changes commit by commit."""

    name: str
    path: Path

    @property
    def held(self) -> bool:
        """Whether the right to write has not been given back yet."""
        ...

    def begin(self, spec: DatasetSpec, *, resume: bool) -> Progress:
        """What was committed there before, after checking that it may be continued."""
        ...

    def snapshot(self, *, final: bool = False) -> AbstractContextManager[Path]:
        """A folder with all that ``path`` has, to which a commit adds; visible to readers when the block ends well.

        Args:
            final: nothing will be committed after this.
        """
        ...

    def release(self) -> None:
        """Give the right to write back; may be called again without effect."""
        ...


class FolderTarget:
    """A local folder; ``path`` is the folder itself.

    Raises:
        DatasetLockedError: another writer has the folder open.
        DatasetError: no folder can be written there, or it lies inside another dataset.
    """

    def __init__(self, path: Path) -> None:
        for above in path.resolve().parents:
            if (above / layout.INFO).is_file():
                raise DatasetError(
                    f"{path} lies inside the dataset {above}, and would be taken for a part of it. Choose a folder "
                    "beside it."
                )
        self.path, self.name = path, str(path)
        self._lock = FolderLock(path)

    @property
    def held(self) -> bool:
        """See `Target`."""
        return self._lock.held

    def begin(self, spec: DatasetSpec, *, resume: bool) -> Progress:
        """See `Target`."""
        with writing_to(self.path):
            recover(self.path)
            return begin(self.path, spec, resume=resume)

    @contextmanager
    def snapshot(self, *, final: bool = False) -> Iterator[Path]:
        """See `Target`."""
        del final
        with next_snapshot(self.path) as stage:
            yield stage

    def release(self) -> None:
        """See `Target`."""
        self._lock.release()


def is_address(output: Path | str) -> bool:
    """Whether an output is an address in a store (``s3://bucket/prefix``) rather than a local folder."""
    return "://" in str(output) and not str(output).startswith(_LOCAL)


def local_path(output: Path | str) -> Path:
    """The folder that a path or a ``file://`` address names."""
    text = str(output)
    for prefix in _LOCAL:
        text = text.removeprefix(prefix)
    return Path(text)


def committed(output: Path | str) -> Progress:
    """What has been committed to an output; nothing where there is none yet."""
    if is_address(output):
        from twinloop.dataset.fetch import stored_progress

        return stored_progress(str(output))
    folder = local_path(output)
    return Progress.load(folder) if (folder / layout.PROGRESS).is_file() else Progress()


def open_target(output: Path | str) -> Target:
    """The place of that name, held for writing.

    Raises:
        DatasetError: see `FolderTarget` and `store_target.StoreTarget`.
        MissingDependencyError: the store needs a library that is not installed.
    """
    if is_address(output):
        from twinloop.dataset.store_target import StoreTarget

        return StoreTarget(str(output))
    return FolderTarget(local_path(output).absolute())
