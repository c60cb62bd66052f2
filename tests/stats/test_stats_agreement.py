"""Agreement coefficients: published examples, planted agreement, and intervals with the claimed coverage."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinloop.core.errors import InputError
from twinloop.stats import cohens_kappa, krippendorff_alpha, match_times

NAN = float("nan")

# Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011), section C and D: four observers, twelve units.
KRIPPENDORFF = np.array(
    [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, NAN, NAN, NAN],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NAN, 3],
        [NAN, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NAN],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NAN],
    ]
).T


def slow_alpha(values, distance):
    """Krippendorff's definition, pair by pair."""
    units = [[v for v in row if not np.isnan(v)] for row in values]
    units = [row for row in units if len(row) > 1]
    every = [v for row in units for v in row]
    observed = sum(distance(a, b) / (len(row) - 1) for row in units for a, b in itertools.permutations(row, 2)) / len(
        every
    )
    expected = sum(distance(a, b) for a, b in itertools.permutations(every, 2)) / (len(every) * (len(every) - 1))
    return 1.0 - observed / expected


def test_alpha_is_that_of_the_published_example():
    assert float(krippendorff_alpha(KRIPPENDORFF).estimate) == pytest.approx(0.743, abs=5e-4)
    assert float(krippendorff_alpha(KRIPPENDORFF, "interval").estimate) == pytest.approx(0.849, abs=5e-4)


def test_alpha_of_the_published_binary_example():
    """Section A of the same page: ten articles, two observers, alpha = 0.095."""
    first = [0, 1, 0, 0, 0, 0, 0, 0, 1, 0]
    second = [1, 1, 1, 0, 0, 1, 0, 0, 0, 0]
    assert float(krippendorff_alpha(np.transpose([first, second])).estimate) == pytest.approx(0.095, abs=5e-4)


def test_kappa_of_a_worked_example():
    """20 yes/yes, 5 yes/no, 10 no/yes, 15 no/no: observed 0.7, expected 0.5, kappa 0.4 by Cohen's formula."""
    first = ["yes"] * 25 + ["no"] * 25
    second = ["yes"] * 20 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 15
    found = cohens_kappa(first, second)
    assert float(found.estimate) == pytest.approx(0.4, abs=1e-12)
    # Fleiss, Cohen & Everitt (1969), eq. 13: standard error 0.127 in this table; BCa is about 0.4 ± 2 of them.
    assert float(found.low) == pytest.approx(0.4 - 1.96 * 0.127, abs=0.06)
    assert float(found.high) == pytest.approx(0.4 + 1.96 * 0.127, abs=0.06)


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.integers(2, 4), st.sampled_from(["nominal", "interval"]))
def test_fast_sums_equal_the_definition(seed, observers, metric):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 3, size=(12, observers)).astype(float)
    values[rng.random(values.shape) < 0.2] = NAN
    values[0, :2], values[1, :2] = (0, 1), (2, 2)
    distance = (lambda a, b: float(a != b)) if metric == "nominal" else (lambda a, b: (a - b) ** 2)
    found = krippendorff_alpha(values, metric)
    assert float(found.estimate) == pytest.approx(slow_alpha(values, distance), abs=1e-10)
    assert float(found.low) <= float(found.estimate) + 1e-9


def test_names_of_values_and_order_of_observers_do_not_matter():
    words = np.array([["", "a", "b", "c", "d", "e"][0 if np.isnan(v) else int(v)] for v in KRIPPENDORFF.ravel()])
    renamed = words.reshape(KRIPPENDORFF.shape)[:, ::-1]
    assert float(krippendorff_alpha(renamed).estimate) == pytest.approx(0.743, abs=5e-4)


def test_interval_alpha_ignores_scale_and_offset():
    base = float(krippendorff_alpha(KRIPPENDORFF, "interval").estimate)
    moved = krippendorff_alpha(1e6 + 1e-3 * KRIPPENDORFF, "interval")
    assert float(moved.estimate) == pytest.approx(base, abs=1e-6)


