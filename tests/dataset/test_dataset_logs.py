"""Robot logs of every format become the same episodes; unusable logs are refused with reason and next step."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from support.dataset_logs import SO101, SO101_UNITS, planted_log, real
from support.dataset_writer import SPEC, planted
from twinloop.core.errors import DatasetError, InputError, LogError, UnitsError, UnknownNameError
from twinloop.core.files import sha256_tree
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.dataset.logs.conversion import write_log_dataset
from twinloop.dataset.logs.formats import load_log

CSV = """\
# units: deg, gripper=range_0_100
# task: pick up the cube
# robot: so101_follower
time_s,action/pan,action/gripper,state/pan,state/gripper,current_a
0.0,10,50,9,49,0.1
0.04,11,50,10,50,0.2
0.08,12,51,11,50,0.3
"""


def write_csv(folder: Path, text: str) -> Path:
    path = folder / "log.csv"
    path.write_text(text)
    return path


def test_a_recorded_log_survives_the_dataset_exactly(tmp_path):
    logs = planted_log()
    path = write_log_dataset(logs, tmp_path / "set", block_size=2, data_hash="d" * 64)
    reader = DatasetReader(path)
    assert reader.fps == 25
    assert "next.success" not in reader.info["features"]
    assert reader.provenance(1).source == "real"
    assert reader.provenance(1).extra == {"origin": "arm 7", "log_episode": 2, "data_hash": "d" * 64}
    for before, after in zip(logs, load_log(path), strict=True):
        for name in ("time", "action", "state"):
            np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
        assert (after.index, after.units, after.task, after.origin) == (before.index, before.units, "wave", "arm 7")
        assert after.robot_type == "so101_follower"
    with pytest.raises(DatasetError, match=r"Episode 0 of .* has no twinloop/states/.*only simulated ones have states"):
        reader.states(0)


def test_importing_twice_gives_the_same_bytes(tmp_path):
    first, second = (write_log_dataset(planted_log(), tmp_path / name / "set") for name in "ab")
    assert sha256_tree(first) == sha256_tree(second)
    with pytest.raises(DatasetError, match="already holds a dataset of 3 episodes"):
        write_log_dataset(planted_log(), first)
    with pytest.raises(LogError, match="There are no episodes to write"):
        write_log_dataset([], tmp_path / "none")
    other = dataclasses.replace(planted_log()[0], units=dataclasses.replace(planted_log()[0].units, source="elsewhere"))
    with pytest.raises(LogError, match="Episode 0 has other joints or units than episode 0"):
        write_log_dataset([planted_log()[0], other], tmp_path / "mixed")


def test_csv_with_a_units_header(tmp_path):
    (episode,) = load_log(write_csv(tmp_path, CSV))
    assert episode.joints == ("pan", "gripper")
    assert (episode.task, episode.robot_type) == ("pick up the cube", "so101_follower")
    np.testing.assert_array_equal(episode.time, [0, 0.04, 0.08])
    np.testing.assert_array_equal(episode.action, [[10, 50], [11, 50], [12, 51]])
    np.testing.assert_array_equal(episode.state[:, 0], [9, 10, 11])
    pan, gripper = episode.units.joints
    assert (pan.unit, pan.scale, pan.offset) == ("deg", math.pi / 180, 0.0)
    assert (gripper.unit, gripper.known) == ("range_0_100", False)


def test_csv_with_unit_suffixes_milliseconds_and_episodes(tmp_path):
    text = "episode,time_ms,state/a_rad,action/a_rad,action/b_mm,state/b_mm\n"
    text += "".join(f"{e},{20 * i},{i},{e},{i},{i}\n" for e in (4, 9) for i in range(3))
    episodes = load_log(write_csv(tmp_path, text), joints=["b", "a"])
    assert [episode.index for episode in episodes] == [4, 9]
    assert episodes[1].joints == ("b", "a")
    np.testing.assert_allclose(episodes[1].time, [0, 0.02, 0.04])
    np.testing.assert_array_equal(episodes[1].action, [[0, 9], [1, 9], [2, 9]])
    np.testing.assert_allclose(episodes[0].units.to_si([1000.0, 2.0]), [1.0, 2.0])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            ("# units: deg, gripper=range_0_100\n", ""),
            UnitsError,
            r"are not known. In which unit",
        ),
        (("# units: deg, gripper", "# units: gripper"), UnitsError, r"The values are: pan 9 to 11, gripper 49 to 50"),
        (("units: deg", "units: degrees"), UnknownNameError, r"Unknown joint unit 'degrees' in the unit of pan. Near"),
        ((CSV.split("gripper,current_a\n")[1], ""), LogError, r"log.csv is empty: it has no rows"),
        (("0.08,", "0.03,"), LogError, r"time does not increase at frame 2 \(0.040000 s, then 0.030000 s\)"),
        (("11,50,10,50", "11,50,,50"), LogError, r"state of pan is nan at frame 1 \(1 such values\)"),
        (("11,50,10,50", "11,50,nan,50"), LogError, r"state of pan is nan at frame 1"),
        (("11,50,10,50", "11,50,off,50"), LogError, r"column state/pan holds string values where numbers should be"),
        (("0.04,11,50,10,50,0.2", "0.04,11,50"), LogError, r"is not a rectangular table"),
        (("state/gripper", "gripper"), LogError, r"gripper has only one of them. Its columns are: time_s"),
        (("time_s", "t"), LogError, r"has no column time_s or time_ms. It has: t, action/pan"),
        (("state/gripper", "state/gripper_deg"), UnitsError, r"action/gripper and state/gripper_deg differ in unit"),
        (
            ("action/pan,action/gripper,state/pan", "action/pan_rad,action/gripper,state/pan_rad"),
            UnitsError,
            r"log.csv: its units line has pan in deg, and the suffix of its columns has it in rad. Correct",
        ),
    ],
)
def test_csv_that_cannot_be_used_says_why(tmp_path, change, error, message):
    assert change[0] in CSV
    with pytest.raises(error, match=message):
        load_log(write_csv(tmp_path, CSV.replace(*change)))


@pytest.mark.parametrize("units", ["rad", ["rad", "range_0_100"]])
def test_units_that_contradict_a_csv_are_refused(tmp_path, units):
    with pytest.raises(UnitsError, match=r"log.csv: the file has pan in deg, and the given unit list has it in rad"):
        load_log(write_csv(tmp_path, CSV), units=units)
    (episode,) = load_log(write_csv(tmp_path, CSV), units=["deg", "range_0_100"])
    assert [unit.unit for unit in episode.units.joints] == ["deg", "range_0_100"]
    suffixed = CSV.replace("/pan", "/pan_deg").replace("# units: deg, ", "# units: ")
    with pytest.raises(UnitsError, match=r"the file has pan in deg, and the given unit list has it in rad"):
        load_log(write_csv(tmp_path, suffixed), units=["rad", "range_0_100"])


def test_units_in_brackets_are_those_of_suffixes(tmp_path):
    body = CSV.split("so101_follower\n")[1].replace("current_a", "velocity/pan VELOCITY,note [x]")
    body = body.replace(",0.1\n", ",0.1,1\n").replace(",0.2\n", ",0.2,2\n").replace(",0.3\n", ",0.3,3\n")
    suffixed = body.replace("/pan", "/pan_deg").replace("/gripper", "/gripper_rad").replace("_deg VELOCITY", "")
    bracketed = body.replace("/pan", "/pan [deg]").replace("/gripper", "/gripper [rad]")
    bracketed = bracketed.replace("[deg] VELOCITY", "[rad/s]").replace("time_s", "time [s]")
    (one,), (other,) = (load_log(write_csv(tmp_path, text)) for text in (suffixed, bracketed))
    assert one.units == other.units
    assert [unit.unit for unit in other.units.joints] == ["deg", "rad"]
    for name in ("time", "action", "state"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_array_equal(other.signals["joint_velocity"].values[:, 0], [0.1, 0.2, 0.3])


def test_csv_with_a_byte_order_mark(tmp_path):
    (tmp_path / "log.csv").write_text(CSV, encoding="utf-8-sig")
    (episode,) = load_log(tmp_path / "log.csv")
    assert (episode.task, episode.units.joints[0].unit) == ("pick up the cube", "deg")
    bare = CSV.split("so101_follower\n")[1]
    (tmp_path / "log.csv").write_text(bare, encoding="utf-8-sig")
    (episode,) = load_log(tmp_path / "log.csv", units="rad")
    np.testing.assert_array_equal(episode.time, [0, 0.04, 0.08])


@pytest.mark.parametrize(("value", "shown"), [("-1", "-1"), ("0.5", "0.5"), ("", "nan")])
def test_csv_episodes_are_whole_numbers(tmp_path, value, shown):
    text = "episode,time_s,action/a_rad,state/a_rad\n" + "".join(
        f"{value if i == 2 else 0},{i / 10},0,0\n" for i in range(4)
    )
    with pytest.raises(LogError, match=rf"episode is {shown} in row 3 below the header \(1 such rows\). Episodes are"):
        load_log(write_csv(tmp_path, text))


def test_a_missing_joint_names_those_that_are_there(tmp_path):
    with pytest.raises(LogError, match=r"log.csv has no joint wrist. It has: pan, gripper. Choose a twin with"):
        load_log(write_csv(tmp_path, CSV), joints=["pan", "wrist"])


def test_calibration_gives_normalised_values_their_radians(tmp_path):
    """Ticks planted, normalised as LeRobot does (motors_bus.py), and mapped back to radians about mid-range."""
    motors = {
        "pan": {"id": 1, "drive_mode": 0, "homing_offset": -12, "range_min": 700, "range_max": 3500},
        "gripper": {"id": 6, "drive_mode": 1, "homing_offset": 5, "range_min": 2000, "range_max": 3300},
    }
    (tmp_path / "calibration.json").write_text(json.dumps(motors))
    ticks = np.array([[700, 2000], [2100, 2650], [3500, 3300], [1234, 3000]], dtype=float)
    low, high = np.array([700, 2000]), np.array([3500, 3300])
    share = (ticks - low) / (high - low)
    logged = np.stack([200 * share[:, 0] - 100, 100 - 100 * share[:, 1]], axis=1)
    rows = "".join(f"{i / 50},{float(a)!r},{float(b)!r},{float(a)!r},{float(b)!r}\n" for i, (a, b) in enumerate(logged))
    path = write_csv(tmp_path, "time_s,action/pan,action/gripper,state/pan,state/gripper\n" + rows)
    units = ["range_m100_100", "range_0_100"]
    (episode,) = load_log(path, units=units, calibration=tmp_path / "calibration.json")
    truth = (ticks - (low + high) / 2) * 2 * math.pi / 4095
    np.testing.assert_allclose(episode.units.to_si(episode.state), truth, atol=1e-12)
    np.testing.assert_allclose(episode.units.from_si(truth), logged, atol=1e-9)
    (bare,) = load_log(path, units=units)
    with pytest.raises(UnitsError, match=r"of pan \(range_m100_100\), gripper"):
        bare.units.to_si(bare.state)
    motors["pan"]["range_max"] = 700
    (tmp_path / "calibration.json").write_text(json.dumps(motors))
    with pytest.raises(InputError, match="motor pan has an empty range. Calibrate the arm again"):
        load_log(path, units=units, calibration=tmp_path / "calibration.json")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"range_min": "x", "range_max": 3500}, r"motor pan, range_min: .*valid integer.* \(found 'x'\)"),
        ({"range_min": None, "range_max": 3500}, r"motor pan, range_min: .*valid integer.* \(found None\)"),
        ({"range_min": 700}, r"motor pan, range_max: Field required. A motor has id"),
        ({"range_min": 7, "range_max": 9, "speed": 1}, r"motor pan, speed: .* \(found 1\)"),
        (5, r"motor pan, the whole entry: .* \(found 5\)"),
    ],
)
def test_a_calibration_of_wrong_types_names_motor_and_field(tmp_path, entry, message):
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps({"pan": entry}))
    with pytest.raises(InputError, match=message):
        load_log(write_csv(tmp_path, CSV), units=["deg", "range_0_100"], calibration=path)


def save_arrow(folder: Path, table: pa.Table) -> Path:
    """A table saved as the `datasets` library does."""
    (folder / "train").mkdir(parents=True)
    with pa.OSFile(str(folder / "train" / "data.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    (folder / "train" / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    (folder / "dataset_dict.json").write_text('{"splits": ["train"]}')
    return folder


def lerobot_table(lengths: list[int], width: int = 2) -> pa.Table:
    rng = np.random.default_rng(0)
    total = sum(lengths)
    frame = np.concatenate([np.arange(n) for n in lengths])
    return pa.table(
        {
            "action": pa.array(rng.normal(size=(total, width)).tolist()),
            "observation.state": pa.array(rng.normal(size=(total, width)).tolist()),
            "timestamp": pa.array((frame / 30).astype(np.float32)),
            "episode_index": pa.array(np.repeat(np.arange(len(lengths)), lengths)),
        }
    )


def test_arrow_folders_and_files(tmp_path):
    table = lerobot_table([5, 4])
    folder = save_arrow(tmp_path / "log", table)
    for path in (folder, folder / "train", folder / "train" / "data.arrow"):
        episodes = load_log(path, joints=["a", "b"], units="rad")
        assert [len(episode) for episode in episodes] == [5, 4]
        np.testing.assert_array_equal(episodes[1].action, table["action"].to_pylist()[5:])
        np.testing.assert_allclose(episodes[0].time, np.arange(5) / 30, rtol=0, atol=1e-15)  # not float32's
    (folder / "dataset_dict.json").unlink()
    assert len(load_log(folder, joints=["a", "b"], units="rad")) == 2


def test_arrow_without_names_or_units_asks_for_them(tmp_path):
    folder = save_arrow(tmp_path / "log", lerobot_table([5]))
    with pytest.raises(
        LogError, match=r"has 2 joint columns without names. Which joints are they, in column order\?"
    ) as asked:
        load_log(folder)
    assert "And in which unit is each joint: deg (LeRobot's default since 0.4.4)" in str(asked.value)
    with pytest.raises(LogError, match=r"Answer with joints=\[…\] \(--joints a,b,…\)\.$"):
        load_log(folder, units="rad")
    with pytest.raises(UnitsError, match=r"deg \(LeRobot's default since 0.4.4\), range_m100_100"):
        load_log(folder, joints=["a", "b"])
    with pytest.raises(UnitsError, match=r"has 2 joints \(a, b\) and 3 units were given"):
        load_log(folder, joints=["a", "b"], units=["rad"] * 3)
    with pytest.raises(LogError, match="has 2 joint columns; 3 joint names were given"):
        load_log(folder, joints=["a", "b", "c"], units="rad")


def test_a_truncated_or_escaping_arrow_folder_is_refused(tmp_path):
    folder = save_arrow(tmp_path / "log", lerobot_table([50]))
    file = folder / "train" / "data.arrow"
    file.write_bytes(file.read_bytes()[:700])
    with pytest.raises(DatasetError, match=r"data.arrow is truncated or not an Arrow table"):
        load_log(folder, joints=["a", "b"], units="rad")
    (folder / "train" / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../../secret.arrow"}]}))
    with pytest.raises(DatasetError, match=r"'../../secret.arrow', which leaves the dataset's folder"):
        load_log(folder, joints=["a", "b"], units="rad")
    empty = save_arrow(tmp_path / "empty", lerobot_table([3]).slice(0, 0))
    with pytest.raises(LogError, match="empty is empty: it has no rows"):
        load_log(empty, joints=["a", "b"], units="rad")


def test_a_truncated_parquet_file_is_named_and_others_still_read(tmp_path):
    path = write_log_dataset(planted_log(), tmp_path / "set", block_size=1)
    victim = path / layout.block_path(layout.DATA_PATH, 1)
    victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
    reader = DatasetReader(path)
    assert reader.frames_table(0).num_rows == 40
    with pytest.raises(DatasetError, match=r"file-001.parquet is truncated or damaged \(\d+ bytes; .*Copy or"):
        reader.frames_table(1)
    victim.unlink()
    with pytest.raises(DatasetError, match=r"file-001.parquet is missing, although the dataset's metadata names it"):
        reader.frames_table(1)


def test_paths_in_metadata_cannot_leave_the_folder(tmp_path):
    path = write_log_dataset(planted_log(), tmp_path / "set")
    shutil.copy(path / layout.block_path(layout.DATA_PATH, 0), tmp_path / "file-000.parquet")
    info = json.loads((path / layout.INFO).read_text())
    (path / layout.INFO).write_text(json.dumps({**info, "data_path": "../file-{file_index:03d}.parquet"}))
    with pytest.raises(DatasetError, match=r"names the path '../file-000.parquet', which leaves the dataset's folder"):
        DatasetReader(path).frames_table(0)
    (path / layout.INFO).write_text(json.dumps({**info, "data_path": "data/{nothing}.parquet"}))
    with pytest.raises(DatasetError, match=r"the path template 'data/\{nothing\}.parquet' cannot be filled"):
        DatasetReader(path).frames_table(0)
    (path / layout.INFO).write_text(json.dumps(info))
    file = path / layout.block_path(layout.DATA_PATH, 0)
    file.unlink()
    file.symlink_to(tmp_path / "file-000.parquet")
    with pytest.raises(DatasetError, match="which leaves the dataset's folder"):
        DatasetReader(path).frames_table(0)


def test_what_is_no_log_is_refused(tmp_path):
    with pytest.raises(InputError, match="nowhere does not exist"):
        load_log(tmp_path / "nowhere")
    (tmp_path / "log.bin").write_bytes(b"?")
    with pytest.raises(InputError, match=r"Known formats: lerobot-v3.0, lerobot-v2.1, arrow, csv"):
        load_log(tmp_path / "log.bin")
    with pytest.raises(DatasetError, match=r"is not a LeRobot dataset: meta/info.json is missing"):
        DatasetReader(tmp_path)
    newer = write_log_dataset(planted_log(1), tmp_path / "set")
    spec = json.loads((newer / layout.SPEC).read_text())
    (newer / layout.SPEC).write_text(json.dumps({**spec, "schema": 99}))
    with pytest.raises(DatasetError, match=r"has schema 99; this version reads up to 1. Upgrade twinloop"):
        load_log(newer)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (layout.SPEC, "{}", r"twinloop/dataset.json lacks schema, name, robot_type, fps, joints, units: it is damaged"),
        (layout.SPEC, "[]", r"twinloop/dataset.json lacks schema, name"),
        (layout.SPEC, None, r"twinloop/dataset.json lacks joints: it is damaged or was not written by twinloop"),
        (layout.UNIT_MAP, "{}", r"twinloop/unit_map.json is damaged or .* \(KeyError: 'joints'\)"),
        (layout.PROGRESS, "{}", r"twinloop/progress.json lacks schema, blocks, tasks, params, moments, cameras"),
        (layout.block_path(layout.PROVENANCE_PATH, 0), "{}", r"Line 1 of .*jsonl is damaged or .*'episode_index'"),
    ],
)
def test_our_own_files_without_their_keys_are_named(tmp_path, file, text, message):
    path = write_log_dataset(planted_log(1), tmp_path / "set")
    if text is None:
        text = json.dumps({key: item for key, item in json.loads((path / file).read_text()).items() if key != "joints"})
    (path / file).write_text(text)
    reader = DatasetReader(path)
    with pytest.raises(DatasetError, match=message):
        _ = (reader.spec, reader.units, reader.provenance(0), DatasetWriter.open(path, reader.spec, resume=True))


def append_as_lerobot(path: Path) -> None:
    """Append an episode as LeRobot does: in separate files, with LeRobot's columns only."""
    reader = DatasetReader(path)
    total = int(reader.lengths.sum())
    frames = reader.frames_table(0).to_pylist()
    index = len(reader)
    rows = [{**row, "episode_index": index, "index": total + i} for i, row in enumerate(frames)]
    pq.write_table(pa.Table.from_pylist(rows, schema=reader.frames_table(0).schema), _grown(path, layout.DATA_PATH))
    place = {"data/chunk_index": 0, "data/file_index": 9, "dataset_from_index": total}
    entry = {"episode_index": index, "length": len(rows), "tasks": ["wave"], **place}
    pq.write_table(pa.Table.from_pylist([entry]), _grown(path, layout.EPISODES_PATH))
    info = json.loads((path / layout.INFO).read_text())
    (path / layout.INFO).write_text(
        json.dumps({**info, "total_episodes": index + 1, "total_frames": total + len(rows)})
    )


