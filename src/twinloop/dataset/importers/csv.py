"""CSV logs that say their units.

The format: an optional header of ``# key: value`` lines, then one header row and one row per frame::

    # units: deg, gripper=range_0_100
    # task: pick up the cube
    # robot: so101_follower
    episode,time_s,action/shoulder_pan,action/gripper,state/shoulder_pan,state/gripper
    0,0.0,-8.0,0.9,-7.7,0.9

``time_s`` or ``time_ms`` is required; ``episode`` is optional (without it the file is one episode). Each joint has a
column ``action/JOINT`` and one ``state/JOINT``, in any order. Its unit is a suffix of both columns
(``action/shoulder_pan_deg``), or stands in the ``units`` line: one unit for all, exceptions as ``JOINT=UNIT``.
Other columns are ignored.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from twinloop.core.errors import LogError, UnitsError
from twinloop.core.units import UnitMap, require_joints
from twinloop.dataset.importers.options import Importer, LogOptions, resolve_units, stated_unit
from twinloop.dataset.importers.raw import RawEpisode

_TIMES = {"time_s": 1.0, "time_ms": 1e-3}
_SUFFIXES = ("_range_m100_100", "_range_0_100", "_deg", "_rad", "_mm", "_cm", "_m")


def recognizes(path: Path) -> bool:
    """Whether a path is a CSV file."""
    return path.is_file() and path.suffix == ".csv"


def read(path: Path, options: LogOptions) -> list[RawEpisode]:
    """The file's episodes, in order of appearance.

    Raises:
        LogError: no rows, no time, no joints, a joint with only one of its two columns, a text where a number
            should be, an episode that is no whole number.
        UnitsError: a joint's unit is nowhere, or is said twice and differently: by its two columns, a suffix, the
            ``units`` line or the caller.
    """
    header, body = _split(path)
    table = _parse(path, body)
    if not table.num_rows:
        raise LogError(f"{path} is empty: it has no rows.")
    suffixed = _joint_units(path, table.column_names)
    joints = list(options.joints) if options.joints is not None else list(suffixed)
    require_joints(joints, list(suffixed), where=str(path))
    time = _time(path, table)
    data = {kind: _matrix(path, table, kind, joints, suffixed) for kind in ("action", "state")}
    units = _units(path, header, {joint: suffixed[joint] for joint in joints}, options, sample=data["state"])
    owner = _owner(path, table)
    episodes = []
    for number in dict.fromkeys(owner.tolist()):
        rows = owner == number
        episodes.append(
            RawEpisode(
                index=int(number),
                time=time[rows],
                action=data["action"][rows],
                state=data["state"][rows],
                units=units,
                task=options.task or header.get("task", ""),
                origin=options.origin or str(path),
                robot_type=options.robot_type or header.get("robot", ""),
            )
        )
    return episodes


def _split(path: Path) -> tuple[dict[str, str], str]:
    """The ``# key: value`` lines at the top, and the rest."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()  # Excel begins with a byte-order mark
    except UnicodeDecodeError as error:
        raise LogError(f"{path} is not text ({error}).") from error
    comments = []
    while lines and lines[0].startswith("#"):
        comments.append(lines.pop(0)[1:])
    pairs = (line.partition(":") for line in comments)
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}, "\n".join(lines) + "\n"


def _parse(path: Path, body: str) -> pa.Table:
    if not body.strip():
        raise LogError(f"{path} is empty. It needs a header row and one row per frame.")
    try:
        return pyarrow.csv.read_csv(io.BytesIO(body.encode()))
    except pa.ArrowInvalid as error:
        raise LogError(f"{path} is not a rectangular table of values ({error}).") from error


