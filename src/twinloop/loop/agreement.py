"""Every renderer that works here against every other: the same states of every built-in twin, from every camera.

``twinloop bench renderers`` prints the tables; ``--write docs/rendering.md`` puts them into that page, between its
two marks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from rich.console import Console
from rich.table import Table

from twinloop.core.errors import InputError
from twinloop.core.seeds import uniforms
from twinloop.loop.marked import around, markdown_table, write_between
from twinloop.render import RENDERERS, Observed, SceneStates, open_renderer, probe_renderer
from twinloop.render.agreement import CHANNELS_COMPARED, Agreement, Difference, agreement, difference
from twinloop.render.annotate import InstanceTable
from twinloop.twin import Twin, builtin_names, load_twin

IOU_TARGET, DEPTH_TARGET_M = 0.97, 0.002
PLACE = "twinloop bench renderers"
_COLUMNS = ("IoU", "least IoU", "same ids", "depth", "95 %", "normal", "95 %", "colour", "95 %")


def run_bench_renderers(
    console: Console,
    *,
    twins: Sequence[str] = (),
    renderers: Sequence[str] = (),
    frames: int = 3,
    height: int = 480,
    width: int = 640,
    page: Path | None = None,
) -> dict[str, Any]:
    """Render, compare and print; with ``page`` write the tables between its marks.

    Args:
        twins: names or YAMLs; all built-in ones when empty.
        renderers: names; all that work here when empty.
        frames: states of each twin: its home, then positions of its joints drawn from their ranges.

    Raises:
        InputError: no states, fewer than two renderers to compare, or a page without the marks.
    """
    if frames < 1:
        raise InputError(f"--frames {frames}: renderers are compared on at least one state.")
    if page is not None:
        around(page, PLACE)
    chosen = tuple(renderers) or tuple(name for name in RENDERERS if probe_renderer(name).available)
    if len(chosen) < 2:
        raise InputError(f"{', '.join(chosen) or 'None'} works here; two are needed to compare. See `twinloop doctor`.")
    found: dict[tuple[str, str], dict[str, Difference]] = {pair: {} for pair in itertools.combinations(chosen, 2)}
    for name in tuple(twins) or builtin_names():
        twin = load_twin(name)
        seen = {renderer: _observed(twin, renderer, frames, height, width) for renderer in chosen}
        for pair, camera in itertools.product(found, next(iter(seen.values()))):
            one, other = (seen[renderer][camera] for renderer in pair)
            found[pair][f"{name}, {camera}"] = difference(one, other, InstanceTable.of(twin))
    rows = {pair: agreement(scenes.values()) for pair, scenes in found.items()}
    each = {pair: {scene: agreement([one]) for scene, one in scenes.items()} for pair, scenes in found.items()}
    for title, head, lines in _tables(rows, each):
        table = Table(*head, title=title)
        for line in lines:
            table.add_row(*line)
        console.print(table)
    if page is not None:
        write_between(page, PLACE, _markdown(_tables(rows, each), frames=frames, height=height, width=width))
    return {
        "renderers": list(chosen),
        "frames": frames,
        "height": height,
        "width": width,
        "iou_target": IOU_TARGET,
        "depth_target_m": DEPTH_TARGET_M,
        "pairs": {" and ".join(pair): asdict(row) for pair, row in rows.items()},
        "scenes": {" and ".join(pair): {k: asdict(v) for k, v in scenes.items()} for pair, scenes in each.items()},
    }


def poses(twin: Twin, count: int) -> SceneStates:
    """The twin's home and other positions of its joints, drawn evenly from their ranges; free bodies stay."""
    model, home = twin.model, twin.home()[0]
    qpos = np.repeat(home[None], count, axis=0)
    turning = {int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE)}
    for joint in (joint for joint in range(model.njnt) if int(model.jnt_type[joint]) in turning):
        low, high = model.jnt_range[joint] if model.jnt_limited[joint] else (-np.pi, np.pi)
        drawn = uniforms(0, f"agreement/{joint}", np.arange(1, count))[:, 0]
        qpos[1:, model.jnt_qposadr[joint]] = low + (high - low) * drawn
    return SceneStates(qpos=qpos)


def _observed(twin: Twin, renderer: str, frames: int, height: int, width: int) -> Observed:
    with open_renderer(renderer, twin.model, height=height, width=width, cameras=twin.spec.cameras) as opened:
        return opened.observe(poses(twin, frames), channels=CHANNELS_COMPARED)


_Pair = tuple[str, str]
_Lines = tuple[str, tuple[str, ...], list[tuple[str, ...]]]


def _tables(rows: dict[_Pair, Agreement], each: dict[_Pair, dict[str, Agreement]]) -> Iterator[_Lines]:
    yield "All scenes", ("renderers", *_COLUMNS), [(_name(pair), *_cells(row)) for pair, row in rows.items()]
    for pair, scenes in each.items():
        yield _name(pair), ("scene", *_COLUMNS), [(scene, *_cells(row)) for scene, row in scenes.items()]


def _name(pair: _Pair) -> str:
    return " and ".join(f"`{name}`" for name in pair)


def _cells(row: Agreement) -> tuple[str, ...]:
    depth = [f"{1e3 * metres:.3f} mm" for metres in (row.depth_m, row.depth_95_m)]
    normal = [f"{degrees:.2f}°" for degrees in (row.normal_deg, row.normal_95_deg)]
    colour = [f"{levels:.0f}" for levels in (row.colour, row.colour_95)]
    return (f"{row.iou:.4f}", f"{row.iou_least:.3f}", f"{row.same_ids:.2%}", *depth, *normal, *colour)


def _markdown(tables: Iterator[_Lines], *, frames: int, height: int, width: int) -> str:
    parts = [f"{frames} states of each built-in twin at {width}×{height}."]
    for title, head, lines in tables:
        parts.append(f"**{title}**\n\n" + markdown_table(head, lines))
    return "\n\n".join(parts)
