"""Bootstrap by full refits: clusters are drawn again and every draw is fitted by replays, from the solution on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinloop.identify.problem import Linearization, Problem
from twinloop.identify.uncertainty_clusters import Clusters
from twinloop.identify.uncertainty_newton import Variants, Variation, losses, newton
from twinloop.stats import cluster_weights

Array = NDArray[np.float64]
_STEPS = 3  # Newton steps of a refit: it begins at the solution (our choice)


def refit_bootstrap(
    problem: Problem, here: Linearization, clusters: Clusters, *, draws: int, seed: int = 0, steps: int = _STEPS
) -> Array:
    """Estimates from clusters drawn again, ``(draws, p)``.

    A refit takes a few Newton steps and keeps the last that lowers its loss; unlike the one-step bootstrap it sees how
    slopes and bends change on the way.

    Args:
        problem: the fit.
        here: its solution.
        clusters: what is drawn.
        draws: how many refits; each takes as many replays as a step of the fit, ``steps - 1`` times.
        seed: of the draws.
        steps: Newton steps of each refit.
    """
    weights = cluster_weights(clusters.count, draws, seed=seed)[:, clusters.labels]
    variation = Variation(weights=weights)
    kept: list[Variants] = []
    newton(problem, here, variation, steps=steps, watch=kept.append)
    loss = np.array([losses(problem, variants, variation) for variants in kept[-2:]])
    best = np.argmin(loss, axis=0)
    return np.where(best[:, None] == len(loss) - 1, kept[-1].points, kept[-2:][0].points)
