"""Whether one policy does better than another by more than a margin, on the same trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.release.evidence import in_turns
from twinloop.release.gate_config import Looks
from twinloop.stats import MOST_PAIRS, PairedCounts, log_e_mean, mcnemar, paired_p_value

Answer = Literal["shown", "against", "open"]
_HALVINGS = 12  # of the range in which a limit of confidence is sought: to 0.05 points


@dataclass(frozen=True, kw_only=True)
class Paired:
    """What pairs say of mean(candidate) − mean(champion) against a margin.

    ``p_value`` is of "it is at most the margin", ``p_against`` of "it is more". ``low`` is the limit below which the
    difference lies with a chance of at most α. ``further`` is how many more pairs would decide if all goes on as seen.
    """

    margin: float
    alpha: float
    pairs: int
    wins: int
    losses: int
    difference: float
    low: float
    p_value: float
    p_against: float
    method: str
    further: int | None

    @property
    def answer(self) -> Answer:
        """``shown``, ``against`` where the contrary is, or ``open``."""
        if self.p_value <= self.alpha:
            return "shown"
        return "against" if self.p_against <= self.alpha else "open"

    def to_json(self) -> dict[str, Any]:
        """A plain form."""
        return dict(vars(self))


def compare(
    candidate: ArrayLike,
    champion: ArrayLike,
    slices: Sequence[str],
    *,
    margin: float,
    alpha: float,
    looks: Looks,
) -> Paired:
    """Test mean(candidate) − mean(champion) > ``margin`` on pairs.

    However often one looks: by betting with constant fractions on the differences (`stats.betting`), each slice in its
    turn. For one look: McNemar's exact test against 0, the exact unconditional test against a margin; scores that are
    no successes, and more pairs than that takes, are bet on.

    Args:
        candidate: successes or scores in [0, 1], ``(n,)``.
        champion: the same trials.
        slices: of each.
        margin: of the hypothesis; negative for "not worse by so much".
        alpha: level.
        looks: ``any`` or ``once``.
    """
    order, at = in_turns(slices)
    a, b = np.asarray(candidate, dtype=np.float64)[order], np.asarray(champion, dtype=np.float64)[order]
    off = a - b
    p_value, p_against = (_p(log_wealth(off, margin, at, alternative=side)) for side in ("greater", "less"))
    method = "e-process of paired differences, valid at every look"
    binary = bool(np.isin(a, (0, 1)).all() and np.isin(b, (0, 1)).all())
    if looks == "once" and binary and len(off) <= MOST_PAIRS:
        p_value, p_against = _exact(a, b, margin)
        method = "McNemar's exact test" if margin == 0 else "exact unconditional test of pairs (Tango's statistic)"
    return Paired(
        margin=margin,
        alpha=alpha,
        pairs=len(off),
        wins=int((off > 0).sum()),
        losses=int((off < 0).sum()),
        difference=float(off.mean()),
        low=_low(off, at, alpha),
        p_value=p_value,
        p_against=p_against,
        method=method,
        further=_further(off, margin, alpha),
    )


def log_wealth(
    difference: ArrayLike,
    margin: float,
    looks: NDArray[np.intp],
    *,
    alternative: Literal["greater", "less"] = "greater",
) -> NDArray[np.float64]:
    """The logarithm of the wealth at each look, ``(…, nlook)``, against mean(difference) ≤ ``margin``.

    Args:
        difference: candidate less champion of each pair, in the order of `in_turns`, ``(…, n)``.
        margin: of the hypothesis.
        looks: how many pairs there are at each look, ``(nlook,)``.
        alternative: ``less`` bets against mean(difference) ≥ ``margin``.
    """
    return log_e_mean(difference, margin, low=-1.0, high=1.0, alternative=alternative, bets="even")[..., looks - 1]


def rate_low(won: ArrayLike, alpha: float) -> float:
    """The rate below which outcomes ``(n,)`` do not lie, with a chance of error of at most α whenever one looks."""
    x = np.asarray(won, dtype=np.float64)
    return _largest(lambda rate: float(log_e_mean(x, rate, alternative="greater", bets="even").max()), 0.0, 1.0, alpha)


def below_rate(won: ArrayLike, rate: float) -> float:
    """The anytime-valid p-value of a rate of at least ``rate``."""
    x = np.asarray(won, dtype=np.float64)
    return _p(log_e_mean(x, rate, alternative="less", bets="even"))


def _p(log_e: NDArray[np.float64]) -> float:
    return float(np.exp(-max(float(log_e.max()), 0.0)))


def _exact(a: NDArray[np.float64], b: NDArray[np.float64], margin: float) -> tuple[float, float]:
    only_a, only_b = int((a > b).sum()), int((b > a).sum())
    both = int(((a == 1) & (b == 1)).sum())
    counts = PairedCounts(both=both, only_a=only_a, only_b=only_b, neither=len(a) - both - only_a - only_b)
    turned = PairedCounts(both=both, only_a=only_b, only_b=only_a, neither=counts.neither)
    if margin == 0:
        return mcnemar(counts, alternative="greater"), mcnemar(turned, alternative="greater")
    return paired_p_value(counts, difference=margin), paired_p_value(turned, difference=-margin)


def _low(off: NDArray[np.float64], looks: NDArray[np.intp], alpha: float) -> float:
    """The largest margin up to which all are refused."""
    return _largest(lambda margin: float(log_wealth(off, margin, looks).max()), -1.0, 1.0, alpha)


def _largest(wealth: Callable[[float], float], low: float, high: float, alpha: float) -> float:
    """The largest value that is refused, where the wealth against a value falls with it; ``low`` where none is."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if wealth(middle) >= -math.log(alpha) else (low, middle)
    return low


def _further(off: NDArray[np.float64], margin: float, alpha: float) -> int | None:
    """Pairs that are missing if the wealth goes on growing as the best constant bet's did; None where it does not."""
    bets = np.linspace(0.01, 0.99, 99)[:, None] / (1 + margin)
    growth = float(np.log1p(bets * (off - margin)).mean(axis=1).max())
    if growth <= 0:
        return None
    n = len(off)
    needed = -math.log(alpha) / growth
    # Not knowing the best bet costs about half a logarithm of the number of pairs (Cover & Ordentlich, 1996).
    needed += 0.5 * math.log(max(needed, 2.0)) / growth
    return max(math.ceil(needed) - n, 0)
