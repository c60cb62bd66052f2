"""Known defects, planted into good logs: what measures how many the checks find, and how often they err."""

from benchmarks.error_rates.logs.planted import clocks, joints, signals, times
from benchmarks.error_rates.logs.planted.defect import DEFECTS, Defect, Planted, raw

__all__ = ["DEFECTS", "Defect", "Planted", "clocks", "joints", "raw", "signals", "times"]
