"""The page of a claim: how many real trials it needs, what was seen, and what simulation contributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from twinloop.report import KeyFigure, Report


def evidence_section(page: Report, figures: Mapping[str, Any], simulation: Sequence[str]) -> None:
    """Key figures, the table of demonstrations, and a sentence for each assumption about simulation."""
    claim, rows, seen = figures["claim"], figures["demonstrations"], figures["seen"]
    shown = [
        KeyFigure(
            label="real trials without a failure", value=f"{rows[0]['trials']:,}", source="fixed beforehand, exact"
        )
    ]
    if seen:
        source = f"{seen['failures']} failures in {seen['trials']:,} trials, {claim['confidence']:.0%}"
        shown.append(KeyFigure(label="failure rate shown so far", value=f"{seen['rate_shown']:.3g}", source=source))
        more = f"{seen['more_without_failure']:,}"
        shown.append(KeyFigure(label="more without a failure", value=more, source="which would carry the claim"))
    page.figures(shown)
    page.section("Real trials", "Independent, drawn as the robot will meet them, and judged without knowing the claim.")
    better = [key.removeprefix("rate/") for key in rows[0]["chance_to_pass"]]
    names = [
        "failures allowed",
        "trials",
        "if one looks after each",
        *(f"passes if truly {k} × better" for k in better),
    ]
    page.table(
        names,
        [
            [
                row["failures"],
                row["trials"],
                row["watched_trials"],
                *(f"{c:.0%}" for c in row["chance_to_pass"].values()),
            ]
            for row in rows
        ],
    )
    page.section("What simulation contributes", "\n\n".join(simulation))
