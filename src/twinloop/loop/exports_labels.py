"""What a workspace's labels say of a dataset's episodes, as words for recordings that are exported from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from twinloop.catalog import Workspace
from twinloop.dataset.exporters.streams import EpisodeStreams
from twinloop.dataset.exporters.truth import Event
from twinloop.dataset.reader import DatasetReader

_LABELS = """
    SELECT places.episode_index, kind, value, first_frame, last_frame, labels.source, author
    FROM labels JOIN places USING (episode_id) WHERE batch = ? ORDER BY labels.seq
"""


def label_events(reader: DatasetReader) -> Callable[[int], Sequence[Event]] | None:
    """The labels of a dataset that the workspace around it, or the one that work goes on in, has indexed.

    Returns:
        Events by episode, or None where no workspace knows the dataset.
    """
    for start in (reader.path, Path.cwd()):
        if (root := Workspace.find(start)) is None:
            continue
        workspace = Workspace.open(root)
        try:
            rows = _rows(workspace, reader.path)
        finally:
            workspace.close()
        if rows is not None:
            return lambda index, rows=rows: [_event(EpisodeStreams(reader, index), row) for row in rows[index]]
    return None


def _rows(workspace: Workspace, folder: Path) -> Mapping[int, Sequence[Mapping[str, Any]]] | None:
    batches = workspace.query("SELECT batch, path FROM batches").to_pylist()
    known = [row["batch"] for row in batches if (workspace.root / row["path"]).resolve() == folder.resolve()]
    if not known:
        return None
    found: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for row in workspace.query(_LABELS, [known[0]]).to_pylist():
        found[row["episode_index"]].append(row)
    return found


def _event(streams: EpisodeStreams, row: Mapping[str, Any]) -> Event:
    first, last = row["first_frame"], row["last_frame"]
    span = "" if first is None else f", frames {first} to {last}"
    at = float(streams.time[min(first or 0, streams.length - 1)])
    return Event(time=at, text=f"{row['kind']}: {row['value']} ({row['source']} {row['author']}{span})")
