"""Track a candidate policy until it is champion: which policy acts in an episode, its outcome, and an abort.

The record is stored in the workspace. A robot that is switched off therefore continues at the same point later, and two
robots of one deployment are counted together. The stages:

    offline ──gate──▶ shadow ──▶ canary ──▶ passed ──promote──▶ champion ──rollback──▶ rolled back
                        └──────────┴──▶ aborted
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from twinloop.catalog.state import now
from twinloop.core.errors import InputError
from twinloop.core.files import dumps
from twinloop.core.plain import JsonRecord
from twinloop.core.seeds import uniforms
from twinloop.release.plan import Arm, EpisodeOutcome, Stage, StageDecision, StagePlan, judge_canary, judge_shadow
from twinloop.release.registry import PolicyRegistry
from twinloop.release.shadow import ShadowLog

StageReply = Literal["go on", "abort"]
_STANDINGS = "SELECT policy, champion, stage, plan, run_seed, since, reason FROM release_stages WHERE deployment = ?"


@dataclass(frozen=True, kw_only=True)
class CandidateStage(JsonRecord):
    """Current stage of a candidate policy in a deployment.

    Attributes:
        policy: version of the candidate, ``NAME@VERSION``.
        champion: version of the champion that it is compared with; None if there is no champion.
        stage: current stage.
        plan: stages that the candidate has to pass.
        run_seed: seed for the choice of the acting policy in each canary episode.
        since: time at which the stage began, in ISO 8601.
        reason: reason why the candidate left the stages early; empty if it did not.
    """

    policy: str
    champion: str | None
    stage: Stage
    plan: StagePlan
    run_seed: int
    since: str
    reason: str = ""


class StageTracker:
    """Tracker of a deployment's candidate in shadow or canary, used by the program that runs the robot.

    If no candidate is in one of these stages, the champion acts in every episode.
    """

    def __init__(self, registry: PolicyRegistry) -> None:
        self.registry = registry

    @property
    def current_candidate(self) -> CandidateStage | None:
        """Candidate that is now in shadow or canary, or None."""
        with self.registry.workspace.state.snapshot() as connection:
            return self._read_candidate(connection)

    @property
    def stage(self) -> Stage:
        """``shadow`` or ``canary`` if a candidate is in this stage, else ``offline``."""
        candidate = self.current_candidate
        return "offline" if candidate is None else candidate.stage

    def assign_arm(self, episode: int) -> Arm:
        """Return which policy acts in an episode: ``canary`` (the candidate) or ``champion``.

        The choice, called an arm of the comparison, is random, but depends only on the run seed of the candidate and
        the episode number. The same number therefore always gives the same result.
        """
        candidate = self.current_candidate
        if candidate is None or candidate.stage != "canary" or candidate.plan.canary is None:
            return "champion"
        return _draw_arm(candidate, episode)

    def create_shadow_log(self, names: Sequence[str] = (), *, budget_s: float | None = None) -> ShadowLog:
        """Return an empty log for comparing the commands of champion and shadow in one episode.

        Args:
            names: names of the joints; by default their numbers.
            budget_s: longest time in s that the shadow may take for an answer; None for no limit.
        """
        candidate = self.current_candidate
        plan = None if candidate is None else candidate.plan.shadow
        return ShadowLog(names, quantile=0.95 if plan is None else plan.quantile, budget_s=budget_s)

    def record_outcome(
        self, episode: int, success: bool | None, violations: int = 0, shadow: Mapping[str, Any] | None = None
    ) -> StageReply:
        """Record the outcome of an episode, and end the stage if its rules are decided.

        Args:
            episode: number of the episode, as given to `assign_arm`.
            success: whether it succeeded; None if nobody judged it, which counts for neither policy.
            violations: number of control steps at which a safety limit was broken.
            shadow: result of `ShadowLog.summary`; required if the candidate is in shadow.

        Returns:
            ``abort`` if the candidate was aborted and must not act any more, else ``go on``.

        Raises:
            InputError: If the episode was already recorded, or if ``shadow`` is missing for a candidate in shadow.
        """
        with self.registry.open_transaction() as connection:
            candidate = self._read_candidate(connection)
            if candidate is None:
                return "go on"
            arm: Arm = _draw_arm(candidate, episode) if candidate.stage == "canary" else "champion"
            outcome = EpisodeOutcome(episode=episode, arm=arm, success=success, violations=violations, shadow=shadow)
            self._insert(connection, candidate, outcome)
            judgement = self._judge(connection, candidate)
            if judgement.state != "going":
                self._end_stage(connection, candidate, judgement)
        return "abort" if judgement.state == "abort" else "go on"

    def judge_stage(self) -> StageDecision | None:
        """Return the decision about the current stage (going, passed or abort); None if no candidate is in a stage."""
        with self.registry.workspace.state.snapshot() as connection:
            candidate = self._read_candidate(connection)
            return None if candidate is None else self._judge(connection, candidate)

    def history(self) -> list[CandidateStage]:
        """Return the stage of every candidate that this deployment ever had, in the order of their last change."""
        rows = self.registry.workspace.state.rows(f"{_STANDINGS} ORDER BY since, rowid", (self.registry.deployment,))
        return [_make_candidate_stage(tuple(row.values())) for row in rows]

    def find_candidate(self, policy: str) -> CandidateStage | None:
        """Return the stage of the version ``policy`` (``NAME@VERSION``); None if it was never in a stage."""
        return next((one for one in self.history() if one.policy == policy), None)

    def _read_candidate(self, connection: sqlite3.Connection) -> CandidateStage | None:
        row = connection.execute(
            f"{_STANDINGS} AND stage IN ('shadow', 'canary')", (self.registry.deployment,)
        ).fetchone()
        return None if row is None else _make_candidate_stage(row)

    def _insert(self, connection: sqlite3.Connection, candidate: CandidateStage, outcome: EpisodeOutcome) -> None:
        if candidate.stage == "shadow" and outcome.shadow is None:
            raise InputError(
                f"Episode {outcome.episode}: {candidate.policy} is in shadow, but the metrics of its commands are "
                "missing. Give shadow=ShadowLog.summary()."
            )
        key = (self.registry.deployment, candidate.policy, candidate.run_seed, candidate.stage, outcome.episode)
        known = connection.execute(
            "SELECT 1 FROM release_episodes "
            "WHERE deployment = ? AND policy = ? AND run_seed = ? AND stage = ? AND episode = ?",
            key,
        ).fetchone()
        if known:
            raise InputError(
                f"Episode {outcome.episode} of {candidate.policy} in {candidate.stage} is already recorded. Give each "
                "episode a new number, because an episode counts only once."
            )
        shadow = None if outcome.shadow is None else dumps(dict(outcome.shadow))
        unknown = outcome.success is None
        values = (*key, outcome.arm, bool(outcome.success), outcome.violations, shadow, now(), unknown)
        connection.execute("INSERT INTO release_episodes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    def _judge(self, connection: sqlite3.Connection, candidate: CandidateStage) -> StageDecision:
        rows = connection.execute(
            "SELECT episode, arm, iif(unknown, NULL, success), violations, shadow FROM release_episodes "
            "WHERE deployment = ? AND policy = ? AND run_seed = ? AND stage = ? ORDER BY rowid",
            (self.registry.deployment, candidate.policy, candidate.run_seed, candidate.stage),
        ).fetchall()
        outcomes = [
            EpisodeOutcome(
                episode=e,
                arm=arm,
                success=None if won is None else bool(won),
                violations=v,
                shadow=None if s is None else json.loads(s),
            )
            for e, arm, won, v, s in rows
        ]
        if candidate.stage == "shadow" and candidate.plan.shadow is not None:
            return judge_shadow(candidate.plan.shadow, outcomes)
        assert candidate.plan.canary is not None  # noqa: S101 - a candidate enters only stages of its plan
        return judge_canary(candidate.plan.canary, outcomes)

    def _end_stage(self, connection: sqlite3.Connection, candidate: CandidateStage, judgement: StageDecision) -> None:
        """Move a candidate whose stage has ended to its next stage or, after an abort, out of all stages."""
        aborted = judgement.state == "abort"
        following = candidate.plan.get_next_stage(candidate.stage)
        stage: Stage = "aborted" if aborted else "passed" if following == "champion" else following
        moved: dict[str, str | None] = {candidate.stage: None}
        if aborted:
            moved["candidate"] = None
        elif stage == "canary":
            moved["canary"] = candidate.policy
        enter_stage(self.registry, connection, candidate.policy, stage, reason=judgement.reason if aborted else "")
        details = {"stage": stage, "reason": judgement.reason, "metrics": dict(judgement.metrics)}
        self.registry.record_change(connection, "abort" if aborted else "stage", candidate.policy, moved, details)


def begin_stages(
    registry: PolicyRegistry,
    connection: sqlite3.Connection,
    policy: str,
    stage: Stage,
    plan: StagePlan,
    champion: str | None,
) -> None:
    """Start the stages of a new candidate with its plan, within a database transaction.

    `enter_stage` sets the later stages. The run seed, from which the acting policies are drawn, is the number of
    entries in the audit log at this time. It therefore differs between candidates.

    Args:
        registry: registry of the deployment.
        connection: connection of the transaction.
        policy: version of the candidate, ``NAME@VERSION``.
        stage: first stage.
        plan: stages that the candidate has to pass.
        champion: version of the champion that it is compared with; None if there is no champion.
    """
    run_seed = connection.execute("SELECT count(*) FROM release_audit").fetchone()[0]
    connection.execute(
        "INSERT OR REPLACE INTO release_stages VALUES (?, ?, ?, ?, ?, ?, ?, NULL)",
        (registry.deployment, policy, champion, stage, dumps(plan.to_json()), run_seed, now()),
    )


def enter_stage(
    registry: PolicyRegistry, connection: sqlite3.Connection, policy: str, stage: Stage, *, reason: str = ""
) -> None:
    """Set the stage of a version, within a database transaction.

    A version that was never in a stage is added with an empty plan.

    Args:
        policy: version, ``NAME@VERSION``.
        reason: reason of the change; empty for a regular change.
    """
    connection.execute(
        "INSERT OR IGNORE INTO release_stages VALUES (?, ?, NULL, ?, '{}', 0, ?, NULL)",
        (registry.deployment, policy, stage, now()),
    )
    connection.execute(
        "UPDATE release_stages SET stage = ?, since = ?, reason = ? WHERE deployment = ? AND policy = ?",
        (stage, now(), reason or None, registry.deployment, policy),
    )


def _draw_arm(candidate: CandidateStage, episode: int) -> Arm:
    assert candidate.plan.canary is not None  # noqa: S101 - called in canary only
    draw = float(uniforms(candidate.run_seed, f"canary/{candidate.policy}", [episode])[0, 0])
    return "canary" if draw < candidate.plan.canary.share else "champion"


def _make_candidate_stage(row: Sequence[Any]) -> CandidateStage:
    policy, champion, stage, plan, run_seed, since, reason = row
    return CandidateStage(
        policy=policy,
        champion=champion,
        stage=stage,
        plan=StagePlan.from_json(json.loads(plan)),
        run_seed=run_seed,
        since=since,
        reason=reason or "",
    )
