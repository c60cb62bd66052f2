"""ROS recordings: a written bag reads back as an episode; an ambiguous bag requires an option."""

from __future__ import annotations

import builtins

import numpy as np
import pytest

from support.bags import NS, Messages, write_bag
from twinloop.core.errors import LogError, MissingDependencyError, UnknownNameError
from twinloop.dataset.logs.formats import list_importers, load_log, read_raw

pytest.importorskip("rosbags")

JOINTS = ("shoulder", "elbow")
START = 1000.0


@pytest.fixture(scope="module")
def ros():
    return Messages()


def states(ros, count=20, *, delay=0.002, topic="/joint_states", period=0.01, names=JOINTS):
    """Measured joints i and 2i at 100 Hz, heard ``delay`` later."""
    rows = []
    for i in range(count):
        t = START + period * i
        row = np.arange(1, len(names) + 1) * float(i)
        rows.append((topic, t + delay, ros.joints(t, names, row, row * 10, row * 100)))
    return rows


def commanded(ros, make, count=20, *, topic="/arm/commands", late=0.004):
    return [(topic, START + 0.01 * i + late, make(START + 0.01 * i + late, i)) for i in range(count)]


@pytest.mark.parametrize(
    ("storage", "compress"), [("sqlite3", None), ("sqlite3", "MESSAGE"), ("sqlite3", "FILE"), ("mcap", None)]
)
def test_a_bag_comes_back_as_it_was_written(ros, tmp_path, storage, compress):
    rows = states(ros) + commanded(ros, lambda t, i: ros.joints(t, JOINTS[::-1], [i + 0.5, i + 0.25]))
    path = write_bag(tmp_path / "bag", ros.store, rows, storage=storage, compress=compress)
    (raw,) = read_raw(path, task="wave", robot_type="arm")
    np.testing.assert_allclose(raw.time, 0.01 * np.arange(20), atol=1e-6)
    np.testing.assert_allclose(raw.action_time, 0.01 * np.arange(20) + 0.004, atol=1e-6)
    np.testing.assert_array_equal(raw.state, np.outer(np.arange(20.0), [1, 2]))
    np.testing.assert_array_equal(raw.action, np.arange(20.0)[:, None] + [0.25, 0.5])  # by name, not by column
    assert raw.notes == (
        "joints measured on /joint_states",
        "commands (position) on /arm/commands",
        "times from headers",
    )
    (episode,) = load_log(path, task="wave", robot_type="arm")
    assert (episode.joints, episode.command, episode.task, episode.robot_type) == (JOINTS, "position", "wave", "arm")
    assert {unit.unit for unit in episode.units.joints} == {"rad"}
    np.testing.assert_array_equal(episode.action[:, 0], np.arange(19) + 0.25)  # the command before each measurement
    np.testing.assert_array_equal(episode.signals["joint_velocity"].values, raw.state * 10)
    np.testing.assert_array_equal(episode.signals["joint_torque"].values, raw.state * 100)
    (file,) = [inner for inner in path.iterdir() if inner.suffix in (".db3", ".mcap", ".zstd")]
    if compress is None:
        np.testing.assert_array_equal(load_log(file)[0].action, episode.action)


def test_bags_in_a_folder_are_episodes_by_name(ros, tmp_path):
    for name, count in (("run_b", 5), ("run_a", 7)):
        write_bag(tmp_path / name, ros.store, states(ros, count))
    (tmp_path / "notes.txt").write_text("what was done")
    episodes = load_log(tmp_path)
    assert [(e.index, len(e), e.command) for e in episodes] == [(0, 7, "none"), (1, 5, "none")]
    assert episodes[0].origin == str(tmp_path / "run_a")


