"""Filament's surfaces agree with MuJoCo's ray caster, its light is photometric, and images depend on nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import mujoco
import numpy as np
import pytest

from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.render import SceneStates, open_renderer, probe_renderer
from twinloop.render.cameras import intrinsics, opencv_pose
from twinloop.render.catalog import renderer_entry
from twinloop.render.filament import FilamentQuality, FilamentRenderer
from twinloop.render.filament.context import require_driver
from twinloop.render.physical import WHITE_LUX
from twinloop.render.protocol import srgb_to_linear
from twinloop.render.scene import PosedScene
from twinloop.twin import load_twin

SURFACES = ("geom", "depth", "normal")
FLAT = FilamentQuality(ambient_occlusion=False)
KINDS = """
<mujoco>
  <statistic center="0 0 .3" extent="2"/>
  <asset>
    <texture name="sheet" type="2d" builtin="checker" rgb1="1 0 0" rgb2="0 1 0" width="16" height="16"/>
    <material name="sheet" texture="sheet"/>
    <mesh name="tent" vertex="-.2 -.2 0 .2 -.2 0 .2 .2 0 -.2 .2 0 0 0 .2"/>
    <hfield name="hill" nrow="4" ncol="5" size=".3 .2 .15 .05" elevation="0 0 0 0 0 0 2 1 0 0 0 0 1 3 0 0 0 0 0 0"/>
  </asset>
  <worldbody>
    <light type="directional" pos="1 -1 2" dir="-.4 .5 -1"/>
    <camera name="front" pos="0 -2.4 1.9" xyaxes="1 0 0 0 .6 .8" fovy="50"/>
    <camera name="lens" pos="0 -2.4 1.9" xyaxes="1 0 0 0 .6 .8" sensorsize=".004 .003" focal=".004 .004"
            principal=".0002 -.0003" resolution="64 48"/>
    <geom name="floor" type="plane" size="0 0 .1" material="sheet"/>
    <geom name="slope" type="plane" size=".4 .2 .1" pos="-1 .6 .3" euler="40 0 0"/>
    <geom name="box" type="box" size=".15 .1 .2" pos="-.9 0 .2" euler="0 0 20"/>
    <geom name="ball" type="sphere" size=".15" pos=".1 0 .15"/>
    <geom name="egg" type="ellipsoid" size=".2 .1 .15" pos="1.1 0 .15"/>
    <geom name="can" type="cylinder" size=".12 .2" pos="-.9 -.7 .25" euler="30 0 0"/>
    <geom name="pill" type="capsule" size=".1 .15" pos="-.4 -.7 .25" euler="30 20 0"/>
    <geom name="tent" type="mesh" mesh="tent" pos=".1 -.7 .1"/>
    <geom name="hill" type="hfield" hfield="hill" pos=".4 .8 .1"/>
    <geom name="glass" type="box" size=".1 .01 .2" pos="1.2 -.6 .2" rgba=".3 .6 .9 .4"/>
    <body name="loose" pos="0 .4 .5"><freejoint/><geom name="loose" size=".06"/></body>
  </worldbody>
</mujoco>
"""
SHEET = """
<mujoco>
  <statistic center="0 0 0" extent="1"/>
  <visual><headlight active="0"/></visual>
  <asset><material name="matt" rgba="{grey} {grey} {grey} 1" specular="0"/></asset>
  <worldbody>
    {lights}
    <camera name="eye" pos="0 0 2" fovy="30"/>
    <geom name="sheet" type="plane" size="5 5 .1" material="matt"/>
    {more}
  </worldbody>
