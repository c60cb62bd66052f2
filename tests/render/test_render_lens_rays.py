"""Rays of a lens: what each pixel looks at is given, and seen."""

from __future__ import annotations

from collections.abc import Callable

import mujoco
import numpy as np
import pytest

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.render import SceneStates, probe_renderer
from twinloop.render.cameras import intrinsics, world_from_camera

HEIGHT, WIDTH = 48, 64
WORLD = """
<mujoco><asset><texture name="t" type="2d" builtin="checker" rgb1="1 .5 0" rgb2="0 .5 1" width="64" height="64"/>
  <material name="t" texture="t" texrepeat="4 4" texuniform="true"/></asset><worldbody>
  <light pos="0 0 3"/>
  <camera name="front" pos="0 -1 .5" xyaxes="1 0 0 0 .5 1" fovy="60"/><camera name="top" pos="0 0 2" fovy="50"/>
  <geom type="plane" size="3 3 1" material="t"/><geom type="sphere" size=".2" pos="0 0 .2" rgba="1 0 0 1"/>
  <geom type="box" size=".1 .2 .3" pos=".5 .3 .3" rgba="0 1 0 1"/>
</worldbody></mujoco>
"""
STILL = SceneStates(qpos=np.zeros((1, 0)))


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(WORLD)


@pytest.fixture(scope="module")
def opened(model: mujoco.MjModel) -> Callable:
    if not probe_renderer("warp").available:
        pytest.skip("renderer warp is not available")
    from twinloop.render.warp import WarpRenderer

    return lambda **options: WarpRenderer(model, height=HEIGHT, width=WIDTH, **options)


def pinhole_rays(model: mujoco.MjModel) -> np.ndarray:
    lens = intrinsics(model, "front", height=HEIGHT, width=WIDTH)
    rays = lens.unproject(lens.pixel_centres())
    return rays / np.linalg.norm(rays, axis=-1, keepdims=True)


def fisheye_rays(angle: float) -> np.ndarray:
    """An equidistant fisheye that sees ``angle`` rad from the axis at the image's left and right edges."""
    column, row = np.meshgrid(np.arange(WIDTH) + 0.5 - WIDTH / 2, np.arange(HEIGHT) + 0.5 - HEIGHT / 2)
    radius = np.hypot(column, row)
    theta = radius / (WIDTH / 2) * angle
    return np.stack([np.sin(theta) * column / radius, np.sin(theta) * row / radius, np.cos(theta)], axis=-1)


def test_the_rays_of_the_pinhole_give_its_image(opened: Callable, model: mujoco.MjModel) -> None:
    channels = ("rgb", "depth", "geom", "normal")
    with opened() as plain, opened(rays={"front": pinhole_rays(model)}) as lensed:
        expected, got = plain.observe(STILL, channels=channels), lensed.observe(STILL, channels=channels)
    assert (expected["front"]["geom"] == got["front"]["geom"]).mean() > 0.999
    same = (expected["front"]["geom"] == got["front"]["geom"]) & np.isfinite(got["front"]["depth"])
    for channel, within in (("depth", 1e-3), ("normal", 1e-3), ("rgb", 2.0)):
        away = np.abs(expected["front"][channel][same].astype(float) - got["front"][channel][same])
        assert np.quantile(away, 0.98) < within
    for channel in channels:  # another camera keeps its lens
        np.testing.assert_array_equal(expected["top"][channel], got["top"][channel])


@pytest.mark.parametrize("angle", [1.0, 1.75])  # the second sees behind itself
def test_a_fisheye_sees_what_lies_on_its_rays(opened: Callable, model: mujoco.MjModel, angle: float) -> None:
    rays, data = fisheye_rays(angle), mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    pose = world_from_camera(model, STILL, cameras=["front"])["front"][0]
    with opened(rays={"front": rays}, cameras=["front"]) as renderer:
        out = renderer.observe(STILL, channels=("depth", "geom", "normal"))["front"]
    wrong = 0
    for pixel in np.ndindex(HEIGHT, WIDTH):
        found, normal = np.full(1, -1, dtype=np.int32), np.zeros(3)
        distance = mujoco.mj_ray(model, data, pose[:3, 3], pose[:3, :3] @ rays[pixel], None, 1, -1, found, normal)
        if found[0] != out["geom"][0][pixel]:
            wrong += 1
        elif found[0] >= 0:
            assert out["depth"][0][pixel] == pytest.approx(distance * rays[pixel][2], rel=1e-3, abs=1e-5)
            np.testing.assert_allclose(out["normal"][0][pixel], normal @ pose[:3, :3], atol=2e-3)
    assert wrong <= 0.005 * HEIGHT * WIDTH


def test_rays_that_do_not_fit_are_refused(opened: Callable, model: mujoco.MjModel) -> None:
    rays = pinhole_rays(model)
    with pytest.raises(InputError, match=r"The rays of camera front have shape \(47, 64, 3\), the image needs"):
        opened(rays={"front": rays[1:]})
    with pytest.raises(InputError, match="must be unit vectors"):
        opened(rays={"front": 2.0 * rays})
    with pytest.raises(UnknownNameError, match="Unknown camera 'frnt' in the renderer, for its rays"):
        opened(rays={"frnt": rays})
