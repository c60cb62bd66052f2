"""Small datasets and workspaces to be damaged, and what fsck and curate answer."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from support.dataset_writer import SPEC_VIDEO, commit
from twinloop.catalog import Workspace
from twinloop.catalog.label_checks import Label
from twinloop.core.errors import TwinloopError
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.workflows.curate.curate import run_curate
from twinloop.workflows.curate.requests import CurateRequest
from twinloop.workflows.data.requests import FsckRequest
from twinloop.workflows.data.workspace import run_fsck

CAMERA = "front"
TEXT = "the hand closes on the cube before it lifts it"


def write_videos(folder: Path) -> Path:
    """Write two blocks of three and two episodes with two cameras."""
    with DatasetWriter.open(folder, SPEC_VIDEO) as writer:
        for block in (0, 1, 2):
            commit(writer, block)
        writer.finish({"yield": 0.5})
    return folder


def write_cell(root: Path) -> Path:
    """Make a workspace with a dataset, labels, a dataset version, scores, a policy, a scenario and a recorded run."""
    with Workspace.create(root) as ws:
        ws.add(write_videos(root / "data" / "first"))
        ids = ws.query("SELECT episode_id FROM episodes ORDER BY episode_index")["episode_id"].to_pylist()
        ws.label([Label(episode_id=name, kind="language", value=TEXT, source="hand", author="ada") for name in ids])
        ws.exclude_episodes(ids[:1], "bumped", "ada")
        ws.freeze("kept", "SELECT episode_id FROM episodes")
    curate(root, only=["recording/clock_jump"])
    return root


def fsck(root: Path, *, deep: bool = True, mend: bool = False) -> tuple[int, str, dict[str, Any]]:
    """Return the exit code, the text output, and the metrics; 2 and the message for a refusal."""
    text = io.StringIO()
    try:
        metrics, code = run_fsck(
            FsckRequest(workspace=root, deep=deep, repair=mend, compact=False), console=Console(file=text, width=10_000)
        )
    except TwinloopError as error:
        return error.exit_code, str(error), {"findings": [], "notes": []}
    return code, text.getvalue(), json.loads(json.dumps(metrics))


def curate(root: Path | None, *, only: Sequence[str] = (), **options: Any) -> dict[str, Any]:
    """Score the episodes of a workspace, or of ``dataset``; return the figures."""
    request = CurateRequest(workspace=root, workers=1, checks=",".join(only), **options)
    return run_curate(request, console=Console(file=io.StringIO()))[0]


def verdicts(metrics: dict[str, Any]) -> dict[int, set[str]]:
    """Return the verdicts of each episode, by its index."""
    found: dict[int, set[str]] = {}
    for score in metrics["scores"]:
        found.setdefault(score["episode_index"], set()).add(score["verdict"])
    return found


def flip(path: Path, at: int, bit: int = 4) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def rewritten(path: Path, change: Any) -> None:
    """Change the table in a Parquet file."""
    table = change(pq.read_table(path))
    pq.write_table(table, path, row_group_size=max(len(table), 1))


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    """Replace a column."""
    return table.set_column(table.column_names.index(name), name, values)


def emptied(table: pa.Table, name: str, row: int) -> pa.Table:
    """Replace one cell of a column with null."""
    values = table[name].to_pylist()
    values[row] = None
    return with_column(table, name, pa.array(values, table[name].type))


def data_file(folder: Path, number: int = 0) -> Path:
    """Return a file of frames."""
    return folder / "data" / "chunk-000" / f"file-{number:03d}.parquet"


def video_file(folder: Path, number: int = 0, camera: str = CAMERA) -> Path:
    """Return a video."""
    return folder / "videos" / f"observation.images.{camera}" / "chunk-000" / f"file-{number:03d}.mp4"


def raw_state(root: Path) -> sqlite3.Connection:
    """Open ``state.sqlite`` as any other program does."""
    return sqlite3.connect(root / "catalog" / "state.sqlite")
