"""A workspace with six small episodes, and episodes that were made from others."""

from __future__ import annotations

import dataclasses
import functools
import shutil
import tempfile
from pathlib import Path

from support.dataset_writer import SPEC, planted
from twinloop.catalog import Workspace
from twinloop.dataset.lerobot.tables import content_hash
from twinloop.dataset.lerobot.writer import DatasetWriter


@functools.cache
def episode_id(number: int) -> str:
    return content_hash(planted(number))


def child(number: int, parents: tuple[str, ...]):
    """An episode that names its parents."""
    made = planted(number)
    return dataclasses.replace(
        made, provenance=dataclasses.replace(made.provenance, source="augmented", parents=parents)
    )


def write_batch(folder: Path, episodes) -> Path:
    with DatasetWriter.open(folder, dataclasses.replace(SPEC, block_size=64)) as writer:
        writer.commit_block(0, list(episodes), outcome={"attempted": len(episodes), "success": len(episodes)})
        writer.finish({})
    return folder


def workspace(folder: Path) -> tuple[Workspace, list[str]]:
    """The workspace, and the ids of the episodes 0 to 5 of its batch ``first``; episode i has 35 + i frames."""
    shutil.copytree(Path(_template().name) / "cell", folder)
    return Workspace.open(folder), [episode_id(number) for number in range(6)]


@functools.cache
def _template() -> tempfile.TemporaryDirectory[str]:
    """Made once: tests get copies."""
    made = tempfile.TemporaryDirectory(prefix="twinloop-labelled-")
    folder = Path(made.name) / "cell"
    with Workspace.create(folder) as ws:
        ws.add(write_batch(folder / "data" / "first", [planted(number) for number in range(6)]))
    return made
