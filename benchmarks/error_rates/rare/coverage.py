"""Failures beyond planes among many axes, whose probability is a normal's tail: what a search says of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from benchmarks.studies import Study, StudyTable, share
from twinloop.scenario.rare_failures import ScoredPoints, SearchOptions, SearchResult, estimate_failure_rate

AXES = 149  # as many as the default draws of the SO-101 have
_WAY = np.array([0.6, 0.6, 0.529]) / np.linalg.norm([0.6, 0.6, 0.529])  # failures depend on three axes
_APART = 0.3  # standard deviations by which the weaker region lies farther out
_THRESHOLDS = (2.3, 3.1, 3.7, 4.3)  # standard deviations from the middle: rates from 1e-2 to 1e-5


def _planes(threshold: float, *, both: bool):
    def tried(z: NDArray[np.float64]) -> ScoredPoints:
        score = threshold - z[:, :3] @ _WAY
        if both:
            score = np.minimum(score, threshold + _APART + z[:, :3] @ _WAY[::-1])
        return ScoredPoints(z=z, score=score, failed=score < 0, lost=np.zeros(len(z), dtype=bool))

    return tried


def truth(threshold: float, *, both: bool) -> float:
    """The failure rate; the overlap of two opposite regions is below a thousandth of it."""
    return float(ndtr(-threshold) + both * ndtr(-threshold - _APART))


def searched(repetitions: int, seed: int) -> StudyTable:
    """Searches of every rate, one region and two, by what they say of it."""
    rows, figures = [], []
    for both in (False, True):
        for threshold in _THRESHOLDS:
            found = [
                estimate_failure_rate(_planes(threshold, both=both), AXES, SearchOptions(seed=seed + 1 + i))
                for i in range(repetitions)
            ]
            row = _row(truth(threshold, both=both), found, both=both)
            figures.append(row)
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
    head = ("true rate", "regions", "95 % interval covers", "estimate / truth", "upper / lower end", "warned", "worlds")
    note = (
        f"{repetitions} searches each among {AXES} axes. ± is one standard error. Interval width and worlds are "
        "medians. *Warned* counts searches that report themselves as unreliable."
    )
    return StudyTable(
        title="Searches for failures of known rates", head=head, rows=tuple(rows), note=note, figures=tuple(figures)
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
        "worlds": float(np.median([len(one.seen) for one in found])),
    }


TABLES = (Study(name="rare_coverage", page="evidence/scenarios.md", repetitions=200, run=searched),)
