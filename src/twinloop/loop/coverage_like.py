"""``twinloop coverage --workspace DIR --like EPISODE``: the clips nearest to one, in words."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console

from twinloop.catalog import Workspace
from twinloop.core.errors import InputError
from twinloop.curate.neighbours import clip_index, nearest, usual_encoder

_DEFAULT = "waypoints"


def run_like(path: Path | None, like: str, *, most: int, embedding: str, console: Console) -> dict[str, Any]:
    """Print the clips nearest to one.

    Args:
        path: of the workspace; None: the nearest upwards.
        like: ``EPISODE`` or ``EPISODE:FRAME``.
        most: how many.
        embedding: by which encoder; its default stands for the embedding with the most clips.
        console: where they are printed.

    Raises:
        InputError, UnknownNameError: there are no embeddings, or no such clip.
    """
    workspace = Workspace.open(path)
    name, _, frame = like.partition(":")
    if frame and not frame.isdigit():
        raise InputError(f"--like {like}: write EPISODE or EPISODE:FRAME, such as {name}:60.")
    encoder_hash, encoder = usual_encoder(workspace, None if embedding == _DEFAULT else embedding)
    clips = len(clip_index(workspace, encoder_hash))
    began = time.perf_counter()
    found = nearest(workspace, name, int(frame or 0), most, encoder_hash=encoder_hash)
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
    return {"schema": 1, "verb": "coverage", "like": like, "encoder": encoder, "clips": clips, "nearest": rows}
