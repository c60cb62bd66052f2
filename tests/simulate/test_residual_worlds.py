"""The residual of a twin: offsets within bounds and within the data, the same in every backend, and its disturbance."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import SeedPath
from twinloop.core.seeds import uniforms
from twinloop.rollout.substeps import PhysicsStepper
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.simulate.open_loop import open_loop
from twinloop.simulate.residual import Residuals, ResidualShape, compute_difference
from twinloop.twin import load_twin
from twinloop.twin.quantities.world import RESIDUAL_ACTION, RESIDUAL_DISTURBANCE
from twinloop.twin.residual_spec import JointResidual, ResidualSpec
from twinloop.twin.variant import add_twin_residual

NSTEP = 20
ELBOW = JointResidual(
    positions=(-1.0, 1.0),
    offsets=[0.03, 0.0, -0.03, 0.01, 0.02],
    direction=0.01,
    damping=-0.02,
    stiffness=0.01,
    speed=2.0,
    difference=0.5,
    bound=0.025,
    sd=0.02,
    time=0.3,
)
PAN = ELBOW.model_copy(update={"positions": (-0.5, 2.0), "sd": 0.01, "time": 1.0})


@pytest.fixture(scope="module")
def twin():
    spec = ResidualSpec(source="test", joints={"elbow_flex": ELBOW, "shoulder_pan": PAN})
    return add_twin_residual(load_twin("so101_tabletop"), spec)


def run_all(twin, backend, worlds, **amplitudes):
    low, high = twin.model.actuator_ctrlrange.T
    chance = uniforms(0, "commands", worlds, size=NSTEP * twin.model.nu).reshape(len(worlds), NSTEP, -1)
    table = twin.table(len(worlds), amplitudes).with_seeds(SeedPath.of(5, worlds))
    initial = InitialState.home(twin, len(worlds))
    return table, rollout(open_backend(backend), twin, table, initial, low + (high - low) * chance, NSTEP)


DISTURBED = {RESIDUAL_ACTION: 0.7, RESIDUAL_DISTURBANCE: 1.0}


def test_backends_are_equal_and_a_world_is_the_same_alone(twin):
    (_, reference), (_, threads) = (run_all(twin, name, range(4), **DISTURBED) for name in ("reference", "threads"))
    np.testing.assert_array_equal(reference.states, threads.states)
    np.testing.assert_array_equal(run_all(twin, "threads", [2], **DISTURBED)[1].states[0], threads.states[2])
    assert np.abs(run_all(twin, "threads", range(4))[1].qpos - threads.qpos).max() > 1e-3


def test_the_fast_open_loop_and_the_rollout_agree(twin):
    table, run = run_all(twin, "threads", range(3), **DISTURBED)
    initial = InitialState.home(twin, 3)
    np.testing.assert_array_equal(open_loop(open_backend(), twin, table, initial, run.commands).qpos, run.qpos)


def test_without_amplitude_the_twin_moves_as_without_a_residual(twin):
    _, off = run_all(twin, "threads", range(2), **{RESIDUAL_ACTION: 0.0})
    _, plain = run_all(load_twin("so101_tabletop"), "threads", range(2))
    np.testing.assert_array_equal(off.states, plain.states)


def test_physics_steps_are_made_again_bit_for_bit(twin):
    table, run = run_all(twin, "threads", range(2), **DISTURBED)
    command = InitialState.home(twin, 2).command
    stepper = PhysicsStepper(twin, table.take([1]), run.states[1], run.commands[1], command[1])
    np.testing.assert_array_equal(stepper.run().states[:, -1], run.states[1, 1:])


def test_a_restarted_world_has_the_disturbance_of_its_new_episode(twin):
    table = twin.table(2, DISTURBED).with_seeds(SeedPath.of(5, [0, 1]))
    fresh = twin.table(1, DISTURBED).with_seeds(SeedPath.of(5, [7]))
    restarted, alone = Residuals(twin, table), Residuals(twin, fresh)
    controls, state = np.zeros((2, 3, twin.model.nu)), InitialState.home(twin, 2)
    restarted.add(controls, state.qpos, state.qvel)
    restarted.restart([1], fresh)
    both = np.zeros((2, 1))
    for _ in range(3):
        both = restarted.add(controls, state.qpos, state.qvel)
        np.testing.assert_array_equal(both[1], alone.add(controls[:1], state.qpos[:1], state.qvel[:1])[0])
    assert (both[0] != both[1]).any()


@given(position=st.floats(-5, 5), velocity=st.floats(-50, 50), difference=st.floats(-5, 5))
def test_offsets_stay_within_the_bound_and_vanish_outside_the_data(twin, position, velocity, difference):
    shape = ResidualShape(twin, ResidualSpec(source="test", joints={"elbow_flex": ELBOW}))
    elbow = twin.robot.joints.index("elbow_flex")
    rows = [np.full((1, twin.model.nu), value) for value in (position, velocity, difference)]
    offset = shape.compute_offsets(shape.compute_features(*rows))[0]
    assert abs(offset[elbow]) <= ELBOW.bound
    assert not np.delete(offset, elbow).any()
    if abs(position) >= 1.5:  # a spacing of the offsets beyond the range
        assert offset[elbow] == 0.0


def test_offsets_are_those_of_the_table_between_which_they_are_linear(twin):
    shape = ResidualShape(twin, twin.spec.residual)
    elbow = twin.robot.joints.index("elbow_flex")
    at = np.zeros((5, twin.model.nu))
    at[:, elbow] = [-1.0, -0.5, -0.25, 0.25, 1.25]
    offset = shape.compute_offsets(shape.compute_features(at, 0 * at, 0 * at))[:, elbow]
    np.testing.assert_allclose(offset, [0.025, 0.0, -0.015, -0.01, 0.01])  # the first is cut to the bound
    at[:, elbow] = 0.5
    velocity, difference = np.zeros_like(at), np.zeros_like(at)
    velocity[:, elbow], difference[:, elbow] = [-1.0, 1.0, 9.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.25, 9.0]
    offset = shape.compute_offsets(shape.compute_features(at, velocity, difference))[:, elbow] - 0.01
    np.testing.assert_allclose(offset, [0.0, 0.0, -0.01, 0.005, 0.01], atol=2e-6)


def test_the_disturbance_has_its_standard_deviation_and_correlation_time(twin):
    worlds = np.arange(4000)
    residuals = Residuals(
        twin, twin.table(4000, {**DISTURBED, RESIDUAL_ACTION: 0.0}).with_seeds(SeedPath.of(1, worlds))
    )
    state = InitialState.home(twin, 4000)
    controls = np.zeros((4000, 1, twin.model.nu))
    series = np.stack([residuals.add(controls, state.qpos, state.qvel)[:, 0] for _ in range(12)], axis=1)
    for joint, spec in twin.spec.residual.joints.items():
        column = series[..., twin.robot.joints.index(joint)]
        np.testing.assert_allclose(column.std(axis=0), spec.sd, rtol=0.05)
        lag = np.mean(column[:, 0] * column[:, 10]) / spec.sd**2
        assert lag == pytest.approx(np.exp(-10 / (twin.control_hz * spec.time)), abs=0.05)
    assert (series[..., twin.robot.joints.index("gripper")] == 0).all()


@pytest.mark.parametrize(("control", "expected"), [("position", 0.7), ("velocity", 0.8), ("torque", 1.0)])
def test_the_control_error_is_that_of_the_kind_of_command(twin, control, expected):
    robot = twin.robot.model_copy(update={"control": control})
    other = add_twin_residual(load_twin("so101_tabletop"), twin.spec.residual)
    object.__setattr__(other, "spec", other.spec.model_copy(update={"robot": robot}))
    assert compute_difference(other, np.array(1.0), np.array(0.3), np.array(0.2)) == pytest.approx(expected)


def test_a_twin_file_with_a_residual_is_another_twin(tmp_path, twin):
    import yaml

    file = tmp_path / "twin.yaml"
    file.write_text(yaml.safe_dump({"base": "so101_tabletop", "residual": twin.spec.residual.model_dump(mode="json")}))
    loaded = load_twin(file)
    assert loaded.spec.residual == twin.spec.residual
    assert loaded.params[RESIDUAL_ACTION].default_range == (0.0, 1.0)
    assert loaded.hash != load_twin("so101_tabletop").hash
    first, second = (run_all(each, "threads", range(2), **DISTURBED)[1].states for each in (loaded, twin))
    np.testing.assert_array_equal(first, second)


def test_bad_residuals_are_named(twin):
    with pytest.raises(UnknownNameError, match="elbow_flex"):
        add_twin_residual(twin, ResidualSpec(source="test", joints={"elbow": ELBOW}))
    with pytest.raises(ValueError, match="same number of offsets"):
        ResidualSpec(source="test", joints={"a": ELBOW, "b": ELBOW.model_copy(update={"offsets": [0.0, 0.0]})})
    with pytest.raises(ValueError, match=r"\[low, high\]"):
        JointResidual(positions=(1.0, 1.0), offsets=[0.0, 0.0], speed=1.0, difference=1.0, bound=0.1)
    with pytest.raises(InputError, match="no seed path"):
        Residuals(twin, twin.table(1, DISTURBED))


@pytest.mark.slow
def test_warp_moves_alike(twin):
    pytest.importorskip("mujoco_warp")
    runs = [run_all(twin, backend, range(2), **DISTURBED)[1].qpos for backend in ("threads", "warp:cpu")]
    np.testing.assert_allclose(runs[0], runs[1], atol=2e-5)  # float32