def _joint_units(path: Path, columns: Sequence[str]) -> dict[str, str]:
    """Unit suffix (or "") by joint, in the order of the state columns."""
    found: dict[str, dict[str, str]] = {"action": {}, "state": {}}
    for column in columns:
        kind, _, rest = column.partition("/")
        if kind in found and rest:
            suffix = next((s for s in _SUFFIXES if rest.endswith(s)), "")
            found[kind][rest.removesuffix(suffix)] = suffix
    if not found["state"] or found["state"].keys() != found["action"].keys():
        odd = sorted(found["state"].keys() ^ found["action"].keys())
        raise LogError(
            f"{path} needs a column action/JOINT and a column state/JOINT for each joint"
            + (f"; {', '.join(odd)} has only one of them" if odd else "")
            + f". Its columns are: {', '.join(columns)}."
        )
    for joint, suffix in found["state"].items():
        if found["action"][joint] != suffix:
            raise UnitsError(
                f"{path}: action/{joint}{found['action'][joint]} and state/{joint}{suffix} differ in unit."
            )
    return found["state"]


def _units(
    path: Path,
    header: Mapping[str, str],
    suffixed: Mapping[str, str],
    options: LogOptions,
    *,
    sample: NDArray[np.float64],
) -> UnitMap:
    joints = list(suffixed)
    line, suffixes = _stated(header, joints), {joint: suffix[1:] for joint, suffix in suffixed.items() if suffix}
    _agree(path, line, "its units line", suffixes, "the suffix of its columns")
    stated = line | suffixes
    complete = len(stated) == len(joints)
    if options.units is None and complete:
        if options.calibration is None:
            return UnitMap(joints=tuple(stated_unit(joint, stated[joint]) for joint in joints), source="log header")
        options = replace(options, units=[stated[joint] for joint in joints])
    resolved = resolve_units(joints, options, where=str(path), sample=sample)
    _agree(path, stated, "the file", {unit.joint: unit.unit for unit in resolved.joints}, "what was given with it")
    return resolved


def _agree(path: Path, one: Mapping[str, str], says: str, other: Mapping[str, str], contradicts: str) -> None:
    """Refuse two statements of a joint's unit that differ."""
    for joint in one:
        if joint in other and one[joint] != other[joint]:
            raise UnitsError(
                f"{path}: {says} has {joint} in {one[joint]}, and {contradicts} says {other[joint]}. Which is right? "
                "Correct the file, or leave out the wrong one."
            )


def _stated(header: Mapping[str, str], joints: Sequence[str]) -> dict[str, str]:
    """Units by joint from the ``units`` line; an exception counts more than the unit for all."""
    items = [item.strip() for item in header.get("units", "").split(",") if item.strip()]
    general = {joint: item for item in items if "=" not in item for joint in joints}
    pairs = (item.split("=", 1) for item in items if "=" in item)
    return general | {joint.strip(): unit.strip() for joint, unit in pairs if joint.strip() in joints}


def _owner(path: Path, table: pa.Table) -> NDArray[np.float64]:
    """The episode of each row; all zeros where there is no such column."""
    if "episode" not in table.column_names:
        return np.zeros(table.num_rows)
    owner = _numbers(path, table, "episode")
    wrong = np.flatnonzero(~((owner >= 0) & (owner == np.floor(owner)) & np.isfinite(owner)))
    if len(wrong):
        raise LogError(
            f"{path}: episode is {owner[wrong[0]]:g} in row {wrong[0] + 1} below the header ({len(wrong)} such rows). "
            "Episodes are whole numbers from 0."
        )
    return owner


def _time(path: Path, table: pa.Table) -> NDArray[np.float64]:
    for name, scale in _TIMES.items():
        if name in table.column_names:
            return _numbers(path, table, name) * scale
    raise LogError(f"{path} has no column time_s or time_ms. It has: {', '.join(table.column_names)}.")


def _matrix(
    path: Path, table: pa.Table, kind: str, joints: Sequence[str], suffixed: Mapping[str, str]
) -> NDArray[np.float64]:
    return np.stack([_numbers(path, table, f"{kind}/{joint}{suffixed[joint]}") for joint in joints], axis=1)


def _numbers(path: Path, table: pa.Table, name: str) -> NDArray[np.float64]:
    """A column as float64; an empty cell is NaN."""
    column = table[name]
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise LogError(f"{path}: column {name} holds {column.type} values where numbers should be.")
    return column.cast(pa.float64()).to_numpy()


IMPORTER = Importer(name="csv", recognizes=recognizes, read=read)