def _grown(path: Path, template: str) -> Path:
    return path / layout.block_path(template, 9)


def test_an_episode_appended_by_another_program_has_frames_and_no_provenance(tmp_path):
    with DatasetWriter.open(tmp_path / "sim", SPEC) as writer:
        writer.commit_block(0, [planted(0), planted(3)])
    append_as_lerobot(tmp_path / "sim")
    reader = DatasetReader(tmp_path / "sim")
    assert reader.numbers.tolist() == [0, 3, -1]
    assert [reader.is_appended(index) for index in range(3)] == [False, False, True]
    np.testing.assert_array_equal(reader.array(2, "action"), reader.array(0, "action"))
    for read in (reader.provenance, reader.states, reader.commands):
        with pytest.raises(DatasetError, match="episode 2 was appended by another program and has no provenance"):
            read(2)
    assert [episode.source for episode in load_log(tmp_path / "sim")] == ["sim", "sim", "real"]
    path = write_log_dataset(planted_log(2), tmp_path / "log")
    append_as_lerobot(path)
    assert [DatasetReader(path).has_log(index) for index in range(3)] == [True, True, False]
    assert [len(episode) for episode in load_log(path)] == [40, 40, 40]


def test_a_given_task_takes_the_place_of_the_logs_own(tmp_path):
    path = write_log_dataset(load_log(write_csv(tmp_path, CSV), task="sort"), tmp_path / "set")
    assert DatasetReader(path).provenance(0).task == "sort"
    (again,) = load_log(path, task="stack", robot_type="koch", origin="arm 9")
    assert (again.task, again.robot_type, again.origin) == ("stack", "koch", "arm 9")
    second = write_log_dataset([again], tmp_path / "second")
    assert DatasetReader(second).row(0)["tasks"] == ["stack"]


