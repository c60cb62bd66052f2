"""Every renderer that works here: geometry where projection puts it, fields that show, states that repeat."""

from __future__ import annotations

from collections.abc import Iterator

import mujoco
import numpy as np
import pytest

from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.render import Renderer, SceneStates, open_renderer, probe_renderer
from twinloop.render.gl import GlQuality, GlRenderer

SCENE = """
<mujoco>
  <option integrator="discrete"><flag autoreset="disable"/></option>
  <asset>
    <texture name="sky" type="skybox" builtin="flat" rgb1="0 0 0" rgb2="0 0 0" width="8" height="48"/>
    <material name="ground" rgba="0.3 0.3 0.3 1" reflectance="0.5"/>
    <material name="other" rgba="0.1 0.1 0.9 1"/>
  </asset>
  <worldbody>
    <light name="key" pos="0.5 -0.5 2" dir="-0.25 0.25 -1" diffuse="0.7 0.7 0.7"/>
    <camera name="front" pos="0 -1 0.1" xyaxes="1 0 0 0 0 1" fovy="45"/>
    <camera name="top" pos="0 0 1.5" fovy="40"/>
    <geom name="ground" type="plane" size="2 2 0.1" pos="0 0 -0.4" material="ground"/>
    <body name="ball"><freejoint/><geom name="ball" size="0.05" rgba="1 0 0 1"/></body>
    <body name="marker" mocap="true" pos="5 0 0"><geom name="marker" size="0.05" rgba="0 1 0 1"/></body>
  </worldbody>
</mujoco>
"""
HEIGHT, WIDTH = 96, 128


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(SCENE)


@pytest.fixture(scope="module", params=["gl", "warp", "filament", pytest.param("mitsuba", marks=pytest.mark.slow)])
def renderer(request: pytest.FixtureRequest, model: mujoco.MjModel) -> Iterator[Renderer]:
    found = probe_renderer(request.param)
    if not found.available:
        pytest.skip(f"renderer {request.param} is not available: {found.detail}; {found.remedy}")
    with open_renderer(request.param, model, height=HEIGHT, width=WIDTH) as opened:
        yield opened


def ball_at(*positions: tuple[float, float, float]) -> SceneStates:
    return SceneStates(qpos=np.array([[*position, 1, 0, 0, 0] for position in positions]))


def gone_with_marker() -> SceneStates:
    quat = np.array([[[1.0, 0, 0, 0]]])
    return SceneStates(qpos=np.array([[0, 9, 0, 1, 0, 0, 0.0]]), mocap_pos=np.zeros((1, 1, 3)), mocap_quat=quat)


