"""Measure the sim-to-real gap: the error of a twin's replay against recorded episodes, with baselines and intervals."""

from twinloop.gap.dynamics.baselines import BaselinePrediction
from twinloop.gap.dynamics.errors import WindowErrors, stream_windows, window_errors
from twinloop.gap.dynamics.measure import measure_gap
from twinloop.gap.dynamics.report import GapReport

__all__ = ["BaselinePrediction", "GapReport", "WindowErrors", "measure_gap", "stream_windows", "window_errors"]
