"""Data as an attacker would send them: valid in every hash, and naming code that leaves a sentinel when it runs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import yaml

from twinloop.cli.main import main
from twinloop.dataset.lerobot import layout
from twinloop.rollout import run_batch
from twinloop.rollout.scenario import Scenario
from twinloop.rollout.scenario_files import write_scenario
from twinloop.scenario.regress import format_stored_outcomes
from twinloop.scenario.trials import TrialOutcomes
from twinloop.simulate import open_backend
from twinloop.tasks import open_task
from twinloop.twin import load_twin

CODE = """
from pathlib import Path
Path({sentinel!r}).write_text("ran")
from twinloop.tasks.pick_and_place import PickAndPlace

class Task(PickAndPlace):
    pass

class Rule: pass
class Robot: pass
class Encoder: pass
class Renderer: pass
class Check: pass
"""
GENERATE = {
    "scene": {"robot": "so101", "task": "pick_and_place"},
    "randomization": {"params": {"object/cube/friction/slide": [0.05, 0.051]}},  # the cube slips: every episode fails
    "rollout": {"parallel_envs": 2},
}


def write_code(file: Path, sentinel: Path) -> Path:
    """Write a Python file that leaves ``sentinel`` when it runs."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(CODE.format(sentinel=str(sentinel)))
    return file


def make_workspace(root: Path) -> Path:
    """Make a workspace, and outside of it, in ``honest``, a dataset of two failed episodes that it does not contain."""
    assert main(["init", str(root), "--robot", "so101"]) == 0
    (root / "generate.yaml").write_text(yaml.safe_dump(GENERATE))
    output = str(root.parent / "honest")
    assert main(["generate", str(root / "generate.yaml"), "--output", output, "--keep", "all"]) == 0
    other = [str(root.parent / "other"), "--keep", "all", "--seed", "1"]
    assert main(["generate", str(root / "generate.yaml"), "--output", *other]) == 0
    return root


def send_dataset(root: Path, sentinel: Path, *, name: str = "sent", inside: bool = False) -> Path:
    """Put a dataset into the workspace whose configuration names a Python file, in the dataset if ``inside``."""
    folder = shutil.copytree(root.parent / "honest", root / "data" / name)
    code = write_code(
        (folder / layout.OWN / "sources" / "1" if inside else root.parent / "elsewhere") / "helper.py", sentinel
    )
    file = folder / layout.SPEC
    spec = json.loads(file.read_text())
    named = f"{code}:Task"
    spec["config"]["generate"]["task"] = named
    spec["config"]["generate"]["file"]["scene"]["task"] = named
    if inside:
        spec["config"]["assignment"]["task"] = "sources/1/helper.py:Task"
    else:  # as datasets of earlier versions
        del spec["config"]["assignment"]
    file.write_text(json.dumps(spec))
    return folder


def send_scenario(root: Path, sentinel: Path, *, name: str = "sent") -> Path:
    """Put a scenario with a valid hash into the workspace; its task is a Python file that is not among data."""
    twin = load_twin("so101_tabletop")
    task = open_task("pick_and_place", twin)
    task.nstep = 3
    made = run_batch(twin, task, twin.table(1), run_seed=3, episodes=[0], backend=open_backend(nthread=1))
    world = Scenario.of_episode(made.episode(0), twin, task, name=name)
    code = write_code(root.parent / "elsewhere" / "helper.py", sentinel)
    evidence = {"expected": format_stored_outcomes("expert", TrialOutcomes.of_outcomes("00000"))}
    return write_scenario(replace(world, task=f"{code}:Task", evidence=evidence), root / "scenarios" / name)
