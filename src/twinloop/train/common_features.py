"""Check that the dataset folders of a training run match, and convert their values to common units.

Folders match if they have the same robot, rate, inputs and joints, and units that can be converted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.assignment import Assignment, find_assignments, list_sources
from twinloop.core.contract import ACTION, ENVIRONMENT, IMAGES, STATE, Contract
from twinloop.core.errors import InputError, TwinloopError, UnitsError, UnknownNameError
from twinloop.core.units import DEGREES, METRES, RADIANS, CommandKind, JointUnit, UnitMap
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.train.sources import TrainingSource
from twinloop.twin import load_twin

UNKNOWN = "unknown"
KNOWN = "deg, rad, range_m100_100, range_0_100"
_LIKE = {RADIANS: (1.0, 0.0), METRES: (1.0, 0.0)}  # units whose meaning needs no calibration
_ANOTHER_SCALE = 1e-6  # relative difference from which two scales count as different


@dataclass(frozen=True, kw_only=True)
class DatasetColumns:
    """Units of the action and state columns of one folder, in the folder's column order.

    ``state`` is None if the state is not used.
    """

    folder: Path
    action: UnitMap
    state: UnitMap | None


def read_dataset_columns(
    reader: DatasetReader, given_units: Sequence[str] | str | None, with_state: bool
) -> DatasetColumns:
    """Return the units of a folder's action columns, and of its state columns if ``with_state`` is true.

    ``given_units`` are the units that the user gave for a folder that stores none: one name for all joints, or one per
    joint.
    """
    return DatasetColumns(
        folder=reader.path,
        action=_find_column_units(reader, ACTION, given_units),
        state=_find_column_units(reader, STATE, given_units) if with_state else None,
    )


def _find_column_units(reader: DatasetReader, feature: str, given: Sequence[str] | str | None) -> UnitMap:
    """Return the unit of every column of ``feature``: the user's (``given``), else the folder's, else "unknown".

    Without ``given``, a column is "unknown" if the folder stores no unit for its name, and the ``source`` of the map is
    "unknown" if the folder stores no units.

    Raises:
        UnitsError: If units are given for a folder that stores its units, or not one per column.
        UnknownNameError: If a given unit does not exist.
    """
    width = int(np.prod(reader.info["features"][feature]["shape"]))
    names = [name.removesuffix(".pos") for name in reader.feature_names(feature)]
    names = names if len(names) == width else [f"{feature}.{i}" for i in range(width)]
    if given is not None:
        if reader.units is not None:
            there = ", ".join(dict.fromkeys(unit.unit for unit in reader.units.joints))
            raise UnitsError(
                f"{reader.path} already stores the units of its joints ({there}). Remove `units:` from this source. If "
                "the stored units are wrong, import the log again with --units."
            )
        units = [given] * width if isinstance(given, str) else list(given)
        if len(units) != width:
            raise UnitsError(f"{reader.path}: {feature} has {width} columns and {len(units)} units are given.")
        return UnitMap(joints=tuple(_make_joint_unit(n, u) for n, u in zip(names, units, strict=True)), source="said")
    known = {} if reader.units is None else {unit.joint: unit for unit in reader.units.joints}
    rows = tuple(known.get(n, JointUnit(joint=n, unit=UNKNOWN, scale=None, offset=None)) for n in names)
    return UnitMap(joints=rows, source=reader.units.source if reader.units is not None else UNKNOWN)


def _make_joint_unit(joint: str, unit: str) -> JointUnit:
    """Return the unit of a joint from a unit's name, such as ``deg``. Degrees count from the joint's zero."""
    if unit not in KNOWN.split(", ") and unit != METRES:
        raise UnknownNameError("joint unit", unit, [*KNOWN.split(", "), METRES])
    scale, offset = (np.pi / 180, 0.0) if unit == DEGREES else _LIKE.get(unit, (None, None))
    return JointUnit(joint=joint, unit=unit, scale=scale, offset=offset)


def adopt_first_units(side: DatasetColumns, first: DatasetColumns) -> DatasetColumns:
    """Return the columns of a folder with the first folder's definition of each unit that has the same name.

    The user gave the units of this folder by name, and a name alone does not define the zero position of a joint.
    Therefore a joint whose unit has the same name in both folders gets the first folder's definition of that unit,
    including its zero. Other joints are unchanged.

    Args:
        side: columns of a folder whose units the user gave.
        first: columns of the first folder.
    """

    def like(mine: UnitMap | None, theirs: UnitMap | None) -> UnitMap | None:
        if mine is None or theirs is None:
            return mine
        known = {unit.joint: unit for unit in theirs.joints}
        rows = [unit if known.get(unit.joint, unit).unit != unit.unit else known[unit.joint] for unit in mine.joints]
        return UnitMap(joints=tuple(rows), source=mine.source)

    action = like(side.action, first.action)
    return DatasetColumns(folder=side.folder, action=action or side.action, state=like(side.state, first.state))


def check_units(first: DatasetColumns, side: DatasetColumns) -> None:
    """Raise an error if the values of a folder cannot be converted to the units of the first folder.

    Args:
        first: columns of the first folder.
        side: columns of the other folder.

    Raises:
        InputError: If the folders have different joints.
        UnitsError: If a unit is missing or cannot be converted. The message gives the joint and what to add.
    """
    for mine, theirs in ((first.action, side.action), (first.state, side.state)):
        if mine is None or theirs is None or mine is theirs:
            continue
        if sorted(mine.names) != sorted(theirs.names):
            raise InputError(
                f"{first.folder} and {side.folder} have different joints: {', '.join(mine.names)} and "
                f"{', '.join(theirs.names)}. Train on one of the two."
            )
        units = {unit.joint: unit for unit in theirs.joints}
        for unit in mine.joints:
            _check_unit(unit, units[unit.joint], first.folder, side.folder)


def _check_unit(mine: JointUnit, theirs: JointUnit, one: Path, other: Path) -> None:
    if is_equal_unit(mine, theirs) or (mine.known and theirs.known):
        return
    for unit, folder, known, its in ((theirs, other, mine, one), (mine, one, theirs, other)):
        if unit.unit == UNKNOWN:
            raise UnitsError(
                f"{folder} does not store the unit of {unit.joint}; {its} has it in {known.unit}. Which unit is it? "
                f"Add `units:` to this source ({KNOWN}), or import the folder with --units first."
            )
    unknown, folder = (theirs, other) if not theirs.known else (mine, one)
    raise UnitsError(
        f"{mine.joint} is in {mine.unit} in {one} and in {theirs.unit} in {other}, but the conversion of "
        f"{folder} to radians is unknown ({unknown.unit} without a calibration). Which range did the joint sweep? "
        "Import the folder again with --calibration."
    )


def is_equal_unit(mine: JointUnit, theirs: JointUnit) -> bool:
    """Return whether the same number means the same position in both units."""
    coefficients = np.array([[mine.scale, mine.offset], [theirs.scale, theirs.offset]], dtype=np.float64)  # None is NaN
    close = np.allclose(coefficients[0], coefficients[1], rtol=_ANOTHER_SCALE, atol=1e-9, equal_nan=True)
    return mine.unit == theirs.unit and bool(close)


def has_equal_units(mine: UnitMap, theirs: UnitMap) -> bool:
    """Return whether both unit maps have the same joints in the same order, with equal units."""
    pairs = zip(mine.joints, theirs.joints, strict=True)
    return mine.names == theirs.names and all(is_equal_unit(a, b) for a, b in pairs)


_INPUTS = {"state": STATE, "environment": ENVIRONMENT}
OBJECT_INPUT = "environment/"  # prefix of an object as an input


@dataclass(frozen=True, kw_only=True)
class CommonFeatures:
    """Features that all folders of a training run share, and the conversion of each folder's columns to them.

    Attributes:
        contract: contract of the new policy: its joints with units, cameras, environment values and control rate.
        keys: features to read from Parquet files, that is all features except images.
        column_units: units of each folder's action and state columns.
        columns: for each folder, the indices of its columns of ``observation.environment_state`` (such as object
            positions), in the contract's order.
        notes: notes for the user.
        assignment: twin and task of the data; None if it is unknown, or if the folders have several.
        sources: files of this twin and task, by their path in a folder.
    """

    contract: Contract
    keys: tuple[str, ...]
    column_units: Mapping[Path, DatasetColumns]
    columns: Mapping[Path, Sequence[int]]
    notes: tuple[str, ...]
    assignment: Assignment | None = None
    sources: Mapping[str, Path] = field(default_factory=dict[str, Path])

    def convert_columns(self, key: str, values: NDArray[np.float64], folder: Path) -> NDArray[np.float32]:
        """Return a folder's values of the feature ``key`` in the contract's units and column order.

        ``values`` has shape ``(T, n)`` for T frames and n columns.
        """
        if key == ENVIRONMENT:
            return values[:, self.columns[folder]].astype(np.float32)
        mine, wanted = (
            (self.column_units[folder].action, self.contract.action)
            if key == ACTION
            else (self.column_units[folder].state, self.contract.state)
        )
        if mine is None or wanted is None or has_equal_units(mine, wanted):
            return values.astype(np.float32)
        order = [mine.names.index(name) for name in wanted.names]
        mapped = UnitMap(joints=tuple(mine.joints[i] for i in order), source=mine.source)
        values = values[:, order]
        same = [is_equal_unit(a, b) for a, b in zip(mapped.joints, wanted.joints, strict=True)]
        converted = values if all(same) else wanted.from_si(mapped.to_si(values))
        return np.where(same, values, converted).astype(np.float32)


def find_common_features(
    sources: Sequence[TrainingSource],
    readers: Mapping[Path, DatasetReader],
    *,
    inputs: Sequence[str] | None = None,
    task: str = "",
) -> CommonFeatures:
    """Find the features and units that the folders of all sources share, and the contract of a policy trained on them.

    Args:
        sources: the sources whose folders are compared.
        readers: readers of the folders, in the order of the sources; the first one sets units and column order.
        inputs: features that the policy observes; None for the default of `config.TrainConfig`.
        task: name of the task, for the contract.

    Raises:
        UnitsError: If units differ and cannot be converted. The message gives the joint and what to add.
        InputError: If robots, rates or joints differ.
        UnknownNameError: If a folder lacks a requested input.
    """
    given = {episode.folder: source.config.units for source in sources for episode in source.episodes}
    keys, notes = _choose_inputs(readers, inputs)
    sides = {folder: read_dataset_columns(reader, given[folder], STATE in keys) for folder, reader in readers.items()}
    first = next(iter(sides.values()))
    _check_same(readers)
    for folder in sides:
        if given[folder] is not None:
            sides[folder] = adopt_first_units(sides[folder], first)
            notes += [
                f"units of {folder} were given by the user; equal unit names are assumed to have the same zero"
            ] * (len(sides) > 1)
    for side in sides.values():
        check_units(first, side)
    if any(unit.unit == UNKNOWN for unit in first.action.joints):
        notes.append(
            "no folder stores the units of its joints, so no robot can be checked against the policy's contract. "
            f"Give them with --units ({KNOWN})"
        )
    reader = next(iter(readers.values()))
    environment = _select_columns(reader, inputs or ()) if ENVIRONMENT in keys else ()
    assignments = _list_assignments(readers)
    contract = Contract(
        robot_type=str(reader.info.get("robot_type") or ""),
        control_hz=reader.fps,
        action=first.action,
        state=first.state,
        environment=environment,
        cameras={key.removeprefix(IMAGES): _find_image_size(readers, key) for key in keys if key.startswith(IMAGES)},
        command=_find_command_kind(assignments),
        task=task or _find_common_task(assignments),
    )
    every = {made for own in assignments.values() for made in own if made.twin_hash}
    assignment = every.pop() if len(every) == 1 else None
    files = [list_sources(folder / layout.OWN) for folder in readers] if assignment else []
    columns = {
        folder: _find_column_order(environment, one.feature_names(ENVIRONMENT) if environment else [], one)
        for folder, one in readers.items()
    }
    read = tuple(key for key in (*keys, ACTION) if not key.startswith(IMAGES))
    return CommonFeatures(
        contract=contract,
        keys=read,
        column_units=sides,
        columns=columns,
        notes=tuple(notes),
        assignment=assignment,
        sources={name: file for own in files for name, file in own.items()},
    )


def _choose_inputs(readers: Mapping[Path, DatasetReader], wanted: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Return the keys of the features that the policy observes, and notes for the user about this choice."""
    present = {folder: list(reader.info["features"]) for folder, reader in readers.items()}
    if wanted is not None:
        keys = [_feature_key(name) for name in wanted]
        for folder, features in present.items():
            for name, key in zip(wanted, keys, strict=True):
                if key not in features:
                    raise UnknownNameError("input", name, _short_names(features), where=str(folder))
        return list(dict.fromkeys(keys)), []
    common = [key for key in next(iter(present.values())) if all(key in features for features in present.values())]
    cameras = [key for key in common if key.startswith(IMAGES)]
    keys = [key for key in (STATE, ENVIRONMENT) if key in common]
    notes = list[str]()
    lacking = [str(folder) for folder, features in present.items() if ENVIRONMENT not in features]
    if ENVIRONMENT not in keys:
        keys += cameras
        if lacking and len(lacking) < len(present):
            notes.append(f"{ENVIRONMENT} is left out: {lacking[0]} does not have it")
        if not cameras:
            notes.append(
                f"the policy observes joints only: there is neither {ENVIRONMENT} nor a camera. For simulated data, "
                "set `rollout: {environment_state: true}` in the generate file, or add images with `twinloop render`"
            )
    if not keys:
        raise InputError(
            f"{next(iter(present))} and the other folders have no observation in common. Give folders with "
            f"{STATE}, {ENVIRONMENT} or {IMAGES}NAME."
        )
    return keys, notes


