"""Measure false alarms of the sensor comparison, and the smallest differences that it detects."""

from __future__ import annotations

import numpy as np

from benchmarks.studies import Study, StudyTable, share
from twinloop.core.records import Episode
from twinloop.core.seeds import generator
from twinloop.core.units import JointUnit, UnitMap
from twinloop.gap.sensors.measure import measure_sensors

_HZ, _SECONDS, _JOINTS = 50.0, 6.0, 3
_UNITS = UnitMap(
    joints=tuple(JointUnit(joint=f"j{i}", unit="rad", scale=1.0, offset=0.0) for i in range(_JOINTS)), source="study"
)
_NOISE, _LAG = 1e-3, 0.08  # rad and s, as of the SO-101
# Planted in the first joint of the real log: name, factor on the noise, additional lag in s.
_ARMS = (("nothing", 1.0, 0.0), ("noise × 1.2", 1.2, 0.0), ("noise × 1.5", 1.5, 0.0), ("10 ms of lag", 1.0, 0.010),
         ("30 ms of lag", 1.0, 0.030))  # fmt: skip
_EPISODES = (3, 6, 12)


def _log(seed: int, run: int, count: int, factor: float, lag: float) -> list[Episode]:
    """Simulate ``count`` episodes of joints that follow commands; noise and lag vary slightly between episodes.

    The noise of the first joint is multiplied by ``factor``, and its lag is increased by ``lag`` s.
    """
    rng = generator(seed, f"study/sensors/{run}")
    time = np.arange(0, _SECONDS, 1 / _HZ)
    episodes = []
    for index in range(count):
        pace, turn = rng.uniform(0.3, 0.9, (3, _JOINTS)), rng.uniform(0, 6, (3, _JOINTS))
        late = _LAG * rng.uniform(0.95, 1.05) + np.eye(_JOINTS)[0] * lag
        sd = _NOISE * rng.uniform(0.9, 1.1) * (1 + np.eye(_JOINTS)[0] * (factor - 1))

        def path(at: np.ndarray, pace: np.ndarray = pace, turn: np.ndarray = turn) -> np.ndarray:
            return 0.4 * np.sin(2 * np.pi * pace * at[:, None, :] + turn).sum(axis=1)

        state = path(time[:, None] - late) + sd * rng.standard_normal((len(time), _JOINTS))
        action = path(np.tile(time[:, None], _JOINTS))
        episodes.append(Episode(index=index, time=time, action=action, state=state, units=_UNITS))
    return episodes


def _run(repetitions: int, seed: int) -> StudyTable:
    rows, metrics = [], []
    for name, factor, lag in _ARMS:
        quantity = "lag" if lag else "noise"
        for count in _EPISODES:
            false, detected, covered = 0, 0, 0
            for repetition in range(repetitions):
                real = _log(seed, 2 * repetition, count, factor, lag)
                sim = _log(seed, 2 * repetition + 1, count, 1.0, 0.0)
                gap = measure_sensors(real, sim)
                planted = [row for row in gap.differences if (row.channel, row.quantity) == ("position/j0", quantity)]
                planted_row = planted[0]
                is_changed = lag != 0 or factor != 1
                false += any(row is not planted_row or not is_changed for row in gap.significant_differences)
                detected += is_changed and planted_row.differs
                truth = lag or _NOISE * (factor - 1)
                covered += bool(planted_row.difference.covers(truth))
            power = share(detected, repetitions) if lag or factor != 1 else "–"
            rows.append((name, f"{count} + {count}", share(false, repetitions), power, share(covered, repetitions)))
            metrics.append({"planted": name, "episodes": count, "false": false, "seen": detected, "covered": covered})
    return StudyTable(
        title=f"Comparisons of sensors: {_JOINTS} joints, 21 metrics, episodes of {_SECONDS:g} s at {_HZ:g} Hz, "
        f"{repetitions} pairs of logs each",
        head=("planted in one joint", "episodes", "any false alarm (≤ 5 %)", "found", "95 % interval covers it"),
        rows=tuple(rows),
        note="In addition to the planted difference, noise varies by up to 10 % and lag by up to 5 % between episodes.",
        metrics=tuple(metrics),
    )


TABLES = (Study(name="sensors", page="evidence/gap.md", repetitions=100, run=_run),)