def test_what_imus_and_wrenches_felt(ros, tmp_path):
    rows = states(ros)
    rows += commanded(ros, lambda t, i: ros.imu(t, [i, 0, 1], [0, 0, 9.81], "base/imu"), topic="/imu/data")
    rows += commanded(ros, lambda t, i: ros.imu(t, [0, 0, 0], [1, 2, i], "", rate_known=False), topic="/wrist/imu")
    rows += commanded(ros, lambda t, i: ros.wrench(t, [1, 2, 3], [4, 5, i]), topic="/ft/wrench")
    path = write_bag(tmp_path / "bag", ros.store, rows, storage="mcap")
    (episode,) = load_log(path)
    assert episode.command == "none"
    assert set(episode.signals) == {
        "joint_velocity",
        "joint_torque",
        "angular_velocity/base_imu",
        "acceleration/base_imu",
        "acceleration/imu",
        "wrench/ft_frame",
    }
    rate = episode.signals["angular_velocity/base_imu"]
    np.testing.assert_array_equal(rate.values[:, 0], np.arange(20))
    np.testing.assert_allclose(rate.time, 0.01 * np.arange(20) + 0.004, atol=1e-6)
    assert episode.signals["wrench/ft_frame"].values[3].tolist() == [1, 2, 3, 4, 5, 3]
    (chosen,) = load_log(path, topics={"imu:palm": "/wrist/imu", "wrench": "none"})
    assert set(chosen.signals) == {"joint_velocity", "joint_torque", "acceleration/palm"}


def test_a_body_without_joints(ros, tmp_path):
    rows = commanded(ros, lambda t, i: ros.imu(t, [i, 0, 1], [0, 0, 9.81]), topic="/imu")
    (episode,) = load_log(write_bag(tmp_path / "bag", ros.store, rows))
    assert (episode.joints, episode.action.shape, episode.command) == ((), (20, 0), "none")
    np.testing.assert_array_equal(episode.time, episode.signals["acceleration/imu_link"].time)


def test_numbers_without_names_are_commands_once_they_have_names(ros, tmp_path):
    rows = states(ros) + commanded(ros, lambda t, i: ros.array([i, -i]), topic="/effort_controller/commands")
    path = write_bag(tmp_path / "bag", ros.store, rows)
    with pytest.raises(
        LogError, match=r"/effort_controller/commands holds numbers without names. Which joints .* in i"
    ):
        load_log(path)
    (episode,) = load_log(path, joints=["elbow", "shoulder"])
    assert (episode.command, episode.joints) == ("torque", ("elbow", "shoulder"))
    np.testing.assert_array_equal(episode.action[:, 1], -np.arange(19.0))
    np.testing.assert_array_equal(episode.state[:, 0], 2 * np.arange(1.0, 20))
    assert load_log(path, joints=["elbow", "shoulder"], topics={"position": rows[-1][0]})[0].command == "position"
    with pytest.raises(LogError, match=r"holds 2 numbers a message, for 1 joints: elbow. Which joints does it command"):
        load_log(path, joints=["elbow"])
    (alone,) = load_log(path, joints=["elbow"], topics={"command": "none"})
    assert alone.command == "none"
    assert not alone.action.any()
    other = states(ros) + commanded(ros, lambda t, i: ros.array([i, -i]), topic="/arm/commands")
    with pytest.raises(
        LogError, match=r"does not declare the kind of its numbers. Answer with --topics position=/arm/comm"
    ):
        load_log(write_bag(tmp_path / "other", ros.store, other), joints=JOINTS)


def test_efforts_are_torques_and_speeds_are_velocities(ros, tmp_path):
    rows = states(ros) + commanded(ros, lambda t, i: ros.joints(t, JOINTS, effort=[i, 1.0]))
    (episode,) = load_log(write_bag(tmp_path / "torque", ros.store, rows))
    assert episode.command == "torque"
    rows = states(ros) + commanded(ros, lambda t, i: ros.joints(t, JOINTS, velocity=[i, 1.0]))
    (episode,) = load_log(write_bag(tmp_path / "speed", ros.store, rows))
    assert episode.command == "velocity"
    np.testing.assert_array_equal(episode.action[:, 0], np.arange(19.0))
    with pytest.raises(LogError, match=r"holds no torque for shoulder, elbow. Give another topic"):
        load_log(tmp_path / "speed", topics={"torque": "/arm/commands"})
    rows = states(ros) + commanded(ros, lambda t, i: ros.joints(t, JOINTS, [i, 1.0], velocity=[2.0 * i, 1.0]))
    path = write_bag(tmp_path / "both", ros.store, rows)
    assert load_log(path)[0].command == "position"
    (episode,) = load_log(path, topics={"velocity": "/arm/commands"})
    assert episode.command == "velocity"
    np.testing.assert_array_equal(episode.action[:, 0], 2 * np.arange(19.0))
    rows = states(ros) + commanded(ros, lambda t, i: ros.array([i, -i]), topic="/velocity_controller/commands")
    assert load_log(write_bag(tmp_path / "array", ros.store, rows), joints=JOINTS)[0].command == "velocity"


