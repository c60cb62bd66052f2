"""Write what a person says of episodes: labels and exclusions, so that each step can be undone."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from twinloop.catalog.label_checks import Label
from twinloop.catalog.labels import ReviewRecord
from twinloop.core.errors import InputError, TwinloopError
from twinloop.studio.data import StudioData

_FIELDS = ("kind", "value", "first_frame", "last_frame", "confidence", "reason")
_MINE = (
    f"SELECT {', '.join(_FIELDS)} FROM labels WHERE episode_id = ? AND source = 'hand' AND author = ? "  # noqa: S608
    "ORDER BY seq"
)
_SEVERAL = ("tag", "subtask", "language")  # kinds of which an episode may have several labels
_writing = threading.Lock()  # what is said is read, changed and written: two requests must not do this at once


def write(data: StudioData, given: Any) -> dict[str, Any]:
    """Change what the studio's user says of episodes, and return the change that undoes it, in the same form.

    Args:
        data: the workspace.
        given: for each episode id, labels to ``add``, labels to ``remove``, and ``excluded``, the reason of its
            exclusion or null to include it again; all of them may be missing. An added label replaces one of the same
            kind, or for tags, subtasks and texts one of the same frames and, for tags, the same word.

    Raises:
        InputError: If this is not its form, or a label is invalid; nothing is written then. See `catalog.labels`.
    """
    if not isinstance(given, Mapping) or not all(isinstance(change, Mapping) for change in given.values()):
        raise InputError("Give for each episode id a mapping with add, remove, excluded or several of them.")
    with _writing:
        said = {name: _read_said(data, name) for name in given}
        wanted = {name: _apply(said[name]["labels"], change) for name, change in given.items()}
        labels = [_parse_label(name, label, data.author) for name, rows in wanted.items() for label in rows]
        included = [name for name, change in given.items() if "excluded" in change and change["excluded"] is None]
        included = [name for name in included if said[name]["excluded"] is not None]
        data.workspace.include_episodes(included)  # an excluded episode takes no labels
        changed = frozenset(name for name, rows in wanted.items() if rows != said[name]["labels"])
        try:
            if changed:
                kept = [label for label in labels if label.episode_id in changed]
                data.workspace.label(kept, review=ReviewRecord(source="hand", author=data.author, episode_ids=changed))
        except TwinloopError:
            for name in included:
                data.workspace.exclude_episodes([name], said[name]["excluded"], data.author)
            raise
        for name, change in given.items():
            if change.get("excluded") is not None:
                data.workspace.exclude_episodes([name], str(change["excluded"])[:500], data.author)
    return {name: _invert(said[name], wanted[name], change) for name, change in given.items()}


def _read_said(data: StudioData, episode_id: str) -> dict[str, Any]:
    """Return the user's labels of an episode, and the reason of its exclusion or None."""
    data.workspace.locate(episode_id)
    held = data.rows("SELECT reason FROM tombstones WHERE episode_id = ?", [episode_id])
    labels = [_without_empty(row) for row in data.rows(_MINE, [episode_id, data.author])]
    return {"labels": labels, "excluded": held[0]["reason"] if held else None}


def _apply(said: Sequence[dict[str, Any]], change: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the labels that remain after a change."""
    removed, kept = _list_labels(change, "remove"), list(said)
    added = _list_labels(change, "add")
    kept = [label for label in kept if label not in removed]
    for label in added:
        kept = [old for old in kept if not _replaces(label, old)] + [label]
    return kept


def _replaces(label: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    same = ("kind", *(("first_frame", "last_frame") if label["kind"] in _SEVERAL else ()))
    same = (*same, "value") if label["kind"] == "tag" else same
    return all(label.get(name) == old.get(name) for name in same)


def _invert(said: Mapping[str, Any], wanted: Sequence[dict[str, Any]], change: Mapping[str, Any]) -> dict[str, Any]:
    before = said["labels"]
    undo: dict[str, Any] = {
        "add": [label for label in before if label not in wanted],
        "remove": [label for label in wanted if label not in before],
    }
    return {**undo, "excluded": said["excluded"]} if "excluded" in change else undo


def _list_labels(change: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the checked labels under a key of a change, without empty fields."""
    labels = change.get(key, [])
    if not isinstance(labels, list) or not all(isinstance(label, Mapping) for label in labels):
        raise InputError(f"`{key}` must be a list of labels.")
    for label in labels:
        frames = [label.get(name) for name in ("first_frame", "last_frame")]
        if not {"kind", "value"} <= set(label) <= set(_FIELDS):
            raise InputError(f"A label must have kind and value, and may have {', '.join(_FIELDS[2:])}.")
        if not all(frame is None or (isinstance(frame, int) and not isinstance(frame, bool)) for frame in frames):
            raise InputError("The first and last frame of a label must be whole numbers.")
    return [_without_empty(label) for label in labels]


def _without_empty(label: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in label.items() if value is not None}


def _parse_label(episode_id: str, given: Mapping[str, Any], author: str) -> Label:
    return Label(episode_id=episode_id, source="hand", author=author, **given)
