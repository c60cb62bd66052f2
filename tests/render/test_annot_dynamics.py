"""Forces of stored episodes: Newton's laws hold, and the forces equal the simulation's bit for bit."""

from __future__ import annotations

import copy
import dataclasses
import fnmatch

import mujoco
import numpy as np
import pytest

from support.rollout_substeps import HARD
from support.worlds import make_world, start
from twinloop.core.errors import InputError
from twinloop.dataset.annotations import vectors
from twinloop.randomize import Plan, default_draws
from twinloop.randomize.distributions import Uniform
from twinloop.randomize.plan import Draw
from twinloop.rollout import run_batch
from twinloop.rollout.contacts import _Steps, dynamics_tables
from twinloop.rollout.substeps import PhysicsStepper
from twinloop.simulate import open_backend, rollout
from twinloop.tasks import open_task
from twinloop.twin import load_twin

UNSOLVED = 1e-3  # N or N·m: what MuJoCo's solver may leave open where many contacts grip
BOTH = ("contacts", "joints")


def episode(twin, draws, nstep, backend="threads"):
    task = open_task("pick_and_place", twin)
    task.nstep = nstep
    table = Plan(twin=twin, run_seed=5, draws=tuple(draws)).draw([0])
    return run_batch(twin, task, table, run_seed=5, episodes=[0], backend=open_backend(backend)).episode(0)


@pytest.fixture(scope="module")
def grasp():
    """A pick and place under drawn parameters: a cube at rest, touched, lifted and put down."""
    twin = load_twin("so101_tabletop")
    draws = [draw for draw in default_draws(twin) if not any("/com/" in name for name in draw.names)]
    found = episode(twin, draws, 120)
    return twin, found, dynamics_tables(twin, found, BOTH)


def joint_column(tables, name, column, nstep):
    table = tables["annotations/joints"]
    chosen = np.array(table["name"].to_pylist()) == name
    return table[column].to_numpy()[chosen].reshape(nstep)


def net_force(tables, body, nstep):
    """Sum of the contact forces on a body at each step ``(nstep, 3)``; on the first of a pair acts the opposite."""
    table = tables["annotations/contacts"]
    force, frame = vectors(table["force"]), table["frame_index"].to_numpy()
    total = np.zeros((nstep, 3))
    for column, sign in (("body2", 1.0), ("body1", -1.0)):
        here = np.array(table[column].to_pylist()) == body
        np.add.at(total, frame[here], sign * force[here])
    return total


def test_contact_forces_accelerate_the_cube_against_its_weight(grasp):
    twin, found, tables = grasp
    model = copy.copy(twin.model)
    twin.fields(twin.table(1, found.provenance.params)).write_inplace(model, 0)
    mass, gravity = model.body("cube").mass[0], model.opt.gravity
    acceleration = np.stack([joint_column(tables, f"cube/{i}", "acceleration", len(found)) for i in range(3)], axis=1)
    total = net_force(tables, "cube", len(found))
    error = np.abs(total - mass * (acceleration - gravity))
    assert np.median(error) < 1e-8
    assert error.max() < UNSOLVED
    assert np.allclose(total[1], -mass * gravity, rtol=0.0, atol=0.02 * mass * 9.81)  # it rests on the table
    contacts = tables["annotations/contacts"]
    assert {"cube", "jaw", "gripper"} <= {*contacts["body1"].to_pylist(), *contacts["body2"].to_pylist()}


def test_generalized_forces_balance_at_every_step(grasp):
    twin, found, tables = grasp
    table, nv = tables["annotations/joints"], twin.model.nv
    column = {name: table[name].to_numpy().reshape(len(found), nv) for name in table.column_names[-6:]}
    residuals = []

    def check(step, model, data):
        inertia = np.zeros((nv, nv))
        mujoco.mj_fullM(model, data, inertia)
        forces = sum(column[name][step] for name in ("actuator", "passive", "constraint", "applied"))
        residuals.append(inertia @ column["acceleration"][step] + column["bias"][step] - forces)

    PhysicsStepper.of_episode(twin, found).visit_steps(check)
    assert np.median(np.abs(residuals)) < 1e-12
    assert np.abs(residuals).max() < UNSOLVED


def test_a_resting_arm_holds_its_weight(grasp):
    _, found, tables = grasp
    lift = {
        name: joint_column(tables, "shoulder_lift", name, len(found))[0] for name in ("actuator", "constraint", "bias")
    }
    assert abs(lift["bias"]) > 0.05  # N·m: the arm's weight at the shoulder
    assert lift["actuator"] + lift["constraint"] == pytest.approx(lift["bias"], abs=0.02 * abs(lift["bias"]))


