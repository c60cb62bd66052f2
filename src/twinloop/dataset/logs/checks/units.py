"""Check a log's joints and their units against the joints and ranges of the twin, or against physical limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.core.units import DEGREES, NORMALIZED, PERCENT, RADIANS
from twinloop.dataset.logs.checks.finding import JointExpectations, LogFinding, LogRecord, Severity, make_finding
from twinloop.dataset.logs.checks.series import prepare_series
from twinloop.dataset.logs.checks.values import find_wraps


def check_joints(records: Sequence[LogRecord], expectations: JointExpectations) -> Iterator[LogFinding]:
    """Find joints that the log or the twin lacks, and a command type that differs from the twin's."""
    for record in records:
        begin = float(record.time[0]) if len(record.time) else 0.0
        missing = [joint for joint in expectations.joints if joint not in record.joints]
        further = [joint for joint in record.joints if joint not in expectations.joints]
        if missing:
            same = len(record.joints) == len(expectations.joints)
            yield make_finding(
                record, "", begin, "missing_joint", "error",
                f"the log lacks {', '.join(missing)} of {expectations.name}; it has "
                f"{', '.join(record.joints) or 'none'}.",
                f"If the columns are these joints, give --joints {','.join(expectations.joints)}."
                if same
                else "Choose a twin with these joints.",
                count=float(len(missing)),
            )  # fmt: skip
        if further:
            yield make_finding(
                record, "", begin, "further_joint", "note", f"{expectations.name} has no {', '.join(further)}.",
                "These joints are not used.", count=float(len(further)),
            )  # fmt: skip
        if record.command not in ("none", expectations.control):
            yield make_finding(
                record, "", begin, "command_kind", "error",
                f"the log has {record.command} commands, {expectations.name} has {expectations.control} control.",
                f"Choose a twin whose robot has control: {record.command}.",
            )  # fmt: skip


Array = NDArray[np.float64]

# Factors to rad or m by possible unit.
_ANGLES = {RADIANS: 1.0, DEGREES: math.pi / 180, "counts of 4096 a turn": 2 * math.pi / 4096}
_LENGTHS = {"m": 1.0, "cm": 1e-2, "mm": 1e-3}
_MARGIN, _MARGIN_SI = 0.1, 0.05  # allowed excess: share of the range, and rad or m; errors of manual calibration
_TINY = 0.02  # share of the range; a log in radians that is read as degrees covers less than 1/57 of it
_TURNS = 8 * math.pi  # rad: no joint of an arm turns four times; a pendulum that swings up does two or three
_FASTEST = 40.0  # rad/s: the fastest joint of a legged robot (MIT Mini Cheetah, Katz 2019)
_LONGEST = 10.0  # m; longest travel of a slide joint
_SATURATED = 0.002  # share of frames at exactly ±100 that indicates normalized values


def check_units(records: Sequence[LogRecord], expectations: JointExpectations | None) -> Iterator[LogFinding]:
    """Find joints whose values do not fit their unit.

    Values are compared with the twin's joint range if there is one, and otherwise with physical limits.
    """
    ranges: Mapping[str, Array] = {}
    if expectations is not None:
        ranges = {joint: expectations.ranges[row] for row, joint in enumerate(expectations.joints)}
    for record in records:
        for column, unit in enumerate(record.units.joints):
            values = record.state[:, column]
            good = np.isfinite(values)
            if good.any() and find_wraps(values[good]) is None:  # wrapped values have their own finding and no range
                yield from _check_joint(record, unit.joint, column, ranges.get(unit.joint), good)
    yield from _check_small_values(records, ranges)


def _check_joint(
    record: LogRecord, joint: str, column: int, limits: Array | None, good: NDArray[np.bool_]
) -> Iterator[LogFinding]:
    unit = record.units.joints[column]
    values, time = record.state[good, column], record.time[good]
    if unit.unit in (NORMALIZED, PERCENT):
        yield from _check_normalized(record, joint, unit.unit, time, values)
        return
    if unit.scale is None or unit.offset is None:
        return
    position = unit.offset + unit.scale * values
    if limits is not None and np.isfinite(limits).all():
        yield from _check_range(record, joint, column, limits, time, values, position)
    elif unit.unit in _LENGTHS:
        far = np.flatnonzero(np.abs(position) > _LONGEST)
        if len(far):
            yield _unit_finding(record, joint, "error", float(time[far[0]]),
                f"reaches {np.abs(position).max():.4g} m if it is in {unit.unit}; it looks like mm.", "mm")  # fmt: skip
    else:
        yield from _check_angle(record, joint, unit.unit, time, position)
    yield from _check_saturation(record, joint, unit.unit, time, values)


def _check_range(
    record: LogRecord, joint: str, column: int, limits: Array, time: Array, values: Array, position: Array
) -> Iterator[LogFinding]:
    low, high = float(limits[0]), float(limits[1])
    margin = _MARGIN * (high - low) + _MARGIN_SI
    outside = np.flatnonzero((position < low - margin) | (position > high + margin))
    if len(outside) <= 0.001 * len(position):
        return
    unit = record.units.joints[column]
    excess = float(max(low - position.min(), position.max() - high))
    family = _LENGTHS if unit.unit in _LENGTHS else _ANGLES
    fits = [
        name
        for name, worth in family.items()
        if name != unit.unit and low - margin <= worth * values.min() and worth * values.max() <= high + margin
        and worth < family[unit.unit]
    ]  # fmt: skip
    evidence = (
        f"{position.min():.4g} to {position.max():.4g} as {unit.unit}, outside of the twin's {low:.4g} to {high:.4g} "
        f"in {100 * len(outside) / len(position):.3g} % of the frames"
    )
    if fits and excess > high - low:
        yield _unit_finding(
            record, joint, "error", float(time[outside[0]]), f"{evidence}; as {fits[0]} it is within.", fits[0],
            low=position.min(), high=position.max(),
        )  # fmt: skip
        return
    yield LogFinding(
        kind="out_of_range", severity="error" if excess > 0.5 * (high - low) else "warning", column=joint,
        episodes=(record.index,), begin_s=float(time[outside[0]]), evidence=f"{evidence}.",
        remedy="Check the zero of the joint and the range of the twin; --calibration gives the zero of the log.",
        metrics={"excess": excess, "part": len(outside) / len(position)},
    )  # fmt: skip


