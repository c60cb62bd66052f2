"""``python -m benchmarks real``: split a set by its rule or by folders, fit, score, and write a table."""

import json
import shutil

import numpy as np
import pytest
from rich.console import Console

from benchmarks.commands import PROGRAM
from benchmarks.real_data.run import PLACE, open_case, run_bench_real
from benchmarks.studies import marks
from twinloop.cli.main import main
from twinloop.core.errors import InputError, UnknownNameError

NOWHERE = Console(quiet=True)


def pendulum_log(path, *, seed, frames=460, hz=300.0):
    """A run in the layout of the public set: a pendulum of J 0.16 kg m2 and m c 0.30 kg m, driven by two sines."""
    rng = np.random.default_rng(seed)
    time = np.arange(frames) / hz
    torque = np.sin(2 * np.pi * 0.7 * time + rng.uniform(0, 6)) + 0.6 * np.sin(2 * np.pi * 1.9 * time)
    position, velocity, substeps = np.zeros(frames), np.zeros(frames), 10
    q = v = 0.0
    for frame in range(frames):
        position[frame], velocity[frame] = q, v
        for _ in range(substeps):
            load = 0.30 * 9.81 * np.sin(q) + 0.047 * v + 0.12 * np.tanh(v / 0.02)
            v += (torque[frame] - load) / 0.16 / hz / substeps
            q += v / hz / substeps
    path.mkdir(parents=True)
    table = np.stack([time, position + 2e-4 * rng.normal(size=frames), velocity, torque], axis=1)
    for name in ("data_measured.csv", "data_desired.csv"):
        np.savetxt(path / name, table, delimiter=",", header="time,position,velocity,torque", comments="")


@pytest.fixture
def folders(tmp_path):
    train, test = tmp_path / "train", tmp_path / "test"
    name = "dfki_simple_pendulum"
    pendulum_log(train / name / "control_method_pd" / "system_identification", seed=1)
    pendulum_log(test / name / "control_method_energy_shaping", seed=2)
    pendulum_log(test / name / "control_method_gravity_compensation", seed=3)
    return train, test


@pytest.mark.slow
def test_everything_in_one_folder_is_fitted_and_everything_in_the_other_scored(folders, tmp_path, capsys):
    """An episode that is in both folders is left out and said; a set without episodes is named."""
    train, test = folders
    source = "dfki_simple_pendulum/control_method_pd"
    shutil.copytree(train / source, test / source)
    first, last = marks(PLACE)
    page = tmp_path / "page.md"
    page.write_text(f"before\n{first}\n{last}\nafter\n")
    words = ["real", "--train", str(train), "--test", str(test), "--threads", "1", "--json", "--write", str(page)]
    assert main([*words, "--only", "dfki_simple_pendulum", "planar_impacts"], PROGRAM) == 0
    case, missing = json.loads(capsys.readouterr().out)["cases"]
    assert missing == {"data": "planar_impacts", "skipped": "no episodes to train on"}
    [fold] = case["folds"]
    assert (fold["training_episodes"], fold["test_episodes"]) == (1, 2)
    assert "1 test episodes are training episodes and were excluded" in case["rule"]
    assert fold["chosen"] in case["candidates"] == list(fold["losses"])
    assert fold["losses"][fold["chosen"]] == min(fold["losses"].values())
    assert fold["fitted"][0] < 0.7 * fold["references"]["published"][0]
    low, high = (ends[0] for ends in fold["differences"]["published"])
    assert low < fold["fitted"][0] - fold["references"]["published"][0] < high < 0
    text = page.read_text()
    assert text.startswith(f"before\n{first}\nMean over outer folds:\n\n| data | metric |")
    assert f"dfki_simple_pendulum: 1 folds ({case['rule']}), 6 candidates" in text
    assert case["rule"].startswith("folders given")
    assert text.endswith(f"{last}\nafter\n")


def test_what_cannot_be_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="Give --train and --test together"):
        run_bench_real(NOWHERE, train=tmp_path)
    with pytest.raises(InputError, match="No data set could be fitted. planar_impacts: no episodes to train on"):
        run_bench_real(NOWHERE, only=("planar_impacts",), train=tmp_path, test=tmp_path)
    with pytest.raises(UnknownNameError, match="Unknown real set with a fit 'bam'"):
        open_case("bam")
