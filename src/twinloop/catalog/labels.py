"""Write labels of episodes by people, rules and models, and read the current labels.

The history of labels only grows: a label is replaced or retracted by a new row, and never deleted. A **statement**
consists of all labels that one author gives one episode in one kind. The newest statement replaces the earlier ones
completely: giving the subtasks of an episode again replaces all earlier subtasks of that author. Each tag is a separate
statement. Values are stored as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from sqlite3 import Connection
from typing import TYPE_CHECKING, Any

from twinloop.catalog.label_checks import (
    UNKNOWN,
    Label,
    Source,
    Vocabulary,
    refuse_excluded,
    require_consistent_labels,
    require_episodes,
    require_kind,
    validate_label,
)
from twinloop.catalog.state import now
from twinloop.core.errors import InputError
from twinloop.core.plain import JsonRecord

if TYPE_CHECKING:
    from twinloop.catalog.state import OpenWorkspace

_CHUNK = 500  # ids in one statement; SQLite takes 32,766 parameters


@dataclass(frozen=True, kw_only=True)
class ReviewRecord:
    """Statement that the labels passed to `write_labels` are all labels that an author gives to some episodes.

    Earlier labels of the author for these episodes are retracted if they are not among the passed labels.

    Attributes:
        source: ``hand`` (a person), ``rule`` or ``model``.
        author: name of the person, rule or model.
        episode_ids: the reviewed episodes.
    """

    source: Source
    author: str
    episode_ids: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class LabelWriteResult(JsonRecord):
    """Result of writing labels. A statement consists of the labels of one author, episode and kind.

    Attributes:
        labels: number of labels written.
        statements: number of statements written.
        unchanged: number of given statements that the catalog already had, and which were not written again.
        replaced: number of earlier labels that were replaced.
        retracted: number of earlier labels that were retracted because a review of the whole episode (`ReviewRecord`)
            does not repeat them.
    """

    labels: int
    statements: int
    unchanged: int
    replaced: int
    retracted: int = 0


def write_labels(
    ws: OpenWorkspace,
    labels: Iterable[Label],
    *,
    add: bool = False,
    review: ReviewRecord | None = None,
    run_id: str | None = None,
) -> LabelWriteResult:
    """Write labels of episodes; if one label is invalid, none is written.

    Args:
        ws: the workspace.
        labels: the labels; all labels of one author, episode and kind form one statement, which replaces earlier ones.
        add: whether to keep the author's earlier subtasks and texts of the same episode, except those of the same
            frames.
        review: author and reviewed episodes; earlier labels of this author for these episodes are retracted if they
            are not in ``labels``.
        run_id: id of the run that gives the labels.

    Raises:
        UnknownNameError: If a kind, a value or an episode does not exist.
        InputError: If an episode is excluded, a label is invalid, or labels of one author contradict each other.
    """
    words = Vocabulary.of(ws.root)
    given = [validate_label(label, words) for label in labels]
    require_episodes(ws, given)
    statements = {which: list(rows) for which, rows in groupby(sorted(given, key=_label_key), key=_label_key)}
    for rows in statements.values():
        require_consistent_labels(rows)
    with ws.state.transaction() as connection:
        refuse_excluded(connection, {label.episode_id for label in given})
        looked_at = review.episode_ids if review is not None else frozenset[str]()
        before = read_current_labels(connection, looked_at.union(label.episode_id for label in given))
        written = _commit_statements(connection, statements, before, add=add, run_id=run_id)
        gone = [
            row
            for name in sorted(looked_at)
            for row in before.get(name, ())
            if review is not None
            and (row["source"], row["author"]) == (review.source, review.author)
            and _row_key(row) not in statements
        ]
        _end_labels(connection, gone, reason="reviewed again without this label", run_id=run_id)
        return replace(written, retracted=len(gone))


def retract_labels(
    ws: OpenWorkspace,
    episode_ids: Sequence[str],
    kind: str,
    *,
    source: Source = "hand",
    author: str,
    value: str | None = None,
) -> int:
    """Retract labels of one author; return the number of retracted labels.

    Nothing is deleted: the history keeps both the label and its retraction.

    Args:
        ws: the workspace.
        episode_ids: the labelled episodes.
        kind: kind of the labels.
        source: ``hand`` (a person), ``rule`` or ``model``.
        author: name of the person, rule or model.
        value: retract only labels with this value; None for labels with any value.

    Raises:
        UnknownNameError: If the kind does not exist.
        InputError: If the author gave no such label, or ``value`` is given for a kind that may have several labels per
            episode (``subtask``, ``language``).
    """
    require_kind(kind)
    with ws.state.transaction() as connection:
        held = [
            row
            for rows in read_current_labels(connection, set(episode_ids)).values()
            for row in rows
            if (row["kind"], row["source"], row["author"]) == (kind, source, author)
            and (value is None or row["value"] == value)
        ]
        if not held:
            shown = f" {value!r}" if value else ""
            raise InputError(
                f"{source}:{author} gave no {kind}{shown} to these {len(episode_ids)} episodes, so nothing can be "
                "retracted. `twinloop label show EPISODE` lists labels and authors; --author selects another."
            )
        if value is not None and kind in ("subtask", "language"):
            raise InputError(f"One {kind} of several cannot be retracted alone. Give the others again instead.")
        _end_labels(connection, held, reason=None, run_id=None)
    return len(held)


def read_current_labels(connection: Connection, episode_ids: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the current labels, by episode id, in the order in which the labels were given."""
    found: dict[str, list[dict[str, Any]]] = {}
    ids = sorted(set(episode_ids))
    for start in range(0, len(ids), _CHUNK):
        chunk = ids[start : start + _CHUNK]
        cursor = connection.execute(_CURRENT.replace(":ids", ", ".join("?" * len(chunk))), chunk)
        names = [entry[0] for entry in cursor.description]
        for values in cursor:
            row = dict(zip(names, values, strict=True))
            found.setdefault(row["episode_id"], []).append(row)
    return found


