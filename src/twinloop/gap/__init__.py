"""How far a twin is from the recorded robot, beside what simple guesses reach, with intervals."""

from twinloop.gap.baselines import Baseline
from twinloop.gap.errors import WindowErrors, stream_windows, window_errors
from twinloop.gap.measure import measure_gap
from twinloop.gap.report import GapReport

__all__ = ["Baseline", "GapReport", "WindowErrors", "measure_gap", "stream_windows", "window_errors"]
