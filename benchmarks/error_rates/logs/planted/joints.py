"""Plant defects of joint columns: invalid values, wrong signs, swapped columns, wrong units."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from benchmarks.error_rates.logs.planted.defect import (
    Log,
    Planted,
    change_joint,
    change_joint_everywhere,
    choose_episode,
    choose_joint,
    defect,
    moving_joints,
    raw,
)
from twinloop.core.units import JointUnit, UnitMap
from twinloop.dataset.logs.importers.protocol import RawEpisode


@defect("NaN", "not_finite")
def _nan(log: Log, random: np.random.Generator) -> Planted | None:
    def change(record: RawEpisode, joint: int, at: int) -> float:
        record.state[at : at + 4, joint] = np.nan
        return float(record.time[at])

    return change_joint(log, random, change)


@defect("joint reads a constant", "constant", also=("joint_lag", "no_excitation"))
def _constant(log: Log, random: np.random.Generator) -> Planted | None:
    def change(record: RawEpisode, joint: int, at: int) -> float:
        record.state[:, joint] = record.state[at, joint]
        return float(record.time[0])

    return change_joint(log, random, change)


@defect("reading frozen for a while", "frozen", also=("spike", "clock_step", "clock_drift", "swapped", "coarse"))
def _frozen(log: Log, random: np.random.Generator) -> Planted | None:
    def change(record: RawEpisode, joint: int, _at: int) -> float:
        span = max(12, round(0.8 / float(np.median(np.diff(record.time)))))
        state = record.state[:, joint]
        moved = [np.abs(state[i + span] - state[i]) for i in range(len(state) - span - 1)]
        if not moved or max(moved) < 0.3 * np.ptp(state):
            return math.nan
        first = int(np.argmax(moved))
        state[first : first + span] = state[first]
        return float(record.time[first])

    return change_joint(log, random, change)


@defect("cut off at a limit", "cut_off", also=("clock_step", "clock_drift"))
def _cut(log: Log, random: np.random.Generator) -> Planted | None:
    def change(record: RawEpisode, joint: int, _at: int) -> float:
        state = record.state[:, joint]
        for level in np.percentile(state, [85, 75, 65, 55]):
            visits = np.flatnonzero(np.diff((state > level).astype(int)) == 1)
            if len(visits) > 1:
                np.minimum(state, level, out=state)
                return float(record.time[visits[0]])
        return math.nan

    return change_joint(log, random, change)


@defect("wrapped by a full turn", "wraps", also=("unit_mismatch", "out_of_range"))
def _wrapped(log: Log, random: np.random.Generator) -> Planted | None:
    def change(record: RawEpisode, joint: int, _at: int) -> float:
        scale = record.units.joints[joint].scale
        if scale is None or record.units.joints[joint].unit not in ("rad", "deg"):
            return math.nan
        turn = 2 * math.pi / abs(scale)
        state = record.state[:, joint]
        middle = (state.max() + state.min()) / 2
        first = np.flatnonzero(np.diff((state > middle).astype(int)) != 0)
        record.state[:, joint] = np.mod(state - middle, turn)
        return float(record.time[first[0] + 1])

    return change_joint(log, random, change)


@defect("spikes", "spike")
def _spikes(log: Log, random: np.random.Generator) -> Planted | None:
    def change(record: RawEpisode, joint: int, at: int) -> float:
        record.state[at, joint] += 0.8 * np.ptp(record.state[:, joint])
        return float(record.time[at])

    return change_joint(log, random, change)


@defect("joint with the wrong sign", "wrong_sign", also=("out_of_range", "velocity_sign", "torque_sign"))
def _sign(log: Log, random: np.random.Generator) -> Planted | None:
    def change(record: RawEpisode, joint: int) -> None:
        record.state[:, joint] *= -1

    return change_joint_everywhere(log, random, change)


@defect("command with the wrong sign", "wrong_sign", also=("out_of_range", "velocity_sign", "torque_sign"))
def _command_sign(log: Log, random: np.random.Generator) -> Planted | None:
    def change(record: RawEpisode, joint: int) -> None:
        record.action[:, joint] *= -1

    return change_joint_everywhere(log, random, change)


@defect("sign that changes in an episode", "wrong_sign", also=("spike", "clock_step", "clock_drift", "out_of_range"))
def _sign_halfway(log: Log, random: np.random.Generator) -> Planted | None:
    def change(record: RawEpisode, joint: int, at: int) -> float:
        state = record.state[:, joint]
        state[at:] = 2 * state[at] - state[at:]
        return float(record.time[at])

    return change_joint(log, random, change)


@defect("two columns swapped", "swapped", also=("wrong_sign", "frozen", "joint_lag", "out_of_range"))
def _swap(log: Log, random: np.random.Generator) -> Planted | None:
    row = choose_episode(log, random)
    first = None if row is None else choose_joint(log, row, random)
    if row is None or first is None or len(log[row].joints) < 2:
        return None
    second = next((j for j in random.permutation(moving_joints(log[row])) if j != first), None)
    if second is None:
        return None
    made = [raw(record) for record in log]
    for record in made:
        record.state[:, [first, second]] = record.state[:, [second, first]]
    return Planted(records=made, column=log[row].joints[first], episode=log[0].index, begin_s=float(log[0].time[0]))


def _declare_unit(log: Log, unit: str, scale: float, factor: float) -> Log:
    """Convert positions to rad, multiply them by ``factor``, and declare them in ``unit`` (``scale`` rad per unit)."""
    joints = tuple(JointUnit(joint=name, unit=unit, scale=scale, offset=0.0) for name in log[0].joints)
    units = UnitMap(joints=joints, source="planted")
    made = []
    for record in map(raw, log):
        state, action = factor * record.units.to_si(record.state), record.action
        if record.command == "position":
            action = factor * record.units.to_si(action)
        made.append(replace(record, units=units, state=state, action=action))
    return made


def _is_angular(log: Log) -> bool:
    lengths = any(unit.unit in ("m", "cm", "mm") for unit in log[0].units.joints)
    return bool(log[0].joints) and log[0].units.known and not lengths and log[0].command != "none"


def _widest(log: Log) -> int:
    return int(np.argmax(np.max([np.ptp(record.state, axis=0) for record in log], axis=0)))


@defect("degrees for radians", "unit", also=("velocity_unit", "torque_sign", "torque_unit", "wraps"))
def _degrees(log: Log, _random: np.random.Generator) -> Planted | None:
    if not _is_angular(log):
        return None
    made = _declare_unit(log, "rad", 1.0, 180 / math.pi)
    return Planted(records=made, column=log[0].joints[_widest(log)], episode=log[0].index, begin_s=math.nan)


@defect("radians for degrees", "unit", also=("velocity_unit", "no_excitation", "coarse"))
def _radians(log: Log, _random: np.random.Generator) -> Planted | None:
    if not _is_angular(log):
        return None
    made = _declare_unit(log, "deg", math.pi / 180, 1.0)
    return Planted(records=made, column=log[0].joints[_widest(log)], episode=log[0].index, begin_s=math.nan)


@defect(
    "measured in degrees, commanded in radians",
    "unit_mismatch",
    "unit",
    also=("wraps", "out_of_range", "velocity_unit"),
)
def _mixed(log: Log, random: np.random.Generator) -> Planted | None:
    if not _is_angular(log) or any(unit.unit != "rad" for unit in log[0].units.joints):
        return None

    def change(record: RawEpisode, joint: int) -> None:
        record.state[:, joint] *= 180 / math.pi

    return change_joint_everywhere(log, random, change)
