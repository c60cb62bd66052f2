"""Depth, ids and normals of every renderer, pixel by pixel against MuJoCo's ray caster and against closed forms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import mujoco
import numpy as np
import pytest

from twinloop.core.errors import UnknownNameError
from twinloop.render import CHANNELS, ChannelArrays, Renderer, SceneStates, decode_srgb, open_renderer, probe_renderer
from twinloop.render.cameras import intrinsics, opencv_pose
from twinloop.render.primitives import ROUND, intersect_primitives

HEIGHT, WIDTH = 60, 80
# Permitted errors of a renderer, except at silhouettes: of depth, relatively, and degrees. The rasterizer's normals
# have 8 bits on meshes and in orthographic images, where it also draws round things of flat faces.
PRECISION = {"gl": (3e-5, 1e-4, 0.5), "warp": (1e-5, 0.05, 0.05)}
FAR = 50.0
FLAT = {"plane", "box", "tent", "terrain", "glass", "low"}

WORLD = """
<mujoco>
  <statistic extent="1"/><visual><map znear=".01" zfar="50"/></visual>
  <option><flag autoreset="disable"/></option>
  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1=".4 .5 .6" rgb2="0 0 0" width="16" height="96"/>
    <texture name="squares" type="2d" builtin="checker" rgb1="1 0 0" rgb2="0 0 1" width="64" height="64"/>
    <material name="squares" texture="squares" reflectance=".3"/>
    <mesh name="tent" vertex="-.1 -.1 0 .1 -.1 0 .1 .1 0 -.1 .1 0 0 0 .15"/>
    <hfield name="terrain" nrow="3" ncol="3" elevation="0 0 0 0 1 0 0 0 0" size=".15 .15 .1 .02"/>
  </asset>
  <worldbody>
    <light pos="0 0 3"/>
    <camera name="front" pos="0 -1 .5" xyaxes="1 0 0 0 .5 1" fovy="60"/>
    <camera name="lens" pos=".1 -1 .6" xyaxes="1 .1 0 0 .6 1" resolution="80 60" sensorsize=".005 .003"
            focal=".003 .0032" principal=".0004 -.0002"/>
    <camera name="flat" pos="0 -1 .5" xyaxes="1 0 0 0 .5 1" fovy="1" projection="orthographic"/>
    <camera name="under" pos="0 0 -3" xyaxes="1 0 0 0 -1 0" fovy="60"/>
    <geom name="plane" type="plane" size="0 0 1" pos="0 0 -1" material="squares"/>
    <geom name="ball" type="sphere" size=".15"/>
    <geom name="capsule" type="capsule" size=".08 .12" pos=".4 0 0" euler="30 50 0"/>
    <geom name="cylinder" type="cylinder" size=".1 .1" pos="-.4 0 0" euler="30 50 0"/>
    <geom name="ellipsoid" type="ellipsoid" size=".1 .15 .2" pos="-.4 .4 .3" euler="30 50 0"/>
    <geom name="box" type="box" size=".1 .15 .1" pos=".4 .4 .3" euler="30 50 0"/>
    <geom name="tent" type="mesh" mesh="tent" pos="0 .4 .4" euler="30 0 20"/>
    <geom name="terrain" type="hfield" hfield="terrain" pos="0 -.1 -.4"/>
    <geom name="glass" type="box" size=".05 .05 .05" pos=".15 -.3 .25" rgba="0 1 0 .3"/>
    <geom name="gone" type="sphere" size=".05" pos="-.15 -.3 .25" rgba="0 1 0 0"/>
    <geom name="hidden" type="sphere" size=".05" pos="-.15 -.3 .25" group="3"/>
    <geom name="low" type="box" size=".05 .05 .01" pos="-.3 -.4 -.3" group="2"/>
    <site name="mark" size=".05" pos="-.15 -.3 .25"/>
  </worldbody>
  <sensor><rangefinder site="mark"/></sensor>
