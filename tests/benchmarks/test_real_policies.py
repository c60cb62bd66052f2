"""Controllers of a real arm: the reimplementation agrees with the recordings, and the twins react as expected."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.commands import BenchPolicies
from benchmarks.predictivity.arm import UPRIGHT, Arm, deviation
from benchmarks.predictivity.clone import clone_by_chance, clone_torques
from benchmarks.predictivity.clone_check import clone_errors, regulator_error
from benchmarks.predictivity.closed_loop import IDEAL, Wiring, run_policy
from benchmarks.predictivity.compensation import Compensation, SpeedFilter
from benchmarks.predictivity.measures import published_trials, real_trials, scores, simulated_trials
from benchmarks.predictivity.policies import MCPILCO, SAC_LQR, TVLQR, McPilco, SacLqr, of_controller
from benchmarks.predictivity.run import run_bench_policies
from benchmarks.predictivity.swingup import swing_up, tracking_gains
from benchmarks.predictivity.twins import identify_arm
from benchmarks.predictivity.wiring import measured_wiring, torque_reading
from twinloop.core.errors import InputError
from twinloop.core.records import Episode
from twinloop.dataset.logs.sets.registry import load_set
from twinloop.simulate import open_backend
from twinloop.stats.predictivity import predictivity
from twinloop.twin import load_twin


@pytest.fixture(scope="module")
def rollouts() -> list[Episode]:
    folder = Path(os.environ.get("TWINLOOP_DATA", "")) / "dfki_double_pendulum"
    if not (folder / "real_rollouts").is_dir():
        pytest.skip("the set dfki_double_pendulum_rollouts is not here; TWINLOOP_DATA names the folder of sets")
    return load_set("dfki_double_pendulum_rollouts", folder)


class _Constant:
    """The same torques at any time."""

    name: str = "constant"
    hz: float = 100.0
    speed_limit: float = 20.0

    def __init__(self, torque: float) -> None:
        self._torque = torque

    def begin(self, nworld, rng, *, on_robot):
        return lambda time, position, velocity: np.full((nworld, 2), self._torque)


class _Seen:
    """A policy that stores its observations."""

    name: str = "seen"
    hz: float = 50.0
    speed_limit: float = np.inf

    def __init__(self) -> None:
        self.rows: list[tuple[np.ndarray, np.ndarray]] = []

    def begin(self, nworld, rng, *, on_robot):
        def act(time, position, velocity):
            self.rows.append((position[0].copy(), velocity[0].copy()))
            return np.tile([2.0, 0.0], (nworld, 1))

        return act


def test_energy_is_kept_and_power_is_torque_times_speed():
    arm, rng = Arm(), np.random.default_rng(0)
    state, torque = rng.normal(size=(20, 4)), rng.normal(size=(20, 2))
    later = state
    for _ in range(200):
        later = arm.step(later, np.zeros((20, 2)), 2e-3)
    assert arm.energy(later) == pytest.approx(arm.energy(state), abs=1e-7)
    slope = (arm.energy(arm.step(state, torque, 1e-5)) - arm.energy(arm.step(state, torque, -1e-5))) / 2e-5
    assert slope == pytest.approx((torque * state[:, 2:]).sum(axis=-1), rel=1e-5, abs=1e-6)


def test_the_equations_are_those_of_the_twin_without_friction():
    twin = load_twin("double_pendulum")
    still = {f"joint/{j}/{n}": v for j in ("shoulder", "elbow") for n, v in (("frictionloss", 0.0), ("damping", 0.0))}
    table = twin.table(1, {**still, "joint/shoulder/armature": 1e-4, "joint/elbow/armature": 1e-4})
    flown = run_policy(open_backend("reference"), twin, table, _Constant(0.4), IDEAL, seconds=0.5)
    # armature, both joints: adds to the diagonal of the masses
    arm, state = Arm(i1=Arm().i1 + 1e-4, i2=Arm().i2), np.zeros(4)
    for _ in range(490):
        state = arm.step(state, np.array([0.4, 0.4]), 1e-3)
    assert flown.true[0, 49] == pytest.approx(state[:2], abs=0.02)


def test_the_regulator_holds_the_arm_upright_and_gives_the_published_gain():
    arm = Arm()
    gain, _ = arm.lqr(np.array([1.92, 1.92, 0.3, 0.3]), 0.82, joint=0)
    assert gain == pytest.approx([-37.45798, -36.58744, -8.75175, -6.43011], abs=1e-4)
    state = UPRIGHT + np.array([0.05, -0.03, 0.0, 0.0])
    for _ in range(900):
        state = arm.step(state, np.array([-deviation(state) @ gain, 0.0]), 4e-3)
    assert np.abs(deviation(state)).max() < 1e-4


def test_recorded_commands_come_out_of_the_regulator_filter_and_compensation(rollouts):
    sac = of_controller(rollouts, SAC_LQR)
    compensation = Compensation.of_logs(sac)
    assert compensation.coulomb == pytest.approx([0.16 * np.pi / 2, 0.12 * np.pi / 2], rel=1e-9)
    assert compensation.viscous == pytest.approx([1e-3, 1e-3], rel=1e-6)
    twin = load_twin("double_pendulum").model
    assert twin.dof_frictionloss == pytest.approx(compensation.coulomb, rel=1e-6)
    assert regulator_error(sac, compensation) < 1e-6
    for rollout in sac[:2]:
        speed_filter, speeds = SpeedFilter(1), rollout.signals["joint_velocity"].values
        told = np.array([speed_filter(row[None])[0] for row in speeds])
        assert told == pytest.approx(rollout.signals["filtered_velocity"].values, abs=1e-12)


def test_readings_are_late_and_speeds_are_differences():
    twin, policy = load_twin("double_pendulum"), _Seen()
    exact = _Seen()
    backend = open_backend("reference")
    wiring = Wiring(late=1, differences=True)
    run_policy(backend, twin, twin.table(1), policy, wiring, seconds=0.3)
    run_policy(backend, twin, twin.table(1), exact, IDEAL, seconds=0.3)
    shown, true = np.array([row[0] for row in policy.rows]), np.array([row[0] for row in exact.rows])
    assert shown[1:] == pytest.approx(true[:-1], abs=1e-12)
    assert np.array([row[1] for row in policy.rows])[2:] == pytest.approx(np.diff(shown, axis=0)[1:] * 50.0)


def test_a_fast_arm_is_switched_off_and_fails():
    twin = load_twin("double_pendulum")
    wiring = Wiring(differences=True)
    flown = run_policy(open_backend("reference"), twin, twin.table(1), _Constant(8.0), wiring, seconds=1.0)
    assert flown.stopped.all()
    assert simulated_trials(flown).counts == (0, 1)


def test_a_zero_turns_the_arm_that_reads_zero():
    twin, zero = load_twin("double_pendulum"), np.array([[0.03, -0.02]])
    flown = run_policy(
        open_backend("reference"), twin, twin.table(1), _Constant(0.0), Wiring(differences=True), zero=zero, seconds=0.1
    )
    assert flown.position[0, -1] == pytest.approx([0.0, 0.0], abs=1e-3)
    assert flown.true[0, 0] == pytest.approx(-zero[0])


@pytest.mark.parametrize("limit", [0.5, 4.0])
def test_clones_recover_planted_policies(limit):
    state = np.random.default_rng(0).uniform(-0.5, 0.5, size=(300, 4))
    latent = np.sin(state[:, 0]) - 0.1 * state[:, 2]
    clone = clone_torques(state[:250], limit * np.tanh(latent[:250]), limit)
    assert clone(state[250:]) == pytest.approx(limit * np.tanh(latent[250:]), abs=0.05 * limit)
    assert clone.strangeness(state[:5]).max() < 2 < clone.strangeness(state[:5] + np.array([1.5, 0, 30, 0])).min()


def test_a_policy_that_acts_by_chance_is_cloned_with_its_chance_beyond_the_limit_too():
    rng = np.random.default_rng(3)
    state = rng.uniform(-1, 1, size=(2000, 4))
    latent = 1.5 * state[:, 0] + 0.4 * rng.standard_normal(len(state))
    command = np.clip(5 * np.tanh(latent) + 0.25, -5, 5)
    clone = clone_by_chance(state, command, np.full(len(state), 0.25), 5.0)
    fresh = rng.uniform(-0.8, 0.8, size=(2000, 4))
    assert np.sqrt(np.mean((clone(fresh) - 5 * np.tanh(1.5 * fresh[:, 0])) ** 2)) < 0.4
    drawn = np.arctanh(np.clip(clone(fresh, rng) / 5, -0.999999, 0.999999)) - 1.5 * fresh[:, 0]
    assert drawn.std() == pytest.approx(0.4, abs=0.08)


@pytest.mark.slow
def test_clones_agree_with_commands_of_rollouts_they_have_not_seen(rollouts):
    errors = clone_errors(
        of_controller(rollouts, MCPILCO), of_controller(rollouts, SAC_LQR), Compensation.of_logs(rollouts)
    )
    assert errors["mcpilco_shoulder"] < 0.05  # of 5 N·m
    assert errors["mcpilco_elbow"] < 0.03  # of 0.5 N·m
    assert errors["sac"] < 2.0  # a policy that acts by chance


def test_planning_gains_and_descends():
    arm = Arm()
    path = swing_up(arm, horizon=1.0, iterations=25)
    assert np.abs(deviation(path.state[-1])).max() < 0.2
    gains = tracking_gains(arm, path, q=np.array([0.64, 0.56, 0.13, 0.037]), r=0.82, last=np.diag([50.0, 50, 5, 5]))
    pushed = path.state[0] + np.array([0.02, 0.02, 0.0, 0.0])
    followed, left = pushed, pushed
    for k, torque in enumerate(path.torque):
        nudge = torque - (followed - path.state[k]) @ gains[k]
        followed = arm.step(followed, np.array([nudge, 0.0]), path.dt)
        left = arm.step(left, np.array([torque, 0.0]), path.dt)
    assert np.linalg.norm(followed - path.state[-1]) < 0.5 * np.linalg.norm(left - path.state[-1])


def test_wiring_is_read_off_the_logs(rollouts):
    wiring, reading = measured_wiring(rollouts), torque_reading(rollouts)
    assert 1e-4 < wiring.noise < 1e-3
    assert reading.lag == pytest.approx(3.9e-3, abs=0.5e-3)
    assert reading.gain == pytest.approx(0.96, abs=0.02)
    with pytest.raises(InputError, match="All 10 rollouts are slower"):
        measured_wiring(of_controller(rollouts, MCPILCO))


def test_what_is_not_there_is_said(rollouts):
    with pytest.raises(InputError, match="No pendubot rollout of the controller dqn was found"):
        of_controller(rollouts, "dqn")
    with pytest.raises(InputError, match="None of the 10 rollouts has a friction compensation"):
        Compensation.of_logs(of_controller(rollouts, MCPILCO))
    with pytest.raises(InputError, match="torque='current' is unknown"):
        identify_arm([], open_backend("reference"), torque="current")


def test_no_worlds_and_no_marks_are_said_before_anything_runs(tmp_path):
    from rich.console import Console

    with pytest.raises(InputError, match="--worlds 0: give at least 1"):
        run_bench_policies(Console(quiet=True), worlds=0)
    with pytest.raises(InputError, match="has no place for the tables"):
        BenchPolicies(write=tmp_path / "page.md").run()


def test_real_scores_join_what_is_only_published(rollouts):
    real = [real_trials(of_controller(rollouts, name)) for name in (MCPILCO, SAC_LQR)] + [published_trials(TVLQR)]
    assert [each.counts for each in real] == [(10, 10), (4, 10), (8, 10)]
    assert scores(real, "v1").mean == pytest.approx([0.839, 0.298, 0.547], abs=1e-3)
    # Published scores of simulation, version 1: pendubot_simulation_performance_leaderboard_v1.html
    published = scores(real, None)
    table = replace(published, mean=np.array([0.891, 0.876, 0.827]), trials=np.full(3, 1e4))
    assert predictivity(real=scores(real, "v1"), sim=table)["mmrv"].estimate > 0.1


@pytest.mark.slow
def test_the_published_arm_with_the_robots_wiring_swings_up_as_the_robot_does(rollouts):
    recorded, twin = {name: of_controller(rollouts, name) for name in (MCPILCO, SAC_LQR)}, load_twin("double_pendulum")
    wiring, backend = measured_wiring(rollouts), open_backend("threads", nthread=1)
    table, policy = twin.table(8), McPilco.of(recorded[MCPILCO])
    seen = simulated_trials(run_policy(backend, twin, table, policy, wiring))
    assert seen.counts == (8, 8)
    assert seen.swingup_time == pytest.approx(real_trials(recorded[MCPILCO]).swingup_time, abs=0.08)
    sac = SacLqr.of(recorded[SAC_LQR], Compensation.of_logs(rollouts))
    seen = simulated_trials(run_policy(backend, twin, twin.table(24), sac, wiring))
    assert 0 < seen.counts[0] < 24
    again = simulated_trials(run_policy(backend, twin, twin.table(24), sac, wiring))
    assert again.counts == seen.counts
