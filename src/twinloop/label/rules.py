"""Every rule by name: the built-in ones, those of installed packages, a class in a file, and SQL in a YAML file."""

from __future__ import annotations

import functools
import importlib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.extension import load_class, raised
from twinloop.label.rule import Rule
from twinloop.label.rules_simulated import FailureFromStates
from twinloop.label.rules_sql import SqlRule
from twinloop.tasks import task_names

ENTRY_POINTS = "twinloop.rules"  # NAME = "package.module:Class"
RULES: dict[str, str] = {
    "success/predicate": "rules_recorded:SuccessFromPredicate",
    "success/gripper": "rules_recorded:SuccessFromGripper",
    "subtask/states": "rules_simulated:SubtasksFromStates",
    "subtask/gripper": "rules_recorded:SubtasksFromGripper",
}


_FAILURE = "failure/"  # and the name of a task


def rule_names() -> list[str]:
    """Names of the built-in rules and of those that installed packages offer."""
    built_in = [*RULES, *(f"{_FAILURE}{task}" for task in task_names())]
    return [*built_in, *(entry.name for entry in entry_points(group=ENTRY_POINTS) if entry.name not in built_in)]


def open_rule(word: str) -> Rule | SqlRule:
    """The rule of that name, of ``path/to/file.py:Class``, or of a YAML file with a statement.

    Raises:
        UnknownNameError: neither a name nor such a file.
        InputError: the class is no rule or cannot be made, or the file is no such YAML.
    """
    if word.endswith((".yaml", ".yml")):
        return SqlRule.read(Path(word))
    found = _class(word)
    try:
        rule = found()
    except Exception as error:  # whatever the user's class raises, it is the class that is wrong
        raise InputError(f"The rule {word} could not be made: {raised(error)}.") from error
    if not isinstance(rule, Rule):
        missing = [part for part in ("name", "version", "meaning", "hash", "label") if not hasattr(rule, part)]
        raise InputError(f"{word} is not a rule: it lacks {', '.join(missing)}. See twinloop.label.rule.Rule.")
    return rule


def _class(word: str) -> Any:
    task = word.removeprefix(_FAILURE)
    if task != word and task in task_names():
        return functools.partial(FailureFromStates, task)
    if word in RULES:
        module, _, name = RULES[word].partition(":")
        return getattr(importlib.import_module(f"twinloop.label.{module}"), name)
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name == word:
            return entry.load()
    if ".py:" not in word and not word.endswith(".py"):
        raise UnknownNameError(
            "rule", word, rule_names(), where="the rules; one of your own is FILE.py:Class or a .yaml"
        )
    return load_class("rule", word, rule_names())
