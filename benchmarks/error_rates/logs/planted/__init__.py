"""Plant known defects into good logs, to measure detection rate and false alarms of the log checks."""

from benchmarks.error_rates.logs.planted import clocks, joints, signals, times
from benchmarks.error_rates.logs.planted.defect import DEFECTS, Defect, Planted, raw

__all__ = ["DEFECTS", "Defect", "Planted", "clocks", "joints", "raw", "signals", "times"]
