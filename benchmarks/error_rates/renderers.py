"""Compare all available renderers in pairs, on the same states of every built-in twin and from every camera.

``python -m benchmarks renderers`` prints the tables; ``--write docs/evidence/rendering.md`` puts them into that page.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.studies import around, markdown_table, write_between
from twinloop.core.errors import InputError
from twinloop.core.seeds import uniforms
from twinloop.render import RENDERERS, ChannelArrays, SceneStates, open_renderer, probe_renderer
from twinloop.render.annotate import InstanceTable
from twinloop.twin import Twin, builtin_names, load_twin

CHANNELS_COMPARED = ("rgb", "depth", "geom", "normal")
SMALLEST = 100
"""Instances with fewer pixels in both images are ignored: one pixel of outline is already 10 % of them."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Agreement of two renderers over one or several scenes; means are over scenes, quantiles over all pixels.

    Attributes:
        iou: Intersection over union of the silhouettes, mean over the instances of an image.
        iou_least: Smallest intersection over union of any instance.
        same_ids: Share of pixels with the same geom. The following errors are over these pixels.
        depth_m: Median depth error at a distance of 1 m, m; ``depth_95_m`` is its 95 % quantile.
        normal_deg: Median angle between normals, degrees; ``normal_95_deg`` is its 95 % quantile.
        colour: Median of the largest difference among the colour channels, display values from 0 to 255; ``colour_95``
            is
            its 95 % quantile.
    """

    scenes: int
    iou: float
    iou_least: float
    same_ids: float
    depth_m: float
    depth_95_m: float
    normal_deg: float
    normal_95_deg: float
    colour: float
    colour_95: float


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Differences between two renderers for one scene: ``ious`` per instance, all other arrays per pixel."""

    ious: NDArray[np.float64]
    same: NDArray[np.bool_]
    depth_m: NDArray[np.float32]
    normal_deg: NDArray[np.float32]
    colour: NDArray[np.float32]


def difference(one: Mapping[str, NDArray], other: Mapping[str, NDArray], instances: InstanceTable) -> Difference:
    """Compare the channels `CHANNELS_COMPARED` of one camera, arrays ``(n, height, width, …)``, from two renderers."""
    same = one["geom"] == other["geom"]
    same_surface = same & (one["geom"] >= 0)
    normals = [rendered["normal"][same_surface].astype(np.float64) for rendered in (one, other)]
    chord = np.linalg.norm(normals[0] - normals[1], axis=-1)
    depth = one["depth"][same_surface].astype(np.float64)
    colours = [rendered["rgb"][same].astype(np.float32) for rendered in (one, other)]
    return Difference(
        ious=_ious(instances.to_instances(one["geom"]), instances.to_instances(other["geom"])),
        same=same,
        depth_m=(np.abs(depth - other["depth"][same_surface]) / depth).astype(np.float32),
        normal_deg=np.degrees(2.0 * np.arcsin(np.minimum(chord / 2.0, 1.0))).astype(np.float32),
        colour=np.abs(colours[0] - colours[1]).max(axis=-1),
    )


def agreement(differences: Iterable[Difference]) -> Agreement:
    """Summarize the differences of several scenes."""
    scenes = list(differences)
    depth, normal, colour = (
        np.quantile(np.concatenate([getattr(scene, name) for scene in scenes]), [0.5, 0.95])
        for name in ("depth_m", "normal_deg", "colour")
    )
    return Agreement(
        scenes=len(scenes),
        iou=float(np.mean([scene.ious.mean() for scene in scenes])),
        iou_least=float(min(scene.ious.min() for scene in scenes)),
        same_ids=float(np.mean([scene.same.mean() for scene in scenes])),
        depth_m=float(depth[0]),
        depth_95_m=float(depth[1]),
        normal_deg=float(normal[0]),
        normal_95_deg=float(normal[1]),
        colour=float(colour[0]),
        colour_95=float(colour[1]),
    )


def _ious(one: NDArray[np.uint16], other: NDArray[np.uint16]) -> NDArray[np.float64]:
    """Return the intersection over union of every instance in every frame."""
    ious = []
    for a, b in zip(one, other, strict=True):
        most = int(max(a.max(), b.max())) + 1
        areas = np.bincount(a.ravel(), minlength=most), np.bincount(b.ravel(), minlength=most)
        both = np.bincount(a[a == b], minlength=most)
        large = np.flatnonzero(np.maximum(*areas) >= SMALLEST)
        large = large[large > 0]  # 0 is the background
        ious.append(both[large] / (areas[0] + areas[1] - both)[large])
    return np.concatenate(ious)


IOU_TARGET, DEPTH_TARGET_M = 0.97, 0.002
PLACE = "benchmarks renderers"
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
    """Render, compare and print; if ``page`` is given, also replace the tables in that page.

    Args:
        console: Where to print.
        twins: Names or YAML files of twins; empty for all built-in ones.
        renderers: Names of renderers; empty for all that are available.
        frames: Number of states per twin: its home position, then joint positions drawn from their ranges.
        height: Image height, px.
        width: Image width, px.
        page: Markdown page with the marker comments of this command.

    Raises:
        InputError: If ``frames`` is below 1, fewer than two renderers are available, or the page has no markers.
    """
    if frames < 1:
        raise InputError(f"--frames {frames}: give at least 1 state per twin.")
    if page is not None:
        around(page, PLACE)
    chosen = tuple(renderers) or tuple(name for name in RENDERERS if probe_renderer(name).available)
    if len(chosen) < 2:
        raise InputError(
            f"A comparison needs two renderers; available here: {', '.join(chosen) or 'none'}. See `twinloop doctor`."
        )
    found: dict[tuple[str, str], dict[str, Difference]] = {pair: {} for pair in itertools.combinations(chosen, 2)}
    for name in tuple(twins) or builtin_names():
        twin = load_twin(name)
        rendered = {renderer: _render_twin(twin, renderer, frames, height, width) for renderer in chosen}
        for pair, camera in itertools.product(found, next(iter(rendered.values()))):
            one, other = (rendered[renderer][camera] for renderer in pair)
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
    """Return the home position of the twin and ``count - 1`` random joint positions; free bodies do not move."""
    model, home = twin.model, twin.home()[0]
    qpos = np.repeat(home[None], count, axis=0)
    turning = {int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE)}
    for joint in (joint for joint in range(model.njnt) if int(model.jnt_type[joint]) in turning):
        low, high = model.jnt_range[joint] if model.jnt_limited[joint] else (-np.pi, np.pi)
        drawn = uniforms(0, f"agreement/{joint}", np.arange(1, count))[:, 0]
        qpos[1:, model.jnt_qposadr[joint]] = low + (high - low) * drawn
    return SceneStates(qpos=qpos)


def _render_twin(twin: Twin, renderer: str, frames: int, height: int, width: int) -> ChannelArrays:
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
