"""A generated dataset is a function of its configuration: not of workers, interruptions or the clock."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from twinloop.core.errors import BoundsError, DatasetError, InputError, UnknownNameError
from twinloop.core.files import sha256_tree
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.lerobot.validation import validate
from twinloop.generate import generate_states, read_config, replay_episode, resolve_config
from twinloop.generate.config import load_plan
from twinloop.tasks import open_task

SMALL = {"scene": {"robot": "so101", "task": "pick_and_place"}, "rollout": {"parallel_envs": 4, "episodes_per_env": 3}}


def config(folder: Path, **changes):
    return resolve_config({**SMALL, **changes}, where="test", folder=folder)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Twelve attempts in three blocks, one worker."""
    folder = tmp_path_factory.mktemp("one") / "batch"
    return folder, generate_states(config(folder.parent), folder)


def test_the_metrics_count_every_attempt(dataset):
    folder, result = dataset
    assert result["attempted"] == 12
    assert result["episodes"] == result["success"] == len(DatasetReader(folder))
    assert result["success"] >= 10


@pytest.mark.slow
def test_bytes_do_not_depend_on_the_number_of_workers(dataset, tmp_path):
    folder, _ = dataset
    again = tmp_path / "batch"
    generate_states(config(tmp_path), again, workers=2)
    assert sha256_tree(again) == sha256_tree(folder)


@pytest.mark.slow
def test_an_episode_is_the_same_whatever_the_block_it_was_made_in(dataset, tmp_path):
    """Blocks of 4 and of 6 worlds: the same episode numbers hold the same states, bit for bit."""
    folder, _ = dataset
    other = tmp_path / "batch"
    generate_states(config(tmp_path, rollout={"parallel_envs": 6, "episodes_per_env": 2}), other)
    one, two = DatasetReader(folder), DatasetReader(other)
    np.testing.assert_array_equal(one.numbers, two.numbers)
    for episode in range(len(one)):
        np.testing.assert_array_equal(one.states(episode), two.states(episode))
        np.testing.assert_array_equal(one.commands(episode), two.commands(episode))


def test_every_episode_replays_bit_for_bit(dataset):
    folder, result = dataset
    for episode in range(result["episodes"]):
        replayed = replay_episode(folder, episode)
        assert replayed.equal, replayed.summary_line()


def test_success_can_be_judged_again_from_the_stored_states(dataset):
    folder, _ = dataset
    reader = DatasetReader(folder)
    plan = load_plan(config(folder.parent))
    task = open_task("pick_and_place", plan.twin)
    for episode in range(len(reader)):
        assert task.success(reader.states(episode)[None])[0, -1]
        drawn = plan.draw([int(reader.numbers[episode])]).row(0)
        assert reader.provenance(episode).params == drawn


def test_both_validators_accept_it(dataset):
    folder, _ = dataset
    for verdict in validate(folder):
        assert verdict.accepted, verdict


def test_keeping_everything_marks_what_failed(tmp_path):
    hard = {"params": {"object/cube/friction/slide": [0.06, 1.0]}}
    everything, kept = tmp_path / "all", tmp_path / "kept"
    value = {**SMALL, "randomization": hard}
    full = generate_states(resolve_config(value, where="t", folder=tmp_path, keep="all"), everything)
    short = generate_states(resolve_config(value, where="t", folder=tmp_path), kept)
    reader = DatasetReader(everything)
    marks = [reader.provenance(i).success for i in range(len(reader))]
    assert full["episodes"] == 12
    assert sum(marks) == short["episodes"] == short["success"] < 12
    assert DatasetReader(kept).numbers.tolist() == [i for i, mark in enumerate(marks) if mark]


def start(folder: Path, output: Path, *more: str) -> subprocess.Popen:
    file = folder / "generate.yaml"
    file.write_text(yaml.safe_dump(SMALL))
    command = [
        sys.executable,
        "-m",
        "twinloop",
        "generate",
        str(file),
        "--output",
        str(output),
        "--workers",
        "1",
        *more,
    ]
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)  # a child would inherit an ignored one
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, ignored)


