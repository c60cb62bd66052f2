"""An invalid world is stored separately with its states and its reason; the other worlds are unaffected."""

from __future__ import annotations

import json

import numpy as np
import pytest

from support.generate_aside import MODEL
from support.generate_aside import value as value
from twinloop.cli.main import main
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.files import sha256_tree
from twinloop.dataset.invalid_worlds import invalid_world_numbers, read_invalid_world
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.lerobot.validation import validate
from twinloop.generate import generate_states, replay_episode, replay_invalid_attempt, resolve_config
from twinloop.rollout import initial_from_state

PARAMS = {"params": {"actuator/*/torque_limit": {"scale": [1.0, 1.0]}}}


def run(value, output, *, keep="success", workers=1):
    folder, content = value
    config = resolve_config(content, where="test", folder=folder, keep=keep)
    return generate_states(config, output, workers=workers)


@pytest.fixture(scope="module", params=["success", "all"])
def dataset(request, value, tmp_path_factory):
    output = tmp_path_factory.mktemp(request.param) / "batch"
    return output, run(value, output, keep=request.param), request.param


def test_lost_worlds_are_counted_with_their_reason_and_the_rest_goes_on(dataset):
    folder, result, keep = dataset
    numbers = invalid_world_numbers(folder)
    assert 0 < len(numbers) < 20
    assert result["invalid"] == len(numbers) == sum(result["reasons"].values())
    assert json.loads((folder / "twinloop" / "result.json").read_text())["reasons"] == result["reasons"]
    assert result["attempted"] == 40
    kept = DatasetReader(folder).numbers.tolist()
    assert result["success"] == 40 - len(numbers)
    assert (set(kept) & set(numbers) == set()) == (keep == "success")
    assert all(verdict.accepted for verdict in validate(folder))


def test_what_is_kept_of_a_lost_world_can_be_trusted_and_loses_it_again(dataset):
    folder, _, _ = dataset
    for number in invalid_world_numbers(folder):
        item = read_invalid_world(folder, number)
        assert item.step >= 12
        assert len(item.states) == len(item.commands) == item.step + 1
        assert np.isfinite(item.states).all()
        assert np.abs(item.commands[-1]).max() == 1e14
        assert item.provenance.invalid_reason == f"{item.reason} in control step {item.step}"
        assert not item.provenance.valid
        again = replay_invalid_attempt(folder, number)
        assert again.equal, again.summary_line()
        assert again.invalid_reason == item.reason
        line = again.summary_line()
        assert f"Attempt {number} (invalid world): {item.step} frames equal bit for bit, and the world becomes" in line


def test_neighbours_of_a_lost_world_are_what_they_are_alone(dataset, value):
    """Nothing of a diverging world reaches another: the kept ones replay alone, bit for bit."""
    folder, _, keep = dataset
    reader = DatasetReader(folder)
    for episode in range(0, len(reader), 7):
        assert replay_episode(folder, episode).equal
    if keep == "all":
        marks = [reader.provenance(i).valid for i in range(len(reader))]
        assert [int(reader.numbers[i]) for i, mark in enumerate(marks) if not mark] == invalid_world_numbers(folder)


def test_two_workers_set_the_same_aside(dataset, value, tmp_path):
    folder, _, keep = dataset
    run(value, tmp_path / "batch", keep=keep, workers=2)
    assert sha256_tree(tmp_path / "batch") == sha256_tree(folder)


def test_a_world_that_was_not_set_aside_says_which_were(dataset, capsys):
    folder, _, _ = dataset
    numbers = invalid_world_numbers(folder)
    other = next(number for number in range(40) if number not in numbers)
    with pytest.raises(InputError, match=rf"Attempt {other} of .* is not invalid. Invalid attempts: {numbers[0]}, "):
        read_invalid_world(folder, other)
    assert main(["replay", str(folder), str(numbers[0]), "--invalid", "--verify"]) == 0
    assert "the world becomes invalid again" in " ".join(capsys.readouterr().out.split())
    (folder.parent / "none").mkdir(exist_ok=True)
    with pytest.raises(InputError, match="It has no invalid attempts"):
        read_invalid_world(folder.parent / "none", 3)


def test_a_replay_from_another_beginning_is_not_called_equal(dataset, value):
    """The check can fail: one bit of the first state changed and the trusted states differ."""
    folder, _, _ = dataset
    item = read_invalid_world(folder, invalid_world_numbers(folder)[0])
    twin_config = resolve_config(value[1], where="test", folder=value[0])
    from twinloop.generate.config import load_plan
    from twinloop.rollout import replay
    from twinloop.rollout.replay import recorded_params

    twin = load_plan(twin_config).twin
    moved = item.states[0].copy()
    moved[1] = np.nextafter(moved[1], 10)
    start = initial_from_state(twin, moved, item.provenance.extra["initial_command"])
    states = replay(twin, recorded_params(twin, item.provenance), start, item.commands)
    assert (states[: item.step + 1] != item.states).any()


def test_a_replay_with_another_version_of_the_twin_is_refused(dataset, value):
    """The file, name and layout are the same and one link is 10 % heavier: only the model's hash differs."""
    folder, _, _ = dataset
    (model,) = (folder / "twinloop" / "sources").rglob("swing.xml")
    number = invalid_world_numbers(folder)[0]
    model.write_text(MODEL.replace('mass="1"', 'mass="1.1"', 1))
    try:
        with pytest.raises(
            InputError, match=r"Episode \d+ was made with free_swing .* this is free_swing .* Replay with"
        ):
            replay_episode(folder, 0)
        with pytest.raises(InputError, match=rf"Attempt {number} was made with free_swing .* this is free_swing"):
            replay_invalid_attempt(folder, number)
    finally:
        model.write_text(MODEL)
    assert replay_invalid_attempt(folder, number).equal


def test_the_backend_of_a_file_decides_who_steps_and_unknown_ones_are_refused(value, tmp_path):
    folder, content = value
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    generate_states(resolve_config(content, where="t", folder=folder, episodes=5), fast)
    generate_states(resolve_config(content, where="t", folder=folder, episodes=5, backend="reference"), slow)
    one, two = DatasetReader(fast), DatasetReader(slow)
    assert one.provenance(0).extra["backend"] == "threads"
    assert two.provenance(0).extra["backend"] == "reference"
    for episode in range(len(one)):
        np.testing.assert_array_equal(one.states(episode), two.states(episode))
    assert replay_episode(slow, 0).equal
    with pytest.raises(UnknownNameError, match="Unknown backend 'thread'. Nearest existing: threads"):
        generate_states(resolve_config(content, where="t", folder=folder, backend="thread"), tmp_path / "x")
    assert not (tmp_path / "x").exists()
