"""Decide sequentially about two policies, valid at every number of trials, and estimate how many more are needed."""

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
    """E-process of no difference, and those of the two sides of a margin if there is one.

    ``further`` is the median number of further pairs until the test decides if trials continue as observed; None if
    more than half of the continuations do not end within a thousand. ``leftover`` is the number of trials without a
    partner. ``seen`` ``(pairs,)`` is the difference of the means after each pair.
    """

    json_names: ClassVar[Mapping[str, str | None]] = {"seen": None}
    json_also = ("p_equivalent",)

    test: SequentialTest
    above: SequentialTest | None
    below: SequentialTest | None
    answer: Answer
    further: int | None
    pairs: int
    leftover: int
    seen: NDArray[np.float64]

    @property
    def p_equivalent(self) -> float | None:
        """The anytime-valid p-value of a difference as large as the margin."""
        if self.above is None or self.below is None:
            return None
        return float(max(self.above.p_value[-1], self.below.p_value[-1]))


def compare_sequentially(
    arms: PolicyArms, *, within: float | None = None, level: float = 0.95, seed: int = 0
) -> SequentialComparison:
    """Compare pair by pair, in the order of the trials; trials without a partner are not used yet.

    With a margin, equivalence is decided by two e-processes, against a difference of −margin or less and of margin or
    more, each at 1 − level.

    Raises:
        InputError: scores outside [0, 1].
    """
    n = min(len(arms.a), len(arms.b))
    random = generator(seed, "gap/order")
    # Without an order a random one is used: it is as valid, and successes that come first do not mislead the test.
    a, b = (random.permutation(values)[:n] if arms.has_unknown_order else values[:n] for values in (arms.a, arms.b))
    # The e-test of rates assumes that both trials of a pair are independent; differences of pairs do not need that.
    run = sequential_rates if _are_pairs_independent(arms) else sequential_scores
    test = run(a, b, level=level)
    above = below = None
    if within is not None:
        above = run(a, b, difference=-within, alternative="greater", level=level)
        below = run(a, b, difference=within, alternative="less", level=level)
    alpha = 1 - level
    answer: Answer = "differs" if test.p_value[-1] <= alpha else "undecided"
    if above is not None and below is not None and max(above.p_value[-1], below.p_value[-1]) <= alpha:
        answer = "equivalent"
    further = _estimate_further_pairs(arms, a, b, within, alpha, seed) if answer == "undecided" else 0
    return SequentialComparison(
        test=test,
        above=above,
        below=below,
        answer=answer,
        further=further,
        pairs=n,
        leftover=len(arms.a) + len(arms.b) - 2 * n,
        seen=np.cumsum(a - b) / np.arange(1, n + 1),
    )


def _estimate_further_pairs(
    arms: PolicyArms,
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    within: float | None,
    alpha: float,
    seed: int,
) -> int | None:
    """Return the median of further pairs over continuations: Bernoulli trials at observed rates, or resampled pairs."""
    random = generator(seed, "gap/further-pairs")
    n = len(a)
    if _are_pairs_independent(arms):
        rates = [(values.sum() + 0.5) / (n + 1) for values in (a, b)]  # with Jeffreys' prior: never 0 or 1
        more = [(random.random((_DRAWS, _AHEAD)) < rate).astype(float) for rate in rates]
    else:
        rows = random.integers(0, n, size=(_DRAWS, _AHEAD))
        more = [a[rows], b[rows]]
    whole = [np.concatenate([np.tile(seen, (_DRAWS, 1)), new], axis=1) for seen, new in zip((a, b), more, strict=True)]
    log_e = log_e_rates if _are_pairs_independent(arms) else log_e_scores
    ended = _count_pairs_to_decision(log_e(*whole), alpha)
    if within is not None:
        above = log_e(*whole, difference=-within, alternative="greater")
        below = log_e(*whole, difference=within, alternative="less")
        ended = np.minimum(
            ended, np.maximum(_count_pairs_to_decision(above, alpha), _count_pairs_to_decision(below, alpha))
        )
    middle = float(np.median(ended - n))
    return int(np.ceil(middle)) if np.isfinite(middle) else None


def _are_pairs_independent(arms: PolicyArms) -> bool:
    return arms.measure == "success" and not arms.paired


def _count_pairs_to_decision(log_e: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Return the number of pairs until 1/α was reached; infinite if it was not."""
    over = log_e >= -np.log(alpha)
    return np.where(over.any(axis=1), over.argmax(axis=1) + 1.0, np.inf)
