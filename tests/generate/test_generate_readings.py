"""Readings of a twin's sensors in datasets: features, all samples in side tables, bytes that depend on the run only."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from twinloop.core.errors import DatasetError, InputError, UnknownNameError
from twinloop.core.files import sha256_tree
from twinloop.core.records import SimEpisode
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.lerobot.validation import validate
from twinloop.dataset.spec import ReadingSpec
from twinloop.generate import RenderConfig, generate_states, render_dataset, replay_episode, resolve_config
from twinloop.generate import states as generating
from twinloop.rollout import BodySensors
from twinloop.twin import load_twin

TWIN = {
    "base": "so101_tabletop",
    "name": "so101_felt",
    "sensors": {
        "wrist_imu": {"device": "bmi055", "site": "tcp"},
        "wrist_force": {"device": "ati_mini45", "site": "tcp"},
        "servos": {"device": "sts3215_feedback"},
        "front": {"device": "uvc_webcam"},
    },
}
SMALL = {
    "scene": {"twin": "felt.yaml", "task": "pick_and_place"},
    "rollout": {"parallel_envs": 2, "episodes_per_env": 2, "sensors": "all"},
}
FRAGILE = Path(__file__).parents[1] / "support" / "fragile.py"
KEYS = {"wrist_imu": "imu", "wrist_force": "force_torque", "servos": "servo"}


def config(folder, **rollout):
    (folder / "felt.yaml").write_text(yaml.safe_dump(TWIN, sort_keys=False))
    return resolve_config({**SMALL, "rollout": {**SMALL["rollout"], **rollout}}, where="test", folder=folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("felt")
    generate_states(config(folder), folder / "batch")
    return folder, DatasetReader(folder / "batch")


def test_every_sensor_is_a_feature_with_named_columns(made):
    _, reader = made
    features = json.loads((reader.path / "meta/info.json").read_text())["features"]
    assert features["observation.imu.wrist_imu"] == {
        "dtype": "float32",
        "shape": [6],
        "names": ["gyro.x", "gyro.y", "gyro.z", "accel.x", "accel.y", "accel.z"],
    }
    assert features["observation.servo.servos"]["shape"] == [30]
    assert features["observation.servo.servos"]["names"][:2] == ["shoulder_pan.velocity", "shoulder_pan.current"]
    assert {f"observation.{kind}.{name}" for name, kind in KEYS.items()} <= set(features)
    assert reader.spec.readings[1].units == ("N", "N", "N", "N·m", "N·m", "N·m")
    stats = json.loads((reader.path / "meta/stats.json").read_text())
    assert len(stats["observation.imu.wrist_imu"]["mean"]) == 6
    card = (reader.path / "README.md").read_text()
    assert "| `observation.force_torque.wrist_force` | force.x, force.y" in card


def test_frames_and_samples_are_what_the_stored_episode_gives_again(made):
    folder, reader = made
    sensors = BodySensors(load_twin(folder / "felt.yaml"))
    for index in (0, len(reader) - 1):
        record = SimEpisode(
            number=int(reader.numbers[index]),
            commands=reader.commands(index),
            states=reader.states(index),
            action=np.empty(0),
            observation=np.empty(0),
            next_success=np.empty(0, dtype=bool),
            provenance=reader.provenance(index),
        )
        for name, reading in sensors.read(record).items():
            stored = reader.array(index, f"observation.{KEYS[name]}.{name}")
            np.testing.assert_array_equal(stored, reading.frames.astype(np.float32))
            rows = reader.side_rows(f"readings/{name}", index)
            np.testing.assert_array_equal(rows["time"].to_numpy(), reading.time)
            np.testing.assert_array_equal(rows["delivered"].to_numpy(), reading.delivered)
            values = np.stack(rows["values"].to_numpy(zero_copy_only=False))
            np.testing.assert_array_equal(values, reading.values.astype(np.float32))
    assert reader.side_tables == ["readings/servos", "readings/wrist_force", "readings/wrist_imu"]
    assert reader.side_table("readings/wrist_imu").count_rows() > 10 * len(reader.array(0, "timestamp"))


def test_a_frame_never_knows_what_was_not_delivered(made):
    _, reader = made
    time = reader.states(0)[:-1, 0]
    rows = reader.side_rows("readings/wrist_imu", 0)
    values = np.stack(rows["values"].to_numpy(zero_copy_only=False))
    newest = np.searchsorted(rows["delivered"].to_numpy(), time + 1e-9) - 1
    known = newest >= 0
    frames = reader.array(0, "observation.imu.wrist_imu")
    np.testing.assert_array_equal(frames[known], values[newest[known]])
    assert known.sum() > len(known) - 3


@pytest.mark.slow
def test_bytes_do_not_depend_on_workers_or_an_interruption(made, tmp_path, monkeypatch):
    folder, reader = made
    again = config(folder)  # of the same files
    generate_states(again, tmp_path / "two", workers=2)
    assert sha256_tree(tmp_path / "two") == sha256_tree(reader.path)
    commit, done = generating.DatasetWriter.commit_block, []

    def stop_after_one(self, block, *args, **kwargs):
        if done:
            raise KeyboardInterrupt
        done.append(block)
        commit(self, block, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(generating.DatasetWriter, "commit_block", stop_after_one)
        with pytest.raises(KeyboardInterrupt):
            generate_states(again, tmp_path / "cut")
    generate_states(again, tmp_path / "cut", resume=True)
    assert sha256_tree(tmp_path / "cut") == sha256_tree(reader.path)


def test_states_are_those_of_a_run_that_keeps_no_readings(made, tmp_path):
    _, reader = made
    generate_states(config(tmp_path, sensors=[]), tmp_path / "plain")
    plain = DatasetReader(tmp_path / "plain")
    for index in range(len(plain)):
        np.testing.assert_array_equal(plain.states(index), reader.states(index))
    assert not plain.spec.readings
    assert not plain.side_tables
    assert "readings" not in (plain.path / "twinloop/dataset.json").read_text()
    assert replay_episode(reader.path, 0).equal


@pytest.mark.slow
def test_some_sensors_alone(made, tmp_path):
    _, reader = made
    generate_states(config(tmp_path, sensors=["servos"]), tmp_path / "some")
    some = DatasetReader(tmp_path / "some")
    assert some.side_tables == ["readings/servos"]
    np.testing.assert_array_equal(
        some.array(0, "observation.servo.servos"), reader.array(0, "observation.servo.servos")
    )


def test_both_validators_accept_it(made):
    pytest.importorskip("lerobot_doctor")
    for verdict in validate(made[1].path):
        assert verdict.accepted, str(verdict)


def test_a_configuration_without_sensors_is_as_it_was(tmp_path):
    said = config(tmp_path, sensors=[]).model_dump(mode="json")
    assert said["file"]["rollout"] == {"parallel_envs": 2, "episodes_per_env": 2, "backend": "threads"}
    assert config(tmp_path).model_dump(mode="json")["file"]["rollout"]["sensors"] == "all"


def test_what_cannot_be_kept_is_refused_before_anything_is_simulated(tmp_path):
    with pytest.raises(UnknownNameError, match="Unknown sensor 'wrist_imo'"):
        generate_states(config(tmp_path, sensors=["wrist_imo"]), tmp_path / "x")
    with pytest.raises(InputError, match="The sensor front of so101_felt is a camera"):
        generate_states(config(tmp_path, sensors=["front"]), tmp_path / "x")
    with pytest.raises(InputError, match=r"rollout.sensors"):
        config(tmp_path, sensors="some")
    with pytest.raises(InputError, match="The sensor name 'state' cannot be used as a feature name"):
        ReadingSpec(name="state", columns=("a",), units=("1",))
    with pytest.raises(InputError, match="have 2 columns and 1 units"):
        ReadingSpec(name="imu.x", columns=("a", "b"), units=("1",))
    assert not (tmp_path / "x").exists()


def test_an_episode_without_its_readings_is_not_admitted(made, tmp_path):
    _, reader = made
    record = SimEpisode(
        number=0,
        commands=reader.commands(0),
        states=reader.states(0),
        action=reader.array(0, "action"),
        observation=reader.array(0, "observation.state"),
        next_success=np.zeros(len(reader.commands(0)), dtype=bool),
        provenance=reader.provenance(0),
    )
    with (
        generating.DatasetWriter.open(tmp_path / "y", reader.spec) as writer,
        pytest.raises(DatasetError, match=r"observation.imu.wrist_imu has shape \(0, 0\); the dataset needs \(T, 6\)"),
    ):
        writer.commit_block(0, [record])


@pytest.mark.slow
def test_images_come_with_the_samples_of_what_they_are_images_of(made, tmp_path):
    _, reader = made
    settings = {"renderer": f"{FRAGILE}:Fragile", "height": 16, "width": 24, "cameras": ["front"]}
    for name, chosen in (("whole", None), ("late", "2:4")):
        render_dataset(reader.path, tmp_path / name, RenderConfig(**settings, episodes=chosen))
    for name, first in (("whole", 0), ("late", 2)):
        rendered = DatasetReader(tmp_path / name)
        assert rendered.side_tables == sorted(f"readings/{sensor}" for sensor in KEYS)
        for table in rendered.side_tables:
            for index in range(len(rendered)):
                rows, source = rendered.side_rows(table, index), reader.side_rows(table, first + index)
                assert set(rows["episode_index"].to_pylist()) == {index}
                assert rows.drop_columns(["episode_index"]).equals(source.drop_columns(["episode_index"]))
                assert rows.schema == source.schema
