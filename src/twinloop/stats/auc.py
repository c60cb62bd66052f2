"""The area under the ROC curve of scores that are given, with its interval."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
from twinloop.stats.classifier import weighted_auc
from twinloop.stats.interval import Interval, check_level

from twinloop.stats.two_sample import Array


def auc_interval(
    scores: ArrayLike, outcome: ArrayLike, *, level: float = 0.95, draws: int = 1000, seed: int = 0
) -> Interval:
    """The chance that a row with the outcome scores higher than one without it, ties half.

    Rows are resampled within both outcomes, so that no resample lacks one. The scores must be of rows that their maker
    did not see; that they would be others had it learned from other rows is not part of the interval.

    Args:
        scores: ``(n,)``, one row an episode.
        outcome: ``(n,)``, yes or no.
        level: of the interval.
        draws: resamples.
        seed: of them.

    Raises:
        InputError: one outcome is missing.
    """
    check_level(level)
    values, yes = np.asarray(scores, dtype=np.float64), np.asarray(outcome, dtype=bool)
    sides = np.flatnonzero(yes), np.flatnonzero(~yes)
    if not len(sides[0]) or not len(sides[1]):
        raise InputError("All outcomes are alike, so there is nothing to rank. Give some of both.")
    rng = generator(seed, "stats/auc")
    weights = np.zeros((len(values), draws + 1))
    weights[:, 0] = 1.0
    for side in sides:
        drawn = side[rng.integers(0, len(side), (len(side), draws))]
        np.add.at(weights, (drawn, np.arange(1, draws + 1)), 1.0)
    columns = np.broadcast_to(values[:, None], weights.shape)
    found = weighted_auc(columns, weights * yes[:, None], weights * ~yes[:, None])
    tail = (1 - level) / 2
    low, high = np.quantile(found[1:], (tail, 1 - tail))
    return Interval(
        estimate=found[0],
        low=np.minimum(low, found[0]),
        high=np.maximum(high, found[0]),
        level=level,
        method="percentile bootstrap over episodes within outcomes, given held-out scores",
    )
