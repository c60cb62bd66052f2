"""Read logs of CSV or Parquet tables whose column names, or a YAML file (see `table_description`), describe them.

A folder or a glob of tables with equal columns is one log, whose files are its episodes in the order of their names.

The format: an optional header of ``# key: value`` lines, then one header row and one row per frame::

    # units: deg, gripper=range_0_100
    # task: pick up the cube
    # robot: so101_follower
    # conditions: mass_kg=0.1
    episode,time_s,action/shoulder_pan,action/gripper,state/shoulder_pan,state/gripper
    0,0.0,-8.0,0.9,-7.7,0.9

``time_s`` or ``time_ms`` is required; ``episode`` is optional (if it is missing, the file is one episode). Each
joint has a column ``action/JOINT`` and one ``state/JOINT``, in any order. Its unit follows the names of both columns
(``action/shoulder_pan_deg`` or ``action/shoulder_pan [deg]``), or is in the ``units`` line: one unit for all,
exceptions as ``JOINT=UNIT``. Times may also be ``time [s]`` or ``time [ms]``.

``# command: torque`` declares that actions are torques in N·m, ``# command: velocity`` that they are velocities in the
joint's unit per second, and ``# command: none`` that there are no actions. Torques and velocities have no unit suffix.
Other measurements are columns in SI units: ``velocity/JOINT``, ``torque/JOINT``, ``joint/JOINT/position``,
``pose/BODY/x``, ``y``, ``z``, ``qw`` … ``qz``, ``twist/BODY/vx`` … ``wz``, ``place/SITE/x``, ``view/CAMERA/SITE/u``
and ``v``, ``acceleration/SITE/x``, ``angular_velocity/SITE/x``, ``wrench/SITE/fx`` … ``tz``, ``motor/m1`` … (throttle
of each rotor, 0 to 1), ``enabled`` (1 while the motors are on).
Other columns are ignored.
"""

from __future__ import annotations

import glob
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import yaml
from numpy.typing import NDArray

from twinloop.core.errors import LogError, UnitsError, UnknownNameError
from twinloop.core.units import UnitMap, find_joint_columns, parse_unit, split_unit
from twinloop.dataset.logs.importers.guess import guess_description
from twinloop.dataset.logs.importers.protocol import Importer, LogOptions, RawEpisode, resolve_units
from twinloop.dataset.logs.importers.table_description import TableDescription, read_description
from twinloop.dataset.logs.importers.tables import (
    COMMANDS,
    KNOWN,
    ColumnLayout,
    SignalColumns,
    build_episodes,
    column_numbers,
    require_readable_size,
)

_TIMES = {"time_s": 1.0, "time_ms": 1e-3}
_JOINT_SIGNALS = {"velocity": ("joint_velocity", "rad/s"), "torque": ("joint_torque", "N·m")}
_TABLES = (".csv", ".parquet")
_FOLDER = "columns.yaml"  # description of all tables of a folder
_SUFFIXES = ("_range_m100_100", "_range_0_100", "_deg", "_rad", "_mm", "_cm", "_m")


def recognizes(path: Path) -> bool:
    """Return whether a path is a table, or a folder or glob of tables."""
    return bool(list_tables(path))


def list_tables(path: Path) -> list[Path]:
    """Return the tables of a log in the order of their names, in which 9 comes before 10; empty if there are none.

    Args:
        path: CSV or Parquet file, folder, or path with the wildcards ``*``, ``?`` and ``[…]``.
    """
    if path.is_file():
        return [path] if path.suffix in _TABLES else []
    listed = path.iterdir() if path.is_dir() else map(Path, glob.glob(str(path)))  # noqa: PTH207 - Path.glob refuses absolute patterns
    found = [file for file in listed if file.is_file() and file.suffix in _TABLES and not file.name.startswith(".")]

    def key(file: Path) -> list[str | int]:
        parts = re.split(r"(\d+)", file.as_posix())
        return [int(part) if number % 2 else part for number, part in enumerate(parts)]

    return sorted(found, key=key)


def read(path: Path, options: LogOptions) -> list[RawEpisode]:
    """Return the episodes of a table or of several tables, in order of appearance.

    Raises:
        LogError: If the tables have different joints or units; if there are no rows, no time column, or neither joints
            nor other signals; if a joint lacks one of its columns ``action/JOINT`` and ``state/JOINT``, a cell is text
            instead of a number, or an episode number is not an integer.
        UnitsError: If a joint's unit is missing, or the column suffixes, the ``units`` line and ``options``
            contradict each other.
    """
    found = list[RawEpisode]()
    for file in list_tables(path):
        described = read_description(file, options) or read_description(file.with_name(_FOLDER), options)
        for episode in _read_table(file, described, options):
            if found and (episode.units.joints, episode.command) != (found[0].units.joints, found[0].command):
                raise LogError(
                    f"{file} has other joints, units or commands than {found[0].origin}: {_list_units(episode)}, and "
                    f"not {_list_units(found[0])}. Import the two separately."
                )
            if not path.is_file():
                episode = replace(episode, index=len(found), units=found[0].units if found else episode.units)
            found.append(episode)
    return found


