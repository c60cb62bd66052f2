"""Light and materials of the path tracer, against closed forms."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from support.worlds import make_world
from twinloop.core.imaging import LUMA
from twinloop.render import SceneStates, decode_srgb, open_renderer, probe_renderer
from twinloop.render.mitsuba import MitsubaQuality, MitsubaRenderer
from twinloop.render.mitsuba.textures import surrounding_light
from twinloop.render.physical import WHITE_LUX, LightExposure, roughness_of_shininess
from twinloop.render.protocol import srgb_to_linear
from twinloop.twin import load_twin

DARK = '<visual><headlight active="0"/><map zfar="100"/></visual><statistic center="0 0 0" extent="1"/>'
MATT = '<asset><material name="matt" rgba="1 1 1 1" specular="0" shininess="0"/></asset>'


def seen(
    world: str,
    *,
    fields: dict | None = None,
    samples: int = 64,
    size: int = 48,
    width: int | None = None,
    depth: int = 2,
    head: str = DARK + MATT,
) -> np.ndarray:
    """Linear light that the first camera of a world sees, by default direct light only."""
    pytest.importorskip("mitsuba")
    model = mujoco.MjModel.from_xml_string(f"<mujoco>{head}<worldbody>{world}</worldbody></mujoco>")
    quality = MitsubaQuality(samples=samples, max_depth=depth, denoise=False)
    with MitsubaRenderer(model, height=size, width=width or size, quality=quality) as tracer:
        return tracer.observe(SceneStates(qpos=model.qpos0), fields, channels=("linear",))[tracer.cameras[0]]["linear"][
            0
        ]


SHEET = '<geom type="plane" size="5 5 .1" material="matt"/>'
ABOVE = '<camera pos="0 0 2" fovy="4"/>'


def test_candela_are_lux_times_the_square_of_the_distance() -> None:
    light = '<light type="point" pos="0 0 {}" intensity="{}" diffuse="1 1 1" bulbradius=".01"/>'
    for height, candela in ((0.5, 100.0), (1.0, 100.0), (1.0, 400.0)):
        middle = seen(SHEET + ABOVE + light.format(height, candela))[16:32, 16:32].mean()
        assert middle == pytest.approx(candela / height**2 / WHITE_LUX, rel=0.03)


def test_a_spot_lights_its_middle_as_a_point_does_and_nothing_outside_its_cone() -> None:
    spot = '<light type="spot" pos="0 0 1" dir="0 0 -1" cutoff="30" exponent="{}" intensity="500" diffuse="1 1 1"/>'
    wide = '<camera pos="0 0 3" fovy="60"/>'
    image = seen(SHEET + wide + spot.format(0), samples=256)[..., 1]
    away = np.abs((np.arange(48) + 0.5 - 24) / 24 * 3.0 * np.tan(np.radians(30)))
    assert image[24, 24] == pytest.approx(500.0 / WHITE_LUX, rel=0.05)
    assert (image[24][away > np.tan(np.radians(30)) + 0.06] == 0.0).all()
    angle = np.arctan(away)
    inside = away < np.tan(np.radians(28))
    np.testing.assert_allclose(image[24][inside], np.cos(angle[inside]) ** 3, rtol=0.1)
    softer = seen(SHEET + wide + spot.format(10))[..., 1]
    half = np.abs(np.degrees(angle) - np.degrees(np.arccos(0.5**0.1))).argmin()
    assert softer[24, half] == pytest.approx(0.5 * np.cos(angle[half]) ** 3, rel=0.2)


def shade(offset: np.ndarray) -> np.ndarray:
    """The share of a disc of radius 1 that is seen past a straight edge this far from its middle."""
    t = np.clip(offset, -1.0, 1.0)
    return 0.5 + (t * np.sqrt(1.0 - t**2) + np.arcsin(t)) / np.pi


@pytest.mark.parametrize("kind", ["directional", "point"])
def test_the_half_shadow_of_a_round_lamp_is_that_of_a_disc(kind: str) -> None:
    radius, far, gap = 0.3, 2.0, 0.5
    light = f'<light type="{kind}" pos="0 0 {far}" dir="0 0 -1" bulbradius="{radius}" diffuse=".5 .5 .5"/>'
    edge = f'<geom type="box" size="2 2 .0005" pos="-2 0 {gap}" rgba="0 0 0 1"/>'
    # Seen from below the edge's height, so that the edge does not hide its shadow.
    camera = '<camera pos="0 0 .4" fovy="40"/>'
    profile = seen(SHEET + camera + light + edge, samples=256, size=24, width=96)[..., 1].mean(axis=0)
    across = (np.arange(96) + 0.5 - 48) / 12 * 0.4 * np.tan(np.radians(20))
    # From a place x on the sheet the edge is seen at x (1 - gap / far) … of a lamp at height far, gap above the sheet.
    angle = across / gap - (across / far if kind == "point" else 0.0)
    expected = shade(angle / (radius / far))
    near = np.abs(across) < 0.2  # farther away a point's light is weaker and comes aslant
    level = profile[near & (expected > 0.999)].mean()
    assert level == pytest.approx(srgb_to_linear(0.5), rel=0.05)
    np.testing.assert_allclose(profile[near] / level, expected[near], atol=0.08)  # a bulb is 64 points
    assert np.sum((profile / level > 0.05) & (profile / level < 0.95)) >= 10, "the edge of the shadow is wide"


def test_a_larger_bulb_makes_a_wider_half_shadow_without_another_level() -> None:
    world = SHEET + '<camera pos="0 0 .4" fovy="40"/><geom type="box" size="2 2 .0005" pos="-2 0 .5" rgba="0 0 0 1"/>'
    light = '<light type="directional" pos="0 0 2" dir="0 0 -1" diffuse=".5 .5 .5"/>'
    widths, levels = [], []
    for radius in (0.02, 0.08, 0.16):
        profile = seen(world + light, fields={"light_bulbradius": np.array([radius])}, size=24, width=96)
        profile = profile[..., 1].mean(axis=0)
        levels.append(profile[-8:].mean())
        widths.append(np.sum((profile > 0.1 * levels[-1]) & (profile < 0.9 * levels[-1])))
    assert widths[0] < widths[1] < widths[2]
    np.testing.assert_allclose(levels, levels[0], rtol=0.02)


def test_twice_the_colour_is_twice_the_light_and_none_is_darkness() -> None:
    world = SHEET + ABOVE + '<light type="directional" pos="0 0 2" dir="0 0 -1" diffuse=".3 .2 .1"/>'
    colour = np.array([[0.3, 0.2, 0.1]])
    once, twice = (seen(world, fields={"light_diffuse": factor * colour}).mean(axis=(0, 1)) for factor in (1.0, 2.0))
    np.testing.assert_allclose(twice, 2.0 * once, rtol=0.01)
    np.testing.assert_allclose(once / once[0], colour[0] / 0.3, rtol=0.02)
    for off in ({"light_active": np.array([0], dtype=np.uint8)}, {"light_diffuse": 0.0 * colour}):
        assert seen(world, fields=off).max() == 0.0


def test_white_is_as_bright_in_light_and_in_shadow_as_the_rasterizer_shows_it() -> None:
    found = probe_renderer("gl")
    if not found.available:
        pytest.skip(f"renderer gl is not available: {found.detail}; {found.remedy}")
    head = f"""<visual><headlight ambient=".3 .3 .3" diffuse="0 0 0" specular="0 0 0"/></visual>{MATT}
               <statistic center="0 0 0" extent="2"/>"""
    world = f"""{SHEET}<camera pos="0 0 1" fovy="60"/><geom size=".1 .1 .1" type="box" pos="4 0 4" material="matt"/>
                <light type="directional" pos="0 0 2" dir="0 0 -1" diffuse=".5 .5 .5" specular="0 0 0"/>
                <light type="directional" pos="0 0 2" dir="0 0 -1" diffuse=".1 .1 .1" castshadow="false"/>"""
    model = mujoco.MjModel.from_xml_string(f"<mujoco>{head}<worldbody>{world}</worldbody></mujoco>")
    for lit in (1, 0):
        fields = {"light_active": np.array([lit, 1], dtype=np.uint8)}
        with open_renderer("gl", model, height=32, width=32) as rasterizer:
            drawn = decode_srgb(rasterizer.render(SceneStates(qpos=model.qpos0), fields)[""])
        traced = seen(world, fields=fields, head=head, samples=128, size=32)
        assert traced.mean() == pytest.approx(drawn.mean(), rel=0.08)


def test_two_numbers_make_light_of_display_values() -> None:
    model = mujoco.MjModel.from_xml_string(
        """<mujoco><visual><headlight ambient=".2 .2 .2" diffuse=".2 .2 .2"/></visual><worldbody>
             <light type="directional" diffuse=".5 .5 .5"/><light diffuse=".1 .1 .1" castshadow="false" pos="0 0 2"/>
             <light diffuse="1 1 1" active="false"/></worldbody></mujoco>"""
    )
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    exposure = LightExposure.of(model, data.light_xpos)
    assert exposure.fill * 0.4 == pytest.approx(srgb_to_linear(0.4))
    assert exposure.fill * 0.4 + exposure.key * 0.5 == pytest.approx(srgb_to_linear(0.9))
    assert exposure.reach[1] == pytest.approx(np.linalg.norm(data.light_xpos[1] - model.stat.center))


@pytest.mark.parametrize("blue", [False, True])
def test_light_from_all_around_is_as_strong_as_ambient_light_says(blue: bool) -> None:
    faces = np.full((6 * 8, 8, 3), 0.5, dtype=np.float32)
    faces[16:24] = [0.1, 0.2, 0.9]  # the zenith
    around = surrounding_light(faces if blue else None, np.array([0.3, 0.3, 0.3]))
    polar = np.pi * np.arange(16)[:, None] / 15 * np.ones((1, 32))
    weight = np.sin(polar) * np.maximum(np.cos(polar), 0.0)
    above = (around @ LUMA * weight).sum() / weight.sum()
    assert above == pytest.approx(0.3, rel=1e-5)
    assert (around[0, 0, 2] > 2 * around[0, 0, 0]) == blue


def test_the_sky_makes_no_more_noise_than_paths_that_leave_by_themselves() -> None:
    """If paths also sample the sky's light together with lamps, this is 0.04, and 0.025 otherwise."""
    pytest.importorskip("mitsuba")
    twin = load_twin("so101_tabletop")
    images = []
    for seed in (1, 2):
        quality = MitsubaQuality(samples=16, denoise=False, seed=seed)
        with MitsubaRenderer(twin.model, height=60, width=80, cameras=["front"], quality=quality) as tracer:
            seen = tracer.observe(SceneStates(qpos=twin.model.key_qpos[:1]), channels=("linear",))
        images.append(seen["front"]["linear"][0].astype(np.float64))
    assert np.sqrt(((images[1] - images[0]) ** 2).mean() / 2.0) < 0.030