@pytest.mark.parametrize(
    ("licence", "front"),
    [
        ("BSD-3-Clause", {"license": "bsd-3-clause"}),
        ("cc-by-4.0", {"license": "cc-by-4.0"}),
        ("ask the lab first", {"license": "other", "license_name": "see-licence-section"}),
        ("", {"license": "other", "license_name": "not-stated"}),
    ],
)
def test_the_card_states_a_licence_the_hub_knows(tmp_path, licence, front):
    text = (write_log_dataset(planted_log(1), tmp_path / "set", licence=licence) / layout.CARD).read_text()
    _, head, body = text.split("---\n", 2)
    found = yaml.safe_load(head)
    assert {key: item for key, item in found.items() if key.startswith("license")} == front
    section = f"## Licence\n\n{licence or 'None was stated when the dataset was written.'}\n"
    assert (section in body) == ("## Licence" in body) == ("license_name" in front)


def test_the_card_speaks_of_what_the_dataset_has(tmp_path):
    logged = (write_log_dataset(planted_log(1), tmp_path / "log") / layout.CARD).read_text()
    assert "the log records as measured at step t" in logged
    assert "next.success" not in logged
    assert "sensor delays" not in logged
    with DatasetWriter.open(tmp_path / "sim", SPEC) as writer:
        writer.commit_block(0, [planted(0)])
    simulated = (tmp_path / "sim" / layout.CARD).read_text()
    assert "sensor delays included" in simulated
    assert "`next.success[t]` is true if" in simulated
    assert "twinloop/log/" not in simulated


