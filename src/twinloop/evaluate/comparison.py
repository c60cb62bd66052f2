"""Compare two policies in the same worlds until one is shown to be better or both are shown to be equivalent.

A pair of trials is one world in which both policies are tried. The world comes from an evaluation slice (condition) of
the suite, drawn at random with equal probability. Pairs are independent draws from one distribution. Their mean
difference is the difference of the success rates over the suite. It is tested as in `stats.sequential_pairs`; the test
of no difference uses only pairs with different outcomes.

A user may stop at any time. If the policies do not differ, the probability that one is ever called better is at most α.
If they differ by the margin or more, the probability that they are ever called equivalent is at most α.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.evaluation import Evaluation
from twinloop.core.headline import HeadlineMetric
from twinloop.core.seeds import generator
from twinloop.evaluate.candidates import Candidate
from twinloop.evaluate.run import Row, Trial, TrialRunner
from twinloop.stats import Interval, PairedCounts, SequentialTest, check_margin, mcnemar
from twinloop.stats.interval import check_level
from twinloop.stats.sequential import log_e_pairs, running_p_values, sequential_pairs

Answer = Literal["better", "worse", "equivalent", "undecided"]
FIRST_BATCH = 32  # pairs in the first batch; a later batch is as large as all before together, at most `MAX_BATCH`
MAX_BATCH = 256

Flags = NDArray[np.bool_]
Outcomes: TypeAlias = Mapping[tuple[str, str], bool]


@dataclass(frozen=True, kw_only=True)
class PairedComparison:
    """Result of the comparison of policy a with policy b in pairs of trials.

    Attributes:
        a: Name of the first policy.
        b: Name of the second policy.
        alpha: Probability α of a wrong decision.
        margin: Difference of success rates below which the policies count as equivalent; None if that is not tested.
        answer: ``"better"`` if a is better than b, ``"worse"`` if b is better, ``"equivalent"`` or ``"undecided"``.
        decided: Number of pairs after which the decision was made; None if undecided.
        counts: Numbers of pairs by outcome of both policies.
        test: Sequential test of no difference, with the confidence sequence of p_a − p_b (difference of the success
            rates).
        p_equivalent: P-value of the hypothesis that the policies differ by at least the margin; None if there is no
            margin. It is valid at any number of pairs at which the comparison stops (anytime-valid).
        fixed_p_value: McNemar's exact p-value, valid only if the number of pairs was fixed in advance.
        by_slice: For each slice: number of pairs, of pairs that only a won, and of pairs that only b won.
    """

    a: str
    b: str
    alpha: float
    margin: float | None
    answer: Answer
    decided: int | None
    counts: PairedCounts
    test: SequentialTest
    p_equivalent: float | None
    fixed_p_value: float
    by_slice: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    @property
    def interval(self) -> Interval:
        """Confidence interval of p_a − p_b (difference of the success rates), valid at any stopping time."""
        return self.test.interval

    @property
    def discordant_counts(self) -> tuple[int, int]:
        """Number of pairs that only a won, and number of pairs that only b won."""
        return self.counts.only_a, self.counts.only_b

    def format_sentence(self) -> str:
        """Return a sentence with the answer, its p-value, the numbers of pairs and the interval of the difference."""
        i, n, only_a, only_b = self.interval, self.counts.pairs, *self.discordant_counts
        interval_text = (
            f"p_a - p_b = {float(i.estimate):+.3f} [{float(i.low):+.3f}, {float(i.high):+.3f}], valid at every look"
        )
        pairs = f"of {n} pairs {only_a} were won by {self.a} alone and {only_b} by {self.b} alone"
        p = f"p ≤ {float(self.test.p_value[-1]):.2g}"
        if self.answer in ("better", "worse"):
            first, second = (self.a, self.b) if self.answer == "better" else (self.b, self.a)
            return f"{first} is better than {second}: decided at pair {self.decided}, {p}; {pairs}; {interval_text}."
        if self.answer == "equivalent":
            equal = f"{self.a} and {self.b} are equivalent within {self.margin:g}"
            return f"{equal}: decided at pair {self.decided}; {pairs}; {interval_text}."
        hint = "" if self.margin is not None else " Give --margin to test whether they are equivalent."
        return f"undecided after {n} pairs, {p}; {pairs}; {interval_text}.{hint}"

    def headline(self) -> list[HeadlineMetric]:
        """Return difference, p-value and number of pairs as headline metrics, for ``--fail-if`` and the run history."""
        p = float(self.test.p_value[-1])
        return [
            self.interval.headline("difference", better="higher", meaning=f"success of {self.a} minus {self.b}"),
            HeadlineMetric(name="p_value", estimate=p, method="anytime-valid, of no difference"),
            HeadlineMetric(name="pairs", estimate=float(self.counts.pairs), unit="pairs", method="counted"),
        ]

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that can be written as JSON."""
        names = ("a", "b", "alpha", "margin", "answer", "decided", "fixed_p_value", "p_equivalent")
        return {
            **{name: getattr(self, name) for name in names},
            "pairs": self.counts.pairs,
            "counts": vars(self.counts),
            "interval": self.interval.to_json(),
            "by_slice": {name: list(row) for name, row in self.by_slice.items()},
            "words": self.format_sentence(),
            "test": self.test.to_json(),
        }


