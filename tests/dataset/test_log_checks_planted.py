"""Planted defects are found with their column and time; the good log gives no finding."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from benchmarks.error_rates.logs.planted import DEFECTS, raw
from benchmarks.error_rates.logs.run import Source, run_trials
from twinloop.core.errors import LogError
from twinloop.core.records import LoggedSignal
from twinloop.core.units import JointUnit, UnitMap
from twinloop.dataset.logs.checks.check import check_log
from twinloop.dataset.logs.importers.protocol import RawEpisode
from twinloop.hardware import virtual_log
from twinloop.twin import load_twin
from twinloop.workflows.data.logs import build_joint_expectations

G = 9.80665


def radians(*names: str) -> UnitMap:
    return UnitMap(joints=tuple(JointUnit(joint=n, unit="rad", scale=1.0, offset=0.0) for n in names), source="test")


def pendulum(index: int = 0, *, hz: float = 200.0) -> RawEpisode:
    """A driven pendulum in closed form: J q̈ + b q̇ + m g l sin q is its torque."""
    time = np.arange(0, 9, 1 / hz)
    w = np.array([2.1, 3.7, 5.3]) * (1 + 0.05 * index)
    q, v, a = (
        np.sum([0.4 * k**d * np.sin(k * time + i + d * math.pi / 2) for i, k in enumerate(w)], axis=0) for d in range(3)
    )
    torque = 0.06 * a + 0.05 * v + 1.0 * np.sin(q)

    def signal(values, unit):
        return LoggedSignal(time=time, values=values[:, None], columns=("hinge",), unit=unit)

    return RawEpisode(
        index=index, time=time, action=torque[:, None], state=q[:, None], units=radians("hinge"), command="torque",
        signals={"joint_velocity": signal(v, "rad/s"), "joint_torque": signal(torque, "N·m")},
    )  # fmt: skip


def tumbling() -> RawEpisode:
    """A body that turns and flies in closed form, with its pose, its twist and an inertial unit that feels gravity."""
    time = np.arange(0, 8, 0.005)
    rate = np.stack([0.9 * np.sin(0.7 * time), 0.8 * np.cos(0.9 * time), 0.5 + 0.3 * np.sin(time)], axis=1)
    turn = Rotation.identity()
    turns = []
    for omega in rate:
        turns.append(turn)
        turn = turn * Rotation.from_rotvec(omega * 0.005)
    turns = Rotation.concatenate(turns)
    place = np.stack([np.sin(time), np.cos(0.7 * time), 0.2 * time], axis=1)
    speed = np.stack([np.cos(time), -0.7 * np.sin(0.7 * time), np.full_like(time, 0.2)], axis=1)
    wxyz = turns.as_quat(scalar_first=True)

    def signal(values, unit, names="xyz"):
        return LoggedSignal(time=time, values=values, columns=tuple(names), unit=unit)

    return RawEpisode(
        index=0, time=time, action=np.empty((len(time), 0)), state=np.empty((len(time), 0)), units=radians(),
        command="none",
        signals={
            "pose/cube": signal(np.hstack([place, wxyz]), "", "xyzwijk"),
            "twist/cube": signal(np.hstack([speed, rate]), "", "abcdef"),
            "acceleration/imu": signal(turns.inv().apply([0, 0, G]), "m/s²"),
            "angular_velocity/imu": signal(rate, "rad/s"),
        },
    )  # fmt: skip


@pytest.fixture(scope="module")
def arm() -> Source:
    twin = load_twin("so101_tabletop")
    log = [raw(e) for e in virtual_log(seed=5, twin="so101_tabletop", episodes=5, seconds=9.0, nthread=1)]
    return Source(name="virtual", records=log, expectations=build_joint_expectations(twin))


@pytest.fixture(scope="module")
def trials(arm):
    """One trial of every defect: in the arm's log if it can have it, else in the others."""
    made = run_trials(arm, trials=1, seed=3)
    pendulums = Source(name="pendulum", records=[pendulum(i) for i in range(2)])
    radians_log = Source(name="radians", records=in_radians(arm.records[:2]))
    body = Source(name="tumbling", records=[tumbling()])
    for source, seed in ((pendulums, 3), (body, 3), (radians_log, 3), (arm, 4), (arm, 5)):
        left = set(DEFECTS) - {trial.defect for trial in made}
        made += run_trials(source, trials=1, seed=seed, defects=left)
    return made


def in_radians(log: list[RawEpisode]) -> list[RawEpisode]:
    units = radians(*log[0].joints)
    return [replace(r, units=units, state=r.units.to_si(r.state), action=r.units.to_si(r.action)) for r in log]


def test_good_logs_are_left_alone(arm):
    for source in (arm.records, in_radians(arm.records), [pendulum()], [tumbling()]):
        report = check_log(source)
        assert [f.format_line() for f in report.findings if f.severity != "note"] == []
    assert check_log(arm.records, arm.expectations).errors == ()


