"""Published tables of real and simulated scores come out as published.

SIMPLER: scores of ``simpler_env/utils/metrics.py`` of simpler-env/SimplerEnv (MIT), visual matching. RealAIGym: the
leaderboards of the double pendulum of dfki-ric-underactuated-lab (BSD-3).
"""

import os
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import barnard_exact

from benchmarks.error_rates.gap.ranking_bootstrap import bootstrap_metric
from benchmarks.predictivity.score import outcome_of
from twinloop.core.trials import Trials
from twinloop.dataset.logs.sets.pendulums import read_rollouts
from twinloop.stats import ContingencyTable, exact_p_value, ranking
from twinloop.stats.predictivity import predictivity
from twinloop.stats.ranking import PolicyScoreMatrix

# trials per policy, real, simulated, MMRV, Pearson, MMRV with swapped arguments, bias;
# rt-2-x, rt-1-converged, rt-1-15pct, rt-1-x, rt-1-begin, octo-base
SIMPLER = {
    "pick_coke_can": (
        (75, [0.907, 0.853, 0.920, 0.760, 0.133, 0.293], [0.787, 0.857, 0.710, 0.567, 0.027, 0.170]),
        (0.0313, 0.9754, 0.0618, -0.125),
    ),
    "move_near": (
        (60, [0.733, 0.633, 0.583, 0.450, 0.017, 0.350], [0.779, 0.442, 0.354, 0.317, 0.050, 0.042]),
        (0.1110, 0.8561, 0.0027, -0.130),
    ),
    "open_drawer": (
        (27, [0.333, 0.815, 0.704, 0.519, 0.000, 0.148], [0.157, 0.601, 0.463, 0.296, 0.000, 0.009]),
        (0.0, 0.9832, 0.0, -0.166),
    ),
    "close_drawer": (
        (27, [0.630, 0.926, 0.889, 0.741, 0.000, 0.519], [0.343, 0.861, 0.667, 0.891, 0.278, 0.444]),
        (0.1233, 0.7712, 0.1133, -0.037),
    ),
    "place_apple": (
        (27, [0.074, 0.185, 0.185, 0.407, 0.000, 0.000], [0.037, 0.065, 0.130, 0.213, 0.000, 0.000]),
        (0.0, 0.9692, 0.0108, -0.068),
    ),
    # rt-1-x, octo-base, octo-small
    "spoon_on_towel": ((24, [0.000, 0.333, 0.417], [0.000, 0.125, 0.472]), (0.0, 0.8269, 0.0, -0.051)),
    "carrot_on_plate": ((24, [0.000, 0.250, 0.083], [0.042, 0.083, 0.097]), (0.1113, 0.5714, 0.0093, -0.037)),
    "stack_cube": ((24, [0.000, 0.000, 0.125], [0.000, 0.000, 0.042]), (0.0, 1.0, 0.0, -0.028)),
    "put_eggplant": ((20, [0.000, 0.250, 0.400], [0.000, 0.431, 0.569]), (0.0, 0.9894, 0.0, 0.117)),
}
# simulation score, robustness (None: not published), real score, Pearson and MMRV of both
REALAIGYM = {
    "pendubot 2024": (
        [0.659, 0.480, 0.682, 0.596],
        [0.913, 0.614, 0.770, 0.786],
        [0.646, 0.644, 0.343, 0.068],
        (-0.246, 0.440, -0.081, 0.363),
    ),
    "acrobot 2024": (
        [0.633, 0.316, 0.655],
        [0.727, 0.241, 0.751],
        [0.343, 0.359, 0.027],
        (-0.585, 0.327, -0.571, 0.327),
    ),
    "acrobot 2025": ([0.658, 0.630, 0.307, 0.648], None, [0.616, 0.755, 0.566, 0.364], (0.004, 0.281)),
    "pendubot 2025": ([0.759, 0.726, 0.509, 0.799], None, [0.696, 0.716, 0.542, 0.363], (-0.060, 0.304)),
}


@pytest.mark.parametrize("task", SIMPLER)
def test_simpler_rows_to_four_digits(task):
    (_, real, sim), (mmrv, pearson, swapped, bias) = SIMPLER[task]
    assert ranking.mmrv(real=real, sim=sim) == pytest.approx(mmrv, abs=5.1e-5)
    assert ranking.pearson(real=real, sim=sim) == pytest.approx(pearson, abs=5.1e-5)
    assert ranking.mmrv(real=sim, sim=real) == pytest.approx(swapped, abs=5.1e-5)
    assert ranking.bias(real=real, sim=sim) == pytest.approx(bias, abs=5.1e-4)