</mujoco>
"""


@pytest.fixture(scope="module", autouse=True)
def needs_filament() -> None:
    found = probe_renderer("filament")
    if not found.available:
        pytest.skip(f"renderer filament is not available: {found.detail}; {found.remedy}")


@pytest.fixture(scope="module")
def kinds() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(KINDS)


def sheet(lights: str = "", more: str = "", grey: float = 1.0) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(SHEET.format(lights=lights, more=more, grey=grey))


def middle(model: mujoco.MjModel, fields=None, quality: FilamentQuality = FLAT) -> np.ndarray:
    """Return the linear light in the middle of a small image of the camera ``eye``."""
    with FilamentRenderer(model, height=33, width=33, quality=quality) as renderer:
        return renderer.observe(SceneStates(qpos=model.qpos0), fields, channels=("linear",))["eye"]["linear"][0, 16, 16]


def cast_rays(model: mujoco.MjModel, camera: str, height: int, width: int) -> dict[str, np.ndarray]:
    """Return ids, depth and normals (camera axes) at the centres of pixels, from MuJoCo's ray caster."""
    posed = PosedScene(model)
    posed.pose(SceneStates(qpos=model.qpos0), 0)
    row, data = model.camera(camera).id, posed.data
    pose, lens = (
        opencv_pose(data.cam_xpos[row], data.cam_xmat[row]),
        intrinsics(model, camera, height=height, width=width),
    )
    rays, geom, normal = lens.unproject(lens.pixel_centres()), np.zeros(1, dtype=np.int32), np.zeros(3)
    seen: dict[str, np.ndarray] = {"geom": np.full((height, width), -1), "depth": np.full((height, width), np.inf)}
    seen["normal"] = np.zeros((height, width, 3))
    for at in np.ndindex(height, width):
        depth = mujoco.mj_ray(posed.model, data, pose[:3, 3], pose[:3, :3] @ rays[at], None, 1, -1, geom, normal)
        if geom[0] >= 0:
            seen["geom"][at], seen["depth"][at], seen["normal"][at] = geom[0], depth, normal @ pose[:3, :3]
    return seen


@pytest.mark.parametrize("camera", ["front", "lens"])
def test_surfaces_are_those_of_the_ray_caster(kinds: mujoco.MjModel, camera: str) -> None:
    height, width = 48, 64
    with FilamentRenderer(kinds, height=height, width=width, cameras=[camera]) as renderer:
        seen = renderer.observe(SceneStates(qpos=kinds.qpos0), channels=SURFACES)[camera]
    cast, drawn = cast_rays(kinds, camera, height, width), {name: values[0] for name, values in seen.items()}
    assert set(np.unique(drawn["geom"])) - {-1} == set(range(kinds.ngeom))
    same = (cast["geom"] == drawn["geom"]) & (cast["geom"] >= 0)
    assert np.mean(cast["geom"] == drawn["geom"]) > 0.99
    assert np.isinf(drawn["depth"][drawn["geom"] < 0]).all()
    error = np.abs(cast["depth"][same] - drawn["depth"][same])
    assert np.median(error) < 1e-6
    assert np.quantile(error, 0.98) < 1e-5  # the rest is rounding of the depth buffer at grazing angles
    np.testing.assert_allclose(np.linalg.norm(drawn["normal"], axis=-1), drawn["geom"] >= 0, atol=1e-5)
    cosine = np.einsum("pi,pi->p", cast["normal"][same], drawn["normal"][same])
    assert np.quantile(cosine, 0.01) > np.cos(np.radians(0.6))


def test_an_orthographic_camera_agrees_with_gl() -> None:
    found = probe_renderer("gl")
    if not found.available:
        pytest.skip(f"renderer gl is not available: {found.detail}; {found.remedy}")
    model = mujoco.MjModel.from_xml_string(KINDS.replace('fovy="50"', 'projection="orthographic" fovy="2"'))
    seen = []
    for name in ("gl", "filament"):
        with open_renderer(name, model, height=96, width=128, cameras=["front"]) as renderer:
            seen.append(renderer.observe(SceneStates(qpos=model.qpos0), channels=("geom", "depth"))["front"])
    same = (seen[0]["geom"] == seen[1]["geom"]) & (seen[0]["geom"] >= 0)
    assert np.mean(seen[0]["geom"] == seen[1]["geom"]) > 0.99
    assert np.quantile(np.abs(seen[0]["depth"][same] - seen[1]["depth"][same]), 0.95) < 2e-3


