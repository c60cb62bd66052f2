"""The unit of every joint column of a folder: said by the folder or by a person, and held against another folder's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from twinloop.core.contract import ACTION, STATE
from twinloop.core.errors import InputError, UnitsError, UnknownNameError
from twinloop.core.units import DEGREES, METRES, RADIANS, JointUnit, UnitMap
from twinloop.dataset.reader import DatasetReader

UNKNOWN = "unknown"
KNOWN = "deg, rad, range_m100_100, range_0_100"
_LIKE = {RADIANS: (1.0, 0.0), METRES: (1.0, 0.0)}  # units whose meaning needs no calibration
_ANOTHER_SCALE = 1e-6  # relative difference from which on two unit maps are two


@dataclass(frozen=True, kw_only=True)
class Side:
    """One folder: its joint columns as they lie there, and what is known of their units."""

    folder: Path
    action: UnitMap
    state: UnitMap | None


def side_of(reader: DatasetReader, said: Sequence[str] | str | None, with_state: bool) -> Side:
    """The units of a folder's columns; ``said`` is what a person says of a folder that does not say them."""
    return Side(
        folder=reader.path,
        action=_columns_units(reader, ACTION, said),
        state=_columns_units(reader, STATE, said) if with_state else None,
    )


def _columns_units(reader: DatasetReader, feature: str, said: Sequence[str] | str | None) -> UnitMap:
    """A unit for every column of a feature: as the person says, else the folder's unit map, else unknown."""
    width = int(np.prod(reader.info["features"][feature]["shape"]))
    names = [name.removesuffix(".pos") for name in reader.feature_names(feature)]
    names = names if len(names) == width else [f"{feature}.{i}" for i in range(width)]
    if said is not None:
        if reader.units is not None:
            there = ", ".join(dict.fromkeys(unit.unit for unit in reader.units.joints))
            raise UnitsError(
                f"{reader.path} says the units of its joints itself ({there}). Leave out `units:` beside it; if they "
                "are wrong there, import the log again with --units."
            )
        units = [said] * width if isinstance(said, str) else list(said)
        if len(units) != width:
            raise UnitsError(f"{reader.path}: {feature} has {width} columns and {len(units)} units are given.")
        return UnitMap(joints=tuple(_of_word(n, u) for n, u in zip(names, units, strict=True)), source="said")
    known = {} if reader.units is None else {unit.joint: unit for unit in reader.units.joints}
    rows = tuple(known.get(n, JointUnit(joint=n, unit=UNKNOWN, scale=None, offset=None)) for n in names)
    return UnitMap(joints=rows, source=reader.units.source if reader.units is not None else UNKNOWN)


def _of_word(joint: str, unit: str) -> JointUnit:
    """A joint in a unit that somebody names; degrees count from the joint's zero."""
    if unit not in KNOWN.split(", ") and unit != METRES:
        raise UnknownNameError("joint unit", unit, [*KNOWN.split(", "), METRES])
    scale, offset = (np.pi / 180, 0.0) if unit == DEGREES else _LIKE.get(unit, (None, None))
    return JointUnit(joint=joint, unit=unit, scale=scale, offset=offset)


def as_first(side: Side, first: Side) -> Side:
    """Units that a person named mean what they mean in the first folder: a name says nothing of where zero is."""

    def like(mine: UnitMap | None, theirs: UnitMap | None) -> UnitMap | None:
        if mine is None or theirs is None:
            return mine
        known = {unit.joint: unit for unit in theirs.joints}
        rows = [unit if known.get(unit.joint, unit).unit != unit.unit else known[unit.joint] for unit in mine.joints]
        return UnitMap(joints=tuple(rows), source=mine.source)

    action = like(side.action, first.action)
    return Side(folder=side.folder, action=action or side.action, state=like(side.state, first.state))


def check_units(first: Side, side: Side) -> None:
    """Refuse a folder whose numbers cannot be made those of the first one.

    Raises:
        InputError: it has other joints.
        UnitsError: a unit is not said, or cannot be converted; the message is the question.
    """
    for mine, theirs in ((first.action, side.action), (first.state, side.state)):
        if mine is None or theirs is None or mine is theirs:
            continue
        if sorted(mine.names) != sorted(theirs.names):
            raise InputError(
                f"{first.folder} and {side.folder} have other joints: {', '.join(mine.names)} and "
                f"{', '.join(theirs.names)}. Train on one of the two."
            )
        units = {unit.joint: unit for unit in theirs.joints}
        for unit in mine.joints:
            _check_unit(unit, units[unit.joint], first.folder, side.folder)


def _check_unit(mine: JointUnit, theirs: JointUnit, one: Path, other: Path) -> None:
    if equal(mine, theirs) or (mine.known and theirs.known):
        return
    for unit, folder, known, its in ((theirs, other, mine, one), (mine, one, theirs, other)):
        if unit.unit == UNKNOWN:
            raise UnitsError(
                f"{folder} does not say the unit of {unit.joint}; {its} has it in {known.unit}. Which unit is it in? "
                f"Say it with `units:` beside `data:` ({KNOWN}), or import the folder with --units first."
            )
    unknown, folder = (theirs, other) if not theirs.known else (mine, one)
    raise UnitsError(
        f"{mine.joint} is in {mine.unit} in {one} and in {theirs.unit} in {other}, and nothing says what a unit of "
        f"{folder} is in radians ({unknown.unit} without a calibration). Which range did the joint sweep? Import the "
        "folder again with --calibration."
    )


def equal(mine: JointUnit, theirs: JointUnit) -> bool:
    """Whether the same number means the same position."""
    figures = np.array([[mine.scale, mine.offset], [theirs.scale, theirs.offset]], dtype=np.float64)  # None is NaN
    close = np.allclose(figures[0], figures[1], rtol=_ANOTHER_SCALE, atol=1e-9, equal_nan=True)
    return mine.unit == theirs.unit and bool(close)


def same_units(mine: UnitMap, theirs: UnitMap) -> bool:
    """Whether the same row of numbers means the same positions."""
    pairs = zip(mine.joints, theirs.joints, strict=True)
    return mine.names == theirs.names and all(equal(a, b) for a, b in pairs)
