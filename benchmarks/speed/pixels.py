"""Compare the evaluation of a policy from images with a bare loop: ``python -m benchmarks.speed.pixels POLICY``.

``twinloop evaluate`` runs the policy in random worlds through the camera models, on every core; it renders an image
when the policy asks for one. The bare loop is one process with ``mj_step``, ``mjv_updateScene``, ``mjr_render`` and
``mjr_readPixels``: as many steps and images of the twin in one random room, of the size from which the camera models
make theirs, at the same quality. It has no randomization, camera models or policy. Both run in turn; CPU time of all
processes and wall-clock time are measured, each with the start of its processes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from mujoco.egl import GLContext

from twinloop.core.pool import count_cores
from twinloop.policies import open_policy
from twinloop.render.gl import GlQuality, apply_quality
from twinloop.rollout.camera import TwinCamera
from twinloop.tasks import open_task
from twinloop.twin import Twin, load_twin
from twinloop.twin.places import Scenery

os.environ.setdefault("LP_NUM_THREADS", "0")  # read when the first context is created; inherited by child processes
TWIN, TASK, EPISODES, BARE, ROUNDS = "so101_tabletop", "pick_and_place", 256, 16, 3


def run(policy: Path, *, episodes: int = EPISODES, rounds: int = ROUNDS) -> dict[str, Any]:
    """Return episodes per minute of both, and the ratio of CPU times, round by round."""
    opened, twin = open_policy(policy), load_twin(TWIN)
    frames = -(-open_task(TASK, twin).nstep // opened.settings.look_every)
    (size,) = set(opened.contract.cameras.values())
    rows = []
    for _ in range(rounds):
        tried = _timed(lambda: _evaluate(policy, episodes), resource.RUSAGE_CHILDREN)
        bare = _timed(lambda: _run_bare(twin, tuple(opened.contract.cameras), size, frames), resource.RUSAGE_SELF)
        counts = {"tried": episodes, "bare": BARE}
        rows.append(
            {
                who: {key: value / counts[who] for key, value in took.items()}
                for who, took in (("tried", tried), ("bare", bare))
            }
        )
    ratios = [row["bare"]["processor"] / row["tried"]["processor"] for row in rows]
    return {
        "cores": count_cores(),
        "images_per_episode": frames * len(opened.contract.cameras),
        "episodes_per_minute": [60.0 / row["tried"]["wall"] for row in rows],
        "episodes_per_processor_minute": [60.0 / row["tried"]["processor"] for row in rows],
        "bare_episodes_per_processor_minute": [60.0 / row["bare"]["processor"] for row in rows],
        "ratio": float(np.median(ratios)),
        "ratio_spread": [min(ratios), max(ratios)],
    }


def _evaluate(policy: Path, episodes: int) -> None:
    words = ["--twin", TWIN, "--task", TASK, "--suite", "nominal", "--episodes", f"{episodes}", "--sensors", "device"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "twinloop", "evaluate", f"{policy}", *words, "--output", f"{folder}/e"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _run_bare(twin: Twin, cameras: tuple[str, ...], size: tuple[int, int], frames: int) -> None:
    model = twin.visual_model(Scenery(rooms=True, seed=0))
    data, table = mujoco.MjData(model), twin.table(1, {"place/room": [1.0]})
    look = twin.fields(table, model=model, visual=True)
    for name in cameras:
        view = TwinCamera.of(twin, table, name, height=size[0], width=size[1], model=model).view
        apply_quality(model, GlQuality.for_height(view.height), view.height, view.width)
        look.write_inplace(model, 0)
        data.qpos[:] = twin.home()[0]
        mujoco.mj_forward(model, data)
        window = GLContext(view.width, view.height)
        window.make_current()
        context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, context)
        scene, option, camera = mujoco.MjvScene(model, maxgeom=1000), mujoco.MjvOption(), mujoco.MjvCamera()
        camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED.value, model.camera(name).id
        rect, pixels = mujoco.MjrRect(0, 0, view.width, view.height), np.empty((view.height, view.width, 3), np.uint8)
        for _ in range(BARE * frames):
            everything = mujoco.mjtCatBit.mjCAT_ALL.value
            mujoco.mjv_updateScene(model, data, option, None, camera, everything, scene)
            mujoco.mjr_render(rect, scene, context)
            mujoco.mjr_readPixels(pixels, None, rect, context)
        context.free()
        window.free()
    mujoco.mj_step(model, data, BARE * open_task(TASK, twin).nstep * twin.substeps)


def _timed(work, who: int) -> dict[str, float]:
    def processor() -> float:
        used = resource.getrusage(who)
        return used.ru_utime + used.ru_stime

    before, began = processor(), time.perf_counter()
    work()
    return {"processor": processor() - before, "wall": time.perf_counter() - began}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare the evaluation of a policy from images with a bare loop.")
    parser.add_argument("policy", type=Path)
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    print(json.dumps(run(given.policy, episodes=given.episodes, rounds=given.rounds), indent=1))