def test_simpler_averages():
    (_, real_a, sim_a), (_, real_b, sim_b) = SIMPLER["open_drawer"][0], SIMPLER["close_drawer"][0]
    real = PolicyScoreMatrix.average_tasks([PolicyScoreMatrix.of_table(real, 27) for real in (real_a, real_b)])
    sim = PolicyScoreMatrix.average_tasks([PolicyScoreMatrix.of_table(sim, 27) for sim in (sim_a, sim_b)])
    assert ranking.mmrv(real=real.mean, sim=sim.mean) == pytest.approx(0.0555, abs=5.1e-5)
    assert ranking.pearson(real=real.mean, sim=sim.mean) == pytest.approx(0.9159, abs=5.1e-5)
    rows = [row[1] for row in SIMPLER.values()]
    assert np.mean([row[0] for row in rows]) == pytest.approx(0.0419, abs=5.1e-5)
    assert np.mean([row[1] for row in rows]) == pytest.approx(0.8825, abs=5.1e-5)


# 95 % bootstrap over real trials (2,000 draws)
@pytest.mark.parametrize(
    ("task", "metric", "low", "high"),
    [
        ("pick_coke_can", "pearson", 0.94, 0.99),
        ("pick_coke_can", "mmrv", 0.0, 0.082),
        ("move_near", "pearson", 0.72, 0.92),
        ("move_near", "mmrv", 0.072, 0.178),
        ("close_drawer", "pearson", 0.60, 0.88),
        ("spoon_on_towel", "pearson", 0.36, 0.99),
        ("carrot_on_plate", "pearson", 0.27, 0.99),
    ],
)
def test_bootstrap_over_real_trials(task, metric, low, high):
    (trials, real, sim), _ = SIMPLER[task]
    interval = bootstrap_metric(
        getattr(ranking, metric),
        real=PolicyScoreMatrix.of_table(real, trials),
        sim=PolicyScoreMatrix.of_table(sim, np.nan),  # unchanged, without noise of trials
    )
    # the ends of few trials are on a lattice, so that resamples move them by a step of it
    assert interval.low == pytest.approx(low, abs=0.05 if trials < 27 else 0.015), interval
    assert interval.high == pytest.approx(high, abs=0.03 if trials < 27 else 0.015)


@pytest.mark.parametrize("table", REALAIGYM)
def test_realaigym_tables(table):
    sim, robustness, real, published = REALAIGYM[table]
    for column, values in ((0, sim), (2, robustness)):
        if values is not None:
            assert ranking.pearson(real=real, sim=values) == pytest.approx(published[column], abs=5.1e-4)
            assert ranking.mmrv(real=real, sim=values) == pytest.approx(published[column + 1], abs=5.1e-4)


def test_three_or_four_controllers_say_little():
    """Ten trials each; the published correlations of −0.6 to 0 exclude few values."""
    sim, _, real, _ = REALAIGYM["pendubot 2024"]
    metric = predictivity(real=PolicyScoreMatrix.of_table(real, 10), sim=PolicyScoreMatrix.of_table(sim, np.nan))[
        "pearson"
    ]
    assert metric.population.low < -0.95
    assert metric.population.high > 0.8


def test_a_correlation_of_one_that_rests_on_three_successes_is_no_certainty():
    (trials, real, sim), _ = SIMPLER["stack_cube"]
    metric = predictivity(real=PolicyScoreMatrix.of_table(real, trials), sim=PolicyScoreMatrix.of_table(sim, trials))[
        "pearson"
    ]
    assert metric.estimate == pytest.approx(1.0)
    assert metric.evaluated.low < -0.5


@pytest.mark.slow
def test_success_counts_of_realaigym_come_out_of_its_raw_files_and_differ():
    trials = _rollouts()
    counts = {name: trials.where(policy=name).counts() for name in ("pendubot_mcpilco", "pendubot_sac_lqr")}
    assert counts == {"pendubot_mcpilco": (10, 10), "pendubot_sac_lqr": (4, 10)}
    table = ContingencyTable(successes_a=10, trials_a=10, successes_b=4, trials_b=10)
    assert exact_p_value(table) == pytest.approx(barnard_exact([[10, 4], [0, 6]]).pvalue, rel=1e-3)


def _rollouts():
    folder = Path(os.environ.get("TWINLOOP_DATA", "")) / "dfki_double_pendulum"
    if not (folder / "real_rollouts").is_dir():
        pytest.skip("TWINLOOP_DATA holds no dfki_double_pendulum/real_rollouts")
    episodes = [raw.to_episode() for raw in read_rollouts(folder)]
    success = [bool(outcome_of(episode).success) for episode in episodes]
    return Trials(
        policy=tuple(episode.task for episode in episodes),
        domain=("real",) * len(episodes),
        score=np.array(success, dtype=float),
        success=tuple(success),
        origin=str(folder),
    )
