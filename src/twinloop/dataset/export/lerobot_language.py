"""Build LeRobot's language columns, which it has since 0.6: texts that are valid from a time on, and events.

Both columns hold a list of rows in every frame (lerobot 0.6.1, ``datasets/language.py``). ``language_persistent`` has
the same list in all frames of an episode; each of its rows is valid from its ``timestamp`` in s until the next row of
the same style. ``language_events`` has the events of its frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

Subtasks = Sequence[tuple[str, int]]
"""Name of each subtask of an episode, and the frame at which it begins, in order."""

PERSISTENT, EVENTS = "language_persistent", "language_events"
FEATURES: dict[str, Any] = {key: {"dtype": "language", "shape": [1], "names": None} for key in (PERSISTENT, EVENTS)}
"""Entries of the columns in ``info.json``."""

# Tool calls, which twinloop does not write, would be JSON; LeRobot reads texts.
_CALLS = pa.list_(pa.string())
_TEXTS = [(name, pa.string()) for name in ("role", "content", "style")]
_PLACE = [("camera", pa.string()), ("tool_calls", _CALLS)]
_EVENT = pa.struct([*_TEXTS, *_PLACE])
_ROW = pa.struct([*_TEXTS, ("timestamp", pa.float32()), *_PLACE])


def add_language(table: pa.Table, subtasks: Subtasks) -> pa.Table:
    """Return the frames of one episode with language columns, of which the persistent one has a row per subtask.

    Args:
        table: Frames of the episode; the time of a subtask is the column ``timestamp`` in its first frame.
        subtasks: Subtasks of the episode.
    """
    times = table["timestamp"].to_pylist()
    rows = [
        {"role": "assistant", "content": text, "style": "subtask", "timestamp": times[frame], "camera": None}
        for text, frame in subtasks
    ]
    persistent = pa.array([rows] * len(times), pa.list_(_ROW))
    events = pa.array([[]] * len(times), pa.list_(_EVENT))
    plain = table.drop_columns([name for name in (PERSISTENT, EVENTS) if name in table.column_names])
    plain = plain.append_column(PERSISTENT, persistent).append_column(EVENTS, events)
    return plain.replace_schema_metadata()  # the note of the columns' types for `datasets` lacks the new ones