@pytest.mark.parametrize("hard", [False, True])
def test_told_is_what_the_simulation_had(monkeypatch, hard):
    twin = load_twin("so101_tabletop")
    draws = default_draws(twin)
    if hard:
        draws = [
            Draw(names=tuple(fnmatch.filter(twin.params, pattern)), distribution=Uniform(low=low, high=high))
            for pattern, (low, high) in HARD.items()
        ]
    live, step = [], mujoco.mj_step

    def spy(model, data, *rest):
        step(model, data, *rest)
        forces = np.array([[*wrench(model, data, i)] for i in range(data.ncon) if data.contact.efc_address[i] >= 0])
        live.append((data.qfrc_actuator.copy(), data.qfrc_constraint.copy(), data.qacc.copy(), forces.reshape(-1, 3)))

    def wrench(model, data, i):
        result = np.empty(6)
        mujoco.mj_contactForce(model, data, i, result)
        return data.contact.frame[i].reshape(3, 3).T @ result[:3]

    monkeypatch.setattr(mujoco, "mj_step", spy)
    found = episode(twin, draws, 12, "reference")
    live = live[-12 * twin.substeps :: twin.substeps]
    monkeypatch.undo()
    tables = dynamics_tables(twin, found, BOTH)
    joints, contacts = tables["annotations/joints"], tables["annotations/contacts"]
    for i, name in enumerate(("actuator", "constraint", "acceleration")):
        told = joints[name].to_numpy().reshape(12, twin.model.nv)
        assert told.tobytes() == np.stack([row[i] for row in live]).tobytes(), name
    frame, force = contacts["frame_index"].to_numpy(), vectors(contacts["force"])
    for t, row in enumerate(live):
        assert np.allclose(force[frame == t], row[3], rtol=1e-12, atol=1e-15)


def test_action_is_minus_reaction_and_pushes_are_told(tmp_path):
    """Two balls that meet in empty space, one of them pushed: momentum changes by the push alone."""
    body = "".join(
        f'<body name="{name}" pos="{x} 0 0"><freejoint name="{name}"/><geom size="0.05" mass="{mass}"/></body>'
        for name, x, mass in (("a", -0.06, 0.2), ("b", 0.06, 0.5))
    )
    params = ["push/a/force", "push/a/azimuth", "push/a/time", "push/a/duration"]
    twin = make_world(tmp_path, body, params, option='gravity="0 0 0"', substeps=1)
    table = twin.table(1, {"push/a/force": 3.0, "push/a/time": 0.0, "push/a/duration": 10.0})
    qvel = np.zeros(12)
    qvel[0], qvel[6] = 1.0, -1.0
    run = rollout(open_backend(), twin, table, start(twin, 1, qvel=qvel), np.zeros((1, 20, 0)), 20)
    steps = _Steps(twin, contacts=True, joints=True)
    PhysicsStepper(twin, table, run.states[0], run.commands[0], np.zeros(0)).visit_steps(steps.append_step)
    tables = steps.tables(0)
    acceleration = {name: joint_column(tables, f"{name}/0", "acceleration", 20) for name in "ab"}
    on = {name: net_force(tables, name, 20)[:, 0] for name in "ab"}
    assert np.abs(on["b"]).max() > 5.0
    assert np.allclose(on["a"], -on["b"])
    assert np.allclose(on["b"], 0.5 * acceleration["b"], atol=1e-9)
    assert np.allclose(on["a"] + 3.0, 0.2 * acceleration["a"], atol=1e-9)
    pushes = tables["annotations/forces"].to_pylist()
    assert len(pushes) == 20
    assert {row["body"] for row in pushes} == {"a"}
    assert pushes[0]["force"] == pytest.approx([3.0, 0.0, 0.0])
    assert joint_column(tables, "a/0", "applied", 20) == pytest.approx(3.0)


def test_nothing_is_computed_for_nothing_and_another_twin_is_refused(grasp):
    twin, found, _ = grasp
    assert dynamics_tables(twin, found, ("depth",)) == {}
    assert list(dynamics_tables(twin, found, ("joints",))) == ["annotations/joints"]
    with pytest.raises(InputError, match="was made with so101_tabletop"):
        dynamics_tables(dataclasses.replace(twin, hash="0" * 64), found, BOTH)