def test_the_example_twin_looks_as_with_gl() -> None:
    found = probe_renderer("gl")
    if not found.available:
        pytest.skip(f"renderer gl is not available: {found.detail}; {found.remedy}")
    twin, images = load_twin("so101_tabletop"), []
    for name in ("gl", "filament"):
        with open_renderer(name, twin.model, height=120, width=160, cameras=["front", "wrist"]) as renderer:
            images.append(renderer.observe(SceneStates(qpos=twin.home()[0]), channels=("rgb", *SURFACES)))
    for camera in ("front", "wrist"):
        one, other = (seen[camera] for seen in images)
        same = one["geom"] == other["geom"]
        assert np.mean(same) > 0.995
        assert np.median(np.abs(one["rgb"].astype(int) - other["rgb"]).max(axis=-1)[same]) <= 12
        assert one["rgb"].mean() == pytest.approx(other["rgb"].mean(), abs=12)
        surface = same & (one["geom"] >= 0)
        assert np.median(np.abs(one["depth"][surface] - other["depth"][surface])) < 1e-5
        assert np.median(np.abs(one["normal"][surface] - other["normal"][surface])) < 1e-3


FIELDS = {
    "geom_size": lambda m: m.geom_size * 1.2,
    "geom_type": lambda m: np.where(np.arange(m.ngeom) == m.geom("ball").id, 6, m.geom_type),
    "geom_rgba": lambda m: m.geom_rgba[:, [1, 0, 2, 3]] * [0.3, 1, 0.5, 1],
    "geom_matid": lambda m: np.zeros_like(m.geom_matid),
    "geom_pos": lambda m: np.add(m.geom_pos, [0.1, 0, 0]),
    "mat_rgba": lambda m: m.mat_rgba * [0.4, 0.5, 0.6, 1],
    "mat_emission": lambda m: m.mat_emission + 0.5,
    "mat_roughness": lambda m: m.mat_roughness * 0 + 0.3,
    "light_diffuse": lambda m: m.light_diffuse * [0.2, 0.5, 0.9],
    "light_ambient": lambda m: np.add(m.light_ambient, [0.3, 0.1, 0.0]),
    "light_dir": lambda m: np.array([[0.4, 0.5, -0.77]]),
    "light_castshadow": lambda m: m.light_castshadow * 0,
    "light_type": lambda m: m.light_type * 0 + mujoco.mjtLightType.mjLIGHT_POINT,
    "light_intensity": lambda m: m.light_intensity + 200,
    "cam_pos": lambda m: np.add(m.cam_pos, [0.1, 0, 0]),
    "cam_fovy": lambda m: m.cam_fovy * 1.3,
    "tex_data": lambda m: m.tex_data // 2,
}


@pytest.fixture(scope="module")
def opened(kinds: mujoco.MjModel):
    with FilamentRenderer(kinds, height=36, width=48, cameras=["front"]) as renderer:
        yield renderer


@pytest.mark.parametrize("name", FIELDS)
def test_a_changed_field_looks_as_if_it_had_always_been_so(
    kinds: mujoco.MjModel, opened: FilamentRenderer, name: str
) -> None:
    states, fields = SceneStates(qpos=kinds.qpos0), {name: np.asarray(FIELDS[name](kinds))}
    channels = ("rgb", "linear", *SURFACES)
    before = opened.observe(states, channels=channels)["front"]
    after = opened.observe(states, fields, channels=channels)["front"]
    with FilamentRenderer(kinds, height=36, width=48, cameras=["front"]) as fresh:
        alone = fresh.observe(states, fields, channels=channels)["front"]
    for channel in channels:
        np.testing.assert_array_equal(after[channel], alone[channel], err_msg=channel)
    assert np.mean(np.abs(before["rgb"].astype(int) - after["rgb"]).max(axis=-1) > 4) > 0.001
    for channel, values in opened.observe(states, channels=channels)["front"].items():
        np.testing.assert_array_equal(values, before[channel], err_msg=channel)