def test_our_own_simulated_dataset_is_a_log_too(tmp_path):
    spec = dataclasses.replace(SPEC, extra_state=("cube.x",))
    episodes = [planted(number) for number in (0, 3)]
    wide = [dataclasses.replace(e, observation=np.hstack([e.observation, e.action[:, :1]])) for e in episodes]
    with DatasetWriter.open(tmp_path / "set", spec) as writer:
        writer.commit_block(0, wide)
    logs = load_log(tmp_path / "set")
    for log, episode in zip(logs, episodes, strict=True):
        assert log.units == spec.units
        assert (log.source, log.task) == ("sim", episode.provenance.task)
        np.testing.assert_array_equal(log.action, episode.action.astype(np.float32))
        np.testing.assert_array_equal(log.state, episode.observation.astype(np.float32))
        np.testing.assert_allclose(log.time, np.arange(len(episode)) / 30, rtol=0, atol=1e-15)


def foreign_v3(folder: Path) -> Path:
    """A v3.0 dataset as another program writes it: list columns, two files, no unit map, one row group a file."""
    tables = [lerobot_table([30, 20]), lerobot_table([25])]
    start, rows = 0, []
    for file, table in enumerate(tables):
        owner = np.asarray(table["episode_index"]) + (2 if file else 0)
        table = table.set_column(3, "episode_index", pa.array(owner))
        target = folder / layout.block_path(layout.DATA_PATH, file)
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, target)
        for index in np.unique(owner):
            length = int((owner == index).sum())
            place = {"data/chunk_index": 0, "data/file_index": file, "dataset_from_index": start}
            rows.append({"episode_index": int(index), "length": length, "tasks": ["wave"], **place})
            start += length
    episodes = folder / layout.block_path(layout.EPISODES_PATH, 0)
    episodes.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), episodes)
    names = ["left.pos", "right.pos"]
    vector = {"dtype": "float32", "shape": [2], "names": {"motors": names}}
    info = {
        "codebase_version": "v3.0",
        "robot_type": "koch",
        "fps": 30,
        "total_episodes": 3,
        "data_path": layout.DATA_PATH,
        "features": {"action": vector, "observation.state": vector},
    }
    (folder / layout.INFO).write_text(json.dumps(info))
    return folder