def _check_angle(record: LogRecord, joint: str, unit: str, time: Array, position: Array) -> Iterator[LogFinding]:
    """Find angles beyond ±8π rad (four turns) of a joint in rad without a known range.

    The finding is an error if the log has commands, and the joint is faster than 40 rad/s or several joints are beyond
    ±8π rad. Otherwise it is a warning.
    """
    reach = float(np.abs(position).max())
    series = prepare_series(record, whole=True)
    if reach <= _TURNS or series is None or unit != RADIANS:
        return
    column = record.joints.index(joint)
    speed = float(np.percentile(np.abs(series.movement(series.state[:, column])), 99)) / (series.stride * series.dt)
    first = int(np.argmax(np.abs(position) > _TURNS))
    scale = np.array([unit.scale or 0.0 for unit in record.units.joints])
    together = int(np.sum(np.abs(series.state * scale).max(axis=0) > _TURNS))
    certain = record.command != "none" and (speed > _FASTEST or together > 1)
    yield _unit_finding(
        record, joint, "error" if certain else "warning", time[first],
        f"reaches {reach:.4g} rad at up to {speed:.4g} rad/s (99 %); as degrees it is {math.radians(reach):.3g} rad "
        f"at {math.radians(speed):.3g} rad/s.", DEGREES, reach=reach, speed=speed,
    )  # fmt: skip


def _check_normalized(record: LogRecord, joint: str, unit: str, time: Array, values: Array) -> Iterator[LogFinding]:
    limit = 100.0
    outside = np.flatnonzero((np.abs(values) > 1.05 * limit) | ((unit == PERCENT) & (values < -0.05 * limit)))
    if len(outside):
        yield LogFinding(
            kind="out_of_range", severity="warning", column=joint, episodes=(record.index,),
            begin_s=float(time[outside[0]]),
            evidence=f"{values.min():.4g} to {values.max():.4g} in {unit}, which ends at {limit:g}.",
            remedy="Calibrate the joint again, or give --units deg if these are degrees.",
            metrics={"low": float(values.min()), "high": float(values.max())},
        )  # fmt: skip


def _check_saturation(record: LogRecord, joint: str, unit: str, time: Array, values: Array) -> Iterator[LogFinding]:
    """Find joints in degrees with many values of exactly ±100, which are the limits of LeRobot's normalized values."""
    at = np.flatnonzero(np.abs(values) == 100.0)
    if unit == DEGREES and np.abs(values).max() <= 100.0 and len(at) > max(2, _SATURATED * len(values)):
        yield _unit_finding(
            record, joint, "warning", float(time[at[0]]),
            f"{len(at)} frames are exactly ±100 and none is beyond: these may be normalized values, not degrees.",
            NORMALIZED, frames=len(at),
        )  # fmt: skip


def _check_small_values(records: Sequence[LogRecord], ranges: Mapping[str, Array]) -> Iterator[LogFinding]:
    """Find a log declared in degrees or normalized units whose values are so small that they are probably radians.

    Args:
        records: Episodes of the log.
        ranges: Position limits of the twin's joints in rad or m, shape ``(2,)``, by joint.
    """
    first = records[0]
    units = {unit.unit for unit in first.units.joints}
    if not units or not units <= {DEGREES, NORMALIZED, PERCENT} or any(r.joints != first.joints for r in records):
        return
    state = np.concatenate([record.state for record in records])
    state = state[np.isfinite(state).all(axis=1)]
    if not len(state):
        return
    reach, largest = np.ptp(state, axis=0), np.abs(state).max(axis=0)
    widths = np.array([np.ptp(ranges[j]) if j in ranges else 2 * math.pi for j in first.joints])
    widths = np.where(np.isfinite(widths), widths, 2 * math.pi)
    covers = (reach.max() / np.degrees(widths).max()) if units == {DEGREES} else reach.max() / 200
    as_radians = reach / widths
    if largest.max() < 2 * math.pi and covers < _TINY and as_radians.max() > 0.1:
        widest = int(np.argmax(reach))
        for column, joint in enumerate(first.joints):
            yield LogFinding(
                kind="unit", severity="error" if ranges else "warning", column=joint,
                episodes=tuple(dict.fromkeys(record.index for record in records)), begin_s=float(first.time[0]),
                evidence=f"the whole log stays within ±{largest.max():.3g} {first.units.joints[column].unit}; the "
                f"widest joint, {first.joints[widest]}, moves by {reach[widest]:.3g}. These look like radians.",
                remedy="--units rad", metrics={"range": float(reach[column])},
            )  # fmt: skip


def _unit_finding(
    record: LogRecord, joint: str, severity: Severity, begin: float, evidence: str, better: str, **metrics: float
) -> LogFinding:
    remedy = f"--units {better}" if " " not in better else f"Import {joint} in {better}."
    if len({unit.unit for unit in record.units.joints}) > 1 and remedy.startswith("--"):
        remedy = f"--units with {better} for {joint}."
    return make_finding(record, joint, begin, "unit", severity, evidence, remedy, **metrics)
