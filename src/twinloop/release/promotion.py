"""Promotion, stage by stage, and the way back."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from twinloop.catalog import audit as log
from twinloop.core.decision import GateDecision
from twinloop.core.errors import CheckFailedError, InputError
from twinloop.core.plain import JsonRecord
from twinloop.release.plan import Stage, StagePlan
from twinloop.release.registry import PolicyRegistry
from twinloop.release.stages import CandidateStage, StageTracker, begin, enter
from twinloop.release.version import PolicyVersion

Target = Literal["shadow", "canary", "champion"]


@dataclass(frozen=True, kw_only=True)
class StageChange(JsonRecord):
    """What a promotion or a rollback did: ``policy`` is now in ``stage``, where ``before`` was."""

    policy: str
    stage: Stage
    before: str | None
    reason: str = ""


def promote(
    registry: PolicyRegistry,
    reference: str = "candidate",
    *,
    to: Target | None = None,
    force: bool = False,
    reason: str = "",
) -> StageChange:
    """Move a version one stage on: into shadow, into canary, or to be the champion.

    Args:
        registry: of the workspace and deployment.
        reference: which version.
        to: the stage; by default the next one of the plan that its gate was passed with.
        force: without a gate or before a stage has ended; the log says so.
        reason: why; needed with ``force``.

    Raises:
        UnknownNameError: no such version.
        CheckFailedError: the gate did not say yes to it against the present champion, or a stage before has not ended;
            says which.
        DatasetError: its files are not what was added.
        InputError: it is there already, another candidate is on its way, or ``force`` without a reason.
    """
    version = registry.version(reference)
    registry.folder(version.reference)
    if force and not reason:
        raise InputError("--force goes past the gate. Say why with --reason: the log keeps it.")
    decision = None if force else passed_gate(registry, version)
    with registry.changing() as connection:
        champion = registry.aliases().get("champion")
        if champion == version.reference:
            raise InputError(f"{champion} is the champion of {registry.deployment} already.")
        if decision is not None and (decision.champion or None) != champion:
            raise CheckFailedError(
                f"The gate compared {version.reference} with {decision.champion or 'no champion'}, and the champion of "
                f"{registry.deployment} is {champion or 'nobody'} now. Decide again against that one."
            )
        standing = StageTracker(registry).of(version.reference)
        plan = _plan(standing, decision)
        stage = _allowed(plan, standing, decision, to, force=force)
        details = {"decision": None if decision is None else decision.hash, "forced": force, "reason": reason}
        if stage == "champion":
            _crown(registry, connection, version.reference, champion, details)
        else:
            _send(registry, connection, version.reference, stage, plan, champion, details)
    return StageChange(policy=version.reference, stage=stage, before=champion, reason=reason)


def rollback(registry: PolicyRegistry, reason: str) -> StageChange:
    """Make the champion before this one the champion again, after checking every byte of it.

    Whoever is in shadow or canary is retired: its gate compared it with a champion that is none any more.

    Raises:
        InputError: there is no champion before, or no reason is given.
        DatasetError: the files of the previous champion are not what was added; nothing has moved.
    """
    if not reason:
        raise InputError("Say why: the log keeps the reason of every rollback.")
    with registry.changing() as connection:
        reigns = reigned(registry.audit())
        if len(reigns) < 2:
            held = registry.aliases().get("champion")
            had = f"{held} is the first champion" if held else "There is no champion"
            raise InputError(f"{had} of {registry.deployment}: nothing to roll back to. Promote another version.")
        bad, good = reigns[-1], reigns[-2]
        registry.folder(good)
        moved: dict[str, str | None] = {"champion": good, "previous": reigns[-3] if len(reigns) > 2 else None}
        moved |= _retire(registry, connection, "the champion was rolled back")
        if registry.aliases().get("candidate") == bad:
            moved["candidate"] = None
        enter(registry, connection, bad, "rolled back", reason=reason)
        enter(registry, connection, good, "champion")
        registry.write(connection, "rollback", good, moved, {"from": bad, "reason": reason})
    return StageChange(policy=good, stage="champion", before=bad, reason=reason)


def reigned(entries: Sequence[log.AuditEntry]) -> list[str]:
    """The champions whom a rollback would go through, the present one last: a rollback takes the last one away."""
    found = list[str]()
    for entry in entries:
        if entry.action == "promote" and "champion" in entry.details["aliases"]:
            found.append(entry.policy)
        elif entry.action == "rollback":
            found.pop()
    return found


def passed_gate(registry: PolicyRegistry, version: PolicyVersion) -> GateDecision:
    """The newest decision about a version, which must be a yes that no rollback came after.

    Raises:
        CheckFailedError: there is none, it is a no, or the version was rolled back since.
    """
    decisions = registry.decisions(version.reference)
    if not decisions:
        raise CheckFailedError(
            f"No gate decided about {version.reference} in {registry.deployment}. Run `twinloop gate candidate.yaml`, "
            "or go past it with --force --reason WHY."
        )
    last = decisions[-1]
    if not last.passed:
        raise CheckFailedError(
            f"The gate said no to {version.reference}: {'; '.join(last.reasons)}. Mend that and decide again."
        )
    for entry in reversed(registry.audit()):
        if entry.action == "gate" and entry.policy == version.reference:
            break
        if entry.details.get("from") == version.reference and entry.action == "rollback":
            raise CheckFailedError(
                f"{version.reference} was rolled back since its gate ({entry.details['reason']}). Decide again on "
                "evidence that shows this mended."
            )
    return last


def _plan(standing: CandidateStage | None, decision: GateDecision | None) -> StagePlan:
    """What the gate's file asked for; a version that was forced in keeps what it had."""
    if decision is not None and decision.plan:
        return StagePlan.from_json(decision.plan)
    return StagePlan() if standing is None else standing.plan


