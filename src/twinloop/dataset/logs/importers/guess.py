"""Guess the meaning of a table's columns from their names, as a description that the user can confirm or edit.

Names are split into words: ``q_des_1``, ``actual_q_0``, ``shoulder.pos``, ``joint1_velocity [deg/s]``. Words for the
role (desired, measured), the quantity (position, velocity, torque), the time and the unit are recognized; the words
that remain name the joint. A unit of positions is never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from twinloop.dataset.logs.importers.tables import as_floats, is_numeric

_COMMAND = {
    "des", "desired", "d", "cmd", "command", "commanded", "target", "ref", "reference", "goal", "setpoint", "sp",
    "action",
}  # fmt: skip
_MEASURED = {"actual", "act", "meas", "measured", "state", "fb", "feedback", "obs", "observation", "present"}
_QUANTITIES = {
    "position": {"q", "pos", "position", "positions", "angle", "theta"},
    "velocity": {"qd", "dq", "qdot", "vel", "velocity", "velocities", "speed", "omega"},
    "torque": {"tau", "torque", "effort", "trq", "moment"},
}
_TIME = {"t", "time", "timestamp", "stamp", "elapsed"}
_EPISODE = {"episode", "run", "trial"}
_FILLING = {"j", "joint", "joints", "axis", "motor", "index", "of"}
_POSITION_UNITS = {"deg": "deg", "rad": "rad", "mm": "mm", "cm": "cm", "m": "m"}
_RATE_UNITS = {"rad/s": "rad/s", "deg/s": "deg/s", "rpm": "rpm"}
_TORQUE_UNITS = {"nm": "Nm", "mnm": "mNm", "n": "N"}
_TIME_UNITS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
# Frames per second of robot logs; the unit of a time without one is that which gives such a rate. Our choice.
_SLOWEST, _FASTEST = 1.0, 5000.0


def guess_description(
    table: pa.Table, joints: Sequence[str] | None, units: Sequence[str] | str, numbered: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the content of a description file for a table; empty if no time or no joint is recognized.

    Args:
        table: Cells of the table.
        joints: Names that replace those of the joints found, in order; None to keep the names in the columns.
        units: Unit of the positions where the columns name none: one for all joints, or one per joint; may be empty.
        numbered: Names of the joints by their numbers, if the columns have numbers 0, 1, … or 1, 2, … and no names, and
            there are as many.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}  # by joint and role
    time, episode = {}, ""
    for column in table.column_names:
        if not is_numeric(table[column].type):
            continue
        words, unit = _split_words(column)
        if words and set(words) <= _TIME:
            time = time or {
                "column": column,
                "unit": unit if unit in _TIME_UNITS else _time_unit(as_floats(table[column])),
            }
        elif words and set(words) <= _EPISODE | _FILLING and set(words) & _EPISODE:
            episode = episode or column
        elif (role := _find_role(words)) is not None:
            key = "_".join(word for word in words if not _is_known(word)) or column
            found.setdefault(key, {}).setdefault(role, {"column": column, "unit": unit, "sure": _has_quantity(words)})
    measured = {key: roles for key, roles in found.items() if "position" in roles}
    rows = {key: roles for key, roles in measured.items() if any(role.endswith(" command") for role in roles)}
    rows = rows or {key: roles for key, roles in measured.items() if roles["position"]["sure"]}
    if not time or not rows:
        return {}
    command = next((kind for kind in ("position", "velocity", "torque") if _all_have(rows, f"{kind} command")), "none")
    named = list(joints) if joints is not None and len(joints) == len(rows) else _joint_names(list(rows), numbered)
    each = [units] * len(rows) if isinstance(units, str) else [*units, *[""] * len(rows)]
    described = {
        name: _describe_joint(roles, command, unit)
        for name, roles, unit in zip(named, rows.values(), each[: len(rows)], strict=True)
    }
    return {
        "time": time, **({"episode": episode} if episode else {}), "command": command, "joints": described
    }  # fmt: skip


def _split_words(column: str) -> tuple[list[str], str]:
    """Return the words of a column name in lower case, and its unit, or an empty text."""
    name = column.strip().lower()
    bracket = re.fullmatch(r"(.*?)\s*[\[(](.+?)[\])]", name)
    unit = ""
    if bracket and not bracket[2].isdigit():
        name, unit = bracket[1], bracket[2]
    words = re.findall(r"[^\W\d_]+|\d+", name)
    known = _POSITION_UNITS.keys() | _TIME_UNITS.keys() | _TORQUE_UNITS.keys()
    if not unit and len(words) > 1 and words[-1] in known and re.search(r"[_.\-/ ]" + words[-1] + "$", name):
        unit = words.pop()
    return words, unit


def _find_role(words: Iterable[str]) -> str | None:
    """Return the quantity of a column, with `` command`` for commands; None if no word names one."""
    words = set(words)
    kinds = [kind for kind, names in _QUANTITIES.items() if words & names]
    is_command = bool(words & _COMMAND)
    if not kinds and not is_command and not words & _MEASURED:
        return None
    return f"{kinds[-1] if kinds else 'position'}{' command' * is_command}"


def _has_quantity(words: Iterable[str]) -> bool:
    return any(word in names for names in _QUANTITIES.values() for word in words)


def _is_known(word: str) -> bool:
    return word in _COMMAND | _MEASURED | _FILLING or any(word in names for names in _QUANTITIES.values())


def _all_have(rows: Mapping[str, Mapping[str, Any]], role: str) -> bool:
    return all(role in roles for roles in rows.values())


def _joint_names(keys: Sequence[str], numbered: Sequence[str]) -> list[str]:
    """Return the names of joints from the words that remain of their columns; ``numbered`` are for plain numbers."""
    if len(keys) == len(numbered) and all(key.isdecimal() for key in keys):
        numbers = [int(key) for key in keys]
        first = min(numbers)
        if first in (0, 1) and sorted(numbers) == list(range(first, first + len(keys))):
            return [numbered[number - first] for number in numbers]
    return [f"joint_{key}" if key.isdigit() else key for key in keys]


def _describe_joint(roles: Mapping[str, Mapping[str, Any]], command: str, unit: str) -> dict[str, str]:
    position = roles["position"]
    row = {"state": position["column"]}
    own = _POSITION_UNITS.get(position["unit"], unit)
    if own:
        row["unit"] = own
    linear = own in ("m", "cm", "mm")
    rate = "m/s" if linear else "deg/s" if own == "deg" else "rad/s"
    units = {"velocity": rate, "torque": "N" if linear else "Nm"}
    for kind, known in (("velocity", _RATE_UNITS), ("torque", _TORQUE_UNITS)):
        if kind in roles:
            row |= {kind: roles[kind]["column"], f"{kind}_unit": known.get(roles[kind]["unit"], units[kind])}
    if command != "none":
        row["action"] = roles[f"{command} command"]["column"]
        if command != "position":
            row["action_unit"] = units[command]
    return row


def _time_unit(times: np.ndarray) -> str:
    steps = np.diff(times)
    step = float(np.median(steps[steps > 0])) if np.any(steps > 0) else 1.0
    for unit in ("s", "ms", "us", "ns"):
        if _SLOWEST <= 1.0 / (step * _TIME_UNITS[unit]) <= _FASTEST:
            return unit
    return "s"
