"""Every rule by name: the built-in ones, those of installed packages, a class in a file, and SQL in a YAML file."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from twinloop.core.errors import InputError
from twinloop.core.extension import raised
from twinloop.core.registry import Registry
from twinloop.label.rule import Rule
from twinloop.label.rules_simulated import FailureFromStates
from twinloop.label.rules_sql import SqlRule
from twinloop.tasks.registry import TASKS

RULES: Registry[Any] = Registry(
    "rule",
    {
        "success/predicate": "twinloop.label.rules_recorded:SuccessFromPredicate",
        "success/gripper": "twinloop.label.rules_recorded:SuccessFromGripper",
        "subtask/states": "twinloop.label.rules_simulated:SubtasksFromStates",
        "subtask/gripper": "twinloop.label.rules_recorded:SubtasksFromGripper",
        **{f"failure/{task}": functools.partial(FailureFromStates, task) for task in TASKS.builtin},
    },
    group="twinloop.rules",
    files=True,
    where="the rules; one of your own is FILE.py:Class or a .yaml",
)


def open_rule(word: str) -> Rule | SqlRule:
    """The rule of that name, of ``path/to/file.py:Class``, or of a YAML file with a statement.

    Raises:
        UnknownNameError: neither a name nor such a file.
        InputError: the class is no rule or cannot be made, or the file is no such YAML.
    """
    if word.endswith((".yaml", ".yml")):
        return SqlRule.read(Path(word))
    found = RULES[word]
    try:
        rule = found()
    except Exception as error:  # whatever the user's class raises, it is the class that is wrong
        raise InputError(f"The rule {word} could not be made: {raised(error)}.") from error
    if not isinstance(rule, Rule):
        missing = [part for part in ("name", "version", "meaning", "hash", "label") if not hasattr(rule, part)]
        raise InputError(f"{word} is not a rule: it lacks {', '.join(missing)}. See twinloop.label.rule.Rule.")
    return rule
