"""A recording with a tracked tool determines encoder zeros; joint readings alone do not."""

import json

import pytest

from twinloop.cli.main import main
from twinloop.hardware import open_robot

ROBOT = "virtual:so101_tabletop?seed=3&task=pick_and_place"
JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex")  # the others hardly move the tool site


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("zeros")
    words = ["--motion", "random", "--repeat", "6", "--seconds", "8", "--seed", "5", "--output", str(made / "data")]
    assert main(["record", "--robot", ROBOT, *words]) == 0
    return made


def read_zeros(run):
    """The fitted zero of each joint, as in the result of ``identify``."""
    rows = {row["name"]: row for row in json.loads((run / "result.json").read_text())["estimates"]}
    return {joint: rows[f"sensor/{joint}/offset"] for joint in JOINTS}


def identify(folder, name, *words):
    run = folder / name
    command = ["identify", "--twin", "so101_tabletop", "--data", str(folder / "data"), "--output", str(run), *words]
    assert main(command) == 0
    return read_zeros(run)


@pytest.mark.slow
def test_a_tracked_tool_determines_the_zeros(folder):
    planted = open_robot(ROBOT).cell.values
    for joint, row in identify(folder, "tracked").items():
        truth = planted[f"sensor/{joint}/offset"]
        assert row["determined"]
        assert row["low"] <= truth <= row["high"]
        assert row["value"] == pytest.approx(truth, abs=0.015)


@pytest.mark.slow
def test_joint_readings_alone_do_not_determine_them(folder):
    (folder / "fit.yaml").write_text("replay: {compare: [position]}\n")
    zeros = identify(folder, "alone", "--fit", str(folder / "fit.yaml"))
    assert not any(row["determined"] for row in zeros.values())
    assert all(row["reason"] for row in zeros.values())
