"""The section of a report that names failure classes."""

from __future__ import annotations

import numpy as np

from twinloop.gap.classes_result import ALPHA, MEANINGS, Check, Diagnosis
from twinloop.report import Report


def classes_section(page: Report, found: Diagnosis) -> None:
    """What fires with its evidence and remedy, every check, and what was not looked at."""
    page.section(
        "Failure classes",
        f"{len(found.classes)} classes fire on {len(found.checks)} checks. A check fires only on evidence that is "
        f"significant at {ALPHA:.0%} after Holm's correction over all of them together.",
    )
    if found.fired:
        page.table(
            ["class", "of", "evidence", "what to do"],
            [[MEANINGS[c.kind], c.subject, c.evidence, "; ".join(c.remedy)] for c in found.fired],
        )
    if found.checks:
        page.table(
            ["class", "of", "fires", "p (Holm)", "evidence", "what it lacks"],
            [
                [MEANINGS[c.kind], c.subject, "yes" if c.fired else "no", _p(c), c.evidence, c.needed or "–"]
                for c in found.checks
            ],
            caption="Every check that the data allowed.",
        )
    for kind, why in found.skipped.items():
        page.text(f"Not looked at, {MEANINGS[kind]}: {why}.")


def _p(check: Check) -> str:
    return "–" if np.isnan(check.p_value) else f"{check.p_value:.2g}"
