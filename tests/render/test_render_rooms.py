"""Random rooms: a function of seed and number, without any change of motion, of ids, or of the plain twin's images."""

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinloop.core.errors import InputError
from twinloop.core.imaging import LUMA, srgb_to_linear
from twinloop.randomize.section import section_plan
from twinloop.render import SceneStates, open_renderer, probe_renderer
from twinloop.twin import load_twin
from twinloop.twin.places import _SEEN, _UNSEEN, FIRST_UNSEEN, LAST, Scenery, Stage, _hides, black_body, draw_room
from twinloop.twin.surfaces import SURFACES, draw_surface

TWINS = {name: load_twin(name) for name in ("so101_tabletop", "panda_tabletop", "cube_toss")}
NUMBERS = st.one_of(st.integers(1, 10_000), st.integers(FIRST_UNSEEN, LAST))


@pytest.fixture(scope="module")
def images():
    found = probe_renderer("gl")
    if not found.available:
        pytest.skip(found.detail)
    twin = TWINS["so101_tabletop"]
    with open_renderer("gl", twin.visual_model(Scenery(rooms=True, seed=3)), height=48, width=64) as renderer:
        yield twin, renderer


def take(images, numbers):
    twin, renderer = images
    table = twin.table(len(numbers), {"place/room": numbers})
    fields = twin.fields(table, model=twin.visual_model(Scenery(rooms=True, seed=3)), visual=True).arrays
    home = SceneStates(qpos=np.repeat(twin.home()[0][None], len(numbers), axis=0))
    return np.concatenate(list(renderer.render(home, fields).values()), axis=2)


@pytest.mark.parametrize("kind", SURFACES)
def test_surfaces_reflect_as_much_as_real_ones_and_have_no_seams(kind):
    low, high = SURFACES[kind].reflectance
    for index in range(4):
        surface = draw_surface(kind, seed=1, index=index)
        light = srgb_to_linear(surface.pixels / 255.0) @ LUMA
        assert 0.93 * low <= light.mean() <= 1.03 * high  # white spots are clipped
        if kind not in ("bricks", "tiles", "chequered", "stone", "concrete"):  # smooth, or with no steps inside
            for axis in (0, 1):
                inside = np.abs(np.diff(light, axis=axis)).mean(axis=1 - axis).max()
                assert np.abs(light.take(0, axis=axis) - light.take(-1, axis=axis)).mean() <= 1.2 * inside
    again = draw_surface.__wrapped__(kind, seed=1, index=2)
    np.testing.assert_array_equal(again.pixels, draw_surface(kind, seed=1, index=2).pixels)


@pytest.mark.parametrize("name", TWINS)
@settings(deadline=None, max_examples=60)
@given(number=NUMBERS)
def test_a_room_fits_its_scene_and_hides_nothing_of_it(name, number):
    stage = Stage.of(TWINS[name].model)
    room = draw_room(stage, number, seed=5, nmat=4)
    kinds = {part.surface.partition("/")[0] for part in room.parts.values() if part.surface}
    kinds |= {one.partition("/")[0] for one in room.surfaces.values()}
    assert kinds <= set(_UNSEEN if number >= FIRST_UNSEEN else _SEEN)
    for part_name, part in room.parts.items():
        if part_name.startswith("clutter"):
            away = np.linalg.norm((part.position - stage.centre)[:2]) - np.linalg.norm(part.size)
            assert away > stage.radius
            assert not _hides(stage, part.position, part.size)
            assert (int(part_name[7:]) >= 6) == (number >= FIRST_UNSEEN)
    sun = -np.asarray(room.lamps[0]["light_dir"])
    for side in ("back", "front", "left", "right"):
        if side not in room.parts:
            continue
        wall = room.parts[side]
        along = int(wall.size[0] != 0 and side in ("left", "right"))
        outward = np.sign(wall.position[along] - stage.centre[along])
        edge = stage.centre[along] + outward * stage.radius
        if sun[along] * outward > 0:  # the light that grazes the wall's top reaches the floor outside the scene
            shade = (
                wall.position[along]
                - outward * 0.01
                - (wall.position[2] + wall.size[1] - stage.centre[2]) * sun[along] / sun[2]
            )
            assert outward * (shade - edge) >= 0
        assert np.all(wall.position[along] * outward > np.max(stage.eyes[:, along] * outward, initial=-np.inf))


