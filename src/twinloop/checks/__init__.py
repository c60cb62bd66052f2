"""Check the physics of a twin before it is used: grasp, delays, stability, energy and numerical convergence."""

from twinloop.checks.report import CheckOutcome, CheckReport
from twinloop.checks.run import CHECKS, run_checks

__all__ = ["CHECKS", "CheckOutcome", "CheckReport", "run_checks"]
