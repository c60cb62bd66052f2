"""How far simulated sensors are from real ones: clock, losses, counts, noise and lag, channel by channel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import LogError
from twinloop.core.headline import Headline
from twinloop.core.records import Episode
from twinloop.gap.sensor_channels import SensorChannel, matched
from twinloop.gap.sensor_figures import EpisodeFigures, episode_figures, rate
from twinloop.gap.sensor_remedies import Remedy, remedy
from twinloop.stats import Interval, Spectrum, holm, octaves, on_grid, welch_test

Array = NDArray[np.float64]

# Chance of any false alarm among all figures together.
ALPHA = 0.05
# Figures that are compared, and the unit of each ("" stands for the channel's own).
QUANTITIES = {"noise": "", "lag": "s", "period": "s", "jitter": "s", "missing": "1", "repeated": "1"}
_LEAST_EPISODES = 3  # of each: two tell a spread with one degree of freedom, whose t is 12.7 at 95 %
_ROUNDING = 1e-9  # of a value: more than adding up doubles leaves over, far below what any sensor tells
_OCTAVES = 5  # bands looked at below the highest frequency


@dataclass(frozen=True, kw_only=True)
class SensorDifference:
    """One figure of one channel, real and simulated: means over episodes, and real − simulated with its interval.

    ``p_value`` is adjusted by Holm over all figures of all channels; NaN where a figure was not tested and ``reason``
    says why. ``remedy`` is what to change where they differ.
    """

    channel: str
    quantity: str
    unit: str
    real: float
    sim: float
    difference: Interval
    p_value: float
    remedy: Remedy | None = None
    reason: str = ""

    @property
    def differs(self) -> bool:
        """Whether the difference is beyond chance."""
        return self.p_value <= ALPHA

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return {
            **{key: getattr(self, key) for key in ("channel", "quantity", "unit", "real", "sim", "p_value", "reason")},
            "difference": self.difference.to_json(),
            "differs": self.differs,
            "remedy": None if self.remedy is None else vars(self.remedy),
        }


@dataclass(frozen=True, kw_only=True)
class BandDifference:
    """How much higher the real spectrum stands in one octave, in dB, with p by Holm over a channel's octaves."""

    channel: str
    low: float
    high: float
    level: Interval
    p_value: float

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return {"channel": self.channel, "low_hz": self.low, "high_hz": self.high, "p_value": self.p_value} | {
            "level_db": self.level.to_json()
        }


@dataclass(frozen=True, kw_only=True)
class SensorGap:
    """All channels. ``figures`` by channel are (real, simulated), for plots; ``lacking`` the simulated log has not."""

    differences: tuple[SensorDifference, ...]
    bands: tuple[BandDifference, ...]
    figures: Mapping[str, tuple[EpisodeFigures, EpisodeFigures]]
    units: Mapping[str, str]
    episodes: tuple[int, int]
    lacking: tuple[str, ...] = field(default=())

    @property
    def found(self) -> tuple[SensorDifference, ...]:
        """What differs beyond chance, the surest first."""
        return tuple(sorted((row for row in self.differences if row.differs), key=lambda row: row.p_value))

    def headline(self) -> list[Headline]:
        """The share of figures that differ, and every difference by quantity and channel."""
        tested = [row for row in self.differences if not math.isnan(row.p_value)]
        share = len(self.found) / len(tested) if tested else math.nan
        rows = [
            Headline(
                name="sensors_differ",
                estimate=share,
                method=f"Welch's tests with Holm's correction at {ALPHA:g}",
                meaning=f"part of {len(tested)} figures of sensors that differ beyond chance",
            )
        ]
        rows += [
            row.difference.headline(
                f"{row.quantity}/{row.channel}",
                unit=row.unit,
                meaning=f"{row.quantity} of the real readings less that of the simulated ones",
            )
            for row in tested
        ]
        return rows

    def to_json(self) -> dict[str, Any]:
        """A plain form for files (schema 1)."""
        return {
            "schema": 1,
            "episodes": {"real": self.episodes[0], "sim": self.episodes[1]},
            "differences": [row.to_json() for row in self.differences],
            "bands": [row.to_json() for row in self.bands],
            "lacking": list(self.lacking),
        }


def measure_sensors(
    real: Sequence[Episode],
    sim: Sequence[Episode],
    *,
    same: Mapping[str, str] | None = None,
    nominal: Mapping[str, float] | None = None,
    level: float = 0.95,
) -> SensorGap:
    """Compare the readings of a real log with those of a simulated one.

    The episode is the unit: every figure is taken of each episode, and means over episodes are compared by Welch's
    test, with Holm's correction over all figures of all channels.

    Args:
        real: episodes of the real log.
        sim: episodes of the simulated one; they need not be the same motions, but should be alike.
        same: see `matched`.
        nominal: values of the twin's parameters that the simulated log was made with, for the remedies.
        level: confidence of the intervals.

    Raises:
        LogError: fewer than three episodes of either, or no channel in common.
        UnitsError: see `matched`.
    """
    for name, log in (("real", real), ("simulated", sim)):
        if len(log) < _LEAST_EPISODES:
            raise LogError(
                f"The {name} log has {len(log)} episode{'' if len(log) == 1 else 's'}; a comparison of sensors needs "
                f"at least {_LEAST_EPISODES} of each. Record more, or cut a long recording into episodes."
            )
    pairs, lacking = matched(real, sim, same or {})
    figures: dict[str, tuple[EpisodeFigures, EpisodeFigures]] = {}
    rows: list[SensorDifference] = []
    bands: list[BandDifference] = []
    for ours, theirs in pairs:
        highest = 0.5 * min(rate(ours), rate(theirs))
        if math.isnan(highest):
            raise LogError(f"No episode has enough readings of {ours.name} in both logs. Give longer episodes.")
        both = episode_figures(ours, highest=highest), episode_figures(theirs, highest=highest)
        figures[ours.name] = both
        rows += _differences(ours, theirs.name, both, nominal or {}, level)
        rows.append(_step(ours, theirs, both, nominal or {}, level))
        bands += _bands(ours, both, highest, level)
    return SensorGap(
        differences=tuple(_corrected(rows)),
        bands=tuple(bands),
        figures=figures,
        units={ours.name: ours.unit for ours, _ in pairs},
        episodes=(len(real), len(sim)),
        lacking=tuple(lacking),
    )


