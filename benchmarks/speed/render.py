"""Compare rendering of a stored dataset with ``gl`` to a bare renderer loop: ``python -m benchmarks.speed.render``.

The bare loop calls only kinematics, ``mjv_updateScene``, ``mjr_render`` and ``mjr_readPixels``, with the same model,
settings and states, in its own process, and discards the pixels. `render` also reads states, draws each world's
appearance, encodes, computes statistics and commits. First, one bare loop is compared with one worker, whose encoder
uses another core; then as many of each as there are cores. The software rasterizer always runs in the calling thread
(``LP_NUM_THREADS=0``), which is the cheapest setting.

The frame rate of `render` excludes its start: it renders one episode per worker, and then five, and the difference of
the times is for four episodes. The start time (processes, compilation, begin and end of the dataset) is given
separately, in seconds. Rounds are interleaved, and metrics use the smallest times, because other work on the machine
only adds time.

``python -m benchmarks.speed.render --renderers [--write docs]`` instead compares all renderers that work on this
machine: frames per second and CPU time of a colour image of so101_tabletop from the front, at their default settings.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from mujoco.egl import GLContext

from benchmarks.studies import markdown_table, write_between
from twinloop.core.pool import count_cores
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.generate import generate_states, render_config, render_dataset, resolve_config
from twinloop.generate.pixels import visual_model
from twinloop.generate.pixels.dataset import BLOCK
from twinloop.render import RENDERERS, Renderer, SceneStates, open_renderer, probe_renderer
from twinloop.render.gl import GlQuality, apply_quality
from twinloop.simulate.protocol import state_poses
from twinloop.twin import load_twin

os.environ.setdefault("LP_NUM_THREADS", "0")  # read when the first context is created; inherited by child processes
TARGET = 0.85
SIZES = ((128, 128), (480, 640))
EPISODES = 5  # per worker, each worker with its own block
CONFIG = {"scene": {"robot": "so101", "task": "pick_and_place"}, "randomization": "default"}


def run(rounds: int = 2, sizes: tuple[tuple[int, int], ...] = SIZES) -> dict[str, Any]:
    """Return frames per second of both and their ratio, for each size (height, width) and number of processes."""
    counts = tuple(dict.fromkeys((1, count_cores())))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "states"
        config = resolve_config(CONFIG, where="benchmark", folder=Path.cwd(), episodes=BLOCK * max(counts))
        generate_states(config, source, workers=1)
        mujoco.mj_saveModel(visual_model(source), str(_compiled(source)))
        rows = {
            f"{width}x{height}, {count} at a time": _row(source, height, width, count, rounds)
            for height, width in sizes
            for count in counts
        }
    return {"against": "bare loops of kinematics, mjr_render and mjr_readPixels", "target": TARGET, "sizes": rows}


def _row(source: Path, height: int, width: int, count: int, rounds: int) -> dict[str, Any]:
    reader = DatasetReader(source)
    first = _indices(reader, count, 1)
    more = [index for index in _indices(reader, count, EPISODES) if index not in first]
    first_frames, frames = (int(reader.lengths[part].sum()) for part in (first, more))
    bare, short, long = [], [], []
    for _ in range(rounds):
        bare.append(_bare_loops(source, more, height, width, count))
        short.append(_pass(source, first, height, width, count))
        long.append(_pass(source, sorted(first + more), height, width, count))
    seconds, ratios = min(long) - min(short), np.array(bare) / (np.array(long) - np.array(short))
    return {
        "frames": frames,
        "frames_per_s": frames / seconds,
        "bare_frames_per_s": frames / min(bare),
        "ratio": min(bare) / seconds,
        "ratio_spread": [float(ratios.min()), float(ratios.max())],
        "start_s": min(short) - first_frames / frames * seconds,
        "processes": count,
        "cores": count_cores(),
    }


def _indices(reader: DatasetReader, count: int, episodes: int) -> list[int]:
    """Return the first ``episodes`` episodes of each of ``count`` blocks (groups of episodes in one file)."""
    numbers = np.asarray(reader.numbers)
    blocks = [np.flatnonzero(numbers // BLOCK == block)[:episodes] for block in range(count)]
    return np.concatenate(blocks).tolist()


def _pass(source: Path, indices: list[int], height: int, width: int, workers: int) -> float:
    """Return the seconds of a complete `render` of some episodes."""
    chosen = {
        "cameras": ["front"],
        "height": height,
        "width": width,
        "episodes": ",".join(f"{i}:{i + 1}" for i in indices),
    }
    settings = render_config({**chosen, "renderer": "gl"}, where="benchmark")
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        began = time.perf_counter()
        render_dataset(source, Path(folder) / "images", settings, workers=workers)
        return time.perf_counter() - began


def _bare_loops(source: Path, indices: list[int], height: int, width: int, count: int) -> float:
    """Return the seconds in which ``count`` processes, started together, render the episodes, each an equal share."""
    context = multiprocessing.get_context("spawn")
    barrier, durations = context.Barrier(count), context.SimpleQueue()
    shares = np.array_split(np.array(indices), count)
    loops = [
        context.Process(target=_bare_process, args=(source, share.tolist(), height, width, barrier, durations))
        for share in shares
    ]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join()
        if loop.exitcode:
            raise RuntimeError(f"A bare loop ended with code {loop.exitcode}.")
    return max(durations.get() for _ in loops)


def _bare_process(source: Path, indices: list[int], height: int, width: int, barrier: Barrier, durations: Any) -> None:
    reader = DatasetReader(source)
    states = np.concatenate([reader.states(index)[:-1] for index in indices])
    durations.put(_bare(_compiled(source), states, height, width, barrier))


def _bare(compiled: Path, states: np.ndarray, height: int, width: int, barrier: Barrier) -> float:
    """Return the seconds of the bare loop, measured after all processes are ready."""
    model = mujoco.MjModel.from_binary_path(str(compiled))
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
    barrier.wait()
    began = time.perf_counter()
    for qpos in positions:
        data.qpos[:] = qpos
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        mujoco.mjv_updateScene(model, data, option, None, camera, mujoco.mjtCatBit.mjCAT_ALL.value, scene)
        mujoco.mjr_render(rect, scene, context)
        mujoco.mjr_readPixels(pixels, None, rect, context)
    seconds = time.perf_counter() - began
    context.free()
    window.free()
    return seconds


def _compiled(source: Path) -> Path:
    """Return the path of the compiled model that `render` uses."""
    return source.with_name("model.mjb")


COMPARED_SIZES = ((240, 320), (96, 96))
MARK = "python -m benchmarks.speed.render --renderers"


def compare_renderers(rounds: int = 3, sizes: tuple[tuple[int, int], ...] = COMPARED_SIZES) -> list[dict[str, Any]]:
    """Return one row per renderer and image size (height, width), each with the fastest of some rounds.

    A round renders frames in which the arm moves, in one call: 16, or 1 if a frame takes more than a second. The first
    call, which compiles and warms up, does not count.
    """
    twin = load_twin("so101_tabletop")
    qpos = np.tile(twin.home()[0], (16, 1))
    qpos[:, -6] += np.linspace(0.0, 0.5, 16)  # the shoulder turns
    rows = []
    for name, (height, width) in [
        (name, size) for name in RENDERERS if probe_renderer(name).available for size in sizes
    ]:
        with open_renderer(name, twin.model, height=height, width=width, cameras=["front"]) as renderer:
            _time_frames(renderer, SceneStates(qpos=qpos[:1]))
            slow = _time_frames(renderer, SceneStates(qpos=qpos[:1]))["wall_s"] > 1.0
            states = SceneStates(qpos=qpos[:1] if slow else qpos)
            times = [_time_frames(renderer, states) for _ in range(rounds)]
        best = {kind: min(time[kind] for time in times) for kind in ("wall_s", "processor_s")}
        rows.append({"renderer": name, "height": height, "width": width, **best})
    return rows


def _time_frames(renderer: Renderer, states: SceneStates) -> dict[str, float]:
    """Return wall-clock and CPU time per frame, in s."""
    wall, processor = time.perf_counter(), time.process_time()
    renderer.render(states)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return {"wall_s": wall / len(states), "processor_s": processor / len(states)}


def renderers_table(rows: list[dict[str, Any]]) -> str:
    """Format the result of `compare_renderers` as a Markdown table, one line per renderer."""
    sizes = list(dict.fromkeys((row["height"], row["width"]) for row in rows))
    head = ["renderer"]
    for height, width in sizes:
        head += [f"{height}×{width}, frames/s", f"{height}×{width}, CPU ms per frame"]
    lines: dict[str, list[str]] = {}
    for row in rows:
        numbers = (1.0 / row["wall_s"], 1e3 * row["processor_s"])
        cells = [f"{number:,.0f}" if number >= 100.0 else f"{number:.2g}" for number in numbers]
        lines.setdefault(row["renderer"], [f"`{row['renderer']}`"]).extend(cells)
    return markdown_table(head, list(lines.values()))


def main() -> None:
    """Run one of the two benchmarks from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", type=int, nargs="?", default=2, help="number of rounds")
    parser.add_argument("--renderers", action="store_true", help="compare all renderers instead")
    parser.add_argument("--write", type=Path, help="documentation folder; the table of renderers is replaced")
    given = parser.parse_args()
    if not given.renderers:
        for name, row in run(given.rounds)["sizes"].items():
            print(name, row)
        return
    text = renderers_table(compare_renderers(given.rounds))
    print(text)
    if given.write is not None:
        write_between(given.write / "evidence" / "rendering.md", MARK, text)


if __name__ == "__main__":
    main()
