"""A log's signals, conditions and command kind survive its dataset; signals without a feature are reported."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from support.dataset_logs import planted_log, real
from twinloop.cli.main import main
from twinloop.core.errors import InputError, LogError
from twinloop.core.records import Episode, LoggedSignal
from twinloop.core.units import JointUnit, UnitMap
from twinloop.dataset.export.streams import EpisodeStreams
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.logs.conversion import write_log_dataset
from twinloop.dataset.logs.formats import load_log
from twinloop.workflows.data.logs import import_episodes, open_log, open_logs
from twinloop.workflows.data.requests import LogReading

POSE = ("x", "y", "z", "qw", "qx", "qy", "qz")


def measured_log(count: int = 3) -> list[Episode]:
    """Planted episodes with a velocity at the frames, and a pose and a switch at other times."""
    episodes = []
    for episode in planted_log(count):
        half = episode.time[::2] + 0.003
        angle = 1.5 * half
        turn = np.stack([np.cos(angle / 2), 0 * angle, 0 * angle, np.sin(angle / 2)], axis=1)
        signals = {
            "joint_velocity": LoggedSignal(
                time=episode.time, values=episode.state / 3, columns=episode.joints, unit="rad/s"
            ),
            "pose/cube": LoggedSignal(
                time=half, values=np.concatenate([half[:, None] * [1, 2, 3], turn], axis=1), columns=POSE, unit=""
            ),
            "enabled": LoggedSignal(time=half[[0, 5]], values=[[1.0], [0.0]], columns=("enabled",), unit="1"),
        }
        conditions = {"mass": 0.1 + episode.index}
        episodes.append(dataclasses.replace(episode, command="torque", signals=signals, conditions=conditions))
    return episodes


def test_signals_conditions_and_commands_come_back_exactly(tmp_path):
    logs = measured_log()
    path = write_log_dataset(logs, tmp_path / "set", block_size=2)
    for before, after in zip(logs, load_log(path), strict=True):
        assert (after.command, after.conditions) == ("torque", before.conditions)
        assert list(after.signals) == list(before.signals)
        for name, signal in before.signals.items():
            np.testing.assert_array_equal(after.signals[name].time, signal.time)
            np.testing.assert_array_equal(after.signals[name].values, signal.values)
            assert (after.signals[name].columns, after.signals[name].unit) == (signal.columns, signal.unit)


def test_velocity_commands_come_back_and_are_exported_in_si(tmp_path):
    logs = measured_log()
    known = tuple(JointUnit(joint=joint, unit="deg", scale=np.pi / 180, offset=0.3) for joint in logs[0].joints)
    units = UnitMap(joints=known, source="test")
    logs = [dataclasses.replace(episode, command="velocity", units=units) for episode in logs]
    path = write_log_dataset(logs, tmp_path / "set")
    assert [episode.command for episode in load_log(path)] == ["velocity"] * len(logs)
    commanded, _ = EpisodeStreams(DatasetReader(path), 0).joints_si()
    assert set(commanded.units) == {"rad/s"}
    np.testing.assert_allclose(commanded.values, np.deg2rad(logs[0].action))


def test_signals_are_features_at_every_frame(tmp_path):
    logs = measured_log()
    reader = DatasetReader(write_log_dataset(logs, tmp_path / "set"))
    features = reader.info["features"]
    assert features["observation.pose.cube"]["names"] == list(POSE)
    log = logs[1]
    keys = ["observation.pose.cube", "observation.joint_velocity", "observation.enabled"]
    table = reader.frames_table(1, keys)
    pose, velocity, enabled = (np.array(table[key].to_pylist()) for key in keys)
    np.testing.assert_allclose(velocity, log.state / 3, atol=1e-6)
    own = log.signals["pose/cube"].time
    inside = np.clip(log.time, own[0], own[-1])
    np.testing.assert_allclose(pose[:, :3], inside[:, None] * [1, 2, 3], atol=1e-6)
    np.testing.assert_allclose(pose[:, 3], np.cos(0.75 * inside), atol=1e-6)  # spherical, so exact for a steady turn
    np.testing.assert_array_equal(np.ravel(enabled), log.time < own[5])


def test_a_signal_that_some_episodes_lack_is_kept_beside(tmp_path):
    logs = measured_log(2)
    alone = {name: signal for name, signal in logs[1].signals.items() if name != "pose/cube"}
    logs[1] = dataclasses.replace(logs[1], signals=alone)
    path = write_log_dataset(logs, tmp_path / "set")
    assert "observation.pose.cube" not in DatasetReader(path).info["features"]
    first, second = load_log(path)
    assert "pose/cube" in first.signals
    assert "pose/cube" not in second.signals


def test_datasets_of_two_kinds_of_command_or_without_joints_are_refused(tmp_path):
    logs = measured_log(2)
    mixed = [logs[0], dataclasses.replace(logs[1], command="position")]
    with pytest.raises(
        LogError, match=r"Episode 2 commands positions, episode 0 torques. A dataset's actions are of on"
    ):
        write_log_dataset(mixed, tmp_path / "mixed")
    real("crazyflie_sysid")
    with pytest.raises(
        LogError, match=r"has no joints, and a LeRobot dataset .* 'twinloop identify' and 'twinloop gap' read"
    ):
        import_episodes(open_log("crazyflie_sysid"), tmp_path / "flight")


def test_a_public_set_becomes_a_dataset_that_says_what_it_does_not_show(tmp_path):
    real("bam_servo")
    metrics = import_episodes(open_log("bam_servo"), tmp_path / "servo")
    assert metrics["features"] == [
        f"observation.{name}" for name in ("joint_velocity", "enabled", "load", "voltage", "temperature")
    ]
    conditions, rates = metrics["notes"]
    assert conditions == "the episodes' conditions are stored in the provenance"
    assert rates.startswith("episodes at 18")  # lift_and_drop is read at 250 Hz, the others at 187
    assert rates.endswith("share one nominal rate; twinloop/log has their real times, --resample HZ gives one rate")
    gains = [episode.conditions["firmware_kp"] for episode in load_log(tmp_path / "servo")]
    assert gains == [episode.conditions["firmware_kp"] for episode in open_log("bam_servo").episodes]


def test_a_folder_laid_out_like_a_public_set(tmp_path):
    folder = tmp_path / "mine" / "square_dice"
    folder.mkdir(parents=True)
    (folder / "traj_3.csv").write_text("x,z,th,vx,vz,vth\n0,0.1,0,1,0,2\n0.1,0.2,0,1,0,3\n")
    log = open_log(str(tmp_path / "mine"), LogReading(layout="planar_impacts"), task="drop it")
    assert log.label == f"real log {tmp_path / 'mine'}, laid out like planar_impacts"
    assert (log.episodes[0].index, log.episodes[0].task) == (3, "drop it")
    with pytest.raises(
        InputError, match=r"With --layout planar_impacts the log needs no other options. Leave out --units"
    ):
        open_log(str(tmp_path / "mine"), LogReading(layout="planar_impacts", units="rad"))
    with pytest.raises(InputError, match=r"planar_impacts is a public set, which needs no options. Leave out --topics"):
        open_log("planar_impacts", LogReading(topics="state=/a"))


def test_the_command_imports_a_described_table_and_names_what_it_leaves(tmp_path, capsys):
    (tmp_path / "run.csv").write_text("t,q,goal,other\n0,1,2,3\n10,2,3,4\n20,3,4,5\n")
    (tmp_path / "columns.yaml").write_text(
        "time: {column: t, unit: ms}\njoints: {hip: {state: q, action: goal, unit: deg}}\nconditions: {mass_kg: 2}\n"
    )
    words = ["import", str(tmp_path / "run.csv"), "--describe", str(tmp_path / "columns.yaml")]
    assert main([*words, "--output", str(tmp_path / "set"), "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (metrics["fps"], metrics["joints"], metrics["units"]) == (100, ["hip"], "deg ×1")
    assert metrics["notes"] == ["columns not read: other", "the episodes' conditions are stored in the provenance"]
    assert load_log(tmp_path / "set")[0].conditions == {"mass": 2}


def test_the_command_imports_a_bag_by_its_topics(tmp_path, capsys):
    pytest.importorskip("rosbags")
    from support.bags import Messages, write_bag

    ros = Messages()
    rows = [
        (topic, 5 + 0.01 * i, ros.joints(5 + 0.01 * i, ["hip"], [value * i]))
        for i in range(9)
        for topic, value in (("/a/joint_states", 1.0), ("/b/joint_states", 2.0), ("/goal", 3.0))
    ]
    path = write_bag(tmp_path / "bag", ros.store, rows)
    words = ["import", str(path), "--output", str(tmp_path / "set")]
    assert main(words) == 2
    assert "several topics that may be the measured joint positions" in capsys.readouterr().err
    assert main([*words, "--topics", "state"]) == 2
    assert "--topics state: write ROLE=TOPIC" in capsys.readouterr().err
    assert main([*words, "--topics", "state=/b/joint_states,command=/goal", "--json"]) == 0
    printed = capsys.readouterr()
    assert "commands (position) on /goal" in printed.err
    assert "topics not read: /a/joint_states" in printed.err
    (episode,) = load_log(tmp_path / "set")
    assert episode.state[:, 0].tolist() == [2.0 * i for i in range(9)]


def test_several_logs_are_one_whose_episodes_are_counted_through(tmp_path):
    names = []
    for number, angles in enumerate(([0.0, 1.0, 2.0], [3.0, 4.0, 5.0])):
        names.append(tmp_path / f"log{number}.csv")
        rows = [f"{episode},{i / 10},{a},{a}" for episode in (0, 1) for i, a in enumerate(angles)]
        names[-1].write_text("\n".join(["# units: deg", "episode,time_s,action/elbow,state/elbow", *rows]))
    log = open_logs([str(name) for name in names])
    assert [episode.index for episode in log.episodes] == [0, 1, 2, 3]
    assert [float(episode.state[0, 0]) for episode in log.episodes] == [0.0, 0.0, 3.0, 3.0]
    assert log.notes[:2] == ("Episodes 0 to 1 are from log0.", "Episodes 2 to 3 are from log1.")
    assert open_logs([str(names[0])]).hash == open_log(str(names[0])).hash
    assert log.hash != open_logs([str(names[1]), str(names[0])]).hash
