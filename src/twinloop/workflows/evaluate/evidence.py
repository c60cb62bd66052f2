"""Run ``twinloop evidence``: compute how many real trials a claim about the failure rate needs.

Simulated trials reduce this number only under an assumption about the sim-to-real gap, which the user must give.
"""

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
from twinloop.stats.proportion import claim_probability, failure_rate_bound, sequential_claim_trials, trials_to_claim
from twinloop.workflows.evaluate.requests import EvidenceRequest
from twinloop.workflows.run.results import MeasuredRun


def evidence_section(page: ReportPage, result: Mapping[str, Any], simulation: Sequence[str]) -> None:
    """Add to a report the required numbers of real trials, and sentences on the contribution of simulation.

    Args:
        page: the report page.
        result: metrics of the command, as in ``result.json``.
        simulation: sentences on the contribution of simulation to the claim, from `simulation_lines`.
    """
    claim, rows, seen = result["claim"], result["demonstrations"], result["seen"]
    shown = [
        KeyMetric(
            label="real trials without a failure",
            value=f"{rows[0]['trials']:,}",
            source="number fixed beforehand, exact",
        )
    ]
    if seen:
        source = f"{seen['failures']} failures in {seen['trials']:,} trials, {claim['confidence']:.0%}"
        shown.append(KeyMetric(label="failure rate proven so far", value=f"{seen['rate_shown']:.3g}", source=source))
        more = f"{seen['more_without_failure']:,}"
        shown.append(KeyMetric(label="further trials without a failure", value=more, source="needed for the claim"))
    page.key_metrics(shown)
    page.section(
        "Real trials",
        "Trials must be independent, from the conditions of real use, and judged without knowledge of the claim.",
    )
    page.table(
        ["failures allowed", "trials", *_chance_headings(rows[0])],
        [[row["failures"], row["trials"], row["watched_trials"], *_format_chances(row)] for row in rows],
    )
    page.section("What simulation contributes", "\n\n".join(simulation))


_BETTER = (2, 5, 10)  # factors by which the true failure rate may be lower than the claimed one


