"""Episodes relabelled for tests, and drawn again for intervals: never their frames, which resemble each other.

If real and simulated episodes come from one source, labels are exchangeable *between episodes*, and a statistic of
relabelled episodes is as large as the observed one with a known chance (Pitman, "Significance tests which may be
applied to samples from any populations", Suppl. J. R. Stat. Soc. 4, 1937).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
from twinloop.stats.two_sample import Array, TwoSample

Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Relabellings:
    """Which episodes count as real, ``real`` ``(ndraw, C)``; all possible ones where ``exact``, identity included."""

    real: Mask
    exact: bool

    def p_value(self, observed: ArrayLike, relabelled: ArrayLike, *, rounding: float = 0.0) -> Array:
        """The share of statistics ``(ndraw, …)`` at least as large as the observed one ``(…)``, itself included.

        Statistics that differ by less than ``rounding`` count as equal.
        """
        seen, drawn = np.asarray(observed, dtype=np.float64), np.asarray(relabelled, dtype=np.float64)
        slack = np.maximum(rounding, 1e-9 * np.maximum(np.abs(seen), np.abs(drawn).max(axis=0)))
        return self._share(np.sum(drawn >= seen - slack, axis=0), len(drawn))

    def adjusted(self, observed: ArrayLike, relabelled: ArrayLike) -> Array:
        """P-values ``(p,)`` of statistics ``(p,)`` tested together, which keep the chance of any false alarm.

        Each statistic in standard deviations of its relabelled values ``(ndraw, p)``, then the step-down maximum
        (Westfall & Young, "Resampling-Based Multiple Testing", 1993, algorithm 4.1): as safe as Holm's, but it knows
        how the columns hang together, and can reject where p-values cannot be small for want of episodes.
        """
        drawn = np.asarray(relabelled, dtype=np.float64)
        known = drawn if self.exact else np.concatenate([np.asarray(observed, dtype=np.float64)[None], drawn])
        middle, spread = known.mean(axis=0), known.std(axis=0)
        still = spread <= 1e-12 * np.abs(middle)
        scale = np.where(still, 1.0, spread)
        seen = np.where(still, 0.0, (np.asarray(observed, dtype=np.float64) - middle) / scale)
        table = np.where(still, 0.0, (drawn - middle) / scale)
        order = np.argsort(-seen, kind="stable")
        most = np.maximum.accumulate(table[:, order[::-1]], axis=1)[:, ::-1]
        p = self._share(np.sum(most >= seen[order] - 1e-9, axis=0), len(drawn))
        adjusted = np.empty_like(seen)
        adjusted[order] = np.maximum.accumulate(p)
        return np.where(still, 1.0, adjusted)

    def _share(self, larger: NDArray[np.intp], ndraw: int) -> Array:
        return larger / ndraw if self.exact else (1 + larger) / (1 + ndraw)


def relabellings(
    samples: TwoSample, draws: int, *, groups: NDArray[np.intp] | None = None, seed: int = 0
) -> Relabellings:
    """Relabelled episodes, as many real ones as there are: all ways where they are at most ``draws``, else drawn.

    With ``groups`` ``(C,)`` labels are exchanged within each group only. Of pairs, both labels are swapped.

    Raises:
        InputError: no relabelling is asked for.
    """
    if draws < 1:
        raise InputError(f"{draws} is no number of relabellings. Ask for 19 or more; 999 are usual.")
    c, r = samples.nepisode, samples.nreal
    if samples.paired:
        swapped, exact = _swaps(r, draws, seed)
        return Relabellings(real=np.concatenate([~swapped, swapped], axis=1), exact=exact)
    if groups is None and math.comb(c, r) <= draws:
        chosen = np.array(list(itertools.combinations(range(c), r)))
        real = np.zeros((len(chosen), c), dtype=bool)
        np.put_along_axis(real, chosen, values=True, axis=1)
        return Relabellings(real=real, exact=True)
    group = np.zeros(c, dtype=np.intp) if groups is None else groups
    rng = generator(seed, "stats/two-sample/relabel")
    real = np.zeros((draws, c), dtype=bool)
    for number in np.unique(group):
        members = np.flatnonzero(group == number)
        count = int(np.sum(members < r))
        real[:, members] = np.argsort(rng.random((draws, len(members))), axis=1) < count
    return Relabellings(real=real, exact=False)


def _swaps(npair: int, draws: int, seed: int) -> tuple[Mask, bool]:
    if 2**npair <= draws:
        return np.array(list(itertools.product([False, True], repeat=npair))), True
    return generator(seed, "stats/two-sample/swap").random((draws, npair)) < 0.5, False


def resampled(samples: TwoSample, draws: int, *, seed: int = 0) -> tuple[Array, Array]:
    """How often each episode is drawn in each bootstrap resample: real ``(draws, C)`` and simulated ``(draws, C)``.

    Each side is drawn with replacement, pairs together; episodes of the other side have 0. Resamples of one episode
    only say nothing of how episodes differ and are left out, so that there may be fewer than ``draws``.
    """
    weights = []
    for name, count in (("real", samples.nreal), ("sim", samples.nsim)):
        stream = "stats/two-sample/pairs" if samples.paired else f"stats/two-sample/{name}"
        weights.append(generator(seed, stream).multinomial(count, np.full(count, 1 / count), size=draws))
    real, sim = np.zeros((draws, samples.nepisode)), np.zeros((draws, samples.nepisode))
    real[:, : samples.nreal], sim[:, samples.nreal :] = weights
    several = (np.count_nonzero(real, axis=1) > 1) & (np.count_nonzero(sim, axis=1) > 1)
    return real[several], sim[several]


def observed_labels(samples: TwoSample) -> tuple[Array, Array]:
    """Weights of the samples as they are: real ``(1, C)`` and simulated ``(1, C)``."""
    real = (np.arange(samples.nepisode) < samples.nreal).astype(np.float64)[None]
    return real, 1.0 - real
