"""Panoramas: read exactly, shown in the right direction by every renderer, and the light of rooms without walls."""

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from twinloop.core.errors import InputError
from twinloop.core.files import sha256_file
from twinloop.core.imaging import LUMA, srgb_to_linear
from twinloop.randomize.section import section_plan
from twinloop.render import SceneStates, open_renderer, probe_renderer
from twinloop.twin import load_twin
from twinloop.twin.panoramas import Panorama, add_panoramas, find_panoramas, measure_light, read_panorama
from twinloop.twin.places import Scenery

ROWS = 128
BARE = """<mujoco><visual><headlight ambient="0 0 0" diffuse="0 0 0" specular="0 0 0"/></visual><worldbody>
<geom type="plane" size="1 1 .1" pos="0 0 -1"/>
<camera name="+x" xyaxes="0 -1 0 0 0 1"/><camera name="-x" xyaxes="0 1 0 0 0 1"/>
<camera name="+y" xyaxes="1 0 0 0 0 1"/><camera name="-y" xyaxes="-1 0 0 0 0 1"/>
<camera name="+z" xyaxes="1 0 0 0 -1 0"/></worldbody></mujoco>"""


def directions(rows):
    latitude = (0.5 - (np.arange(rows) + 0.5) / rows) * np.pi
    longitude = (0.5 - (np.arange(2 * rows) + 0.5) / (2 * rows)) * 2 * np.pi
    flat = np.cos(latitude)[:, None]
    parts = flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude)[:, None]
    return np.stack(np.broadcast_arrays(*parts), axis=-1)


def write_hdr(path, light):
    """Write a Radiance file without compression: three mantissas and a common exponent per pixel."""
    exponent = np.ceil(np.log2(light.max(axis=-1))).astype(int)
    mantissa = np.clip(light / 2.0 ** exponent[..., None] * 256, 0, 255).astype(np.uint8)
    head = b"#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n\n-Y %d +X %d\n" % light.shape[:2]
    path.write_bytes(head + np.concatenate([mantissa, (exponent + 128)[..., None].astype(np.uint8)], -1).tobytes())
    return path


def coded(sun=(0.5, -0.5, 0.5**0.5), strength=800.0):
    """Return a panorama whose colour shows the direction, with a sun of 3° radius."""
    seen = directions(ROWS)
    light = 0.2 + 0.15 * seen
    light[seen @ np.array(sun) > np.cos(np.radians(3.0))] = strength
    return light


def test_radiance_files_keep_linear_light_and_other_images_are_srgb(tmp_path):
    light = coded()
    read = read_panorama(write_hdr(tmp_path / "a.hdr", light))
    assert np.abs(read - light).max() <= 800.0 / 128
    assert np.median(np.abs(read / light - 1.0)) < 0.01
    pixels = np.random.default_rng(0).integers(0, 256, (ROWS, 2 * ROWS, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "b.png")
    np.testing.assert_allclose(read_panorama(tmp_path / "b.png"), srgb_to_linear(pixels / 255.0), atol=1e-12)


@settings(deadline=None, max_examples=20)
@given(azimuth=st.floats(0, 2 * np.pi), elevation=st.floats(0.35, 1.3), strength=st.floats(50.0, 5e3))
def test_the_lamp_of_a_panorama_is_its_sun(azimuth, elevation, strength):
    sun = np.array([np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)])
    seen, radius = directions(ROWS), np.radians(3.0)
    light = np.full((*seen.shape[:2], 3), 0.5)
    inside = seen @ sun > np.cos(radius)
    light[inside] = strength
    found = measure_light(light)
    assert np.arccos(np.clip(found.towards @ sun, -1, 1)) < np.radians(3.0)
    falling = np.pi * np.sin(radius) ** 2 * (strength - 0.5) * sun[2]  # of a disc, at the height of the sun
    assert found.share == pytest.approx(falling / (falling + 0.5 * np.pi), rel=0.1)
    np.testing.assert_allclose([found.lamp @ LUMA, found.ambient @ LUMA], 1.0)


