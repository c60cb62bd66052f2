"""Build the in-memory tables behind the catalog's views, and cache them on disk for other processes.

Some tables are derived: the first copy of each episode, and the newest check results of each episode.

A cache file never replaces the catalog's Parquet files. It names the files from which it was made, is checked before
use, and is made again if it is missing. Its name contains its SHA-256, which `fsck` compares.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from twinloop.catalog.parts import PartFile, PartStore
from twinloop.catalog.schema import TABLES
from twinloop.catalog.state import WorkspaceState
from twinloop.catalog.state_schema import STATE_TABLES
from twinloop.core.errors import DatasetError, TwinloopError
from twinloop.core.files import atomic_open, dumps, sha256_bytes, sha256_file

FOLDER = ".kept"  # within catalog/
MIN_CACHED_ROWS = 20_000  # rows: fewer are read from their parts in less time than a process takes to start
_SHARE = 64  # a file is rewritten once it lacks 1/64 of the rows; all writes are then about 64 times the data
_ABOUT = b"twinloop"
_SCHEMA = 2  # increase it whenever the same parts give other tables


class CacheFolder:
    """Folder ``.kept`` of the cache files within the folder ``catalog``; failures to write are ignored.

    Each cached table has a name, and a key: a tuple of texts that identifies the data from which it was made.
    """

    def __init__(self, catalog: Path) -> None:
        self._folder = catalog / FOLDER
        self._held: dict[str, tuple[tuple[str, ...], int]] = {}

    def has_key(self, name: str, key: Sequence[str]) -> bool:
        """Return whether the last table that this object saved or loaded under ``name`` has exactly this key."""
        return name in self._held and self._held[name][0] == tuple(key)

    def load(self, name: str, schema: pa.Schema) -> tuple[tuple[str, ...], pa.Table] | None:
        """Return the key and the table cached under ``name``; None if no intact file has the columns of ``schema``."""
        for path in sorted(self._folder.glob(f"{name}-*.arrow")):
            with contextlib.suppress(pa.ArrowException, OSError, KeyError, ValueError, TypeError):
                table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
                table.validate(full=True)  # otherwise offsets in a damaged file could lead out of the file
                about = json.loads(table.schema.metadata[_ABOUT])
                if about["schema"] == _SCHEMA and _schema_matches(table.schema, schema):
                    key = tuple(about["key"])
                    self._held[name] = (key, len(table))
                    return key, table.replace_schema_metadata()
        return None

    def save(self, name: str, key: Sequence[str], rows: pa.Table, *, always: bool = False) -> None:
        """Cache a table of at least 20,000 rows under a name, if it has grown by 1/64 or more since the last save.

        Args:
            name: name of the table.
            key: texts that identify the data from which the table was made.
            rows: the table.
            always: whether to cache the table even if it has grown by less than 1/64; the minimum of rows still
                applies.
        """
        grown = abs(len(rows) - self._held.get(name, ((), 0))[1])
        if len(rows) < MIN_CACHED_ROWS or not (always or grown * _SHARE >= len(rows)):
            return
        about = {_ABOUT: dumps({"schema": _SCHEMA, "key": list(key)}).encode()}
        aside = self._folder / f".{name}-{os.getpid()}.arrow"
        with contextlib.suppress(TwinloopError, OSError):
            before = set(self._folder.glob(f"{name}-*.arrow"))
            with atomic_open(aside) as file, pa.ipc.new_file(file, rows.schema.with_metadata(about)) as writer:
                writer.write_table(rows)
            target = self._folder / f"{name}-{sha256_file(aside)}.arrow"
            aside.replace(target)
            for path in before - {target}:
                path.unlink(missing_ok=True)
            self._held[name] = (tuple(key), len(rows))


def find_damaged_files(catalog: Path) -> list[Path]:
    """Return the cache files whose content does not match the SHA-256 in their name."""
    return [path for path in sorted((catalog / FOLDER).glob("*.arrow")) if not path.stem.endswith(sha256_file(path))]


def _schema_matches(found: pa.Schema, declared: pa.Schema) -> bool:
    """Return whether two schemas have equal names and types; dictionary-encoded text is equal to text."""

    def plain(kind: pa.DataType) -> pa.DataType:
        return kind.value_type if pa.types.is_dictionary(kind) else kind

    one, other = ([(field.name, plain(field.type)) for field in schema] for schema in (found, declared))
    return one == other


# Texts that many rows share are dictionary-encoded; texts that identify rows are not.
_OWN = {"episode_id", "reason", "extra", "parents", "cameras"}
_HEX = 64  # hexadecimal digits of a SHA-256
# Odd multipliers that mix the four words of 32 letters: the primes of xxHash64, and the golden ratio in 64 bits.
_ODD = np.array([0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x9E3779B97F4A7C15], np.uint64)
_GROWING = "label_history"  # a table that only grows


class ViewTableCache:
    """In-memory tables for the views, kept until the data changes, and cached on disk for other processes.

    Args:
        kept: the folder of the cache files.
    """

    def __init__(self, kept: CacheFolder) -> None:
        self._kept = kept
        self._read: dict[str, tuple[tuple[str, ...], pa.Table]] = {}
        self._made: dict[str, tuple[tuple[str, ...], pa.Table]] = {}
        self._grown: pa.Table | None = None

    def read(self, parts: PartStore, table: str, listed: Sequence[PartFile]) -> pa.Table:
        """Return the rows of a table from its Parquet files.

        Only files that are neither in memory nor in the cache are read.

        Args:
            parts: the catalog's Parquet files.
            table: name of the table.
            listed: the committed Parquet files of the table, in order.

        Raises:
            DatasetError: If a file is damaged or missing.
        """
        key, schema = tuple(part.part for part in listed), TABLES[table].schema
        held = self._read.get(table) or self._kept.load(table, schema) or ((), schema.empty_table())
        if held[0] != key:
            if key[: len(held[0])] != held[0]:
                held = ((), schema.empty_table())
            new = [read_part(parts, table, name) for name in key[len(held[0]) :]]
            some = [rows for rows in (held[1], *new) if len(rows)]
            made = pa.concat_tables(some).unify_dictionaries() if some else schema.empty_table()
            held = (key, made.combine_chunks())
            self._kept.save(table, *held)
        self._read[table] = held
        return held[1]

    def derive_table(
        self, name: str, table: str, compute: Callable[..., pa.Table], excluded_ids: frozenset[str] = frozenset()
    ) -> pa.Table:
        """Return a table computed from the rows that `read` returned last for ``table``.

        The result is kept in memory until the rows or ``excluded_ids`` change. A large result is also stored on the
        disk.

        Args:
            name: name of the result, in memory and on the disk.
            table: name of the table, which was read before.
            compute: function from the rows, and from ``excluded_ids`` if it is not empty, to the result.
            excluded_ids: further input of the function, such as ids of excluded episodes.
        """
        parts, of = self._read[table]
        key = (sha256_bytes(*(text.encode() for text in sorted(excluded_ids))), *parts)
        held = self._made.get(name)
        if held is None or held[0] != key:
            held = self._kept.load(f"made-{name}", of.schema) if len(of) >= MIN_CACHED_ROWS else None
        if held is None or held[0] != key:
            held = (key, compute(of, excluded_ids) if excluded_ids else compute(of))
            if self._kept.has_key(table, parts):
                self._kept.save(f"made-{name}", *held, always=True)
        self._made[name] = held
        return held[1]

    def read_state_table(self, state: WorkspaceState, table: str) -> pa.Table:
        """Return a table of ``state.sqlite``.

        For the label history, to which rows are only added, only new rows are read.
        """
        if table != _GROWING:
            return state.read_table(table)
        held = self._grown if self._grown is not None else self._load_cached_rows(state)
        last = held["seq"][-1].as_py() if held is not None and len(held) else 0
        new = state.read_table(table, after=last)
        if held is None or not len(held):
            self._grown = new
        elif len(new):
            self._grown = pa.concat_tables([held, new])
        else:
            self._grown = held
        self._kept.save(table, (), self._grown)
        return self._grown

    def _load_cached_rows(self, state: WorkspaceState) -> pa.Table | None:
        """Return the cached rows of the label history, or None if they do not belong to this ``state.sqlite``.

        Labels are numbered in the column ``seq``. The cached rows belong to the file if its label history contains the
        last cached row unchanged, and as many rows up to the ``seq`` of this row as the cache.
        """
        kept = self._kept.load(_GROWING, STATE_TABLES[_GROWING].schema)
        if kept is None:
            return None
        last = kept[1].slice(len(kept[1]) - 1).to_pylist()[0]
        there = state.row(f"SELECT * FROM {_GROWING} WHERE seq = ?", (last["seq"],))  # noqa: S608 - ours
        count = state.rows(f"SELECT count(*) AS n FROM {_GROWING} WHERE seq <= ?", (last["seq"],))[0]["n"]  # noqa: S608
        return kept[1] if count == len(kept[1]) and there == last else None


def read_part(parts: PartStore, table: str, name: str) -> pa.Table:
    """Read one Parquet file of a table; text columns that repeat values are dictionary-encoded.

    Args:
        parts: the catalog's Parquet files.
        table: name of the table.
        name: name of the file.

    Raises:
        DatasetError: If the file is damaged or missing.
    """
    path = parts.path(table, name)
    shared = [c.name for c in TABLES[table].columns if c.type == pa.string() and c.name not in _OWN]
    try:
        # `read_table` would load pyarrow.dataset, and with it pandas: longer than reading takes.
        with pq.ParquetFile(path, read_dictionary=shared) as file:
            return file.read().replace_schema_metadata()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DatasetError(
            f"{path} is damaged or missing ({reason}). `twinloop fsck` lists its content and the remedy."
        ) from error


def select_first_copies(places: pa.Table, excluded: frozenset[str] = frozenset()) -> pa.Table:
    """Return the first copy of each episode, leaving out excluded episodes.

    Args:
        places: one row per copy of an episode, with the column ``episode_id``.
        excluded: ids of the excluded episodes.
    """
    keep = _find_first_occurrences(places["episode_id"])
    if excluded:
        hidden = pc.is_in(places["episode_id"], value_set=pa.array(sorted(excluded)))
        keep &= np.array([not flag for flag in hidden.to_pylist()])
    return places if keep.all() else places.filter(_build_bool_array(keep))


def _find_first_occurrences(names: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return a mask, shape ``(len(names),)``, that is true for the first occurrence of each name."""
    digests = _compute_digests(names)
    if digests is not None:
        ordered = np.sort(digests)  # four times as fast as `unique`, which hashes
        if (ordered[1:] != ordered[:-1]).all():
            return np.ones(len(digests), dtype=bool)
    if not len(names):
        return np.zeros(0, dtype=bool)
    codes = np.from_dlpack(names.combine_chunks().dictionary_encode().indices)
    return np.diff(np.maximum.accumulate(codes), prepend=-1) > 0


