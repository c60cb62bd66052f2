"""Read JSON and numpy files from untrusted sources, within limits of size and memory.

Only regular files are opened, so that a pipe, a device or a socket cannot block the program. A file beyond a limit is
refused with an `InputError` that gives the file and the line, before much memory is used.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Generator, Iterable
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError

# Most bytes of a JSON file. The longest that this package writes, the metadata of 10,000 episodes, has a few MB.
MAX_JSON_BYTES = 32 << 20
# Most bytes of a file with one JSON value per line, of which there may be a million.
MAX_LINES_BYTES = 512 << 20
# Most lists and mappings, and most values, of a JSON text: 200 bytes each of the first and 60 of the second in memory.
MAX_JSON_CONTAINERS = 500_000
MAX_JSON_VALUES = 3_000_000
# Most pixels of an image: 8192 × 8192. Decoding takes up to 8 bytes of memory for each.
MAX_PIXELS = 1 << 26
# Most levels of nesting in JSON and YAML. Hand-written files have about 6; Python's own limit is near 1000.
MAX_DEPTH = 64
# Most characters of a number: more than the 64 bits of a binary one or the 309 digits of the largest float.
MAX_NUMBER_LENGTH = 400
MAX_INTEGER = 2**64
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_SUSPECT_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
_UNREADABLE = re.compile(r"[\x00\ud800-\udfff]")
_MANY_DIGITS = re.compile(r"\d{19}")


class DocumentError(InputError, ValueError):
    """Error for a text that is not valid YAML or JSON, or that exceeds a limit.

    It is also a `ValueError`, as the errors of Python's own parsers are. A caller can catch it and add what the text is
    used for.
    """


def require_regular(path: Path) -> None:
    """Check that a path is a regular file, for a library that opens the file itself.

    Raises:
        InputError: If the file is missing, or is a folder, a pipe, a socket or a device.
    """
    try:
        _require_regular(path.stat().st_mode, path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist. Check the path.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({_format_reason(error)}). Check the path.") from error


@contextlib.contextmanager
def open_regular(path: Path) -> Generator[BufferedReader]:
    """Open a regular file for reading bytes, without blocking; a context manager that yields the file.

    Raises:
        InputError: If the file is missing or cannot be read, or is a folder, a pipe, a socket or a device.
    """
    require_regular(path)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            _require_regular(os.fstat(handle).st_mode, path)  # another file may have replaced it meanwhile
            yield file
    except OSError as error:
        raise InputError(f"{path} cannot be read ({_format_reason(error)}). Check the path.") from error


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file.

    Args:
        path: File to read.
        max_bytes: Largest allowed size in bytes.

    Raises:
        InputError: If the file is missing, is larger than ``max_bytes`` bytes, or is not a regular file.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise InputError(
                f"{path} has {size:,} bytes; at most {max_bytes:,} are read from such a file. Make it smaller."
            )
        data = file.read(size + 1)
    if len(data) > size:
        raise InputError(f"{path} grows while it is read. Read a copy of it.")
    return data


def read_text(path: Path, max_bytes: int) -> str:
    """Return the text of a regular UTF-8 file; a byte-order mark is removed.

    Args:
        path: File to read.
        max_bytes: Largest allowed size in bytes.

    Raises:
        InputError: If the file is missing, is larger than ``max_bytes`` bytes, is not a regular file or is not UTF-8.
    """
    try:
        return read_bytes(path, max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = f"{error.reason} at byte {error.start}"
        raise DocumentError(f"{path} is not text in UTF-8 ({at}). Save it as UTF-8.") from error


def read_json(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Return the JSON value in a file.

    Args:
        path: File to read.
        max_bytes: Largest allowed size in bytes; 32 MiB by default.

    Raises:
        InputError: If the file is missing or too large, or `parse_json` refuses its text.
    """
    return parse_json(read_text(path, max_bytes), where=str(path))


def read_json_lines(path: Path) -> list[tuple[int, Any]]:
    """Read a file that has one JSON value per line (JSON Lines); skip empty lines.

    Returns:
        The line number (from 1) and the value of each line that is not empty.

    Raises:
        InputError: If the file is missing or has more than 512 MiB, or `parse_json` refuses a line.
    """
    lines = enumerate(read_text(path, MAX_LINES_BYTES).split("\n"), start=1)
    return [(number, parse_json(line, where=f"{path}, line {number}")) for number, line in lines if line.strip()]


def parse_json(text: str | bytes, *, where: str) -> Any:
    """Parse a JSON text; ``NaN`` and ``Infinity`` are accepted as numbers, because Python writes them.

    Args:
        text: JSON text; bytes must be UTF-8.
        where: Name of the document, for error messages.

    Raises:
        DocumentError: If the text is not JSON, is nested too deeply, or has too many values, an integer beyond 64 bits,
            a duplicate key, or a null character or unpaired surrogate in a string.
    """
    try:
        text = text if isinstance(text, str) else text.decode()
    except UnicodeDecodeError as error:
        raise DocumentError(f"{where} is not text in UTF-8 ({error}).") from error
    _require_few_values(text, where)
    try:
        value = json.loads(
            text, object_pairs_hook=_build_mapping, parse_int=_parse_integer if _MANY_DIGITS.search(text) else None
        )
    except RecursionError:
        raise DocumentError(f"{where}: values are nested more than {MAX_DEPTH} levels deep.") from None
    except ValueError as error:
        raise DocumentError(f"{where} is not valid JSON ({error}).") from error
    _require_shallow(value, where)
    if _SUSPECT_ESCAPE.search(text):
        _require_readable(value, where)
    return value


