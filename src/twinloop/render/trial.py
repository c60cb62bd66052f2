"""Test a renderer with one image of a small scene: ``python -m twinloop.render.trial NAME``.

Several renderers end the process if a library is missing or wrong. `catalog.probe_renderer` therefore runs this module
in a subprocess.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import TwinloopError
from twinloop.render.cameras import intrinsics, opencv_pose
from twinloop.render.catalog import open_renderer
from twinloop.render.protocol import SceneStates, encode_srgb

_SCENE = """
<mujoco>
  <asset><texture name="grid" type="2d" builtin="checker" rgb1="1 0 0" rgb2="0 0 1" width="16" height="16"/>
    <material name="grid" texture="grid"/></asset>
  <worldbody>
    <light pos="0 0 2"/>
    <camera name="front" pos="0 -1 0.6" xyaxes="1 0 0 0 0.5 1"/>
    <geom type="plane" size="1 1 0.1" material="grid"/>
    <body pos="0 0 0.2"><freejoint/><geom type="box" size="0.1 0.1 0.1" rgba="0 1 0 1"/></body>
  </worldbody>
</mujoco>
"""


HEIGHT, WIDTH = 48, 64
_BOX = 1  # geom id of the box
_LEAST = 50  # smallest number of pixels that must show the box; a correct image has 96
_DEPTH_M, _NORMAL = 0.002, 0.05  # tolerances, 2 mm and 3°, above every renderer's rounding


def main(name: str) -> int:
    """Render the test scene with the named renderer, and write an error to stderr if the result is wrong.

    Returns:
        Exit code: 0 if all channels of the renderer are correct, 3 otherwise.
    """
    model = make_scene()
    try:
        with open_renderer(name, model, height=HEIGHT, width=WIDTH) as renderer:
            channels = renderer.channels
            seen = renderer.observe(SceneStates(qpos=model.qpos0), channels=channels)["front"]
    except TwinloopError as error:
        sys.stderr.write(str(error))
        return 3
    wrong = find_problem(model, {channel: seen[channel][0] for channel in channels})
    if wrong:
        sys.stderr.write(wrong)
        return 3
    return 0


def find_problem(model: mujoco.MjModel, seen: Mapping[str, NDArray]) -> str:
    """Check the channels of an image of the test scene; return a text about the first error, empty if there is none.

    Depth, geom id and normal are compared with MuJoCo's ray caster at the centre of the image.

    Args:
        model: result of `make_scene`.
        seen: rendered arrays of one image, by channel.
    """
    light = seen["rgb"].astype(np.float64)
    green = int(np.sum(light[..., 1] > light[..., 0] + light[..., 2]))
    if green < _LEAST:
        return f"The image is wrong: {green} pixels show the box, at least {_LEAST} should."
    if "linear" in seen and not np.median(np.abs(encode_srgb(seen["linear"]) - light)) <= 2.0:
        return "The image is wrong: its linear light is not that of its colours."
    geom, depth, normal = _cast_centre_ray(model)
    middle = HEIGHT // 2, WIDTH // 2
    if "geom" in seen and (seen["geom"][middle] != geom or np.sum(seen["geom"] == _BOX) < _LEAST):
        return f"The ids are wrong: {seen['geom'][middle]} in the middle, it should be {geom}."
    if "depth" in seen and not abs(seen["depth"][middle] - depth) <= _DEPTH_M:
        return f"The depth is wrong: {seen['depth'][middle]:.4f} m in the middle, it should be {depth:.4f} m."
    if "normal" in seen and not np.linalg.norm(seen["normal"][middle] - normal) <= _NORMAL:
        found = seen["normal"][middle].round(2)
        return f"The normals are wrong: {found} in the middle, it should be {normal.round(2)}."
    return ""


def _cast_centre_ray(model: mujoco.MjModel) -> tuple[int, float, NDArray[np.float64]]:
    """Return the geom id, depth in m and normal (camera axes) at the pixel just below and right of the centre."""
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    mujoco.mj_camlight(model, data)
    lens = intrinsics(model, "front", height=HEIGHT, width=WIDTH)
    ray = lens.unproject([WIDTH // 2 + 0.5, HEIGHT // 2 + 0.5])
    pose, geom, normal = opencv_pose(data.cam_xpos[0], data.cam_xmat[0]), np.zeros(1, dtype=np.int32), np.zeros(3)
    depth = mujoco.mj_ray(model, data, pose[:3, 3], pose[:3, :3] @ ray, None, 1, -1, geom, normal)
    return int(geom[0]), depth, normal @ pose[:3, :3]


def make_scene() -> mujoco.MjModel:
    """Return the model of the test scene: a green box on a chequered plane, seen by the camera ``front``."""
    return mujoco.MjModel.from_xml_string(_SCENE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
