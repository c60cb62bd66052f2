"""Errors in a randomization section are refused by key, with the valid alternative."""

from __future__ import annotations

import pytest

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.generate import resolve_config
from twinloop.randomize import section_plan
from twinloop.twin import load_twin

SO101 = load_twin("so101_tabletop")
MASS = "object/cube/mass"


def adaptive(**options):
    return {"default": True, "adaptive": {"names": [MASS], "every": 4, **options}}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"physics": [1, 2]}, r"g: randomization.physics: lines of `name: \[low, high\]` are expected; given \[1, 2\]"),
        ({"visual": {"texture_pool": True}}, "a whole number of textures, at least 1; given True"),
        ({"params": {MASS: [False, True]}}, r"\[low, high\] with two numbers; given \[False, True\]"),
        ({"params": {MASS: {"low": 0.02, "high": 0.03, "tied": "no"}}}, "tied: true or false is expected; given 'no'"),
        (
            {"params": {"joint/*/damping": {"scale": [0.5, 1], "add": [0, 1]}}},
            "scale gives the complete range. Remove add",
        ),
        ({"params": {"joint/*/damping": {"scale": [0.5, 1], "low": 3}}}, "scale gives the complete range. Remove low"),
        ({"params": {MASS: {"distribution": "choice", "values": 0.05}}}, "values: a list of numbers, such as"),
        ({"params": {MASS: {"low": [0.02, 0.03], "high": 0.04}}}, "low: a number is expected"),
        (
            {"params": {"timing/command/drop_rate": [0, 1.5]}},
            r"drop_rate \(g: randomization.params.+\): the range \[0, 1.5\] leaves the physical bounds \[0, 1\]\. ",
        ),
        ({"default": True, "constraints": f"{MASS} > 0"}, r'Write \["object/cube/mass > 0.02"\]'),
        ({"default": True, "constraints": [f"{MASS} / 0 > 1"]}, "held for 0 of 2000"),
        ({"default": True, "design": {"kind": "grid", "levels": 9, "names": ["*"]}}, r"9 × 9 × 9 × 9 × … \(\d+ param"),
        (adaptive(names=["texture/*"]), "names: texture/.* is chosen from a list, so it has no boundary to move"),
        (adaptive(limits={MASS: [0.3, 0.1]}), r"limits: object/cube/mass has \[0.3, 0.1\] kg, which is no range"),
        (adaptive(start={MASS: [0.1, 0.05]}), r"start: object/cube/mass has \[0.1, 0.05\] kg, which is no range"),
        (
            adaptive(step="small"),
            r"step: .* as a number, or: Input should be a mapping, `key: value` \(given: 'small'\)",
        ),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(section, message):
    with pytest.raises(InputError, match=message):
        section_plan(section, SO101, run_seed=0, episodes=4, where="g")


def test_a_constraint_runs_no_code():
    section = {"default": True, "constraints": ["(lambda: 1)() > 0"]}
    with pytest.raises(UnknownNameError, match="Unknown function 'lambda: 1'.*Existing: abs, cos"):
        section_plan(section, SO101, run_seed=0, episodes=4, where="g")


@pytest.mark.parametrize("run", [None, "", 5])
def test_identified_names_a_folder(tmp_path, run):
    value = {"scene": {"robot": "so101", "task": "pick_and_place"}, "randomization": {"identified": run}}
    with pytest.raises(InputError, match="the folder that `twinloop identify --output` wrote; given"):
        resolve_config(value, where="g", folder=tmp_path)


def test_alternatives_of_one_value_are_told_in_one_line(tmp_path):
    value = {"scene": {"robot": "so101", "task": "pick_and_place"}, "randomization": "defaut"}
    with pytest.raises(InputError, match=r"  randomization: .*mapping.*, or: .*'default' \(given: 'defaut'\)$"):
        resolve_config(value, where="g", folder=tmp_path)
