"""Every interval, test and resampling; knows nothing of robots."""

from twinloop.stats.agreement import cohens_kappa, krippendorff_alpha
from twinloop.stats.allan import AllanCurve, AllanNoise, allan_curve, allan_noise
from twinloop.stats.auc import auc_interval
from twinloop.stats.betting import bounded_mean, log_e_mean
from twinloop.stats.blocks import block_frames, integrated_time, time_blocks
from twinloop.stats.bootstrap import (
    bootstrap,
    bootstrap_mean,
    bootstrap_paired,
    cluster_weights,
    score_bootstrap,
    stretched_percentile,
)
from twinloop.stats.boundaries import Matched, match_moments
from twinloop.stats.change import Change, slope_change
from twinloop.stats.classifier import ClassifierTest, classifier_test
from twinloop.stats.classifier_fit import Discriminant
from twinloop.stats.conformal import conformal_band, conformal_p_values, conformal_threshold, coverage, least_clips
from twinloop.stats.control_variates import ControlVariate, PairedTrials, control_variate, trials_saved
from twinloop.stats.energy_distance import energy_distance
from twinloop.stats.equivalence import Answer, Equivalence, check_margin, equivalent_means, equivalent_rates, verdict
from twinloop.stats.groups import GroupTest, group_test
from twinloop.stats.interval import Interval
from twinloop.stats.kernel_distance import KernelDistance
from twinloop.stats.kid import kid
from twinloop.stats.lag import best_lag, correlation_at_lags, cross_lag, delayed, following_lag, raw_correlation
from twinloop.stats.mean_difference import bootstrap_of_means, bounded_difference, permutation_of_means
from twinloop.stats.metrics import mae, rmse, skill
from twinloop.stats.mmd import mmd
from twinloop.stats.multiplicity import benjamini_hochberg, holm
from twinloop.stats.neighbours import NeighbourFigures, precision_recall_density_coverage
from twinloop.stats.paired import PairedTest, paired_test
from twinloop.stats.power import (
    SequentialPower,
    TrialsNeeded,
    power_of_equivalence,
    power_of_pairs,
    power_of_rates,
    sequential_power,
    trials_for_equivalence,
    trials_for_pairs,
    trials_for_rates,
)
from twinloop.stats.prediction_powered import prediction_powered
from twinloop.stats.prediction_powered_exact import post_stratified
from twinloop.stats.proportion import clopper_pearson, wilson
from twinloop.stats.quantile_bound import least_values, quantile_upper
from twinloop.stats.quantum import on_grid, quantum
from twinloop.stats.ridge import ridge_predictions
from twinloop.stats.sandwich import Sandwich, bias_reduced_sandwich
from twinloop.stats.sequential import Sequential, decision_blocks, log_e_rates, sequential_rates
from twinloop.stats.sequential_pairs import log_e_pairs, sequential_pairs
from twinloop.stats.sequential_scores import log_e_scores, sequential_scores
from twinloop.stats.series import LjungBox, autocorrelation, effective_size, ljung_box, pooled_autocorrelation
from twinloop.stats.shapley import Walks, antithetic_walks, every_coalition, shapley, shapley_of_walks
from twinloop.stats.sobol_indices import SobolIndices, SobolTerms, sobol_indices, sobol_rows, sobol_terms
from twinloop.stats.spectra import Spectrum, octaves, spectrum
from twinloop.stats.two_by_two import Alternative, TwoByTwo, barnard, exact_p_value, fisher
from twinloop.stats.two_by_two_intervals import difference_interval
from twinloop.stats.two_by_two_paired import PairedCounts, mcnemar, paired_difference_interval
from twinloop.stats.two_by_two_paired_exact import MOST_PAIRS, paired_p_value, paired_p_values
from twinloop.stats.two_by_two_strata import mantel_haenszel, stratified_exact
from twinloop.stats.two_sample import least_p_value
from twinloop.stats.warp import warped_correlation
from twinloop.stats.wasserstein import ColumnDistances, wasserstein
from twinloop.stats.welch import WelchTest, welch_test

__all__ = [
    "MOST_PAIRS",
    "AllanCurve",
    "AllanNoise",
    "Alternative",
    "Answer",
    "Change",
    "ClassifierTest",
    "ColumnDistances",
    "ControlVariate",
    "Discriminant",
    "Equivalence",
    "GroupTest",
    "Interval",
    "KernelDistance",
    "LjungBox",
    "Matched",
    "NeighbourFigures",
    "PairedCounts",
    "PairedTest",
    "PairedTrials",
    "Sandwich",
    "Sequential",
    "SequentialPower",
    "SobolIndices",
    "SobolTerms",
    "Spectrum",
    "TrialsNeeded",
    "TwoByTwo",
    "Walks",
    "WelchTest",
    "allan_curve",
    "allan_noise",
    "antithetic_walks",
    "auc_interval",
    "autocorrelation",
    "barnard",
    "benjamini_hochberg",
    "best_lag",
    "bias_reduced_sandwich",
    "block_frames",
    "bootstrap",
    "bootstrap_mean",
    "bootstrap_of_means",
    "bootstrap_paired",
    "bounded_difference",
    "bounded_mean",
    "check_margin",
    "classifier_test",
    "clopper_pearson",
    "cluster_weights",
    "cohens_kappa",
    "conformal_band",
    "conformal_p_values",
    "conformal_threshold",
    "control_variate",
    "correlation_at_lags",
    "coverage",
    "cross_lag",
    "decision_blocks",
    "delayed",
    "difference_interval",
    "effective_size",
    "energy_distance",
    "equivalent_means",
    "equivalent_rates",
    "every_coalition",
    "exact_p_value",
    "fisher",
    "following_lag",
    "group_test",
    "holm",
    "integrated_time",
    "kid",
    "krippendorff_alpha",
    "least_clips",
    "least_p_value",
    "least_values",
    "ljung_box",
    "log_e_mean",
    "log_e_pairs",
    "log_e_rates",
    "log_e_scores",
    "mae",
    "mantel_haenszel",
    "match_moments",
    "mcnemar",
    "mmd",
    "octaves",
    "on_grid",
    "paired_difference_interval",
    "paired_p_value",
    "paired_p_values",
    "paired_test",
    "permutation_of_means",
    "pooled_autocorrelation",
    "post_stratified",
    "power_of_equivalence",
    "power_of_pairs",
    "power_of_rates",
    "precision_recall_density_coverage",
    "prediction_powered",
    "quantile_upper",
    "quantum",
    "raw_correlation",
    "ridge_predictions",
    "rmse",
    "score_bootstrap",
    "sequential_pairs",
    "sequential_power",
    "sequential_rates",
    "sequential_scores",
    "shapley",
    "shapley_of_walks",
    "skill",
    "slope_change",
    "sobol_indices",
    "sobol_rows",
    "sobol_terms",
    "spectrum",
    "stratified_exact",
    "stretched_percentile",
    "time_blocks",
    "trials_for_equivalence",
    "trials_for_pairs",
    "trials_for_rates",
    "trials_saved",
    "verdict",
    "warped_correlation",
    "wasserstein",
    "welch_test",
    "wilson",
]
