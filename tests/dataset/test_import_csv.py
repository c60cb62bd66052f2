"""CSV logs with more than positions: torques, velocities, poses, inertial readings; foreign names once described."""

from __future__ import annotations

import math

import numpy as np
import pytest

from support.import_csv import FOREIGN
from twinloop.core.errors import InputError, LogError, UnitsError, UnknownNameError
from twinloop.core.records import Episode
from twinloop.dataset.logs.formats import load_log, read_raw

TORQUE = """\
# units: deg
# command: torque
# conditions: mass_g=500, firmware_kp=200
time_s,action/hip,state/hip,velocity/hip,torque/hip,acceleration/imu/x,acceleration/imu/y,acceleration/imu/z,enabled
0.0,1.5,90,0.1,1.4,0,0,9.8,1
0.1,1.6,91,0.2,1.5,,,,1
0.2,1.7,92,0.3,1.6,0,1,9.7,0
"""


DESCRIPTION = """\
time: {column: t, unit: ms}
episode: run
joints:
  hip: {state: q1, action: q1_des, unit: deg, velocity: dq1, velocity_unit: rpm, torque: tau1, torque_unit: mNm}
signals:
  angular_velocity/torso: {columns: [gx, gy, gz], unit: deg/s}
  pose/cube: {columns: [px, py, pz, w, x, y, z], unit: [mm, mm, mm, "1", "1", "1", "1"]}
  battery: {columns: [vbat], unit: V}
conditions: {mass_kg: 0.5, length_cm: 10}
task: walk
robot: leg
delimiter: ";"
"""


def write(folder, text, description=None, name="log"):
    path = folder / f"{name}.csv"
    path.write_text(text)
    if description is not None:
        (folder / f"{name}.yaml").write_text(description)
    return path


def test_torques_signals_and_conditions_by_their_own_names(tmp_path):
    (episode,) = load_log(write(tmp_path, TORQUE))
    assert episode.command == "torque"
    assert episode.action[:, 0].tolist() == [1.5, 1.6, 1.7]
    np.testing.assert_allclose(episode.units.to_si(episode.state)[0], [math.pi / 2])
    assert episode.conditions == {"mass": 0.5, "firmware_kp": 200}
    assert episode.signals["joint_velocity"].values[:, 0].tolist() == [0.1, 0.2, 0.3]
    assert episode.signals["joint_torque"].unit == "N·m"
    felt = episode.signals["acceleration/imu"]
    assert felt.time.tolist() == [0.0, 0.2]  # an empty cell is no reading
    assert felt.columns == ("x", "y", "z")
    assert episode.signals["enabled"].values[:, 0].tolist() == [1, 1, 0]


def test_a_log_without_commands_says_so(tmp_path):
    text = "# command: none\n# units: m\ntime_s,state/x,state/z,velocity/x,velocity/z\n0,1,2,3,4\n0.1,1,2,3,4\n"
    (episode,) = load_log(write(tmp_path, text), joints=["z"])
    assert (episode.command, episode.joints) == ("none", ("z",))
    assert not episode.action.any()
    assert episode.signals["joint_velocity"].columns == ("z",)
    assert episode.signals["joint_velocity"].values[0].tolist() == [4]


def test_a_body_without_joints(tmp_path):
    labels = ("x", "y", "z", "qw", "qx", "qy", "qz")
    text = "time_s," + ",".join(f"pose/cube/{label}" for label in reversed(labels)) + "\n0,0,0,0,1,3,2,1\n"
    (episode,) = load_log(write(tmp_path, text))
    assert (episode.joints, episode.command) == ((), "none")
    assert episode.signals["pose/cube"].values.tolist() == [[1, 2, 3, 1, 0, 0, 0]]
    assert episode.signals["pose/cube"].columns == labels


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (("command: torque", "command: effort"), UnknownNameError, r"Unknown command 'effort' in the command line of"),
        (("acceleration/imu/y,", "ay,"), LogError, r"acceleration/imu has no column acceleration/imu/y"),
        (("mass_g=500", "mass_g=heavy"), LogError, r"the conditions line has 'mass_g=heavy'. Write NAME=NUMBER"),
        (("action/hip", "action/hip_deg"), UnitsError, r"action/hip_deg and state/hip differ in unit"),
        (("90,0.1", "90,fast"), LogError, r"column velocity/hip holds string values where numbers should be"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, change, error, message):
    assert change[0] in TORQUE
    with pytest.raises(error, match=message):
        load_log(write(tmp_path, TORQUE.replace(*change)))


