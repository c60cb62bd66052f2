"""Clutter rests where it fell: nothing floats, nothing penetrates, and the task's space stays clear."""

from __future__ import annotations

import numpy as np
import pytest

from support.scenes import clutter, placed, table_twin
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.simulate.settle import find_contacts, settle
from twinloop.tasks import placement
from twinloop.tasks import placement as drop
from twinloop.tasks.ground import GroundPlane
from twinloop.tasks.placement import visible_fraction

NWORLD = 8


def full(count, nworld=NWORLD):
    rng = np.random.default_rng(1)
    shapes = {f"scene/stuff_{i}/shape": rng.uniform(0, 7, nworld) for i in range(count)}
    return {"scene/stuff/count": float(count), **shapes}


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    return table_twin(tmp_path_factory.mktemp("scene"), clutter(5))


@pytest.fixture(scope="module")
def worlds(twin):
    return placed(twin, full(5), NWORLD)


def test_it_stays_where_it_lies(twin, worlds):
    params, start = worlds
    assert not start.refused
    run = rollout(open_backend("reference"), twin, params, start, np.zeros((NWORLD, 50, 0)), 50)
    assert run.valid.all()
    rows = twin.scene.qpos[:, None] + np.arange(3)
    assert np.abs(run.qpos[:, -1][:, rows] - start.qpos[:, rows]).max() < 5e-4
    assert np.abs(run.qvel[:, -1]).max() < 0.05


def test_nothing_floats_and_nothing_is_inside_anything(twin, worlds):
    params, start = worlds
    table = twin.model.geom("table").id
    for contacts in find_contacts(twin, params, start, start.qpos):
        bodies = {int(body) for body in twin.scene.bodies}
        assert contacts.deepest(bodies) < drop.DEEPEST
        assert bodies <= contacts.find_supported(table)
        lifted = {body for body in bodies if (0, table) not in contacts.find_partners(body)}
        assert not lifted  # separated from each other, so each is on the table itself


def test_it_stays_clear_apart_and_inside_its_region(twin, worlds):
    params, start = worlds
    spec, radius = twin.scene.spec.clutter["stuff"], twin.scene.shape_attribute(params, "radius")
    xy = start.qpos[:, twin.scene.qpos[:, None] + np.arange(2)]
    assert (np.linalg.norm(xy, axis=-1) >= radius + spec.clear - 0.003).all()
    assert (np.abs(xy) <= 0.2 + radius[..., None]).all()
    assert np.ptp(xy.reshape(-1, 2), axis=0).min() > 0.25  # all over the region
    np.testing.assert_array_equal(start.qpos[:, :7], InitialState.home(twin, NWORLD).qpos[:, :7])


def test_a_world_is_placed_the_same_in_any_company_and_differently_at_another_attempt(twin, worlds):
    _, together = worlds
    values = {name: value if np.ndim(value) == 0 else value[[3]] for name, value in full(5).items()}
    _, alone = placed(twin, values, 1, episodes=[3])
    _, again = placed(twin, values, 1, episodes=[3], attempt=1)
    np.testing.assert_array_equal(alone.qpos[0], together.qpos[3])
    np.testing.assert_array_equal(alone.notes["scene/trials"], together.notes["scene/trials"][3:4])
    assert np.abs(again.qpos[0, 7:10] - alone.qpos[0, 7:10]).max() > 1e-3


def test_worlds_without_clutter_are_left_as_they_are(twin):
    _, start = placed(twin, {"scene/stuff/count": [0.0, 1.0]}, 2)
    np.testing.assert_array_equal(start.qpos[0], InitialState.home(twin, 1).qpos[0])
    assert start.notes["scene/trials"].tolist()[0] == 0
    assert start.qpos[1, twin.scene.qpos[0] + 2] > 0


def test_on_a_raised_and_tilted_table_it_lies_on_that_table(twin):
    tilted = {"geom/table/rotation/x": 0.08, "geom/table/rotation/y": -0.05, "geom/table/position/z": 0.03}
    params, start = placed(twin, {"scene/stuff/count": 2.0, **tilted}, 4)
    surface = GroundPlane.of(twin, params, "table")
    row = twin.scene.qpos[0]
    height = ((start.qpos[:, row : row + 3] - surface.point) * surface.normal).sum(axis=1)
    # A box of 30 x 20 x 20 mm on one of its faces.
    assert (np.isclose(height, 0.010, atol=3e-4) | np.isclose(height, 0.015, atol=3e-4)).all()