def test_joints_without_a_command_are_left_out_and_said(ros, tmp_path):
    rows = states(ros) + commanded(ros, lambda t, i: ros.joints(t, ["elbow"], [i]))
    path = write_bag(tmp_path / "bag", ros.store, rows)
    (raw,) = read_raw(path)
    assert raw.joints == ("elbow",)
    assert "without a command, left out: shoulder" in raw.notes
    np.testing.assert_array_equal(raw.state[:, 0], 2 * np.arange(20.0))
    with pytest.raises(
        LogError, match=r"/arm/commands commands elbow; the measured joints are shoulder, elbow. Choose"
    ):
        read_raw(path, joints=JOINTS)


def test_a_trajectory_is_followed_point_by_point(ros, tmp_path):
    first = ros.trajectory(JOINTS, [ros.point([1.0, 0.0], after=0.05), ros.point([1.0, 2.0], after=0.1)])
    second = ros.trajectory(JOINTS[::-1], [ros.point([5.0, 5.0], after=0.02)])
    topic = "/arm_controller/joint_trajectory"
    still = [
        ("/joint_states", START + 0.01 * i + 0.001, ros.joints(START + 0.01 * i, JOINTS, [0.5, 0.25]))
        for i in range(21)
    ]
    rows = [*still, (topic, START + 0.02, first), (topic, START + 0.15, second)]
    (episode,) = load_log(write_bag(tmp_path / "bag", ros.store, rows))
    moments = episode.time
    assert moments[0] == pytest.approx(0.02)
    shoulder = np.interp(moments, [0.02, 0.07, 0.15, 0.17], [0.5, 1.0, 1.0, 5.0])
    elbow = np.interp(moments, [0.02, 0.07, 0.12, 0.15, 0.17], [0.25, 0.0, 2.0, 2.0, 5.0])
    np.testing.assert_allclose(episode.action, np.stack([shoulder, elbow], axis=1), atol=1e-5)


def test_a_trajectory_with_speeds_is_a_cubic(ros, tmp_path):
    points = [ros.point([t**3], [3 * t**2], after=t) for t in (0.1, 0.3, 0.6)]
    rows = [("/joint_states", START + 0.01 * i, ros.joints(START + 0.01 * i, ["shoulder"], [0.0])) for i in range(70)]
    rows.append(("/c/joint_trajectory", START, ros.trajectory(["shoulder"], points)))
    (episode,) = load_log(write_bag(tmp_path / "bag", ros.store, rows))
    inside = (episode.time >= 0.1) & (episode.time <= 0.6)
    np.testing.assert_allclose(episode.action[inside, 0], episode.time[inside] ** 3, atol=1e-6)


def test_a_controllers_report_stands_for_its_trajectory(ros, tmp_path):
    def report(t, i):
        return ros.controller(t, JOINTS, ros.point([i, i + 1.0]), ros.point([0.5 * i, 0.0], [1.0, 2.0]))

    rows = commanded(ros, report, topic="/arm/controller_state")
    rows.append(("/arm/joint_trajectory", START, ros.trajectory(JOINTS, [ros.point([9.0, 9.0])])))
    (alone,) = load_log(write_bag(tmp_path / "alone", ros.store, rows))
    np.testing.assert_array_equal(alone.action, np.arange(20.0)[:, None] + [0, 1])
    np.testing.assert_array_equal(alone.state[:, 0], 0.5 * np.arange(20))
    assert alone.signals["joint_velocity"].values[0].tolist() == [1, 2]
    both = write_bag(tmp_path / "both", ros.store, rows + states(ros))
    (raw,) = read_raw(both)
    assert raw.notes[:2] == ("joints measured on /joint_states", "commands (position) on /arm/controller_state")


