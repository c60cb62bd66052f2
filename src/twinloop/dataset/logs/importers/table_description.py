"""Read a YAML file that describes the columns of a table, for logs whose column names do not describe them.

The file of ``log.csv`` is ``log.yaml``, unless the caller gives another one::

    time: {column: t, unit: ms}
    episode: run                     # optional; if it is missing, the file is one episode
    command: position                # position (default), velocity, torque, or none
    joints:
      shoulder: {state: q1, action: q1_des, unit: deg, velocity: dq1, velocity_unit: deg/s}
      elbow: {state: q2, action: q2_des, unit: deg, torque: tau2, torque_unit: mNm}
    signals:
      angular_velocity/torso: {columns: [gx, gy, gz], unit: deg/s}
      pose/cube: {columns: [px, py, pz, qw, qx, qy, qz], unit: [mm, mm, mm, 1, 1, 1, 1]}
      battery: {columns: [vbat], unit: V}
    conditions: {mass_kg: 0.5, length_cm: 10}
    task: pick up the cube
    robot: so101_follower
    delimiter: ";"

Every measured column needs a unit; a description without a unit is refused. ``action_unit`` is the unit of
commanded torques or velocities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as _short  # shortens long values
from typing import Any

from twinloop.core.errors import InputError, UnitsError, UnknownNameError
from twinloop.core.units import JointUnit, UnitMap, parse_unit, split_unit
from twinloop.core.yaml_documents import load_yaml
from twinloop.dataset.logs.importers.protocol import LogOptions
from twinloop.dataset.logs.importers.tables import (
    COMMANDS,
    KNOWN,
    ColumnLayout,
    Command,
    SignalColumns,
    check_signal,
    unit_factor,
)

_KEYS = ("time", "episode", "command", "joints", "signals", "conditions", "task", "robot", "delimiter")
_JOINT_KEYS = ("state", "action", "unit", "action_unit", "velocity", "velocity_unit", "torque", "torque_unit")


@dataclass(frozen=True, kw_only=True)
class TableDescription:
    """Content of a YAML file that describes the columns of a table.

    Attributes:
        path: YAML file.
        content: Parsed content by key.
    """

    path: Path
    content: Mapping[str, Any]

    @property
    def delimiter(self) -> str:
        """Character between the cells of the table.

        Raises:
            InputError: If the key ``delimiter`` is not a single character.
        """
        delimiter = self.content.get("delimiter", ",")
        if not isinstance(delimiter, str) or len(delimiter) != 1:
            raise InputError(f"{self.path}: delimiter is {_short(delimiter)}; give one character.")
        return delimiter

    def column_layout(self, options: LogOptions) -> ColumnLayout:
        """Return the meaning of the table's columns.

        Args:
            options: Metadata that the caller gives; its joints select and order the joints.

        Raises:
            InputError: If a key is missing or has a value of the wrong type.
            UnknownNameError: If a key, unit, command type or joint is unknown.
            UnitsError: If a column has no unit.
            LogError: If the columns or the unit of a signal do not fit its name.
        """
        content = self.content
        command: Command = _require_one_of(content.get("command", "position"), COMMANDS, "command", self.path)
        joints = _require_mapping(content.get("joints", {}), "joints", self.path)
        if options.joints is not None:
            joints = {name: joints[name] for name in _require_joints(options.joints, joints, self.path)}
        rows = {name: _parse_joint(name, row, command, self.path) for name, row in joints.items()}
        time, scale = _parse_time(content, self.path)
        units = tuple(parse_unit(name, row["unit"]) for name, row in rows.items())
        return ColumnLayout(
            time=time,
            time_scale=scale,
            episode=_require_text(content["episode"], "episode", self.path) if "episode" in content else None,
            units=UnitMap(joints=units, source=self.path.name),
            state=tuple(row["state"] for row in rows.values()),
            action=() if command == "none" else tuple(row["action"] for row in rows.values()),
            command=command if rows else "none",
            action_scale=tuple(_action_factor(rows[unit.joint], unit, command, self.path) for unit in units)
            if command in _ACTION_UNITS
            else (),
            signals=_parse_joint_signals(rows, self.path) | _parse_signals(content, self.path),
            conditions=_parse_conditions(content, self.path),
            task=_require_text(content.get("task", ""), "task", self.path),
            robot_type=_require_text(content.get("robot", ""), "robot", self.path),
        )


def read_description(path: Path, options: LogOptions) -> TableDescription | None:
    """Return the description of a table; None if there is no file with one.

    Args:
        path: Table.
        options: Metadata that the caller gives. Its description replaces the YAML file with the name of the table.

    Raises:
        InputError: If the caller's file is missing, or a file is too large, not YAML or not a mapping.
        UnknownNameError: If a key is unknown.
    """
    file = options.description or path.with_suffix(".yaml")
    if not file.is_file():
        if options.description is None:
            return None
        raise InputError(f"{file} does not exist. Give the YAML file that describes the columns of {path}.")
    content = _require_mapping(load_yaml(file), "the file", file)
    _require_known_keys(content, _KEYS, "the file", file)
    return TableDescription(path=file, content=content)


def _parse_time(content: Mapping[str, Any], path: Path) -> tuple[str, float]:
    time = content.get("time")
    if not isinstance(time, Mapping) or not {"column", "unit"} >= set(time) or "column" not in time:
        raise InputError(f"{path}: time is {_short(time)}; give column and unit, as in time: {{column: t, unit: s}}.")
    if "unit" not in time:
        raise UnitsError(
            f"{path}: in which unit is the time? Declare it, as in time: {{column: {time['column']}, unit: s}}."
        )
    unit, factor = unit_factor(_require_text(time["unit"], "time.unit", path), where=f"the time of {path}")
    if unit != "s":
        raise UnitsError(f"{path}: time is in {time['unit']}, which is not a unit of time. Give s, ms, us or ns.")
    return _require_text(time["column"], "time.column", path), factor


def _parse_joint(name: str, row: Any, command: Command, path: Path) -> dict[str, str]:
    """Check the description of one joint and return its values by key.

    Args:
        name: Name of the joint.
        row: Value of the joint in the YAML file.
        command: Command type of the log.
        path: YAML file, for messages.
    """
    entries = _require_mapping(row, f"joints.{name}", path).items()
    values = {key: _require_text(value, f"joints.{name}.{key}", path) for key, value in entries}
    _require_known_keys(values, _JOINT_KEYS, f"joints.{name}", path)
    for key in ("state", *(() if command == "none" else ("action",))):
        if key not in values:
            raise InputError(
                f"{path}: joints.{name} has no {key}. Name its column; declare `command: none` if there was none."
            )
    if "unit" not in values:
        raise UnitsError(
            f"{path}: joints.{name} has no unit. Give it with --units, or as `unit:` in the description of the "
            "columns: rad, deg, m, cm, mm, range_m100_100 or range_0_100."
        )
    return values


# SI units of commands whose unit is not that of the joint, and what a message recommends.
_ACTION_UNITS = {"torque": (("N·m", "N"), "Nm, mNm or N"), "velocity": (("rad/s", "m/s"), "rad/s, deg/s, rpm or m/s")}


def _action_factor(row: Mapping[str, str], joint: JointUnit, command: str, path: Path) -> float:
    """Return the factor of a joint's commands to N·m or N, or to the joint's unit per second.

    Args:
        row: Values of the joint in the YAML file.
        joint: Unit of the joint.
        command: Command type of the log, ``torque`` or ``velocity``.
        path: YAML file, for messages.
    """
    allowed, usual = _ACTION_UNITS[command]
    unit, where = row.get("action_unit"), f"{path}: joints.{joint.joint} commands a {command}"
    if unit is None:
        raise UnitsError(f"{where}. In which unit? Declare it as action_unit: {usual}.")
    found, factor = unit_factor(unit, where=f"joints.{joint.joint} of {path}")
    if found not in allowed:
        raise UnitsError(f"{where} in {unit}. Give {usual}.")
    if command == "torque":
        return factor
    if joint.scale is None:
        raise UnitsError(f"{where} in {unit}, and the size of {joint.unit} is unknown. Give positions in rad or m.")
    return factor / joint.scale


def _parse_joint_signals(rows: Mapping[str, Mapping[str, str]], path: Path) -> dict[str, SignalColumns]:
    found: dict[str, SignalColumns] = {}
    for key, name in (("velocity", "joint_velocity"), ("torque", "joint_torque")):
        having = {joint: row for joint, row in rows.items() if key in row}
        if not having:
            continue
        units = [
            unit_factor(_require_unit(row, f"{key}_unit", f"joints.{joint}", path), where=f"joints.{joint} of {path}")
            for joint, row in having.items()
        ]
        found[name] = _make_signal_columns(name, [row[key] for row in having.values()], list(having), units, path)
    return found


def _parse_signals(content: Mapping[str, Any], path: Path) -> dict[str, SignalColumns]:
    found: dict[str, SignalColumns] = {}
    for name, row in _require_mapping(content.get("signals", {}), "signals", path).items():
        where = f"signals.{name}"
        row = _require_mapping(row, where, path)
        _require_known_keys(row, ("columns", "labels", "unit"), where, path)
        columns = _require_texts(row.get("columns"), f"{where}.columns", path)
        each = _parse_units(row, len(columns), where, path)
        kind = name.partition("/")[0]
        usual = KNOWN[kind][0] if kind in KNOWN else ()
        labels = usual if len(columns) == len(usual) else columns
        if "labels" in row:
            labels = _require_texts(row["labels"], f"{where}.labels", path)
        if len(labels) != len(columns):
            raise InputError(f"{path}: {where} has {len(columns)} columns and {len(labels)} labels. Give one each.")
        found[name] = _make_signal_columns(name, columns, labels, each, path)
    return found


def _make_signal_columns(
    name: str, columns: Sequence[str], labels: Sequence[str], units: Sequence[tuple[str, float]], path: Path
) -> SignalColumns:
    check_signal(name, labels, [unit for unit, _ in units], where=str(path))
    kinds = {unit for unit, _ in units}
    return SignalColumns(
        columns=tuple(columns),
        labels=tuple(labels),
        factors=tuple(factor for _, factor in units),
        unit=kinds.pop() if len(kinds) == 1 else "",
    )


def _parse_units(row: Mapping[str, Any], count: int, where: str, path: Path) -> list[tuple[str, float]]:
    """Return SI unit and factor of each column of a signal. The file gives one unit for all columns or one per column.

    Args:
        row: Value of the signal in the YAML file.
        count: Number of columns.
        where: Key of the signal, for messages.
        path: YAML file, for messages.
    """
    value = _require_unit(row, "unit", where, path)
    each = _require_texts(value, f"{where}.unit", path) if isinstance(value, list) else [value] * count
    if len(each) != count:
        raise UnitsError(f"{path}: {where} has {count} columns and {len(each)} units. Give one, or one each.")
    return [unit_factor(unit, where=f"{where} of {path}") for unit in each]


def _require_unit(row: Mapping[str, Any], key: str, where: str, path: Path) -> Any:
    unit = row.get(key)
    if unit is None:
        raise UnitsError(f"{path}: {where} has no unit. Declare it as {key}: rad/s, Nm, m/s^2, …")
    return unit if isinstance(unit, list) else _require_text(unit, f"{where}.{key}", path)


def _parse_conditions(content: Mapping[str, Any], path: Path) -> dict[str, float]:
    """Return the experimental conditions (such as a payload's mass) in SI units, by name without the unit suffix.

    Args:
        content: Content of the YAML file, whose key ``conditions`` has them, for example ``{mass_kg: 0.5}``.
        path: YAML file, for messages.

    Raises:
        InputError: If a condition is not a number.
    """
    found: dict[str, float] = {}
    for key, value in _require_mapping(content.get("conditions", {}), "conditions", path).items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{path}: conditions.{key} is {_short(value)}; conditions are numbers.")
        name, _, factor = split_unit(key)
        found[name] = float(value) * factor
    return found


def _require_joints(wanted: Sequence[str], joints: Mapping[str, Any], path: Path) -> list[str]:
    for name in wanted:
        if name not in joints:
            raise UnknownNameError("joint", name, joints, where=str(path))
    return list(wanted)


def _require_mapping(value: Any, where: str, path: Path) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{path}: {where} is {_short(value)}, and a mapping `key: value` is expected.")
    return {str(key): item for key, item in value.items()}


def _require_known_keys(row: Mapping[str, Any], keys: Sequence[str], where: str, path: Path) -> None:
    for key in row:
        if key not in keys:
            raise UnknownNameError("key", key, keys, where=f"{where} of {path}")


def _require_one_of(value: Any, allowed: Sequence[Any], what: str, path: Path) -> Any:
    if value not in allowed:
        raise UnknownNameError(what, _short(value), allowed, where=str(path))
    return value


def _require_text(value: Any, where: str, path: Path) -> str:
    if not isinstance(value, str | int):
        raise InputError(f"{path}: {where} is {_short(value)}, and a word is expected.")
    return str(value)


def _require_texts(value: Any, where: str, path: Path) -> list[str]:
    if not isinstance(value, list) or not value:
        raise InputError(f"{path}: {where} is {_short(value)}; give a list of words.")
    return [_require_text(item, where, path) for item in value]