</mujoco>
"""


@dataclass
class Truth:
    """Results of MuJoCo's ray caster for every pixel; ``edge`` if a neighbouring pixel sees another geom."""

    depth: np.ndarray
    geom: np.ndarray
    normal: np.ndarray
    edge: np.ndarray


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(WORLD)


@pytest.fixture(scope="module")
def truths(model: mujoco.MjModel) -> dict[str, Truth]:
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return {model.camera(i).name: cast_rays(model, data, i) for i in range(model.ncam)}


def cast_rays(model: mujoco.MjModel, data: mujoco.MjData, camera: int) -> Truth:
    pose = opencv_pose(data.cam_xpos[camera], data.cam_xmat[camera])
    starts, rays = pixel_rays(model, camera)
    depth, geom = np.full((HEIGHT, WIDTH), np.inf), np.full((HEIGHT, WIDTH), -1)
    normal, groups = np.zeros((HEIGHT, WIDTH, 3)), np.array([1, 1, 1, 0, 0, 0], dtype=np.uint8)
    for pixel in np.ndindex(HEIGHT, WIDTH):
        ray, start = pose[:3, :3] @ rays[pixel], pose[:3, :3] @ starts[pixel] + pose[:3, 3]
        found, surface = np.full(1, -1, dtype=np.int32), np.zeros(3)
        distance = mujoco.mj_ray(model, data, start, ray, groups, 1, -1, found, surface)
        if found[0] >= 0 and distance * rays[pixel][2] < FAR:
            depth[pixel], geom[pixel] = distance * rays[pixel][2], found[0]
            normal[pixel] = surface @ pose[:3, :3] * -np.sign(surface @ ray)
    padded = np.pad(geom, 1, mode="edge")
    around = [padded[1 + i : 1 + i + HEIGHT, 1 + j : 1 + j + WIDTH] for i in (-1, 0, 1) for j in (-1, 0, 1)]
    return Truth(depth=depth, geom=geom, normal=normal, edge=(np.ptp(around, axis=0) > 0))


