"""What can be said, and by which rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from twinloop.catalog import Workspace
from twinloop.catalog.vocabulary import SUBTASKS, Vocabulary
from twinloop.label.rules import open_rule, rule_names


def list_words(workspace: Path | None, console: Console) -> dict[str, Any]:
    """Print the rules with what they mean, the failure classes, and the subtasks that rules write."""
    root = Workspace.find(Path.cwd())
    if workspace is not None:
        with Workspace.open(workspace) as opened:
            root = opened.root
    words = Vocabulary() if root is None else Vocabulary.of(root)
    rules = {name: open_rule(name).meaning for name in rule_names()}
    subtasks = words.subtasks or SUBTASKS
    for title, rows in (("rule", rules), ("failure class", words.failures), ("subtask", subtasks)):
        table = Table(title, "", box=None, header_style="bold", pad_edge=False)
        for name, meaning in rows.items():
            table.add_row(name, meaning)
        console.print(table)
    return {
        "schema": 1,
        "verb": "label rules",
        "rules": rules,
        "failures": dict(words.failures),
        "subtasks": dict(subtasks),
        "tags": None if words.tags is None else dict(words.tags),
    }
