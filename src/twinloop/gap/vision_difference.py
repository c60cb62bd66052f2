"""Statistics of pictures as people name them, real against simulated, with intervals over episodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.gap.picture_statistics import CHROMA_QUANTILES, PictureStatistics
from twinloop.stats import Interval, holm, welch_test

Array = NDArray[np.float64]
_UNITS = {
    "red": "of 255",
    "green": "of 255",
    "blue": "of 255",
    "contrast": "of 255",
    "red to green": "",
    "blue to green": "",
    "colourfulness": "of 255",
    "corner light": "",
    "edge width": "px",
    "spectral slope": "",
    "noise": "of 255",
}
MEANINGS = {
    "red": "mean of the red channel",
    "green": "mean of the green channel",
    "blue": "mean of the blue channel",
    "contrast": "standard deviation of luma within a picture",
    "red to green": "ratio of mean linear light, which white balance sets",
    "blue to green": "ratio of mean linear light, which white balance sets",
    "colourfulness": "median distance between the largest and the smallest of the three colours",
    "corner light": "linear light in the outermost fifth of the picture over that of the innermost",
    "edge width": "standard deviation of the spread of the sharpest edges; a lens's MTF50 is 0.187 / width per pixel",
    "spectral slope": "of log power over log spatial frequency; nearer to 0 is sharper or noisier",
    "noise": "standard deviation in flat areas of the green channel, over levels of brightness",
}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One statistic: means over real and simulated episodes, their difference, its p-value (Holm), and with remedies.

    ``difference`` has NaN ends and ``p_value`` is NaN where fewer than two episodes of a side have the statistic.
    ``remedied`` is real − simulated once all remedies are applied; NaN where none was tried.
    """

    name: str
    unit: str
    real: float
    sim: float
    difference: Interval
    p_value: float
    remedied: float = math.nan

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return {**vars(self), "difference": self.difference.to_json()}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Statistics by name, ``(E, f)``, NaN where an episode does not have one."""

    values: Array

    @property
    def mean(self) -> Array:
        """Means over episodes ``(f,)``."""
        there = np.isfinite(self.values)
        sums = np.where(there, self.values, 0.0).sum(axis=0)
        return np.where(there.any(axis=0), sums / np.maximum(there.sum(axis=0), 1), np.nan)


def figures_of(statistics: PictureStatistics) -> Figures:
    """The statistics that are told, in the order of `Difference` names."""
    middle = int(np.searchsorted(CHROMA_QUANTILES, 0.5))
    there = np.isfinite(statistics.noise)
    noise = np.where(there, statistics.noise, 0.0).sum(axis=1) / np.maximum(there.sum(axis=1), 1)
    noise = np.where(there.any(axis=1), np.sqrt(noise), np.nan)
    columns = [
        *statistics.means.T,
        statistics.contrast,
        *statistics.balance.T,
        255.0 * statistics.chroma[:, middle],
        statistics.rings[:, -1] / np.maximum(statistics.rings[:, 0], 1e-6),
        statistics.edge,
        statistics.slope,
        noise,
    ]
    return Figures(values=np.stack(columns, axis=1))


def compare_statistics(
    real: PictureStatistics, sim: PictureStatistics, *, level: float = 0.95
) -> tuple[Difference, ...]:
    """Every statistic, Welch's test of each and Holm's correction over all."""
    sides = figures_of(real), figures_of(sim)
    rows, p_values = [], []
    for column, (name, unit) in enumerate(_UNITS.items()):
        one, two = (side.values[np.isfinite(side.values[:, column]), column] for side in sides)
        if min(len(one), len(two)) < 2:
            ends = np.array(math.nan)
            why = f"{len(one)} real and {len(two)} simulated episodes have it; an interval needs two of each"
            interval, p_value = Interval(estimate=ends, low=ends, high=ends, level=level, method=why), math.nan
        else:
            test = welch_test(one, two, level=level)
            interval, p_value = test.difference, float(test.p_value)
        rows.append((name, unit, interval))
        p_values.append(p_value)
    known = np.isfinite(p_values)
    corrected = np.full(len(rows), np.nan)
    corrected[known] = holm(np.array(p_values)[known])
    return tuple(
        Difference(
            name=name, unit=unit, real=float(sides[0].mean[i]), sim=float(sides[1].mean[i]), difference=interval,
            p_value=float(corrected[i]),
        )
        for i, (name, unit, interval) in enumerate(rows)
    )  # fmt: skip
