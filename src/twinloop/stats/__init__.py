"""Every interval, test and resampling; knows nothing of robots."""

from twinloop.stats.allan import AllanCurve, AllanNoise, allan_curve, allan_noise
from twinloop.stats.bootstrap import bootstrap, bootstrap_mean, bootstrap_paired
from twinloop.stats.change import Change, Trend, level_change, linear_trend, slope_change
from twinloop.stats.cluster import cluster_covariance, least_squares_covariance, t_halfwidth
from twinloop.stats.conformal import conformal_band, conformal_threshold, coverage, least_clips
from twinloop.stats.interval import Interval
from twinloop.stats.lag import best_lag, correlation_at_lags, cross_lag, delayed
from twinloop.stats.metrics import mae, rmse, skill
from twinloop.stats.multiplicity import benjamini_hochberg, holm
from twinloop.stats.paired import PairedTest, paired_test
from twinloop.stats.proportion import clopper_pearson, wilson
from twinloop.stats.series import LjungBox, autocorrelation, effective_size, ljung_box

__all__ = [
    "AllanCurve",
    "AllanNoise",
    "Change",
    "Interval",
    "LjungBox",
    "PairedTest",
    "Trend",
    "allan_curve",
    "allan_noise",
    "autocorrelation",
    "benjamini_hochberg",
    "best_lag",
    "bootstrap",
    "bootstrap_mean",
    "bootstrap_paired",
    "clopper_pearson",
    "cluster_covariance",
    "conformal_band",
    "conformal_threshold",
    "correlation_at_lags",
    "coverage",
    "cross_lag",
    "delayed",
    "effective_size",
    "holm",
    "least_clips",
    "least_squares_covariance",
    "level_change",
    "linear_trend",
    "ljung_box",
    "mae",
    "paired_test",
    "rmse",
    "skill",
    "slope_change",
    "t_halfwidth",
    "wilson",
]
