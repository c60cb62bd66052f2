"""Compare two policies sequentially: the test is valid after every number of trials, so it can stop at any time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from twinloop.core.plain import JsonRecord
from twinloop.core.seeds import generator
from twinloop.gap.policies.paired_trials import PolicyArms
from twinloop.stats import Answer, SequentialTest, log_e_rates, log_e_scores, sequential_rates, sequential_scores

_DRAWS = 200  # continuations for the expected number of further pairs
_AHEAD = 1000  # largest number of pairs of a continuation


@dataclass(frozen=True, kw_only=True)
class SequentialComparison(JsonRecord):
    """Result of comparing two policies with e-processes (tests that are valid after every pair of trials).

    Attributes:
        test: Test of no difference.
        above: Test against a difference of −margin or less; None if no margin is given.
        below: Test against a difference of +margin or more; None if no margin is given.
        answer: The decision so far.
        further: Median number of further pairs until the test decides if trials continue as observed. 0 if it has
            decided; None if at least half of the simulated continuations do not decide within 1000 pairs.
        pairs: Number of compared pairs.
        leftover: Number of trials that have no partner and are not used.
        running_difference: Difference of the means after each pair, shape ``(pairs,)``.
    """

    json_names: ClassVar[Mapping[str, str | None]] = {"running_difference": None}
    json_also = ("p_equivalent",)

    test: SequentialTest
    above: SequentialTest | None
    below: SequentialTest | None
    answer: Answer
    further: int | None
    pairs: int
    leftover: int
    running_difference: NDArray[np.float64]

    @property
    def p_equivalent(self) -> float | None:
        """Anytime-valid p-value of the hypothesis that the difference is at least the margin, in either direction.

        None if no margin is given.
        """
        if self.above is None or self.below is None:
            return None
        return float(max(self.above.p_value[-1], self.below.p_value[-1]))


def compare_sequentially(
    arms: PolicyArms, *, margin: float | None = None, level: float = 0.95, seed: int = 0
) -> SequentialComparison:
    """Compare two policies pair by pair, in the order of the trials.

    With a margin, equivalence is decided by two e-processes: one against a difference of −margin or less, one against a
    difference of +margin or more, each at the level 1 − ``level``.

    Args:
        arms: Trials of the two policies; trials that have no partner yet are not used.
        margin: Margin of equivalence; None: equivalence is not tested.
        level: Confidence level.
        seed: Seed of the random order if the true order is unknown, and of the simulated future trials with which the
            number of further pairs is predicted.

    Raises:
        InputError: If scores are outside [0, 1].
    """
    n = min(len(arms.a), len(arms.b))
    random = generator(seed, "gap/order")
    # Without an order a random one is used: it is as valid, and successes that come first do not mislead the test.
    a, b = (random.permutation(values)[:n] if arms.has_unknown_order else values[:n] for values in (arms.a, arms.b))
    # The e-test of rates assumes that both trials of a pair are independent; differences of pairs do not need that.
    run = sequential_rates if _are_pairs_independent(arms) else sequential_scores
    test = run(a, b, level=level)
    above = below = None
    if margin is not None:
        above = run(a, b, difference=-margin, alternative="greater", level=level)
        below = run(a, b, difference=margin, alternative="less", level=level)
    alpha = 1 - level
    answer: Answer = "differs" if test.p_value[-1] <= alpha else "undecided"
    if above is not None and below is not None and max(above.p_value[-1], below.p_value[-1]) <= alpha:
        answer = "equivalent"
    further = _estimate_further_pairs(arms, a, b, margin, alpha, seed) if answer == "undecided" else 0
    return SequentialComparison(
        test=test,
        above=above,
        below=below,
        answer=answer,
        further=further,
        pairs=n,
        leftover=len(arms.a) + len(arms.b) - 2 * n,
        running_difference=np.cumsum(a - b) / np.arange(1, n + 1),
    )


def _estimate_further_pairs(
    arms: PolicyArms,
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    margin: float | None,
    alpha: float,
    seed: int,
) -> int | None:
    """Return the median number of further pairs until a decision; None if most continuations do not decide.

    Continuations are Bernoulli trials at the observed rates, or resampled pairs if pairs are dependent.

    Args:
        arms: Trials of the two policies.
        a: Values of the first policy, one per pair.
        b: Values of the second policy, one per pair.
        margin: Margin of equivalence, if any.
        alpha: Significance level.
        seed: Seed of the continuations.
    """
    random = generator(seed, "gap/further-pairs")
    n = len(a)
    if _are_pairs_independent(arms):
        rates = [(values.sum() + 0.5) / (n + 1) for values in (a, b)]  # with Jeffreys' prior: never 0 or 1
        more = [(random.random((_DRAWS, _AHEAD)) < rate).astype(float) for rate in rates]
    else:
        rows = random.integers(0, n, size=(_DRAWS, _AHEAD))
        more = [a[rows], b[rows]]
    whole = [
        np.concatenate([np.tile(values, (_DRAWS, 1)), new], axis=1) for values, new in zip((a, b), more, strict=True)
    ]
    log_e = log_e_rates if _are_pairs_independent(arms) else log_e_scores
    ended = _count_pairs_to_decision(log_e(*whole), alpha)
    if margin is not None:
        above = log_e(*whole, difference=-margin, alternative="greater")
        below = log_e(*whole, difference=margin, alternative="less")
        ended = np.minimum(
            ended, np.maximum(_count_pairs_to_decision(above, alpha), _count_pairs_to_decision(below, alpha))
        )
    middle = float(np.median(ended - n))
    return int(np.ceil(middle)) if np.isfinite(middle) else None


def _are_pairs_independent(arms: PolicyArms) -> bool:
    return arms.measure == "success" and not arms.paired


def _count_pairs_to_decision(log_e: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Return the number of pairs until the e-value reaches 1/α, per row; infinite if it does not.

    Args:
        log_e: Logarithm of the e-value after each pair, shape ``(ncontinuation, npair)``.
        alpha: Significance level α.
    """
    over = log_e >= -np.log(alpha)
    return np.where(over.any(axis=1), over.argmax(axis=1) + 1.0, np.inf)
