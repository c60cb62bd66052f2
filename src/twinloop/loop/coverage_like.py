"""``twinloop coverage --workspace DIR --like EPISODE``: the clips nearest to one, in words."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console

from twinloop.catalog import Workspace
from twinloop.catalog.naming import resolve
from twinloop.core.errors import InputError
from twinloop.curate.neighbours import clip_index, nearest, usual_encoder

_DEFAULT = "waypoints"


def clip_named(workspace: Workspace, like: str) -> tuple[str, int]:
    """The episode and the frame of ``EPISODE`` or ``EPISODE:FRAME``.

    An episode is the beginning of its id or ``BATCH:INDEX``, as for labels. A number behind the name of a batch is an
    index, behind anything else a frame.

    Raises:
        InputError, UnknownNameError: what is written is neither, or there is no such episode.
    """
    head, colon, tail = like.rpartition(":")
    if colon and not tail.isdigit():
        raise InputError(f"--like {like}: {tail!r} is no frame. Write EPISODE or EPISODE:FRAME, such as {head}:60.")
    batch = workspace.query("SELECT 1 FROM places WHERE batch = ? LIMIT 1", [head]).num_rows
    name, frame = (head, int(tail)) if colon and not batch else (like, 0)
    return resolve(workspace, [name])[0], frame


def run_like(path: Path | None, like: str, *, most: int, embedding: str, console: Console) -> dict[str, Any]:
    """Print the clips nearest to one.

    Args:
        path: of the workspace; None: the nearest upwards.
        like: the clip, see `clip_named`.
        most: how many.
        embedding: by which encoder; its default stands for the embedding with the most clips.
        console: where they are printed.

    Raises:
        InputError, UnknownNameError: there are no embeddings, or no such clip.
    """
    with Workspace.open(path) as workspace:
        return _nearest(workspace, like, most=most, embedding=embedding, console=console)


def _nearest(workspace: Workspace, like: str, *, most: int, embedding: str, console: Console) -> dict[str, Any]:
    episode, frame = clip_named(workspace, like)
    encoder_hash, encoder = usual_encoder(workspace, None if embedding == _DEFAULT else embedding)
    clips = len(clip_index(workspace, encoder_hash))
    began = time.perf_counter()
    found = nearest(workspace, episode, frame, most, encoder_hash=encoder_hash)
    took = time.perf_counter() - began
    console.print(f"Of {clips} clips by {encoder}, in {1e3 * took:.1f} ms:")
    rows = []
    for row in found:
        place = workspace.locate(row.episode_id)
        console.print(
            f"{row.distance:8.3g}  {row.episode_id}  frames {row.first_frame} to {row.last_frame}  (episode "
            f"{place.index} of {place.batch})",
            soft_wrap=True,
        )
        rows.append({**vars(row), "batch": place.batch, "episode_index": place.index})
    asked = {"like": like, "episode_id": episode, "frame": frame}
    return {"schema": 1, "verb": "coverage", **asked, "encoder": encoder, "clips": clips, "nearest": rows}