def _require_regular(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for test, name in _KINDS if test(mode)), "no file")
        raise InputError(f"{path} is {kind}, not a regular file. Check the path.")


def _format_reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


def _require_few_values(text: str, where: str) -> None:
    """Refuse a JSON text with more than `MAX_JSON_CONTAINERS` lists and mappings or `MAX_JSON_VALUES` values.

    The text is not parsed for it. Values are counted by commas and opening brackets, because one of these precedes
    every value.
    """
    containers, commas = text.count("[") + text.count("{"), text.count(",")
    if containers > MAX_JSON_CONTAINERS or commas > MAX_JSON_VALUES:
        raise DocumentError(
            f"{where} has more values than allowed in a JSON text ({MAX_JSON_CONTAINERS:,} lists and mappings, "
            f"{MAX_JSON_VALUES:,} values). Split it."
        )


def _build_mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice!r:.60} is given twice")
    return value


def _parse_integer(digits: str) -> int:
    if len(digits) > MAX_NUMBER_LENGTH or not -MAX_INTEGER < (value := int(digits)) < MAX_INTEGER:
        raise ValueError(f"the integer {shorten_number(digits)} does not fit in 64 bits")
    return value


def _require_shallow(value: Any, where: str) -> None:
    """Refuse a JSON value whose lists and objects are nested too deeply, without recursion."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        outer: list[Any] = [item for item in level if isinstance(item, dict | list)]
        if not outer:
            return
        level = [inner for item in outer for inner in _list_contained_values(item)]
    raise DocumentError(f"{where}: values are nested more than {MAX_DEPTH} levels deep.")


def _list_contained_values(item: Any) -> Iterable[Any]:
    return cast("dict[str, Any]", item).values() if isinstance(item, dict) else item


def _require_readable(value: Any, where: str) -> None:
    """Refuse a JSON value with a string that cannot be stored again: a null character or an unpaired surrogate."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            if _UNREADABLE.search(item):
                raise DocumentError(f"{where}: the text {item!r:.60} has a character that is not allowed in text.")
        elif isinstance(item, dict):
            waiting += [*item, *item.values()]
        elif isinstance(item, list):
            waiting += item


def shorten_number(text: str) -> str:
    """Return the text of a number for a message; a text longer than 40 characters is cut to its first 20 characters."""
    return text if len(text) <= 40 else f"{text[:20]}… ({len(text)} characters)"


_PLAIN = "biufcSU"  # kinds of dtype that hold values only


def read_arrays(file: Path | bytes, *, max_bytes: int, where: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of a numpy ``.npz`` file by name; never unpickle objects.

    Args:
        file: Path or content of the file.
        max_bytes: Largest total size of all unpacked arrays, in bytes.
        where: Name of the file, for error messages.

    Raises:
        InputError: If the file is missing or damaged, unpacks to more than ``max_bytes`` bytes, or has an array of
            objects.
    """
    if isinstance(file, Path):
        with open_regular(file) as opened:
            return _read_npz(opened, max_bytes, where)
    return _read_npz(io.BytesIO(file), max_bytes, where)


def require_plain_array(file: BinaryIO, size: int, *, where: str) -> None:
    """Check that the shape in a numpy ``.npy`` header fits into the file, then rewind the file.

    Args:
        file: Open file, positioned at its start.
        size: Size of the file in bytes.
        where: Name of the file, for error messages.

    Raises:
        InputError: If the file is not a ``.npy`` file, has an array of objects, or is too small for its shape.
    """
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read(file)
    except (ValueError, SyntaxError, OverflowError, RecursionError, MemoryError) as error:
        raise InputError(f"{where} is not a numpy array ({' '.join(str(error).split())[:200]}).") from error
    if kind.kind not in _PLAIN:
        raise InputError(f"{where} holds an array of objects, which could run any code. It was not read.")
    if any(length < 0 for length in shape) or math.prod(shape) * kind.itemsize > size:
        raise InputError(f"{where} has {size:,} bytes, too few for its shape {shape!s:.60}. It is damaged.")
    file.seek(0)


def _read_npz(file: BinaryIO, max_bytes: int, where: str) -> dict[str, NDArray[Any]]:
    try:
        with zipfile.ZipFile(file) as packed:
            size = sum(item.file_size for item in packed.infolist())
            if size > max_bytes:
                raise InputError(
                    f"{where} unpacks to {size / 2**20:,.0f} MiB; at most {max_bytes / 2**20:,.0f} are read. Split it."
                )
            return {item.filename.removesuffix(".npy"): _read_array(packed, item, where) for item in packed.infolist()}
    except (OSError, ValueError, EOFError, NotImplementedError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(f"{where} is damaged or is not an npz file ({error}).") from error


def _read_array(packed: zipfile.ZipFile, item: zipfile.ZipInfo, where: str) -> NDArray[Any]:
    with packed.open(item) as member:
        content = io.BytesIO(member.read(item.file_size))
    require_plain_array(content, item.file_size, where=f"{where}: {item.filename}")
    return np.load(content, allow_pickle=False)
