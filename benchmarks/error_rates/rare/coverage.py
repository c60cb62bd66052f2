"""Search for failures beyond a plane in 149 dimensions, whose rate is the tail of a normal distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from benchmarks.studies import Study, StudyTable, share
from twinloop.scenario.rare_failures import ScoredPoints, SearchOptions, SearchResult, estimate_failure_rate

AXES = 149  # number of default draws of the SO-101
_DIRECTION = np.array([0.6, 0.6, 0.529]) / np.linalg.norm([0.6, 0.6, 0.529])  # failures depend on three axes
_EXTRA_DISTANCE = 0.3  # standard deviations by which the second region is farther out
_THRESHOLDS = (2.3, 3.1, 3.7, 4.3)  # standard deviations from the middle: rates from 1e-2 to 1e-5


def _plane_failures(threshold: float, *, both: bool):
    def evaluate(z: NDArray[np.float64]) -> ScoredPoints:
        score = threshold - z[:, :3] @ _DIRECTION
        if both:
            score = np.minimum(score, threshold + _EXTRA_DISTANCE + z[:, :3] @ _DIRECTION[::-1])
        return ScoredPoints(z=z, score=score, failed=score < 0, invalid=np.zeros(len(z), dtype=bool))

    return evaluate


def truth(threshold: float, *, both: bool) -> float:
    """Return the true failure rate; the overlap of two opposite regions is below a thousandth of it."""
    return float(ndtr(-threshold) + both * ndtr(-threshold - _EXTRA_DISTANCE))


def search_study(repetitions: int, seed: int) -> StudyTable:
    """Run searches for every failure rate, with one and two failure regions, and compare them with the truth."""
    rows, metrics = [], []
    for both in (False, True):
        for threshold in _THRESHOLDS:
            found = [
                estimate_failure_rate(_plane_failures(threshold, both=both), AXES, SearchOptions(seed=seed + 1 + i))
                for i in range(repetitions)
            ]
            row = _row(truth(threshold, both=both), found, both=both)
            metrics.append(row)
            rows.append(
                (
                    f"{row['rate']:.1e}",
                    "two, opposite" if both else "one",
                    share(row["covered"], repetitions),
                    f"{row['ratio']:.2f} ± {row['ratio_error']:.2f}",
                    f"{row['width']:.1f}",
                    str(row["warned"]),
                    f"{row['worlds']:.0f}",
                )
            )
    head = ("true rate", "regions", "95 % interval covers", "estimate / truth", "upper / lower", "warned", "worlds")
    note = (
        f"{repetitions} searches each among {AXES} axes. ± is one standard error. Interval width and worlds are "
        "medians. *Warned* counts searches that report themselves as unreliable."
    )
    return StudyTable(
        title="Searches for failures of known rates", head=head, rows=tuple(rows), note=note, metrics=tuple(metrics)
    )


def _row(rate: float, found: list[SearchResult], *, both: bool) -> dict[str, Any]:
    intervals = [one.rate.interval for one in found]
    ratio = np.array([float(one.estimate) for one in intervals]) / rate
    return {
        "rate": rate,
        "regions": 1 + both,
        "covered": sum(float(one.low) <= rate <= float(one.high) for one in intervals),
        "ratio": float(ratio.mean()),
        "ratio_error": float(ratio.std() / np.sqrt(len(ratio))),
        "width": float(np.median([float(one.high) / max(float(one.low), 1e-300) for one in intervals])),
        "warned": sum(bool(one.rate.warning) for one in found),
        "worlds": float(np.median([len(one.points) for one in found])),
    }


TABLES = (Study(name="rare_coverage", page="evidence/scenarios.md", repetitions=200, run=search_study),)
