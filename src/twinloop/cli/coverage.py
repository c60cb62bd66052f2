"""Define ``twinloop coverage``, which measures the share of real clips or parameter ranges that simulation covers."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.coverage.requests import CoverageRequest

COVERAGE = Command(
    "coverage",
    CoverageRequest,
    "twinloop.workflows.coverage.coverage:run_coverage",
    "measures",
    example="twinloop coverage --output runs/coverage",
    former={"--like": "--nearest", "--most": "--count"},
)