def pixel_rays(model: mujoco.MjModel, camera: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts and unit rays ``(height, width, 3)`` in camera axes."""
    column, row = np.meshgrid(np.arange(WIDTH) + 0.5, np.arange(HEIGHT) + 0.5)
    if model.camera(camera).name == "flat":
        high = model.cam_fovy[camera]
        beside = np.stack([column - WIDTH / 2, row - HEIGHT / 2, 0 * row], axis=-1) * high / HEIGHT
        return beside, np.broadcast_to([0.0, 0.0, 1.0], beside.shape)
    rays = intrinsics(model, model.camera(camera).name, height=HEIGHT, width=WIDTH).unproject(
        np.stack([column, row], axis=-1)
    )
    return np.zeros_like(rays), rays / np.linalg.norm(rays, axis=-1, keepdims=True)


@pytest.fixture(scope="module", params=sorted(PRECISION))
def renderer(request: pytest.FixtureRequest, model: mujoco.MjModel) -> Iterator[Renderer]:
    found = probe_renderer(request.param)
    if not found.available:
        pytest.skip(f"renderer {request.param} is not available: {found.detail}; {found.remedy}")
    with open_renderer(request.param, model, height=HEIGHT, width=WIDTH) as opened:
        yield opened


@pytest.fixture(scope="module")
def seen(renderer: Renderer) -> ChannelArrays:
    return renderer.observe(SceneStates(qpos=np.zeros((1, 0))), channels=renderer.channels)


def angle(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Degrees between unit vectors."""
    return np.degrees(2.0 * np.arcsin(np.clip(np.linalg.norm(a - b, axis=-1) / 2.0, 0.0, 1.0)))


CAMERAS = ("front", "lens", "flat", "under")


@pytest.mark.parametrize("camera", CAMERAS)
def test_ids_are_those_of_the_first_thing_on_the_ray(
    renderer: Renderer, model: mujoco.MjModel, seen: ChannelArrays, truths: dict[str, Truth], camera: str
) -> None:
    truth, geom = truths[camera], seen[camera]["geom"][0]
    same = geom == truth.geom
    if camera == "under" and renderer.name == "warp":  # its height fields are open below
        same |= truth.geom == model.geom("terrain").id
    assert same[~truth.edge].mean() > 0.999
    assert same.mean() > 0.96


@pytest.mark.parametrize("camera", CAMERAS)
def test_depth_and_normals_are_those_of_the_surface(
    renderer: Renderer, model: mujoco.MjModel, seen: ChannelArrays, truths: dict[str, Truth], camera: str
) -> None:
    truth, out = truths[camera], {name: values[0] for name, values in seen[camera].items()}
    relative, exact, drawn = PRECISION[renderer.name]
    for name in (model.geom(i).name for i in np.unique(truth.geom) if i >= 0):
        here = (truth.geom == model.geom(name).id) & (out["geom"] == truth.geom) & ~truth.edge
        if not here.any():
            continue
        tilted = angle(out["normal"][here], truth.normal[here])
        rounded = renderer.name == "gl" and camera == "flat" and name not in FLAT
        away = np.abs(out["depth"][here] / truth.depth[here] - 1.0)
        assert np.quantile(away, 0.98) < (0.006 if rounded else relative), name
        smooth = name in {"tent", "terrain"}
        limit = 3.0 if rounded else drawn if smooth or camera == "flat" else exact
        assert np.quantile(tilted, 0.9) < limit, name


def test_normals_hold_up_to_the_outline(renderer: Renderer, model: mujoco.MjModel) -> None:
    data, lens = mujoco.MjData(model), intrinsics(model, "front", height=240, width=320)
    mujoco.mj_forward(model, data)
    with open_renderer(renderer.name, model, height=240, width=320, cameras=["front"]) as large:
        out = large.observe(SceneStates(qpos=np.zeros((1, 0))), channels=("geom", "normal"))["front"]
    rays, pose = lens.unproject(lens.pixel_centres()).reshape(-1, 3), opencv_pose(data.cam_xpos[0], data.cam_xmat[0])
    _, expected = intersect_primitives(ROUND, out["geom"][0].ravel(), rays, pose, model, data)
    known = np.isfinite(expected[:, 0])
    assert known.sum() > 2000
    away = angle(out["normal"][0].reshape(-1, 3)[known], expected[known])
    assert np.mean(away > 2.0) < 5e-4


def test_where_there_is_nothing_every_channel_says_so(seen: ChannelArrays, truths: dict[str, Truth]) -> None:
    out = {name: values[0] for name, values in seen["front"].items()}
    nothing = (truths["front"].geom < 0) & ~truths["front"].edge
    assert nothing.any()
    assert (out["geom"][nothing] == -1).all()
    assert np.isinf(out["depth"][nothing]).all()
    np.testing.assert_array_equal(out["normal"][nothing], 0.0)
    there = ~nothing & ~truths["front"].edge
    assert np.isfinite(out["depth"][there]).all()
    np.testing.assert_allclose(np.linalg.norm(out["normal"][there], axis=-1), 1.0, atol=1e-5)
    assert (out["normal"][there][:, 2] < 0.5).all()


def test_channels_have_the_types_that_are_declared_and_agree_whatever_is_asked_with_them(
    renderer: Renderer, seen: ChannelArrays
) -> None:
    states = SceneStates(qpos=np.zeros((1, 0)))
    for name in renderer.channels:
        kind, alone = CHANNELS[name], renderer.observe(states, channels=(name,))["front"][name]
        assert alone.dtype == kind.dtype
        assert alone.shape == (1, HEIGHT, WIDTH, *(() if kind.width is None else (kind.width,)))
        np.testing.assert_array_equal(alone, seen["front"][name])
    np.testing.assert_array_equal(seen["front"]["rgb"], renderer.render(states)["front"])
    if renderer.name in {"gl", "warp"}:  # these compute in display values
        np.testing.assert_array_equal(seen["front"]["linear"], decode_srgb(seen["front"]["rgb"]))


def test_a_channel_that_it_does_not_make_is_refused(renderer: Renderer) -> None:
    with pytest.raises(UnknownNameError, match=r"Unknown channel 'dpeth' in the renderer .*Nearest existing: depth"):
        renderer.observe(SceneStates(qpos=np.zeros((1, 0))), channels=("dpeth",))


def test_a_field_of_view_of_each_frame_moves_depth_and_normals_with_it(
    renderer: Renderer, model: mujoco.MjModel
) -> None:
    fovy = np.repeat(model.cam_fovy[None], 3, axis=0)
    fovy[:, 0] = [40.0, 60.0, 90.0]
    states = SceneStates(qpos=np.zeros((3, 0)))
    out = renderer.observe(states, {"cam_fovy": fovy}, channels=("depth", "normal", "geom"))["front"]
    lens = [intrinsics(model, "front", height=HEIGHT, width=WIDTH, fields={"cam_fovy": each}) for each in fovy]
    ball = model.geom("ball").id
    for i, pinhole in enumerate(lens):
        here = out["geom"][i] == ball
        points = pinhole.unproject(pinhole.pixel_centres()[here], out["depth"][i][here])
        centre = np.array([0.0, 0.0, np.sqrt(1.25)])  # the camera looks at the origin
        outward = (points - centre) / 0.15
        assert np.quantile(np.abs(np.linalg.norm(outward, axis=-1) - 1.0), 0.9) < 2e-5
        assert np.quantile(angle(out["normal"][i][here], outward), 0.9) < 0.05


def test_a_camera_inside_a_body_sees_past_it(renderer: Renderer, model: mujoco.MjModel) -> None:
    inside = model.cam_pos.copy()
    inside[0] = model.geom("ball").pos
    states = SceneStates(qpos=np.zeros((1, 0)))
    out = renderer.observe(states, {"cam_pos": inside}, channels=("depth", "normal", "geom"))["front"]
    assert model.geom("ball").id not in out["geom"]
    box = out["geom"] == model.geom("box").id
    flat = out["geom"] == model.geom("plane").id
    assert flat.any() or box.any()
    up = np.zeros(9)
    mujoco.mju_quat2Mat(up, model.cam_quat[0])
    expected = up.reshape(3, 3)[2] * [1, -1, -1]  # the world's z in the camera's axes
    np.testing.assert_allclose(out["normal"][flat], np.broadcast_to(expected, (flat.sum(), 3)), atol=1e-5)


@pytest.mark.parametrize("name", sorted(PRECISION))
def test_more_things_than_a_byte_counts_keep_their_ids(name: str) -> None:
    if not probe_renderer(name).available:
        pytest.skip(f"renderer {name} is not available")
    side, step = 20, 0.05
    places = [(step * (i - side / 2 + 0.5), step * (j - side / 2 + 0.5)) for j in range(side) for i in range(side)]
    boxes = "".join(f'<geom type="box" size=".015 .015 .01" pos="{x} {y} 0"/>' for x, y in places)
    camera = '<camera name="top" pos="0 0 1.5" fovy="45"/>'
    many = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{camera}{boxes}</worldbody></mujoco>")
    quality = {"max_geoms": 1} if name == "gl" else {}  # is raised to the model's geom count
    with open_renderer(name, many, height=160, width=160, quality=quality) as opened:
        geom = opened.observe(SceneStates(qpos=np.zeros((1, 0))), channels=("geom",))["top"]["geom"][0]
    lens = intrinsics(many, "top", height=160, width=160)
    pixels = lens.project([(x, -y, 1.49) for x, y in places]).astype(int)
    np.testing.assert_array_equal(geom[pixels[:, 1], pixels[:, 0]], np.arange(side * side))