def test_colours_of_textures_are_srgb_and_of_materials_too() -> None:
    more = '<geom type="box" size=".5 .5 .5" material="cloth"/>'
    asset = """<asset><texture name="cloth" type="2d" builtin="flat" rgb1=".6 .3 .1" width="4" height="4"/>
        <material name="cloth" texture="cloth" specular="0"/><material name="paint" rgba=".6 .3 .1 1" specular="0"/>"""
    light = f'<light type="directional" pos="0 0 1" dir="0 0 -1" intensity="{WHITE_LUX}"/>'
    model = mujoco.MjModel.from_xml_string(SHEET.format(lights=light, more=more, grey=0).replace("<asset>", asset, 1))
    expected = srgb_to_linear(np.array([0.6, 0.3, 0.1]))
    np.testing.assert_allclose(middle(model), expected, atol=3e-3)
    paint = {"geom_matid": np.where(model.geom_matid == model.material("cloth").id, model.material("paint").id, 0)}
    np.testing.assert_allclose(middle(model, paint), expected, atol=3e-3)


def test_coinciding_surfaces_are_the_same_in_every_image() -> None:
    boxes = "".join(f'<geom type="box" size=".2 .2 .2" pos="{0.07 * i} 0 0" rgba="{i / 4} 1 0 1"/>' for i in range(4))
    model = sheet('<light type="directional" dir=".2 .3 -1"/>', boxes + '<body><freejoint/><geom size=".01"/></body>')
    qpos = np.tile(model.qpos0, (5, 1))
    qpos[:, 0] = np.linspace(-0.3, 0.3, 5)
    states, images = SceneStates(qpos=qpos), []
    for count in (0, 1, 3):
        with FilamentRenderer(model, height=60, width=80) as renderer:
            for i in range(count):
                renderer.observe(states.take([i]), {"geom_size": 1.5 * model.geom_size}, channels=("rgb", "geom"))
            images.append(renderer.observe(states, channels=("rgb", *SURFACES))["eye"])
            alone = renderer.observe(states.take([3]), channels=("rgb", *SURFACES))["eye"]
        for channel, values in alone.items():
            np.testing.assert_array_equal(values[0], images[0][channel][3])
    for other in images[1:]:
        for channel, values in other.items():
            np.testing.assert_array_equal(values, images[0][channel])
    assert {1, 2, 3, 4} <= set(np.unique(images[0]["geom"]))


def test_lamps_are_photometric() -> None:
    sun = sheet(f'<light type="directional" pos="0 0 1" dir="0 0 -1" intensity="{0.6 * WHITE_LUX}"/>')
    np.testing.assert_allclose(middle(sun), 0.6, atol=0.01)
    bulb = sheet('<light type="point" pos="0 0 1.5" intensity="500" diffuse="1 .5 .25"/>')
    colour = np.array([1.0, 0.5, 0.25]) / ([1.0, 0.5, 0.25] @ np.array([0.2126, 0.7152, 0.0722]))
    np.testing.assert_allclose(middle(bulb), np.minimum(colour * 500 / 1.5**2 / WHITE_LUX, 1.0), atol=0.01)
    np.testing.assert_allclose(
        middle(bulb, {"light_intensity": np.array([250.0])}), colour * 250 / 1.5**2 / WHITE_LUX, atol=0.01
    )
    spot = sheet('<light type="spot" pos="0 0 1" dir="0 0 -1" intensity="300" cutoff="30" exponent="0"/>')
    np.testing.assert_allclose(middle(spot), 300 / WHITE_LUX, atol=0.01)
    np.testing.assert_allclose(middle(spot, {"light_pos": np.array([[0.8, 0, 1.0]])}), 0.0, atol=1e-3)


