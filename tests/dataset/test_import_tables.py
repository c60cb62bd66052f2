"""Folders and globs of tables are one log; the meaning of unknown columns is suggested, and used once confirmed."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from twinloop.cli.main import main
from twinloop.core.errors import InputError, LogError, UnitsError
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.logs.formats import load_log
from twinloop.dataset.logs.importers.csv import list_tables
from twinloop.dataset.logs.importers.guess import guess_description

JOINTS = ("1", "2", "3")


def table(episode=0, count=30, *, time="t", state="q_{}", action="q_des_{}", velocity="qd_{}", scale=1.0):
    t = np.arange(count) / 50
    columns = {time: scale * t}
    for number, joint in enumerate(JOINTS):
        q = np.sin(t * (1 + number) + episode)
        columns |= {action.format(joint): q + 0.1, state.format(joint): q, velocity.format(joint): np.gradient(q, t)}
    return pa.table(columns)


def write_tables(folder, count=11, write=pyarrow.csv.write_csv, suffix="csv"):
    folder.mkdir()
    for number in range(count):
        write(table(number), folder / f"run_{number}.{suffix}")
    (folder / "notes.txt").write_text("no table")
    return folder


@pytest.mark.parametrize(("write", "suffix"), [(pyarrow.csv.write_csv, "csv"), (pq.write_table, "parquet")])
def test_a_folder_and_a_glob_are_one_log_of_many_episodes(tmp_path, write, suffix):
    folder = write_tables(tmp_path / "logs", write=write, suffix=suffix)
    whole = load_log(folder, guess=True, units="rad")
    assert [episode.index for episode in whole] == list(range(11))
    assert [episode.state[0, 0] for episode in whole] == pytest.approx(np.sin(np.arange(11)))  # 9 before 10
    assert whole[0].units.names == ("joint_1", "joint_2", "joint_3")
    some = load_log(folder / f"run_1*.{suffix}", guess=True, units="rad", joints=["pan", "lift", "elbow"])
    assert len(some) == 2
    assert some[1].units.names == ("pan", "lift", "elbow")
    assert some[1].state == pytest.approx(whole[10].state)
    assert some[1].signals["joint_velocity"].values == pytest.approx(whole[10].signals["joint_velocity"].values)
    with pytest.raises(InputError, match="does not exist"):
        load_log(folder / "walk_*.csv")


def test_a_suggestion_must_be_confirmed_or_saved(tmp_path, capsys):
    folder = write_tables(tmp_path / "logs", count=2)
    with pytest.raises(
        LogError, match=r"--guess --units rad \(or deg, m, …\), or save it as .*columns\.yaml"
    ) as refused:
        load_log(folder)
    suggested = yaml.safe_load(str(refused.value).split("suggest:")[1].split("Confirm")[0])
    assert suggested["joints"]["joint_2"] == {
        "state": "q_2", "action": "q_des_2", "velocity": "qd_2", "velocity_unit": "rad/s"
    }  # fmt: skip
    with pytest.raises(UnitsError, match="joint_1 has no unit"):
        load_log(folder, guess=True)
    for row in suggested["joints"].values():
        row["unit"] = "deg"
    (folder / "columns.yaml").write_text(yaml.safe_dump(suggested))
    assert load_log(folder)[1].units.joints[0].unit == "deg"
    assert main(["import", str(folder), "--output", str(tmp_path / "made")]) == 0
    assert len(DatasetReader(tmp_path / "made")) == 2


def test_tables_with_other_joints_are_named(tmp_path):
    folder = write_tables(tmp_path / "logs", count=2)
    pyarrow.csv.write_csv(table().drop_columns(["q_3", "q_des_3", "qd_3"]), folder / "run_2.csv")
    with pytest.raises(LogError, match=r"run_2\.csv has other joints, units or commands than .*run_0\.csv"):
        load_log(folder, guess=True, units="rad")
    (folder / "run_2.csv").write_text("a,b\n1,2\n")
    with pytest.raises(LogError, match=r"run_2\.csv needs a column action/JOINT"):
        load_log(folder, guess=True, units="rad")
    (folder / "run_2.csv").unlink()
    (folder / "broken.parquet").write_bytes(b"PAR1nothing")
    with pytest.raises(LogError, match=r"broken\.parquet is not a Parquet table"):
        load_log(folder, guess=True, units="rad")


@pytest.mark.parametrize(
    ("state", "action", "velocity"),
    [
        ("actual_q_{}", "target_q_{}", "actual_qd_{}"),
        ("joint{}_pos", "joint{}_pos_cmd", "joint{}_vel"),
        ("observation.state.j{}.pos", "action.j{}.pos", "dq{}"),
        ("q{} [rad]", "q_ref{} [rad]", "qdot{} [rad/s]"),
        ("position_{}", "goal_position_{}", "speed_{}"),
        ("measured/{}", "command/{}", "velocity of {}"),
    ],
)
def test_usual_names_are_recognized(state, action, velocity):
    content = guess_description(table(time="timestamp", state=state, action=action, velocity=velocity), None, "rad")
    assert content["time"] == {"column": "timestamp", "unit": "s"}
    assert content["command"] == "position"
    assert list(content["joints"]) == ["joint_1", "joint_2", "joint_3"]
    for joint, row in zip(JOINTS, content["joints"].values(), strict=True):
        assert (row["state"], row["action"]) == (state.format(joint), action.format(joint))
        assert (row["velocity"], row["velocity_unit"], row["unit"]) == (velocity.format(joint), "rad/s", "rad")


@pytest.mark.parametrize("first", [0, 1])
def test_numbered_joints_get_the_given_names_by_number_if_they_are_as_many(first):
    logged = table()
    renamed = [re.sub(r"[123]$", lambda digit: str(int(digit[0]) - 1 + first), name) for name in logged.column_names]
    logged = logged.rename_columns(renamed).select(renamed[::-1])
    joints = guess_description(logged, None, "rad", ["pan", "lift", "elbow"])["joints"]
    assert {name: row["state"] for name, row in joints.items()} == {
        "pan": f"q_{first}", "lift": f"q_{first + 1}", "elbow": f"q_{first + 2}"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("state", "action", "numbered", "names"),
    [
        ("q_{}", "q_des_{}", ["pan", "lift"], ["joint_1", "joint_2", "joint_3"]),
        ("q_2{}", "q_des_2{}", ["pan", "lift", "elbow"], ["joint_21", "joint_22", "joint_23"]),
        ("q_hip{}", "q_des_hip{}", ["pan", "lift", "elbow"], ["hip_1", "hip_2", "hip_3"]),
    ],
)
def test_other_counts_numbers_and_names_keep_their_own(state, action, numbered, names):
    content = guess_description(table(state=state, action=action, velocity="other_{}"), None, "rad", numbered)
    assert list(content["joints"]) == names


@pytest.mark.parametrize(("name", "scale", "unit"), [
    ("time", 1.0, "s"), ("time_ms", 1e3, "ms"), ("stamp", 1e3, "ms"), ("t", 1e6, "us"), ("timestamp", 1e9, "ns"),
])  # fmt: skip
def test_the_unit_of_the_time_comes_from_its_name_or_its_steps(name, scale, unit):
    assert guess_description(table(time=name, scale=scale), None, "rad")["time"] == {"column": name, "unit": unit}


def test_other_columns_are_no_joints_and_torques_and_velocities_can_be_commands():
    logged = table().append_column("current_1", [np.ones(30)]).append_column("actual_current_2", [np.ones(30)])
    assert list(guess_description(logged, None, "rad")["joints"]) == ["joint_1", "joint_2", "joint_3"]
    torque = guess_description(table(action="tau_cmd_{}"), None, "rad")
    assert (torque["command"], torque["joints"]["joint_1"]["action_unit"]) == ("torque", "Nm")
    without = (
        table().drop_columns([f"q_des_{joint}" for joint in JOINTS]).append_column("state_temperature", [np.ones(30)])
    )
    assert guess_description(without, None, "rad")["command"] == "none"
    assert list(guess_description(without, None, "rad")["joints"]) == ["joint_1", "joint_2", "joint_3"]
    slides = guess_description(table(state="pos_{}_mm", action="pos_des_{}_mm", velocity="vel_{}"), None, "")
    assert slides["joints"]["joint_1"] == {
        "state": "pos_1_mm", "unit": "mm", "velocity": "vel_1", "velocity_unit": "m/s", "action": "pos_des_1_mm"
    }  # fmt: skip
    assert guess_description(table().drop_columns(["t"]), None, "rad") == {}
    mixed = guess_description(table(), None, ["deg", "m", "rad"])["joints"].values()
    assert [(row["unit"], row["velocity_unit"]) for row in mixed] == [("deg", "deg/s"), ("m", "m/s"), ("rad", "rad/s")]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(alphabet="abqdtes_.[]/ 019", min_size=1, max_size=12), min_size=1, max_size=8, unique=True))
def test_any_names_give_a_suggestion_of_existing_columns_or_none(names):
    made = pa.table({name: np.arange(5.0) for name in names})
    content = guess_description(made, None, "rad")
    used = [
        value for row in content.get("joints", {}).values() for key, value in row.items() if not key.endswith("unit")
    ]
    assert set(used) <= set(names)
    assert len(used) == len(set(used))


def test_only_tables_are_listed(tmp_path):
    folder = write_tables(tmp_path / "logs", count=2)
    (folder / ".hidden.csv").write_text("x")
    (folder / "folder.csv").mkdir()
    assert [path.name for path in list_tables(folder)] == ["run_0.csv", "run_1.csv"]
    assert list_tables(tmp_path) == []