def test_a_v3_dataset_of_another_program(tmp_path):
    path = foreign_v3(tmp_path / "theirs")
    with pytest.raises(UnitsError, match="are not known"):
        load_log(path)
    episodes = load_log(path, units="deg")
    assert [len(episode) for episode in episodes] == [30, 20, 25]
    assert episodes[0].joints == ("left", "right")
    assert (episodes[0].task, episodes[0].robot_type) == ("wave", "koch")
    np.testing.assert_allclose(episodes[1].action, lerobot_table([30, 20])["action"].to_pylist()[30:])
    (only,) = {episode.joints for episode in load_log(path, units="deg", joints=["right"])}
    assert only == ("right",)
    with pytest.raises(DatasetError, match="was not written by twinloop: it has LeRobot's files only"):
        DatasetReader(path).states(0)


def test_an_episode_table_that_disagrees_with_the_data_is_refused(tmp_path):
    path = foreign_v3(tmp_path / "theirs")
    table = layout.block_path(layout.EPISODES_PATH, 0)
    rows = pq.read_table(path / table).to_pylist()
    rows[1]["dataset_from_index"] = 29
    pq.write_table(pa.Table.from_pylist(rows), path / table)
    with pytest.raises(DatasetError, match=r"rows 29 to 49 should be episode 1 and are \[0, 1\]"):
        DatasetReader(path).frames_table(1)
    pq.write_table(pa.Table.from_pylist(rows[:2]), path / table)
    with pytest.raises(DatasetError, match="disagree on the number of episodes"):
        DatasetReader(path)


