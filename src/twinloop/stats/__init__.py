"""Every interval, test and resampling; knows nothing of robots."""

from twinloop.stats.allan import AllanCurve, AllanNoise, allan_curve, allan_noise
from twinloop.stats.blocks import block_frames, integrated_time, time_blocks
from twinloop.stats.bootstrap import (
    bootstrap,
    bootstrap_mean,
    bootstrap_paired,
    cluster_weights,
    score_bootstrap,
    stretched_percentile,
)
from twinloop.stats.change import Change, slope_change
from twinloop.stats.classifier import ClassifierTest, classifier_test
from twinloop.stats.classifier_fit import Discriminant
from twinloop.stats.conformal import conformal_band, conformal_threshold, coverage, least_clips
from twinloop.stats.energy_distance import energy_distance
from twinloop.stats.groups import GroupTest, group_test
from twinloop.stats.interval import Interval
from twinloop.stats.kernel_distance import KernelDistance
from twinloop.stats.kid import kid
from twinloop.stats.lag import best_lag, correlation_at_lags, cross_lag, delayed, following_lag, raw_correlation
from twinloop.stats.metrics import mae, rmse, skill
from twinloop.stats.mmd import mmd
from twinloop.stats.multiplicity import holm
from twinloop.stats.neighbours import NeighbourFigures, precision_recall_density_coverage
from twinloop.stats.paired import PairedTest, paired_test
from twinloop.stats.proportion import clopper_pearson, wilson
from twinloop.stats.quantum import on_grid, quantum
from twinloop.stats.ridge import ridge_predictions
from twinloop.stats.sandwich import Sandwich, bias_reduced_sandwich
from twinloop.stats.series import LjungBox, autocorrelation, effective_size, ljung_box, pooled_autocorrelation
from twinloop.stats.shapley import Walks, antithetic_walks, every_coalition, shapley, shapley_of_walks
from twinloop.stats.sobol_indices import SobolIndices, SobolTerms, sobol_indices, sobol_rows, sobol_terms
from twinloop.stats.spectra import Spectrum, octaves, spectrum
from twinloop.stats.two_sample import least_p_value
from twinloop.stats.warp import warped_correlation
from twinloop.stats.wasserstein import ColumnDistances, wasserstein
from twinloop.stats.welch import WelchTest, welch_test

__all__ = [
    "AllanCurve",
    "AllanNoise",
    "Change",
    "ClassifierTest",
    "ColumnDistances",
    "Discriminant",
    "GroupTest",
    "Interval",
    "KernelDistance",
    "LjungBox",
    "NeighbourFigures",
    "PairedTest",
    "Sandwich",
    "SobolIndices",
    "SobolTerms",
    "Spectrum",
    "Walks",
    "WelchTest",
    "allan_curve",
    "allan_noise",
    "antithetic_walks",
    "autocorrelation",
    "best_lag",
    "bias_reduced_sandwich",
    "block_frames",
    "bootstrap",
    "bootstrap_mean",
    "bootstrap_paired",
    "classifier_test",
    "clopper_pearson",
    "cluster_weights",
    "conformal_band",
    "conformal_threshold",
    "correlation_at_lags",
    "coverage",
    "cross_lag",
    "delayed",
    "effective_size",
    "energy_distance",
    "every_coalition",
    "following_lag",
    "group_test",
    "holm",
    "integrated_time",
    "kid",
    "least_clips",
    "least_p_value",
    "ljung_box",
    "mae",
    "mmd",
    "octaves",
    "on_grid",
    "paired_test",
    "pooled_autocorrelation",
    "precision_recall_density_coverage",
    "quantum",
    "raw_correlation",
    "ridge_predictions",
    "rmse",
    "score_bootstrap",
    "shapley",
    "shapley_of_walks",
    "skill",
    "slope_change",
    "sobol_indices",
    "sobol_rows",
    "sobol_terms",
    "spectrum",
    "stretched_percentile",
    "time_blocks",
    "warped_correlation",
    "wasserstein",
    "welch_test",
    "wilson",
]
