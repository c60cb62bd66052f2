"""Track a candidate until it is champion: the acting policy and outcome of each episode, and when to abort.

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

Word = Literal["go on", "abort"]
_STANDINGS = "SELECT policy, champion, stage, plan, run_seed, since, reason FROM release_stages WHERE deployment = ?"


@dataclass(frozen=True, kw_only=True)
class CandidateStage(JsonRecord):
    """Stage of a candidate: ``stage`` since ``since``, compared with ``champion``, with its plan."""

    policy: str
    champion: str | None
    stage: Stage
    plan: StagePlan
    run_seed: int
    since: str
    reason: str = ""


class StageTracker:
    """Interface for a runner while a candidate is in shadow or canary.

    Without such a candidate, the champion acts in every episode.

    Args:
        registry: registry of the workspace and deployment.
    """

    def __init__(self, registry: PolicyRegistry) -> None:
        self.registry = registry

    @property
    def current_candidate(self) -> CandidateStage | None:
        """The candidate in shadow or canary, or None."""
        with self.registry.workspace.state.snapshot() as connection:
            return self._read_candidate(connection)

    @property
    def stage(self) -> Stage:
        """``shadow`` or ``canary`` if there is such a candidate, else ``offline``."""
        found = self.current_candidate
        return "offline" if found is None else found.stage

    def assign_arm(self, episode: int) -> Arm:
        """Return which policy acts in an episode; the same episode number always gives the same result.

        The policy is drawn from the candidate's run seed and the episode's number.
        """
        found = self.current_candidate
        if found is None or found.stage != "canary" or found.plan.canary is None:
            return "champion"
        return _draw_arm(found, episode)

    def create_shadow_log(self, names: Sequence[str] = (), *, budget_s: float | None = None) -> ShadowLog:
        """Return an empty log for one episode, with the quantile of the plan."""
        found = self.current_candidate
        plan = None if found is None else found.plan.shadow
        return ShadowLog(names, quantile=0.95 if plan is None else plan.quantile, budget_s=budget_s)

    def record_outcome(
        self, episode: int, success: bool, violations: int = 0, shadow: Mapping[str, Any] | None = None
    ) -> Word:
        """Record the outcome of an episode.

        Args:
            episode: its number, as given to `assign`.
            success: whether it succeeded.
            violations: number of control steps at which a safety limit was broken.
            shadow: `ShadowLog.summary`, if the candidate is in shadow.

        Returns:
            ``abort`` if the candidate must not act any more; it is then no longer a candidate.

        Raises:
            InputError: the episode was already recorded, or an episode in shadow has no log.
        """
        with self.registry.open_transaction() as connection:
            found = self._read_candidate(connection)
            if found is None:
                return "go on"
            arm: Arm = _draw_arm(found, episode) if found.stage == "canary" else "champion"
            told = EpisodeOutcome(episode=episode, arm=arm, success=success, violations=violations, shadow=shadow)
            self._insert(connection, found, told)
            judgement = self._judge(connection, found)
            if judgement.state != "going":
                self._end_stage(connection, found, judgement)
        return "abort" if judgement.state == "abort" else "go on"

    def judge_stage(self) -> StageDecision | None:
        """Return the state of the present stage; None if there is no candidate in a stage."""
        with self.registry.workspace.state.snapshot() as connection:
            found = self._read_candidate(connection)
            return None if found is None else self._judge(connection, found)

    def history(self) -> list[CandidateStage]:
        """Return every candidate of this deployment, in the order of their last change."""
        rows = self.registry.workspace.state.rows(f"{_STANDINGS} ORDER BY since, rowid", (self.registry.deployment,))
        return [_make_candidate_stage(tuple(row.values())) for row in rows]

    def find_candidate(self, policy: str) -> CandidateStage | None:
        """Return the stage of one version; None if it was never in a stage."""
        return next((one for one in self.history() if one.policy == policy), None)

    def _read_candidate(self, connection: sqlite3.Connection) -> CandidateStage | None:
        row = connection.execute(
            f"{_STANDINGS} AND stage IN ('shadow', 'canary')", (self.registry.deployment,)
        ).fetchone()
        return None if row is None else _make_candidate_stage(row)

    def _insert(self, connection: sqlite3.Connection, found: CandidateStage, told: EpisodeOutcome) -> None:
        if found.stage == "shadow" and told.shadow is None:
            raise InputError(
                f"Episode {told.episode}: {found.policy} is in shadow, but the metrics of its commands are missing. "
                "Give shadow=ShadowLog.summary()."
            )
        key = (self.registry.deployment, found.policy, found.run_seed, found.stage, told.episode)
        known = connection.execute(
            "SELECT 1 FROM release_episodes "
            "WHERE deployment = ? AND policy = ? AND run_seed = ? AND stage = ? AND episode = ?",
            key,
        ).fetchone()
        if known:
            raise InputError(
                f"Episode {told.episode} of {found.policy} in {found.stage} is already recorded. Give each episode a "
                "new number: it counts once."
            )
        shadow = None if told.shadow is None else dumps(dict(told.shadow))
        values = (*key, told.arm, told.success, told.violations, shadow, now())
        connection.execute("INSERT INTO release_episodes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    def _judge(self, connection: sqlite3.Connection, found: CandidateStage) -> StageDecision:
        rows = connection.execute(
            "SELECT episode, arm, success, violations, shadow FROM release_episodes "
            "WHERE deployment = ? AND policy = ? AND run_seed = ? AND stage = ? ORDER BY rowid",
            (self.registry.deployment, found.policy, found.run_seed, found.stage),
        ).fetchall()
        told = [
            EpisodeOutcome(
                episode=e, arm=arm, success=bool(won), violations=v, shadow=None if s is None else json.loads(s)
            )
            for e, arm, won, v, s in rows
        ]
        if found.stage == "shadow" and found.plan.shadow is not None:
            return judge_shadow(found.plan.shadow, told)
        assert found.plan.canary is not None  # noqa: S101 - a candidate enters only stages of its plan
        return judge_canary(found.plan.canary, told)

    def _end_stage(self, connection: sqlite3.Connection, found: CandidateStage, judgement: StageDecision) -> None:
        """Move the candidate to the next stage, or abort it."""
        aborted = judgement.state == "abort"
        following = found.plan.get_next_stage(found.stage)
        stage: Stage = "aborted" if aborted else "passed" if following == "champion" else following
        moved: dict[str, str | None] = {found.stage: None}
        if aborted:
            moved["candidate"] = None
        elif stage == "canary":
            moved["canary"] = found.policy
        enter_stage(self.registry, connection, found.policy, stage, reason=judgement.reason if aborted else "")
        details = {"stage": stage, "reason": judgement.reason, "figures": dict(judgement.figures)}
        self.registry.record_change(connection, "abort" if aborted else "stage", found.policy, moved, details)


def begin_stages(
    registry: PolicyRegistry,
    connection: sqlite3.Connection,
    policy: str,
    stage: Stage,
    plan: StagePlan,
    champion: str | None,
) -> None:
    """Put a candidate into its first stage, within a transaction. The run seed is the length of the log."""
    run_seed = connection.execute("SELECT count(*) FROM release_audit").fetchone()[0]
    connection.execute(
        "INSERT OR REPLACE INTO release_stages VALUES (?, ?, ?, ?, ?, ?, ?, NULL)",
        (registry.deployment, policy, champion, stage, dumps(plan.to_json()), run_seed, now()),
    )


def enter_stage(
    registry: PolicyRegistry, connection: sqlite3.Connection, policy: str, stage: Stage, *, reason: str = ""
) -> None:
    """Put a version into a stage, within a transaction; a version without an earlier stage gets an empty plan."""
    connection.execute(
        "INSERT OR IGNORE INTO release_stages VALUES (?, ?, NULL, ?, '{}', 0, ?, NULL)",
        (registry.deployment, policy, stage, now()),
    )
    connection.execute(
        "UPDATE release_stages SET stage = ?, since = ?, reason = ? WHERE deployment = ? AND policy = ?",
        (stage, now(), reason or None, registry.deployment, policy),
    )


def _draw_arm(found: CandidateStage, episode: int) -> Arm:
    assert found.plan.canary is not None  # noqa: S101 - called in canary only
    draw = float(uniforms(found.run_seed, f"canary/{found.policy}", [episode])[0, 0])
    return "canary" if draw < found.plan.canary.share else "champion"


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
