"""Write the report on training by reinforcement: the reward's terms, success over the iterations, and the ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from twinloop.report import KeyMetric, ReportPage
from twinloop.report.coverage import plot_range_history
from twinloop.report.curves import plot_learning_curves


def format_interval(ends: Sequence[float]) -> str:
    """Return the two ends of an interval as text."""
    return f"[{ends[0]:.4g}, {ends[1]:.4g}]"


def report_rows(report: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and the rows of a reward report as text, with one row per policy."""
    terms = list(report["rows"][0]["terms"])
    rows = [
        [
            row["actor"],
            f"{row['success']['estimate']:.0%}",
            *(_format_estimate(one) for one in (row["return"], *row["terms"].values())),
        ]
        for row in report["rows"]
    ]
    return ["policy", "success", "return", *terms], rows


def _format_estimate(one: Mapping[str, float]) -> str:
    estimate, low, high = (round(one[name], 3) + 0.0 for name in ("estimate", "low", "high"))  # no minus before 0
    return f"{estimate:.3f} [{low:.3f}, {high:.3f}]"


def reinforce_page(result: Mapping[str, Any]) -> ReportPage:
    """Return an empty report page with the title of a run: task, hash and software versions."""
    versions = result["versions"]
    subtitle = (
        f"{result['task']} on {result['twin']}, {result['parameters']:,} parameters, policy hash "
        f"{result['hash'][:16]}; seed {result['seed']}; twinloop {versions['twinloop']}, torch {versions['torch']}"
    )
    return ReportPage("Training by reinforcement", subtitle)


def reinforce_section(page: ReportPage, result: Mapping[str, Any]) -> None:
    """Add all sections on a run to a report.

    Args:
        page: the report page.
        result: content of the run's ``result.json``.
    """
    rows = result["iterations"]
    page.key_metrics(
        [
            KeyMetric(label="success while learning, last iteration", value=rows[-1]["successes"] / rows[-1]["worlds"]),
            KeyMetric(label="return, last iteration", value=rows[-1]["return"]),
            KeyMetric(label="steps", value=result["steps"]),
        ]
    )
    columns, lines = report_rows(result["reward_report"])
    page.section("Reward", "Weighted sum of each term over an episode, before training, with 95 % intervals.")
    page.table(columns, lines)
    for warning in result["reward_report"]["warnings"]:
        page.text(f"{warning[0].upper()}{warning[1:]}.")
    page.section("Learning", "While it learns, the policy adds random changes to its commands.")
    shares = {"success": [row["successes"] / row["worlds"] for row in rows]}
    page.plot(plot_learning_curves(shares, title="success"), "Share of the worlds with success, by iteration.")
    terms = {"return": [row["return"] for row in rows]}
    terms |= {name: [row["terms"][name] for row in rows] for name in rows[0]["terms"]}
    page.plot(plot_learning_curves(terms, title="reward per episode"), "Mean return, and weighted sum of each term.")
    if result["ranges"] is not None:
        page.section("Curriculum", "Adaptive ranges by episode; a mark is a decision at an end of a range.")
        page.plot(plot_range_history(result["ranges"]))