def test_classic_lamps_are_as_bright_as_their_colours() -> None:
    ambient = 'ambient=".2 .2 .2"'
    sun = sheet(f'<light type="directional" dir="0 0 -1" diffuse=".5 .5 .5" {ambient}/>')
    np.testing.assert_allclose(middle(sun), srgb_to_linear(0.7), atol=0.01)
    np.testing.assert_allclose(middle(sun, {"light_diffuse": np.zeros((1, 3))}), srgb_to_linear(0.2), atol=0.005)
    roof = '<geom type="box" size=".3 .3 .01" pos="0 1 2"/>'
    shaded = sheet(f'<light type="directional" dir="0 -.5 -1" diffuse=".5 .5 .5" {ambient}/>', roof)
    np.testing.assert_allclose(middle(shaded), srgb_to_linear(0.2), atol=0.01)
    head = mujoco.MjModel.from_xml_string(
        SHEET.format(lights="", more="", grey=1).replace('active="0"', 'ambient=".1 .1 .1" diffuse=".4 .4 .4"')
    )
    found = middle(head)
    np.testing.assert_allclose(found, 0.5 / 0.3 * srgb_to_linear(0.3), atol=0.01)  # half of its diffuse colour counts


def test_dark_colours_have_more_steps_than_eight_bits_of_linear_light() -> None:
    lights = f'<light type="directional" dir="0 0 -1" pos="0 0 1" intensity="{WHITE_LUX}"/>'
    model = sheet(lights, grey=0.0)
    greys = np.linspace(0.01, 0.25, 25)
    rgba = np.tile(np.array([0, 0, 0, 1.0]), (25, 1, 1))
    rgba[..., :3] = greys[:, None, None]
    with FilamentRenderer(model, height=5, width=5, quality=FLAT) as renderer:
        images = renderer.observe(SceneStates(qpos=np.zeros((25, 0))), {"mat_rgba": rgba}, channels=("rgb", "linear"))[
            "eye"
        ]
    np.testing.assert_allclose(images["linear"][:, 2, 2, 0], srgb_to_linear(greys), atol=3e-4)
    assert np.all(np.diff(images["rgb"][:, 2, 2, 0].astype(int)) > 0)


def test_emission_adds_the_colour_and_samples_smooth_edges() -> None:
    glow = mujoco.MjModel.from_xml_string(
        SHEET.format(lights="", more='<geom size=".3" material="lamp"/>', grey=0).replace(
            "<asset>", '<asset><material name="lamp" rgba="1 .5 .2 1" emission=".05"/>'
        )
    )
    np.testing.assert_allclose(middle(glow), 0.05 * srgb_to_linear(np.array([1, 0.5, 0.2])), atol=3e-4)
    edges = []
    for samples in (1, 9):
        with FilamentRenderer(glow, height=32, width=32, quality=FilamentQuality(samples=samples)) as renderer:
            edges.append(len(np.unique(renderer.render(SceneStates(qpos=glow.qpos0))["eye"][..., 0])))
    assert edges[1] > edges[0] + 3


def test_sites_hidden_geoms_and_the_backs_of_planes_are_invisible() -> None:
    more = """
        <geom name="third" type="box" size=".2 .2 .2" group="3"/><site name="b" pos="-.3 0 .5" size=".3"/>
        <geom name="clear" type="box" size=".2 .2 .2" rgba="1 1 1 0"/>
        <camera name="below" pos="0 0 -2" xyaxes="1 0 0 0 -1 0" fovy="30"/>
        <geom name="high" type="box" size=".1 .1 .1" pos="0 0 1"/>
        <body pos=".3 0 .5"><joint/><geom name="end" size=".05"/><site name="a"/></body>
    """
    tendon = '<tendon><spatial width=".03"><site site="a"/><site site="b"/></spatial></tendon>'
    text = SHEET.format(lights="", grey=1, more=more).replace("</mujoco>", tendon + "</mujoco>")
    model = mujoco.MjModel.from_xml_string(text)
    with FilamentRenderer(model, height=64, width=64, quality=FLAT) as renderer:
        seen = renderer.observe(SceneStates(qpos=model.qpos0), channels=("rgb", *SURFACES))
    shown = {name: {model.geom(i).name for i in np.unique(view["geom"]) if i >= 0} for name, view in seen.items()}
    assert shown == {"eye": {"sheet", "high", "end"}, "below": {"high", "end"}}
    surface = (seen["below"]["geom"] < 0) & np.isfinite(seen["below"]["depth"])
    assert 20 < surface.sum() < 400  # the tendon is no geom
    np.testing.assert_allclose(np.linalg.norm(seen["below"]["normal"][surface], axis=-1), 1.0, atol=1e-5)


