"""``mujoco_warp`` alone, which what is built on it is measured against."""

from __future__ import annotations

import time
from typing import Any

import mujoco_warp as mjw  # pyright: ignore[reportMissingImports]
import numpy as np
import warp as wp  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray

from twinloop.simulate.warp_device import Graphs, on_device
from twinloop.simulate.warp_worlds import WarpWorlds


def bare_seconds(worlds: WarpWorlds, commands: NDArray[np.float64]) -> float:
    """Seconds for the steps of a rollout from where the worlds are, with nothing around the physics.

    The same model with the same parameters, the same room for contacts, the same graph of physics steps. Commands
    ``(nworld, nstep, nu)`` lie on the device before and act at once; nothing decides, delays, watches or records.
    """

    def physics() -> None:
        for _ in range(worlds.substeps):
            mjw.step(worlds.model.device, worlds.data)

    with on_device(worlds.on):
        rows: Any = wp.array(commands.swapaxes(0, 1).astype(np.float32), dtype=float)
        graphs = Graphs(worlds.on)
        graphs.prepare("physics", worlds.model.version, physics)
        wp.synchronize_device()
        began = time.perf_counter()
        for step in range(commands.shape[1]):
            wp.copy(worlds.data.ctrl, rows[step])
            graphs.run("physics", worlds.model.version, physics)
        wp.synchronize_device()
        return time.perf_counter() - began
