"""Commands that are late or lost by chance, and a control loop that keeps no exact time: closed forms and laws."""

from __future__ import annotations

import dataclasses

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from support.one_joint import joints_twin, run
from twinloop.core.errors import InputError
from twinloop.core.params import SeedPath
from twinloop.core.records import Provenance
from twinloop.core.seeds import uniforms
from twinloop.randomize import Plan
from twinloop.randomize.distributions import Uniform
from twinloop.randomize.plan import Draw
from twinloop.rollout import replay_episode, run_batch
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.simulate.command import DROP_RATE, JITTER, CommandPath
from twinloop.stats import wilson
from twinloop.tasks import open_task
from twinloop.twin import load_twin

PERIOD, OVERSLEEP = "timing/control/period", "timing/control/jitter"
TIME = int(mujoco.mjtState.mjSTATE_TIME)


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    return joints_twin(tmp_path_factory.mktemp("timing"))


def seeded(twin, values, nworld=1, seed=0):
    return twin.table(nworld, values).with_seeds(SeedPath.of(seed, range(nworld)))


def signals(twin, table, commands):
    """What the motors see, ``(nworld, nstep * substeps)``; before the first command they hold 0."""
    path = CommandPath(twin, table, np.zeros((table.nworld, 1)))
    return np.concatenate(
        [path.compute_controls(commands[:, [step]])[..., 0] for step in range(commands.shape[1])], axis=1
    )


class TestJitter:
    def test_ages_are_the_delay_and_uniform_up_to_the_jitter_on_top(self, twin):
        """With less jitter than a period the first command arrives first; the ramp's missing area is its age."""
        delay, jitter, nworld = 0.013, 0.008, 2000
        signal = signals(twin, seeded(twin, {"actuator/j0/delay": delay, JITTER: jitter}, nworld), np.ones((nworld, 5)))
        age = twin.dt * (1.0 - signal).sum(axis=1)
        assert stats.kstest((age - delay) / jitter, "uniform").pvalue > 0.01

    def test_of_two_that_overtake_each_other_the_later_issued_stands(self, twin):
        """Commands 1, 2, 3, …: what the motor sees never steps back once a later command has come."""
        commands = np.tile(np.arange(1.0, 21.0), (200, 1))
        signal = signals(twin, seeded(twin, {JITTER: 0.05}, 200), commands)
        assert np.diff(signal, axis=1).min() >= -1e-12
        assert np.ptp(np.argmax(signal >= 5.0 - 1e-9, axis=1)) > 5

    def test_a_table_without_a_seed_path_has_no_chance(self, twin):
        with pytest.raises(InputError, match=r"happen by chance, but this parameter table has no seed path"):
            signals(twin, twin.table(1, {JITTER: 0.01}), np.ones((1, 1)))
        with pytest.raises(InputError, match=r"timing/control/jitter happens by chance"):
            signals(twin, twin.table(1, {OVERSLEEP: 0.01}), np.ones((1, 1)))


class TestDrops:
    @pytest.mark.parametrize("rate", [0.05, 0.5])
    def test_as_many_are_lost_as_the_rate_says(self, twin, rate):
        nworld, nstep = 200, 50
        commands = np.tile(np.arange(1.0, nstep + 1), (nworld, 1))
        signal = signals(twin, seeded(twin, {DROP_RATE: rate}, nworld), commands)
        arrived = signal[:, twin.substeps - 1 :: twin.substeps] == commands
        interval = wilson(int((~arrived).sum()), arrived.size, level=0.999)
        assert interval.low <= rate <= interval.high
        serial = np.corrcoef(arrived[:, 1:].ravel(), arrived[:, :-1].ravel())[0, 1]
        assert abs(serial) < 4 / np.sqrt(arrived.size)

    def test_the_motor_keeps_the_last_command_that_came(self, twin):
        commands = np.tile(np.arange(1.0, 41.0), (50, 1))
        signal = signals(twin, seeded(twin, {DROP_RATE: 0.4}, 50), commands)[:, twin.substeps - 1 :: twin.substeps]
        arrived = signal == commands
        held = np.maximum.accumulate(np.where(arrived, commands, 0.0), axis=1)
        np.testing.assert_array_equal(signal, held)

    def test_a_rate_of_one_leaves_the_robot_where_it_was(self, twin):
        result = run(twin, seeded(twin, {DROP_RATE: 1.0}), np.full((1, 20, 1), 0.5))
        assert np.abs(result.qpos).max() == 0.0


class TestClock:
    def test_a_slow_loop_takes_longer_and_says_so(self, twin):
        scale = np.array([0.8, 1.0, 1.25])
        result = run(twin, twin.table(3, {PERIOD: scale}), np.zeros((3, 30, 1)))
        np.testing.assert_allclose(
            result.state_component(TIME)[..., 0], scale[:, None] * np.arange(31) / twin.control_hz, atol=1e-12
        )

    def test_a_loop_that_oversleeps_is_late_by_uniform_chance_and_never_early(self, twin):
        result = run(twin, seeded(twin, {OVERSLEEP: 0.006}, 50), np.zeros((50, 40, 1)))
        late = np.diff(result.state_component(TIME)[..., 0], axis=1) - 1 / twin.control_hz
        assert stats.kstest(late.ravel() / 0.006, "uniform").pvalue > 0.01
        assert abs(np.corrcoef(late[:, 1:].ravel(), late[:, :-1].ravel())[0, 1]) < 0.1

    def test_physics_goes_by_the_true_time(self, twin):
        """A joint at constant speed travels the distance of the true clock."""
        start = dataclasses.replace(InitialState.home(twin, 2), qvel=np.full((2, 1), 2.0))
        values = {OVERSLEEP: [0.0, 0.008], "joint/j0/damping": 0.0, "joint/j0/frictionloss": 0.0}
        table = seeded(twin, {**values, "actuator/j0/kp": 1e-6}, 2)
        result = run(twin, table, np.zeros((2, 30, 1)), initial=start)
        np.testing.assert_allclose(
            result.qpos[..., 0], 2.0 * result.state_component(TIME)[..., 0], rtol=1e-4, atol=1e-9
        )
        assert result.state_component(TIME)[1, -1, 0] > result.state_component(TIME)[0, -1, 0] + 0.05

    @settings(max_examples=15, deadline=None)
    @given(period=st.floats(0.6, 1.8), delay=st.floats(0.0, 0.05))
    def test_a_delay_is_one_in_seconds_whatever_the_loop_does(self, twin, period, delay):
        table = twin.table(1, {PERIOD: period, "actuator/j0/delay": delay})
        signal = signals(twin, table, np.ones((1, 12)))[0]
        lost = period * twin.dt * (1.0 - signal).sum()
        assert lost == pytest.approx(delay, abs=period * twin.dt)


