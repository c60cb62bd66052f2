"""Check a twin before it is used."""

from twinloop.checks.report import CheckOutcome, CheckReport
from twinloop.checks.run import CHECKS, run_checks

__all__ = ["CHECKS", "CheckOutcome", "CheckReport", "run_checks"]
