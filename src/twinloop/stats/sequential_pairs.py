"""Two success rates on the same starts compared while pairs come in, valid whenever one looks and stops.

The difference of a pair, 1, 0 or −1, has the mean p_a − p_b whatever the two of a pair have in common. A bettor who
stakes the part f of the largest bet that can never lose everything multiplies the wealth by 1 + f (d − δ) / (1 + δ)
with each difference d, where the hypothesis is p_a − p_b ≤ δ. Here f is spread evenly over (0, 1), by Gauss–Legendre's
rule, which is a valid mixture of bettors whatever it integrates. With δ = 0 only pairs count that end differently, and
with w and l of them won by a and by b the wealth is

    ∫ (1 + f)ʷ (1 − f)ˡ df = 2^(w + l + 1) B(w + 1, l + 1) (1 − I_½(w + 1, l + 1)),

a sign test whose coin may favour a by any amount alike. An even spread decides 10 to 20 % earlier than the log-even one
of `betting` at rates that differ by 5 to 20 points; that one is better at smaller differences.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.stats.betting import check_bounded
from twinloop.stats.interval import check_level
from twinloop.stats.sequential import Sequential, kept_range, running_p
from twinloop.stats.two_by_two import Alternative, check_difference

Array = NDArray[np.float64]
_NODES = 32  # exact for polynomials of degree 63; between them a posterior of some hundred discordant pairs is resolved
_GRID = 401  # as for rates


def log_e_pairs(
    a: ArrayLike, b: ArrayLike, *, difference: ArrayLike = 0.0, alternative: Alternative = "two-sided"
) -> Array:
    """Logarithm of the wealth after each pair, ``(…, npair)``, against mean(a) − mean(b) = ``difference`` or one side.

    ``difference`` is broadcast against the leading axes. Two-sided it is the mean of both one-sided wealths.

    Args:
        a: successes as 0 and 1, or scores between, ``(…, npair)``.
        b: likewise, of the same starts.
        difference: of the hypothesis.
        alternative: ``greater`` bets on mean(a) − mean(b) > difference.

    Raises:
        InputError: a value outside [0, 1], none at all, or pairs that do not match.
    """
    shift = np.asarray(difference, dtype=np.float64)
    check_difference(float(shift.flat[np.argmax(np.abs(shift))]))
    first, second = check_bounded(a, 0.0, 1.0), check_bounded(b, 0.0, 1.0)
    if first.shape != second.shape:
        raise InputError(
            f"Outcomes of a have shape {first.shape}, of b {second.shape}. Give both of every pair, in their order."
        )
    return _log_e(first - second, shift[..., None], alternative)


def sequential_pairs(
    a: ArrayLike,
    b: ArrayLike,
    *,
    difference: float = 0.0,
    alternative: Alternative = "two-sided",
    level: float = 0.95,
) -> Sequential:
    """The test and the confidence sequence of mean(a) − mean(b) for one sequence of pairs ``(npair,)``.

    Raises:
        InputError: as `log_e_pairs`.
    """
    check_level(level)
    log_e = log_e_pairs(a, b, difference=difference, alternative=alternative)
    shifts = np.linspace(-1, 1, _GRID)[1:-1]
    first, second = (np.asarray(values, dtype=np.float64) for values in (a, b))
    values, place = np.unique(first - second, return_inverse=True)
    counts = np.cumsum(place == np.arange(len(values))[:, None], axis=1).astype(np.float64)
    wealth = _log_e(values, shifts[:, None], alternative, counts)
    low, high = kept_range(shifts, wealth, alpha=1 - level)
    return Sequential(
        log_e=log_e,
        p_value=running_p(log_e),
        low=low,
        high=high,
        estimate=float((first - second).mean()),
        level=level,
        difference=difference,
        alternative=alternative,
        method="betting on pairs, even mixture",
    )


def _log_e(off: Array, shift: Array, alternative: Alternative, counts: Array | None = None) -> Array:
    """Wealth against differences ``shift`` after each of the differences ``off``.

    With ``counts`` ``(k, npair)`` these are k values, and how often each occurred so far: the same, quicker.
    """
    up, down = (off - shift) / (1 + shift), (shift - off) / (1 - shift)
    if alternative == "two-sided":
        return np.logaddexp(_mixed(up, counts), _mixed(down, counts)) - np.log(2)
    return _mixed(up if alternative == "greater" else down, counts)


def _mixed(share: Array, counts: Array | None) -> Array:
    """Mean wealth of parts of the largest bet, ``share`` being what the largest gains of each pair, at least −1."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    logs: list[Array] = []
    for node in nodes:
        gain = np.log1p((node + 1) / 2 * share)
        logs.append(np.cumsum(gain, axis=-1) if counts is None else gain @ counts)
    most = np.max(logs, axis=0)
    total = np.zeros_like(most)
    for weight, log_e in zip(weights / 2, logs, strict=True):
        total += weight * np.exp(log_e - most)
    return most + np.log(total)