def compare_outcomes(
    a: Flags,
    b: Flags,
    *,
    names: tuple[str, str] = ("a", "b"),
    alpha: float = 0.05,
    margin: float | None = None,
    slices: Sequence[str] = (),
) -> PairedComparison:
    """Compare the outcomes of two policies in the same worlds, and decide as soon as the pairs in their order allow it.

    Args:
        a: Whether a succeeded in each world, shape ``(npair,)``, in the order in which the trials ran.
        b: Whether b succeeded in the same worlds.
        names: Names of both policies.
        alpha: Probability of a wrong decision.
        margin: Largest difference of success rates that counts as equivalent; None to test only for a difference.
        slices: Name of the slice of each pair, for the table by slice.

    Raises:
        InputError: If there is no pair, the lengths differ, or ``alpha`` or ``margin`` is outside (0, 1).
    """
    check_level(1 - alpha)
    if margin is not None:
        check_margin(margin)
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    test = sequential_pairs(first, second, level=1 - alpha)
    margins = None if margin is None else _compute_running_margin_p(first, second, margin)
    differs, equal = test.stopped, None
    if margins is not None and (margins <= alpha).any():
        equal = int(np.argmax(margins <= alpha)) + 1
    answer: Answer = "undecided"
    if differs is not None and (equal is None or differs <= equal):
        answer = "better" if (first - second)[:differs].sum() > 0 else "worse"
    elif equal is not None:
        answer = "equivalent"
    counts = _count_pairs(first, second)
    by_slice: dict[str, tuple[int, int, int]] = {}
    for name, x, y in zip(slices, first, second, strict=False):
        pairs, only_a, only_b = by_slice.get(name, (0, 0, 0))
        by_slice[name] = pairs + 1, only_a + int(x > y), only_b + int(y > x)
    return PairedComparison(
        a=names[0],
        b=names[1],
        alpha=alpha,
        margin=margin,
        answer=answer,
        decided=differs if answer in ("better", "worse") else equal,
        counts=counts,
        test=test,
        p_equivalent=None if margins is None else float(margins[-1]),
        fixed_p_value=mcnemar(counts),
        by_slice=by_slice,
    )


def _compute_running_margin_p(a: NDArray[np.float64], b: NDArray[np.float64], margin: float) -> NDArray[np.float64]:
    """Return after each pair the p-value of the hypothesis that a and b differ by at least ``margin``, ``(npair,)``."""
    return np.maximum(
        running_p_values(log_e_pairs(a, b, difference=-margin, alternative="greater")),
        running_p_values(log_e_pairs(a, b, difference=margin, alternative="less")),
    )


def _count_pairs(a: NDArray[np.float64], b: NDArray[np.float64]) -> PairedCounts:
    return PairedCounts.of_outcomes(a > 0, b > 0)


def draw_trials(runner: TrialRunner) -> Iterator[Trial]:
    """Yield trials without end, each from a random slice (condition) of the runner's suite; no trial occurs twice."""
    slices, used = runner.suite.slices, dict.fromkeys((item.name for item in runner.suite.slices), 0)
    random = generator(runner.run_seed, f"compare/{runner.suite.name}")
    while True:
        item = slices[int(random.integers(len(slices)))]
        yield item, used[item.name]
        used[item.name] += 1


def compare_running(
    a: Candidate,
    b: Candidate,
    runner: TrialRunner,
    *,
    alpha: float = 0.05,
    margin: float | None = None,
    max_pairs: int = 1000,
    done: Callable[[int, int, int], None] | None = None,
) -> tuple[PairedComparison, list[Row], list[Row]]:
    """Run both policies in batches of the same worlds until a decision is reached or ``max_pairs`` pairs were tried.

    Args:
        a: The first policy.
        b: The second policy.
        runner: Runner with the suite, which simulates the trials.
        alpha: Probability of a wrong decision.
        margin: Largest difference of success rates that counts as equivalent; None to test only for a difference.
        max_pairs: Largest number of pairs.
        done: Function that is called after each batch with the number of pairs so far, of pairs that only a won, and of
            pairs that only b won.

    Returns:
        The comparison, and one row of scores per trial of a and of b (see `TrialRunner.run`).

    Raises:
        InputError: If ``max_pairs`` is below 1, or ``alpha`` or ``margin`` is outside (0, 1). It is raised before any
            trial runs.
    """
    check_level(1 - alpha)
    if margin is not None:
        check_margin(margin)
    if max_pairs < 1:
        raise InputError(f"At most {max_pairs} pairs cannot give a decision. Allow at least one.")
    names, source = _make_names_distinct(a.name, b.name), draw_trials(runner)
    trials: list[Trial] = []
    rows_a: list[Row] = []
    rows_b: list[Row] = []
    while True:
        count = min(max(FIRST_BATCH, min(len(trials), MAX_BATCH)), max_pairs - len(trials))
        new = [next(source) for _ in range(count)]
        trials += new
        rows_a += runner.run(a, new)
        rows_b += runner.run(b, new)
        won_a, won_b = (np.array([row["success"] and row["valid"] for row in rows]) for rows in (rows_a, rows_b))
        if done is not None:
            done(len(trials), int((won_a & ~won_b).sum()), int((won_b & ~won_a).sum()))
        if len(trials) >= max_pairs or is_decided(won_a, won_b, alpha=alpha, margin=margin):
            where = [item.name for item, _ in trials]
            return compare_outcomes(won_a, won_b, names=names, alpha=alpha, margin=margin, slices=where), rows_a, rows_b


