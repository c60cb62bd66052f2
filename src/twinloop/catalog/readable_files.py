"""A read-only file system through which DuckDB reads files under names that twinloop assigns."""

from __future__ import annotations

import datetime
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fsspec.spec import AbstractFileSystem

PROTOCOL = "twinloop"
FOLDER = f"{PROTOCOL}://files/"


class ReadableFiles(AbstractFileSystem):
    """File system of the given files, each under a name such as ``twinloop://files/3.parquet``.

    The names contain no path, so that DuckDB finds neither wildcards nor columns (``key=value``) in them.
    """

    protocol = PROTOCOL
    cachable = False  # each database has its own files

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[Path, str] = {}
        self._paths: dict[str, Path] = {}

    def assign_names(self, paths: Sequence[Path]) -> list[str]:
        """Return a name for each file, and make the file readable under it."""
        for path in paths:
            if path not in self._names:
                self._names[path] = f"{FOLDER}{len(self._names)}.parquet"
                self._paths[self._names[path]] = path
        return [self._names[path] for path in paths]

    def restore_paths(self, text: str) -> str:
        """Return a message of DuckDB with the paths in place of the names."""
        for name in sorted(self._paths, key=len, reverse=True):
            if name in text:
                text = text.replace(name, str(self._paths[name]))
        return text

    def open(self, path: str, mode: str = "rb", **_: Any) -> ReadableFile:  # type: ignore[override]
        """Open a file for reading.

        Raises:
            PermissionError: for anything but reading.
            FileNotFoundError: no file of that name.
        """
        if mode != "rb":
            raise PermissionError(f"{path} is read and never written")
        return ReadableFile(self._path(path))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return name, size in bytes and type of a file."""
        return {"name": path, "size": self._path(path).stat().st_size, "type": "file"}

    def modified(self, path: str) -> datetime.datetime:
        """Return the time of a file's last change."""
        return datetime.datetime.fromtimestamp(self._path(path).stat().st_mtime, datetime.UTC)

    def exists(self, path: str, **_: Any) -> bool:
        """Return whether there is a file of that name."""
        return path in self._paths and self._paths[path].is_file()

    def glob(self, path: str, **_: Any) -> list[str]:  # type: ignore[override]
        """Return the name itself; wildcards are not supported."""
        return [path] if path in self._paths else []

    def _path(self, name: str) -> Path:
        if name not in self._paths:
            raise FileNotFoundError(f"no file {name}")
        return self._paths[name]

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return path


class ReadableFile:
    """An open file; each thread has its own position, because DuckDB seeks and reads in several threads at once."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # By the thread's number: `threading.local` forgets between two calls from a thread that Python did not start.
        self._places: dict[int, int] = {}

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset from the beginning, in bytes."""
        if whence != os.SEEK_SET:
            raise ValueError("offsets count from the beginning")
        self._places[threading.get_ident()] = offset
        return offset

    def tell(self) -> int:
        """Return the position, in bytes."""
        return self._places.get(threading.get_ident(), 0)

    def read(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes from the position on, fewer only at the end of the file."""
        if size < 0:
            size = max(0, os.fstat(self._handle).st_size - self.tell())
        pieces = list[bytes]()
        while size > 0 and (piece := os.pread(self._handle, size, self.tell())):
            pieces.append(piece)
            size -= len(piece)
            self.seek(self.tell() + len(piece))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Close the file."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def __del__(self) -> None:
        self.close()