def described(path, **said) -> list[Episode]:
    return load_log(path, **said)


def test_a_foreign_table_is_read_by_the_file_beside_it(tmp_path):
    episodes = described(write(tmp_path, FOREIGN, DESCRIPTION))
    assert [episode.index for episode in episodes] == [7, 9]
    first = episodes[0]
    np.testing.assert_allclose(first.time, [0, 0.02])
    np.testing.assert_allclose(first.units.to_si(first.state)[:, 0], np.radians([10, 20]))
    assert first.action[:, 0].tolist() == [11, 21]
    signals = first.signals
    np.testing.assert_allclose(signals["joint_velocity"].values[:, 0], [2 * math.pi, 4 * math.pi])
    np.testing.assert_allclose(signals["joint_torque"].values[:, 0], [0.1, 0.2])
    np.testing.assert_allclose(signals["angular_velocity/torso"].values, [[math.pi, 0, 0], [0, math.pi, 0]])
    assert signals["angular_velocity/torso"].columns == ("x", "y", "z")
    np.testing.assert_allclose(signals["pose/cube"].values[0], [1, 0, 0, 1, 0, 0, 0])
    assert signals["pose/cube"].unit == ""
    assert (signals["battery"].columns, signals["battery"].unit) == (("vbat",), "V")
    assert first.conditions == {"mass": 0.5, "length": pytest.approx(0.1)}
    assert (first.task, first.robot_type, first.units.source) == ("walk", "leg", "log.yaml")


def test_a_description_can_lie_anywhere_and_the_caller_counts_more(tmp_path):
    path = write(tmp_path, FOREIGN)
    with pytest.raises(LogError, match="needs a column action/JOINT|not a rectangular table|has no column"):
        load_log(path)
    elsewhere = tmp_path / "columns" / "leg.yaml"
    elsewhere.parent.mkdir()
    elsewhere.write_text(DESCRIPTION)
    (episode, _) = load_log(path, description=elsewhere, task="run", origin="lab")
    assert (episode.task, episode.origin) == ("run", "lab")
    with pytest.raises(InputError, match=r"none.yaml does not exist. Give the YAML file that describes the columns of"):
        load_log(path, description=tmp_path / "none.yaml")


def test_commanded_torques_are_described_with_their_unit(tmp_path):
    text = DESCRIPTION.replace("joints:", "command: torque\njoints:").replace("q1_des,", "tau1, action_unit: mNm,")
    (episode, _) = load_log(write(tmp_path, FOREIGN, text))
    assert episode.command == "torque"
    np.testing.assert_allclose(episode.action[:, 0], [0.1, 0.2])
    bare = DESCRIPTION.replace("joints:", "command: torque\njoints:")
    with pytest.raises(
        UnitsError, match=r"joints.hip commands a torque. In which unit\? Declare it as action_unit: Nm"
    ):
        load_log(write(tmp_path, FOREIGN, bare))