def select_newest_rows(history: pa.Table) -> pa.Table:
    """Return for each pair of check and episode the rows of the run that was committed last.

    Args:
        history: rows of the table ``scores``, in the order of their commits.
    """
    runs = _encode_column(history, "run_id")
    if not len(history) or not (runs != runs[0]).any():
        return history
    key = _compute_digests(history["episode_id"])
    # Two episodes may have the same digest; this is checked among the rows with equal keys.
    order = np.argsort(_combine_keys(history, key), kind="stable") if key is not None else None
    if order is None or not _equal_keys_match(history, key, order):
        key = _encode_column(history, "episode_id").astype(np.uint64)
        order = np.argsort(_combine_keys(history, key), kind="stable")
    ordered = _combine_keys(history, key)[order]
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], [True]))
    latest = np.repeat(runs[order[last]], np.diff(last, prepend=-1))
    keep = np.zeros(len(history), dtype=bool)
    keep[order] = runs[order] == latest
    return history.filter(_build_bool_array(keep))


def _combine_keys(history: pa.Table, episodes: NDArray[np.uint64] | None) -> NDArray[np.uint64]:
    """Return one integer per row that identifies its pair (episode, check), shape ``(len(history),)``.

    Args:
        history: rows with the column ``check``.
        episodes: one integer per row that identifies its episode; None to use the check only.
    """
    key = np.zeros(len(history), np.uint64) if episodes is None else episodes
    codes = _encode_column(history, "check").astype(np.uint64)
    return key * (codes.max() + np.uint64(1)) + codes