def test_metal_reflects_what_stands_on_it_and_roughness_blurs_that() -> None:
    head = DARK + '<asset><material name="floor" rgba=".8 .8 .8 1" specular=".5" shininess=".5"/></asset>'
    world = """<geom type="plane" size="3 3 .1" material="floor"/>
               <camera pos="0 -1 .5" xyaxes="1 0 0 0 .35 1" fovy="60"/>
               <geom type="box" size=".1 .02 .2" pos="0 .4 .2" rgba="1 .05 .05 1"/>
               <light type="directional" pos="0 -1 2" dir="0 .6 -1" diffuse=".8 .8 .8"/>"""
    red = []
    for metallic, roughness in ((0.0, 0.05), (1.0, 0.05), (1.0, 0.6)):
        fields = {"mat_metallic": np.array([metallic]), "mat_roughness": np.array([roughness])}
        image = seen(world, fields=fields, head=head, samples=64, size=64, depth=3)
        mirrored = image[40:46, 29:35].mean(axis=(0, 1))  # the floor before the box
        red.append(mirrored[0] / max(mirrored[1], 1e-6))
    assert red[1] > 4.0 > red[2] > red[0]


def test_rougher_plastic_has_a_wider_and_weaker_highlight() -> None:
    head = DARK + '<asset><material name="plastic" rgba="0 0 0 1" specular=".5"/></asset>'
    world = """<geom size=".3" material="plastic"/><camera pos="0 0 2" fovy="20"/>
               <light type="directional" pos="1 0 2" dir="-.6 0 -1" bulbradius=".05" diffuse=".8 .8 .8"/>"""
    peaks, widths = [], []
    for roughness in (0.2, 0.4, 0.7):
        light = seen(world, fields={"mat_roughness": np.array([roughness])}, head=head)[..., 1]
        peaks.append(light.max())
        widths.append((light > 0.5 * light.max()).sum())
    assert peaks[0] > peaks[1] > peaks[2] > 0.0
    assert widths[0] < widths[1] < widths[2]