def _list_units(episode: RawEpisode) -> str:
    return ", ".join(f"{unit.joint} in {unit.unit}" for unit in episode.units.joints) or "no joints"


def _read_table(path: Path, described: TableDescription | None, options: LogOptions) -> list[RawEpisode]:
    """Return the episodes of one table.

    Args:
        path: CSV or Parquet file.
        described: Description of its columns; None to use their names.
        options: Metadata that the caller gives.
    """
    delimiter = "," if described is None else described.delimiter
    if path.suffix == ".parquet":
        header, table = dict[str, str](), _read_parquet(path)
    else:
        header, body = _read_header(path)
        table = _parse(path, body, delimiter)
    if described is None:
        table = _with_suffixes(table)
    if not table.num_rows:
        raise LogError(f"{path} is empty: it has no rows.")
    if described is None and not any(_is_standard(name) for name in table.column_names):
        described = _guess_columns(path, table, options)
    layout = described.column_layout(options) if described else _build_layout(path, header, table, options)
    return build_episodes(path, table, layout, options)


def _is_standard(column: str) -> bool:
    """Return whether a column has one of the names that this module defines."""
    kind, slash, _ = column.partition("/")
    known = kind in ("state", "action", "motor", *_JOINT_SIGNALS, *KNOWN)
    return column in (*_TIMES, "enabled") or bool(slash and known)


def _guess_columns(path: Path, table: pa.Table, options: LogOptions) -> TableDescription:
    """Guess the meaning of a table's columns, if the caller allows it.

    Raises:
        LogError: If nothing can be guessed, or the guess must be confirmed first. The message has it as YAML.
    """
    units = "" if options.units is None or isinstance(options.units, UnitMap) else options.units
    content = guess_description(table, options.joints, units, options.numbered)
    listed = f"Its columns are: {', '.join(table.column_names)}."
    if not content:
        raise LogError(
            f"{path} needs a column action/JOINT and a column state/JOINT for each joint, or a YAML file "
            f"{path.with_suffix('.yaml').name} that describes its columns. {listed}"
        )
    text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, allow_unicode=True, width=110)
    complete = all("unit" in row for row in content["joints"].values())
    if not options.guess:
        flags = "--guess" if complete else "--guess --units rad (or deg, m, …)"
        raise LogError(
            f"{path} has no columns action/JOINT and state/JOINT. {listed} Their names suggest:\n\n{text}\nConfirm it "
            f"with {flags}, or save it as {path.with_suffix('.yaml')} (for a folder of files as {_FOLDER} in it) and "
            "correct it there."
        )
    return TableDescription(path=path, content=content)


def _read_parquet(path: Path) -> pa.Table:
    try:
        return pyarrow.parquet.read_table(require_readable_size(path))
    except (pa.ArrowException, OSError) as error:
        raise LogError(f"{path} is not a Parquet table ({str(error).splitlines()[0]}). Copy it again.") from error


def _build_layout(path: Path, header: Mapping[str, str], table: pa.Table, options: LogOptions) -> ColumnLayout:
    """Return the meaning of the columns, from their names and the header lines.

    Args:
        path: File, for messages.
        header: Values of the ``# key: value`` lines.
        table: Cells of the file.
        options: Metadata that the caller gives.
    """
    command = header.get("command", "position")
    if command not in COMMANDS:
        raise UnknownNameError("command", command, COMMANDS, where=f"the command line of {path}")
    signals = find_signal_columns(path, table.column_names)
    free = any(not name.startswith("joint_") for name in signals)
    suffixed = _joint_units(path, table.column_names, command, allow_none=free)
    joints = list(options.joints) if options.joints is not None else list(suffixed)
    find_joint_columns(joints, list(suffixed), where=str(path))
    time, scale = _find_time_column(path, table)
    state = tuple(f"state/{joint}{suffixed[joint]}" for joint in joints)
    sample = np.stack([column_numbers(path, table, column) for column in state], axis=1) if state else np.empty((0, 0))
    chosen = {joint: suffixed[joint] for joint in joints}
    suffix = {joint: chosen[joint] if command == "position" else "" for joint in joints}
    return ColumnLayout(
        time=time,
        time_scale=scale,
        episode="episode" if "episode" in table.column_names else None,
        units=_resolve_joint_units(path, header, chosen, options, sample=sample),
        state=state,
        action=() if command == "none" else tuple(f"action/{joint}{suffix[joint]}" for joint in joints),
        command=command if joints else "none",
        signals=_select_joint_signals(signals, joints),
        conditions=_parse_conditions(path, header),
        task=header.get("task", ""),
        robot_type=header.get("robot", ""),
    )


