"""How many real trials a claim needs, and what simulation can and cannot contribute to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from twinloop.core.documents import read_json
from twinloop.core.errors import InputError
from twinloop.core.headline import HeadlineMetric
from twinloop.report import KeyMetric, ReportPage
from twinloop.stats.proportion import chance_to_show, rate_shown, trials_to_claim, watched_claim
from twinloop.workflows.evaluate.requests import EvidenceRequest
from twinloop.workflows.run.results import MeasuredRun


def evidence_section(page: ReportPage, figures: Mapping[str, Any], simulation: Sequence[str]) -> None:
    """Key figures, the table of demonstrations, and a sentence for each assumption about simulation."""
    claim, rows, seen = figures["claim"], figures["demonstrations"], figures["seen"]
    shown = [
        KeyMetric(
            label="real trials without a failure", value=f"{rows[0]['trials']:,}", source="fixed beforehand, exact"
        )
    ]
    if seen:
        source = f"{seen['failures']} failures in {seen['trials']:,} trials, {claim['confidence']:.0%}"
        shown.append(KeyMetric(label="failure rate shown so far", value=f"{seen['rate_shown']:.3g}", source=source))
        more = f"{seen['more_without_failure']:,}"
        shown.append(KeyMetric(label="more without a failure", value=more, source="which would carry the claim"))
    page.figures(shown)
    page.section("Real trials", "Independent, drawn as the robot will meet them, and judged without knowing the claim.")
    page.table(
        ["failures allowed", "trials", *_headings(rows[0])],
        [[row["failures"], row["trials"], row["watched_trials"], *_chances(row)] for row in rows],
    )
    page.section("What simulation contributes", "\n\n".join(simulation))


_BETTER = (2, 5, 10)  # times better than the claim a policy may truly be


def run_evidence(request: EvidenceRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Print and store what a claim needs.

    Raises:
        InputError: a share that is none, or a search that cannot carry a claim.
    """
    _check(request)
    claim, run = request, MeasuredRun.begin("evidence", "claim", request.output, request.fail_if, console)
    figures: dict[str, Any] = {
        "schema": 1,
        "claim": {"failure_rate": claim.failure_rate, "confidence": claim.confidence},
        "demonstrations": _demonstrations(claim),
        "seen": _seen(claim),
        "simulation": _simulation(claim),
    }
    _say(claim, figures, console)
    return run.end(
        figures,
        _headline(figures),
        title=f"A failure rate of at most {claim.failure_rate:g}",
        subtitle=f"claimed with {claim.confidence:.0%} confidence",
        fill=lambda page: evidence_section(page, figures, simulation_lines(figures["simulation"], claim.failure_rate)),
    )


def _headline(figures: Mapping[str, Any]) -> list[HeadlineMetric]:
    """What conditions may ask: trials without a failure, and what was seen or bounded, where it was."""
    first = figures["demonstrations"][0]
    told: dict[str, tuple[float, str, str]] = {
        "trials": (first["trials"], "trials", "real trials without a failure that the claim needs"),
        "watched_trials": (first["watched_trials"], "trials", "the same where one looks after each"),
    }
    if seen := figures["seen"]:
        told["rate_shown"] = (seen["rate_shown"], "", "failure rate that the trials so far show, at most")
        more = "trials without a failure that are still missing"
        told["more_without_failure"] = (seen["more_without_failure"], "trials", more)
    if "bound" in (gap := figures["simulation"].get("gap", {})):
        told["bound"] = (gap["bound"], "", "simulated rate at most, and the assumed gap")
    return [
        HeadlineMetric(name=name, estimate=float(value), unit=unit, method="exact", meaning=meaning)
        for name, (value, unit, meaning) in told.items()
    ]


def _check(claim: EvidenceRequest) -> None:
    for name in ("gap", "correlation", "region"):
        value = getattr(claim, name)
        if value is not None and not 0.0 <= value <= 1.0:
            raise InputError(f"--{name} {value:g} is no share; give one from 0 to 1.")
    if claim.region == 0.0:
        raise InputError("--region 0 leaves nothing to try; give the probability of the region, such as 0.05.")
    if claim.seen_failures and not claim.seen_trials:
        raise InputError(
            f"--seen-failures {claim.seen_failures} of how many trials? Give --seen-trials: all that were made, those "
            "that failed too."
        )


def _demonstrations(claim: EvidenceRequest) -> list[dict[str, Any]]:
    """By failures allowed: trials fixed beforehand, trials when one looks after each, and the chance to pass."""
    rate, confidence = claim.failure_rate, claim.confidence
    watched = watched_claim(rate, confidence=confidence, failures=claim.failures)
    rows: list[dict[str, Any]] = []
    for allowed in range(claim.failures + 1):
        trials = trials_to_claim(rate, confidence=confidence, failures=allowed)
        chances = chance_to_show([rate / times for times in _BETTER], trials, allowed)
        rows.append(
            {
                "failures": allowed,
                "trials": trials,
                "watched_trials": int(watched[allowed]),
                "chance_to_pass": {f"rate/{k}": float(c) for k, c in zip(_BETTER, chances, strict=True)},
            }
        )
    return rows


def _seen(claim: EvidenceRequest) -> dict[str, Any] | None:
    """What trials that were made show, and how many more without a failure the claim still needs."""
    if not claim.seen_trials:
        return None
    shown = rate_shown(claim.seen_failures, claim.seen_trials, confidence=claim.confidence)
    needed = trials_to_claim(claim.failure_rate, confidence=claim.confidence, failures=claim.seen_failures)
    return {
        "trials": claim.seen_trials,
        "failures": claim.seen_failures,
        "rate_shown": shown,
        "more_without_failure": max(0, needed - claim.seen_trials),
    }