def _feature_key(name: str) -> str:
    """Return the key of the feature that an input of `config.TrainConfig` names."""
    if name.startswith(OBJECT_INPUT):
        return ENVIRONMENT
    return _INPUTS.get(name, name if name.startswith(IMAGES) else IMAGES + name)


def _select_columns(reader: DatasetReader, inputs: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the tracked values of the objects among the inputs, in the dataset's order.

    Without an object among the inputs, all tracked values are returned.

    Raises:
        UnknownNameError: If the dataset has no such object. The message lists its objects.
    """
    names = reader.feature_names(ENVIRONMENT)
    wanted = [name.removeprefix(OBJECT_INPUT) for name in inputs if name.startswith(OBJECT_INPUT)]
    objects = list_objects(names)
    for name in wanted:
        if name not in objects:
            raise UnknownNameError("object", name, objects, where=f"{ENVIRONMENT} of {reader.path}")
    if not wanted or "environment" in inputs:
        return tuple(names)
    return tuple(name for name in names if name.partition(".")[0] in wanted)


def list_objects(names: Sequence[str]) -> list[str]:
    """Return the objects whose values have the given names, such as ``cube`` of ``cube.x``, in order."""
    return list(dict.fromkeys(name.partition(".")[0] for name in names))


def _short_names(features: Sequence[str]) -> list[str]:
    short = {key: name for name, key in _INPUTS.items()}
    return [short.get(key, key.removeprefix(IMAGES)) for key in features if key in short or key.startswith(IMAGES)]


def _check_same(readers: Mapping[Path, DatasetReader]) -> None:
    (one, first), *others = readers.items()
    for folder, reader in others:
        for what, mine, theirs in (
            ("robots", first.info.get("robot_type"), reader.info.get("robot_type")),
            ("frames per second", first.fps, reader.fps),
        ):
            if mine != theirs:
                raise InputError(
                    f"{one} and {folder} have different {what}: {mine} and {theirs}. Train on one of the two."
                )


def _find_column_order(wanted: Sequence[str], present: Sequence[str], reader: DatasetReader) -> list[int]:
    missing = [name for name in wanted if name not in present]
    if missing:
        raise InputError(
            f"{reader.path}: {ENVIRONMENT} lacks {', '.join(missing)}; it has {', '.join(present) or 'no names'}. "
            "Generate both with the same task, or train without it: `inputs: [state]`."
        )
    return [list(present).index(name) for name in wanted]


def _find_image_size(readers: Mapping[Path, DatasetReader], key: str) -> tuple[int, int]:
    sizes: dict[tuple[int, int], Path] = {}
    for folder, reader in readers.items():
        entry: dict[str, Any] = reader.info["features"][key]
        height, width = (int(side) for side in entry["shape"][:2])
        if width == 3 or height == 3:  # some programs store the channels first
            height, width = (int(side) for side in entry["shape"][1:3])
        sizes.setdefault((height, width), folder)
    if len(sizes) > 1:
        listed = ", ".join(f"{w}x{h} in {folder}" for (h, w), folder in sizes.items())
        raise InputError(f"{key} has several sizes: {listed}. Render all with one size.")
    return next(iter(sizes))


def _find_command_kind(assignments: Mapping[Path, Sequence[Assignment]]) -> CommandKind:
    """Return the control mode of the twin that generated the data, from the first dataset folder that stores a twin.

    Folders whose twin cannot be loaded here are skipped. If no folder remains, return ``position``, which LeRobot
    assumes.
    """
    for folder, own in assignments.items():
        for assignment in own:
            with contextlib.suppress(TwinloopError, OSError):  # a twin that is not installed here
                kept = assignment.references(folder / layout.OWN)[0] if assignment.twin_hash else assignment.twin
                return load_twin(kept).robot.control
    return "position"


def _find_common_task(assignments: Mapping[Path, Sequence[Assignment]]) -> str:
    """Return the name of the task if all folders were generated for the same task, else an empty string."""
    names = {one.task_name for own in assignments.values() for one in own if one.task_name}
    return names.pop() if len(names) == 1 and all(assignments.values()) else ""


def _list_assignments(readers: Mapping[Path, DatasetReader]) -> dict[Path, list[Assignment]]:
    """Return the twins and tasks for which each folder was generated; none for a recorded one."""
    return {
        folder: find_assignments(reader.spec.config, where=str(folder)) if reader.written_by_twinloop else []
        for folder, reader in readers.items()
    }
