"""Checks of logs before anything is fitted: pure functions over episodes, each finding with its evidence and remedy."""

from twinloop.dataset.log_checks.check import check_log
from twinloop.dataset.log_checks.expectations import Expectations, LogRecord
from twinloop.dataset.log_checks.finding import Finding, LogReport, merged

__all__ = ["Expectations", "Finding", "LogRecord", "LogReport", "check_log", "merged"]
