"""Promote policy versions from stage to stage, and return to the previous champion."""

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
from twinloop.release.stages import CandidateStage, StageTracker, begin_stages, enter_stage
from twinloop.release.version import PolicyVersion

Target = Literal["shadow", "canary", "champion"]


@dataclass(frozen=True, kw_only=True)
class StageChange(JsonRecord):
    """Result of a promotion or a rollback.

    Attributes:
        policy: version that was moved, ``NAME@VERSION``.
        stage: its new stage.
        before: version that was champion before the change; None if there was no champion.
        reason: reason that the user gave.
    """

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
    """Move a version to the next stage: shadow, canary or champion.

    Args:
        reference: version or alias to promote.
        to: stage to enter; by default the next stage of the plan in the version's gate decision.
        force: whether to skip the gate, or a stage that has not ended. The audit log records it.
        reason: reason for the audit log; required with ``force``.

    Raises:
        UnknownNameError: If the version does not exist.
        CheckFailedError: If the version has not passed the gate against the present champion, or an earlier stage has
            not ended.
        DatasetError: If the files of the version have changed since they were added.
        InputError: If the version is already champion, another candidate is in a stage, or ``force`` has no reason.
    """
    version = registry.version(reference)
    registry.folder(version.reference)
    if force and not reason:
        raise InputError("--force skips the gate. Give the reason with --reason: the log records it.")
    decision = None if force else require_passed_gate(registry, version)
    with registry.open_transaction() as connection:
        champion = registry.aliases().get("champion")
        if champion == version.reference:
            raise InputError(f"{champion} is the champion of {registry.deployment} already.")
        if decision is not None and (decision.champion or None) != champion:
            raise CheckFailedError(
                f"The gate compared {version.reference} with {decision.champion or 'no champion'}, but the champion of "
                f"{registry.deployment} is now {champion or 'not set'}. Run the gate again against this champion."
            )
        standing = StageTracker(registry).find_candidate(version.reference)
        plan = _choose_plan(standing, decision)
        stage = _choose_stage(plan, standing, decision, to, force=force)
        details = {"decision": None if decision is None else decision.hash, "forced": force, "reason": reason}
        if stage == "champion":
            _make_champion(registry, connection, version.reference, champion, details)
        else:
            _start_stage(registry, connection, version.reference, stage, plan, champion, details)
    return StageChange(policy=version.reference, stage=stage, before=champion, reason=reason)


def rollback(registry: PolicyRegistry, reason: str) -> StageChange:
    """Make the previous champion the champion again, after checking that its files are unchanged.

    A candidate in shadow or canary is retired, because its gate compared it with the champion that is removed.

    Raises:
        InputError: If there is no previous champion, or no reason is given.
        DatasetError: If the files of the previous champion have changed. In this case no alias is moved.
    """
    if not reason:
        raise InputError("A rollback needs a reason, which the log records. Give it with --reason.")
    with registry.open_transaction() as connection:
        reigns = list_champions(registry.audit())
        if len(reigns) < 2:
            held = registry.aliases().get("champion")
            had = f"{held} is the first champion" if held else "There is no champion"
            raise InputError(f"{had} of {registry.deployment}: nothing to roll back to. Promote another version.")
        bad, good = reigns[-1], reigns[-2]
        registry.folder(good)
        moved: dict[str, str | None] = {"champion": good, "previous": reigns[-3] if len(reigns) > 2 else None}
        moved |= _retire_candidate(registry, connection, "the champion was rolled back")
        if registry.aliases().get("candidate") == bad:
            moved["candidate"] = None
        enter_stage(registry, connection, bad, "rolled back", reason=reason)
        enter_stage(registry, connection, good, "champion")
        registry.record_change(connection, "rollback", good, moved, {"from": bad, "reason": reason})
    return StageChange(policy=good, stage="champion", before=bad, reason=reason)


def list_champions(entries: Sequence[log.AuditEntry]) -> list[str]:
    """Return the champions in the order of their promotions, the present champion last.

    A rollback removes the last champion of the list.

    Args:
        entries: entries of the audit log, oldest first.
    """
    found = list[str]()
    for entry in entries:
        if entry.action == "promote" and "champion" in entry.details["aliases"]:
            found.append(entry.policy)
        elif entry.action == "rollback":
            found.pop()
    return found


def require_passed_gate(registry: PolicyRegistry, version: PolicyVersion) -> GateDecision:
    """Return the newest gate decision about a version, after checking that it permits a promotion.

    Raises:
        CheckFailedError: If there is no decision, the version did not pass, or it was rolled back after the decision.
    """
    decisions = registry.decisions(version.reference)
    if not decisions:
        raise CheckFailedError(
            f"There is no gate decision about {version.reference} in {registry.deployment}. Run `twinloop gate "
            "candidate.yaml`, or skip the gate with --force --reason WHY."
        )
    last = decisions[-1]
    if not last.passed:
        raise CheckFailedError(
            f"The gate refused {version.reference}: {'; '.join(last.reasons)}. Correct this and run the gate again."
        )
    for entry in reversed(registry.audit()):
        if entry.action == "gate" and entry.policy == version.reference:
            break
        if entry.details.get("from") == version.reference and entry.action == "rollback":
            raise CheckFailedError(
                f"{version.reference} was rolled back after its gate ({entry.details['reason']}). Run the gate again "
                "with evidence that this is corrected."
            )
    return last


