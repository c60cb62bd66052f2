"""Sobol' indices against the closed forms of Ishigami's and Sobol's functions, and against plain nested sampling."""

import numpy as np
import pytest

from twinloop.core.errors import InputError
from twinloop.stats import SobolTerms, sobol_indices, sobol_rows, sobol_terms


def ishigami(points, a=7.0, b=0.1):
    x = np.pi * (2 * points - 1)
    return np.sin(x[..., 0]) + a * np.sin(x[..., 1]) ** 2 + b * x[..., 2] ** 4 * np.sin(x[..., 0])


def ishigami_indices(a=7.0, b=0.1):
    """Ishigami & Homma (1990): variances of x1 alone, of x2 alone, and of x1 with x3."""
    one, two = 0.5 * (1 + b * np.pi**4 / 5) ** 2, a**2 / 8
    both = b**2 * np.pi**8 * (1 / 18 - 1 / 50)
    whole = one + two + both
    return np.array([one, two, 0.0]) / whole, np.array([one + both, two, both]) / whole


def g_function(points, a):
    return np.prod((np.abs(4 * points - 2) + a) / (1 + a), axis=-1)


def g_indices(a):
    """Saltelli & Sobol' (1995): V_i = 1 / (3 (1 + a_i)²), V = Π (1 + V_i) − 1."""
    own = 1 / (3 * (1 + a) ** 2)
    whole = np.prod(1 + own) - 1
    return own / whole, own * np.prod(1 + own) / (1 + own) / whole


A = np.array([0.0, 1.0, 4.5, 9.0, 99.0, 99.0])


@pytest.mark.parametrize(
    ("function", "nfactor", "truth"),
    [(ishigami, 3, ishigami_indices()), (lambda x: g_function(x, A), 6, g_indices(A))],
    ids=["Ishigami", "Sobol's g"],
)
def test_closed_forms_are_met_within_a_hundredth_and_within_the_intervals(function, nfactor, truth):
    found = sobol_indices(sobol_terms(function(sobol_rows(nfactor, 8192))), draws=200)
    for interval, exact in zip((found.first, found.total), truth, strict=True):
        assert interval.estimate == pytest.approx(exact, abs=0.01)
        assert interval.covers(exact).all()


def test_intervals_cover_and_shrink_with_the_root_of_the_rows():
    covered, widths = [], []
    for seed in range(60):
        for base in (64, 256):
            found = sobol_indices(sobol_terms(ishigami(sobol_rows(3, base, seed=seed))), draws=200, seed=seed)
            covered.append([found.first.covers(ishigami_indices()[0]), found.total.covers(ishigami_indices()[1])])
            widths.append(np.mean(found.total.high - found.total.low))
    assert np.mean(covered) > 0.93  # nominal 0.95; of Sobol' points rather more
    assert np.mean(widths[1::2]) == pytest.approx(np.mean(widths[::2]) / 2, rel=0.2)


def test_groups_of_axes_are_factors_and_an_additive_function_has_no_interactions():
    rows = sobol_rows(2, 4096, sizes=[2, 1])
    assert rows.shape == (4, 4096, 3)
    assert np.array_equal(rows[2][:, :2], rows[1][:, :2])
    assert np.array_equal(rows[2][:, 2], rows[0][:, 2])
    found = sobol_indices(sobol_terms(rows @ np.array([1.0, 2.0, 3.0])), draws=50)
    assert found.first.estimate == pytest.approx([5 / 14, 9 / 14], abs=0.005)
    assert found.total.estimate == pytest.approx(found.first.estimate, abs=0.01)


def test_outputs_together_are_weighted_by_their_variances():
    points = sobol_rows(2, 1024)
    outputs = np.stack([points[..., 0], 3 * points[..., 1]], axis=-1)  # variances 1 : 9
    terms = sobol_terms(outputs)
    alone = sobol_indices(terms, draws=50)
    assert alone.first.estimate == pytest.approx(np.eye(2), abs=0.01)
    together = sobol_indices(terms.sum_outputs(-1), draws=50)
    assert together.first.estimate == pytest.approx([0.1, 0.9], abs=0.01)
    parts = SobolTerms(first=terms.first[..., 0], total=terms.total[..., 0], variance=terms.variance[..., 0])
    rest = SobolTerms(first=terms.first[..., 1], total=terms.total[..., 1], variance=terms.variance[..., 1])
    assert sobol_indices(parts + rest, draws=50).total.estimate == pytest.approx(together.total.estimate)


def test_clusters_are_pooled_and_count_in_the_interval():
    points = sobol_rows(2, 512)
    size = np.array([1.0, 1.0, 0.2, 4.0])  # of the second factor's effect, by episode
    terms = sobol_terms(points[..., :1] + size * points[..., 1:])
    pooled, clustered = sobol_indices(terms.sum_outputs(-1), draws=400), sobol_indices(terms, clusters=True, draws=400)
    assert clustered.first.estimate == pytest.approx(pooled.first.estimate)
    assert clustered.first.estimate[1] == pytest.approx(np.sum(size**2) / np.sum(size**2 + 1), abs=0.02)
    assert (clustered.first.high - clustered.first.low > 2 * (pooled.first.high - pooled.first.low)).all()


def test_an_output_that_does_not_vary_has_no_indices():
    found = sobol_indices(sobol_terms(np.ones((4, 16))), draws=20)
    assert np.isnan(found.total.estimate).all()


def test_mistakes_are_named():
    with pytest.raises(InputError, match="power of two from 8"):
        sobol_rows(3, 100)
    with pytest.raises(InputError, match="Each factor needs at least one"):
        sobol_rows(2, 64, sizes=[1, 0])
    with pytest.raises(InputError, match="not finite"):
        sobol_terms(np.full((3, 8), np.inf))