def _select_joint_signals(signals: Mapping[str, SignalColumns], joints: Sequence[str]) -> dict[str, SignalColumns]:
    """Return the signals with only the selected joints in joint signals; other signals are unchanged."""
    found: dict[str, SignalColumns] = {}
    for name, columns in signals.items():
        rows = [i for i, label in enumerate(columns.labels) if not name.startswith("joint_") or label in joints]
        if rows:
            picked = {key: tuple(getattr(columns, key)[i] for i in rows) for key in ("columns", "labels", "factors")}
            found[name] = replace(columns, **picked)
    return found


def find_signal_columns(path: Path, columns: Sequence[str]) -> dict[str, SignalColumns]:
    """Return the signals that the column names of a table define, by signal name. The values are in SI units.

    A column name is ``SIGNAL/LABEL``, for example ``pose/cube/x`` of the signal ``pose/cube``, or ``motor/m1``. Columns
    ``velocity/JOINT`` form the signal ``joint_velocity``, columns ``torque/JOINT`` the signal ``joint_torque``.

    Args:
        path: File, for messages.
        columns: Column names. Those of other kinds are ignored.

    Raises:
        LogError: If a signal lacks columns.
    """
    found: dict[str, dict[str, str]] = {}
    for column in columns:
        kind, *rest = column.split("/")
        if kind in _JOINT_SIGNALS and rest:
            found.setdefault(_JOINT_SIGNALS[kind][0], {})["/".join(rest)] = column
        elif kind in KNOWN and len(rest) >= 2:
            found.setdefault(f"{kind}/{'/'.join(rest[:-1])}", {})[rest[-1]] = column
        elif (kind == "motor" and rest) or column == "enabled":
            found.setdefault(kind, {})[rest[0] if rest else kind] = column
    units = dict(_JOINT_SIGNALS.values()) | {kind: unit for kind, (_, unit) in KNOWN.items()}
    signals: dict[str, SignalColumns] = {}
    for name, by_label in found.items():
        kind = name.partition("/")[0]
        wanted = KNOWN[kind][0] if kind in KNOWN else tuple(by_label)
        if missing := [label for label in wanted if label not in by_label]:
            raise LogError(f"{path}: {name} has no column {', '.join(f'{name}/{label}' for label in missing)}.")
        chosen = tuple(by_label[label] for label in wanted)
        unit = units.get(kind, "1")
        signals[name] = SignalColumns(columns=chosen, labels=wanted, factors=(1.0,) * len(wanted), unit=unit)
    return signals


def _parse_conditions(path: Path, header: Mapping[str, str]) -> dict[str, float]:
    """Parse the ``conditions`` line (``mass_kg=0.5, firmware_kp=200``) to values in SI."""
    found: dict[str, float] = {}
    for item in filter(None, (part.strip() for part in header.get("conditions", "").split(","))):
        key, _, value = item.partition("=")
        name, _, factor = split_unit(key.strip())
        try:
            found[name] = float(value) * factor
        except ValueError:
            raise LogError(f"{path}: the conditions line has {item!r}. Write NAME=NUMBER.") from None
    return found


def _read_header(path: Path) -> tuple[dict[str, str], str]:
    """Return the ``# key: value`` lines at the top as a dict, and the rest of the file."""
    try:
        lines = (
            require_readable_size(path).read_text(encoding="utf-8-sig").splitlines()
        )  # Excel begins with a byte-order mark
    except UnicodeDecodeError as error:
        raise LogError(f"{path} is not text ({error}).") from error
    comments = []
    while lines and lines[0].startswith("#"):
        comments.append(lines.pop(0)[1:])
    pairs = (line.partition(":") for line in comments)
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}, "\n".join(lines) + "\n"


def _parse(path: Path, body: str, delimiter: str = ",") -> pa.Table:
    if not body.strip():
        raise LogError(f"{path} is empty. It needs a header row and one row per frame.")
    try:
        options = pyarrow.csv.ParseOptions(delimiter=delimiter)
        table = pyarrow.csv.read_csv(io.BytesIO(body.encode()), parse_options=options)
    except pa.ArrowInvalid as error:
        raise LogError(f"{path} is not a rectangular table of values ({error}).") from error
    return table


