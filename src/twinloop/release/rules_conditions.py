"""Check the gate's rules about conditions: coverage of training data, safety limits, stored failures and latency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri

from twinloop.core.assignment import Assignment
from twinloop.core.contract import Contract
from twinloop.core.decision import RuleVerdict
from twinloop.core.distribution import ParamDistribution
from twinloop.core.documents import read_json
from twinloop.core.errors import InputError
from twinloop.randomize import read_identified
from twinloop.release.evidence import EvidenceTrial, GateEvidence, select_trials
from twinloop.release.gate_config import ContextRule, GateConfig, InvariantRule, LatencyRule, RegressionRule
from twinloop.release.version import TrainingRecord, read_config
from twinloop.rollout.observing import offered_contract
from twinloop.stats import clopper_pearson, min_value_count, quantile_upper
from twinloop.tasks import open_task
from twinloop.tasks.registry import TASKS
from twinloop.twin import load_twin

_SHOWN = 3


def context_rule(
    rule: ContextRule, contract: Any, training: TrainingRecord | None, folder: Path | None = None
) -> RuleVerdict:
    """Check that the candidate's contract fits the environment, and that its training data cover the environment.

    Args:
        rule: description of the environment.
        contract: contract from the candidate's ``config.json``; None if it has none.
        training: training data of the candidate; None if no workspace has a record of them.
        folder: folder of the candidate, which keeps the twin and the task of its training; None if unknown.

    Raises:
        InputError: If neither the rule nor the candidate gives the twin or the task.
        NotApprovedError: If the task is the user's own and was not approved on this machine.
    """
    requirement = "the contract fits, and the environment is within the ranges of the training data"
    verdict = partial(RuleVerdict, rule="context", requirement=requirement)
    twin = None if rule.twin is None else load_twin(rule.twin)
    if contract is None:
        return verdict(verdict="missing", reason="the candidate has no contract in its config.json")
    unlike = _find_contract_differences(rule, contract, folder)
    metrics: dict[str, Any] = {"contract": unlike, "twin_hash": None if twin is None else twin.hash}
    if unlike:
        return verdict(verdict="no", reason=f"the contract does not fit: {'; '.join(unlike)}", evidence=metrics)
    if training is None or not training.episodes:
        reason = (
            "the workspace has no record of its simulated training episodes. `twinloop train`, `distill` and "
            "`reinforce` record them only in a workspace: run `twinloop init` in its folder, then train there again "
            "(the same data and seed give the same policy)"
        )
        return verdict(verdict="missing", reason=reason, evidence=metrics)
    if rule.distribution is not None:
        return _check_coverage(rule, rule.distribution, verdict, training, metrics)
    assert twin is not None  # noqa: S101 - the configuration requires a twin if there is no distribution
    if twin.hash in training.twins:
        reason = f"{training.episodes} episodes of training come from exactly the twin {twin.name}"
        return verdict(verdict="yes", reason=reason, evidence=metrics)
    others = ", ".join(digest[:12] for digest in training.twins) or "unnamed twins"
    reason = (
        f"no episode of training comes from the twin {twin.name} ({twin.hash[:12]}); they come from {others}. Give "
        "the distribution that was identified there, or train on this twin"
    )
    return verdict(verdict="no", reason=reason, evidence=metrics)


def compute_intervals(found: ParamDistribution, level: float) -> dict[str, tuple[float, float]]:
    """Return the confidence interval of each identified parameter, in SI units.

    The standard deviations are multiplied by √κ. The factor κ (``kappa``) on the identified covariance was chosen so
    that simulations cover real motion. The intervals are around the values around which worlds are drawn, and limited
    to the bounds of the parameters. Parameters that the log does not determine are left out, and those that it
    determines less well than the twin's ranges do.

    Args:
        found: distribution of the identified parameters.
        level: confidence level, 0 to 1.
    """
    z = float(ndtri((1 + level) / 2)) * math.sqrt(found.kappa)
    made: dict[str, tuple[float, float]] = {}
    sd = np.sqrt(np.diag(found.covariance))
    for i, name in enumerate(found.names):
        if found.drawn[i]:
            ends = found.centre[i] + z * sd[i] * np.array([-1.0, 1.0])
            ends = np.exp(ends) if found.transforms[i] == "log" else ends
            low, high = np.clip(ends, found.low[i], found.high[i])
            made[name] = (float(low), float(high))
    return made


def _check_coverage(
    rule: ContextRule, folder: Path, verdict: partial[RuleVerdict], training: TrainingRecord, metrics: dict[str, Any]
) -> RuleVerdict:
    """Check that the identified interval of every selected parameter is within the range of the training data.

    Args:
        rule: rule with the confidence level and the patterns of the parameters.
        folder: folder of the identify run.
        verdict: constructor of the verdict, in which the rule's name and requirement are already set.
        training: training data of the candidate.
        metrics: metrics of the verdict; extended in place.
    """
    found = ParamDistribution.from_json(read_identified(folder)["distribution"])
    rows = [
        _compare_ranges(name, ends, training.ranges.get(name))
        for name, ends in compute_intervals(found, rule.level).items()
        if any(fnmatchcase(name, pattern) for pattern in rule.parameters)
    ]
    outside = [row for row in rows if not row["inside"]]
    metrics |= {"parameters": rows, "undetermined": list(found.unidentified_parameters), "episodes": training.episodes}
    if not rows:
        reason = "the identified distribution determines none of the selected parameters"
        return verdict(verdict="missing", reason=reason, evidence=metrics)
    if outside:
        reason = f"{len(outside)} of {len(rows)} identified parameters are outside: {_format_uncovered(outside)}"
        return verdict(verdict="no", reason=reason, evidence=metrics)
    left = len(found.unidentified_parameters)
    note = f" ({left} more are not determined by the log)" if left else ""
    reason = f"{len(rows)} identified parameters are within the ranges of {training.episodes} episodes{note}"
    return verdict(verdict="yes", reason=reason, evidence=metrics)


def _compare_ranges(name: str, ends: tuple[float, float], drawn: tuple[float, float] | None) -> dict[str, Any]:
    inside = drawn is not None and drawn[0] <= ends[0] and ends[1] <= drawn[1]
    return {"name": name, "identified": list(ends), "drawn": None if drawn is None else list(drawn), "inside": inside}


def _format_uncovered(rows: Sequence[dict[str, Any]]) -> str:
    sentences = [
        f"{row['name']} is {_format_range(row['identified'])}, but "
        + (f"the training range is {_format_range(row['drawn'])}" if row["drawn"] else "training did not vary it")
        for row in rows[:_SHOWN]
    ]
    return "; ".join(sentences) + ("; …" if len(rows) > _SHOWN else "")


def _format_range(ends: Sequence[float]) -> str:
    return f"[{ends[0]:.4g}, {ends[1]:.4g}]"


def _find_contract_differences(rule: ContextRule, contract: Any, folder: Path | None) -> list[str]:
    """Return the differences between two contracts that prevent the candidate from running in the environment.

    Args:
        rule: description of the environment, from which its contract is computed.
        contract: contract of the candidate, as JSON values.
        folder: folder of the candidate; None if unknown.
    """
    if rule.contract is not None:
        offered = Contract.from_json(read_json(rule.contract))
    else:
        twin_name, task_name = _choose_twin_and_task(rule, str(contract.get("task") or ""), folder)
        twin = load_twin(twin_name)
        offered = offered_contract(twin, open_task(task_name, twin), cameras=rule.cameras)
    return Contract.from_json(contract).find_differences(offered, reduced=True)


def _choose_twin_and_task(rule: ContextRule, named: str, folder: Path | None) -> tuple[str, str]:
    """Return the references of the twin and the task of the environment: from the rule, else from the candidate.

    Args:
        rule: description of the environment.
        named: name of the task in the candidate's contract; may be empty.
        folder: folder of the candidate; None if unknown.

    Raises:
        InputError: If neither gives the twin or the task.
    """
    kept = None
    if folder is not None and (rule.twin is None or rule.task is None):
        card = read_config(folder).get("card") or {}
        kept = card.get("assignment") and Assignment.from_json(card["assignment"], where=str(folder))
    own_twin, own_task = kept.references(folder) if kept and folder else ("", named if named in TASKS else "")
    twin, task = rule.twin or own_twin, rule.task or own_task
    if not twin:
        raise InputError("context: the candidate keeps no twin. Add one in the gate file: `context: {twin: TWIN, …}`.")
    if not task:
        what = (
            f"the task {named}, of which it keeps no file and which is not built in" if named else "no particular task"
        )
        raise InputError(
            f"context: the candidate is for {what}. Add the task to `context` in the gate file: "
            "`context: {twin: TWIN, task: NAME or FILE.py:CLASS}`."
        )
    return twin, task


def invariant_rule(rule: InvariantRule, config: GateConfig, evidence: GateEvidence) -> RuleVerdict:
    """Check that no trial broke a safety limit, that few worlds are invalid, and that the required trials succeed."""
    trials, must = evidence.candidate, rule.must_succeed
    requirement = "no safety limit broken in any trial"
    verdict = partial(
        RuleVerdict,
        rule="invariants",
        requirement=requirement + (f", success in every trial of {', '.join(must)}" if must else ""),
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
    metrics = {"trials": len(trials), "broken": len(broken), "lost": len(lost), "failed": len(failed)}
    if found or lacking:
        return verdict(verdict="no" if found else "missing", reason="; ".join(found + lacking), evidence=metrics)
    high = float(clopper_pearson(0, len(trials), level=1 - 2 * config.alpha).high)
    reason = f"none in {len(trials)} trials, which shows a rate below {high:.2%} ({1 - config.alpha:.0%})"
    return verdict(verdict="yes", reason=reason, evidence={**metrics, "rate_below": high})


def regression_rule(
    rule: RegressionRule, evidence: GateEvidence, stored_scenarios: Sequence[str] | None, *, first: bool
) -> RuleVerdict:
    """Check that the candidate handles every stored failure that the champion handles.

    Args:
        rule: suites of the stored failures, and the share of trials that must succeed.
        evidence: trials of both policies.
        stored_scenarios: names of the stored scenarios; None if unknown.
        first: whether there is no champion yet. Then no handled scenario can be lost, but all scenarios must be tried.
    """
    requirement = (
        f"no stored failure that the champion handles (in {rule.handled:.0%} of trials) and the candidate does not"
    )
    verdict = partial(RuleVerdict, rule="regressions", requirement=requirement)
    sides = (select_trials(side, rule.suites, None, ()) for side in (evidence.candidate, evidence.champion))
    mine, theirs = (_find_handled(side, rule.handled) for side in sides)
    if stored_scenarios is None and not mine:
        reason = f"there are no trials of {', '.join(rule.suites)}, and no workspace with the stored failures"
        return verdict(verdict="missing", reason=reason)
    untried = [name for name in stored_scenarios or () if name not in mine or (not first and name not in theirs)]
    untried += [name for name in theirs if name not in mine and name not in untried]
    lost = [name for name, ok in mine.items() if not ok and theirs.get(name, False)]
    metrics: dict[str, Any] = {"scenarios": len(mine), "handled": sum(mine.values()), "lost": lost, "untried": untried}
    if lost:
        reason = f"{len(lost)} of {len(mine)} stored failures occur again: {_join_first_names(lost)}"
        return verdict(verdict="no", reason=reason, evidence=metrics)
    if untried:
        reason = f"{len(untried)} stored failures were not tried by both: {_join_first_names(untried)}"
        return verdict(verdict="missing", reason=reason, evidence=metrics)
    new = sum(ok and not theirs.get(name, False) for name, ok in mine.items())
    reason = f"{sum(mine.values())} of {len(mine)} handled, {new} of them new" if mine else "no failure is stored"
    return verdict(verdict="yes", reason=reason, evidence=metrics)


def latency_rule(rule: LatencyRule, config: GateConfig, evidence: GateEvidence) -> RuleVerdict:
    """Check that the upper confidence limit of the latency quantile is within the time budget."""
    verdict = partial(
        RuleVerdict,
        rule="latency",
        requirement=f"the {rule.quantile:g} quantile of latency is at most {1e3 * rule.budget_s:g} ms",
    )
    known = [trial.latency_s for trial in evidence.candidate if trial.latency_s is not None]
    unknown = len(evidence.candidate) - len(known)
    if not known or unknown:
        reason = f"{unknown} of {len(evidence.candidate)} trials have no latency of commands"
        return verdict(verdict="missing", reason=reason, evidence={"unknown": unknown})
    high = quantile_upper(known, rule.quantile, level=1 - config.alpha)
    metrics = {"trials": len(known), "largest_s": max(known), "high_s": high}
    if high is None:
        needed = min_value_count(rule.quantile, level=1 - config.alpha)
        reason = f"{len(known)} trials are too few to bound this quantile; {needed} are needed"
        return verdict(verdict="missing", reason=reason, evidence=metrics)
    reason = (
        f"at most {1e3 * high:.3g} ms ({1 - config.alpha:.0%}), the slowest of {len(known)} trials "
        f"{1e3 * max(known):.3g} ms"
    )
    return verdict(verdict="yes" if high <= rule.budget_s else "no", reason=reason, evidence=metrics)


def _find_handled(trials: Sequence[EvidenceTrial], share: float) -> dict[str, bool]:
    """Return by scenario name whether the policy handles the scenario: at least ``share`` of its trials succeeded.

    Each scenario is one evaluation slice (condition) of its suite.

    Args:
        share: smallest share of successful trials, from 0 to 1.
    """
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