def test_so101_arrow_log():
    episodes = load_log(real("so101_pick_place_tape"), joints=SO101, units=SO101_UNITS)
    assert sum(len(episode) for episode in episodes) >= 11964 or len(episodes) < 40
    assert [episode.index for episode in episodes] == list(range(len(episodes)))
    first = episodes[0]
    np.testing.assert_allclose(np.diff(first.time), 1 / 30, atol=1e-12)
    assert not first.units.known
    error = np.concatenate([np.abs(e.action - e.state) for e in episodes]).mean(axis=0)
    # The action taken as the prediction misses by about this much, as measured on ten of its episodes.
    np.testing.assert_allclose(error, [1.20, 4.09, 5.10, 1.67, 1.04, 1.66], rtol=0.35)


def test_so101_snapshot_has_forty_episodes():
    episodes = load_log(real("so101_pick_place_tape"), joints=SO101, units=SO101_UNITS)
    if len(episodes) != 40:
        pytest.skip(f"TWINLOOP_DATA holds {len(episodes)} episodes of this set, not the first 40")
    assert sum(len(episode) for episode in episodes) == 11964


def test_g1_lerobot_v21_log():
    path = real("g1_inspire_lerobot")
    episodes = load_log(path, units="rad")
    assert episodes[0].state.shape == (479, 26)
    assert episodes[0].joints[0] == "kLeftShoulderPitch"
    assert episodes[0].task == "Pick up the yellow bottle on the table."
    rows = map(json.loads, (path / "meta/episodes.jsonl").read_text().splitlines())
    lengths = {row["episode_index"]: row["length"] for row in rows}
    assert all(len(episode) == lengths[episode.index] for episode in episodes)
    arms = load_log(path, units="rad", joints=["kRightElbow", "kLeftElbow"])
    np.testing.assert_array_equal(arms[0].state, episodes[0].state[:, [10, 3]])


def test_a_v21_folder_without_its_files_or_with_nan(tmp_path):
    info = json.loads((real("g1_inspire_lerobot") / layout.INFO).read_text())
    (tmp_path / "meta").mkdir()
    (tmp_path / layout.INFO).write_text(json.dumps(info))
    with pytest.raises(LogError, match="has no episodes: none of the files that its metadata describes is there"):
        load_log(tmp_path, units="rad")
    table = lerobot_table([4], width=26)
    broken = np.array(table["action"].to_pylist())
    broken[2, 7] = np.nan
    folder = tmp_path / "data" / "chunk-000"
    folder.mkdir(parents=True)
    pq.write_table(table.set_column(0, "action", pa.array(broken.tolist())), folder / "episode_000003.parquet")
    with pytest.raises(LogError, match=r"Episode 3 of .*: action of kRightShoulderPitch is nan at frame 2"):
        load_log(tmp_path, units="rad")
