"""Read arrays of numpy's files (npy, npz) that somebody may have sent: no pickles, and no more memory than stated."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from twinloop.core.documents import open_regular
from twinloop.core.errors import InputError

_PLAIN = "biufcSU"  # kinds of dtype that hold values only


def read_arrays(file: Path | bytes, *, most: int, where: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz file by name.

    Args:
        file: its path, or its content.
        most: bytes of all arrays together, unpacked.
        where: the file's name, for messages.

    Raises:
        InputError: no such file, damaged, more than ``most`` bytes, or an array of objects.
    """
    if isinstance(file, Path):
        with open_regular(file) as opened:
            return _read(opened, most, where)
    return _read(io.BytesIO(file), most, where)


def require_plain_array(file: BinaryIO, size: int, *, where: str) -> None:
    """Refuse an npy file whose header does not fit its size, and leave the file at its beginning.

    Raises:
        InputError: no npy file, an array of objects, or a shape that needs more bytes than the file has.
    """
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read(file)
    except (ValueError, SyntaxError, OverflowError, RecursionError, MemoryError) as error:
        raise InputError(f"{where} is not an array of numpy ({' '.join(str(error).split())[:200]}).") from error
    if kind.kind not in _PLAIN:
        raise InputError(f"{where} holds an array of objects, which could run any code. It was not read.")
    if any(length < 0 for length in shape) or math.prod(shape) * kind.itemsize > size:
        raise InputError(f"{where} has {size:,} bytes, too few for its shape {shape!s:.60}. It is damaged.")
    file.seek(0)


def _read(file: BinaryIO, most: int, where: str) -> dict[str, NDArray[Any]]:
    try:
        with zipfile.ZipFile(file) as packed:
            size = sum(item.file_size for item in packed.infolist())
            if size > most:
                raise InputError(
                    f"{where} unpacks to {size / 2**20:,.0f} MiB; at most {most / 2**20:,.0f} are read. It is not read."
                )
            return {item.filename.removesuffix(".npy"): _array(packed, item, where) for item in packed.infolist()}
    except (OSError, ValueError, EOFError, NotImplementedError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(f"{where} is damaged or is not an npz file ({error}).") from error


def _array(packed: zipfile.ZipFile, item: zipfile.ZipInfo, where: str) -> NDArray[Any]:
    with packed.open(item) as member:
        content = io.BytesIO(member.read(item.file_size))
    require_plain_array(content, item.file_size, where=f"{where}: {item.filename}")
    return np.load(content, allow_pickle=False)