def _simulation(claim: EvidenceRequest) -> dict[str, Any]:
    """What simulation adds under each assumption that was given; nothing without one."""
    found: dict[str, Any] = {"without_assumption": 0}
    if claim.gap is not None:
        left = claim.failure_rate - claim.gap
        trials = trials_to_claim(left, confidence=claim.confidence) if left > 0 else None
        found["gap"] = {"assumed": claim.gap, "rate_left": left, "simulated_trials": trials}
        if claim.sim is not None:
            rate = _searched(claim.sim, claim.confidence)
            found["gap"] |= {"simulated": rate, "bound": min(1.0, rate["high"] + claim.gap)}
    elif claim.sim is not None:
        found["searched"] = _searched(claim.sim, claim.confidence)
    if claim.correlation is not None:
        fewer = trials_to_claim(claim.failure_rate, confidence=claim.confidence) * (1.0 - claim.correlation**2)
        found["paired"] = {"correlation": claim.correlation, "trials_at_best": round(fewer)}
    if claim.region is not None:
        inside = claim.failure_rate / claim.region
        trials = trials_to_claim(inside, confidence=claim.confidence) if inside < 1.0 else 0
        found["region"] = {"probability": claim.region, "rate_inside": min(1.0, inside), "real_trials": trials}
    return found


def _searched(path: Path, confidence: float) -> dict[str, Any]:
    """The failure rate of a `twinloop scenario search`.

    Raises:
        InputError: the file holds none, or one that is not to be trusted.
    """
    file = path / "result.json" if path.is_dir() else path
    if not file.is_file() or "rate" not in (value := read_json(file)) or value.get("kind") != "search":
        raise InputError(f"{path} holds no result of `twinloop scenario search`. Give its --output folder.")
    rate = value["rate"]
    if rate["warning"]:
        raise InputError(f"The search in {path} cannot carry a claim: {rate['warning']}")
    if rate["level"] < 2 * confidence - 1:
        raise InputError(
            f"The search in {path} has an interval of {rate['level']:.0%}, whose upper end holds with less than "
            f"{confidence:.0%}. Search again with --level {2 * confidence - 1:g} or more."
        )
    return {key: rate[key] for key in ("rate", "low", "high", "level", "draws")}


def _say(claim: EvidenceRequest, figures: dict[str, Any], console: Console) -> None:
    rate = claim.failure_rate
    console.print(
        f"To claim a failure rate of at most {rate:g} with {claim.confidence:.0%} confidence:", soft_wrap=True
    )
    table = Table("failures allowed", "real trials", *_headings(figures["demonstrations"][0]))
    for row in figures["demonstrations"]:
        table.add_row(str(row["failures"]), f"{row['trials']:,}", f"{row['watched_trials']:,}", *_chances(row))
    console.print(table)
    console.print(
        "Trials are independent, drawn as the robot will meet them, and judged without knowing the claim.",
        soft_wrap=True,
    )
    if seen := figures["seen"]:
        console.print(
            f"{seen['failures']} failures in {seen['trials']:,} trials show at most {seen['rate_shown']:.3g}; "
            f"{seen['more_without_failure']:,} more without a failure would do.",
            soft_wrap=True,
        )
    console.print("\nWhat simulation contributes:", style="bold")
    for line in simulation_lines(figures["simulation"], rate):
        console.print(f"- {line}", soft_wrap=True)


def _headings(row: Mapping[str, Any]) -> list[str]:
    better = [f"passes if truly {key.removeprefix('rate/')} × better" for key in row["chance_to_pass"]]
    return ["if one looks after each", *better]


def _chances(row: Mapping[str, Any]) -> list[str]:
    return [f"{chance:.0%}" for chance in row["chance_to_pass"].values()]


def simulation_lines(found: dict[str, Any], rate: float) -> list[str]:
    """What simulation contributes, a sentence for each assumption, and that it contributes nothing without one."""
    lines = [
        (
            "Without an assumption about how far it is from reality: nothing. No number of simulated trials bounds a "
            "real failure rate."
        )
    ]
    if gap := found.get("gap"):
        trials = gap["simulated_trials"]
        lines.append(
            f"If the real rate is at most {gap['assumed']:g} above the simulated one (an assumption: see `twinloop gap "
            "predictivity`), "
            + (
                f"nothing: the assumed gap alone is {gap['assumed']:g} of the {rate:g} to be claimed."
                if trials is None
                else f"{trials:,} simulated trials without a failure carry the claim."
            )
        )
        if "bound" in gap:
            verdict = "carries" if gap["bound"] <= rate else "does not carry"
            lines.append(
                f"The search found {gap['simulated']['rate']:.2g} (at most {gap['simulated']['high']:.2g}); with the "
                f"gap that is {gap['bound']:.2g}, which {verdict} the claim."
            )
    if searched := found.get("searched"):
        lines.append(
            f"The search found a simulated rate of {searched['rate']:.2g} (at most {searched['high']:.2g}). That is a "
            "statement about the twin; --gap says how far it may be from the robot."
        )
    if paired := found.get("paired"):
        lines.append(
            f"If every real trial is simulated alike and the outcomes correlate by {paired['correlation']:g}: at best "
            f"{paired['trials_at_best']:,} real trials, as variance shrinks by 1 − ρ². Intervals that hold for few "
            "trials save far less (docs/evidence/compare_policies.md: 9 % at most)."
        )
    if region := found.get("region"):
        lines.append(
            f"If the robot fails only in a region that trials meet with probability {region['probability']:g} (an "
            f"assumption: `twinloop scenario search` finds such regions in simulation): {region['real_trials']:,} real "
            f"trials drawn inside it, without a failure, show the rate of {region['rate_inside']:.3g} there that the "
            "claim needs."
        )
    return lines
