"""Objects of a world match its parameters: shape, mass and inertia, on every backend, alone or in a batch."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from support.scenes import FAMILIES, clutter, table_twin
from twinloop.core.errors import BoundsError, InputError, UnknownNameError
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.twin import load_twin
from twinloop.twin.scene_build import add_geoms

NSHAPE = 7  # of FAMILIES, the polyhedron twice


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    return table_twin(tmp_path_factory.mktemp("scene"), clutter())


def alone(shape):
    """A model of one shape and nothing else."""
    spec = mujoco.MjSpec()
    body = spec.worldbody.add_body(name="it")
    body.add_freejoint()
    add_geoms(body, spec, shape, 0, "x")
    return spec.compile()


def test_each_shape_turns_and_falls_like_a_model_of_that_shape_alone(twin):
    """The answer to a push and a twist is decided by mass, centre of mass and inertia together."""
    table = twin.table(NSHAPE, {"scene/stuff/count": 1.0, "scene/stuff_0/shape": np.arange(NSHAPE)})
    fields = twin.fields(table)
    row = twin.scene.qpos[0]
    for world, shape in enumerate(twin.scene.layout.slots[0].shapes):
        model = twin.mjspec.compile()
        fields.write_inplace(model, world)
        pairs = [(model, "stuff_0"), (alone(shape), "it")]
        accelerations = []
        for made, name in pairs:
            data = mujoco.MjData(made)
            start = row if name == "stuff_0" else 0
            data.qpos[start : start + 7] = [0.1, 0.1, 0.5, 0.5, 0.5, -0.5, 0.5]
            data.xfrc_applied[made.body(name).id] = [0.1, 0.2, 0.3, 1e-4, -2e-4, 3e-4]
            mujoco.mj_forward(made, data)
            dof = int(made.body_dofadr[made.body(name).id])
            accelerations.append(data.qacc[dof : dof + 6].copy())
        np.testing.assert_allclose(*accelerations, rtol=1e-6, atol=1e-6, err_msg=shape.name)


def test_upright_things_stand_as_high_as_they_are(twin):
    table = twin.table(NSHAPE, {"scene/stuff/count": 1.0, "scene/stuff_0/shape": np.arange(NSHAPE)})
    start, row = InitialState.home(twin, NSHAPE).qpos.copy(), twin.scene.qpos[0]
    extents = twin.scene.shape_attribute(table, "extents")[:, 0]
    start[:, row : row + 7] = [0.1, 0.1, 0.0, 1, 0, 0, 0]
    start[:, row + 2] = extents[:, 2] / 2 + 1e-4
    home = InitialState.home(twin, NSHAPE)
    initial = InitialState(
        qpos=start, qvel=home.qvel, mocap_pos=home.mocap_pos, mocap_quat=home.mocap_quat, command=home.command
    )
    run = rollout(open_backend(), twin, table, initial, np.zeros((NSHAPE, 25, 0)), 25)
    flat = [i for i, shape in enumerate(twin.scene.layout.slots[0].shapes) if not shape.name.startswith("poly")]
    np.testing.assert_allclose(run.qpos[flat, -1, row + 2], extents[flat, 2] / 2, atol=2e-4)


def test_backends_agree_and_a_world_is_the_same_alone(twin):
    values = {"scene/stuff/count": [0.0, 2.0, 4.0], "scene/stuff_0/shape": [0.0, 6.0, 2.0], "scene/stuff_1/shape": 5.0}
    table, start = twin.table(3, values), InitialState.home(twin, 3)
    qpos = start.qpos.copy()
    for slot, row in enumerate(twin.scene.qpos):
        there = twin.scene.occupied_mask(table)[:, slot]
        qpos[there, row : row + 3] = [0.1 * slot, 0.1, 0.05]
    start = InitialState(
        qpos=qpos, qvel=start.qvel, mocap_pos=start.mocap_pos, mocap_quat=start.mocap_quat, command=start.command
    )
    commands = np.zeros((3, 20, 0))
    runs = [rollout(open_backend(name), twin, table, start, commands, 20) for name in ("reference", "threads")]
    np.testing.assert_array_equal(runs[0].states, runs[1].states)
    for world in range(3):
        one = rollout(open_backend(), twin, table.take([world]), start.take([world]), commands[:1], 20)
        np.testing.assert_array_equal(one.states[0], runs[1].states[world])
    absent = ~twin.scene.occupied_mask(table)
    for slot, row in enumerate(twin.scene.qpos):
        parked = runs[1].qpos[absent[:, slot], :, row : row + 7]
        assert (parked == parked[:, :1]).all()
        assert (parked[..., 2] < -2).all()


def test_a_world_that_begins_anew_has_its_own_things(twin):
    full = twin.table(2, {"scene/stuff/count": 4.0, "scene/stuff_0/shape": 3.0})
    empty, start = twin.table(2), InitialState.home(twin, 2)
    simulation = open_backend("threads", nthread=1).start(twin, full, start, 10)
    simulation.restart([1], empty.take([1]), start.take([1]))
    fresh = open_backend("threads", nthread=1).start(twin, empty, start, 10)
    for _ in range(3):
        simulation.advance(np.zeros((2, 0)))
        fresh.advance(np.zeros((2, 0)))
    np.testing.assert_array_equal(simulation.qpos[1], fresh.qpos[1])
    assert np.abs(simulation.qpos[0] - fresh.qpos[0]).max() > 1e-4  # four things fall from their parking places


def test_count_and_shape_are_parameters_with_bounds_that_give_every_number_its_chance(twin):
    count = twin.params["scene/stuff/count"]
    assert (count.low, count.high, count.default_range) == (0.0, 5.0, (0.0, 5.0))
    values = np.linspace(0, 5, 1000)
    table = twin.table(1000, {"scene/stuff/count": values})
    np.testing.assert_array_equal(np.bincount(twin.scene.occupied_mask(table).sum(axis=1)), [200, 200, 200, 200, 200])
    with pytest.raises(BoundsError, match=r"scene/stuff/count = 6 is outside its physical bounds \[0, 5\]"):
        twin.table(1, {"scene/stuff/count": 6.0})
    assert "object/stuff_0/mass" not in twin.params
    names = twin.scene.shape_names(twin.table(1, {"scene/stuff/count": 2.0, "scene/stuff_1/shape": 6.5}), 0)
    assert names == ["box", "mug"]


def test_objects_of_a_scene_are_always_there(tmp_path):
    box = {"name": "crate", "shape": "box", "size": [0.06, 0.04, 0.05], "mass": 0.2, "position": [0.1, 0.2]}
    twin = table_twin(tmp_path, {"objects": [box]})
    home = InitialState.home(twin, 1)
    np.testing.assert_allclose(home.qpos[0, twin.scene.qpos[0] : twin.scene.qpos[0] + 3], [0.1, 0.2, 0.025])
    run = rollout(open_backend(), twin, twin.table(1), home, np.zeros((1, 25, 0)), 25)
    assert np.abs(run.qpos[0, -1] - run.qpos[0, 0]).max() < 3e-4
    assert twin.model.body("crate").mass[0] == pytest.approx(0.2)


def test_a_twin_on_a_base_keeps_everything_else_of_it(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "base: so101_tabletop\nname: mine\nscene:\n  sets: {few: [{shape: box, size: 0.02}]}\n"
        "  clutter: {bits: {set: few, count: [1, 2], x: [0.1, 0.3], y: [-0.2, 0.2]}}\n"
        "params: [{name: object/cube/mass, low: 0.02, high: 0.03, source: mine}]\n"
    )
    base, mine = load_twin("so101_tabletop"), load_twin(path)
    assert set(base.params) < set(mine.params)
    assert mine.params["object/cube/mass"].high == 0.03
    assert mine.hash != base.hash
    np.testing.assert_array_equal(mine.home()[0][: base.model.nq], base.home()[0])
    body, like = mine.model.body("bits_0"), mine.model.body("cube")
    first, cube = int(body.geomadr[0]), int(like.geomadr[0])
    assert mine.model.geom_priority[first] == mine.model.geom_priority[cube]
    np.testing.assert_array_equal(mine.model.geom_solref[first], mine.model.geom_solref[cube])
    path.write_text("base: so102\nname: mine\n")
    with pytest.raises(UnknownNameError, match="Unknown twin 'so102' in .*base.*Nearest existing: so101_"):
        load_twin(path)


def test_wrong_scenes_are_named(tmp_path):
    group = {"set": "al", "count": [0, 2], "x": [0, 1], "y": [0, 1]}
    cases = [
        ({"sets": {"all": FAMILIES}, "clutter": {"stuff": group}}, "Unknown set 'al' in t: scene.clutter.stuff"),
        ({"support": "desk"}, "Unknown geom 'desk' in t: scene.support. Existing: floor, table"),
        ({"like": "thin"}, "Unknown body 'thin' in t: scene.like"),
        (
            {"sets": {"all": [{"shape": "sphere", "size": [0.1, 0.2, 0.3]}]}},
            r"scene.sets.all \(sphere\): A sphere needs equal",
        ),
        ({"clutter": {"stuff": {**group, "count": [3, 2]}}}, r"count is a range \[low, high\], given \[3, 2\]"),
        ({"set": {}}, "Nearest existing: sets"),
    ]
    for scene, message in cases:
        with pytest.raises(InputError, match=message):
            table_twin(tmp_path, scene)
