"""``twinloop coverage --real … --sim …``: how much of reality simulation covers, and what it leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from twinloop.loop.coverage_measured import CoverageOptions, headlines, measure
from twinloop.loop.coverage_words import figures_of, text_lines
from twinloop.loop.measured_run import MeasuredRun, Outcome
from twinloop.loop.pages_coverage import coverage_sections


def run_coverage_of_reality(
    options: CoverageOptions, *, output: Path | None, fail_if: Sequence[str], console: Console
) -> Outcome:
    """Measure, print, and store.

    Args:
        options: what is compared.
        output: folder for result.json and report.html.
        fail_if: conditions on the figures.
        console: where figures are printed.

    Raises:
        TwinloopError: the sides cannot be read or compared; says why.
    """
    run = MeasuredRun.begin("coverage", "reality", output, fail_if, console)
    measured = measure(options)
    for line in text_lines(measured):
        console.print(line, soft_wrap=True)
    return run.end(
        figures_of(measured),
        headlines(measured),
        title="Coverage of reality by simulation",
        subtitle=f"{measured.real.label} and {measured.sim.label}",
        fill=lambda page: coverage_sections(page, measured),
    )