# A joint that glides into its limit looks as one that comes to rest there: see test_log_checks_mending for a sharp one.
GLIDES = "cut off at a limit"


@pytest.mark.parametrize("name", [name for name in DEFECTS if name != GLIDES])
def test_a_planted_defect_is_found_by_its_kind_and_column(trials, name):
    chosen = [trial for trial in trials if trial.defect == name]
    assert chosen, "no source can have this defect"
    assert [trial.source for trial in chosen if not trial.named] == []
    assert [(trial.source, f.line()) for trial in chosen for f in trial.false if f.severity == "error"] == []


def test_most_moments_are_told(trials):
    told = [trial.timed for trial in trials if trial.named and trial.timed is not None]
    assert np.mean(told) > 0.85
    assert len(told) > 15


def test_a_wrong_sign_and_degrees_for_radians_are_said(arm):
    log = in_radians(arm.records)
    elbow = log[0].joints.index("elbow_flex")
    flipped = [raw(record) for record in log]
    for record in flipped:
        record.state[:, elbow] *= -1
    (finding,) = check_log(flipped).select_kind("wrong_sign")
    assert (finding.column, finding.severity, finding.episodes) == ("elbow_flex", "error", (0, 1, 2, 3, 4))
    assert finding.format_line().startswith("error: wrong_sign: elbow_flex, episodes 0-4 from 0.0")
    assert "moves against its command (correlation -0.9" in finding.evidence
    assert "--flip elbow_flex changes the sign of the measurement" in finding.remedy
    degrees = [replace(r, state=np.degrees(r.state), action=np.degrees(r.action)) for r in log]
    report = check_log(degrees, arm.expectations)
    finding = next(f for f in report.select_kind("unit") if f.column == "elbow_flex")
    assert "as deg it is within" in finding.evidence
    assert finding.remedy == "--units deg"
    assert finding.severity == "error"
    assert all(f.column in log[0].joints for f in report.errors)


def test_what_recurs_is_one_finding_and_numbers_are_told_in_runs(arm):
    log = [raw(record) for record in arm.records]
    for row in (0, 1, 2, 4):
        log[row].state[10, 2] = np.nan
    (finding,) = check_log(log).select_kind("not_finite")
    assert finding.episodes == (0, 1, 2, 4)
    assert "episodes 0-2, 4 from" in finding.format_line()
    assert finding.to_json()["metrics"] == {"frame": 10.0, "count": 1.0}


def test_lags_come_back_finer_than_a_frame(arm):
    lags = check_log(arm.records).lags
    later = [raw(record) for record in arm.records]
    for record in later:
        for column in range(record.state.shape[1]):
            record.state[:, column] = np.interp(record.time - 0.05, record.time, record.state[:, column])
    shifted = check_log(later).lags
    assert np.median([shifted[joint] - lags[joint] for joint in lags]) == pytest.approx(0.05, abs=0.008)


def test_a_log_of_another_robot_is_said(arm):
    report = check_log([pendulum()], arm.expectations)
    (missing,) = report.select_kind("missing_joint")
    assert "the log lacks shoulder_pan, " in missing.evidence
    assert "it has hinge" in missing.evidence
    (kind,) = report.select_kind("command_kind")
    assert "has torque commands, so101_tabletop has position control" in kind.evidence


def test_nothing_to_check_is_an_error_and_an_empty_episode_a_finding():
    with pytest.raises(LogError, match="There is no episode to check"):
        check_log([])
    empty = replace(pendulum(), time=np.empty(0), state=np.empty((0, 1)), action=np.empty((0, 1)), signals={})
    (finding,) = check_log([empty]).findings
    assert (finding.kind, finding.severity) == ("empty", "error")


def test_checks_leave_their_input_as_it_is():
    record = pendulum()
    before = [record.time.copy(), record.state.copy(), record.action.copy()]
    check_log([record])
    for old, new in zip(before, (record.time, record.state, record.action), strict=True):
        np.testing.assert_array_equal(old, new)


def test_inverse_dynamics_tells_the_sign_of_a_torque():
    twin = load_twin("double_pendulum")
    expectations = build_joint_expectations(twin)
    assert expectations.inverse_dynamics is not None
    time = np.arange(0, 6, 0.005)
    q, v, a = (
        np.stack([0.8 * k**d * np.sin(k * time + d * math.pi / 2) for k in (2.3, 3.9)], axis=1) for d in range(3)
    )
    torque = expectations.inverse_dynamics(q, v, a)
    names = tuple(twin.robot.joints)

    def log(signs) -> RawEpisode:
        values = torque * signs
        return RawEpisode(index=0, time=time, action=values, state=q, units=radians(*names), command="torque")

    assert check_log([log([1, 1])], expectations).errors == ()
    found = check_log([log([1, -1])], expectations).select_kind("torque_sign")
    assert [f.column for f in found] == [f"action/{names[1]}"]
    assert "inverse dynamics (correlation -1.00" in found[0].evidence
