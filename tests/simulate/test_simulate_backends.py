"""Every backend equals the plain loop bit for bit, worlds are independent, and delay is as requested."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.seeds import uniforms
from twinloop.randomize import Plan, default_draws
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.simulate.command import CommandPath
from twinloop.simulate.protocol import state_columns
from twinloop.twin import builtin_names, load_twin

NSTEP = 12


def random_commands(twin, nworld, nstep):
    """Smooth random commands inside the control range."""
    low, high = twin.model.actuator_ctrlrange.T
    u = uniforms(0, "commands", range(nworld), size=nstep * max(twin.model.nu, 1))
    return low + (high - low) * u[:, : nstep * twin.model.nu].reshape(nworld, nstep, twin.model.nu)


def randomized(twin, nworld):
    return Plan(twin=twin, run_seed=3, draws=tuple(default_draws(twin))).draw(range(nworld))


@pytest.mark.parametrize("name", builtin_names())
@pytest.mark.parametrize("nthread", [1, 2])
def test_threads_equal_the_reference_bit_for_bit(name, nthread):
    twin = load_twin(name)
    table, commands = randomized(twin, 5), random_commands(twin, 5, NSTEP)
    runs = [
        rollout(backend, twin, table, InitialState.home(twin, 5), commands, NSTEP, record=("xpos", "qacc"))
        for backend in (open_backend("reference"), open_backend("threads", nthread=nthread))
    ]
    assert runs[0].valid.all()
    np.testing.assert_array_equal(runs[0].states, runs[1].states)
    np.testing.assert_array_equal(runs[0].records["xpos"], runs[1].records["xpos"])
    assert np.ptp(runs[0].states[:, -1], axis=0).max() > 0


@pytest.mark.parametrize("backend", ["reference", "threads"])
def test_a_world_is_the_same_alone_and_in_company(backend):
    twin = load_twin("so101_tabletop")
    table, commands, start = randomized(twin, 4), random_commands(twin, 4, NSTEP), InitialState.home(twin, 4)
    together = rollout(open_backend(backend), twin, table, start, commands, NSTEP)
    alone = rollout(open_backend(backend), twin, table.take([2]), InitialState.home(twin, 1), commands[2:3], NSTEP)
    np.testing.assert_array_equal(together.states[2], alone.states[0])


@pytest.mark.parametrize("backend", ["reference", "threads"])
def test_a_diverging_world_is_marked_and_stops_nobody(backend):
    twin = load_twin("double_pendulum")
    commands = np.zeros((3, NSTEP, twin.model.nu))
    commands[1, 4:] = np.nan
    result = rollout(open_backend(backend), twin, twin.table(3), InitialState.home(twin, 3), commands, NSTEP)
    np.testing.assert_array_equal(result.invalid_step, [-1, 4, -1])
    assert result.reason[1] == "mjWARN_BADCTRL"
    np.testing.assert_array_equal(result.states[0], result.states[2])


def test_parameters_that_change_every_step_do_so_alike_in_both_backends():
    twin = load_twin("so101_tabletop")
    jitter = 0.05 * uniforms(1, "delay", range(3), size=NSTEP)
    friction = 0.2 * uniforms(1, "friction", range(3), size=NSTEP)
    table = twin.table(3).with_steps({"actuator/elbow_flex/delay": jitter, "joint/elbow_flex/frictionloss": friction})
    commands, start = random_commands(twin, 3, NSTEP), InitialState.home(twin, 3)
    runs = [rollout(open_backend(name), twin, table, start, commands, NSTEP) for name in ("reference", "threads")]
    np.testing.assert_array_equal(runs[0].states, runs[1].states)
    fixed = rollout(open_backend("threads"), twin, twin.table(3), start, commands, NSTEP)
    assert np.abs(fixed.qpos - runs[0].qpos).max() > 1e-3


def test_a_recorded_state_and_the_commands_after_it_give_the_same_future():
    """The recorded data suffice to step on from the middle, bit for bit (no delay: its history is in the commands)."""
    twin = load_twin("so101_tabletop")
    import mujoco

    table = twin.table(1, {f"actuator/{joint}/delay": 0.0 for joint in twin.robot.joints})
    commands = random_commands(twin, 1, NSTEP)
    result = rollout(open_backend("threads"), twin, table, InitialState.home(twin, 1), commands, NSTEP)
    from twinloop.simulate.protocol import STATE_SPEC

    data = mujoco.MjData(twin.model)
    twin.fields(table).write_inplace(twin.model, 0)
    mujoco.mj_setState(twin.model, data, result.states[0, 5], STATE_SPEC)
    for command in commands[0, 5:]:
        data.ctrl[:] = command
        for _ in range(twin.substeps):
            mujoco.mj_step(twin.model, data)
    np.testing.assert_array_equal(data.qpos, result.qpos[0, -1])


def test_wrong_shapes_and_names_are_named():
    twin = load_twin("double_pendulum")
    with pytest.raises(InputError, match=r"Commands have shape \(1, 3, 9\), expected \(1, 3, 2\)"):
        rollout(open_backend(), twin, twin.table(1), InitialState.home(twin, 1), np.zeros((1, 3, 9)), 3)
    with pytest.raises(InputError, match="The parameters are for 2 worlds, but there are 1 initial states"):
        rollout(open_backend(), twin, twin.table(2), InitialState.home(twin, 1), np.zeros((1, 3, 2)), 3)
    with pytest.raises(UnknownNameError, match="Unknown backend 'thread'. Nearest existing: threads"):
        open_backend("thread")


def test_state_columns_lie_where_positions_are():
    twin = load_twin("so101_tabletop")
    import mujoco

    columns = state_columns(twin.model, int(mujoco.mjtState.mjSTATE_QPOS))
    np.testing.assert_array_equal(columns, np.arange(1, 1 + twin.model.nq))


class TestCommandPath:
    """Closed forms of the delayed hold."""

    twin = load_twin("so101_tabletop")

    def controls(self, delay, commands, *, bias=0.0, offset=0.0, scale=1.0):
        values = {
            "actuator/elbow_flex/delay": delay,
            "actuator/elbow_flex/bias": bias,
            "sensor/elbow_flex/offset": offset,
            "sensor/elbow_flex/scale": scale,
        }
        values |= {f"actuator/{j}/delay": 0.0 for j in self.twin.robot.joints if j != "elbow_flex"}
        path = CommandPath(self.twin, self.twin.table(1, values), np.full((1, 6), 0.25))
        rows = [path.compute_controls(np.full((1, 6), command))[0, :, 2] for command in commands]
        return np.concatenate(rows)

    def test_without_delay_a_command_holds_for_its_period(self):
        np.testing.assert_array_equal(self.controls(0.0, [1.0, 2.0]), np.repeat([1.0, 2.0], self.twin.substeps))

    @pytest.mark.parametrize("steps", [1, 5, 16, 33])
    def test_a_step_arrives_after_exactly_the_delay_and_the_past_is_the_initial_command(self, steps):
        signal = self.controls(steps * self.twin.dt, [1.0] * 4)
        np.testing.assert_array_equal(signal, np.where(np.arange(64) < steps, 0.25, 1.0))

    @settings(max_examples=25, deadline=None)
    @given(delay=st.floats(0, 0.09), change=st.floats(1e-6, 1e-4))
    def test_the_signal_is_continuous_in_the_delay(self, delay, change):
        commands = [0.0, 1.0, 0.5, -1.0]
        moved = np.abs(self.controls(delay, commands) - self.controls(delay + change, commands)).max()
        assert moved <= 2.0 * change / self.twin.dt + 1e-9

    def test_the_encoder_map_and_the_bias_act_on_the_target(self):
        signal = self.controls(0.0, [0.5], bias=0.01, offset=0.1, scale=1.2)
        np.testing.assert_allclose(signal, 0.1 + 1.2 * 0.5 + 0.01)