def _equal_keys_match(history: pa.Table, key: NDArray[np.uint64] | None, order: NDArray[np.int64]) -> bool:
    """Return whether all rows with equal combined keys have the same episode and check; if not, two hashes collide.

    A combined key is the integer that `_combine_keys` computes from ``key`` and the check of a row.

    Args:
        history: rows with the columns ``episode_id`` and ``check``.
        key: hash of each row's episode id; if None, the combined keys contain the check only.
        order: row indices that sort the combined keys.
    """
    ordered = _combine_keys(history, key)[order]
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    one, other = _build_int_array(order[same]), _build_int_array(order[same + 1])
    columns = (history[name].combine_chunks() for name in ("episode_id", "check"))
    return all(
        pc.all(pc.equal(_decode_dictionary(column.take(one)), _decode_dictionary(column.take(other)))).as_py()
        is not False
        for column in columns
    )


def _decode_dictionary(column: pa.Array) -> pa.Array:
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def _compute_digests(names: pa.ChunkedArray) -> NDArray[np.uint64] | None:
    """Return a 64-bit number per name, shape ``(len(names),)``; None if a name is not a 64-digit hexadecimal text.

    Different numbers mean different names. Equal numbers may belong to different names.
    """
    array = names.combine_chunks()
    if not len(array) or array.null_count or array.type != pa.string():
        return None
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    if data is None or (np.diff(ends) != _HEX).any():
        return None
    letters = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]].reshape(len(array), _HEX)
    words = np.ascontiguousarray(letters[:, :32]).view("<u8")
    return (words * _ODD).sum(axis=1, dtype=np.uint64)


def _encode_column(table: pa.Table, column: str) -> NDArray[np.int64]:
    """Return one number per row for the text in a column, shape ``(rows,)``; equal texts have equal numbers."""
    array = table[column].combine_chunks()
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    return np.from_dlpack(array.indices).astype(np.int64)


# `pa.array` of an array and `to_numpy` load pandas if it is installed, which takes longer than all of this.


def _build_bool_array(values: NDArray[np.bool_]) -> pa.Array:
    bits = pa.py_buffer(np.packbits(values, bitorder="little").tobytes())
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits])


def _build_int_array(values: NDArray[np.int64]) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values.astype(np.int64).tobytes())])