def test_things_that_fall_onto_each_other_are_carried_by_a_chain_of_contacts(tmp_path):
    heap = clutter(5, overlap=True, x=[-0.1, -0.06], y=[-0.02, 0.02], clear=0.0)
    heap["sets"] = {"all": [{"shape": "box", "size": [0.03, 0.03, 0.02]}]}
    twin = table_twin(tmp_path, heap)
    params, start = placed(twin, {"scene/stuff/count": 5.0}, 6)
    made = [not reason for reason in start.refused] if start.refused else [True] * 6
    assert sum(made) >= 4
    table = twin.model.geom("table").id
    on_others = 0
    for world, contacts in enumerate(find_contacts(twin, params, start, start.qpos)):
        if made[world]:
            bodies = {int(body) for body in twin.scene.bodies}
            assert bodies <= contacts.find_supported(table)
            on_others += sum((0, table) not in contacts.find_partners(body) for body in bodies)
    assert on_others > 0


def test_what_cannot_be_placed_is_refused_with_its_reason_and_stops_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(placement, "TRIALS", 3)
    twin = table_twin(tmp_path, clutter(5, x=[-0.035, 0.035], y=[-0.035, 0.035], clear=0.01))
    _, start = placed(twin, {"scene/stuff/count": [5.0, 1.0]}, 2)
    assert start.refused == ("clutter could not be placed: no room", "")
    balls = clutter(1)
    balls["sets"], balls["rolling"] = {"all": [{"shape": "sphere", "size": 0.03}]}, 0.0
    rolling = table_twin(tmp_path, balls)
    _, start = placed(rolling, {"scene/stuff/count": 1.0, "geom/table/rotation/y": 0.05})
    assert start.refused == ("clutter could not be placed: not at rest",)


def test_a_thing_in_the_air_is_neither_at_rest_nor_supported(twin):
    params, start = twin.table(1, {"scene/stuff/count": 1.0}), InitialState.home(twin, 1)
    qpos, row = start.qpos.copy(), twin.scene.qpos[0]
    qpos[0, row : row + 3] = [0.1, 0.1, 0.2]
    (contacts,) = find_contacts(twin, params, start, qpos)
    body, table = int(twin.scene.bodies[0]), twin.model.geom("table").id
    assert body not in contacts.find_supported(table)
    qpos[0, row + 2] = 0.005  # half in the table
    (contacts,) = find_contacts(twin, params, start, qpos)
    assert contacts.deepest([body]) == pytest.approx(0.005, abs=1e-6)
    joint = np.array([twin.model.joint("stuff_0").id])
    high = InitialState(
        qpos=np.where(np.arange(qpos.shape[1]) == row + 2, 5.0, qpos),
        qvel=start.qvel,
        mocap_pos=start.mocap_pos,
        mocap_quat=start.mocap_quat,
        command=start.command,
    )
    assert not settle(twin, params, high, joint, np.array([[True]]), longest=0.3).at_rest[0]


def screened(tmp_path, size):
    """The sphere of the table with a wall before it, as seen by the camera at x = 1, 20 mm above the table."""
    wall = {"name": "wall", "shape": "box", "size": size, "mass": 0.1, "position": [0.1, 0.0]}
    twin = table_twin(tmp_path, {"objects": [wall]})
    start = InitialState.home(twin, 1)
    return visible_fraction(twin, twin.table(1), start, camera="eye", body="thing")[0]


def test_the_visible_part_is_that_of_geometry(tmp_path):
    assert screened(tmp_path, [0.01, 0.01, 0.001]) == 1.0
    assert screened(tmp_path, [0.01, 0.2, 0.1]) == 0.0
    # The camera is level with the sphere's centre, and so is the wall's edge: half of it is seen.
    assert screened(tmp_path, [0.01, 0.2, 0.02]) == pytest.approx(0.5, abs=0.03)
    # A wall as high as the line of sight to a height h of the outline hides the segment of the disc below it.
    edge = 0.026
    reach = 0.02 / np.sqrt(1 - 0.02**2)  # the outline's half opening, as a slope
    seen = ((edge - 0.02) / (1 - 0.105)) / reach
    hidden = 1 - (np.arccos(seen) - seen * np.sqrt(1 - seen**2)) / np.pi
    assert screened(tmp_path, [0.01, 0.2, edge]) == pytest.approx(1 - hidden, abs=0.03)


def test_something_is_dropped_before_an_object_so_that_the_asked_part_is_seen(tmp_path):
    hide = {"camera": "eye", "object": "thing", "distance": [0.02, 0.2], "visible": [0.1, 0.7]}
    scene = clutter(1, x=[-0.4, 0.4], y=[-0.4, 0.4], upright=True, occlude=hide)
    scene["sets"] = {"all": [{"shape": "box", "size": [0.02, 0.03, 0.05]}]}
    twin = table_twin(tmp_path, scene)
    params, start = placed(twin, {"scene/stuff/count": [0.0] + [1.0] * 5}, 6)
    seen = start.notes["scene/visible/thing"]
    assert not start.refused
    assert seen[0] == 1.0
    assert ((seen[1:] >= 0.1) & (seen[1:] <= 0.7)).all()
    again = visible_fraction(twin, params, start, camera="eye", body="thing")
    np.testing.assert_array_equal(again, seen)