def wait_for_a_block(output: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 60
    while not (output / "meta" / "info.json").is_file():
        assert process.poll() is None or (output / "meta" / "info.json").is_file(), process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stopped_midway(folder: Path, stop: signal.Signals) -> tuple[Path, int, str]:
    """A run that was stopped after a block and before its end: its folder, exit code and messages.

    On a busy machine a run of one second may end before the test can stop it; the fixture then starts another run.
    """
    for attempt in range(10):
        output = folder / f"run{attempt}" / "batch"
        process = start(folder, output)
        wait_for_a_block(output, process)
        process.send_signal(stop)
        _, errors = process.communicate(timeout=60)
        if not (output / "twinloop" / "result.json").is_file():
            return output, process.returncode, errors
    return pytest.fail("Ten runs ended before they could be stopped.")


@pytest.mark.parametrize("stop", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_stopped_run_is_readable_and_resumes_to_the_same_bytes(dataset, tmp_path, stop):
    folder, result = dataset
    output, code, errors = stopped_midway(tmp_path, stop)
    assert code == (130 if stop == signal.SIGINT else -stop), errors
    if stop == signal.SIGINT:
        assert "--resume continues from there" in errors
    stopped = DatasetReader(output)
    assert 0 < len(stopped) <= result["episodes"]
    assert np.isfinite(stopped.array(len(stopped) - 1, "action")).all()
    resumed = start(tmp_path, output, "--resume", "--json")
    printed, errors = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, errors
    assert sha256_tree(output) == sha256_tree(folder)
    assert yaml.safe_load(printed.splitlines()[-1])["episodes"] == result["episodes"]


def test_resuming_with_another_configuration_is_refused(dataset, tmp_path):
    folder, _ = dataset
    before = sha256_tree(folder)
    with pytest.raises(
        DatasetError, match=r"another config, config_hash \(.*seed 7 instead of 0\), so it cannot be resumed"
    ):
        generate_states(config(tmp_path, seed=7), folder, resume=True)
    with pytest.raises(DatasetError):
        generate_states(config(tmp_path), folder)
    assert sha256_tree(folder) == before


def test_the_published_configuration_is_read_as_it_stands(tmp_path):
    file = tmp_path / "generate.yaml"
    file.write_text(
        "scene:\n  robot: franka_panda\n  task: pick_and_place\n"
        "randomization:\n  visual:\n    texture_pool: 200\n    lighting_intensity: [0.3, 1.8]\n"
        "    camera_jitter_deg: [-5, 5]\n  physics:\n    object_mass_kg: [0.05, 0.4]\n"
        "    friction_coefficient: [0.2, 1.1]\n    object_position_noise_cm: [-2, 2]\n"
        "rollout:\n  parallel_envs: 4096\n  episodes_per_env: 50\n"
    )
    full = read_config(file)
    assert (full.twin, full.episodes) == ("panda_tabletop", 204_800)
    assert read_config(file, episodes=8).episodes == 8
    plan = load_plan(full)
    assert plan.texture_pool == 200
    assert {name for draw in plan.draws for name in draw.names} >= {"object/cube/mass", "camera/wrist/rotation/z"}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"scene": {"robot": "so102", "task": "x"}},
            UnknownNameError,
            "Unknown robot 'so102'.*Nearest existing: so101",
        ),
        ({"scene": {"task": "x"}}, InputError, "exactly one of the keys robot and twin"),
        ({"rollouts": {}}, InputError, "rollouts: This key does not exist"),
        (
            {"rollout": {"parallel_envs": 0}},
            InputError,
            "rollout.parallel_envs: Input should be greater than or equal to 1",
        ),
        ({"randomization": {"identified": "nowhere"}}, InputError, "nowhere does not exist"),
    ],
)
def test_a_wrong_file_is_refused_with_its_key(tmp_path, change, error, message):
    with pytest.raises(error, match=message):
        config(tmp_path, **change)


def test_a_range_beyond_physics_is_refused_before_anything_is_written(tmp_path):
    value = {**SMALL, "randomization": {"physics": {"object_mass_kg": [-1, 2]}}}
    with pytest.raises(BoundsError, match="object/cube/mass"):
        generate_states(resolve_config(value, where="t", folder=tmp_path), tmp_path / "batch")
    assert not (tmp_path / "batch").exists()
