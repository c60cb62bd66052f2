"""Whether the place where a candidate will run is one it was trained for: its contract, and what was drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri

from twinloop.core.contract import Contract
from twinloop.core.decision import RuleVerdict, Verdict
from twinloop.core.distribution import ParamDistribution
from twinloop.core.documents import read_json
from twinloop.randomize import read_identified
from twinloop.release.gate_config import ContextRule
from twinloop.release.trained import Trained
from twinloop.rollout.observing import offered_contract
from twinloop.tasks import open_task
from twinloop.twin import load_twin

_SHOWN = 3


def context_rule(rule: ContextRule, contract: Any, trained: Trained | None) -> RuleVerdict:
    """The contract fits, and the training data cover what is known of the place.

    Args:
        rule: what is asked.
        contract: the candidate's, as its ``config.json`` says.
        trained: what it saw; None where no workspace knows.
    """
    asked = "the contract fits, and the place lies inside what the training data drew"
    twin = None if rule.twin is None else load_twin(rule.twin)
    if contract is None:
        reason = "the candidate says no contract in its config.json"
        return RuleVerdict(rule="context", verdict="missing", asked=asked, reason=reason, evidence={})
    unlike = _unlike(rule, contract)
    figures: dict[str, Any] = {"contract": unlike, "twin_hash": None if twin is None else twin.hash}
    if unlike:
        reason = f"the contract does not fit: {'; '.join(unlike)}"
        return RuleVerdict(rule="context", verdict="no", asked=asked, reason=reason, evidence=figures)
    if trained is None or not trained.episodes:
        reason = "the workspace does not know which simulated episodes trained it; freeze the dataset and train on that"
        return RuleVerdict(rule="context", verdict="missing", asked=asked, reason=reason, evidence=figures)
    if rule.distribution is not None:
        return _covered(rule, asked, trained, figures)
    assert twin is not None  # noqa: S101 - the configuration asks for a twin where there is no distribution
    same = twin.hash in trained.twins
    verdict: Verdict = "yes" if same else "no"
    reason = f"{trained.episodes} episodes of training come from the twin {twin.name} as it is"
    if not same:
        others = ", ".join(digest[:12] for digest in trained.twins) or "none that is named"
        reason = (
            f"no episode of training comes from the twin {twin.name} ({twin.hash[:12]}), they come from {others}; give "
            "the distribution that was identified there, or train on that twin"
        )
    return RuleVerdict(rule="context", verdict=verdict, asked=asked, reason=reason, evidence=figures)


def intervals(found: ParamDistribution, level: float) -> dict[str, tuple[float, float]]:
    """The interval of each parameter that the data determine, in SI, within its bounds; calibrated where a run did."""
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


def _covered(rule: ContextRule, asked: str, trained: Trained, figures: dict[str, Any]) -> RuleVerdict:
    """Whether every interval lies within the range that was drawn."""
    assert rule.distribution is not None  # noqa: S101 - asked only with one
    found = ParamDistribution.from_json(read_identified(rule.distribution)["distribution"])
    known = intervals(found, rule.level)
    wanted = {name: ends for name, ends in known.items() if any(fnmatchcase(name, p) for p in rule.parameters)}
    rows = [_row(name, ends, trained.ranges.get(name)) for name, ends in wanted.items()]
    outside = [row for row in rows if not row["inside"]]
    figures |= {"parameters": rows, "undetermined": list(found.undetermined), "episodes": trained.episodes}
    if not rows:
        reason = "the identified distribution determines no parameter that is asked for"
        return RuleVerdict(rule="context", verdict="missing", asked=asked, reason=reason, evidence=figures)
    if outside:
        reason = f"{len(outside)} of {len(rows)} identified parameters lie outside: {_some(outside)}"
        return RuleVerdict(rule="context", verdict="no", asked=asked, reason=reason, evidence=figures)
    left = len(found.undetermined)
    said = f" ({left} more are not determined by the log)" if left else ""
    reason = f"{len(rows)} identified parameters lie inside what {trained.episodes} episodes drew{said}"
    return RuleVerdict(rule="context", verdict="yes", asked=asked, reason=reason, evidence=figures)


def _row(name: str, ends: tuple[float, float], drawn: tuple[float, float] | None) -> dict[str, Any]:
    inside = drawn is not None and drawn[0] <= ends[0] and ends[1] <= drawn[1]
    return {"name": name, "identified": list(ends), "drawn": None if drawn is None else list(drawn), "inside": inside}


def _some(rows: Sequence[dict[str, Any]]) -> str:
    said = [
        f"{row['name']} {_range(row['identified'])}, drawn {_range(row['drawn']) if row['drawn'] else 'never'}"
        for row in rows[:_SHOWN]
    ]
    return "; ".join(said) + ("; …" if len(rows) > _SHOWN else "")


def _range(ends: Sequence[float]) -> str:
    return f"[{ends[0]:.4g}, {ends[1]:.4g}]"


def _unlike(rule: ContextRule, contract: Any) -> list[str]:
    """What keeps the candidate from running there."""
    if rule.contract is not None:
        offered = Contract.from_json(read_json(Path(rule.contract)))
    else:
        twin = load_twin(rule.twin or "")
        offered = offered_contract(twin, open_task(rule.task, twin), cameras=rule.cameras)
    return Contract.from_json(contract).differences(offered)