def _choose_plan(standing: CandidateStage | None, decision: GateDecision | None) -> StagePlan:
    """Return the plan of a version's stages (shadow, canary) from its gate decision.

    After a forced promotion, return its present plan. If there is neither a plan in the decision nor a present plan,
    return the default plan.

    Args:
        standing: present stage and plan of the version; None if it is in no stage.
        decision: gate decision; None for a forced promotion.
    """
    if decision is not None and decision.plan:
        return StagePlan.from_json(decision.plan)
    return StagePlan() if standing is None else standing.plan


def _choose_stage(
    plan: StagePlan, standing: CandidateStage | None, decision: GateDecision | None, to: Target | None, *, force: bool
) -> Stage:
    """Return the stage that a version may enter now.

    Args:
        plan: stages that the version has to pass.
        standing: present stage of the version; None if it was never in a stage.
        decision: gate decision about the version; None with ``force``.
        to: stage that the user requests; None for the next one.
        force: whether to skip all checks.

    Raises:
        CheckFailedError: If another stage comes first, or the version was aborted.
    """
    at: Stage = "offline" if standing is None else standing.stage
    # After a new decision, a retired or rolled-back version starts again; an aborted one does not.
    if at in ("retired", "rolled back", "champion"):
        at = "offline"
    following = plan.get_next_stage(at)
    if force:
        return to or "champion"
    if standing is not None and at == "aborted":
        raise CheckFailedError(
            f"{standing.policy} was aborted: {standing.reason} Release another version, or use --force --reason WHY."
        )
    if standing is not None and at in ("shadow", "canary"):
        raise CheckFailedError(
            f"{standing.policy} has been in {at} since {standing.since}. It moves on automatically at the end of this "
            "stage; `twinloop policies list` shows the progress. To skip it, use --force --reason WHY."
        )
    if to is not None and to != following:
        plan_text = "" if decision is None else f" of the plan {', '.join(plan.order)}"
        raise CheckFailedError(
            f"The next stage{plan_text} is {following}, not {to}. Leave --to out, or use --force --reason WHY."
        )
    return following


def _start_stage(
    registry: PolicyRegistry,
    connection: sqlite3.Connection,
    policy: str,
    stage: Stage,
    plan: StagePlan,
    champion: str | None,
    details: dict[str, Any],
) -> None:
    """Move a candidate to shadow or canary, within a database transaction.

    Args:
        policy: version of the candidate.
        stage: ``shadow`` or ``canary``.
        plan: stages that the candidate has to pass.
        champion: version of the present champion.
        details: further facts for the audit log.

    Raises:
        InputError: If another candidate is in a stage, there is no champion, or the plan does not contain the stage.
    """
    busy = StageTracker(registry).current_candidate
    if busy is not None and busy.policy != policy:
        raise InputError(
            f"{busy.policy} is in {busy.stage} of {registry.deployment}. Only one candidate is possible at a time: "
            f"wait until it ends, promote it with --force, or use another --deployment."
        )
    if champion is None:
        raise InputError(
            f"{registry.deployment} has no champion, which {policy} needs in {stage}. Promote the first champion "
            "with stages: {shadow: null, canary: null} in its gate's file."
        )
    if (plan.shadow if stage == "shadow" else plan.canary) is None:
        raise InputError(
            f"The plan of {policy} has no stage {stage}. Add it to the gate's file: stages: {{{stage}: …}}."
        )
    begin_stages(registry, connection, policy, stage, plan, champion)
    moved: dict[str, str | None] = {"shadow": None, "canary": None, "candidate": policy, stage: policy}
    registry.record_change(connection, "stage", policy, moved, {**details, "stage": stage, "plan": plan.to_json()})


def _make_champion(
    registry: PolicyRegistry, connection: sqlite3.Connection, policy: str, champion: str | None, details: dict[str, Any]
) -> None:
    """Make a version the champion, in a database transaction; the alias ``previous`` then names the former champion.

    Args:
        policy: version to promote, ``NAME@VERSION``.
        champion: former champion; None if there was no champion.
        details: further facts for the audit log.
    """
    enter_stage(registry, connection, policy, "champion")
    moved: dict[str, str | None] = {stage: None for stage, who in registry.aliases().items() if who == policy}
    moved |= _retire_candidate(registry, connection, f"{policy} became the champion")
    if champion is not None:
        enter_stage(registry, connection, champion, "retired", reason=f"{policy} became the champion")
    moved |= {"champion": policy, "previous": champion}
    registry.record_change(connection, "promote", policy, moved, {**details, "stage": "champion"})


def _retire_candidate(registry: PolicyRegistry, connection: sqlite3.Connection, why: str) -> dict[str, str | None]:
    """Retire the candidate in shadow or canary, if there is one; call this when the champion to compare with changes.

    Args:
        why: reason to record.

    Returns:
        Aliases to remove, mapped to None; empty if there is no such candidate.
    """
    busy = StageTracker(registry).current_candidate
    if busy is None:
        return {}
    enter_stage(registry, connection, busy.policy, "retired", reason=why)
    return {busy.stage: None}
