"""Find episodes by the first characters of their id, by ``BATCH:INDEX``, or by an SQL condition."""

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

MIN_PREFIX_LENGTH = 4  # fewest first characters of an id that identify an episode
MAX_SELECTED_EPISODES = 5_000_000  # maximum selected episodes: each becomes an object of about 100 bytes
_SHOWN = 4
_SHORT = 12


def resolve_episodes(ws: OpenWorkspace, words: Iterable[str], *, include_excluded: bool = False) -> list[str]:
    """Return the ids of the episodes that the references identify, in the order of the references.

    Args:
        ws: the workspace.
        words: for each episode a reference: its id, the first 4 or more characters of its id, or ``BATCH:INDEX``.
        include_excluded: whether excluded episodes are allowed.

    Raises:
        UnknownNameError: If an episode or a batch does not exist.
        InputError: If several ids begin with a reference, or an episode is excluded and ``include_excluded`` is false.
    """
    known = _NameIndex(ws)
    return [known.find_episode(word, include_excluded=include_excluded) for word in words]


def select_episodes(ws: OpenWorkspace, where: str) -> list[str]:
    """Return the ids of the episodes that an SQL condition or a complete statement selects.

    Args:
        ws: the workspace.
        where: a condition on the columns of the view `episodes`, such as ``source = 'real'``; or a whole statement that
            begins with ``SELECT``, ``WITH`` or ``FROM``.

    Raises:
        InputError: If the statement is wrong or its result has no column ``episode_id``.
    """
    whole = re.match(r"\s*(select|with|from)\b", where, re.IGNORECASE)
    return query_episode_ids(ws, where if whole else f"SELECT episode_id FROM episodes WHERE {where}\n")  # noqa: S608


def query_episode_ids(ws: OpenWorkspace, sql: str) -> list[str]:
    """Return the distinct values of the column ``episode_id`` in a statement's result, in the order of the rows.

    Raises:
        InputError: If the statement is wrong, or its result has no column ``episode_id`` or more than 5 million rows.
    """
    table = ws.query(sql, max_rows=MAX_SELECTED_EPISODES)
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
    """All episode ids, batches and excluded episodes of a workspace, read once for many look-ups."""

    def __init__(self, ws: OpenWorkspace) -> None:
        self._where = str(ws.root)
        self._places = ws.query("SELECT episode_id, batch, episode_index FROM places")
        self._ids = self._places["episode_id"]
        self._excluded = {
            row["episode_id"]: row["reason"]
            for row in ws.query("SELECT episode_id, reason FROM tombstones").to_pylist()
        }

    def find_episode(self, word: str, *, include_excluded: bool) -> str:
        """Return the id of the episode that a reference (id, prefix of an id, or ``BATCH:INDEX``) identifies.

        If ``include_excluded`` is false, an excluded episode is an error.
        """
        batch, _, index = word.rpartition(":")
        found = self._find_by_index(batch, int(index)) if batch and index.isdigit() else self._find_by_prefix(word)
        if found in self._excluded and not include_excluded:
            raise make_excluded_error(found, self._excluded[found])
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
        if len(word) < MIN_PREFIX_LENGTH:
            raise InputError(
                f"{word!r} is too short to identify an episode. Give {MIN_PREFIX_LENGTH} or more characters of its id."
            )
        found: Sequence[str] = sorted(set(self._ids.filter(pc.starts_with(self._ids, word)).to_pylist()))
        if not found:
            short = {name[:_SHORT] for name in self._ids.to_pylist()}
            raise UnknownNameError("episode", word, short, where=f"{self._where}, which has {len(short)}")
        if len(found) > 1:
            shown = ", ".join(name[: len(word) + 6] for name in found[:_SHOWN])
            raise InputError(f"{word} is the beginning of {len(found)} ids ({shown}, …). Give more characters.")
        return found[0]
