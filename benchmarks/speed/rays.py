"""Measure ray casting of each engine, in one run: rays of an image, of a mesh, and of a scan with a time per ray."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
from rich.console import Console
from rich.table import Table

from twinloop.render.protocol import SceneStates
from twinloop.render.rays import CASTERS, BodyMotion, RayCaster, open_caster
from twinloop.twin import load_twin

ROUNDS = 5
FRAMES = 51  # of the motion: a scan of 0.1 s in steps of 2 ms
_CORNERS = 400  # vertices per side of the mesh


def run(rays: int = 100_000) -> dict[str, Any]:
    """Return million rays per second of CPU time for every available engine, and the ratio of embree to mujoco."""
    twin = load_twin("so101_tabletop")
    qpos, _ = twin.home()
    moved = np.tile(qpos, (FRAMES, 1))
    moved[:, twin.joint_qpos] += np.linspace(0.0, 0.1, FRAMES)[:, None]
    robot = BodyMotion.of(twin.model, SceneStates(qpos=moved))
    bumpy = _bumps()
    ground = BodyMotion.of(bumpy, SceneStates(qpos=bumpy.qpos0))
    rng = np.random.default_rng(0)
    toward = rng.normal(size=(rays, 3)) - [1.5, 0.0, 0.5]
    down = rng.normal(size=(rays, 3)) * 0.3 - [0.0, 0.0, 1.0]
    few = rays // 5
    moments = np.linspace(0.0, FRAMES - 1.0, few)
    origins = np.array([0.8, 0.1, 0.5]) + moments[:, None] * [0.0, 0.001, 0.0]
    cases: dict[str, tuple[mujoco.MjModel, int, Callable[[RayCaster], Any]]] = {
        "so101_tabletop, one point, one moment": (
            twin.model,
            rays,
            lambda caster: caster.cast(robot, [0.8, 0.1, 0.5], toward),
        ),
        f"a mesh of {2 * (_CORNERS - 1) ** 2:,} triangles, one point": (
            bumpy,
            rays,
            lambda caster: caster.cast(ground, [0.1, 0.1, 2.0], down),
        ),
        f"so101_tabletop moving for {FRAMES - 1} physics steps, every ray from its own place at its own moment": (
            twin.model,
            few,
            lambda caster: caster.cast(robot, origins, toward[:few], times=moments),
        ),
    }
    return {"rays": rays, "rounds": ROUNDS, "cases": {name: _case(*case) for name, case in cases.items()}}


def _case(model: mujoco.MjModel, rays: int, cast: Callable[[RayCaster], Any]) -> dict[str, float]:
    casters = {}
    for name in CASTERS:
        try:
            casters[name] = open_caster(name, model)
        except Exception as error:  # noqa: BLE001
            Console().print(f"{name}: {error}")
    times: dict[str, list[float]] = {name: [] for name in casters}
    for caster in casters.values():
        cast(caster)
    for _ in range(ROUNDS):
        for name, caster in casters.items():
            started = time.process_time()
            cast(caster)
            times[name].append(time.process_time() - started)
    metrics = {name: rays / float(np.median(values)) / 1e6 for name, values in times.items()}
    if "embree" in metrics:
        metrics["ratio"] = metrics["embree"] / metrics["mujoco"]
    return metrics


def _bumps() -> mujoco.MjModel:
    """Return a model of hilly ground as one mesh."""
    x, y = np.meshgrid(np.linspace(-2, 2, _CORNERS), np.linspace(-2, 2, _CORNERS))
    corners = np.stack([x, y, 0.1 * np.sin(9 * x) * np.cos(7 * y)], axis=-1).reshape(-1, 3)
    here = (np.arange(_CORNERS - 1)[:, None] * _CORNERS + np.arange(_CORNERS - 1)).ravel()
    faces = np.concatenate(
        [
            np.stack([here, here + 1, here + _CORNERS], axis=-1),
            np.stack([here + 1, here + _CORNERS + 1, here + _CORNERS], axis=-1),
        ]
    )
    spec = mujoco.MjSpec()
    mesh = spec.add_mesh(name="bumps", uservert=corners.ravel(), userface=faces.ravel().astype(np.int32))
    mesh.inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname="bumps", contype=0, conaffinity=0)
    return spec.compile()


def main() -> None:
    """Run the benchmark and print the table."""
    metrics = run()
    table = Table("rays", "mujoco, M/s", "embree, M/s", "ratio", title="Rays per second of CPU time")
    for name, case in metrics["cases"].items():
        table.add_row(name, *(f"{case[key]:.3g}" if key in case else "-" for key in ("mujoco", "embree", "ratio")))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
