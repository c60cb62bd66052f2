"""The whole monitor on short episodes of an arm that waves: rest, planted faults, files, texts of errors."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from twinloop.core.contract import ENVIRONMENT, STATE, Contract
from twinloop.core.errors import InputError
from twinloop.release import running_observers
from twinloop.release.monitor.calibration import (
    Calibration,
    count_needed_episodes,
    read_monitor_calibration,
    save_monitor_calibration,
)
from twinloop.release.monitor.faults import (
    ObserverBank,
    apply_fault,
    compute_alpha_beta,
    disable_contacts,
    list_hypotheses,
)
from twinloop.release.monitor.live import Alarm, LiveMonitor
from twinloop.release.monitor.recorded import RecordedEpisodes, compute_rows, monitor_recorded
from twinloop.release.monitor.signals import CalibrationHistory
from twinloop.release.running_observers import MonitorWatcher, OnAlarm, open_watcher
from twinloop.release.running_robot import RobotObservation
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.tasks.kinematics import Chain
from twinloop.twin import Twin, load_twin
from twinloop.workflows.deploy import monitor_episodes as monitor_data
from twinloop.workflows.deploy.monitor import calibrate_monitor

STEPS, RATE = 45, 0.2
TOOL = ("tool.x", "tool.y", "tool.z")


@cache
def _twin() -> Twin:
    return load_twin("so101_tabletop")


def _contract(twin: Twin) -> Contract:
    return Contract(
        robot_type=twin.robot.type,
        control_hz=twin.control_hz,
        state=twin.units,
        action=twin.units,
        environment=TOOL,
    )


def _commands(count: int, seed: int) -> np.ndarray:
    """Smooth waves about home, ``(count, STEPS, n)`` in rad."""
    twin, random = _twin(), np.random.default_rng(seed)
    time = np.arange(STEPS) / twin.control_hz
    home = twin.home()[0][twin.joint_qpos]
    n = len(home)
    size, rate = random.uniform(0.15, 0.3, (count, 1, n)), random.uniform(3.0, 5.0, (count, 1, n))
    return home + size * np.sin(rate * time[None, :, None]) * (time / time[-1])[None, :, None]


def _waves(count: int, seed: int, fault: str = "", tracker: float = 0.0) -> RecordedEpisodes:
    """Episodes of an arm that nothing touches, with readings in counts and a tracker."""
    twin, random = _twin(), np.random.default_rng(seed + 1000)
    robot, row = twin, twin.table(1)
    if fault:
        robot, row = apply_fault(twin, row, next(one for one in list_hypotheses(twin) if one.name == fault))
    robot, commands = disable_contacts(robot), _commands(count, seed)
    initial = InitialState.home(robot, count)
    table = row.take(np.zeros(count, dtype=int))
    run = rollout(open_backend("threads", nthread=1), robot, table, initial, commands, STEPS)
    joints = run.qpos[:, :-1, robot.joint_qpos]
    chain = Chain(twin.model, str(twin.robot.tcp), twin.home()[0])
    tool = chain.pose(joints.reshape(-1, joints.shape[-1])[:, :5]).position.reshape(count, STEPS, 3)
    counted = np.round((joints + 5e-4 * random.normal(size=joints.shape)) / 0.00153) * 0.00153
    seen = tool + 7e-4 * random.normal(size=tool.shape) + np.array([0.0, tracker, 0.0])
    return RecordedEpisodes(
        observation={STATE: twin.units.from_si(counted), ENVIRONMENT: seen},
        commands=twin.units.from_si(commands),
        lengths=np.full(count, STEPS),
        success=np.ones(count),
        names=tuple(str(i) for i in range(count)),
        source="waves",
    )


@cache
def _calibration() -> Calibration:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "twinloop.workflows.deploy.monitor._TRIED", 2
        )  # waves differ little, and signatures take most of the time
        return calibrate_monitor(_waves(16, 0), _twin(), _contract(_twin()), rate=RATE, success_rate=0.9)


def test_a_twin_beside_itself_is_right() -> None:
    """Commands through the twin, read without noise: what the observers miss is far below a count."""
    twin, commands = _twin(), _commands(2, 5)
    alone = disable_contacts(twin)
    initial = InitialState.home(alone, 2)
    run = rollout(open_backend("threads", nthread=1), alone, twin.table(2), initial, commands, STEPS)
    joints = run.qpos[..., alone.joint_qpos]
    observers = ObserverBank(twin, hypotheses=[])
    observers.begin(joints[:, 0], initial.command)
    worst = [np.abs(observers.advance_step(commands[:, t], joints[:, t + 1])[0]).max() for t in range(STEPS)]
    assert max(worst) < 1e-6


def test_alpha_beta_by_kalata() -> None:
    """Λ² = β² / (1 − α), the tracking index as it is defined, and β = 2 (2 − α) − 4 √(1 − α)."""
    for index in (0.1, 1.0, 5.0):
        alpha, beta = compute_alpha_beta(index)
        assert beta**2 / (1.0 - alpha) == pytest.approx(index**2)
        assert beta == pytest.approx(2.0 * (2.0 - alpha) - 4.0 * np.sqrt(1.0 - alpha))
    with pytest.raises(InputError, match="tracking index of 0 is too small"):
        compute_alpha_beta(0.0)


def test_false_alarms_are_few_where_nothing_is_wrong() -> None:
    told = monitor_recorded(_waves(12, 50), LiveMonitor(_calibration(), _twin()))
    assert sum(bool(one.alarms) for one in told) <= 6  # 20 % are promised: of 12 more than 6 have a chance of 0.004
    assert all(not one.drifts for one in told)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("friction", "worn actuator"),
        ("latency", "latency"),
        pytest.param("play", "worn actuator", marks=pytest.mark.slow),
    ],
)
def test_planted_faults_alarm_and_are_named(fault: str, cause: str) -> None:
    told = monitor_recorded(_waves(3, 80, fault), LiveMonitor(_calibration(), _twin()))
    assert all(one.alarms for one in told)
    assert [one.cause for one in told].count(cause) >= 2
    assert f"Points to: {told[0].alarms[0].cause}" in str(told[0].alarms[0])


@pytest.mark.parametrize(
    ("cause", "possible", "end"),
    [
        ("latency", (), "predicts. Points to: latency."),
        ("unknown", ("latency", "friction"), "predicts. Points to: latency or friction."),
        ("unknown", (), "predicts."),
    ],
)
def test_an_alarm_names_a_cause_only_if_one_is_known(cause, possible, end) -> None:
    alarm = Alarm(
        world=0,
        step=3,
        since=2,
        signal="drives/any",
        excess=1.5,
        cause=cause,
        possible_causes=possible,
        control_hz=10.0,
    )
    assert str(alarm).endswith(end)


def test_a_moved_tracker_is_no_worn_joint() -> None:
    told = monitor_recorded(_waves(3, 90, tracker=0.03), LiveMonitor(_calibration(), _twin()))
    assert [one.cause for one in told] == ["moved tracker"] * 3
    assert told[0].alarms[0].step <= 3


def test_worlds_begin_anew_one_by_one_as_if_alone() -> None:
    recorded = _waves(2, 60)
    together, alone = LiveMonitor(_calibration(), _twin()), LiveMonitor(_calibration(), _twin())
    together.begin(2)
    alone.begin(1)
    for step in range(10):
        together.score_step(recorded.get_step_observation(step), None, recorded.commands[:, step])
    together.restart([1])
    first, second = recorded.take(np.array([0])), recorded.take(np.array([1]))
    mixed = single = None
    for step in range(20):
        both = {
            name: np.stack([first.get_step_observation(step + 10)[name][0], second.get_step_observation(step)[name][0]])
            for name in first.observation
        }
        commands = np.stack([first.commands[0, step + 10], second.commands[0, step]])
        mixed = together.score_step(both, None, commands)
        single = alone.score_step(second.get_step_observation(step), None, second.commands[:, step])
    assert mixed is not None
    assert single is not None
    for name, values in single.scores.items():
        assert mixed.scores[name][1] == pytest.approx(values[0], abs=1e-6), name


def test_a_monitor_comes_back_as_it_was(tmp_path: Path) -> None:
    made = save_monitor_calibration(_calibration(), tmp_path / "monitor")
    opened = LiveMonitor.open(tmp_path / "monitor", _twin())
    assert opened.hash == made
    recorded = _waves(1, 70)
    scores = [monitor_recorded(recorded, one)[0].scores for one in (LiveMonitor(_calibration(), _twin()), opened)]
    assert scores[0] == scores[1]


def test_damage_is_found_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "monitor"
    save_monitor_calibration(_calibration(), folder)
    arrays = (folder / "monitor.npz").read_bytes()
    (folder / "monitor.npz").write_bytes(arrays[:-1] + b"x")
    with pytest.raises(InputError, match=r"monitor\.npz has changed since it was written"):
        read_monitor_calibration(folder)
    (folder / "monitor.npz").write_bytes(arrays)
    meta = json.loads((folder / "monitor.json").read_text())
    meta["band"]["rate"] = 0.5
    (folder / "monitor.json").write_text(json.dumps(meta))
    with pytest.raises(InputError, match=r"monitor\.json has changed since it was written"):
        read_monitor_calibration(folder)
    meta["schema"] = 99
    (folder / "monitor.json").write_text(json.dumps(meta))
    with pytest.raises(InputError, match="schema 99; this version reads 2"):
        read_monitor_calibration(folder)
    meta["schema"] = 1
    (folder / "monitor.json").write_text(json.dumps(meta))
    with pytest.raises(
        InputError, match=r"schema 1, of an older monitor with fewer signals; this version reads 2\. Cali"
    ):
        read_monitor_calibration(folder)
    (folder / "monitor.json").write_text("{")
    with pytest.raises(InputError, match="is not valid JSON"):
        read_monitor_calibration(folder)
    with pytest.raises(InputError, match="has no monitor"):
        read_monitor_calibration(tmp_path)


def test_another_policy_or_twin_is_refused(tmp_path: Path) -> None:
    origin = dataclasses.replace(_calibration().origin, policy_hash="a" * 64)
    save_monitor_calibration(dataclasses.replace(_calibration(), origin=origin), tmp_path)
    with pytest.raises(InputError, match="calibrated for the policy aaaaaaaaaaaa, but this policy is bbbbbbbbbbbb"):
        LiveMonitor.open(tmp_path, _twin(), policy_hash="b" * 64)
    with pytest.raises(InputError, match="calibrated with the twin so101_tabletop .*; panda_tabletop is"):
        LiveMonitor.open(tmp_path, load_twin("panda_tabletop"), policy_hash="a" * 64)


def test_too_few_successes_says_how_many_a_rate_needs() -> None:
    assert count_needed_episodes(0.05) == 31
    assert count_needed_episodes(RATE) == 12
    with pytest.raises(InputError, match="5 successful episodes are too few: .* 20 % needs at least 12, of which 4"):
        calibrate_monitor(_waves(5, 0), _twin(), _contract(_twin()), rate=RATE)


def test_readings_of_another_robot_are_refused() -> None:
    monitor = LiveMonitor(_calibration(), _twin())
    monitor.begin(1)
    with pytest.raises(InputError, match=r"finite and of shape \(1, 6\).*shape is \(1, 5\)"):
        monitor.score_step({STATE: np.zeros((1, 5))}, None, np.zeros((1, 6)))
    with pytest.raises(InputError, match="needs joint readings"):
        monitor.score_step({}, None, np.zeros((1, 6)))
    with pytest.raises(
        InputError, match=r"needs observation.environment_state with tool.x, tool.y, tool.z; .* shape is \(1, 0\)"
    ):
        monitor.score_step({STATE: _waves(1, 0).get_step_observation(0)[STATE]}, None, np.zeros((1, 6)))


def test_slow_drift_and_rates_are_told_over_episodes() -> None:
    calibration, random = _calibration(), np.random.default_rng(0)
    known = {name: float(values.mean()) for name, values in calibration.levels.items()}
    spread = {name: float(values.std()) for name, values in calibration.levels.items()}
    steady, drifting, failing = (
        CalibrationHistory(calibration),
        CalibrationHistory(calibration),
        CalibrationHistory(calibration),
    )
    said, lost = list[str](), list[str]()
    for number in range(40):
        usual = {name: known[name] + 0.5 * spread[name] * random.normal() for name in known}
        assert not steady.add(usual, success=number % 10 != 9, intervened=False)
        said = drifting.add({**usual, "tracker": known["tracker"] + 0.2 * number * spread["tracker"]})
        lost = failing.add(usual, success=number % 2 == 0)
    assert len(said) == 1
    assert said[0].startswith("tracker has drifted since episode")
    assert said[0].endswith("Points to: moved tracker.")
    assert lost[0].startswith("The success rate is below 0.80, decided after")


class _Cell:
    """A robot whose tracker lists objects in another order than the monitor."""

    def find_environment_columns(self, contract: Contract) -> list[int]:
        offered = ("cube.x", "tool.z", "tool.y", "tool.x")
        return [offered.index(name) for name in contract.environment]


def _shown(recorded: RecordedEpisodes, step: int) -> RobotObservation:
    x, y, z = recorded.observation[ENVIRONMENT][0, step]
    reading = recorded.observation[STATE][0, step]
    return RobotObservation(arrays={STATE: reading, ENVIRONMENT: np.array([9.0, z, y, x])}, time_s=step / 30.0)


def _watcher(on_alarm: OnAlarm) -> MonitorWatcher:
    decider = SimpleNamespace(acting=None)
    monitor = LiveMonitor(_calibration(), _twin())
    return MonitorWatcher(monitor, decider, _Cell(), on_alarm=on_alarm)  # type: ignore[arg-type]


def test_a_watcher_ends_the_episode_or_takes_note() -> None:
    good, moved = _waves(1, 71), _waves(1, 91, tracker=0.03)
    for on_alarm in ("stop", "log"):
        watcher = _watcher(on_alarm)
        watcher.begin(0)
        quiet = [watcher.watch_step(_shown(good, step), good.commands[0, step]) for step in range(5)]
        assert not any(told.alarm or told.notes for told in quiet)
        assert set(quiet[0].scores) == set(_calibration().signals)
        assert watcher.end(True) == []
        watcher.begin(1)
        told = watcher.watch_step(_shown(moved, 0), moved.commands[0, 0])
        said = (told.alarm,) if on_alarm == "stop" else told.notes
        assert any("tracker at" in one and "Points to: moved tracker." in one for one in said)
        assert bool(told.alarm) == (on_alarm == "stop")
        assert not (on_alarm == "stop" and told.notes)
        assert told.scores["tracker"] > 1.0


def test_a_watched_run_reports_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[tuple[int, dict[str, float]]]()
    monkeypatch.setattr(running_observers, "log_metrics", lambda step, values: told.append((step, dict(values))))
    good, watcher = _waves(1, 71), _watcher("stop")
    watcher.begin(0)
    reports = [watcher.watch_step(_shown(good, step), good.commands[0, step]) for step in range(3)]
    assert told == [(n, {f"monitor/{name}": v for name, v in one.scores.items()}) for n, one in enumerate(reports)]


def test_an_exported_policy_gives_the_streams_of_the_policy(tmp_path: Path) -> None:
    for package in ("torch", "onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    from support.policies import small
    from twinloop.policies import open_policy
    from twinloop.policies.onnx_export import export_onnx

    policy = small("mlp", _contract(_twin()))
    export_onnx(policy, tmp_path / "p.onnx")
    waves, both = _waves(2, 5), (policy, open_policy(tmp_path / "p.onnx"))
    first, second = (compute_rows(waves, _twin(), _contract(_twin()), policy=one)[1] for one in both)
    assert "latent" in first
    assert list(first) == list(second)
    for name, rows in first.items():
        np.testing.assert_allclose(second[name], rows, atol=1e-4, rtol=1e-4, err_msg=name)


def test_a_policy_that_runs_on_a_server_cannot_be_watched(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"needs the policy in this process, but grpc://there runs on a server\. Run the policy here"
    ):
        open_watcher(tmp_path, SimpleNamespace(name="grpc://there"), _Cell())  # type: ignore[arg-type]


def test_episodes_of_another_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    acts = {"actor": "pick_and_place/expert-1", "extra": {}}
    one = SimpleNamespace(batch="monday", index=3, provenance=SimpleNamespace(**acts))
    monkeypatch.setattr(monitor_data, "open_recordings", lambda _: [one])
    with pytest.raises(
        InputError,
        match=r"In monday:3 of runs/x the actor was pick_and_place/expert-1, not the policy mlp@2 \(aaaaaaaaaaaa\)",
    ):
        monitor_data.require_same_policy(Path("runs/x"), "mlp@2", "a" * 64)
    one.provenance.actor, one.provenance.extra = "policy:mlp@1", {"run": {"policy_hash": "b" * 64}}
    with pytest.raises(InputError, match=r"the actor was policy:mlp@1 \(bbbbbbbbbbbb\), not .* Give episodes"):
        monitor_data.require_same_policy(Path("runs/x"), "mlp@2", "a" * 64)
    monitor_data.require_same_policy(Path("runs/x"), "mlp@1", "b" * 64)
    monitor_data.require_same_policy(Path("runs/x"), "", "")
    one.provenance.actor, one.provenance.extra = f"policy {'a' * 64}, domain real", {}
    monitor_data.require_same_policy(Path("runs/x"), "mlp@2", "a" * 64)
    one.provenance.actor = "recorded"
    monitor_data.require_same_policy(Path("runs/x"), "mlp@2", "a" * 64)