def both_views(frames: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([frames["front"], frames["top"]], axis=1).astype(int)


def reddish(image: np.ndarray) -> np.ndarray:
    red, green, blue = image.astype(int).transpose(2, 0, 1)
    return (red > green + 60) & (red > blue + 60)


def test_a_ball_appears_where_the_pinhole_projects_it(renderer: Renderer) -> None:
    positions = [(0.0, 0.0, 0.1), (0.2, 0.0, 0.25), (-0.15, 0.3, 0.0)]
    images = renderer.render(ball_at(*positions))["front"]
    focal = HEIGHT / 2 / np.tan(np.radians(45) / 2)
    for (x, y, z), image in zip(positions, images, strict=True):
        rows, columns = np.nonzero(reddish(image))
        depth = y + 1.0
        expected = (HEIGHT / 2 - focal * (z - 0.1) / depth, WIDTH / 2 + focal * x / depth)
        assert rows.mean() + 0.5 == pytest.approx(expected[0], abs=1.0)
        assert columns.mean() + 0.5 == pytest.approx(expected[1], abs=1.0)
        assert len(rows) == pytest.approx(np.pi * (focal * 0.05 / depth) ** 2, rel=0.15)


def test_the_same_state_and_fields_give_the_same_pixels_whatever_came_between(renderer: Renderer) -> None:
    states, fields = ball_at((0, 0, 0.1), (0.1, 0, 0.2)), {"light_diffuse": np.array([[0.9, 0.2, 0.2]])}
    first = renderer.render(states, fields)
    renderer.render(gone_with_marker(), {"cam_fovy": np.array([60.0, 60.0])})
    again = renderer.render(states, fields)
    for camera in renderer.cameras:
        np.testing.assert_array_equal(first[camera], again[camera])
    alone = renderer.render(states.take([1]), fields)
    for camera in renderer.cameras:
        np.testing.assert_array_equal(first[camera][1:], alone[camera])


def test_fields_of_one_world_do_not_reach_the_next(renderer: Renderer, model: mujoco.MjModel) -> None:
    states, before = ball_at((0, 0, 0.1)), model.light_diffuse.copy()
    plain = renderer.render(states)["front"]
    dim = renderer.render(states, {"light_diffuse": np.full((1, 3), 0.1)})["front"]
    assert dim.mean() < plain.mean() - 3
    np.testing.assert_array_equal(renderer.render(states)["front"], plain)
    np.testing.assert_array_equal(model.light_diffuse, before)


def test_every_frame_has_the_fields_of_its_own_world(renderer: Renderer, model: mujoco.MjModel) -> None:
    states, rng = ball_at((0, 0, 0.1), (0.1, 0, 0.2), (0, 0.1, 0)), np.random.default_rng(0)
    own = {
        "light_diffuse": rng.uniform(0.2, 0.9, (3, 1, 3)),
        "cam_pos": model.cam_pos + rng.normal(0, 0.05, (3, 2, 3)),
        "geom_size": model.geom_size * rng.uniform(0.7, 1.4, (3, 3, 1)),
        "geom_type": np.array([[0, 2, 2], [0, 6, 2], [0, 4, 2]]),
        "geom_rgba": rng.uniform(0.3, 1.0, (3, 3, 4)).round(1),
        "cam_fovy": np.array([[45.0, 40.0], [60.0, 40.0], [30.0, 50.0]]),
        "tex_data": np.stack([np.full(model.tex_data.shape, value, dtype=np.uint8) for value in (20, 90, 200)]),
        "mat_rgba": np.ones((2, 4)) * [1, 0.8, 0.6, 1],
    }
    own["geom_size"][1:, 1] = 0.06
    together = renderer.render(states, own)
    for i in range(3):
        fields = {name: value if name == "mat_rgba" else value[i] for name, value in own.items()}
        for camera, images in renderer.render(states.take([i]), fields).items():
            np.testing.assert_array_equal(together[camera][i : i + 1], images)
    assert [int(image[0, 0, 0]) for image in together["front"]] == [20, 90, 200]


FIELD_CHANGES = {
    "cam_pos": lambda m: np.add(m.cam_pos, [[0.2, 0, 0], [0, 0, 0]]),
    "cam_quat": lambda m: np.array([[0.7, 0.72, 0.0, 0.0], [1, 0, 0, 0]]),
    "cam_fovy": lambda m: m.cam_fovy * 1.5,
    "light_pos": lambda m: m.light_pos + 0.7,
    "light_diffuse": lambda m: m.light_diffuse * 0.3,
    "light_castshadow": lambda m: m.light_castshadow * 0,
    "geom_matid": lambda m: np.where(np.arange(m.ngeom) == 0, 1, m.geom_matid),
    "geom_rgba": lambda m: m.geom_rgba[:, [1, 0, 2, 3]],
    "geom_size": lambda m: m.geom_size * [[1, 1, 1], [2, 2, 2], [1, 1, 1]],
    "mat_rgba": lambda m: m.mat_rgba[::-1],
}


@pytest.mark.parametrize("name", FIELD_CHANGES)
def test_every_visual_field_changes_the_image(renderer: Renderer, model: mujoco.MjModel, name: str) -> None:
    states = ball_at((0, 0, -0.3))
    plain = both_views(renderer.render(states))
    changed = both_views(renderer.render(states, {name: np.asarray(FIELD_CHANGES[name](model))}))
    assert np.mean(np.abs(plain - changed).max(axis=-1) > 8) > 0.0003


def test_a_wider_field_of_view_shrinks_the_ball_by_the_ratio_of_tangents(renderer: Renderer) -> None:
    areas = [
        reddish(renderer.render(ball_at((0, 0, 0.1)), {"cam_fovy": np.array([angle, 40.0])})["front"][0]).sum()
        for angle in (30.0, 60.0)
    ]
    ratio = (np.tan(np.radians(30)) / np.tan(np.radians(15))) ** 2
    assert areas[0] / areas[1] == pytest.approx(ratio, rel=0.1)


def test_mocap_bodies_follow_the_states(renderer: Renderer) -> None:
    there = SceneStates(
        qpos=np.array([[0, 9, 0, 1, 0, 0, 0.0]] * 2),
        mocap_pos=np.array([[[0, 0, 0.1]], [[0.2, 0, 0.1]]]),
        mocap_quat=np.tile([1.0, 0, 0, 0], (2, 1, 1)),
    )
    images = renderer.render(there)["front"].astype(int)
    columns = [np.nonzero(image[..., 1] > image[..., 0] + 60)[1].mean() for image in images]
    focal = HEIGHT / 2 / np.tan(np.radians(45) / 2)
    assert columns[1] - columns[0] == pytest.approx(0.2 * focal, abs=1.0)


def test_renderers_agree_on_silhouettes(model: mujoco.MjModel) -> None:
    for name in ("gl", "warp"):
        if not probe_renderer(name).available:
            pytest.skip(f"renderer {name} is not available; two are needed to compare")
    states, masks = ball_at((0, 0, 0.1), (0.1, -0.4, 0.0)), []
    for name in ("gl", "warp"):
        with open_renderer(name, model, height=240, width=320, cameras=("front",)) as opened:
            masks.append(np.stack([reddish(image) for image in opened.render(states)["front"]]))
    assert (masks[0] & masks[1]).sum() / (masks[0] | masks[1]).sum() > 0.97


def test_cameras_come_in_the_order_asked(renderer: Renderer, model: mujoco.MjModel) -> None:
    states = ball_at((0, 0, 0.1))
    with open_renderer(renderer.name, model, height=HEIGHT, width=WIDTH, cameras=("top", "front")) as swapped:
        assert swapped.cameras == ("top", "front")
        for camera, images in renderer.render(states).items():
            np.testing.assert_array_equal(swapped.render(states)[camera], images)


def test_unknown_names_and_wrong_shapes_are_refused(renderer: Renderer, model: mujoco.MjModel) -> None:
    states = ball_at((0, 0, 0))
    with pytest.raises(UnknownNameError, match=r"Unknown camera 'frnt' in the model\. Nearest existing: front"):
        open_renderer(renderer.name, model, cameras=("frnt",))
    with pytest.raises(InputError, match="An image of 0×128 pixels is impossible"):
        open_renderer(renderer.name, model, height=0, width=128)
    with pytest.raises(InputError, match="The states have 3 positions per frame, the model has nq = 7"):
        renderer.render(SceneStates(qpos=np.zeros((1, 3))))
    with pytest.raises(UnknownNameError, match=r"Unknown model field 'light_difuse'\. Nearest existing: light_diffuse"):
        renderer.render(states, {"light_difuse": np.zeros((1, 3))})
    with pytest.raises(InputError, match=r"light_diffuse has shape \(1, 3\), the value given has \(2, 1, 3\)"):
        renderer.render(states, {"light_diffuse": np.zeros((2, 1, 3))})
    with pytest.raises(InputError, match="or one for each of the 1 frames"):
        renderer.render(states, {"light_diffuse": np.zeros((2, 1, 3))})
    with pytest.raises(InputError, match="mesh_vert is fixed when a renderer is opened"):
        renderer.render(states, {"mesh_vert": model.mesh_vert})


def test_no_camera_is_said(renderer: Renderer) -> None:
    blind = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>")
    with pytest.raises(InputError, match="There is no camera to render from"):
        open_renderer(renderer.name, blind)


def test_gl_settings_that_cost_time_can_be_asked_for(model: mujoco.MjModel) -> None:
    if not probe_renderer("gl").available:
        pytest.skip("renderer gl is not available")
    states, images = ball_at((0, 0, -0.3), (0, 1.2, -0.1)), []  # the second is mirrored in the ground
    for quality in (GlQuality(), GlQuality(reflections=True), GlQuality(shadow_lights=0), GlQuality(samples=4)):
        with GlRenderer(model, height=HEIGHT, width=WIDTH, quality=quality) as opened:
            images.append(both_views(opened.render(states)))
    for other in images[1:]:
        assert np.abs(images[0] - other).max() > 8
    assert model.vis.quality.offsamples == 4, "the given model is not written to"


def test_a_closed_gl_renderer_can_be_closed_again(model: mujoco.MjModel) -> None:
    if not probe_renderer("gl").available:
        pytest.skip("renderer gl is not available")
    opened = open_renderer("gl", model, height=8, width=8)
    opened.close()
    opened.close()


def test_missing_warp_names_the_command(model: mujoco.MjModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "warp", None)
    with pytest.raises(MissingDependencyError, match=r"needs mujoco_warp .*To add it: pip install 'twinloop\[warp\]'"):
        open_renderer("warp", model)
