"""Check robot logs for defects before identification. Each defect is a finding with evidence and a remedy."""

from twinloop.dataset.logs.checks.check import check_log
from twinloop.dataset.logs.checks.finding import JointExpectations, LogFinding, LogRecord, LogReport, merge_findings

__all__ = ["JointExpectations", "LogFinding", "LogRecord", "LogReport", "check_log", "merge_findings"]
