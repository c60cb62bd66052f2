"""Every interval, test and resampling; knows nothing of robots."""

from twinloop.stats.allan import AllanCurve, AllanNoise, allan_curve, allan_noise
from twinloop.stats.bootstrap import bootstrap, bootstrap_mean, bootstrap_paired
from twinloop.stats.change import Change, Trend, level_change, linear_trend, slope_change
from twinloop.stats.cluster import cluster_covariance, least_squares_covariance, t_halfwidth
from twinloop.stats.interval import Interval
from twinloop.stats.lag import best_lag, correlation_at_lags, cross_lag, delayed
from twinloop.stats.metrics import mae, rmse, skill
from twinloop.stats.proportion import clopper_pearson, wilson
from twinloop.stats.series import LjungBox, autocorrelation, effective_size, ljung_box

__all__ = [
    "AllanCurve",
    "AllanNoise",
    "Change",
    "Interval",
    "LjungBox",
    "Trend",
    "allan_curve",
    "allan_noise",
    "autocorrelation",
    "best_lag",
    "bootstrap",
    "bootstrap_mean",
    "bootstrap_paired",
    "clopper_pearson",
    "cluster_covariance",
    "correlation_at_lags",
    "cross_lag",
    "delayed",
    "effective_size",
    "least_squares_covariance",
    "level_change",
    "linear_trend",
    "ljung_box",
    "mae",
    "rmse",
    "skill",
    "slope_change",
    "t_halfwidth",
    "wilson",
]