def _allowed(
    plan: StagePlan, standing: CandidateStage | None, decision: GateDecision | None, to: Target | None, *, force: bool
) -> Stage:
    """The stage that a version may enter now.

    Raises:
        CheckFailedError: another stage comes first, or the version was aborted.
    """
    at: Stage = "offline" if standing is None else standing.stage
    # Decided again, a version that had been retired or rolled back begins anew; one that was aborted does not.
    if at in ("retired", "rolled back", "champion"):
        at = "offline"
    following = plan.after(at)
    if force:
        return to or "champion"
    if standing is not None and at == "aborted":
        raise CheckFailedError(
            f"{standing.policy} was aborted: {standing.reason} Release another version, or --force --reason WHY."
        )
    if standing is not None and at in ("shadow", "canary"):
        raise CheckFailedError(
            f"{standing.policy} is in {at} since {standing.since}. It moves on by itself when that has ended: "
            "`twinloop policies list` shows how far it is; or --force --reason WHY."
        )
    if to is not None and to != following:
        said = "" if decision is None else f" of the plan {', '.join(plan.order)}"
        raise CheckFailedError(
            f"The next stage{said} is {following}, not {to}. Leave --to out, or --force --reason WHY."
        )
    return following


def _send(
    registry: PolicyRegistry,
    connection: sqlite3.Connection,
    policy: str,
    stage: Stage,
    plan: StagePlan,
    champion: str | None,
    details: dict[str, Any],
) -> None:
    """Into shadow or canary, beside the champion that there must be."""
    busy = StageTracker(registry).now
    if busy is not None and busy.policy != policy:
        raise InputError(
            f"{busy.policy} is in {busy.stage} of {registry.deployment}. One candidate at a time: let it end, or "
            f"promote it with --force, or use another --deployment."
        )
    if champion is None:
        raise InputError(
            f"{registry.deployment} has no champion beside which {policy} could be in {stage}. The first one is "
            "promoted with stages: {shadow: null, canary: null} in its gate's file."
        )
    if (plan.shadow if stage == "shadow" else plan.canary) is None:
        raise InputError(
            f"The plan of {policy} says nothing of {stage}. Give it in the gate's file: stages: {{{stage}: …}}."
        )
    begin(registry, connection, policy, stage, plan, champion)
    moved: dict[str, str | None] = {"shadow": None, "canary": None, "candidate": policy, stage: policy}
    registry.write(connection, "stage", policy, moved, {**details, "stage": stage, "plan": plan.to_json()})


def _crown(
    registry: PolicyRegistry, connection: sqlite3.Connection, policy: str, champion: str | None, details: dict[str, Any]
) -> None:
    """Make a version the champion, and the champion the previous one."""
    enter(registry, connection, policy, "champion")
    moved: dict[str, str | None] = {stage: None for stage, who in registry.aliases().items() if who == policy}
    moved |= _retire(registry, connection, f"{policy} became the champion")
    if champion is not None:
        enter(registry, connection, champion, "retired", reason=f"{policy} became the champion")
    moved |= {"champion": policy, "previous": champion}
    registry.write(connection, "promote", policy, moved, {**details, "stage": "champion"})


def _retire(registry: PolicyRegistry, connection: sqlite3.Connection, why: str) -> dict[str, str | None]:
    """Take whoever is in shadow or canary out: what it is compared with changes."""
    busy = StageTracker(registry).now
    if busy is None:
        return {}
    enter(registry, connection, busy.policy, "retired", reason=why)
    return {busy.stage: None}
