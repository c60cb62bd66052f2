"""Whether a twin holds up, before anything is made with it."""

from twinloop.checks.report import Check, CheckReport
from twinloop.checks.run import CHECKS, run_checks

__all__ = ["CHECKS", "Check", "CheckReport", "run_checks"]