_CURRENT = """
    SELECT * FROM label_history h WHERE episode_id IN (:ids) AND NOT retracted
        AND NOT EXISTS (SELECT 1 FROM label_ends e WHERE e.seq = h.seq) ORDER BY seq
"""
_END = "INSERT INTO label_ends (seq, ended_by) VALUES (?, ?)"
_INSERT = """
    INSERT INTO label_history (statement, episode_id, kind, slot, value, first_frame, last_frame, source, author,
        author_hash, confidence, reason, retracted, said_at, run_id)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


def _commit_statements(
    connection: Connection,
    statements: Mapping[tuple[str, ...], list[Label]],
    before: Mapping[str, list[dict[str, Any]]],
    *,
    add: bool,
    run_id: str | None,
) -> LabelWriteResult:
    statement, moment = _next_statement(connection), now()
    rows, ended, changed, replaced = [], [], 0, 0
    for which, labels in statements.items():
        held = [row for row in before.get(which[0], ()) if _row_key(row) == which]
        if add and which[1] in ("subtask", "language"):
            labels = _merge_labels(held, labels)
            require_consistent_labels(labels)
        if sorted(_comparison_key(vars(label)) for label in labels) == sorted(map(_comparison_key, held)):
            continue
        changed, replaced = changed + 1, replaced + len(held)
        ended += [(row["seq"], statement) for row in held]
        rows += [
            (statement, one.episode_id, one.kind, one.slot, one.value, one.first_frame, one.last_frame, one.source,
             one.author, one.author_hash, one.confidence, one.reason, 0, moment, run_id)
            for one in labels
        ]  # fmt: skip
    connection.executemany(_END, ended)
    connection.executemany(_INSERT, rows)
    return LabelWriteResult(
        labels=len(rows), statements=changed, unchanged=len(statements) - changed, replaced=replaced
    )


def _end_labels(
    connection: Connection, retracted: Sequence[Mapping[str, Any]], *, reason: str | None, run_id: str | None
) -> None:
    """Retract current labels: mark their rows as ended, and add rows without a value to the history.

    Args:
        connection: connection with an open transaction.
        retracted: rows of the labels to retract.
        reason: reason for the retraction, which is stored in the history; None for no reason.
        run_id: id of the run that retracts the labels, or None.
    """
    statement, moment = _next_statement(connection), now()
    hashes = {_row_key(row): row["author_hash"] for row in retracted}
    rows = [
        (statement, episode, kind, slot, None, None, None, source, author, hashed, None, reason, 1, moment, run_id)
        for (episode, kind, source, author, slot), hashed in hashes.items()
    ]
    connection.executemany(_END, [(row["seq"], statement) for row in retracted])
    connection.executemany(_INSERT, rows)


def _next_statement(connection: Connection) -> int:
    return connection.execute("SELECT coalesce(max(statement), 0) + 1 FROM label_history").fetchone()[0]


def _label_key(label: Label) -> tuple[str, ...]:
    return (label.episode_id, label.kind, label.source, label.author, label.slot)


def _row_key(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (row["episode_id"], row["kind"], row["source"], row["author"], row["slot"])


def _comparison_key(row: Mapping[str, Any]) -> tuple[str, ...]:
    names = ("value", "first_frame", "last_frame", "author_hash", "confidence", "reason")
    return tuple(repr(row[name]) for name in names)


def _merge_labels(earlier: Sequence[Mapping[str, Any]], labels: list[Label]) -> list[Label]:
    """Return the earlier labels, then the new labels; a new label replaces an earlier one with exactly the same frames.

    Earlier labels with the value ``unknown`` are not included.

    Args:
        earlier: rows of the earlier labels of the same author, episode and kind.
        labels: the new labels.
    """
    given = {(label.first_frame, label.last_frame) for label in labels}
    names = ("value", "first_frame", "last_frame", "confidence", "reason")
    kept = [
        replace(labels[0], **{name: row[name] for name in names})
        for row in earlier
        if (row["first_frame"], row["last_frame"]) not in given and row["value"] != UNKNOWN
    ]
    return [*kept, *labels]
