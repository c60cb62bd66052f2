"""Every function of stats that gives an interval or a test refuses a level that is no chance between 0 and 1."""

import importlib
import inspect
import math
import pkgutil

import numpy as np
import pytest

import twinloop.stats
from twinloop.core.errors import InputError

ROWS = np.random.default_rng(4).normal(size=(24, 2))
X, Y = ROWS[:, 0], ROWS[:, 1]
RATES = np.clip(0.5 + 0.2 * X, 0, 1)
HITS = X > 0
CLUSTERS = np.repeat(np.arange(8), 3)
TWO_SAMPLES = {"real": ROWS, "sim": ROWS + 1, "real_clusters": CLUSTERS, "sim_clusters": CLUSTERS}
ARGUMENTS = {
    "allan_curve": {"values": X, "period": 0.01},
    "auc_interval": {"scores": X, "outcome": HITS},
    "bootstrap": {"statistic": lambda chosen: X[chosen].mean(axis=-1), "nclusters": 24},
    "bootstrap_mean": {"values": X},
    "bootstrap_of_means": {"a": X, "b": Y},
    "bootstrap_paired": {"before": X, "after": Y},
    "bounded_difference": {"a": RATES, "b": RATES[::-1]},
    "bounded_mean": {"values": RATES},
    "classifier_test": TWO_SAMPLES,
    "clopper_pearson": {"successes": 3, "trials": 9},
    "cohens_kappa": {"first": HITS, "second": ~HITS},
    "conformal_threshold": {"scores": X},
    "coverage": {"inside": HITS},
    "energy_distance": TWO_SAMPLES,
    "kid": TWO_SAMPLES,
    "krippendorff_alpha": {"values": ROWS},
    "min_clip_count": {},
    "mmd": TWO_SAMPLES,
    "paired_test": {"differences": X - Y},
    "precision_recall_density_coverage": TWO_SAMPLES,
    "quantile_upper": {"values": X, "quantile": 0.5},
    "sequential_pairs": {"a": RATES, "b": RATES[::-1]},
    "sequential_rates": {"successes_a": HITS, "successes_b": ~HITS},
    "sequential_scores": {"a": RATES, "b": RATES[::-1]},
    "wasserstein": TWO_SAMPLES,
    "weighted_rate": {"events": HITS, "log_weights": X},
    "welch_test": {"first": X, "second": Y},
    "wilson": {"successes": 3, "trials": 9},
}


def _functions():
    for module in pkgutil.walk_packages(twinloop.stats.__path__, "twinloop.stats."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if name in ARGUMENTS and getattr(value, "__module__", "") == module.name:
                yield pytest.param(value, ARGUMENTS[name], id=name)


@pytest.mark.parametrize(("function", "arguments"), [*_functions()])
def test_a_level_is_a_chance_between_nothing_and_certainty(function, arguments):
    assert "level" in inspect.signature(function).parameters
    for level in (0.0, 1.0, -0.5, 1.5, math.nan):
        with pytest.raises(InputError, match="level"):
            function(**arguments, level=level)


def test_all_of_them_are_there():
    assert {case.id for case in _functions()} == set(ARGUMENTS)
