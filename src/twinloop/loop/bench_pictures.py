"""How fast pictures of many worlds are made on a device, against bare launches of ``mujoco_warp``'s renderer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from twinloop.core.errors import InputError
from twinloop.randomize import Plan, default_draws
from twinloop.render import Fields, SceneStates
from twinloop.render.warp import WarpQuality, WarpRenderer
from twinloop.simulate import InitialState
from twinloop.twin import load_twin

WORLDS = tuple(4**power for power in range(7))  # 1 to 4,096
_COLUMNS = ("worlds", "pictures/s", "bare pictures/s", "ratio")


def run_bench_pictures(
    console: Console,
    *,
    device: str = "cuda",
    worlds: Sequence[int] = WORLDS,
    twin: str = "so101_tabletop",
    rounds: int = 3,
    height: int = 128,
    width: int = 128,
) -> dict[str, Any]:
    """Pictures of worlds that each have their own drawn appearance, from the twin's first camera; prints a table.

    Pictures per second count everything between states and fields in memory and pixels in memory. The bare rate is of
    the same worlds lying on the device already, to which the pixels stay. Kernels are compiled before.

    Raises:
        MissingDependencyError: no such device, or packages are missing.
        InputError: no number of worlds, or one below 1.
    """
    if not worlds or min(worlds) < 1 or rounds < 1:
        raise InputError("There is nothing to measure. Name numbers of worlds from 1 on, and at least one round.")
    built = load_twin(twin)
    size = {"height": height, "width": width, "cameras": built.spec.cameras[:1]}
    quality = WarpQuality(device=device, batch=max(worlds))
    table = Table(*_COLUMNS, title=f"{twin}, {width}×{height}, mujoco_warp on {device}, median of {rounds}")
    rows = []
    with WarpRenderer(built.model, quality=quality, **size) as renderer:
        for count in worlds:
            params = Plan(twin=built, run_seed=0, draws=tuple(default_draws(built))).draw(range(count))
            fields = built.fields(params, visual=True).arrays
            states = SceneStates(qpos=InitialState.home(built, count).qpos)
            rows.append(_measure(renderer, states, fields, rounds))
            cells = [f"{rows[-1][name]:,.0f}" for name in ("pictures_per_s", "bare_pictures_per_s")]
            table.add_row(f"{count:,}", *cells, f"{rows[-1]['ratio']:.2f}")
    console.print(table)
    return {"device": device, "twin": twin, "height": height, "width": width, "rounds": rounds, "rows": rows}


def _measure(renderer: WarpRenderer, states: SceneStates, fields: Fields, rounds: int) -> dict[str, float]:
    renderer.render(states, fields)
    ours, bare = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        renderer.render(states, fields)
        ours.append(time.perf_counter() - began)
        bare.append(renderer.bare_seconds(1))
    ratios = [alone / whole for alone, whole in zip(bare, ours, strict=True)]
    return {
        "worlds": len(states),
        "pictures_per_s": len(states) / float(np.median(ours)),
        "bare_pictures_per_s": len(states) / float(np.median(bare)),
        "ratio": float(np.median(ratios)),
    }