def test_rooms_change_images_and_no_ids_states_or_motion():
    twin = TWINS["so101_tabletop"]
    with_rooms = twin.visual_model(Scenery(rooms=True, seed=0))
    for count in ("nq", "nv", "nu", "nmocap", "ncam"):
        assert getattr(with_rooms, count) == getattr(twin.model, count)
    for kind in ("geom", "body", "light", "camera", "material"):
        names = [
            getattr(twin.model, kind)(i).name
            for i in range(
                getattr(
                    twin.model,
                    {"geom": "ngeom", "body": "nbody", "light": "nlight", "camera": "ncam", "material": "nmat"}[kind],
                )
            )
        ]
        assert [getattr(with_rooms, kind)(i).name for i in range(len(names))] == names
    states = []
    for model in (twin.model, with_rooms):
        data = mujoco.MjData(model)
        mujoco.mj_resetDataKeyframe(model, data, 0)
        data.ctrl[:] = 0.2
        mujoco.mj_step(model, data, 200)
        states.append(np.concatenate([data.qpos, data.qvel]))
    np.testing.assert_array_equal(*states)
    assert not twin.fields(twin.table(1, {"place/room": 7})).arrays


def test_room_0_is_the_twin_and_each_other_room_is_a_look_of_its_own(images):
    twin, _ = images
    seen = take(images, [0, 1, 2, 1, FIRST_UNSEEN])
    with open_renderer("gl", twin.model, height=48, width=64) as renderer:
        plain = np.concatenate(list(renderer.render(SceneStates(qpos=twin.home()[0][None])).values()), axis=2)
    np.testing.assert_array_equal(seen[0], plain[0])
    np.testing.assert_array_equal(seen[1], seen[3])
    np.testing.assert_array_equal(take(images, [FIRST_UNSEEN])[0], seen[4])
    many = take(images, list(range(1, 65)))
    assert len({image.tobytes() for image in many}) == 64
    means = many.astype(float).mean(axis=(1, 2))
    assert means.mean() == pytest.approx(120, abs=40)
    assert means.std(axis=0).min() > 20


def test_lamps_are_redder_than_daylight_below_6500_kelvin():
    np.testing.assert_allclose(black_body(6500.0), 1.0)
    warm = black_body(2700.0)
    assert warm[0] > warm[1] > warm[2] > 0
    # Illuminant A, x 0.4476, y 0.4074 (CIE 15), in linear Rec. 709, whose white is nearly a black body of 6500 K.
    lamp = black_body(2856.0)
    assert lamp / lamp[1] == pytest.approx(np.array([1.845, 0.826, 0.233]) / 0.826, rel=0.08)
    kelvin = np.linspace(2300.0, 9000.0, 68)
    assert np.all(np.diff([black_body(one)[2] / black_body(one)[0] for one in kelvin]) > 0)


def test_rooms_are_drawn_by_number_or_range():
    twin = TWINS["so101_tabletop"]

    def draw(value):
        plan = section_plan({"visual": {"rooms": value}}, twin, run_seed=0, episodes=1, where="a.yaml")
        assert plan.scenery.rooms
        return plan.draw(range(2000))["place/room"]

    assert set(draw(5)) == {1, 2, 3, 4, 5}
    assert set(draw([LAST - 1, LAST])) == {LAST - 1, LAST}


@pytest.mark.parametrize("value", [0, True, [1], [3, 2], [0, 5], [1, LAST + 1], "many", 1.5])
def test_wrong_numbers_of_rooms_are_refused(value):
    with pytest.raises(InputError, match=r"a.yaml: randomization.visual.rooms: rooms are numbered from 1 to 200,000"):
        section_plan({"visual": {"rooms": value}}, TWINS["so101_tabletop"], run_seed=0, episodes=1, where="a.yaml")


@pytest.mark.parametrize("height", [-0.003, 0.003])
def test_a_lower_or_higher_table_is_not_covered_by_what_lies_on_it(images, height):
    twin, renderer = images
    numbers = np.array([0, *range(1, 60)])
    values = {"place/room": numbers, "geom/table/position/z": np.full(len(numbers), height)}
    model = twin.visual_model(Scenery(rooms=True, seed=3))
    fields = twin.fields(twin.table(len(numbers), values), model=model, visual=True).arrays
    lying = np.array([[0.22, 0.1, height]])
    home = SceneStates(
        qpos=np.repeat(twin.home()[0][None], len(numbers), axis=0),
        mocap_pos=np.repeat(lying[None], len(numbers), axis=0),
    )
    seen = renderer.observe(home, fields, channels=("geom",))["front"]["geom"]
    pixels = (seen == model.geom("target").id).sum(axis=(1, 2))
    assert pixels[0] > 10
    assert (pixels[1:] >= 0.7 * pixels[0]).all(), pixels
