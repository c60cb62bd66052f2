"""Let DuckDB read files of the catalog through a read-only file system, and no other files."""

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
    """Read-only file system of chosen files, each under a name such as ``twinloop://files/3.parquet``.

    The names contain no path. Otherwise DuckDB would interpret characters of a path as wildcards or as partition
    columns (``key=value``).
    """

    protocol = PROTOCOL
    cachable = False  # each database has its own files

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[Path, str] = {}
        self._paths: dict[str, Path] = {}

    def assign_names(self, paths: Sequence[Path]) -> list[str]:
        """Allow DuckDB to read these files; return the name of each file for SQL (``twinloop://files/0.parquet``)."""
        for path in paths:
            if path not in self._names:
                self._names[path] = f"{FOLDER}{len(self._names)}.parquet"
                self._paths[self._names[path]] = path
        return [self._names[path] for path in paths]

    def restore_paths(self, text: str) -> str:
        """Return a message of DuckDB in which names given by `assign_names` are replaced by the files' real paths."""
        for name in sorted(self._paths, key=len, reverse=True):
            if name in text:
                text = text.replace(name, str(self._paths[name]))
        return text

    def open(self, path: str, mode: str = "rb", **_: Any) -> ReadableFile:  # type: ignore[override]
        """Open a file for reading.

        Raises:
            PermissionError: If ``mode`` is not ``rb``.
            FileNotFoundError: If no file has this name.
        """
        if mode != "rb":
            raise PermissionError(f"{path} can only be read, not written.")
        return ReadableFile(self._path(path))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return the name, the size in bytes and the type of a file, as fsspec requires."""
        return {"name": path, "size": self._path(path).stat().st_size, "type": "file"}

    def modified(self, path: str) -> datetime.datetime:
        """Return the modification time of a file in UTC."""
        return datetime.datetime.fromtimestamp(self._path(path).stat().st_mtime, datetime.UTC)

    def exists(self, path: str, **_: Any) -> bool:
        """Return whether `assign_names` gave this name to a file, and the file exists."""
        return path in self._paths and self._paths[path].is_file()

    def glob(self, path: str, **_: Any) -> list[str]:  # type: ignore[override]
        """Return ``[path]`` if a file with this name exists, else an empty list; wildcards are not supported."""
        return [path] if path in self._paths else []

    def _path(self, name: str) -> Path:
        if name not in self._paths:
            raise FileNotFoundError(f"No file has the name {name}.")
        return self._paths[name]

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return path


class ReadableFile:
    """Open file with one read position per thread, because several threads of DuckDB seek and read at the same time."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # Keys are thread ids. `threading.local` loses its values between calls from a thread that Python did not start.
        self._places: dict[int, int] = {}

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set this thread's read position to an offset from the beginning of the file, in bytes; return the offset.

        Raises:
            ValueError: If ``whence`` is not ``os.SEEK_SET``.
        """
        if whence != os.SEEK_SET:
            raise ValueError("Only offsets from the beginning of the file (os.SEEK_SET) are supported.")
        self._places[threading.get_ident()] = offset
        return offset

    def tell(self) -> int:
        """Return this thread's read position, in bytes from the beginning of the file."""
        return self._places.get(threading.get_ident(), 0)

    def read(self, size: int = -1) -> bytes:
        """Read up to ``size`` bytes from this thread's position; fewer only at the end of the file.

        Args:
            size: number of bytes; if negative, all bytes to the end of the file.
        """
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
