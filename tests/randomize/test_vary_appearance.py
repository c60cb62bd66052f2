"""Images change with the parameters of light, size and place; renderers carry unused parameters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from support.worlds import make_world
from twinloop.core.errors import BoundsError
from twinloop.randomize import Plan
from twinloop.randomize.section import parse_randomization
from twinloop.render import Renderer, SceneStates, open_renderer, probe_renderer
from twinloop.twin import Twin

HEAD = """<visual><headlight ambient=".3 .3 .3" diffuse="0 0 0" specular="0 0 0"/></visual><asset>
  <texture name="sky" type="skybox" builtin="flat" rgb1=".4 .4 .4" rgb2=".4 .4 .4" width="8" height="48"/>
  <material name="ground" rgba=".6 .6 .6 1" specular="0"/><material name="red" rgba="1 0 0 1" specular="0"/></asset>"""
SCENE = """<light name="sun" type="directional" pos="0 0 3" dir="0 0 -1" diffuse=".6 .6 .6" specular="0 0 0"/>
  <camera name="top" pos="0 0 2" fovy="40"/>
  <geom name="table" type="box" size=".9 .9 .02" pos="0 0 -.02" material="ground"/>
  <body name="ball" pos="0 0 .2"><freejoint/><geom name="ball" size=".08" material="red"/></body>"""
PIXELS = 96
LATER = ["material/*/roughness", "material/*/metallic", "light/*/luminous_intensity", "light/*/radius"]
QUANTITIES = ["intensity", "active", "color/r", "color/g", "color/b", "direction/azimuth", "direction/elevation"]
QUANTITIES += [f"position/{axis}" for axis in "xyz"]
NAMES = [f"light/sun/{quantity}" for quantity in QUANTITIES] + ["object/ball/size", "geom/table/position/x"]
NAMES += ["geom/table/rotation/z", *(f"background/sky/color/{channel}" for channel in "rgb"), *LATER]


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Twin:
    return make_world(Path(tmp_path_factory.mktemp("lit")), SCENE, NAMES, head=HEAD)


@pytest.fixture(scope="module", params=["gl", "warp"])
def renderer(request: pytest.FixtureRequest, twin: Twin) -> Iterator[Renderer]:
    found = probe_renderer(request.param)
    if not found.available:
        pytest.skip(f"renderer {request.param} is not available: {found.detail}; {found.remedy}")
    with open_renderer(request.param, twin.model, height=PIXELS, width=PIXELS) as opened:
        yield opened


def render_image(renderer: Renderer, twin: Twin, **values: float) -> np.ndarray:
    """From above, x to the right and y up, ``(row, column, channel)`` with row 0 at the largest y."""
    named = {name.replace("__", "/"): value for name, value in values.items()}
    arrays = twin.fields(twin.table(1, named), visual=True).arrays
    states = SceneStates(qpos=np.array([[0, 0, 0.2, 1, 0, 0, 0]]))
    return renderer.render(states, {name: array[0] for name, array in arrays.items()})["top"][0].astype(int)


def reddish(image: np.ndarray) -> np.ndarray:
    return image[..., 0] > image[..., 1] + 40


def shadow(image: np.ndarray) -> tuple[float, float]:
    """Centre of the dark part of the table in metres, seen from 2 m."""
    inside = np.zeros(image.shape[:2], dtype=bool)
    inside[10:-10, 10:-10] = True
    rows, columns = np.nonzero((image.sum(axis=-1) < 0.75 * np.median(image.sum(axis=-1))) & ~reddish(image) & inside)
    metres = 2 * 2.0 * np.tan(np.radians(20)) / PIXELS
    return (columns.mean() + 0.5 - PIXELS / 2) * metres, (PIXELS / 2 - rows.mean() - 0.5) * metres


def test_shadows_fall_where_azimuth_and_elevation_say(renderer: Renderer, twin: Twin) -> None:
    """A ball at height h throws its shadow h / tan(elevation) away from where the light comes from."""
    for azimuth, elevation in ((0.0, 0.7), (np.pi / 2, 0.7), (2.5, 0.6)):
        values = {"light__sun__direction__azimuth": azimuth, "light__sun__direction__elevation": elevation}
        expected = -0.2 / np.tan(elevation) * np.array([np.cos(azimuth), np.sin(azimuth)])
        np.testing.assert_allclose(shadow(render_image(renderer, twin, **values)), expected, atol=0.04)


def test_a_light_that_is_off_leaves_the_ambient_only(renderer: Renderer, twin: Twin) -> None:
    on, off, dim = (
        render_image(renderer, twin, **values)[20, 20].sum()
        for values in ({}, {"light__sun__active": 0.0}, {"light__sun__intensity": 0.5})
    )
    assert off == pytest.approx(on / 3, rel=0.1)  # 0.3 of 0.9
    assert dim == pytest.approx(on * 2 / 3, rel=0.1)


def test_a_coloured_light_colours_what_is_grey_and_intensity_multiplies_it(renderer: Renderer, twin: Twin) -> None:
    blue = {"light__sun__color__r": 0.0, "light__sun__color__g": 0.3}
    plain, coloured = render_image(renderer, twin)[20, 20], render_image(renderer, twin, **blue)[20, 20]
    np.testing.assert_allclose(coloured / plain, np.array([0.3, 0.6, 0.9]) / 0.9, atol=0.06)
    half = render_image(renderer, twin, light__sun__intensity=0.5, **blue)[20, 20]
    np.testing.assert_allclose(half / plain, np.array([0.3, 0.45, 0.6]) / 0.9, atol=0.06)


def test_what_is_larger_or_elsewhere_is_seen_so(renderer: Renderer, twin: Twin) -> None:
    areas = [reddish(render_image(renderer, twin, object__ball__size=size)).sum() for size in (1.0, 1.5)]
    assert areas[1] / areas[0] == pytest.approx(1.5**2, rel=0.12)
    black = {f"background__sky__color__{channel}": 0.0 for channel in "rgb"}
    bare, aside = (render_image(renderer, twin, geom__table__position__x=x, **black) for x in (0.0, 0.6))
    assert bare[48, 4].sum() > 100
    assert aside[48, 4].sum() < 30  # the sky, where the table was
    turned = render_image(renderer, twin, geom__table__position__x=0.5, geom__table__rotation__z=np.pi / 4, **black)
    assert turned[4, 20].sum() < 30 < 100 < turned[48, 30].sum()


def test_the_background_takes_its_factors_and_the_next_world_has_its_own_again(renderer: Renderer, twin: Twin) -> None:
    aside = {"geom__table__position__x": 1.5}
    plain = render_image(renderer, twin, **aside)[48, 8]
    painted = render_image(renderer, twin, background__sky__color__r=2.0, background__sky__color__g=0.25, **aside)[
        48, 8
    ]
    np.testing.assert_allclose(plain, 102, atol=2)  # 0.4 of 255
    np.testing.assert_allclose(painted, [204, 26, 102], atol=2)
    np.testing.assert_array_equal(render_image(renderer, twin, **aside)[48, 8], plain)


def test_what_the_classic_renderers_ignore_is_carried_with_every_world(renderer: Renderer, twin: Twin) -> None:
    section = {"visual": {"material/ground/roughness": [0.2, 0.9], "light/sun/luminous_intensity": [100.0, 900.0]}}
    section["visual"] |= {"material/red/metallic": [0.0, 1.0], "light/sun/radius": [0.01, 0.3]}
    draws, _ = parse_randomization(section, twin, where="test")
    table = Plan(twin=twin, run_seed=1, draws=tuple(draws)).draw(range(3))
    arrays = twin.fields(table, visual=True).arrays
    material = [twin.model.material(name).id for name in ("ground", "red")]
    for field, column, name in (
        ("mat_roughness", material[0], "material/ground/roughness"),
        ("mat_metallic", material[1], "material/red/metallic"),
        ("light_intensity", 0, "light/sun/luminous_intensity"),
        ("light_bulbradius", 0, "light/sun/radius"),
    ):
        np.testing.assert_allclose(arrays[field][:, column], table[name], rtol=1e-6)
        assert len(set(table[name])) == 3
    states = SceneStates(qpos=np.array([[0, 0, 0.2, 1, 0, 0, 0]]))
    shown = renderer.render(states, {name: array[0] for name, array in arrays.items()})["top"]
    np.testing.assert_array_equal(shown, renderer.render(states)["top"])


def test_roughness_has_bounds(twin: Twin) -> None:
    with pytest.raises(BoundsError, match=r"material/ground/roughness = 1.5 is outside its physical bounds"):
        twin.table(1, {"material/ground/roughness": 1.5})
