"""Frames as worlds on the device: many at once are as each alone, wherever their bodies are placed."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from twinloop.core.errors import MissingDependencyError, UnknownNameError
from twinloop.render import SceneStates, open_renderer, probe_renderer

WORLD = """
<mujoco>
  <asset>
    <texture name="sky" type="skybox" builtin="flat" rgb1=".2 .2 .2" rgb2=".2 .2 .2" width="8" height="48"/>
  </asset>
  <worldbody>
    <light name="key" pos=".5 -.5 2" dir="-.25 .25 -1"/>
    <camera name="front" pos="0 -1 .3" xyaxes="1 0 0 0 .3 1" fovy="50"/>
    <geom name="floor" type="plane" size="2 2 .1"/>
    <geom name="post" type="cylinder" size=".03 .2" pos="-.3 .2 .2"/>
    <body name="arm" pos="0 0 .2"><joint type="hinge" axis="0 1 0"/>
      <camera name="eye" pos="0 0 .25" xyaxes="1 0 0 0 1 0" fovy="60"/>
      <geom name="arm" type="capsule" size=".03" fromto="0 0 0 0 0 .2" rgba=".8 .2 .1 1"/></body>
    <body name="target" mocap="true" pos=".3 0 .1"><geom name="target" size=".05" rgba=".1 .2 .8 1"/></body>
    <body name="ball"><freejoint/><geom name="ball" size=".06" rgba=".1 .8 .2 1"/></body>
  </worldbody>
</mujoco>
"""
COUNT = 5
CHANNELS = ("rgb", "depth", "geom", "normal")


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    if not probe_renderer("warp").available:
        pytest.skip("renderer warp is not available")
    return mujoco.MjModel.from_xml_string(WORLD)


@pytest.fixture(scope="module")
def states(model: mujoco.MjModel) -> SceneStates:
    rng = np.random.default_rng(0)
    qpos = np.tile(model.qpos0, (COUNT, 1))
    qpos[:, 0], qpos[:, 1:4] = rng.uniform(-0.8, 0.8, COUNT), rng.uniform(-0.2, 0.3, (COUNT, 3))
    place = rng.uniform(-0.2, 0.4, (COUNT, 1, 3))
    return SceneStates(qpos=qpos, mocap_pos=place, mocap_quat=np.tile([1.0, 0, 0, 0], (COUNT, 1, 1)))


def appearance(model: mujoco.MjModel) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "geom_rgba": rng.uniform(0.2, 1.0, (COUNT, model.ngeom, 4)).round(2),
        "light_diffuse": rng.uniform(0.2, 0.9, (COUNT, 1, 3)),
        "cam_fovy": rng.uniform(40, 70, (COUNT, 2)),
        "cam_pos": model.cam_pos + rng.normal(0, 0.05, (COUNT, 2, 3)),
        "geom_pos": model.geom_pos + rng.normal(0, 0.02, (COUNT, model.ngeom, 3)),
        "geom_quat": turned(rng.normal(0, 0.1, (COUNT, model.ngeom, 4)) + model.geom_quat),
        "light_dir": model.light_dir + rng.normal(0, 0.1, (COUNT, 1, 3)),
    }


def turned(quaternions: np.ndarray) -> np.ndarray:
    return quaternions / np.linalg.norm(quaternions, axis=-1, keepdims=True)


def test_bodies_placed_on_the_device_are_seen_where_the_host_has_them(
    model: mujoco.MjModel, states: SceneStates
) -> None:
    seen = []
    for moving in ("host", "device"):
        quality = {"moving": moving, "device": "cpu", "batch": 3}
        with open_renderer("warp", model, height=48, width=64, quality=quality) as renderer:
            seen.append(renderer.observe(states, appearance(model), channels=CHANNELS))
    for camera in ("front", "eye"):
        host, device = (each[camera] for each in seen)
        same = host["geom"] == device["geom"]
        assert same.mean() > 0.999
        there = same & (host["geom"] >= 0)
        np.testing.assert_allclose(device["depth"][there], host["depth"][there], rtol=1e-4)
        # On an edge between two faces either may be seen.
        assert np.quantile(np.abs(device["normal"][there] - host["normal"][there]), 0.999) < 1e-3
        assert np.quantile(np.abs(device["rgb"].astype(int) - host["rgb"]), 0.999) <= 2
    # Every frame shows different bodies.
    assert len({frame.tobytes() for frame in seen[1]["front"]["geom"]}) == COUNT


def test_where_a_field_moves_bodies_the_host_places_them(model: mujoco.MjModel, states: SceneStates) -> None:
    moved = {"body_pos": model.body_pos + np.random.default_rng(2).uniform(-0.1, 0.1, (COUNT, model.nbody, 3))}
    seen = []
    for moving in ("host", "device"):
        with open_renderer("warp", model, height=48, width=64, quality={"moving": moving}) as renderer:
            renderer.render(states)  # what came before leaves nothing behind
            seen.append(renderer.observe(states, moved, channels=CHANNELS))
    for camera, channel in ((camera, channel) for camera in ("front", "eye") for channel in CHANNELS):
        np.testing.assert_array_equal(seen[0][camera][channel], seen[1][camera][channel])


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_how_many_are_traced_at_once_changes_no_pixel(model: mujoco.MjModel, states: SceneStates, batch: int) -> None:
    with open_renderer("warp", model, height=24, width=32, quality={"batch": 5}) as renderer:
        expected = renderer.observe(states, appearance(model), channels=CHANNELS)
    with open_renderer("warp", model, height=24, width=32, quality={"batch": batch}) as renderer:
        renderer.render(states.take([0]))
        got = renderer.observe(states, appearance(model), channels=CHANNELS)
    for camera, channel in ((camera, channel) for camera in ("front", "eye") for channel in CHANNELS):
        np.testing.assert_array_equal(got[camera][channel], expected[camera][channel])


def test_a_device_that_is_not_there_and_a_place_that_is_none_are_refused(model: mujoco.MjModel) -> None:
    with pytest.raises(MissingDependencyError, match="There is no device cuda:7 for the warp renderer; there are"):
        open_renderer("warp", model, quality={"device": "cuda:7"})
    with pytest.raises(UnknownNameError, match=r"Unknown value of moving 'gpu'\. Existing: device, host"):
        open_renderer("warp", model, quality={"moving": "gpu"})