def test_what_it_cannot_do_is_refused(kinds: mujoco.MjModel, opened: FilamentRenderer) -> None:
    states = SceneStates(qpos=kinds.qpos0)
    with pytest.raises(InputError, match="mesh_vert is fixed when a renderer is opened"):
        opened.render(states, {"mesh_vert": kinds.mesh_vert})
    with pytest.raises(UnknownNameError, match="Unknown channel 'flow' in the renderer filament"):
        opened.observe(states, channels=("flow",))
    with pytest.raises(InputError, match="shadow_map of filament is 4096. Choose a value from 0 to 2048"):
        FilamentQuality(shadow_map=4096)
    with pytest.raises(InputError, match="samples of filament is 8. Choose a square number"):
        FilamentQuality(samples=8)
    with pytest.raises(InputError, match="An image of 8192×64 pixels with 9 samples is too large"):
        FilamentRenderer(kinds, height=8192, width=64, quality=FilamentQuality(samples=9))
    spec = mujoco.MjSpec.from_string(KINDS)
    image = spec.texture("sheet")
    image.builtin, image.nchannel, image.data = mujoco.mjtBuiltin.mjBUILTIN_NONE, 1, bytes(16 * 16)
    with pytest.raises(InputError, match=r"The texture sheet has 1 channels\. .* Convert its image, or render with gl"):
        FilamentRenderer(spec.compile())
    closed = FilamentRenderer(kinds, height=8, width=8)
    closed.close()
    closed.close()
    with pytest.raises(InputError, match="This renderer was closed"):
        closed.render(states)
    assert not renderer_entry("filament").automatic


def run_python(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "XDG_CACHE_HOME": str(folder), **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)


MINIMAL = "mujoco.MjModel.from_xml_string(\"<mujoco><worldbody><camera name='c'/></worldbody></mujoco>\")"


def test_without_a_driver_the_packages_are_named_and_the_process_lives(tmp_path: Path) -> None:
    code = (
        "import mujoco\nfrom twinloop.core.errors import MissingDependencyError\n"
        "from twinloop.render import open_renderer, probe_renderer\n"
        f"try:\n    open_renderer('filament', {MINIMAL})\n"
        "except MissingDependencyError as error:\n    print(error)\n"
        "print(probe_renderer('filament').remedy)\n"
    )
    missing = str(tmp_path / "none.json")
    run_python("from twinloop.render import probe_renderer; probe_renderer('filament')", tmp_path)  # stores a success
    done = run_python(code, tmp_path, VK_DRIVER_FILES=missing, VK_ICD_FILENAMES=missing)
    assert done.returncode == 0, done.stderr
    assert "The filament renderer needs Vulkan and a driver (the process was ended by signal 6" in done.stdout
    assert "apt-get install --no-install-recommends libvulkan1 mesa-vulkan-drivers" in done.stdout
    assert done.stdout.endswith("\napt-get install --no-install-recommends libvulkan1 mesa-vulkan-drivers\n")


def test_without_vulkan_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinloop.render.filament.context._LIBRARY", "libvulkan-none.so.1")
    monkeypatch.setattr("twinloop.render.filament.context.run_trial", lambda *_, **__: pytest.fail("started"))
    with pytest.raises(MissingDependencyError, match="libvulkan-none.so.1: cannot open shared object file"):
        require_driver()


def test_the_standard_output_contains_nothing_of_filament(tmp_path: Path) -> None:
    code = (
        "import mujoco, numpy as np\nfrom twinloop.render import SceneStates, open_renderer\n"
        f"renderer = open_renderer('filament', {MINIMAL}, height=8, width=8)\n"
        "renderer.observe(SceneStates(qpos=np.zeros((1, 0))), channels=('rgb', 'depth'))\n"
        "print('mine')\n"  # the renderer is not closed: the process must end well all the same
    )
    done = run_python(code, tmp_path)
    assert (done.returncode, done.stdout) == (0, "mine\n"), done.stderr