def is_decided(a: Flags, b: Flags, *, alpha: float, margin: float | None) -> bool:
    """Return whether the outcomes of all pairs so far give a decision, by the rules of `compare_outcomes`."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if running_p_values(log_e_pairs(first, second))[-1] <= alpha:
        return True
    return margin is not None and bool(_compute_running_margin_p(first, second, margin)[-1] <= alpha)


def compare_stored(
    a: Evaluation, b: Evaluation, *, alpha: float = 0.05, margin: float | None = None, seed: int = 0
) -> PairedComparison:
    """Compare two stored evaluations by the trials that they have in common; see `compare_shared`.

    Args:
        a: Evaluation of the first policy.
        b: Evaluation of the second policy.
        alpha: Probability of a wrong decision.
        margin: Largest difference of success rates that counts as equivalent; None to test only for a difference.
        seed: Seed of the order of the trials.

    Raises:
        InputError: If domain (simulated or real), suite, run seed, twin or task differ, or no trial is common to both.
    """
    _check_comparable(a, b)
    names = _make_names_distinct(a.policy, b.policy)
    sides = _read_outcomes(a), _read_outcomes(b)
    return compare_shared(*sides, names=names, suite=a.suite, alpha=alpha, margin=margin, seed=seed)


def compare_shared(
    first: Outcomes,
    second: Outcomes,
    *,
    names: tuple[str, str],
    suite: str,
    alpha: float = 0.05,
    margin: float | None = None,
    seed: int = 0,
) -> PairedComparison:
    """Compare two policies by the trials that they have in common, in a random order.

    The stored order will not do: conditions follow each other in it, and the test needs pairs that are alike.
    ``fixed_p_value`` of the result is McNemar's p-value, which is valid here because the number of trials is fixed in
    advance. The sequential test is valid too, but needs more trials for a decision.

    Args:
        first: Outcomes of the first policy, by slice and trial.
        second: Outcomes of the second policy.
        names: Names of both policies.
        suite: Name of the suite for messages.
        alpha: Probability of a wrong decision.
        margin: Largest difference of success rates that counts as equivalent; None to test only for a difference.
        seed: Seed of the order of the trials.

    Raises:
        InputError: If no trial is common to both.
    """
    shared = [key for key in first if key in second]
    if not shared:
        raise InputError(
            f"{names[0]} and {names[1]} have no trial in common in {suite}. Evaluate both with the same slices, or "
            "compare them unpaired: `twinloop gap compare`."
        )
    keys = [shared[i] for i in generator(seed, "compare/stored").permutation(len(shared))]
    flags = [np.array([side[key] for key in keys]) for side in (first, second)]
    return compare_outcomes(
        flags[0], flags[1], names=names, alpha=alpha, margin=margin, slices=[key[0] for key in keys]
    )


def _check_comparable(a: Evaluation, b: Evaluation) -> None:
    facts = {"domain": "domain", "suite": "suite", "run seed": "run_seed", "task": "task", "twin": "twin_hash"}
    unlike = [
        f"{word} {getattr(a, key) or 'none'!s:.16} and {getattr(b, key) or 'none'!s:.16}"
        for word, key in facts.items()
        if getattr(a, key) != getattr(b, key)
    ]
    hashes = [one.extra.get("suite_hash") for one in (a, b)]
    if a.suite == b.suite and hashes[0] != hashes[1]:
        unlike.append(f"another version of the suite {a.suite}")
    if unlike:
        raise InputError(
            f"The evaluations of {a.policy} and {b.policy} cannot be paired, because they differ: {'; '.join(unlike)}. "
            "Evaluate both with the same --suite, --seed and --twin."
        )


def _read_outcomes(evaluation: Evaluation) -> Outcomes:
    rows = evaluation.trials.select(["slice", "trial", "success", "valid"]).to_pydict()
    return {(name, trial): won and valid for name, trial, won, valid in zip(*rows.values(), strict=True)}


def _make_names_distinct(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a != b else (f"{a} (first)", f"{b} (second)")
