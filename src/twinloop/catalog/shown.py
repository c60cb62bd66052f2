"""Tables in memory behind the views: parts as they were read, each episode once, the newest verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from twinloop.catalog.parts import Part, Parts
from twinloop.catalog.schema import TABLES
from twinloop.catalog.state import State
from twinloop.core.errors import DatasetError

# Texts that many rows share are held once; what tells rows apart is held as it is.
_OWN = {"episode_id", "reason", "extra", "parents", "cameras"}
_HEX = 64  # letters of a SHA-256
# Odd multipliers that mix the four words of 32 letters: the primes of xxHash64, and the golden ratio in 64 bits.
_ODD = np.array([0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x9E3779B97F4A7C15], np.uint64)
_GROWING = "label_history"  # never changes but by longer


class Cache:
    """What has been read and made, kept while it is what one would read and make again."""

    def __init__(self) -> None:
        self._parts: dict[str, pa.Table] = {}
        self._whole: dict[str, tuple[tuple[str, ...], pa.Table]] = {}
        self._made: dict[str, tuple[pa.Table, tuple[Any, ...], pa.Table]] = {}
        self._grown: pa.Table | None = None

    def read(self, parts: Parts, table: str, listed: Sequence[Part]) -> pa.Table:
        """The rows of a table's parts, of which only those are read that are new.

        Raises:
            DatasetError: a part is damaged or gone.
        """
        key = tuple(part.part for part in listed)
        held = self._whole.get(table)
        if held is None or held[0] != key:
            before = self._parts
            rows = {name: before[name] if name in before else read_part(parts, table, name) for name in key}
            stale = set(held[0]) - set(key) if held else set()
            self._parts = {name: rows for name, rows in {**before, **rows}.items() if name not in stale}
            made = pa.concat_tables(rows.values()).unify_dictionaries() if rows else TABLES[table].schema.empty_table()
            held = (key, made.combine_chunks())
            self._whole[table] = held
        return held[1]

    def made(self, name: str, of: pa.Table, make: Callable[..., pa.Table], *also: Any) -> pa.Table:
        """What ``make`` makes of a table that `read` gave, made once."""
        held = self._made.get(name)
        if held is None or held[0] is not of or held[1] != also:
            held = (of, also, make(of, *also))
            self._made[name] = held
        return held[2]

    def state(self, state: State, table: str) -> pa.Table:
        """A table of the state; of one that only grows, what is new is read."""
        if table != _GROWING:
            return state.arrow(table)
        held = self._grown
        last = held["seq"][-1].as_py() if held is not None and len(held) else 0
        new = state.arrow(table, after=last)
        self._grown = new if held is None or not len(held) else pa.concat_tables([held, new])
        return self._grown


def read_part(parts: Parts, table: str, name: str) -> pa.Table:
    """One part, texts that repeat held once.

    Raises:
        DatasetError: it is damaged or gone; names it.
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
            f"{path} is damaged or gone ({reason}). `twinloop fsck` says what it held and what can be done."
        ) from error


def once(places: pa.Table, buried: frozenset[str]) -> pa.Table:
    """The first copy of each episode that is not buried."""
    keep = _first(places["episode_id"])
    if buried:
        hidden = pc.is_in(places["episode_id"], value_set=pa.array(sorted(buried)))
        keep &= ~hidden.to_numpy(zero_copy_only=False)
    return places if keep.all() else places.filter(pa.array(keep))


def _first(names: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Where a name comes for the first time."""
    digests = _digests(names)
    if digests is not None and len(np.unique(digests)) == len(digests):
        return np.ones(len(digests), dtype=bool)
    if not len(names):
        return np.zeros(0, dtype=bool)
    codes = names.combine_chunks().dictionary_encode().indices.to_numpy()
    return np.diff(np.maximum.accumulate(codes), prepend=-1) > 0


def newest(history: pa.Table) -> pa.Table:
    """All rows that a check gave of an episode in the newest run in which it spoke of it."""
    runs = _codes(history, "run_id")
    if not len(history) or not (runs != runs[0]).any():
        return history
    names = history["run_id"].combine_chunks()
    names = names.dictionary if pa.types.is_dictionary(names.type) else names.dictionary_encode().dictionary
    rank = np.argsort(np.argsort(names.to_pylist()))[runs]
    by_run = np.argsort(rank, kind="stable")
    key = _digests(history["episode_id"])
    # Digests tell episodes apart unless two fall together, which is looked for among the rows that seem alike.
    order = by_run[np.argsort(_key(history, key)[by_run], kind="stable")] if key is not None else None
    if order is None or not _alike_are_same(history, key, order):
        key = _codes(history, "episode_id").astype(np.uint64)
        order = by_run[np.argsort(_key(history, key)[by_run], kind="stable")]
    ordered = _key(history, key)[order]
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], [True]))
    latest = np.repeat(rank[order[last]], np.diff(last, prepend=-1))
    keep = np.zeros(len(history), dtype=bool)
    keep[order] = rank[order] == latest
    return history.filter(pa.array(keep))


def _key(history: pa.Table, episodes: NDArray[np.uint64] | None) -> NDArray[np.uint64]:
    """A number for each episode and check."""
    key = np.zeros(len(history), np.uint64) if episodes is None else episodes
    codes = _codes(history, "check").astype(np.uint64)
    return key * (codes.max() + np.uint64(1)) + codes


def _alike_are_same(history: pa.Table, key: NDArray[np.uint64] | None, order: NDArray[np.int64]) -> bool:
    """Whether neighbours of one key are of one episode and check."""
    ordered = _key(history, key)[order]
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    one, other = pa.array(order[same]), pa.array(order[same + 1])
    columns = (history[name].combine_chunks() for name in ("episode_id", "check"))
    return all(
        pc.all(pc.equal(_plain(column.take(one)), _plain(column.take(other)))).as_py() is not False
        for column in columns
    )


def _plain(column: pa.Array) -> pa.Array:
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def _digests(names: pa.ChunkedArray) -> NDArray[np.uint64] | None:
    """64 bits of each name, where all are SHA-256 in hex: other numbers are other names. None for other names."""
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


def _codes(table: pa.Table, column: str) -> NDArray[np.int64]:
    """A number for each text of a column, the same for the same."""
    array = table[column].combine_chunks()
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    return array.indices.to_numpy().astype(np.int64)