def test_agreement_without_a_disagreement_is_no_certainty():
    few = krippendorff_alpha(np.tile([[0.0], [1.0]], (5, 2)))
    many = krippendorff_alpha(np.tile([[0.0], [1.0]], (100, 2)))
    assert float(few.estimate) == float(many.estimate) == 1.0
    assert float(few.low) == pytest.approx(1.0 - (1.0 - 0.025 ** (1 / 10)) / 0.5, abs=1e-9)
    assert float(few.low) < 0.5 < 0.96 < float(many.low) < 1.0
    assert float(cohens_kappa([0, 1] * 5, [0, 1] * 5).low) == pytest.approx(float(few.low))


def test_one_value_only_is_undefined_not_perfect():
    for found in (krippendorff_alpha(np.ones((9, 2))), cohens_kappa(["yes"] * 9, ["yes"] * 9)):
        assert np.isnan(found.estimate)
        assert found.method == "only one value occurs"


def test_chance_agreement_is_zero_and_many_units_take_the_jackknife():
    rng = np.random.default_rng(3)
    values = rng.integers(0, 3, size=(4000, 3)).astype(float)
    found = krippendorff_alpha(values)
    assert found.method == "jackknife over units"
    assert found.covers(0.0)
    assert float(found.high - found.low) < 0.06


def test_jackknife_and_bootstrap_say_the_same():
    rng = np.random.default_rng(4)
    truth = rng.integers(0, 2, size=900)
    values = np.stack([np.where(rng.random(900) < 0.1, 1 - truth, truth) for _ in range(2)], axis=1).astype(float)
    drawn = krippendorff_alpha(values)
    sums = krippendorff_alpha(np.concatenate([values, values[:200]]))
    assert (drawn.method, sums.method) == ("bca bootstrap over units", "jackknife over units")
    ratio = float(drawn.high - drawn.low) / float(sums.high - sums.low)
    assert ratio == pytest.approx(np.sqrt(1100 / 900), rel=0.12)


def test_too_few_units_are_named():
    with pytest.raises(InputError, match="1 units have values of two observers; agreement needs at least 2"):
        krippendorff_alpha([[1.0, 2.0], [1.0, NAN]])
    with pytest.raises(InputError, match="shapes"):
        cohens_kappa([1, 2], [1, 2, 3])


def test_moments_match_as_often_as_they_can():
    found = match_times([10, 20, 30], [12, 21, 50], tolerance=2)
    assert found.first.tolist() == found.second.tolist() == [0, 1]
    assert found.f1 == pytest.approx(2 / 3)
    assert match_times([], [], 1).f1 == 1.0
    assert match_times([1], [], 1).f1 == 0.0


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, 12), max_size=5).map(sorted),
    st.lists(st.integers(0, 12), max_size=5).map(sorted),
    st.integers(0, 4),
)
def test_no_matching_is_larger(first, second, tolerance):
    best = 0
    for size in range(min(len(first), len(second)) + 1):
        for left in itertools.combinations(first, size):
            if any(
                all(abs(a - b) <= tolerance for a, b in zip(left, right, strict=True))
                for right in itertools.permutations(second, size)
            ):
                best = size
                break
    assert len(match_times(first, second, tolerance).first) == best


@pytest.mark.slow
@pytest.mark.parametrize(("units", "wrong"), [(20, 0.1), (40, 0.05), (80, 0.2)])
def test_intervals_cover_as_often_as_they_claim(units, wrong):
    """Two observers of a fair binary truth who err independently: alpha is (1 − 2 e)² in the limit of many units."""
    rng, truth = np.random.default_rng(11), (1 - 2 * wrong) ** 2
    hits = {"alpha": 0, "kappa": 0}
    trials = 400
    for trial in range(trials):
        true = rng.integers(0, 2, size=units)
        seen = np.stack([true ^ (rng.random(units) < wrong) for _ in range(2)], axis=1)
        for name, found in (
            ("alpha", krippendorff_alpha(seen, seed=trial)),
            ("kappa", cohens_kappa(seen[:, 0], seen[:, 1], seed=trial)),
        ):
            hits[name] += bool(found.covers(truth))
    for name, count in hits.items():
        assert count / trials > 0.92, (name, units, wrong, count / trials)