def _with_suffixes(table: pa.Table) -> pa.Table:
    """Return the table with units in brackets written as suffixes: ``state/elbow [rad]`` is ``state/elbow_rad``.

    Brackets with the only unit that a column can have are removed, as in ``velocity/elbow [rad/s]``.
    """

    def rename(column: str) -> str:
        name, _, unit = column.removesuffix("]").partition(" [")
        if f"_{unit}" in _SUFFIXES or f"{name}_{unit}" in _TIMES:
            return f"{name}_{unit}"
        return name if unit and unit == _JOINT_SIGNALS.get(name.partition("/")[0], ("", ""))[1] else column

    return table.rename_columns([rename(column) for column in table.column_names])


def _joint_units(path: Path, columns: Sequence[str], command: str, *, allow_none: bool) -> dict[str, str]:
    """Return the unit suffix of each joint's columns ("" if there is none), in the order of the state columns.

    Args:
        path: File, for messages.
        columns: Column names.
        command: Command type of the log.
        allow_none: Whether a table without joints is valid, because it has other signals. The result is then empty.
    """
    found: dict[str, dict[str, str]] = {"action": {}, "state": {}}
    for column in columns:
        kind, _, rest = column.partition("/")
        if kind in found and rest:
            suffix = next((s for s in _SUFFIXES if rest.endswith(s)), "")
            found[kind][rest.removesuffix(suffix)] = suffix
    if command == "none" or (allow_none and not found["state"] and not found["action"]):
        return found["state"]
    if not found["state"] or found["state"].keys() != found["action"].keys():
        odd = sorted(found["state"].keys() ^ found["action"].keys())
        raise LogError(
            f"{path} needs a column action/JOINT and a column state/JOINT for each joint"
            + (f"; {', '.join(odd)} has only one of them" if odd else "")
            + f". Its columns are: {', '.join(columns)}."
        )
    for joint, suffix in found["state"].items():
        expected = suffix if command == "position" else ""  # the unit of a torque or velocity is not the joint's
        if found["action"][joint] != expected:
            raise UnitsError(
                f"{path}: action/{joint}{found['action'][joint]} and state/{joint}{suffix} differ in unit. "
                "Use one unit."
            )
    return found["state"]


def _resolve_joint_units(
    path: Path,
    header: Mapping[str, str],
    suffixed: Mapping[str, str],
    options: LogOptions,
    *,
    sample: NDArray[np.float64],
) -> UnitMap:
    joints = list(suffixed)
    if not joints:
        return UnitMap(joints=(), source="a body without joints")
    line, suffixes = (
        _parse_units_line(header, joints),
        {joint: suffix[1:] for joint, suffix in suffixed.items() if suffix},
    )
    _require_same_units(path, line, "its units line", suffixes, "the suffix of its columns")
    stated = line | suffixes
    complete = len(stated) == len(joints)
    if options.units is None and complete:
        if options.calibration is None:
            return UnitMap(joints=tuple(parse_unit(joint, stated[joint]) for joint in joints), source="log header")
        options = replace(options, units=[stated[joint] for joint in joints])
    resolved = resolve_units(joints, options, where=str(path), sample=sample)
    _require_same_units(
        path, stated, "the file", {unit.joint: unit.unit for unit in resolved.joints}, "the given unit list"
    )
    return resolved


def _require_same_units(
    path: Path, one: Mapping[str, str], one_name: str, other: Mapping[str, str], other_name: str
) -> None:
    """Check that two sources of units agree about the joints that both contain.

    Args:
        path: File, for messages.
        one: Unit of each joint in the first source.
        one_name: Name of the first source, for messages.
        other: Unit of each joint in the second source.
        other_name: Name of the second source, for messages.
    """
    for joint in one:
        if joint in other and one[joint] != other[joint]:
            raise UnitsError(
                f"{path}: {one_name} has {joint} in {one[joint]}, and {other_name} has it in {other[joint]}. "
                "Correct the wrong unit or remove it."
            )


def _parse_units_line(header: Mapping[str, str], joints: Sequence[str]) -> dict[str, str]:
    """Return the unit of each joint from the ``units`` line of the header.

    An item ``UNIT`` is for all joints. An item ``JOINT=UNIT`` takes precedence for this joint.
    """
    items = [item.strip() for item in header.get("units", "").split(",") if item.strip()]
    general = {joint: item for item in items if "=" not in item for joint in joints}
    pairs = (item.split("=", 1) for item in items if "=" in item)
    return general | {joint.strip(): unit.strip() for joint, unit in pairs if joint.strip() in joints}


def _find_time_column(path: Path, table: pa.Table) -> tuple[str, float]:
    for name, scale in _TIMES.items():
        if name in table.column_names:
            return name, scale
    raise LogError(f"{path} has no column time_s or time_ms. It has: {', '.join(table.column_names)}.")


IMPORTER = Importer(name="csv", recognizes=recognizes, read=read)