def test_emission_shows_and_lights_what_is_beside_it() -> None:
    head = DARK + MATT.replace("</asset>", '<material name="glow" rgba="1 .5 .2 1" emission="1"/></asset>')
    world = SHEET + '<geom name="lamp" size=".2" pos="0 0 .3" material="glow"/><camera pos="0 0 2" fovy="40"/>'
    image = seen(world, head=head)
    np.testing.assert_allclose(image[24, 24], np.minimum(srgb_to_linear([1.0, 0.5, 0.2]), 0.999), rtol=0.05)
    assert image[24, 10, 0] > 2 * image[24, 1, 0] > 0.0


def test_half_transparent_things_let_half_of_the_light_through() -> None:
    world = (
        SHEET + '<camera pos="0 0 .4" fovy="4"/><light type="directional" pos="0 0 2" dir="0 0 -1" diffuse=".5 .5 .5"/>'
    )
    glass = '<geom type="box" size="1 1 .001" pos="0 0 1" rgba="0 0 0 .5"/>'
    clear, veiled = seen(world, depth=8).mean(), seen(world + glass, depth=8).mean()
    assert veiled == pytest.approx(0.25 * clear, rel=0.05), "through two sides of the pane"


def test_shininess_becomes_the_roughness_of_the_same_lobe() -> None:
    assert roughness_of_shininess(0.0) == pytest.approx(1.0)
    for shininess in (0.1, 0.5, 1.0):
        width = roughness_of_shininess(shininess) ** 2
        assert 2.0 / width**2 - 2.0 == pytest.approx(128.0 * shininess)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("light/key/radius", 0.3),
        ("light/key/luminous_intensity", 3000.0),
        ("material/floor/roughness", 0.05),
        ("material/floor/metallic", 1.0),
    ],
)
def test_parameters_that_the_rasterizer_ignores_show_here(tmp_path: Path, name: str, value: float) -> None:
    pytest.importorskip("mitsuba")
    body = """<light name="key" pos=".5 -.5 2" dir="-.25 .25 -1" diffuse=".6 .6 .6"/>
              <camera name="eye" pos="0 -1.2 .6" xyaxes="1 0 0 0 .45 1" fovy="60"/>
              <geom type="plane" size="3 3 .1" material="floor"/>
              <geom type="box" size=".1 .1 .2" pos="0 0 .2" rgba=".8 .2 .1 1"/>"""
    head = '<asset><material name="floor" rgba=".7 .7 .7 1"/></asset>'
    twin = make_world(tmp_path, body, [name], head=head)
    states, images = SceneStates(qpos=np.zeros((1, 0))), []
    quality = MitsubaQuality(samples=64, denoise=False)
    with MitsubaRenderer(twin.model, height=60, width=80, quality=quality) as tracer:
        for values in ({}, {name: value}):
            fields = {
                field: given[0] for field, given in twin.fields(twin.table(1, values), visual=True).arrays.items()
            }
            images.append(tracer.render(states, fields)["eye"].astype(int))
    assert np.mean(np.abs(images[0] - images[1]).max(axis=-1) > 8) > 0.003
