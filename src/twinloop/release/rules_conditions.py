"""Rules of the gate without success rates: context of the training, safety limits, stored failures, latency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri

from twinloop.core.contract import Contract
from twinloop.core.decision import RuleVerdict
from twinloop.core.distribution import ParamDistribution
from twinloop.core.documents import read_json
from twinloop.randomize import read_identified
from twinloop.release.evidence import EvidenceTrial, GateEvidence, select_trials
from twinloop.release.gate_config import ContextRule, GateConfig, InvariantRule, LatencyRule, RegressionRule
from twinloop.release.version import TrainingRecord
from twinloop.rollout.observing import offered_contract
from twinloop.stats import clopper_pearson, least_values, quantile_upper
from twinloop.tasks import open_task
from twinloop.twin import load_twin

_SHOWN = 3


def context_rule(rule: ContextRule, contract: Any, trained: TrainingRecord | None) -> RuleVerdict:
    """Check that the contract fits, and that the training data cover the environment.

    Args:
        rule: the rule.
        contract: the candidate's contract from its ``config.json``.
        trained: its training data; None if no workspace has them.
    """
    asked = "the contract fits, and the environment is within the ranges of the training data"
    verdict = partial(RuleVerdict, rule="context", asked=asked)
    twin = None if rule.twin is None else load_twin(rule.twin)
    if contract is None:
        return verdict(verdict="missing", reason="the candidate has no contract in its config.json")
    unlike = _find_contract_differences(rule, contract)
    figures: dict[str, Any] = {"contract": unlike, "twin_hash": None if twin is None else twin.hash}
    if unlike:
        return verdict(verdict="no", reason=f"the contract does not fit: {'; '.join(unlike)}", evidence=figures)
    if trained is None or not trained.episodes:
        reason = "the workspace has no record of its simulated training episodes; train it on a dataset version"
        return verdict(verdict="missing", reason=reason, evidence=figures)
    if rule.distribution is not None:
        return _check_coverage(rule, rule.distribution, verdict, trained, figures)
    assert twin is not None  # noqa: S101 - the configuration requires a twin if there is no distribution
    if twin.hash in trained.twins:
        reason = f"{trained.episodes} episodes of training come from exactly the twin {twin.name}"
        return verdict(verdict="yes", reason=reason, evidence=figures)
    others = ", ".join(digest[:12] for digest in trained.twins) or "unnamed twins"
    reason = (
        f"no episode of training comes from the twin {twin.name} ({twin.hash[:12]}); they come from {others}. Give "
        "the distribution that was identified there, or train on this twin"
    )
    return verdict(verdict="no", reason=reason, evidence=figures)


def compute_intervals(found: ParamDistribution, level: float) -> dict[str, tuple[float, float]]:
    """Return the interval of each determined parameter at a level, in SI, within its bounds, scaled by ``kappa``."""
    z = float(ndtri((1 + level) / 2)) * math.sqrt(found.kappa)
    made: dict[str, tuple[float, float]] = {}
    sd = np.sqrt(np.diag(found.covariance))
    for i, name in enumerate(found.names):
        if found.determined[i]:
            ends = found.mean[i] + z * sd[i] * np.array([-1.0, 1.0])
            ends = np.exp(ends) if found.transforms[i] == "log" else ends
            low, high = np.clip(ends, found.low[i], found.high[i])
            made[name] = (float(low), float(high))
    return made


def _check_coverage(
    rule: ContextRule, folder: Path, verdict: partial[RuleVerdict], trained: TrainingRecord, figures: dict[str, Any]
) -> RuleVerdict:
    """Check that every interval of the identify run in a folder is within the range of the training data."""
    found = ParamDistribution.from_json(read_identified(folder)["distribution"])
    rows = [
        _compare_ranges(name, ends, trained.ranges.get(name))
        for name, ends in compute_intervals(found, rule.level).items()
        if any(fnmatchcase(name, pattern) for pattern in rule.parameters)
    ]
    outside = [row for row in rows if not row["inside"]]
    figures |= {"parameters": rows, "undetermined": list(found.unidentified_parameters), "episodes": trained.episodes}
    if not rows:
        reason = "the identified distribution determines none of the selected parameters"
        return verdict(verdict="missing", reason=reason, evidence=figures)
    if outside:
        reason = f"{len(outside)} of {len(rows)} identified parameters are outside: {_format_uncovered(outside)}"
        return verdict(verdict="no", reason=reason, evidence=figures)
    left = len(found.unidentified_parameters)
    said = f" ({left} more are not determined by the log)" if left else ""
    reason = f"{len(rows)} identified parameters are within the ranges of {trained.episodes} episodes{said}"
    return verdict(verdict="yes", reason=reason, evidence=figures)


def _compare_ranges(name: str, ends: tuple[float, float], drawn: tuple[float, float] | None) -> dict[str, Any]:
    inside = drawn is not None and drawn[0] <= ends[0] and ends[1] <= drawn[1]
    return {"name": name, "identified": list(ends), "drawn": None if drawn is None else list(drawn), "inside": inside}


def _format_uncovered(rows: Sequence[dict[str, Any]]) -> str:
    said = [
        f"{row['name']} {_format_range(row['identified'])}, drawn "
        f"{_format_range(row['drawn']) if row['drawn'] else 'never'}"
        for row in rows[:_SHOWN]
    ]
    return "; ".join(said) + ("; …" if len(rows) > _SHOWN else "")


def _format_range(ends: Sequence[float]) -> str:
    return f"[{ends[0]:.4g}, {ends[1]:.4g}]"


def _find_contract_differences(rule: ContextRule, contract: Any) -> list[str]:
    """Return the differences of the contracts that prevent the candidate from running in this environment."""
    if rule.contract is not None:
        offered = Contract.from_json(read_json(rule.contract))
    else:
        twin = load_twin(rule.twin or "")
        offered = offered_contract(twin, open_task(rule.task, twin), cameras=rule.cameras)
    return Contract.from_json(contract).find_differences(offered)


def invariant_rule(rule: InvariantRule, config: GateConfig, evidence: GateEvidence) -> RuleVerdict:
    """Check that no trial has a violation, few worlds are invalid, and required trials succeed."""
    trials, must = evidence.candidate, rule.must_succeed
    asked = "no safety limit broken in any trial"
    verdict = partial(
        RuleVerdict,
        rule="invariants",
        asked=asked + (f", success in every trial of {', '.join(must)}" if must else ""),
    )
    unknown = [trial for trial in trials if trial.violations is None]
    missing = [name for name in must if not any(name in (t.key[2], t.slice) for t in trials)]
    broken = [trial for trial in trials if trial.violations]
    lost = [trial for trial in trials if not trial.valid]
    failed = [t for t in trials if not t.won and (t.key[2] in must or t.slice in must)]
    found = [
        *([f"{len(broken)} of {len(trials)} trials broke a limit ({_format_trials(broken)})"] if broken else []),
        *([f"{len(failed)} trials that must succeed failed ({_format_trials(failed)})"] if failed else []),
        *(
            [f"{len(lost)} worlds were invalid ({_format_trials(lost)})"]
            if len(lost) > rule.invalid * len(trials)
            else []
        ),
    ]
    lacking = [
        *(["there are no trials"] if not trials else []),
        *([f"{len(unknown)} trials have no record of broken limits ({_format_trials(unknown)})"] if unknown else []),
        *([f"no trial of {', '.join(missing)}"] if missing else []),
    ]
    figures = {"trials": len(trials), "broken": len(broken), "lost": len(lost), "failed": len(failed)}
    if found or lacking:
        return verdict(verdict="no" if found else "missing", reason="; ".join(found + lacking), evidence=figures)
    high = float(clopper_pearson(0, len(trials), level=1 - 2 * config.alpha).high)
    reason = f"none in {len(trials)} trials, which shows a rate below {high:.2%} ({1 - config.alpha:.0%})"
    return verdict(verdict="yes", reason=reason, evidence={**figures, "rate_below": high})


def regression_rule(
    rule: RegressionRule, evidence: GateEvidence, stored: Sequence[str] | None, *, first: bool
) -> RuleVerdict:
    """Check that the candidate handles every stored scenario that the champion handles.

    Args:
        rule: the rule.
        evidence: trials of both policies.
        stored: names of the stored scenarios; None if unknown.
        first: whether there is no champion; then no handled scenario can be lost, but all must be tried.
    """
    asked = f"no stored failure that the champion handles (in {rule.handled:.0%} of trials) and the candidate does not"
    verdict = partial(RuleVerdict, rule="regressions", asked=asked)
    sides = (select_trials(side, rule.suites, None, ()) for side in (evidence.candidate, evidence.champion))
    mine, theirs = (_find_handled(side, rule.handled) for side in sides)
    if stored is None and not mine:
        reason = f"there are no trials of {', '.join(rule.suites)}, and no workspace with the stored failures"
        return verdict(verdict="missing", reason=reason)
    untried = [name for name in stored or () if name not in mine or (not first and name not in theirs)]
    untried += [name for name in theirs if name not in mine and name not in untried]
    lost = [name for name, ok in mine.items() if not ok and theirs.get(name, False)]
    figures: dict[str, Any] = {"scenarios": len(mine), "handled": sum(mine.values()), "lost": lost, "untried": untried}
    if lost:
        reason = f"{len(lost)} of {len(mine)} stored failures occur again: {_join_first_names(lost)}"
        return verdict(verdict="no", reason=reason, evidence=figures)
    if untried:
        reason = f"{len(untried)} stored failures were not tried by both: {_join_first_names(untried)}"
        return verdict(verdict="missing", reason=reason, evidence=figures)
    new = sum(ok and not theirs.get(name, False) for name, ok in mine.items())
    reason = f"{sum(mine.values())} of {len(mine)} handled, {new} of them new" if mine else "no failure is stored"
    return verdict(verdict="yes", reason=reason, evidence=figures)


def latency_rule(rule: LatencyRule, config: GateConfig, evidence: GateEvidence) -> RuleVerdict:
    """Check that the upper confidence limit of the latency quantile is within the budget."""
    verdict = partial(
        RuleVerdict,
        rule="latency",
        asked=f"the {rule.quantile:g} quantile of latency is at most {1e3 * rule.budget_s:g} ms",
    )
    known = [trial.latency_s for trial in evidence.candidate if trial.latency_s is not None]
    unknown = len(evidence.candidate) - len(known)
    if not known or unknown:
        reason = f"{unknown} of {len(evidence.candidate)} trials have no latency of commands"
        return verdict(verdict="missing", reason=reason, evidence={"unknown": unknown})
    high = quantile_upper(known, rule.quantile, level=1 - config.alpha)
    figures = {"trials": len(known), "largest_s": max(known), "high_s": high}
    if high is None:
        needed = least_values(rule.quantile, level=1 - config.alpha)
        reason = f"{len(known)} trials are too few to bound this quantile; {needed} are needed"
        return verdict(verdict="missing", reason=reason, evidence=figures)
    reason = (
        f"at most {1e3 * high:.3g} ms ({1 - config.alpha:.0%}), the slowest of {len(known)} trials "
        f"{1e3 * max(known):.3g} ms"
    )
    return verdict(verdict="yes" if high <= rule.budget_s else "no", reason=reason, evidence=figures)


def _find_handled(trials: Sequence[EvidenceTrial], share: float) -> dict[str, bool]:
    """Return whether each scenario, one per slice, is handled."""
    outcomes: dict[str, list[bool]] = {}
    for trial in trials:
        outcomes.setdefault(trial.key[2], []).append(trial.won)
    return {name: sum(won) >= share * len(won) for name, won in outcomes.items()}


def _format_trials(trials: Sequence[EvidenceTrial]) -> str:
    return _join_first_names(
        [f"{trial.slice}/{trial.key[3]}" + (f": {trial.reason}" if trial.reason else "") for trial in trials]
    )


def _join_first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
