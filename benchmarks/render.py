"""Rendering a stored dataset with ``gl`` against the bare renderer loop: ``python -m benchmarks.render``.

The bare loop is the plainest there is: kinematics, ``mjv_updateScene``, ``mjr_render``, ``mjr_readPixels``, with the
same model, settings and states, and nothing is kept. The pass reads states, draws each world's own appearance,
encodes, computes statistics and commits. Both in turn, in one run, with a software rasterizer that works in the
calling thread (``LP_NUM_THREADS=0``), so that there is another core for the encoder. It takes a second or two to begin
and to end: with few episodes the ratio is smaller. It is taken twice: by the clock, and by the processor time of the
thread that draws, which hardly depends on what else the machine does.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from mujoco.egl import GLContext

from twinloop.core.pool import cores
from twinloop.dataset.reader import DatasetReader
from twinloop.generate import generate_states, render_config, render_dataset, resolve
from twinloop.generate.pixels import visual_model
from twinloop.render.gl import GlQuality, apply_quality
from twinloop.simulate.protocol import state_poses

os.environ.setdefault("LP_NUM_THREADS", "0")  # read when the first context is made
TARGET = 0.85
SIZES = ((128, 128), (480, 640))
CONFIG = {"scene": {"robot": "so101", "task": "pick_and_place"}, "randomization": "default"}


def run(episodes: int = 12, rounds: int = 3, sizes: tuple[tuple[int, int], ...] = SIZES) -> dict[str, Any]:
    """Frames per second of both and their ratio, for each size (height, width)."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "states"
        config = resolve(CONFIG, where="benchmark", folder=Path.cwd(), episodes=episodes)
        generate_states(config, source, workers=1)
        rows = {f"{width}x{height}": _rounds(source, height, width, rounds) for height, width in sizes}
    return {"against": "bare loop of kinematics, mjr_render and mjr_readPixels", "target": TARGET, "sizes": rows}


def _rounds(source: Path, height: int, width: int, rounds: int) -> dict[str, Any]:
    reader = DatasetReader(source)
    states = np.concatenate([reader.states(index)[:-1] for index in range(len(reader))])
    settings = render_config(
        {"cameras": ["front"], "height": height, "width": width, "renderer": "gl"}, where="benchmark"
    )
    bare, whole = [], []
    for number in range(rounds + 1):  # the first of each loads and compiles
        bare.append(_bare(source, states, height, width))
        began, busy = time.perf_counter(), time.thread_time()
        render_dataset(source, source.with_name(f"{width}-{number}"), settings)
        whole.append((time.perf_counter() - began, time.thread_time() - busy))
    seconds, plain = np.array(whole[1:]), np.array(bare[1:])
    ratios = plain[:, 0] / seconds[:, 0]
    return {
        "frames": len(states),
        "frames_per_s": len(states) / float(np.median(seconds[:, 0])),
        "bare_frames_per_s": len(states) / float(np.median(plain[:, 0])),
        "ratio": float(np.median(plain[:, 0]) / np.median(seconds[:, 0])),
        "ratio_spread": [float(ratios.min()), float(ratios.max())],
        "thread_ratio": float(np.median(plain[:, 1]) / np.median(seconds[:, 1])),
        "thread_ms_per_frame": 1e3 * float(np.median(seconds[:, 1])) / len(states),
        "bare_thread_ms_per_frame": 1e3 * float(np.median(plain[:, 1])) / len(states),
        "cores": cores(),
    }


def _bare(source: Path, states: np.ndarray, height: int, width: int) -> tuple[float, float]:
    """Seconds of the bare loop, by the clock and of the thread's processor time."""
    model = mujoco.MjModel.from_binary_path(_compiled(source))
    apply_quality(model, GlQuality(), height, width)
    data, positions = mujoco.MjData(model), state_poses(model, states)["qpos"]
    window = GLContext(width, height)
    window.make_current()
    context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
    mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, context)
    scene, option, rect = (
        mujoco.MjvScene(model, maxgeom=10_000),
        mujoco.MjvOption(),
        mujoco.MjrRect(0, 0, width, height),
    )
    camera, pixels = mujoco.MjvCamera(), np.empty((height, width, 3), dtype=np.uint8)
    camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED.value, model.camera("front").id
    began, busy = time.perf_counter(), time.thread_time()
    for qpos in positions:
        data.qpos[:] = qpos
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        mujoco.mjv_updateScene(model, data, option, None, camera, mujoco.mjtCatBit.mjCAT_ALL.value, scene)
        mujoco.mjr_render(rect, scene, context)
        mujoco.mjr_readPixels(pixels, None, rect, context)
    seconds, processor = time.perf_counter() - began, time.thread_time() - busy
    context.free()
    window.free()
    return seconds, processor


def _compiled(source: Path) -> str:
    """The model that the pass renders, as a file."""
    path = source.with_name("model.mjb")
    if not path.exists():
        mujoco.mj_saveModel(visual_model(source), str(path))
    return str(path)


if __name__ == "__main__":
    for name, row in run(*map(int, sys.argv[1:3]))["sizes"].items():
        print(name, row)
