"""The real success rate from few real and many simulated trials: exact, by strata that simulation makes.

Given that a start succeeds in simulation, let its chance in reality be p₁, else p₀, and let π be the share of starts
that succeed in simulation. The real rate is π p₁ + (1 − π) p₀. π is known well, from the trials that were simulated
only, and within the strata the paired trials are two binomials. Where simulation predicts reality, p₁ and p₀ lie near
1 and 0 and vary little; that is what is gained over an interval of all real trials alone.

The limits are Buehler's (J. Am. Stat. Assoc. 52, 1957): the smallest real rate at which an estimate as large as the one
seen still has a chance of α/2, over all p₁ and p₀ within a box that holds them with high confidence (Berger & Boos, J.
Am. Stat. Assoc. 89, 1994) and all π within its exact interval; what these two may miss is taken off α. The tail grows
with p₁ and p₀, and the rate is linear in π, so that the smallest one lies on a curve, at an end of π's interval.
"""

from __future__ import annotations

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.stats.control_variates import PairedTrials
from twinloop.stats.interval import Interval, check_level
from twinloop.stats.proportion import clopper_pearson

Array = NDArray[np.float64]
_SIDE = 0.1  # share of α that the interval of π may miss, and as much the box of p₁ and p₀
_CURVE = 401  # points of the curve; between two of them the bound is taken, so that more only make it tighter
_HALVINGS = 24
_TIE = 1e-9


def post_stratified(trials: PairedTrials, *, level: float = 0.95) -> Interval:
    """Exact interval of the real success rate from paired and simulated-only successes.

    Raises:
        InputError: scores that are no successes.
    """
    check_level(level)
    for name in ("real", "sim", "more"):
        if not np.isin(getattr(trials, name), (0.0, 1.0)).all():
            raise InputError("Strata by simulated success need 0 or 1 in every trial; use the betting interval.")
    alpha = 1 - level
    won = trials.sim == 1
    counts = tuple((int(trials.real[rows].sum()), int(rows.sum())) for rows in (won, ~won))
    share = clopper_pearson(int(trials.more.sum()), len(trials.more), level=1 - _SIDE * alpha)
    estimated = float((trials.more.sum() + won.sum()) / (len(trials.more) + len(won)))
    tail = alpha * (1 - 2 * _SIDE) / 2
    ends = (float(share.low), float(share.high))
    low = _lowest(counts, estimated, ends, tail, alpha)
    failed = tuple((n - s, n) for s, n in counts)
    high = 1 - _lowest(failed, estimated, ends, tail, alpha)
    rates = [s / n if n else trials.real.mean() for s, n in counts]
    estimate = estimated * rates[0] + (1 - estimated) * rates[1]
    return Interval(
        estimate=np.array(np.clip(estimate, low, high)),
        low=np.array(low),
        high=np.array(high),
        level=level,
        method="post-stratified exact",
    )


def _lowest(
    counts: tuple[tuple[int, int], ...], share: float, ends: tuple[float, float], tail: float, alpha: float
) -> float:
    """The lower limit of the rate; of failures it gives the upper one."""
    (s1, n1), (s0, n0) = counts
    box1, box0 = _box(s1, n1, alpha), _box(s0, n0, alpha)
    first = np.linspace(*box1, _CURVE)
    second = _curve(first, counts, share, tail)
    inside = second <= box0[1]
    if not inside.any():  # the box and the tail contradict each other, which has a chance below α
        return min(p * box1[1] + (1 - p) * box0[1] for p in ends)
    second = np.clip(second, box0[0], box0[1])
    # p₀ falls along the curve: between two points the rate is at least that of the one's p₁ and the other's p₀
    start = max(int(np.argmax(inside)) - 1, 0)
    p1, p0 = first[start:-1], second[start + 1 :]
    return float(min((p * p1 + (1 - p) * p0).min() for p in ends))


def _box(successes: int, trials: int, alpha: float) -> tuple[float, float]:
    if trials == 0:
        return 0.0, 1.0
    found = clopper_pearson(successes, trials, level=1 - _SIDE * alpha / 2)
    return float(found.low), float(found.high)


def _curve(first: Array, counts: tuple[tuple[int, int], ...], share: float, tail: float) -> Array:
    """The p₀ of every p₁ at which the chance of an estimate as large as the one seen is ``tail``; 2 where none is."""
    (s1, n1), (s0, n0) = counts
    weight1, weight0 = share / max(n1, 1), (1 - share) / max(n0, 1)
    seen = weight1 * s1 + weight0 * s0
    won = np.arange(n1 + 1)
    short = seen - weight1 * won - _TIE  # what stratum 0 must add
    needed = np.where(short <= 0, 0.0, np.ceil(short / weight0 - _TIE) if weight0 > 0 else np.inf)
    needed = np.where(needed > n0, n0 + 1, needed)
    chance = np.asarray(scipy.stats.binom.pmf(won, n1, first[:, None]))

    def reached(second: Array) -> Array:
        return np.einsum("gi,gi->g", chance, np.asarray(scipy.stats.binom.sf(needed - 1, n0, second[:, None])))

    low, high = np.zeros(len(first)), np.ones(len(first))
    never = reached(high) < tail
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = reached(middle) >= tail
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(never, 2.0, low)
