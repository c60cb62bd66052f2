"""Cameras: a small sphere is drawn where the pinhole model projects it, for every camera specification."""

import math

import mujoco
import numpy as np
import pytest

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.imaging import Intrinsics
from twinloop.render import SceneStates, probe_renderer
from twinloop.render.cameras import intrinsics, opencv_pose, world_from_camera

needs_gl = pytest.mark.skipif(not probe_renderer("gl").available, reason="the gl renderer does not work here")

SENSOR = 'sensorsize="0.00576 0.00324" resolution="1920 1080" focal='
CAMERAS = {
    "fovy": 'fovy="50"',
    "centred sensor": SENSOR + '"0.0036 0.0036"',
    "shifted sensor": SENSOR + '"0.0036 0.0036" principal="0.0004 0.0002"',
    "oblong pixels": SENSOR + '"0.0036 0.0030" principal="-0.0003 0.0005"',
}


def world(camera: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(f"""<mujoco><visual><map znear="0.01" zfar="50"/>
      <quality numslices="64" numstacks="64"/></visual><statistic extent="1" center="0 0 0"/><worldbody>
      <body name="arm"><joint name="arm" type="hinge" axis="0 0 1" pos="0 0 0"/>
        <geom type="box" size="0.01 0.01 0.01" pos="0 0 3" mass="1"/>
        <camera name="eye" pos="0.5 -0.4 1.1" xyaxes="0.8 0.6 0 -0.42 0.56 0.714" {camera}/></body>
      <geom name="a" type="sphere" size="0.02" pos="-0.1 0.3 0.1"/>
      <geom name="b" type="sphere" size="0.02" pos="0.1 0.35 0"/>
      <geom name="c" type="sphere" size="0.02" pos="0 0.45 0.2"/></worldbody></mujoco>""")


def sphere_centres(seen: np.ndarray) -> np.ndarray:
    """Middles of the three spheres' pixels; (column, row) with pixel centres at halves."""
    return np.array([[index.mean() + 0.5 for index in np.nonzero(seen == geom)[::-1]] for geom in range(3)])


@needs_gl
@pytest.mark.parametrize("kind", CAMERAS)
@pytest.mark.parametrize("size", [(240, 320), (360, 640)])
def test_spheres_are_drawn_where_the_pinhole_says(kind, size):
    from twinloop.render.gl import GlQuality, GlRenderer

    model, (height, width) = world(CAMERAS[kind]), size
    states = SceneStates(qpos=np.array([[0.0], [0.05]]))
    quality = GlQuality(slices=64, stacks=64)
    with GlRenderer(model, height=height, width=width, quality=quality) as renderer:
        seen = renderer.observe(states, channels=("geom",))["eye"]["geom"]
    pinhole = intrinsics(model, "eye", height=height, width=width)
    poses = world_from_camera(model, states)["eye"]
    for frame in range(2):
        points = np.c_[model.geom_pos[:3], np.ones(3)] @ np.linalg.inv(poses[frame]).T
        difference = pinhole.project(points[:, :3]) - sphere_centres(seen[frame])
        assert np.abs(difference).max() < 0.3, (kind, difference)


def test_drawn_fields_count_also_where_each_frame_has_its_own():
    model = world(CAMERAS["fovy"])
    states = SceneStates(qpos=np.zeros((2, 1)))
    moved = np.stack([model.cam_pos, model.cam_pos + np.array([0.0, 0.0, 0.25])])
    poses = world_from_camera(model, states, {"cam_pos": moved})["eye"]
    assert np.allclose(poses[1, :3, 3] - poses[0, :3, 3], [0, 0, 0.25])
    assert np.allclose(np.linalg.det(poses[:, :3, :3]), 1.0)
    wide = intrinsics(model, "eye", height=48, width=64, fields={"cam_fovy": np.array([90.0])})
    assert wide.fy == pytest.approx(24.0)
    assert wide == Intrinsics.from_fovy(math.pi / 2, height=48, width=64)


def test_camera_axes_are_right_down_forward():
    pose = opencv_pose(np.zeros(3), np.eye(3).reshape(9))
    assert np.allclose(pose[:3, :3] @ [0, 0, 1], [0, 0, -1])  # MuJoCo's cameras look along -z
    assert np.allclose(pose[:3, :3] @ [0, 1, 0], [0, -1, 0])
    assert np.allclose(pose[:3, :3] @ [1, 0, 0], [1, 0, 0])


def test_what_is_no_pinhole_is_refused():
    model = world('fovy="1" projection="orthographic"')
    with pytest.raises(InputError, match="The camera eye is orthographic"):
        intrinsics(model, "eye", height=48, width=64)
    with pytest.raises(UnknownNameError, match="camera 'eyes'"):
        intrinsics(model, "eyes", height=48, width=64)
    with pytest.raises(InputError, match="0×64"):
        intrinsics(model, "eye", height=0, width=64)
