"""Compare two arms (policies) while trials arrive, valid at any stopping time: success rates and mean scores.

Use `sequential_rates` for successes of independent arms, `sequential_pairs` for successes of paired trials (the same
starts), and `sequential_scores` for scores between 0 and 1. Each test returns its state after every block or pair of
trials. The user may check after every pair, stop at any time, and continue later.

The test statistic is called the wealth, its logarithm ``log_e``. If the tested hypothesis is true, the chance that the
wealth ever reaches 1/α is at most α (Ville's inequality); such a process is called an e-process. The hypothesis is
therefore rejected when the wealth reaches 1/α. All hypothetical differences that are not rejected form a confidence
sequence: an interval that is valid after every trial.

Success rates of independent arms (`sequential_rates`) are compared by likelihood ratios. Trials arrive in blocks with a
fixed number of trials of each arm. After each block the wealth is multiplied by the likelihood of its outcomes at the
success rates that are estimated from the earlier blocks. It is divided by their likelihood at a pair of rates that
fulfils the hypothesis, namely the pair with the smallest Kullback–Leibler divergence from the estimated rates (Turner,
Ly and Grünwald, "Generic E-variables for exact sequential k-sample tests that allow for optional stopping", J. Stat.
Plan. Inference 230, 2024). For the difference δ = p_a − p_b and the hypothesis δ ≤ δ₀ or δ ≥ δ₀ the set of such rates
is convex, which the method requires (Turner & Grünwald, "Exact anytime-valid confidence intervals for contingency
tables and beyond", Statistics & Probability Letters 198, 2023).

Paired success rates (`sequential_pairs`) are compared by their difference per pair. This difference, 1, 0 or −1, has
the mean p_a − p_b even if the two trials of a pair are dependent. This mean is tested as in `betting`: for each
difference x, the wealth is multiplied by 1 + λ (x − m), with the hypothetical mean m. The factor λ is called the bet.
The wealth is averaged over all bets between 0 and the largest one at which it cannot become negative. For the
hypothesis of no difference only pairs with different outcomes count. If a won w of them and b won l, the wealth is

2^(w + l + 1) B(w + 1, l + 1) (1 − I_½(w + 1, l + 1)),

with the beta function B and its regularized incomplete form I. It is a sign test with a uniform prior on the chance
that a wins. It decides 10 to 20 % earlier than `sequential_scores` at rates that differ by 5 to 20 points;
`sequential_scores` is better at smaller differences.

Paired scores between 0 and 1 (`sequential_scores`), for example progress or the points of a rubric, are compared in the
same way. They may have any distribution. The difference of a pair is between −1 and 1 and has the mean difference, also
for dependent trials. Its mean is tested as in `betting`, and the wealth is averaged over twelve bets from small to
large.

Blocks or pairs are on the last axis of arrays, so that thousands of sequences are computed together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import xlog1py, xlogy

from twinloop.core.errors import InputError
from twinloop.core.plain import JsonRecord
from twinloop.stats.betting import Bets, check_bounded, log_e_mean
from twinloop.stats.interval import Interval, check_level
from twinloop.stats.two_by_two import Alternative, check_difference, constrained_rates

Array = NDArray[np.float64]
GAMMA = 0.5  # Turner, Ly & Grünwald's γ: pseudo-successes and pseudo-failures before the first pair (Jeffreys' prior)
_GRID = 401  # hypothetical differences from −1 to 1 for a confidence sequence: steps of half a percentage point


@dataclass(frozen=True, kw_only=True)
class SequentialTest(JsonRecord):
    """Result of a sequential test of the difference of two arms, with its state after each block of trials.

    Attributes:
        log_e: Logarithm of the wealth (test statistic, see the module) after each block, shape ``(nblock,)``; the test
            rejects when the wealth reaches 1/α.
        p_value: Anytime-valid p-value after each block: 1 / largest wealth so far, shape ``(nblock,)``.
        low: Lower limit of the confidence sequence of the difference after each block, shape ``(nblock,)``.
        high: Upper limit after each block.
        estimate: Observed difference a − b after all blocks.
        level: Confidence level 1 − α.
        difference: Hypothetical difference that is tested.
        alternative: ``greater``, ``less`` or ``two-sided``.
        method: Name of the test.
    """

    log_e: Array
    p_value: Array
    low: Array
    high: Array
    estimate: float
    level: float
    difference: float
    alternative: Alternative
    method: str
    json_also = ("stopped",)

    @property
    def stopped(self) -> int | None:
        """Number of blocks after which the test first rejected (its wealth, or e-value, reached 1/α); None if never."""
        at = int(decision_blocks(self.log_e, alpha=1 - self.level))
        return at or None

    @property
    def interval(self) -> Interval:
        """Confidence sequence of the difference after the last block, valid at any stopping time."""
        return Interval.of(
            self.estimate, self.low[-1], self.high[-1], level=self.level, method=f"confidence sequence, {self.method}"
        )


def sequential_rates(
    successes_a: ArrayLike,
    successes_b: ArrayLike,
    *,
    size_a: int = 1,
    size_b: int = 1,
    difference: float = 0.0,
    alternative: Alternative = "two-sided",
    level: float = 0.95,
    gamma: float = GAMMA,
) -> SequentialTest:
    """Run the sequential test of the difference of two success rates on one sequence of blocks of trials.

    Args:
        successes_a: Successes of arm a in each block, shape ``(nblock,)``.
        successes_b: Successes of arm b in each block, shape ``(nblock,)``.
        size_a: Number of trials of arm a in each block. A block is the smallest group of trials after which the test is
            evaluated; it has trials of both arms.
        size_b: Number of trials of arm b in each block.
        difference: Hypothetical difference p_a − p_b.
        alternative: ``greater`` for p_a − p_b > difference, ``less`` for p_a − p_b < difference, ``two-sided`` for
            either.
        level: Confidence level 1 − α.
        gamma: Pseudo-successes and pseudo-failures before the first block (γ of Turner, Ly & Grünwald).

    Raises:
        InputError: If there is no block, or a block has more successes than trials.
    """
    check_level(level)
    arms = {"size_a": size_a, "size_b": size_b, "alternative": alternative, "gamma": gamma}
    a, b = np.asarray(successes_a, dtype=np.float64), np.asarray(successes_b, dtype=np.float64)
    return _run_sequential_test(
        lambda shift: log_e_rates(a, b, difference=shift, **arms),
        _GRID,
        lambda: a.sum() / (size_a * len(a)) - b.sum() / (size_b * len(b)),
        level=level,
        difference=difference,
        alternative=alternative,
        method=f"Turner–Ly–Grünwald e-test, γ = {gamma:g}",
    )


def log_e_rates(
    successes_a: ArrayLike,
    successes_b: ArrayLike,
    *,
    size_a: int = 1,
    size_b: int = 1,
    difference: ArrayLike = 0.0,
    alternative: Alternative = "two-sided",
    gamma: float = GAMMA,
) -> Array:
    """Return the logarithm of the wealth (test statistic) against p_a − p_b = ``difference``, after each block.

    The hypothesis is rejected at level α when the wealth reaches 1/α. For the two-sided alternative, the wealth is the
    mean of both one-sided wealths. The side with the larger wealth may be reported as the sign of the difference; the
    chance of a wrong sign is also at most α.

    Args:
        successes_a: Successes of arm a in each block, shape ``(…, nblock)``.
        successes_b: Successes of arm b in each block, same shape.
        size_a: Number of trials of arm a in each block.
        size_b: Number of trials of arm b in each block.
        difference: Hypothetical difference, broadcast against the leading axes.
        alternative: ``greater`` for p_a − p_b > difference, ``less`` for p_a − p_b < difference, ``two-sided`` for
            either.
        gamma: Pseudo-successes and pseudo-failures before the first block.

    Returns:
        Shape ``(…, nblock)``.

    Raises:
        InputError: If there is no block, a block has more successes than trials, shapes differ, or ``gamma`` is not
            above 0.
    """
    _check_largest(difference)
    shift = np.asarray(difference, dtype=np.float64)
    a, b = _check_counts(successes_a, size_a, "a"), _check_counts(successes_b, size_b, "b")
    if a.shape != b.shape:
        raise InputError(
            f"Arm a has blocks in shape {a.shape}, arm b in {b.shape}. Give both arms of every block, in their order."
        )
    if gamma <= 0:
        raise InputError(f"γ = {gamma:g} would bet everything on the first trial. Give a number above 0; 0.5 is usual.")
    before = np.arange(a.shape[-1])
    rate_a = _predictable_rate(a, before * size_a, gamma)
    rate_b = _predictable_rate(b, before * size_b, gamma)
    null_a, null_b = constrained_rates(rate_a, rate_b, shift[..., None], weight_a=size_a, weight_b=size_b)
    factor = _log_ratio(a, size_a, rate_a, null_a) + _log_ratio(b, size_b, rate_b, null_b)
    lead = rate_a - rate_b - shift[..., None]
    greater = np.cumsum(np.where(lead > 0, factor, 0.0), axis=-1)
    less = np.cumsum(np.where(lead < 0, factor, 0.0), axis=-1)
    return {"greater": greater, "less": less, "two-sided": np.logaddexp(greater, less) - np.log(2)}[alternative]


def running_p_values(log_e: ArrayLike) -> Array:
    """Return the anytime-valid p-value after each block (group of trials after which the test is evaluated).

    It is 1 / the largest wealth (test statistic) so far, at most 1.

    Args:
        log_e: Logarithm of the wealth after each block, shape ``(…, nblock)``.
    """
    return np.exp(-np.maximum(np.maximum.accumulate(np.asarray(log_e, dtype=np.float64), axis=-1), 0.0))


def decision_blocks(log_e: ArrayLike, *, alpha: float = 0.05) -> NDArray[np.intp]:
    """Return the number of blocks after which each wealth (test statistic) first reaches 1/α; 0 if it never does.

    A block is a group of trials after which the test is evaluated. The hypothesis is rejected when the wealth reaches
    1/α.

    Args:
        log_e: Logarithm of the wealth after each block, shape ``(…, nblock)``.
        alpha: Level α of the test.

    Returns:
        Shape ``(…)``.
    """
    check_level(1 - alpha)
    over = np.asarray(log_e) >= -np.log(alpha)
    return np.where(over.any(axis=-1), over.argmax(axis=-1) + 1, 0)


def running_confidence_range(hypotheses: ArrayLike, log_e: ArrayLike, *, alpha: float) -> tuple[Array, Array]:
    """Return the lower and upper limits of a confidence sequence from tests of a grid of hypotheses, after each block.

    The true limits are between an accepted and a rejected value of the grid. The rejected value is returned (−1 or 1 if
    there is none), so that the range is never too narrow. If all hypotheses are rejected, which has a chance of at most
    α, the range keeps its last value.

    Args:
        hypotheses: Hypothetical differences, ascending, shape ``(nhypothesis,)``.
        log_e: Logarithm of the wealth against each hypothesis after each block, shape ``(nhypothesis, nblock)``.
        alpha: Error probability α.

    Returns:
        Shape ``(nblock,)`` each.
    """
    grid = np.asarray(hypotheses, dtype=np.float64)
    edges = np.concatenate([[-1.0], grid, [1.0]])
    accepted = np.maximum.accumulate(np.asarray(log_e), axis=-1) < -np.log(alpha)
    some = accepted.any(axis=0)
    first, last = accepted.argmax(axis=0), len(grid) - 1 - accepted[::-1].argmax(axis=0)
    low, high = edges[first], edges[last + 2]
    if not some.all():
        at = int(np.argmin(some))
        low[at:], high[at:] = (low[at - 1], high[at - 1]) if at else (-1.0, 1.0)
    return low, high


def _check_counts(successes: ArrayLike, size: int, arm: str) -> Array:
    counts = np.asarray(successes, dtype=np.float64)
    if size < 1 or counts.ndim < 1 or counts.shape[-1] < 1:
        raise InputError(f"Arm {arm} has no block of trials. Give at least one trial of each policy.")
    if ((counts < 0) | (counts > size) | (counts != np.round(counts))).any():
        raise InputError(
            f"Arm {arm} has a block whose number of successes is not an integer from 0 to {size}. "
            "For scores between 0 and 1 use the test of scores."
        )
    return counts


def _predictable_rate(successes: Array, trials: NDArray[np.intp], gamma: float) -> Array:
    """Return the success rate that is estimated before each block from the earlier blocks.

    It is (successes + γ) / (trials + 2 γ). It is predictable, that is, it does not use the block itself.

    Args:
        successes: Successes in each block, shape ``(…, nblock)``.
        trials: Number of trials before each block, shape ``(nblock,)``.
        gamma: Pseudo-successes and pseudo-failures γ.
    """
    earlier = np.cumsum(successes, axis=-1) - successes
    return (earlier + gamma) / (trials + 2 * gamma)


def _log_ratio(successes: Array, size: int, rate: Array, null: Array) -> Array:
    won = xlogy(successes, rate) - xlogy(successes, null)
    lost = size - successes
    return won + xlog1py(lost, -rate) - xlog1py(lost, -null)


_GRID_OF_PAIRS = 201  # the same for pairs: steps of one percentage point


def log_e_pairs(
    a: ArrayLike, b: ArrayLike, *, difference: ArrayLike = 0.0, alternative: Alternative = "two-sided"
) -> Array:
    """Return the logarithm of the wealth (test statistic) against mean(a) − mean(b) = ``difference``, after each pair.

    The hypothesis is rejected at level α when the wealth reaches 1/α. For the two-sided alternative, the wealth is the
    mean of both one-sided wealths. `log_e_scores` is better at small differences.

    Args:
        a: Outcomes of arm a: successes as 0 and 1, or scores in between, shape ``(…, npair)``.
        b: Outcomes of arm b from the same starts, same shape.
        difference: Hypothetical difference, broadcast against the leading axes.
        alternative: ``greater`` for mean(a) − mean(b) > difference, ``less`` for mean(a) − mean(b) < difference,
            ``two-sided`` for either.

    Returns:
        Shape ``(…, npair)``.

    Raises:
        InputError: If a value is outside [0, 1], there is no pair, or a and b have different shapes.
    """
    return _log_e(_pair_differences(a, b, "Outcomes"), difference, alternative, "even")


def sequential_pairs(
    a: ArrayLike,
    b: ArrayLike,
    *,
    difference: float = 0.0,
    alternative: Alternative = "two-sided",
    level: float = 0.95,
) -> SequentialTest:
    """Run the sequential test of mean(a) − mean(b) on paired successes in their order, with a confidence sequence.

    Args:
        a: Outcomes of arm a, 0 or 1, shape ``(npair,)``.
        b: Outcomes of arm b from the same starts.
        difference: Hypothetical difference.
        alternative: ``greater`` for mean(a) − mean(b) > difference, ``less`` for mean(a) − mean(b) < difference,
            ``two-sided`` for either.
        level: Confidence level 1 − α.

    Raises:
        InputError: If a value is outside [0, 1], there is no pair, or a and b have different lengths.
    """
    check_level(level)
    off = _pair_differences(a, b, "Outcomes")
    return _run_sequential_test(
        lambda shift: _log_e(off, shift, alternative, "even"),
        _GRID_OF_PAIRS,
        off.mean,
        level=level,
        difference=difference,
        alternative=alternative,
        method="betting on pairs, even mixture",
    )


def log_e_scores(
    a: ArrayLike, b: ArrayLike, *, difference: float = 0.0, alternative: Alternative = "two-sided"
) -> NDArray[np.float64]:
    """Return the logarithm of the wealth (test statistic) against mean(a) − mean(b) = ``difference``, after each pair.

    The wealth starts at 1 and is multiplied by 1 + λ (x − ``difference``) for each pair with the difference x. The
    factor λ (below 0 for ``less``) is called the bet. The wealth is averaged over twelve constant bets, 0.02 to 0.98 of
    the largest possible one (``spread`` in `betting.log_e_mean`). Compared with the uniform average of `log_e_pairs`,
    this is better for scores and for small differences. The hypothesis is rejected at level α when the wealth reaches
    1/α.

    Args:
        a: Scores of arm a in [0, 1], shape ``(…, npair)``.
        b: Scores of arm b from the same starts, same shape.
        difference: Hypothetical difference.
        alternative: ``greater`` for mean(a) − mean(b) > difference, ``less`` for mean(a) − mean(b) < difference,
            ``two-sided`` for either.

    Returns:
        Shape ``(…, npair)``.

    Raises:
        InputError: If a score is outside [0, 1], or a and b have different shapes.
    """
    return _log_e(_pair_differences(a, b, "Scores"), difference, alternative, "spread")


def sequential_scores(
    a: ArrayLike,
    b: ArrayLike,
    *,
    difference: float = 0.0,
    alternative: Alternative = "two-sided",
    level: float = 0.95,
) -> SequentialTest:
    """Run the sequential test of mean(a) − mean(b) on paired scores in their order, with a confidence sequence.

    Args:
        a: Scores of arm a in [0, 1], shape ``(npair,)``.
        b: Scores of arm b from the same starts.
        difference: Hypothetical difference.
        alternative: ``greater`` for mean(a) − mean(b) > difference, ``less`` for mean(a) − mean(b) < difference,
            ``two-sided`` for either.
        level: Confidence level 1 − α.

    Raises:
        InputError: If a score is outside [0, 1], or a and b have different lengths.
    """
    check_level(level)
    off = _pair_differences(a, b, "Scores")
    return _run_sequential_test(
        lambda shift: _log_e(off, shift, alternative, "spread"),
        _GRID,
        off.mean,
        level=level,
        difference=difference,
        alternative=alternative,
        method="betting on differences of pairs",
    )


def _pair_differences(a: ArrayLike, b: ArrayLike, what: str) -> Array:
    first, second = check_bounded(a, 0.0, 1.0), check_bounded(b, 0.0, 1.0)
    if first.shape != second.shape:
        raise InputError(
            f"{what} of a have shape {first.shape}, of b {second.shape}. Give both values of every pair, in the "
            "order of the trials."
        )
    return first - second


def _log_e(differences: Array, difference: ArrayLike, alternative: Alternative, bets: Bets) -> Array:
    """Return the logarithm of the wealth (betting test statistic) after each paired difference, shape ``(…, npair)``.

    Args:
        differences: Difference a − b of each pair, shape ``(…, npair)``.
        difference: Hypothetical mean difference.
        alternative: ``greater``, ``less`` or ``two-sided``.
        bets: Set of bets over which the wealth is averaged, ``spread`` or ``even``, see `betting.log_e_mean`.
    """
    _check_largest(difference)
    return log_e_mean(differences, difference, low=-1.0, high=1.0, alternative=alternative, bets=bets)


def _check_largest(differences: ArrayLike) -> None:
    shift = np.asarray(differences, dtype=np.float64)
    check_difference(float(shift.flat[np.argmax(np.abs(shift))]))


def _run_sequential_test(
    log_e_against: Callable[[ArrayLike], Array],
    grid: int,
    estimate: Callable[[], float],
    *,
    level: float,
    difference: float,
    alternative: Alternative,
    method: str,
) -> SequentialTest:
    """Run the test of one sequence, and compute its confidence sequence from a grid of hypothetical differences.

    Args:
        log_e_against: Function from hypothetical differences ``(…,)`` to the logarithm of the wealth (test statistic)
            after each block, shape ``(…, nblock)``. A block is a group of trials after which the test is evaluated.
        grid: Number of grid points from −1 to 1, including both ends.
        estimate: Function that returns the observed difference.
        level: Confidence level.
        difference: Hypothetical difference of the test.
        alternative: ``greater``, ``less`` or ``two-sided``.
        method: Name of the test.
    """
    log_e, shifts = log_e_against(difference), np.linspace(-1, 1, grid)[1:-1]
    low, high = running_confidence_range(shifts, log_e_against(shifts), alpha=1 - level)
    return SequentialTest(
        log_e=log_e,
        p_value=running_p_values(log_e),
        low=low,
        high=high,
        estimate=float(estimate()),
        level=level,
        difference=difference,
        alternative=alternative,
        method=method,
    )
