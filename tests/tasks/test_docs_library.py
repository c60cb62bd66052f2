"""The page of the library lists what the code has, and its example is a twin on which its task succeeds."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.docs_sections import section
from twinloop.checks.task import draw_worlds
from twinloop.generate import read_config
from twinloop.generate.config import load_plan
from twinloop.simulate import open_backend, rollout
from twinloop.tasks import open_task
from twinloop.twin import load_twin
from twinloop.twin.load import read_spec
from twinloop.twin.spec import AttachSpec, TwinSpec
from twinloop.workflows.task.library import COMMAND, library_tables, write_tables

PAGE = Path("docs/guides/library.md")


def example(name: str) -> str:
    """Return the YAML block of the page that begins with the name of a file."""
    blocks = re.findall(r"```yaml\n(.*?)```", section("guides/library.md"), flags=re.DOTALL)
    return next(block for block in blocks if block.startswith(f"# {name}"))


def test_the_tables_are_what_the_code_writes():
    assert f"begin -->\n{library_tables()}\n<!-- " in PAGE.read_text(), f"{PAGE} is out of date. Run: {COMMAND}"


def test_the_command_replaces_the_tables_alone(tmp_path):
    copy = tmp_path / "library.md"
    copy.write_text(PAGE.read_text().replace("| `stack` |", "| `heap` |"))
    write_tables(copy)
    assert copy.read_text() == PAGE.read_text()


def test_the_experts_of_the_example_succeed(tmp_path):
    (tmp_path / "my_cell.yaml").write_text(example("my_cell.yaml"))
    twin = load_twin(tmp_path / "my_cell.yaml")
    assert twin.params["soft/tissue/young"].default_range == (15e3, 25e3)  # instead of the part's
    assert "object/cube/mass" not in twin.params
    assert "object/block/mass" in twin.params
    task = open_task("press", twin)
    params = draw_worlds(twin, "default", range(8), 5)
    initial = task.reset(params, run_seed=5, episodes=list(range(8)))
    made = rollout(open_backend("threads"), twin, params, initial, task.expert(initial), task.nstep)
    assert task.success(made.states)[:, -1].all()


def test_the_file_for_generate_is_read(tmp_path):
    (tmp_path / "stack.yaml").write_text(example("stack.yaml"))
    assert read_config(tmp_path / "stack.yaml").task == "stack"


@pytest.mark.skipif(find_spec("gymnasium_robotics") is None, reason="the package of the hand is not installed")
def test_the_files_for_the_hand_are_read(tmp_path):
    for name in ("easy_hand.yaml", "turn.yaml"):
        (tmp_path / name).write_text(example(name))
    made = read_config(tmp_path / "turn.yaml", episodes=64)
    plan = load_plan(made)
    assert plan.adaptive is not None
    assert "object/cube/size" in plan.adaptive.names
    task = open_task(made.task, plan.twin)
    assert (task.settings.turn, task.settings.upright) == ((0.6, 1.2), True)


def test_the_two_arms_of_the_page_are_those_of_the_library():
    hands = read_spec("aloha_hand_over").robot.hands
    (line,) = re.findall(r"^  hands: .*$", PAGE.read_text(), flags=re.MULTILINE)
    assert list(hands) == ["left"]
    assert f"tcp: {hands['left'].tcp}, gripper: {{joint: {hands['left'].gripper.joint}" in line


@pytest.mark.parametrize("key", ["remove", "attach", "integrator", "install", "task"])
def test_the_keys_of_the_page_exist(key):
    assert f"| `{key}` |" in PAGE.read_text()
    assert key in TwinSpec.model_fields


def test_the_page_names_every_key_of_an_attachment():
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith("| `attach` |"))
    assert [key for key in AttachSpec.model_fields if f"`{key}`" not in row] == []