def run_evidence(request: EvidenceRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Compute, print and store the numbers of real trials that a claim needs.

    Returns:
        The metrics, and exit code 1 if a condition of ``--fail-if`` is true, else 0.

    Raises:
        InputError: If an option is not a probability, or the result of ``--sim`` cannot support a claim.
    """
    _check_claim(request)
    claim, run = request, MeasuredRun.begin("evidence", "claim", request.output, request.fail_if, console)
    result: dict[str, Any] = {
        "schema": 1,
        "claim": {"failure_rate": claim.failure_rate, "confidence": claim.confidence},
        "demonstrations": _compute_trial_numbers(claim),
        "seen": _summarize_seen_trials(claim),
        "simulation": _compute_simulation_contributions(claim),
    }
    _print_claim(claim, result, console)
    return run.end(
        result,
        _headline(result),
        title=f"A failure rate of at most {claim.failure_rate:g}",
        subtitle=f"claimed with {claim.confidence:.0%} confidence",
        fill=lambda page: evidence_section(page, result, simulation_lines(result["simulation"], claim.failure_rate)),
    )


def _headline(result: Mapping[str, Any]) -> list[HeadlineMetric]:
    """Return the metrics that ``--fail-if`` can use: numbers of trials, and bounds of failure rates."""
    first = result["demonstrations"][0]
    told: dict[str, tuple[float, str, str]] = {
        "trials": (first["trials"], "trials", "real trials without a failure that the claim needs"),
        "watched_trials": (first["watched_trials"], "trials", "the same if the test is repeated after each trial"),
    }
    if seen := result["seen"]:
        told["rate_shown"] = (seen["rate_shown"], "", "upper bound of the failure rate from the trials so far")
        more = "trials without a failure that are still needed"
        told["more_without_failure"] = (seen["more_without_failure"], "trials", more)
    if "bound" in (gap := result["simulation"].get("gap", {})):
        told["bound"] = (gap["bound"], "", "upper bound of the simulated rate plus the assumed gap")
    return [
        HeadlineMetric(name=name, estimate=float(value), unit=unit, method="exact", meaning=meaning)
        for name, (value, unit, meaning) in told.items()
    ]


def _check_claim(claim: EvidenceRequest) -> None:
    for name in ("gap", "correlation", "region"):
        value = getattr(claim, name)
        if value is not None and not 0.0 <= value <= 1.0:
            raise InputError(f"--{name} {value:g} is not a probability. Give a number from 0 to 1.")
    if claim.region == 0.0:
        raise InputError("--region 0 is not valid. Give the probability of the region, such as 0.05.")
    if claim.seen_failures and not claim.seen_trials:
        raise InputError(
            f"--seen-failures {claim.seen_failures} needs --seen-trials: the number of all real trials, including "
            "those that failed."
        )


def _compute_trial_numbers(claim: EvidenceRequest) -> list[dict[str, Any]]:
    """Return, for each number of allowed failures, the required number of trials and the probability to pass.

    Each row has the number of trials for one test at the end (``trials``), the number for a test after every trial
    (``watched_trials``), and the probability to pass if the true failure rate is 2, 5 or 10 times lower than claimed.
    """
    rate, confidence = claim.failure_rate, claim.confidence
    watched = sequential_claim_trials(rate, confidence=confidence, failures=claim.failures)
    rows: list[dict[str, Any]] = []
    for allowed in range(claim.failures + 1):
        trials = trials_to_claim(rate, confidence=confidence, failures=allowed)
        chances = claim_probability([rate / times for times in _BETTER], trials, allowed)
        rows.append(
            {
                "failures": allowed,
                "trials": trials,
                "watched_trials": int(watched[allowed]),
                "chance_to_pass": {f"rate/{k}": float(c) for k, c in zip(_BETTER, chances, strict=True)},
            }
        )
    return rows


def _summarize_seen_trials(claim: EvidenceRequest) -> dict[str, Any] | None:
    """Return the failure rate that the trials so far prove, and the number of further trials needed if none fails.

    Returns:
        The metrics, or None if no trials were made.
    """
    if not claim.seen_trials:
        return None
    shown = failure_rate_bound(claim.seen_failures, claim.seen_trials, confidence=claim.confidence)
    needed = trials_to_claim(claim.failure_rate, confidence=claim.confidence, failures=claim.seen_failures)
    return {
        "trials": claim.seen_trials,
        "failures": claim.seen_failures,
        "rate_shown": shown,
        "more_without_failure": max(0, needed - claim.seen_trials),
    }


def _compute_simulation_contributions(claim: EvidenceRequest) -> dict[str, Any]:
    """Return, for each assumption of the user, the required number of trials or the bound on the failure rate.

    The assumptions are a largest gap between the failure rates in simulation and reality, a correlation of their
    outcomes, and a region of the conditions, with known probability, in which all failures of the robot occur.
    """
    found: dict[str, Any] = {"without_assumption": 0}
    if claim.gap is not None:
        left = claim.failure_rate - claim.gap
        trials = trials_to_claim(left, confidence=claim.confidence) if left > 0 else None
        found["gap"] = {"assumed": claim.gap, "rate_left": left, "simulated_trials": trials}
        if claim.sim is not None:
            rate = _read_search_rate(claim.sim, claim.confidence)
            found["gap"] |= {"simulated": rate, "bound": min(1.0, rate["high"] + claim.gap)}
    elif claim.sim is not None:
        found["searched"] = _read_search_rate(claim.sim, claim.confidence)
    if claim.correlation is not None:
        fewer = trials_to_claim(claim.failure_rate, confidence=claim.confidence) * (1.0 - claim.correlation**2)
        found["paired"] = {"correlation": claim.correlation, "trials_at_best": round(fewer)}
    if claim.region is not None:
        inside = claim.failure_rate / claim.region
        trials = trials_to_claim(inside, confidence=claim.confidence) if inside < 1.0 else 0
        found["region"] = {"probability": claim.region, "rate_inside": min(1.0, inside), "real_trials": trials}
    return found


def _read_search_rate(path: Path, confidence: float) -> dict[str, Any]:
    """Read the failure rate and its interval from the result of a `twinloop scenario search`.

    Args:
        path: output folder of the search, or its ``result.json``.
        confidence: confidence level of the claim.

    Returns:
        The failure ``rate``, the bounds ``low`` and ``high`` of its interval, the ``level`` of the interval, and the
        number of ``draws`` (simulated worlds).

    Raises:
        InputError: If the file has no failure rate, the rate has a warning, or the level of its interval is too low.
    """
    file = path / "result.json" if path.is_dir() else path
    if not file.is_file() or "rate" not in (value := read_json(file)) or value.get("kind") != "search":
        raise InputError(f"{path} has no result of `twinloop scenario search`. Give the --output folder of a search.")
    rate = value["rate"]
    if rate["warning"]:
        raise InputError(f"The search in {path} cannot support a claim: {rate['warning']}")
    if rate["level"] < 2 * confidence - 1:
        raise InputError(
            f"The search in {path} has an interval of {rate['level']:.0%}, whose upper end has a confidence below "
            f"{confidence:.0%}. Search again with --level {2 * confidence - 1:g} or more."
        )
    return {key: rate[key] for key in ("rate", "low", "high", "level", "draws")}


def _print_claim(claim: EvidenceRequest, result: dict[str, Any], console: Console) -> None:
    rate = claim.failure_rate
    console.print(
        f"To claim a failure rate of at most {rate:g} with {claim.confidence:.0%} confidence:", soft_wrap=True
    )
    table = Table("failures allowed", "real trials", *_chance_headings(result["demonstrations"][0]))
    for row in result["demonstrations"]:
        table.add_row(str(row["failures"]), f"{row['trials']:,}", f"{row['watched_trials']:,}", *_format_chances(row))
    console.print(table)
    console.print(
        "Trials must be independent, from the conditions of real use, and judged without knowledge of the claim.",
        soft_wrap=True,
    )
    if seen := result["seen"]:
        console.print(
            f"{seen['failures']} failures in {seen['trials']:,} trials prove a failure rate of at most "
            f"{seen['rate_shown']:.3g}; {seen['more_without_failure']:,} more without a failure prove the claim.",
            soft_wrap=True,
        )
    console.print("\nWhat simulation contributes:", style="bold")
    for line in simulation_lines(result["simulation"], rate):
        console.print(f"- {line}", soft_wrap=True)


def _chance_headings(row: Mapping[str, Any]) -> list[str]:
    better = [f"passes if the true rate is {key.removeprefix('rate/')} × lower" for key in row["chance_to_pass"]]
    return ["if tested after each trial", *better]


def _format_chances(row: Mapping[str, Any]) -> list[str]:
    return [f"{chance:.0%}" for chance in row["chance_to_pass"].values()]


def simulation_lines(found: dict[str, Any], rate: float) -> list[str]:
    """Return sentences on how simulation supports a claim: one that needs no assumption, and one for each assumption.

    Args:
        found: contribution of simulation under each assumption: ``gap``, ``searched``, ``paired`` and ``region``, as
            `_compute_simulation_contributions` returns them. Absent ones give no sentence.
        rate: largest failure rate that the claim allows.
    """
    lines = [
        (
            "Without an assumption on the sim-to-real gap: nothing. No number of simulated trials bounds a "
            "real failure rate."
        )
    ]
    if gap := found.get("gap"):
        trials = gap["simulated_trials"]
        lines.append(
            f"If the real rate is at most {gap['assumed']:g} above the simulated one (an assumption: see `twinloop gap "
            "predictivity`), "
            + (
                f"nothing: the assumed gap of {gap['assumed']:g} alone is not below the claimed rate of {rate:g}."
                if trials is None
                else f"{trials:,} simulated trials without a failure prove the claim."
            )
        )
        if "bound" in gap:
            verdict = "supports" if gap["bound"] <= rate else "does not support"
            lines.append(
                f"The search found {gap['simulated']['rate']:.2g} (at most {gap['simulated']['high']:.2g}); with the "
                f"gap that is {gap['bound']:.2g}, which {verdict} the claim."
            )
    if searched := found.get("searched"):
        lines.append(
            f"The search found a simulated rate of {searched['rate']:.2g} (at most {searched['high']:.2g}). That is a "
            "statement about the twin; give its largest difference from the real rate with --gap."
        )
    if paired := found.get("paired"):
        lines.append(
            "If every real trial is also simulated and the outcomes have the correlation "
            f"{paired['correlation']:g}: at best {paired['trials_at_best']:,} real trials, because the variance is "
            "multiplied by 1 − ρ². Intervals that are valid for few trials save far less "
            "(docs/evidence/compare_policies.md: 9 % at most)."
        )
    if region := found.get("region"):
        lines.append(
            f"If the robot fails only in a region in which a trial is with probability {region['probability']:g} (an "
            f"assumption: `twinloop scenario search` finds such regions in simulation): {region['real_trials']:,} real "
            f"trials in it without a failure prove the rate of {region['rate_inside']:.3g} there that the "
            "claim needs."
        )
    return lines