def test_what_could_mean_two_things_is_asked(ros, tmp_path):
    rows = states(ros) + states(ros, topic="/sim/joint_states")
    rows += commanded(ros, lambda t, i: ros.joints(t, JOINTS, [i, i]))
    rows += commanded(ros, lambda t, i: ros.joints(t, JOINTS, [-i, i]), topic="/leader/joint_states")
    path = write_bag(tmp_path / "bag", ros.store, rows)
    with pytest.raises(
        LogError,
        match=r"several topics that may be the measured joint positions: /joint_states \(sensor_msgs/JointState, 20 mes"
        r"sages\), /sim/joint_states .*Which is it\? Answer with topics=.*such as state=/joint_states",
    ):
        load_log(path)
    with pytest.raises(LogError, match=r"several topics that may be the commands: /arm/commands .*, /leader/joint_sta"):
        load_log(path, topics={"state": "/joint_states"})
    (episode,) = load_log(path, topics={"state": "/sim/joint_states", "command": "/leader/joint_states"})
    assert episode.action[3, 0] == -3
    with pytest.raises(
        UnknownNameError, match=r"Unknown topic '/arm/command' in .*bag. Nearest existing: /arm/commands"
    ):
        load_log(path, topics={"command": "/arm/command"})
    with pytest.raises(UnknownNameError, match=r"Unknown role of a topic 'comand'. Nearest existing: command"):
        load_log(path, topics={"comand": "/arm/commands"})


def test_a_topic_of_another_type_cannot_have_a_role(ros, tmp_path):
    rows = [*states(ros), ("/chatter", START, ros.text("hello"))]
    path = write_bag(tmp_path / "bag", ros.store, rows)
    assert "topics not read: /chatter" in read_raw(path)[0].notes
    with pytest.raises(
        LogError, match=r"/chatter \(std_msgs/String, 1 messages\) cannot be the state, which is read fr"
    ):
        load_log(path, topics={"state": "/chatter"})
    silent = write_bag(tmp_path / "silent", ros.store, [("/chatter", START, ros.text("hello"))])
    with pytest.raises(LogError, match=r"has no topic of a type that is read .* It has: /chatter"):
        load_log(silent)
    headless = write_bag(tmp_path / "headless", ros.store, commanded(ros, lambda t, i: ros.joints(t, JOINTS, [i, i])))
    with pytest.raises(LogError, match=r"has commands on /arm/commands and no measured joint positions"):
        load_log(headless)


def test_joints_that_come_in_messages_of_their_own(ros, tmp_path):
    rows = states(ros) + states(ros, 10, names=("gripper",), delay=0.003)
    path = write_bag(tmp_path / "bag", ros.store, rows)
    with pytest.raises(LogError, match=r"Messages of /joint_states name different joints: elbow, shoulder; gripper"):
        load_log(path)
    assert len(load_log(path, joints=["gripper"])[0]) == 10
    assert len(load_log(path, joints=["elbow"])[0]) == 20
    with pytest.raises(LogError, match="No message of /joint_states holds the joints elbow, gripper. They hold: elbow"):
        load_log(path, joints=["elbow", "gripper"])


def test_headers_on_another_clock_are_not_mixed_with_the_recorders(ros, tmp_path):
    rows = [("/joint_states", START + 0.01 * i, ros.joints(0.01 * i, JOINTS, [i, i])) for i in range(10)]
    rows += commanded(ros, lambda t, i: ros.array([i, i]), 10, topic="/position/commands")
    (raw,) = read_raw(write_bag(tmp_path / "bag", ros.store, rows), joints=JOINTS)
    assert "times as recorded, because headers are empty or on another clock" in raw.notes
    np.testing.assert_allclose(raw.action_time[:3], [0.004, 0.014, 0.024], atol=1e-6)


def test_defects_reach_the_raw_episode(ros, tmp_path):
    rows = states(ros)
    rows[4] = (rows[4][0], rows[4][1], rows[3][2])  # a message twice, so one time twice
    path = write_bag(tmp_path / "bag", ros.store, rows)
    assert np.diff(read_raw(path)[0].time).min() == 0
    with pytest.raises(LogError, match=r"time does not increase at frame 4"):
        load_log(path)


def test_efforts_that_a_driver_does_not_know_are_no_signal(ros, tmp_path):
    rows = [
        ("/joint_states", START + 0.01 * i, ros.joints(START + 0.01 * i, JOINTS, [i, i], [0, 1], [np.nan, np.nan]))
        for i in range(5)
    ]
    (episode,) = load_log(write_bag(tmp_path / "bag", ros.store, rows), units=["rad", "m"])
    assert set(episode.signals) == {"joint_velocity"}
    assert [unit.unit for unit in episode.units.joints] == ["rad", "m"]


