"""Faults that signals indicate, overlapping chunks, and detectors that find planted changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinloop.release.monitor.faults import FaultHypothesis, ResidualDirections, weight_load_signature
from twinloop.release.monitor.scorers import DriveScorer, MagnitudeScorer, MahalanobisScorer, fit_outlier_scorer
from twinloop.release.monitor.signals import find_cause, get_meaning
from twinloop.release.monitor.streams import compare_chunks


def test_the_fault_that_the_episode_is_like_is_named() -> None:
    excess = {"drives/latency": 4.0, "drives/gain": 3.5, "drives/any": 5.0, "grip": 2.0}
    assert find_cause(excess, {"latency": 0.9, "gain": 0.7, "load": 0.1})[0] == "latency"


def test_faults_that_look_alike_are_unknown_and_both_are_said() -> None:
    cause, instead = find_cause({"drives/latency": 4.0}, {"latency": 0.71, "gain": 0.7, "load": 0.1})
    assert cause == "unknown"
    assert instead == ["latency", "worn actuator"]


def test_two_faults_of_one_cause_are_no_doubt() -> None:
    assert find_cause({"drives/friction": 4.0}, {"friction": 0.7, "gain": 0.69})[0] == "worn actuator"


def test_a_departure_that_is_like_no_fault_is_unknown() -> None:
    assert find_cause({"drives/any": 4.0}, {"latency": 0.3, "gain": 0.1}) == ("unknown", [])


def test_jaws_speak_for_what_they_hold_unless_the_arm_departed_before() -> None:
    excess, none = {"drives/any": 4.0, "grip": 2.0}, {"latency": 0.1, "gain": 0.0, "load": 0.1}
    assert find_cause(excess, none, {"drives/any": 90, "grip": 95})[0] == "unknown object"
    assert find_cause(excess, none, {"drives/any": 11, "grip": 95})[0] == "unknown"
    assert find_cause(excess, {**none, "load": 0.6}, {"drives/any": 11, "grip": 95})[0] == "unknown object"


def test_a_weight_weighs_while_it_is_held_and_fades_as_coefficients_do() -> None:
    told = (FaultHypothesis(name="load", pattern="", op="add", change=1.0, unit=""),
            FaultHypothesis(name="play", pattern="", op="add", change=1.0, unit=""))  # fmt: skip
    held = np.concatenate([np.zeros(30), np.ones(60), np.zeros(60)])
    weighted = weight_load_signature(np.ones((2, 150, 3)), told, held, 30.0)
    np.testing.assert_array_equal(weighted[1], 1.0)
    np.testing.assert_allclose(weighted[0, [29, 89, 149], 0], [0.0, 1.0 - np.exp(-1.0), (1.0 - np.exp(-1.0)) / np.e])


def test_special_signals_go_before_general_ones() -> None:
    assert find_cause({"latent": 9.0, "camera/front/shift": 1.1})[0] == "moved camera"
    assert find_cause({"latent": 9.0, "chunk": 1.1})[0] == "out of distribution"
    assert find_cause({"tracker": 3.0, "camera/front/light": 3.1})[0] == "unknown"


def test_every_signal_has_words() -> None:
    for name in ("drives/any", "drives/play", "grip", "tracker", "observation", "latent", "chunk", "camera/a/b/light"):
        assert get_meaning(name).words


def test_chunks_of_one_plan_do_not_disagree() -> None:
    plan = np.random.default_rng(0).normal(size=(2, 30, 3))
    np.testing.assert_allclose(compare_chunks(plan[:, 8:24], plan[:, :16], 8), 0.0)
    np.testing.assert_allclose(compare_chunks(plan[:, 8:24] + 2.0, plan[:, :16], 8), 2.0)
    assert np.isnan(compare_chunks(plan[:, :8], plan[:, :8], 8)).all()


@settings(max_examples=10)
@given(st.floats(0.3, 3.0), st.integers(0, 100))
def test_directions_give_back_what_was_planted(size: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    found = ResidualDirections((1, 2, 3), control_hz=30.0)
    truth = size * np.array([[1.0, 0.0, -1.0], [0.0, 2.0, 0.0]])
    coefficients = np.zeros((1, 2, 3))
    for _ in range(90):
        moved = random.normal(size=(1, 2, 3)) * 0.05
        coefficients = found.update_coefficients(np.einsum("wjp,jp->wj", moved, truth), moved)
    np.testing.assert_allclose(coefficients[0], truth, atol=0.01 * size)


def test_directions_forget() -> None:
    random, found = np.random.default_rng(1), ResidualDirections((1, 1, 1), control_hz=30.0, memory_s=1.0)
    last = np.zeros((1, 1, 1))
    for step in range(300):
        moved = random.normal(size=(1, 1, 1)) * 0.05
        last = found.update_coefficients(moved[..., 0] * (0.0 if step < 150 else 1.0), moved)
    assert last[0, 0, 0] == pytest.approx(1.0, abs=0.03)
    found.restart(np.array([0]))
    assert found.update_coefficients(np.zeros((1, 1)), np.zeros((1, 1, 1))).item() == 0.0


def test_departure_is_measured_in_spreads_of_its_time() -> None:
    random = np.random.default_rng(3)
    spread = np.linspace(1.0, 5.0, 50)[None, :, None]
    rows = 10.0 + spread * random.normal(size=(400, 50, 2))
    judge = MahalanobisScorer.fit(rows)
    apart = judge.compute_scores(np.array([[13.0, 10.0], [10.0, 25.0]]), np.array([0, 49]))[""]
    np.testing.assert_allclose(apart, [3.0, 3.0], rtol=0.12)


def test_what_never_changed_is_told_by_the_least_spread() -> None:
    judge = MahalanobisScorer.fit(np.full((10, 20, 2), 3.0), least=0.5)
    assert judge.compute_scores(np.array([3.0, 4.0]), 5)[""] == pytest.approx(2.0)


def test_the_matched_filter_names_the_way_and_counts_its_length() -> None:
    random = np.random.default_rng(4)
    rows = random.normal(size=(200, 20, 4)) * np.array([1.0, 2.0, 3.0, 4.0])
    ways = np.zeros((2, 20, 4))
    ways[0, :, 1], ways[1, :, 3] = 5.0, -1.0
    judge = DriveScorer.fit(rows, ways, ("one", "two"), skip=0)
    told = judge.compute_scores(np.array([0.0, 8.0, 0.0, 0.0]), 7)
    assert told["one"] == pytest.approx(4.0, rel=0.1)
    assert abs(told["two"]) < 0.5
    assert told["any"] == pytest.approx(4.0, rel=0.1)


def test_a_fault_that_should_have_shown_before_is_unlike() -> None:
    """The same rows throughout, or in the last quarter alone: in whitened terms a quarter has half the length."""
    random = np.random.default_rng(6)
    ways = np.zeros((1, 20, 2))
    ways[0, :, 0] = 3.0
    judge = DriveScorer.fit(random.normal(size=(500, 20, 2)), ways, ("one",), skip=0)
    rows = judge.mean + np.array([6.0, 0.0])
    late = np.where(np.arange(20)[:, None] < 15, judge.mean, rows)
    steps = np.arange(20)
    assert judge.compute_similarity(judge.compute_evidence(rows, steps).sum(axis=0))["one"] == pytest.approx(
        1.0, abs=0.02
    )
    assert judge.compute_similarity(judge.compute_evidence(late, steps).sum(axis=0))["one"] == pytest.approx(
        0.5, abs=0.03
    )
    late[:15] = np.nan
    assert judge.compute_similarity(judge.compute_evidence(late, steps).sum(axis=0))["one"] == pytest.approx(
        1.0, abs=0.02
    )


@pytest.mark.parametrize("kind", ["neighbours", "density", "random_network"])
def test_a_row_far_from_all_is_unlike(kind: str) -> None:
    random = np.random.default_rng(5)
    mix = random.normal(size=(3, 6))
    judge = fit_outlier_scorer(random.normal(size=(300, 3)) @ mix, kind)  # type: ignore[arg-type]
    new = judge.compute_scores(random.normal(size=(50, 3)) @ mix, 0)[""]
    far = judge.compute_scores((random.normal(size=(50, 3)) + 5.0) @ mix, 0)[""]
    assert np.quantile(far, 0.1) > np.quantile(new, 0.9)


def test_size_is_in_units_of_its_columns() -> None:
    assert MagnitudeScorer(unit=np.array([2.0, 4.0])).compute_scores(np.array([2.0, 4.0]), 0)[""] == pytest.approx(1.0)
