"""Nested cross-validation: inner folds choose, outer folds score once, and nothing of a test part reaches a choice."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.real_data.case import Candidate, Errors, Fitted, RealCase, grouped, leave_one_out, mean_errors
from benchmarks.real_data.nested import Fits, choose, paired_difference, run_fold
from twinloop.core.records import Episode
from twinloop.core.units import UnitMap
from twinloop.simulate import open_backend

BACKEND = open_backend("threads", nthread=1)


def told(index, value, group):
    """An episode whose one number is ``value``."""
    time, none = np.arange(3.0), np.empty((3, 0))
    return Episode(
        index=index,
        time=time,
        action=none,
        state=none,
        units=UnitMap(joints=(), source="a test"),
        source="sim",
        conditions={"value": value, "group": group},
        signals={},
        origin=str(value),
    )


class Guess(RealCase):
    """Predict a number by the mean or the maximum of the training numbers, or by the shipped value 0."""

    name, twin, rule = "guess", "none", "each group is left out"
    candidates = (
        Candidate(name="largest", structure="largest"),
        Candidate(name="mean", structure="mean"),
        Candidate(name="half the mean", structure="mean", prediction="half"),
    )
    published = Fitted(values={"guess": 1.0})

    def __init__(self) -> None:
        self.fitted: list[tuple[str, tuple[int, ...]]] = []

    def folds(self, episodes: Sequence[Episode]):
        return leave_one_out(grouped(episodes, [f"{e.conditions['group']:g}" for e in episodes]))

    def fit(self, training, structure, backend):
        self.fitted.append((structure, tuple(sorted(e.index for e in training))))
        numbers = [e.conditions["value"] for e in training]
        return Fitted(values={"guess": float(np.mean(numbers) if structure == "mean" else np.max(numbers))})

    def errors(self, fitted, test, backend):
        guess = fitted.values.get("guess", 0.0) * (0.5 if fitted.prediction == "half" else 1.0)
        size = np.array([abs(e.conditions["value"] - guess) for e in test])
        return mean_errors(np.stack([size, 1.0 + size], axis=1), ["error", "one more"], ["1", "1"])


def episodes(values=(4.0, 5.0, 7.0, 4.0, 4.5, 5.0)):
    made = [told(i, value, i // 2) for i, value in enumerate(values)]
    # What an episode is called does not distinguish it; its arrays do.
    return [replace(e, time=e.time + 0.01 * e.conditions["value"] * (1 + e.index)) for e in made]


def test_a_group_is_left_out_whole_and_two_groups_at_least_make_folds():
    folds = Guess().folds(episodes())
    assert [fold.name for fold in folds] == ["0", "1", "2"]
    assert [[e.index for e in fold.test] for fold in folds] == [[0, 1], [2, 3], [4, 5]]
    assert [[e.index for e in fold.training] for fold in folds] == [[2, 3, 4, 5], [0, 1, 4, 5], [0, 1, 2, 3]]
    assert Guess().folds(episodes()[:2]) == []


def test_the_candidate_with_the_least_worst_metric_is_chosen_and_scored_once():
    case = Guess()
    result = run_fold(case.folds(episodes())[0], Fits(case, BACKEND))
    assert result.choice.candidate.name == "mean"
    # Inner folds: {4, 5} by {2, 3} and the other way round; errors over those of 0, the second figure being the worst.
    first = np.mean([1.0 + abs(v - 5.5) for v in (4.5, 5.0)]) / (1.0 + 4.75)
    second = np.mean([1.0 + abs(v - 4.75) for v in (7.0, 4.0)]) / (1.0 + 5.5)
    assert result.choice.losses["mean"] == pytest.approx((first + second) / 2)
    assert result.fitted.values["guess"] == pytest.approx(5.125)
    assert result.errors.metrics == pytest.approx([0.625, 1.625])
    assert list(result.references) == ["as shipped", "published"]
    assert result.references["as shipped"].metrics == pytest.approx([4.5, 5.5])
    assert result.references["published"].metrics == pytest.approx([3.5, 4.5])


def test_no_choice_depends_on_what_the_outer_fold_leaves_out():
    case = Guess()
    usual, wild = episodes(), episodes((900.0, -70.0, 7.0, 4.0, 4.5, 5.0))
    choices = [choose(case.folds(part)[0].training, Fits(case, BACKEND)) for part in (usual, wild)]
    assert choices[0] == choices[1]
    assert not any({0, 1} & set(seen) for _, seen in case.fitted)


def test_a_fit_is_made_once_for_a_structure_and_a_set_of_episodes():
    case = Guess()
    fits = Fits(case, BACKEND)
    for fold in case.folds(episodes()):
        run_fold(fold, fits)
    # Two structures on each of three groups alone (shared by two outer folds each); the mean on each outer part.
    assert len(case.fitted) == 2 * 3 + 3
    assert len(set(case.fitted)) == len(case.fitted)
    assert [fits(episodes(), candidate).prediction for candidate in case.candidates] == ["", "", "half"]
    assert len(case.fitted) == 2 * 3 + 3 + 2


def test_without_inner_folds_the_first_candidate_is_taken():
    case = Guess()
    choice = choose(episodes()[:2], Fits(case, BACKEND))
    assert (choice.candidate.name, dict(choice.losses)) == ("largest", {})
    assert case.fitted == []


def test_metrics_are_weighted_means_or_root_mean_squares():
    values, weights = np.array([[1.0, 4.0], [3.0, 0.0]]), np.array([3.0, 1.0])
    assert mean_errors(values, "ab", "11").metrics == pytest.approx([2.0, 2.0])
    assert mean_errors(values, "ab", "11", weights=weights).metrics == pytest.approx([1.5, 3.0])
    counted = np.array([[0.0, 1.0], [1.0, 0.0]])  # each figure counts one unit
    squared = Errors(names=("a", "b"), units=("1", "1"), values=values, weights=counted, squared=True)
    assert squared.metrics == pytest.approx([np.sqrt(3.0), 2.0])
    assert squared.at(np.array([[0, 0], [1, 1]]))[:, 1] == pytest.approx([2.0, 0.0])  # none of its units: 0


def test_a_paired_difference_has_the_sign_of_what_is_worse_and_none_for_one_unit():
    rng = np.random.default_rng(0)
    hard = rng.uniform(1.0, 9.0, size=(40, 1))  # a common part of both errors
    before, after = (mean_errors(hard + more, "a", "1") for more in (0.0, 0.2))
    interval = paired_difference(after, before)
    assert interval is not None
    assert interval.low == pytest.approx([0.2])
    assert interval.high == pytest.approx([0.2])
    assert paired_difference(mean_errors(hard[:1], "a", "1"), mean_errors(hard[:1], "a", "1")) is None