@pytest.mark.parametrize(
    ("storage", "spoil", "message"),
    [
        (
            "mcap",
            lambda data: data[:-30],
            "cannot be opened .*If the recorder was killed, `mcap recover` repairs the file",
        ),
        ("mcap", lambda data: b"", "cannot be opened"),
        ("sqlite3", lambda data: b"not a database" * 100, "cannot be opened"),
    ],
)
def test_a_damaged_recording_says_what_mends_it(ros, tmp_path, storage, spoil, message):
    path = write_bag(tmp_path / "bag", ros.store, states(ros), storage=storage)
    (file,) = [inner for inner in path.iterdir() if inner.suffix in (".db3", ".mcap")]
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(LogError, match=message):
        load_log(file)


def test_a_folders_metadata_cannot_lead_outside(ros, tmp_path):
    path = write_bag(tmp_path / "bag", ros.store, states(ros))
    secret = tmp_path / "secret.db3"
    (path / "bag.db3").rename(secret)
    metadata = path / "metadata.yaml"
    metadata.write_text(metadata.read_text().replace("bag.db3", "../secret.db3"))
    with pytest.raises(LogError, match="cannot be opened"):
        load_log(path)


def test_bags_of_ros_1_are_read_too(tmp_path):
    from rosbags.rosbag1 import Writer
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS1_NOETIC)
    kind = "sensor_msgs/msg/JointState"
    with Writer(tmp_path / "run.bag") as writer:
        connection = writer.add_connection("/joint_states", kind, typestore=store)
        for i in range(5):
            stamp = store.types["builtin_interfaces/msg/Time"](int(START), i * NS // 100)
            header = store.types["std_msgs/msg/Header"](i, stamp, "")
            message = store.types[kind](header, list(JOINTS), np.array([1.0 * i, 0.0]), np.empty(0), np.empty(0))
            writer.write(connection, int(START) * NS + i * NS // 100, store.serialize_ros1(message, kind))
    (episode,) = load_log(tmp_path / "run.bag")
    np.testing.assert_array_equal(episode.state[:, 0], np.arange(5))


def test_recordings_of_another_writer_are_read(tmp_path):
    """What Foxglove's own library writes as MCAP."""
    pytest.importorskip("mcap_ros2")
    from mcap_ros2.writer import Writer
    from rosbags.typesys import Stores, get_typestore

    definition, _ = get_typestore(Stores.ROS2_HUMBLE).generate_msgdef("sensor_msgs/msg/JointState", ros_version=2)
    path = tmp_path / "theirs.mcap"
    with path.open("wb") as file:
        writer = Writer(file)
        schema = writer.register_msgdef("sensor_msgs/msg/JointState", definition)
        for i in range(5):
            t = int(START) * NS + i * NS // 100
            header = {"stamp": {"sec": t // NS, "nanosec": t % NS}, "frame_id": ""}
            message = {
                "header": header,
                "name": list(JOINTS),
                "position": [float(i), 0.0],
                "velocity": [],
                "effort": [],
            }
            writer.write_message("/joint_states", schema, message, log_time=t, publish_time=t)
        writer.finish()
    (episode,) = load_log(path)
    np.testing.assert_array_equal(episode.state[:, 0], np.arange(5))
    np.testing.assert_allclose(episode.time, 0.01 * np.arange(5), atol=1e-6)


def test_what_we_are_given_is_what_mcaps_own_library_reads(ros, tmp_path):
    pytest.importorskip("mcap_ros2")
    from mcap.reader import make_reader
    from mcap_ros2.decoder import DecoderFactory

    path = write_bag(tmp_path / "bag", ros.store, states(ros), storage="mcap") / "bag.mcap"
    with path.open("rb") as file:
        decoded = [
            m.decoded_message for m in make_reader(file, decoder_factories=[DecoderFactory()]).iter_decoded_messages()
        ]
    (episode,) = load_log(path)
    np.testing.assert_array_equal(episode.state, [list(message.position) for message in decoded])


def test_without_the_package_the_command_is_named(tmp_path, monkeypatch):
    (tmp_path / "run.mcap").write_bytes(b"\x89MCAP0\r\n")
    assert [i.name for i in list_importers() if i.recognizes(tmp_path / "run.mcap")] == ["ros"]
    real_import = builtins.__import__

    def no_rosbags(name, *args, **kwargs):
        if name.startswith("rosbags"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_rosbags)
    with pytest.raises(
        MissingDependencyError, match=r"run.mcap is a ROS or MCAP recording.*pip install 'twinloop\[ros\]'"
    ):
        load_log(tmp_path / "run.mcap")