def test_commanded_velocities_are_in_the_joints_unit_per_second(tmp_path):
    text = "# command: velocity\ntime_s,action/hip,state/hip_deg\n0,10,90\n0.1,20,91\n"
    (episode,) = load_log(write(tmp_path, text))
    assert episode.command == "velocity"
    np.testing.assert_allclose(episode.units.of_commands("velocity").to_si(episode.action)[:, 0], np.deg2rad([10, 20]))
    with pytest.raises(UnitsError, match="action/hip_deg and state/hip_deg differ in unit"):
        load_log(write(tmp_path, text.replace("action/hip", "action/hip_deg")))
    bare = DESCRIPTION.replace("joints:", "command: velocity\njoints:")
    described = bare.replace("unit: deg, velocity", "unit: deg, action_unit: rpm, velocity")
    episode, _ = load_log(write(tmp_path, FOREIGN, described))
    plain, _ = load_log(write(tmp_path, FOREIGN, DESCRIPTION, "plain"))
    np.testing.assert_allclose(episode.action, plain.action * 6)  # 1 rpm is 6 degrees per second
    for change, message in (
        (bare, r"joints.hip commands a velocity. In which unit\? Declare it as action_unit: rad/s"),
        (
            described.replace("rpm, velocity", "Nm, velocity"),
            r"commands a velocity in Nm. Give rad/s, deg/s, rpm or m/s",
        ),
        (described.replace("unit: deg, action", "unit: range_m100_100, action"), r"size of range_m100_100 is unknown"),
    ):
        with pytest.raises(UnitsError, match=message):
            load_log(write(tmp_path, FOREIGN, change))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (("time: {column: t, unit: ms}", "time: t"), InputError, r"time is 't'; give column and unit, as in time: "),
        ((", unit: ms", ""), UnitsError, r"in which unit is the time\?"),
        (("unit: ms", "unit: rad"), UnitsError, r"time is in rad, which is not a unit of time"),
        (("unit: deg,", ""), UnitsError, r"joints.hip has no unit. Give it with --units, .*: rad, deg, m"),
        (("unit: deg,", "unit: degree,"), UnknownNameError, r"Unknown joint unit 'degree'.*Nearest existing: deg"),
        ((", velocity_unit: rpm", ""), UnitsError, r"joints.hip has no unit. Declare it as velocity_unit: rad/s"),
        (("velocity_unit: rpm", "velocity_unit: Nm"), LogError, r"joint_velocity is in N·m, which cannot become rad/s"),
        (
            ("unit: deg/s", "unit: turns"),
            UnknownNameError,
            r"Unknown unit 'turns' in signals.angular_velocity/torso of",
        ),
        (("unit: deg/s", "unit: g"), LogError, r"angular_velocity/torso is in m/s², which cannot become rad/s"),
        (("[gx, gy, gz]", "[gx, gy]"), LogError, r"has the columns gx, gy; angular_velocity/NAME has x, y, z"),
        (("[gx, gy, gz]", "gx"), InputError, r"signals.angular_velocity/torso.columns is 'gx'; give a list of words"),
        (("unit: deg/s}", "unit: deg/s, labels: [a]}"), InputError, r"has 3 columns and 1 labels. Give one each"),
        (("unit: deg/s}", "unit: [[deg/s]]}"), InputError, r"unit is \['deg/s'\], and a word is expected"),
        (("state: q1", "state: {a: q1}"), InputError, r"joints.hip.state is {'a': 'q1'}, and a word is expected"),
        (("[gx, gy, gz]", "[gx, gy, g_z]"), LogError, r"log.csv has no column g_z. It has: run, t, q1"),
        (("episode: run", "episode: note"), LogError, r"column note holds string values where numbers should be"),
        (
            ("unit: [mm, mm, mm, ", "unit: [mm, "),
            UnitsError,
            r"pose/cube has 7 columns and 5 units. Give one, or one eac",
        ),
        (
            ("joints:", "joint:"),
            UnknownNameError,
            r"Unknown key 'joint' in the file of .*log.yaml. Nearest existing: jo",
        ),
        (("state: q1,", ""), InputError, r"joints.hip has no state. Name its column"),
        (("mass_kg: 0.5", "mass_kg: half"), InputError, r"conditions.mass_kg is 'half'; conditions are numbers"),
        (('delimiter: ";"', "delimiter: tab"), InputError, r"delimiter is 'tab'; give one character"),
        (("task: walk", "task: [walk"), InputError, r"log.yaml, line \d+ is not valid YAML"),
        (("robot: leg", "command: speed"), UnknownNameError, r"Unknown command .*speed.* in .*log.yaml"),
    ],
)
def test_a_description_that_does_not_fit_says_where(tmp_path, change, error, message):
    assert change[0] in DESCRIPTION
    with pytest.raises(error, match=message):
        described(write(tmp_path, FOREIGN, DESCRIPTION.replace(*change)))


def test_joints_that_a_description_lacks(tmp_path):
    with pytest.raises(UnknownNameError, match=r"Unknown joint 'hips' in .*log.yaml. Nearest existing: hip"):
        load_log(write(tmp_path, FOREIGN, DESCRIPTION), joints=["hips"])


def test_defects_reach_the_raw_episode(tmp_path):
    path = write(tmp_path, TORQUE.replace("0.1,1.6,91", "0.0,1.6,"))
    (raw,) = read_raw(path)
    assert raw.time.tolist() == [0, 0, 0.2]
    assert np.isnan(raw.state[1, 0])
    with pytest.raises(LogError, match="state of hip is nan at frame 1"):
        load_log(path)


def test_a_description_that_names_itself_without_end_is_cut_short(tmp_path):
    lines = ["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))]
    bomb = "\n".join(lines) + "\n"
    with pytest.raises(InputError, match=r"log.yaml, line \d+: there are more than 100,000 values"):
        load_log(write(tmp_path, FOREIGN, bomb))
    inside = "time:\n" + "".join(f"  {line}\n" for line in lines)
    with pytest.raises(InputError, match=r"log.yaml, line \d+: there are more than 100,000 values"):
        load_log(write(tmp_path, FOREIGN, inside))
