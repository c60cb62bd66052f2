"""A test is skipped only for something missing on this machine, never for a fault of our code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from support.skips import installed_optional_modules, wrongly_skipped

FILES = sorted(Path(__file__).parents[1].rglob("*.py"))


def _calls(tree: ast.AST, name: str) -> list[ast.Call]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in calls if ast.unparse(call.func).rpartition(".")[2] == name]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_fault_of_our_own_is_a_reason_to_skip(path):
    tree = ast.parse(path.read_text())
    for call in _calls(tree, "importorskip"):
        assert not ast.unparse(call.args[0]).startswith(("'twinloop", "'_")), f"{path.name}, line {call.lineno}"
    for handler in (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)):
        broad = handler.type is None or ast.unparse(handler.type) in ("Exception", "BaseException")
        assert not (broad and _calls(handler, "skip")), f"{path.name}, line {handler.lineno}"


@pytest.mark.parametrize(
    ("reason", "named"),
    [
        ("could not import 'torch': No module named 'torch'", True),
        ("could not import 'torch.nn': No module named 'x'", True),
        ("Skipped: mujoco-warp is not installed: pip install 'twinloop[gpu]'", True),
        ("renderer warp is not available: mujoco-warp, warp-lang is not installed; pip install 'twinloop[warp]'", True),
        ("could not import 'numba': No module named 'numba'", False),
        ("renderer gl is not available", False),
        ("dfki_double_pendulum is not in TWINLOOP_DATA", False),
    ],
)
def test_a_skip_for_what_is_installed_is_named(reason, named):
    assert wrongly_skipped([reason], {"torch", "mujoco_warp"}) == [reason] * named


def test_the_packages_of_extras_are_known():
    assert {"plotly", "gymnasium"} <= installed_optional_modules()  # both are of the set-up
    assert not {"numpy", "mujoco", "twinloop"} & installed_optional_modules()