def _differences(
    channel: SensorChannel,
    simulated: str,
    both: tuple[EpisodeFigures, EpisodeFigures],
    nominal: Mapping[str, float],
    level: float,
) -> list[SensorDifference]:
    rows = []
    for quantity, unit in QUANTITIES.items():
        first, second = (figures.values[quantity] for figures in both)
        first, second = first[np.isfinite(first)], second[np.isfinite(second)]
        means = [float(values.mean()) if len(values) else math.nan for values in (first, second)]
        shared = {"channel": channel.name, "quantity": quantity, "unit": unit or channel.unit}
        if min(len(first), len(second)) < _LEAST_EPISODES:
            if quantity == "lag" and channel.leader[0] is None:
                continue  # there is nothing that the channel follows
            reason = f"told by {len(first)} real and {len(second)} simulated episodes; {_LEAST_EPISODES} are needed"
            rows.append(_untested(**shared, real=means[0], sim=means[1], level=level, reason=reason))
            continue
        test = welch_test(first, second, level=level)
        if np.ptp(np.concatenate([first, second])) <= _ROUNDING * np.abs(means).max():
            test = replace(test, p_value=np.array(1.0))  # all alike: what is left is of floating point, not of sensors
        rows.append(
            SensorDifference(
                **shared,
                real=means[0],
                sim=means[1],
                difference=test.difference,
                p_value=float(test.p_value),
                remedy=remedy(simulated, quantity, real=means[0], sim=means[1], hz=both[1].hz, nominal=nominal),
            )
        )
    return rows


def _step(
    ours: SensorChannel,
    theirs: SensorChannel,
    both: tuple[EpisodeFigures, EpisodeFigures],
    nominal: Mapping[str, float],
    level: float,
) -> SensorDifference:
    """Counts are exact: they differ or they do not, and chance has no part in it.

    Where only one log shows its counts, the other differs if its readings lie between them.
    """
    real, sim = (figures.step for figures in both)
    if real and sim:
        alike = math.isclose(real, sim, rel_tol=0.01)  # as well as steps are found in float32 columns
    elif real or sim:
        alike = on_grid(np.concatenate((theirs if real else ours).values), real or sim)
    else:
        alike = True
    estimate = np.array(0.0 if alike else real - sim)
    return SensorDifference(
        channel=ours.name,
        quantity="step",
        unit=ours.unit,
        real=real,
        sim=sim,
        difference=Interval(estimate=estimate, low=estimate, high=estimate, level=level, method="found, not estimated"),
        p_value=1.0 if alike else 0.0,
        remedy=remedy(theirs.name, "step", real=real, sim=sim, hz=both[1].hz, nominal=nominal),
        reason="" if real or sim else "neither log shows counts",
    )


def _untested(*, level: float, reason: str, **fields: Any) -> SensorDifference:
    unknown = np.array(math.nan)
    nothing = Interval(estimate=unknown, low=unknown, high=unknown, level=level, method=reason)
    return SensorDifference(**fields, difference=nothing, p_value=math.nan, reason=reason)


def _corrected(rows: Sequence[SensorDifference]) -> list[SensorDifference]:
    """Rows with p-values by Holm, and a remedy only where they differ."""
    tested = [i for i, row in enumerate(rows) if not math.isnan(row.p_value)]
    adjusted = dict(zip(tested, holm([rows[i].p_value for i in tested]) if tested else [], strict=True))
    made = [replace(row, p_value=float(adjusted.get(i, math.nan))) for i, row in enumerate(rows)]
    return [row if row.differs else replace(row, remedy=None) for row in made]


def _bands(
    channel: SensorChannel, both: tuple[EpisodeFigures, EpisodeFigures], highest: float, level: float
) -> list[BandDifference]:
    """Levels of the octaves below ``highest``, in dB."""
    edges = octaves(highest / 2.0**_OCTAVES, highest)
    levels = [np.array([_levels(found, edges) for found in figures.spectra if found is not None]) for figures in both]
    if min(len(table) for table in levels) < _LEAST_EPISODES:
        return []
    known = np.isfinite(np.concatenate(levels)).all(axis=0)
    if not known.any():
        return []
    test = welch_test(levels[0][:, known], levels[1][:, known], level=level)
    adjusted = holm(test.p_value)
    rows = []
    for place, band in enumerate(np.flatnonzero(known)):
        ends = {key: getattr(test.difference, key)[place] for key in ("estimate", "low", "high")}
        rows.append(
            BandDifference(
                channel=channel.name,
                low=float(edges[band]),
                high=float(edges[band + 1]),
                level=Interval(**ends, level=level, method=test.difference.method),
                p_value=float(adjusted[place]),
            )
        )
    return rows


def _levels(found: Spectrum, edges: Array) -> list[float]:
    """Levels of one episode's spectrum in dB; NaN where a band holds no line or nothing."""
    densities = [found.level(low, high) for low, high in itertools.pairwise(edges)]
    return [10.0 * math.log10(value) if value > 0 else math.nan for value in densities]