CHANCES = st.fixed_dictionaries(
    {
        JITTER: st.floats(0, 0.04),
        DROP_RATE: st.floats(0, 0.6),
        PERIOD: st.floats(0.7, 1.4),
        OVERSLEEP: st.floats(0, 0.02),
    }
)


class TestBackends:
    twin = load_twin("so101_tabletop")

    def commands(self, nworld, nstep):
        u = uniforms(0, "c", range(nworld), size=nstep * 6).reshape(nworld, nstep, 6)
        return self.twin.home()[1] + 0.5 * (u - 0.5)

    @settings(max_examples=8, deadline=None)
    @given(drawn=CHANCES)
    def test_threads_equal_the_reference_bit_for_bit(self, drawn):
        commands, table = self.commands(3, 6), seeded(self.twin, drawn, 3)
        runs = [run(self.twin, table, commands, backend=name) for name in ("reference", "threads")]
        np.testing.assert_array_equal(runs[0].states, runs[1].states)

    def test_chance_is_of_the_episode_and_not_of_its_company(self):
        drawn = {JITTER: 0.03, DROP_RATE: 0.3, OVERSLEEP: 0.01}
        commands = self.commands(3, 8)
        together = run(self.twin, seeded(self.twin, drawn, 3), commands)
        path = SeedPath.of(0, [2])
        alone = run(self.twin, self.twin.table(1, drawn).with_seeds(path), commands[2:3])
        np.testing.assert_array_equal(together.states[2], alone.states[0])
        other = run(self.twin, self.twin.table(1, drawn).with_seeds(SeedPath.of(0, [2], 1)), commands[2:3])
        assert np.abs(other.qpos - alone.qpos).max() > 1e-6

    @pytest.mark.parametrize("backend", ["reference", "threads"])
    def test_a_world_begun_anew_is_like_one_just_begun(self, backend):
        drawn = {JITTER: 0.03, DROP_RATE: 0.3, PERIOD: 1.1, OVERSLEEP: 0.01}
        table, commands = seeded(self.twin, drawn, 3), self.commands(3, 8)
        simulation = open_backend(backend).start(self.twin, table, InitialState.home(self.twin, 3), 16)
        for step in range(8):
            simulation.advance(commands[:, step])
        simulation.restart([0, 2], table.take([0, 2]), InitialState.home(self.twin, 2))
        for step in range(8):
            simulation.advance(commands[:, step])
        fresh = rollout(open_backend(backend), self.twin, table, InitialState.home(self.twin, 3), commands, 8)
        np.testing.assert_array_equal(simulation.state[[0, 2]], fresh.states[[0, 2], -1])

    @pytest.mark.parametrize("backend", ["reference", "threads"])
    @pytest.mark.parametrize("before", [{PERIOD: 1.3}, {OVERSLEEP: 0.01}])
    def test_a_world_whose_clock_keeps_time_again_forgets_the_one_before(self, backend, before):
        commands, steady = self.commands(2, 6), seeded(self.twin, {}, 2)
        home = InitialState.home(self.twin, 2)
        simulation = open_backend(backend).start(self.twin, seeded(self.twin, before, 2), home, 12)
        for step in range(6):
            simulation.advance(commands[:, step])
        simulation.restart([0, 1], steady, home)
        for step in range(6):
            simulation.advance(commands[:, step])
        fresh = rollout(open_backend(backend), self.twin, steady, home, commands, 6)
        np.testing.assert_array_equal(simulation.state, fresh.states[:, -1])

    def test_an_episode_with_all_of_it_replays_bit_for_bit_from_its_provenance(self):
        names = {JITTER: 0.03, DROP_RATE: 0.2, OVERSLEEP: 0.01, PERIOD: 1.2}
        draws = [Draw(names=(name,), distribution=Uniform(low=top / 2, high=top)) for name, top in names.items()]
        plan = Plan(twin=self.twin, run_seed=4, draws=tuple(draws))
        task = open_task("pick_and_place", self.twin)
        task.nstep = 30
        batch = run_batch(self.twin, task, plan.draw([5, 6]), run_seed=4, episodes=[5, 6])
        episode = batch.episode(1)
        stored = Provenance.from_json(episode.provenance.to_json())
        assert replay_episode(self.twin, dataclasses.replace(episode, provenance=stored)).identical
        unlike = dataclasses.replace(stored, seed_path=(4, 7, 0))
        assert not replay_episode(self.twin, dataclasses.replace(episode, provenance=unlike)).identical
