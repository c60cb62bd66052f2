"""Frames and contacts as views: what lies in the batches' own files, with the names of the episodes joined on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from twinloop.catalog.engine import quoted
from twinloop.core.errors import DatasetError
from twinloop.dataset import layout

CONTACTS = "annotations/contacts"
_GLOBS = {"frames": "data", "contacts": f"{layout.SIDE}/{CONTACTS}"}
_NONE = "SELECT NULL::VARCHAR AS episode_id, NULL::VARCHAR AS batch, NULL::BIGINT AS episode_index WHERE false"

Folders = Mapping[str, Callable[[], Path]]


def data_files(view: str, folder: Path) -> list[Path]:
    """The files of a dataset folder behind ``frames`` or ``contacts``.

    Raises:
        DatasetError: one leads out of the folder, is no regular file, or cannot be read.
    """
    paths = sorted((folder / _GLOBS[view]).glob("chunk-*/file-*.parquet"))
    root = folder.resolve()
    for path in paths:
        if not path.resolve().is_relative_to(root):
            raise DatasetError(
                f"{path} leads out of the dataset's folder. Nothing outside it is read; restore the file."
            )
        if not path.is_file():
            raise DatasetError(f"{path} is no regular file, and reading it could wait for ever. Restore the file.")
        _schema(path)
    return paths


def view_sql(files: Mapping[str, Sequence[Path]], parquet: Callable[[Sequence[Path]], str]) -> str:
    """The SQL of a view over the files of each batch; ``parquet`` gives the SQL that reads files."""
    parts = [_of_batch(batch, paths, parquet(paths)) for batch, paths in files.items() if paths]
    return "\nUNION ALL BY NAME\n".join(parts) or _NONE


def _of_batch(batch: str, paths: Sequence[Path], rows: str) -> str:
    columns = ", ".join(_column(field) for field in _shown(_schema(paths[0])))
    return f"""SELECT p.episode_id, p.batch, {columns} FROM {rows} f
        JOIN places p ON p.episode_index = f.episode_index AND p.batch = {quoted(batch)}"""  # noqa: S608 - quoted


def _schema(path: Path) -> pa.Schema:
    """The schema in a file's footer; raises `DatasetError` where it has none."""
    try:
        about = path.stat()
        return _footer(path, about.st_size, about.st_mtime_ns)
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"{path} is damaged or gone ({error}). Run `twinloop fsck`.") from error


@functools.lru_cache(maxsize=4096)
def _footer(path: Path, _size: int, _mtime_ns: int) -> pa.Schema:
    """A schema, read once for as long as the file stays as it is."""
    return pq.read_schema(path)


def _shown(schema: pa.Schema) -> list[pa.Field]:
    """Return the columns that the view shows: SQL tells no capital letters apart, and a name of ours is not theirs."""
    first: dict[str, pa.Field] = {}
    for field in schema:
        if _readable(field.type):
            first.setdefault(field.name.lower(), field)
    return [field for name, field in first.items() if name not in ("", "episode_id", "batch") and "\0" not in name]


def _readable(kind: pa.DataType) -> bool:
    """Numbers, texts and lists of them; pictures stay where they are."""
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind):
        return _readable(kind.value_type)
    return not (pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _column(field: pa.Field) -> str:
    """A column; vectors as lists, so that batches of robots with other joints are one table."""
    name = '"' + field.name.replace('"', '""') + '"'
    if not pa.types.is_fixed_size_list(field.type):
        return f"f.{name}"
    return f"f.{name}::{_SQL.get(field.type.value_type, 'DOUBLE')}[] AS {name}"


_SQL = {pa.float32(): "FLOAT", pa.int64(): "BIGINT", pa.int32(): "INTEGER", pa.bool_(): "BOOLEAN"}
