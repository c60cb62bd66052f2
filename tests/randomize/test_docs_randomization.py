"""The examples of the page on randomization are read unchanged, and name existing parameters."""

from __future__ import annotations

import re

import pytest
import yaml

from support.docs_sections import section
from twinloop.generate import resolve_config
from twinloop.generate.config import load_plan
from twinloop.randomize import make_design
from twinloop.randomize.constraints import LEAST_ACCEPTED, parse_constraint
from twinloop.randomize.coverage import MARGINAL_CELLS, MOST_BALL_AXES, PAIR_CELLS, TRIPLE_CELLS
from twinloop.randomize.options import AdaptiveOptions

PAGE = section("guides/randomize.md", "Parameters that vary between worlds")
SECTIONS = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize("text", SECTIONS)
def test_every_section_is_a_plan(text, tmp_path):
    value = {"scene": {"robot": "so101", "task": "pick_and_place"}, "randomization": yaml.safe_load(text)}
    plan = load_plan(resolve_config(value, where="docs/guides/randomize.md", folder=tmp_path, episodes=64))
    assert plan.draw(range(64)).nworld == 64


def test_every_design_of_the_table_exists():
    shown = re.findall(r"^\| `(.+?)` \|", PAGE.replace("[…]", "['object/*']"), flags=re.MULTILINE)
    kinds = {make_design(yaml.safe_load(text), episodes=8, where="docs").kind for text in shown if text != "design"}
    assert kinds == {"independent", "sobol", "latin_hypercube", "stratified", "grid"}


def test_every_function_of_the_page_is_one():
    for name in ("abs", "sqrt", "exp", "log", "sin", "cos", "tan"):
        assert f"`{name}`" in PAGE
        parse_constraint(f"{name}(a/b) < pi", ["a/b"], where="docs")
    for name in ("hypot", "min", "max"):
        assert f"`{name}`" in PAGE
        parse_constraint(f"{name}(a/b, 1) < 2", ["a/b"], where="docs")


def test_the_numbers_of_the_page_are_those_of_the_code():
    shown = next(yaml.safe_load(text)["adaptive"] for text in SECTIONS if "adaptive:" in text)
    defaults = AdaptiveOptions(names=["x"])
    for key in ("every", "boundary_probability", "buffer", "step", "start"):
        assert shown[key] == getattr(defaults, key)
    assert tuple(shown["thresholds"]) == defaults.thresholds
    assert f"the counts of {MARGINAL_CELLS} parts" in PAGE
    assert f"the {PAIR_CELLS} × {PAIR_CELLS} cells" in PAGE
    assert " × ".join([str(TRIPLE_CELLS)] * 3) in PAGE
    assert f"up to {MOST_BALL_AXES} parameters" in PAGE
    assert f"below {LEAST_ACCEPTED * 100:.0f} % a run does not start" in PAGE
