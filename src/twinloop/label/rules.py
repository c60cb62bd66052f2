"""Open label rules by name, from a user's Python file, or from a YAML file with one SQL statement."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.extension import describe_error
from twinloop.core.files import sha256_json
from twinloop.core.registry import Registry
from twinloop.core.yaml_documents import load_yaml
from twinloop.label.rule import LabelRule, RuleFinding
from twinloop.label.rules_builtin import FailureFromStates
from twinloop.tasks.registry import TASKS

_KEYS = ("name", "version", "kind", "meaning", "sql")
_COLUMNS = ("episode_id", "value", "kind", "first_frame", "last_frame", "confidence", "reason")


@dataclass(frozen=True, kw_only=True)
class SqlRule:
    """A label rule in SQL, read from a YAML file.

    The statement runs on the catalog. Its rows have the columns ``episode_id`` and ``value``, and optionally further
    columns of a label. Example file::

        name: tag/short
        version: "1"
        kind: tag                    # or a column ``kind`` in the rows
        meaning: shorter than two seconds
        sql: |
          SELECT episode_id, 'short' AS value, format('{:.1f} s', duration_s) AS reason
          FROM episodes WHERE duration_s < 2

    Attributes:
        name: Name of the rule.
        sql: SQL statement that returns one row per label.
        version: Version of the rule.
        kind: Kind of the labels; empty if the rows have a column ``kind``.
        meaning: Description of the rule; used as the reason of labels whose row has none.
    """

    name: str
    sql: str
    version: str = "1"
    kind: str = ""
    meaning: str = ""

    @classmethod
    def read(cls, path: Path) -> SqlRule:
        """Read the rule from a YAML file.

        Raises:
            InputError: If the file does not exist, is not YAML, or has no ``name`` or ``sql``.
            UnknownNameError: If the file has an unknown key.
        """
        value: Any = load_yaml(path)
        if not isinstance(value, Mapping):
            raise InputError(f"{path} is not a mapping. Write the keys {', '.join(_KEYS)}.")
        for key in value:
            if key not in _KEYS:
                raise UnknownNameError("key", str(key), _KEYS, where=str(path))
        missing = [key for key in ("name", "sql") if not str(value.get(key) or "").strip()]
        if missing:
            raise InputError(f"{path} lacks {' and '.join(missing)}. A rule in SQL needs both.")
        return cls(**{str(key): str(item) for key, item in value.items()})

    @property
    def hash(self) -> str:
        """SHA-256 of name, version, kind and SQL statement; stored with every label."""
        return sha256_json([self.name, self.version, self.kind, " ".join(self.sql.split())])

    def read_findings(self, rows: pa.Table) -> list[tuple[str, RuleFinding]]:
        """Convert the result rows of the SQL statement to pairs of episode id and label.

        Args:
            rows: Result of the statement.

        Raises:
            InputError: If ``episode_id``, ``value`` or the kind is missing or empty in a row.
            UnknownNameError: If the rows have a column that labels do not have.
        """
        for column in rows.column_names:
            if column not in _COLUMNS:
                raise UnknownNameError("column", column, _COLUMNS, where=f"the rows of the rule {self.name}")
        needed = ["episode_id", "value", *(() if self.kind else ("kind",))]
        missing = [column for column in needed if column not in rows.column_names]
        if missing:
            raise InputError(f"The rule {self.name} gives no column {', '.join(missing)}. Select it.")
        return [self._make_finding(row) for row in rows.to_pylist()]

    def _make_finding(self, row: Mapping[str, Any]) -> tuple[str, RuleFinding]:
        given = {key: item for key, item in row.items() if item is not None}
        if "episode_id" not in given or "value" not in given:
            raise InputError(f"The rule {self.name} gives a row without episode_id or value: {dict(row)}.")
        finding = RuleFinding(
            kind=str(given.get("kind") or self.kind),
            value=_format_value(given["value"]),
            reason=str(given.get("reason") or self.meaning or self.name),
            first_frame=_int_or_none(given.get("first_frame")),
            last_frame=_int_or_none(given.get("last_frame")),
            confidence=None if "confidence" not in given else float(given["confidence"]),
        )
        return str(given["episode_id"]), finding


def _format_value(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _int_or_none(value: Any) -> int | None:
    return None if value is None else int(value)


RULES: Registry[Any] = Registry(
    "rule",
    {
        "success/predicate": "twinloop.label.rules_builtin:SuccessFromPredicate",
        "success/gripper": "twinloop.label.rules_builtin:SuccessFromGripper",
        "subtask/states": "twinloop.label.rules_builtin:SubtasksFromStates",
        "subtask/gripper": "twinloop.label.rules_builtin:SubtasksFromGripper",
        **{f"failure/{task}": functools.partial(FailureFromStates, task) for task in TASKS.builtin},
    },
    group="twinloop.rules",
    files=True,
    where="the rules; write your own as FILE.py:Class or a .yaml file",
)


def open_rule(reference: str) -> LabelRule | SqlRule:
    """Return a label rule.

    Args:
        reference: Name of a rule, ``path/to/file.py:Class`` for a user's own rule, or the path of a YAML file with an
            SQL statement.

    Raises:
        UnknownNameError: If no rule has this name, and it is not the path of a file.
        InputError: If the class is not a rule, its constructor fails, or the YAML file is invalid.
    """
    if reference.endswith((".yaml", ".yml")):
        return SqlRule.read(Path(reference))
    found = RULES[reference]
    try:
        rule = found()
    except Exception as error:  # any error of a user's class is a fault of that class
        raise InputError(f"The constructor of the rule {reference} failed: {describe_error(error)}.") from error
    if not isinstance(rule, LabelRule):
        missing = [part for part in ("name", "version", "meaning", "hash", "label") if not hasattr(rule, part)]
        raise InputError(
            f"{reference} is not a rule: it lacks {', '.join(missing)}. See twinloop.label.rule.LabelRule."
        )
    return rule
