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
        return pq.read_table(path, read_dictionary=shared).replace_schema_metadata()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DatasetError(
            f"{path} is damaged or gone ({reason}). `twinloop fsck` says what it held and what can be done."
        ) from error


def once(places: pa.Table, buried: frozenset[str]) -> pa.Table:
    """The first copy of each episode that is not buried."""
    if not len(places):
        return places
    codes = places["episode_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    keep = np.diff(np.maximum.accumulate(codes), prepend=-1) > 0
    if buried:
        hidden = pc.is_in(places["episode_id"], value_set=pa.array(sorted(buried)))
        keep &= ~hidden.to_numpy(zero_copy_only=False)
    return places if keep.all() else places.filter(pa.array(keep))


def newest(history: pa.Table) -> pa.Table:
    """Of the rows that one check gave of one channel of one episode, those of the newest run."""
    runs = _codes(history, "run_id")
    if not len(history) or not (runs != runs[0]).any():
        return history
    names = history["run_id"].combine_chunks().dictionary.to_pylist()
    rank = np.argsort(np.argsort(names))[runs]
    key = _codes(history, "episode_id")
    for column in ("check", "channel"):
        codes = _codes(history, column)
        key = key * (int(codes.max()) + 1) + codes
    order = np.lexsort((rank, key))
    last = np.append(np.diff(key[order]) != 0, [True])
    keep = np.zeros(len(history), dtype=bool)
    keep[order[last]] = True
    return history.filter(pa.array(keep))


def _codes(table: pa.Table, column: str) -> NDArray[np.int64]:
    """A number for each text of a column, the same for the same."""
    array = table[column].combine_chunks()
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    return array.indices.to_numpy().astype(np.int64)
