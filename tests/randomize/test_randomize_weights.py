"""Distributions are invertible, and draws from a proposal represent the target by their weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from twinloop.core.errors import BoundsError, InputError
from twinloop.generate.coverage import effective_size
from twinloop.randomize import Draw, Plan, parse_randomization
from twinloop.randomize.distributions import (
    Choice,
    Empirical,
    LogUniform,
    MultivariateNormal,
    TruncatedNormal,
    Uniform,
)
from twinloop.randomize.plan import IMPORTANCE_WEIGHT
from twinloop.twin import load_twin

SO101 = load_twin("so101_tabletop")
MASS = "object/cube/mass"
PEERS = [
    (Uniform(low=-1, high=3), stats.uniform(-1, 4)),
    (LogUniform(low=0.1, high=10), stats.loguniform(0.1, 10)),
    (TruncatedNormal(mean=1, std=2), stats.norm(1, 2)),
    (TruncatedNormal(mean=1, std=2, low=0, high=2), stats.truncnorm(-0.5, 0.5, 1, 2)),
    (TruncatedNormal(mean=0, std=1, low=6, high=9), stats.truncnorm(6, 9, 0, 1)),
    (TruncatedNormal(mean=0, std=1, low=-9, high=-6), stats.truncnorm(-9, -6, 0, 1)),
]


@pytest.mark.parametrize(("distribution", "peer"), PEERS)
def test_densities_and_cumulative_probabilities_agree_with_scipy(distribution, peer):
    x = np.concatenate([peer.ppf(np.linspace(0.01, 0.99, 41)), [-20.0, 20.0]])
    np.testing.assert_allclose(distribution.logpdf(x), peer.logpdf(x), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(distribution.cdf(x), peer.cdf(x), rtol=1e-6, atol=1e-7)


@given(u=st.floats(0.001, 0.999))
def test_cumulative_probability_undoes_the_draw(u):
    empirical = Empirical(samples=(3.0, 1.0, 7.0, 4.5))
    for distribution in [*(d for d, _ in PEERS[:4]), empirical]:
        assert distribution.cdf(distribution.ppf(np.array([u])))[0] == pytest.approx(u, abs=1e-6)
    normal = MultivariateNormal(mean=(1.0, 2.0), covariance=((0.04, 0.0), (0.0, 0.0)))
    np.testing.assert_allclose(normal.cdf(normal.sample(np.array([[u, u]])))[0], [u, 0.5], atol=1e-9)


def test_a_choice_lies_in_the_middle_of_its_step_and_weighs_its_probability():
    choice = Choice(values=(5.0, 1.0, 9.0), weights=(1, 2, 1))
    np.testing.assert_allclose(choice.cdf(np.array([5.0, 1.0, 9.0])), [0.125, 0.5, 0.875])
    np.testing.assert_allclose(np.exp(choice.logpdf(np.array([5.0, 1.0, 9.0, 2.0]))), [0.25, 0.5, 0.25, 0.0])


def weighted(target, proposal, *, op="absolute", seed=0, count=20_000):
    draw = Draw(names=(MASS,), distribution=target, proposal=proposal, op=op)
    return Plan(twin=SO101, run_seed=seed, draws=(draw,)).draw_worlds(range(count))


@pytest.mark.parametrize(
    ("target", "proposal"),
    [
        (Uniform(low=0.02, high=0.1), TruncatedNormal(mean=0.02, std=0.03, low=0.02, high=0.1)),
        (LogUniform(low=0.02, high=0.1), Uniform(low=0.02, high=0.12)),
        (TruncatedNormal(mean=0.05, std=0.01, low=0.02, high=0.1), Uniform(low=0.02, high=0.1)),
        (Choice(values=(0.02, 0.05, 0.1)), Choice(values=(0.02, 0.05, 0.1), weights=(1, 1, 6))),
    ],
)
def test_weighted_draws_recover_the_target(target, proposal):
    """The weighted mean is within four standard errors of the target's, the plain one is not."""
    drawn = weighted(target, proposal)
    values, w = drawn.table[MASS], drawn.weight
    truth = target.ppf((np.arange(100_000) + 0.5) / 100_000).mean()
    mean = (w * values).sum() / w.sum()
    error = np.sqrt((w**2 * (values - mean) ** 2).sum()) / w.sum()
    assert abs(mean - truth) < 4 * error
    assert abs(values.mean() - truth) > 10 * values.std() / np.sqrt(len(values))
    assert w.mean() == pytest.approx(1.0, abs=0.03)


def test_weights_do_not_depend_on_the_operation():
    plain = weighted(Uniform(low=0.5, high=1.0), LogUniform(low=0.5, high=1.0), op="scale", count=100)
    shifted = weighted(Uniform(low=0.5, high=1.0), LogUniform(low=0.5, high=1.0), op="absolute", count=100)
    np.testing.assert_array_equal(plain.weight, shifted.weight)


def test_the_effective_size_is_that_of_equal_weights():
    assert effective_size(np.full(40, 0.3)) == pytest.approx(40)
    assert effective_size(np.array([1.0, 0, 0, 0])) == 1
    assert effective_size(np.zeros(3)) == 0
    lognormal = np.exp(stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000))  # E[w]² / E[w²] = e / e² = 1 / e
    assert effective_size(lognormal) / 20_000 == pytest.approx(np.exp(-1), rel=0.05)


def test_a_proposal_is_written_beside_its_range():
    section = {"physics": {"object_mass_g": {"low": 20, "high": 100, "proposal": [20, 110]}}}
    draws, _ = parse_randomization(section, SO101, where="g.yaml")
    plan = Plan(twin=SO101, run_seed=0, draws=tuple(draws))
    drawn = plan.draw_worlds(range(200))
    outside = drawn.table[MASS] > 0.1
    assert 0 < outside.sum() < 60
    np.testing.assert_allclose(drawn.weight, np.where(outside, 0.0, 90 / 80))
    assert plan.world_notes(drawn)[3] == {IMPORTANCE_WEIGHT: pytest.approx(float(drawn.weight[3]))}
    plain, _ = parse_randomization({"physics": {"object_mass_g": [20, 100]}}, SO101, where="g.yaml")
    assert Plan(twin=SO101, run_seed=0, draws=tuple(plain)).hash != plan.hash


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"proposal": [30, 100]}, InputError, r"proposal covers only \[0.03, 0.1\] of the range"),
        ({"proposal": [-20, 100]}, BoundsError, r"range \[-0.02, 0.1\] kg leaves the physical bounds"),
        ({"proposal": [20, 100], "scope": "step"}, InputError, "a proposal needs scope episode"),
        (
            {"proposal": {"distribution": "empirical", "samples": [20, 100]}},
            InputError,
            "Empirical has no density, which importance weights need",
        ),
        ({"proposal": {"distribution": "unifrom"}}, InputError, "Unknown distribution 'unifrom' in g.yaml.*proposal"),
    ],
)
def test_a_proposal_that_cannot_stand_for_its_target_is_refused(change, error, message):
    section = {"physics": {"object_mass_g": {"low": 20, "high": 100, **change}}}
    with pytest.raises(error, match=message):
        Plan(twin=SO101, run_seed=0, draws=tuple(parse_randomization(section, SO101, where="g.yaml")[0]))
