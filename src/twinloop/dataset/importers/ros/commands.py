"""Commands on a topic, whatever its type, as values over time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import LogError
from twinloop.dataset.importers.ros import topics as kinds
from twinloop.dataset.importers.ros.series import Series

Array = NDArray[np.float64]
_NS = 1_000_000_000
_FIELDS = {kinds.JOINTS: ("position", "effort"), kinds.CONTROLLER: ("wanted_position", "wanted_effort")}


@dataclass(frozen=True, kw_only=True)
class Commands:
    """Commanded values ``(K, n)`` at ``time`` ``(K,)`` in s, of ``joints``; ``kind`` is "position" or "torque"."""

    time: Array
    values: Array
    joints: tuple[str, ...]
    kind: str


def read_commands(
    series: Series,
    time: Array,
    joints: Sequence[str],
    *,
    said: str,
    chosen: bool,
    measured: tuple[Array, Array],
) -> Commands:
    """The commands of a topic for those of the measured joints that it commands.

    Args:
        series: the topic's messages.
        time: when each counts, in s.
        joints: the measured joints.
        said: "position" or "torque" where the caller said what the numbers are.
        chosen: the caller named the joints: then all of them must be commanded.
        measured: times and positions ``(T, n)``, from which a first trajectory starts.

    Raises:
        LogError: the messages hold no positions and no torques, do not say their joints, or name others.
    """
    if series.kind == kinds.ARRAY:
        return _array(series, time, joints, said, chosen)
    named = set().union(*map(set, series.names))
    common = tuple(joint for joint in joints if joint in named)
    if not common or (chosen and len(common) < len(joints)):
        raise LogError(
            f"{series.topic} commands {', '.join(sorted(named)) or 'nothing by name'}; the measured joints are "
            f"{', '.join(joints)}. Choose another command topic (--topics command=…) or joints (--joints)."
        )
    if series.kind == kinds.TRAJECTORY:
        return _trajectories(series, time, common, joints, measured)
    order = reversed(_FIELDS[series.kind]) if said == "torque" else _FIELDS[series.kind]
    for field in order:
        rows, values = series.rows(field, common)
        if rows and not np.isnan(values).all() and (not said or said == _kind(field)):
            return Commands(time=time[rows], values=values, joints=common, kind=_kind(field))
    raise LogError(
        f"{series.topic} holds no {said or 'positions and no efforts'} for {', '.join(common)}. Commands of velocity "
        "are not read: give another topic (--topics command=…), or command=none."
    )


def _kind(field: str) -> str:
    return "torque" if field.endswith("effort") else "position"


def _array(series: Series, time: Array, joints: Sequence[str], said: str, chosen: bool) -> Commands:
    """Numbers without names: in the order of the joints that the caller named."""
    rows = series.values["data"]
    widths = {len(row) for row in rows}
    if widths != {len(joints)}:
        raise LogError(
            f"{series.topic} holds {' or '.join(map(str, sorted(widths)))} numbers a message, for {len(joints)} "
            f"joints: {', '.join(joints)}. Which joints does it command, in its order? Answer with joints=[…] "
            "(--joints a,b,…)."
        )
    if len(joints) > 1 and not chosen:
        raise LogError(
            f"{series.topic} holds numbers without names. Which joints are they, in its order? "
            f"Answer with joints=[…] (--joints a,b,…); measured are {', '.join(joints)}."
        )
    kind = said or _kind_of_name(series.topic)
    if not kind:
        raise LogError(
            f"{series.topic} does not say what its numbers are. Answer with --topics position={series.topic} or "
            f"torque={series.topic}, or with command=none where they are something else."
        )
    return Commands(time=time, values=np.array(rows), joints=tuple(joints), kind=kind)


def _kind_of_name(topic: str) -> str:
    """What a controller's name says that it is commanded in, as those of ros2_control do."""
    if re.search(r"position", topic.lower()):
        return "position"
    return "torque" if re.search(r"effort|torque", topic.lower()) else ""


def _trajectories(
    series: Series, time: Array, common: tuple[str, ...], joints: Sequence[str], measured: tuple[Array, Array]
) -> Commands:
    """Trajectories as a controller follows them, at the times of the measurements.

    A new trajectory replaces the one before at the moment at which it is heard. From what was wanted then (or measured,
    at the first) it goes straight to its first point; between points straight, or as a cubic where they have
    velocities (ros2_controllers, "Trajectory Representation"); after the last it holds.
    """
    frames, positions = measured
    columns = [list(joints).index(joint) for joint in common]
    values = np.full((len(frames), len(common)), np.nan)
    held: Array | None = None
    for at in range(len(series)):
        until = time[at + 1] if at + 1 < len(series) else np.inf
        if not set(common) <= set(series.names[at]):
            raise LogError(f"Trajectories on {series.topic} name different joints. Choose with --joints.")
        if held is None:
            held = positions[max(0, int(np.searchsorted(frames, time[at], side="right")) - 1), columns]
        knots, slopes = _knots(series, at, common, time[at], held)
        chosen = (frames >= time[at]) & (frames < until)
        values[chosen] = _follow(knots, slopes, frames[chosen])
        held = _follow(knots, slopes, np.array([min(until, knots[0][-1])]))[0]
    begun = ~np.isnan(values[:, 0])
    return Commands(time=frames[begun], values=values[begun], joints=common, kind="position")


def _knots(
    series: Series, at: int, joints: Sequence[str], heard: float, held: Array
) -> tuple[tuple[Array, Array], Array | None]:
    """Times and positions of a trajectory's points, ahead of them where it starts from; and the points' velocities."""
    n, columns = len(series.names[at]), [series.names[at].index(joint) for joint in joints]
    stamp = series.stamped[at]
    begin = heard + max(0.0, (stamp - series.recorded[at]) / _NS) if stamp else heard
    times = begin + series.values["from_start"][at]
    points = series.values["positions"][at].reshape(-1, n)[:, columns]
    speeds = series.values["velocities"][at]
    slopes = speeds.reshape(-1, n)[:, columns] if len(speeds) else None
    if not len(times):  # an empty trajectory stops where it is
        return (np.array([heard]), held[None]), None
    later = times > heard
    if not later.all():  # what should have been reached already
        points = points[np.argmax(later) if later.any() else -1 :]
        slopes = None if slopes is None else slopes[np.argmax(later) if later.any() else -1 :]
        times = times[later] if later.any() else np.array([heard + 1e-9])
    return (np.concatenate([[heard], times]), np.concatenate([held[None], points])), slopes


def _follow(knots: tuple[Array, Array], slopes: Array | None, at: Array) -> Array:
    """Positions on a trajectory ``(k, n)``; ``slopes`` belong to all points but the first."""
    times, points = knots
    straight = np.stack([np.interp(at, times, column) for column in points.T], axis=1)
    if slopes is None or len(times) <= 2 or not len(at):
        return straight
    from scipy.interpolate import CubicHermiteSpline  # half a second to import, for a rare case

    curve = CubicHermiteSpline(times[1:], points[1:], slopes)
    inside = (at >= times[1]) & (at <= times[-1])
    straight[inside] = curve(at[inside])
    return straight
