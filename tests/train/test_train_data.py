"""Training data from folders: one unit map for all, no broken data, and held-out episodes for scoring."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from support.edits import foreign
from support.training import DEG, JOINTS, RAD, config, dataset, frames
from twinloop.core.contract import ACTION, STATE
from twinloop.core.errors import DatasetError, InputError, UnitsError, UnknownNameError
from twinloop.core.units import NORMALIZED, JointUnit, UnitMap
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.parquet import to_fixed_lists
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.policies.settings import MlpSettings
from twinloop.policies.statistics import LAST_COMMAND
from twinloop.train.config import SourceConfig, TrainConfig, read_config
from twinloop.train.data import load_frames, measure_statistics, weighted_statistics
from twinloop.train.holdout import split
from twinloop.train.preparation import RECIPES, resolve_config
from twinloop.train.sources import open_sources


def opened(*configs, **said):
    return load_frames(open_sources([SourceConfig(**one) for one in configs]), **said)


def test_frames_are_what_the_folders_hold_in_order(tmp_path):
    first, second = dataset(tmp_path / "a", range(3)), dataset(tmp_path / "b", range(3, 5))
    data = opened({"data": str(first)}, {"data": str(second)})
    assert (data.last - data.first + 1).tolist() == [12, 13, 14, 12, 13]
    assert data.source_of.tolist() == [0, 0, 0, 1, 1]
    reader = DatasetReader(second)
    mine = slice(int(data.first[4]), int(data.last[4]) + 1)
    for key in (ACTION, STATE):
        np.testing.assert_array_equal(data.columns[key][mine], reader.array(1, key).astype(np.float32))
    assert data.contract.action == DEG
    assert data.contract.control_hz == 30
    assert data.describe_frame(int(data.first[4]) + 2).startswith("episode 1 frame 2 of source b (")
    assert data.episode_of(np.array([0, 11, 12, 63])).tolist() == [0, 0, 1, 4]


def test_radians_and_degrees_become_one_where_both_are_known(tmp_path):
    folders = [dataset(tmp_path / "deg", range(3)), dataset(tmp_path / "rad", range(3), units=RAD)]
    for order in (folders, folders[::-1]):
        data = opened(*({"data": str(folder)} for folder in order))
        half = data.frames // 2
        for values in data.columns.values():
            np.testing.assert_allclose(values[:half], values[half:], rtol=1e-5, atol=1e-5)
    assert data.contract.action == RAD


def test_units_that_nobody_said_are_asked_for(tmp_path):
    ours, theirs = dataset(tmp_path / "ours", range(2)), dataset(tmp_path / "theirs", range(2))
    for path in (theirs / layout.UNIT_MAP, theirs / layout.SPEC):
        path.unlink()
    question = (
        rf"{theirs} does not store the unit of pan; {ours} has it in deg\. Which unit is it\? Add `units:` to this "
        r"source \(deg, rad, range_m100_100, range_0_100\)"
    )
    with pytest.raises(UnitsError, match=question):
        opened({"data": str(ours)}, {"data": str(theirs)})
    answered = opened({"data": str(ours)}, {"data": str(theirs), "units": "deg"})
    half = answered.frames // 2
    np.testing.assert_array_equal(answered.columns[STATE][:half], answered.columns[STATE][half:])
    assert any("assumed to have the same zero" in note for note in answered.notes)
    with pytest.raises(UnitsError, match=r"ours already stores the units of its joints \(deg\)\. Remove `units:`"):
        opened({"data": str(ours), "units": "rad"})
    alone = opened({"data": str(theirs)})
    assert any("no folder stores the units" in note for note in alone.notes)


def test_plus_minus_hundred_without_a_calibration_is_no_unit_to_convert(tmp_path):
    rows = tuple(JointUnit(joint=joint, unit=NORMALIZED, scale=None, offset=None) for joint in JOINTS)
    known = dataset(tmp_path / "known", range(2))
    path = dataset(tmp_path / "normalized", range(2), units=DEG)
    (path / layout.UNIT_MAP).write_text(json.dumps(UnitMap(joints=rows, source="log").to_json()))
    with pytest.raises(UnitsError, match=r"pan is in deg in .* and in range_m100_100 in .*--calibration"):
        opened({"data": str(known)}, {"data": str(path)})


def test_columns_in_another_order_are_put_into_the_first_folders_order(tmp_path):
    first, second = dataset(tmp_path / "a", range(2)), dataset(tmp_path / "b", range(2))
    info = json.loads((second / layout.INFO).read_text())
    turned = UnitMap(joints=DEG.joints[::-1], source="turned")
    for key in (ACTION, STATE):
        info["features"][key]["names"] = [f"{name}.pos" for name in turned.names]
    (second / layout.INFO).write_text(json.dumps(info))
    (second / layout.UNIT_MAP).write_text(json.dumps(turned.to_json()))
    data = opened({"data": str(first)}, {"data": str(second)})
    half = data.frames // 2
    np.testing.assert_array_equal(data.columns[ACTION][:half], data.columns[ACTION][half:, ::-1])


def test_failed_episodes_are_left_out_unless_asked_for(tmp_path):
    path = dataset(tmp_path / "a", range(4), failed=(1, 2))
    (source,) = open_sources([SourceConfig(data=str(path))])
    assert [episode.index for episode in source.episodes] == [0, 3]
    (source,) = open_sources([SourceConfig(data=str(path))], keep_failures=True)
    assert len(source.episodes) == 4
    assert source.episodes[1].params == {"joint/pan/damping": 2.0, "joint/lift/damping": 2.0}
    (source,) = open_sources([SourceConfig(data=str(path), episodes=(3, 0))])
    assert [episode.index for episode in source.episodes] == [3, 0]
    with pytest.raises(InputError, match=r"a has no episode to train on: of 2, 2 failed and 0 are invalid"):
        open_sources([SourceConfig(data=str(path), episodes=(1, 2))])
    with pytest.raises(InputError, match=r"a has no episode 4; it has 0 to 3"):
        open_sources([SourceConfig(data=str(path), episodes=(4,))])


def test_folders_of_others_are_read_and_a_person_says_what_they_are(tmp_path):
    path = foreign(tmp_path / "theirs", [5, 6, 7])
    data = opened({"data": str(path), "kind": "sim"})
    assert data.frames == 18
    assert not data.sources[0].real
    assert data.contract.action.names == ("pan", "lift")


def test_a_number_that_is_not_finite_is_named_before_anything_is_trained(tmp_path):
    path = dataset(tmp_path / "a", range(2))
    file = next(path.glob("data/*/*.parquet"))
    table = pq.read_table(file)
    values = np.stack(table[STATE].to_numpy(zero_copy_only=False)).astype(np.float32)
    values[15, 1] = np.nan
    where = table.column_names.index(STATE)
    pq.write_table(table.set_column(where, table.schema.field(STATE), to_fixed_lists(values)), file)
    with pytest.raises(DatasetError, match=r"observation.state of episode 1 is nan in lift.pos at frame 3 \(1 such"):
        opened({"data": str(path)})


def test_other_robots_rates_and_inputs_are_refused(tmp_path):
    first, second = dataset(tmp_path / "a", range(2)), dataset(tmp_path / "b", range(2))
    with pytest.raises(UnknownNameError, match=r"Unknown input 'front' in .*Existing: state"):
        opened({"data": str(first)}, inputs=["state", "front"])
    info = json.loads((second / layout.INFO).read_text())
    (second / layout.INFO).write_text(json.dumps({**info, "fps": 15}))
    with pytest.raises(InputError, match=r"have different frames per second: 30.0 and 15.0"):
        opened({"data": str(first)}, {"data": str(second)})


def test_sources_are_told_apart_by_name(tmp_path):
    path = str(dataset(tmp_path / "a", range(2)))
    sources = open_sources([SourceConfig(data=path), SourceConfig(data=path)])
    assert [source.name for source in sources] == ["a", "a-2"]
    with pytest.raises(InputError, match="Two sources are called x"):
        open_sources([SourceConfig(data=path, name="x"), SourceConfig(data=path, name="x")])
    with pytest.raises(InputError, match="An SQL query needs a workspace, but there is none here"):
        open_sources([SourceConfig(data="SELECT episode_id FROM episodes")], workspace=None)


def test_held_out_episodes_depend_on_seed_and_content_and_are_on_one_side_only():
    data = frames([[4] * 20, [4] * 6, [4] * 3])
    training, held = split(data, 0.1, seed=5)
    counts = np.bincount(data.source_of[held], minlength=3)
    assert counts.tolist() == [2, 1, 0]
    assert sorted([*training, *held]) == list(range(29))
    assert split(data, 0.1, seed=5)[1].tolist() == held.tolist()
    assert any(split(data, 0.1, seed=s)[1].tolist() != held.tolist() for s in range(6, 12))
    assert len(split(data, 0.0, seed=5)[1]) == 0
    twice = dataclasses.replace(data, episodes=data.episodes[:20] + data.episodes[:6] + data.episodes[26:])
    training, held = split(twice, 0.1, seed=5)
    out = {twice.episodes[place].episode_id for place in held}
    assert out.isdisjoint(twice.episodes[place].episode_id for place in training)


def test_weighted_statistics_are_those_of_rows_repeated():
    rng = np.random.default_rng(0)
    rows, times = rng.normal(size=(40, 3)), rng.integers(1, 5, size=40)
    found, repeated = weighted_statistics(rows, times), np.repeat(rows, times, axis=0)
    np.testing.assert_allclose(found.mean, repeated.mean(axis=0))
    np.testing.assert_allclose(found.std, repeated.std(axis=0))
    np.testing.assert_array_equal(found.q99, np.quantile(repeated, 0.99, axis=0, method="inverted_cdf"))
    np.testing.assert_array_equal(found.q01, np.quantile(repeated, 0.01, axis=0, method="inverted_cdf"))


def test_relative_actions_are_measured_beside_the_commands_that_a_policy_sees():
    data = frames([[9] * 3, [9] * 2])
    settings = MlpSettings(action_space="delta_to_state", last_command=True, chunk_size=2)
    found = measure_statistics(data, np.arange(5), [0.75, 0.25], settings).columns
    of_first, of_second = (data.columns[ACTION][:27], data.columns[ACTION][27:])
    mean = 0.75 * of_first.mean(axis=0) + 0.25 * of_second.mean(axis=0)
    np.testing.assert_allclose(found[LAST_COMMAND].mean, mean, rtol=1e-5)
    assert found[ACTION].mean.shape != found[LAST_COMMAND].mean.shape or (found[ACTION].mean != mean).any()


def test_actions_relative_to_the_last_command_are_measured_from_the_command_before():
    data = frames([[9] * 3])
    settings = MlpSettings(action_space="delta_to_command", last_command=True, chunk_size=1)
    found = measure_statistics(data, np.arange(3), [1.0], settings).columns[ACTION]
    action, starts = data.columns[ACTION].astype(np.float64), [0, 9, 18]
    before = np.roll(action, 1, axis=0)
    before[starts] = data.columns[STATE][starts]
    np.testing.assert_allclose(found.mean, (action - before).mean(axis=0), rtol=1e-4, atol=1e-5)


def test_a_recipe_fills_in_what_nobody_said():
    made = resolve_config(TrainConfig.of({"sources": [{"data": "x"}]}))
    assert (made.steps, made.lr) == (RECIPES["mlp"].steps, RECIPES["mlp"].lr)
    assert (made.settings["loss"], made.settings["n_action_steps"]) == ("l1", 24)
    said = {"sources": [{"data": "x"}], "steps": 3, "settings": {"chunk_size": 4, "loss": "mse"}}
    made = resolve_config(TrainConfig.of(said))
    assert (made.steps, made.settings["loss"], made.settings["n_action_steps"]) == (3, "mse", 4)
    assert resolve_config(made) == made


def test_a_file_and_flags_make_one_configuration(tmp_path):
    dataset(tmp_path / "sim", range(2))
    file = tmp_path / "train.yaml"
    file.write_text("policy: flow\nsteps: 50\nsources: [{data: sim}, {data: frozen, weight: 2}]\n")
    made = read_config(file, steps=7, seed=None)
    assert (made.policy, made.steps, made.seed) == ("flow", 7, 0)
    assert [source.data for source in made.sources] == [str((tmp_path / "sim").resolve()), "frozen"]
    with pytest.raises(InputError, match="names no training data. Give --data FOLDER"):
        read_config(None, steps=3)
    with pytest.raises(InputError, match=r"stepz: .* Nearest existing: steps"):
        config(tmp_path, stepz=3)