@pytest.mark.parametrize("name", ["gl", "filament", "mitsuba", "warp"])
def test_every_renderer_shows_the_chosen_panorama_in_the_right_direction(name, tmp_path):
    probe = probe_renderer(name)
    if not probe.available:
        pytest.skip(probe.detail)
    file = write_hdr(tmp_path / "a.hdr", coded())
    spec = mujoco.MjSpec.from_string(BARE)
    add_panoramas(spec, [Panorama(path=file, sha256=sha256_file(file))], prefix="sky")
    model = spec.compile()
    chosen = model.tex_type.copy()
    chosen[0] = mujoco.mjtTexture.mjTEXTURE_CUBE
    fields = {"tex_type": np.stack([model.tex_type, chosen, model.tex_type])}
    with open_renderer(name, model, height=33, width=33) as renderer:
        images = renderer.render(SceneStates(qpos=np.zeros((3, 0))), fields)
        again = renderer.render(SceneStates(qpos=np.zeros((1, 0))))
    scale = 0.2 / np.median(coded() @ LUMA)
    for camera, pixels in images.items():
        axis = np.eye(3)["xyz".index(camera[1])] * (1 if camera[0] == "+" else -1)
        light = srgb_to_linear(pixels[:, 16, 16] / 255.0)
        np.testing.assert_allclose(light[1], scale * (0.2 + 0.15 * axis), atol=0.01)
        assert not light[[0, 2]].any()
        assert not again[camera][0, 16, 16].any()


@pytest.fixture
def plan(tmp_path):
    file = write_hdr(tmp_path / "a.hdr", coded())
    twin = load_twin("so101_tabletop")

    def make(visual):
        return section_plan({"visual": visual}, twin, run_seed=0, episodes=100, where="run.yaml")

    return make, file


def test_half_of_the_rooms_have_a_panorama_and_the_others_do_not_change(plan):
    make, file = plan
    worlds = make({"rooms": 100, "panoramas": str(file.parent)})
    plain = make({"rooms": 100})
    assert worlds.hash != plain.hash
    assert worlds.scenery.panoramas[0].sha256 == sha256_file(file)
    twin, table = worlds.twin, worlds.twin.table(60, {"place/room": np.arange(60)})
    model = twin.visual_model(worlds.scenery)
    with_panoramas = twin.fields(table, model=model, visual=True).arrays
    without = twin.fields(table, model=twin.visual_model(plain.scenery), visual=True).arrays
    sky = (with_panoramas["tex_type"] != model.tex_type).any(axis=1)
    assert 18 <= sky.sum() <= 42
    assert not sky[0]
    for name in ("geom_pos", "geom_size", "light_dir", "mat_rgba"):
        of_twin = without[name][~sky]
        np.testing.assert_array_equal(with_panoramas[name][~sky][:, : of_twin.shape[1]], of_twin)
    walls = [model.geom(f"place/{name}").id for name in ("back", "front", "left", "right", "floor")]
    assert not with_panoramas["geom_rgba"][sky][:, walls, 3].any()
    lamp = model.light("place/lamp0").id
    np.testing.assert_allclose(
        -with_panoramas["light_dir"][sky, lamp], measure_light(read_panorama(file)).towards[None].repeat(sky.sum(), 0)
    )
    assert with_panoramas["light_castshadow"][sky, lamp].all()


def test_another_file_at_the_same_path_is_another_plan(plan):
    make, file = plan
    before = make({"rooms": 100, "panoramas": [str(file)]})
    write_hdr(file, coded(sun=(0, 0, 1)))
    assert make({"rooms": 100, "panoramas": [str(file)]}).hash != before.hash
    with pytest.raises(InputError, match="changed since this run was planned"):
        before.twin.visual_model(before.scenery)


def test_what_is_no_panorama_is_named(plan, tmp_path):
    make, file = plan
    Image.fromarray(np.zeros((40, 60, 3), np.uint8)).save(tmp_path / "narrow.png")
    Image.fromarray(np.zeros((40, 80, 3), np.uint8)).save(tmp_path / "black.png")
    (tmp_path / "text.hdr").write_text("#?RADIANCE\n\nno image")
    (tmp_path / "cut.hdr").write_bytes(file.read_bytes()[:4000])
    (tmp_path / "list.png").write_text("#EXTM3U\nhttp://localhost/a.ts\n")
    (tmp_path / "empty").mkdir()
    for name, message in {
        "narrow.png": "60×40 pixels.*twice as wide as high",
        "black.png": "is black",
        "text.hdr": "is no image",
        "cut.hdr": "is no image",
        "list.png": "is no image",
        "photo.tif": "does not exist",
        "empty": "the folder .* has no image. Panoramas end in .hdr, .exr",
    }.items():
        with pytest.raises(InputError, match=f"run.yaml: .*{message}"):
            find_panoramas(str(tmp_path / name), where="run.yaml")
    with pytest.raises(InputError, match="panoramas are a file, a folder, or a list"):
        make({"rooms": 100, "panoramas": 3})
    with pytest.raises(InputError, match="Add `rooms: 1000`"):
        make({"panoramas": str(file)})


def test_scenery_without_rooms_is_the_twins_own_model():
    twin = load_twin("cube_toss")
    assert twin.visual_model(Scenery()) is twin.model
