"""An SO-101 in PyBullet, from its first recording to the scenario of a failure, with documented commands only.

The folder ``pybullet_so101`` holds all that a user writes: the class of the robot and one settings file. The URDF would
come from the robot's maker; the test writes it from the model of the twin, so that both have the same kinematics.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.support.mjcf_urdf import write_urdf
from twinloop.cli.main import main
from twinloop.core.extension import approve
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.twin import load_twin

FILES = Path(__file__).parent / "pybullet_so101"
ROBOT = ["--robot", "arm.py:Arm", "--twin", "so101_tabletop"]
GAIN, DAMPING, FRICTION, DELAY = 7.0, 0.6, 0.08, 0.05  # of the class
ZEROS = np.radians([1.2, -0.9, 0.8, -1.0, 1.5])  # the gripper does not move the tool


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The user's folder."""
    pytest.importorskip("pybullet")
    pytest.importorskip("torch")
    monkeypatch.setenv("TWINLOOP_HOME", str(tmp_path / "settings"))
    user = shutil.copytree(FILES, tmp_path / "user", ignore=shutil.ignore_patterns("__pycache__"))
    write_urdf(user / "so101.urdf", load_twin("so101_tabletop").model, "base", "tcp")
    approve(user / "arm.py")
    monkeypatch.chdir(user)
    return user


@pytest.mark.slow
def test_from_another_engine_to_the_scenario_of_a_failure(folder):
    assert main(["robot", "check", "arm.py:Arm"]) == 0
    assert main(["record", *ROBOT, "--motion", "pick", "--output", "data/picked"]) == 0
    words = ["--motion", "random", "--seconds", "6", "--seed", "3", "--repeat", "6", "--output", "data/moved"]
    assert main(["record", *ROBOT, *words]) == 0
    assert cube_was_lifted(folder / "data" / "picked")

    words = ["--data", "data/moved", "--holdout", "last:2", "--output", "fit"]
    assert main(["identify", "--twin", "so101_tabletop", *words]) == 0
    result = json.loads((folder / "fit" / "result.json").read_text())
    intervals = compare_with_planted(result)
    print_comparison(intervals, result)
    held = {name: low <= value <= high for name, (value, low, high) in intervals.items()}
    assert sum(held.values()) >= 0.8 * len(held) > 8, held
    assert all(inside for name, inside in held.items() if name.startswith("sensor/"))
    nominal, fitted = held_out_errors(result)
    assert (fitted < 0.5 * nominal).all()

    assert main(["generate", "generate.yaml", "--episodes", "150", "--seed", "2", "--output", "data/sim"]) == 0
    assert main(["train", "--data", "data/sim", "--policy", "mlp", "--steps", "1500", "--output", "policy"]) == 0
    words = ["--policy", "policy", "--episodes", "10", "--first", "100", "--seconds", "7", "--stop-on-success"]
    assert main(["run", *ROBOT, *words, "--on-trip", "go-on", "--output", "data/tried"]) in (0, 1)
    driven = DatasetReader(folder / "data" / "tried")
    outcomes = [driven.provenance(i).success for i in range(len(driven))]
    assert {True, False} == set(outcomes)
    words = [f"data/tried:{outcomes.index(False)}", "--name", "failed", "--identified", "fit", "--tries", "8"]
    assert main(["scenario", "from-failure", *words]) in (0, 1)
    assert main(["scenario", "show", "failed"]) == 0


def cube_was_lifted(folder):
    """Return whether the tracked cube rose by 4 cm or more; the motion lifts it by 8 cm."""
    reader = DatasetReader(folder)
    key = "observation.environment_state"
    tracked = np.array(reader.frames_table(0, [key])[key].to_pylist())
    return np.ptp(tracked[:, 5]) > 0.04  # tool x, y, z, cube x, y, z


def compare_with_planted(result):
    """Return the planted value and the interval of each determined parameter that both engines have, by name."""
    planted = {}
    for index, joint in enumerate(load_twin("so101_tabletop").robot.joints):
        planted |= {f"actuator/{joint}/kp": GAIN, f"actuator/{joint}/delay": DELAY, f"joint/{joint}/damping": DAMPING}
        planted |= {f"joint/{joint}/frictionloss": FRICTION}
        planted |= {f"sensor/{joint}/offset": -ZEROS[index]} if index < len(ZEROS) else {}
    rows = {row["name"]: row for row in result["estimates"] if row["low"] is not None}
    return {name: (value, rows[name]["low"], rows[name]["high"]) for name, value in planted.items() if name in rows}


def held_out_errors(result):
    """Return the mean absolute errors of nominal and identified twin on held-out episodes, ``(nchannel,)`` each."""
    return (np.array(result["gap"]["twins"][twin]["estimate"]) for twin in ("nominal", "identified"))


def print_comparison(intervals, result):
    """Print planted values with their intervals, and held-out errors before and after the fit."""
    lines = [
        f"{name:32} {value:9.4f} [{low:.4f}, {high:.4f}] {'inside' if low <= value <= high else 'OUTSIDE'}"
        for name, (value, low, high) in intervals.items()
    ]
    lines += [
        f"{channel:32} held-out error {before:.4g} nominal, {after:.4g} identified"
        for channel, before, after in zip(result["joints"], *held_out_errors(result), strict=True)
    ]
    print("\n".join(lines))  # noqa: T201 - shown by pytest -s
