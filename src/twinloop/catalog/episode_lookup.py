"""Find episodes by the beginning of an id, by BATCH:INDEX, or by a condition."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from twinloop.catalog.label_checks import make_excluded_error
from twinloop.core.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from twinloop.catalog.state import OpenWorkspace

LEAST = 4  # fewest characters of the beginning of an id
MOST_ROWS = 5_000_000  # of a statement that chooses episodes: each becomes an object of some 100 bytes
_SHOWN = 4
_SHORT = 12


def resolve_episodes(ws: OpenWorkspace, words: Iterable[str], *, buried: bool = False) -> list[str]:
    """Return the ids of episodes, in order; each word is an id, a unique beginning of one, or ``BATCH:INDEX``.

    Raises:
        UnknownNameError: no such episode or batch.
        InputError: several ids have this beginning, or the episode is excluded and excluded ones are not allowed.
    """
    known = _NameIndex(ws)
    return [known.find_episode(word, buried=buried) for word in words]


def select_episodes(ws: OpenWorkspace, where: str) -> list[str]:
    """Return the ids of episodes that meet a condition on the view `episodes`, or that a whole ``SELECT`` returns.

    Raises:
        InputError: the statement is wrong or gives no ``episode_id``.
    """
    whole = re.match(r"\s*(select|with|from)\b", where, re.IGNORECASE)
    return query_episode_ids(ws, where if whole else f"SELECT episode_id FROM episodes WHERE {where}\n")  # noqa: S608


def query_episode_ids(ws: OpenWorkspace, sql: str) -> list[str]:
    """Return the ids in the column ``episode_id`` of a statement's rows, each once, in order.

    Raises:
        InputError: the statement is wrong, gives no ``episode_id``, or more than `MOST_ROWS` rows.
    """
    table = ws.query(sql, most_rows=MOST_ROWS)
    if "episode_id" not in table.column_names:
        raise InputError(
            f"The statement has the columns {', '.join(table.column_names)}. Select a column episode_id, as the "
            "view episodes has it."
        )
    try:
        names = pc.unique(table["episode_id"].cast(pa.string())).to_pylist()
    except pa.ArrowException as error:
        raise InputError(
            f"The column episode_id of the statement is not text ({error}). Use the ids of the view episodes."
        ) from error
    return [name for name in names if name is not None]


class _NameIndex:
    """All episode ids and batches of a workspace, read once."""

    def __init__(self, ws: OpenWorkspace) -> None:
        self._where = str(ws.root)
        self._places = ws.query("SELECT episode_id, batch, episode_index FROM places")
        self._ids = self._places["episode_id"]
        self._buried = {
            row["episode_id"]: row["reason"]
            for row in ws.query("SELECT episode_id, reason FROM tombstones").to_pylist()
        }

    def find_episode(self, word: str, *, buried: bool) -> str:
        """Return the id of the episode that a word identifies."""
        batch, _, index = word.rpartition(":")
        found = self._find_by_index(batch, int(index)) if batch and index.isdigit() else self._find_by_prefix(word)
        if found in self._buried and not buried:
            raise make_excluded_error(found, self._buried[found])
        return found

    def _find_by_index(self, batch: str, index: int) -> str:
        of_batch = self._places.filter(pc.equal(self._places["batch"], batch))
        if not len(of_batch):
            raise UnknownNameError("batch", batch, set(self._places["batch"].to_pylist()), where=self._where)
        found = of_batch.filter(pc.equal(of_batch["episode_index"], index))
        if not len(found):
            raise InputError(f"Batch {batch} has no episode {index}; it has {len(of_batch)}, counted from 0.")
        return found["episode_id"][0].as_py()

    def _find_by_prefix(self, word: str) -> str:
        if len(word) < LEAST:
            raise InputError(
                f"{word!r} is too short to identify an episode. Give {LEAST} or more characters of its id."
            )
        found: Sequence[str] = sorted(set(self._ids.filter(pc.starts_with(self._ids, word)).to_pylist()))
        if not found:
            short = {name[:_SHORT] for name in self._ids.to_pylist()}
            raise UnknownNameError("episode", word, short, where=f"{self._where}, which has {len(short)}")
        if len(found) > 1:
            shown = ", ".join(name[: len(word) + 6] for name in found[:_SHOWN])
            raise InputError(f"{word} is the beginning of {len(found)} ids ({shown}, …). Give more characters.")
        return found[0]
