"""Figures of rankings against slow twins and laws, and coverage of their intervals by simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from benchmarks.error_rates.gap.ranking_bootstrap import bootstrap_metric
from twinloop.core.errors import InputError
from twinloop.stats import ranking
from twinloop.stats.predictivity import predictivity
from twinloop.stats.ranking import PolicyScoreMatrix, draw_population, draw_true_scores, simulate_expected_metrics

tables = st.integers(2, 7).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 4), min_size=n, max_size=n) for _ in range(2)])
)


def _slow_mmrv(real, sim):
    total = 0.0
    for i in range(len(real)):
        total += max(
            abs(real[i] - real[j]) if (sim[i] > sim[j]) != (real[i] > real[j]) else 0.0 for j in range(len(real))
        )
    return total / len(real)


@settings(max_examples=60)
@given(tables)
def test_metrics_equal_slow_twins_and_scipy_ties_included(table):
    real, sim = (np.array(side) / 4 for side in table)
    assert ranking.mmrv(real=real, sim=sim) == pytest.approx(_slow_mmrv(real, sim))
    if np.ptp(real) > 0 and np.ptp(sim) > 0:
        assert ranking.pearson(real=real, sim=sim) == pytest.approx(stats.pearsonr(real, sim).statistic)
        assert ranking.spearman(real=real, sim=sim) == pytest.approx(stats.spearmanr(real, sim).statistic)
        assert ranking.kendall(real=real, sim=sim) == pytest.approx(stats.kendalltau(real, sim).statistic)
    else:
        for metric in (ranking.pearson, ranking.spearman, ranking.kendall):
            assert np.isnan(metric(real=real, sim=sim))


@settings(max_examples=60)
@given(tables)
def test_laws_of_rankings(table):
    real, sim = (np.array(side) / 4 for side in table)
    same = {"real": real, "sim": real}
    assert ranking.mmrv(**same) == ranking.regret(**same) == ranking.absolute_gap(**same) == 0
    assert ranking.best_agrees(**same) == pytest.approx(1)
    assert ranking.mmrv(real=real, sim=sim**3) == pytest.approx(ranking.mmrv(real=real, sim=sim))
    assert ranking.mmrv(real=real / 2, sim=sim) == pytest.approx(ranking.mmrv(real=real, sim=sim) / 2)
    assert 0 <= ranking.regret(real=real, sim=sim) <= np.ptp(real)
    worst = ranking.violations(real=real, sim=sim)
    assert (worst == []) == (np.isnan(a := ranking.pairwise_accuracy(real=real, sim=sim)) or a == 1)
    assert [row[2] for row in worst] == sorted((row[2] for row in worst), reverse=True)


def test_populations_of_a_batch_of_studies_are_those_of_each():
    real, sim = np.array([[0.2, 0.5, 0.6, 0.9], [0.4, 0.45, 0.5, 0.55]]), np.array([[0.3, 0.4, 0.7, 0.8]] * 2)
    trials, draws = np.array(50.0), 4000
    both = [PolicyScoreMatrix(mean=side, trials=trials) for side in (real, sim)]
    batch = draw_population(real=both[0], sim=both[1], draws=draws, rng=np.random.default_rng(0))
    for row in range(2):
        alone = draw_population(
            real=PolicyScoreMatrix(mean=real[row], trials=trials),
            sim=PolicyScoreMatrix(mean=sim[row], trials=trials),
            draws=draws,
            rng=np.random.default_rng(1 + row),
        )
        for name in ("mean_real", "mean_sim", "real", "sim", "both"):
            many, one = getattr(batch, name), getattr(alone, name)
            assert many.shape == (2, draws)
            # A quantile of 4,000 draws has an error of about 2 % of the distribution, by the Kolmogorov-Smirnov test.
            assert stats.ks_2samp(many[row], one).pvalue > 1e-3


def test_ties_and_argument_order():
    # a tie in the simulation is a violation for the better one only, so the worse one's share is 0
    assert ranking.mmrv(real=[0.2, 0.8], sim=[0.5, 0.5]) == pytest.approx(0.3)
    assert ranking.mmrv(real=[0.5, 0.5], sim=[0.2, 0.8]) == 0
    assert ranking.violations(real=[0.2, 0.8], sim=[0.5, 0.5]) == [(1, 0, pytest.approx(0.6))]
    assert ranking.pairwise_accuracy(real=[0.2, 0.8, 0.8], sim=[0.5, 0.5, 0.9]) == 0.75
    assert ranking.best_agrees(real=[0.2, 0.8], sim=[0.5, 0.5]) == 0.5
    with pytest.raises(TypeError):
        ranking.mmrv([0.1, 0.2], [0.1, 0.2])  # pyright: ignore[reportCallIssue]
    with pytest.raises(InputError, match=r"Real scores have shape \(2,\), simulated ones \(3,\)"):
        ranking.mmrv(real=[0.1, 0.2], sim=[0.1, 0.2, 0.3])


def test_scores_of_trials_and_tables_weigh_alike():
    binary = PolicyScoreMatrix.of_trials([[1, 1, 0, 0], [1, 1, 1, 1]])
    assert binary.trials.tolist() == [4, 4]
    assert (binary.variance > 0).all()
    graded = PolicyScoreMatrix.of_trials([[0.4, 0.5, 0.6, 0.5]])
    assert graded.trials[0] > 4
    assert PolicyScoreMatrix.of_trials([[0.5, 0.5, 0.5]]).trials[0] < 20  # equal scores of three trials are not certain
    spread = np.std([0.4, 0.5, 0.6, 0.5])
    assert PolicyScoreMatrix.of_table([0.5], [4], [spread]).trials == pytest.approx(graded.trials)
    assert not PolicyScoreMatrix.of_table([0.5], np.nan).has_trial_counts
    both = PolicyScoreMatrix.average_tasks(
        [PolicyScoreMatrix.of_table([0.4], 50), PolicyScoreMatrix.of_table([0.6], 50)]
    )
    assert both.mean == pytest.approx(0.5)
    assert both.variance == pytest.approx(0.25 / 100, rel=0.05)
    with pytest.raises(InputError, match="mean score of 75 is outside 0 to 1"):
        PolicyScoreMatrix.of_table([75.0], 20)
    with pytest.raises(InputError, match="no trials"):
        PolicyScoreMatrix.of_table([0.5], 0)


def test_constant_scores_are_answered_in_words():
    answer = predictivity(
        real=PolicyScoreMatrix.of_table(np.full(4, 1.0), 10), sim=PolicyScoreMatrix.of_table(np.full(4, 1.0), 10)
    )
    metric = answer["pearson"]
    assert metric.reason.startswith("all 4 real scores are 1: there is no order to predict")
    assert metric.to_json()["estimate"] is None
    assert answer["mmrv"].estimate == answer["bias"].estimate == 0
    assert answer["bias"].evaluated.high > 0.05
    for metric in answer.metrics:
        assert metric.reason or np.isfinite(metric.estimate)
    with pytest.raises(InputError, match="2 policies cannot show .* Score at least 3"):
        predictivity(real=PolicyScoreMatrix.of_table([0.1, 0.9], 10), sim=PolicyScoreMatrix.of_table([0.1, 0.8], 9))


def test_expected_metrics_are_zero_where_nothing_can_go_wrong_and_grow_with_it():
    table = simulate_expected_metrics(5)
    assert np.all(np.diff(table.mmrv) < 0)
    assert table.interpolate_metric("mmrv", np.array(0.999)) < 0.05
    assert table.interpolate_metric("best_agrees", np.array(0.0)) == pytest.approx(1 / 5, abs=0.02)  # by luck
    assert table.interpolate_metric("regret", np.array(0.0)) == pytest.approx(
        1.163, abs=0.03
    )  # E max of five standard normals


def _planted(rng, repetitions, policies, trials, correlation):
    z = rng.standard_normal((2, repetitions, policies))
    true_r = np.clip(0.5 + 0.17 * z[0], 0, 1)
    true_s = np.clip(0.45 + 0.17 * (correlation * z[0] + np.sqrt(1 - correlation**2) * z[1]), 0, 1)
    real, sim = (PolicyScoreMatrix.of_table(rng.binomial(trials, x) / trials, trials) for x in (true_r, true_s))
    return true_r, true_s, real, sim


def test_intervals_hold_where_the_bootstrap_of_publications_does_not():
    rng = np.random.default_rng(2)
    true_r, true_s, real, sim = _planted(rng, 150, 10, 10, 0.9)
    population = draw_population(real=real, sim=sim, draws=400, rng=rng)
    r, s = draw_true_scores(population, real=real, sim=sim, rng=rng)
    for metric in (ranking.pearson, ranking.mmrv, ranking.kendall):
        low, high = np.quantile(metric(real=r, sim=s), [0.025, 0.975], axis=-1)
        truth = metric(real=true_r, sim=true_s)
        assert np.mean((low <= truth) & (truth <= high)) > 0.9
    low, high = np.quantile(population.correlation, [0.025, 0.975], axis=-1)
    assert np.mean((low <= 0.9) & (high >= 0.9)) > 0.9
    published = bootstrap_metric(ranking.pearson, real=real, sim=sim, draws=400)
    assert np.mean(published.covers(ranking.pearson(real=true_r, sim=true_s))) < 0.5
    both = bootstrap_metric(ranking.pearson, real=real, sim=sim, policies=True, draws=400)
    assert np.mean(both.high - both.low) > np.mean(published.high - published.low)


def test_many_trials_of_many_policies_find_the_planted_correlation():
    rng = np.random.default_rng(3)
    z = rng.standard_normal((2, 80))
    true_r, true_s = 0.5 + 0.1 * z[0], 0.4 + 0.1 * (0.8 * z[0] + 0.6 * z[1])
    real, sim = (PolicyScoreMatrix.of_table(rng.binomial(20, np.clip(x, 0, 1)) / 20, 20) for x in (true_r, true_s))
    metric = predictivity(real=real, sim=sim, draws=200)["pearson"]
    assert metric.estimate < 0.6  # pulled down by the noise of twenty trials
    assert metric.corrected == pytest.approx(0.8, abs=0.12)
    assert metric.population.low < 0.8 < metric.population.high
