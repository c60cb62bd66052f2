"""A candidate on its way to the champion: who acts in which episode, what became of it, and when it is aborted.

The record stands in the workspace, so that a robot that is switched off in the middle goes on where it was, and two
robots of one deployment count together. The way itself:

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
    """Where a candidate is: ``stage`` since ``since``, against ``champion``, and what its plan asks for."""

    policy: str
    champion: str | None
    stage: Stage
    plan: StagePlan
    run_seed: int
    since: str
    reason: str = ""


class StageTracker:
    """What a runner asks and tells while a candidate is in shadow or canary.

    Where no candidate is on its way, everything is the champion's.

    Args:
        registry: of the workspace and deployment.
    """

    def __init__(self, registry: PolicyRegistry) -> None:
        self.registry = registry

    @property
    def now(self) -> CandidateStage | None:
        """The candidate that is in shadow or canary, if one is."""
        with self.registry.workspace.state.snapshot() as connection:
            return self._now(connection)

    @property
    def stage(self) -> Stage:
        """``shadow`` or ``canary`` while a candidate is there, else ``offline``."""
        found = self.now
        return "offline" if found is None else found.stage

    def assign(self, episode: int) -> Arm:
        """Who acts in an episode: a draw that is a function of the candidate's run seed and the episode's number.

        Whoever asks, and however often, hears the same.
        """
        found = self.now
        if found is None or found.stage != "canary" or found.plan.canary is None:
            return "champion"
        return _drawn(found, episode)

    def shadow_log(self, names: Sequence[str] = (), *, budget_s: float | None = None) -> ShadowLog:
        """A log for one episode, with the quantile that the plan judges."""
        found = self.now
        plan = None if found is None else found.plan.shadow
        return ShadowLog(names, quantile=0.95 if plan is None else plan.quantile, budget_s=budget_s)

    def outcome(
        self, episode: int, success: bool, violations: int = 0, shadow: Mapping[str, Any] | None = None
    ) -> Word:
        """Tell what became of an episode; it is written down before this returns.

        Args:
            episode: its number, as it was given to `assign`.
            success: whether it succeeded.
            violations: control steps at which a safety limit was broken.
            shadow: `ShadowLog.summary`, where the candidate is in shadow.

        Returns:
            ``abort`` where the candidate must not act any more, from this moment on; it is no candidate then.

        Raises:
            InputError: the episode was told already, or a shadow's episode comes without its log.
        """
        with self.registry.changing() as connection:
            found = self._now(connection)
            if found is None:
                return "go on"
            arm: Arm = _drawn(found, episode) if found.stage == "canary" else "champion"
            told = EpisodeOutcome(episode=episode, arm=arm, success=success, violations=violations, shadow=shadow)
            self._insert(connection, found, told)
            judgement = self._judge(connection, found)
            if judgement.state != "going":
                self._leave(connection, found, judgement)
        return "abort" if judgement.state == "abort" else "go on"

    def judgement(self) -> StageDecision | None:
        """How the present stage stands; None where no candidate is on its way."""
        with self.registry.workspace.state.snapshot() as connection:
            found = self._now(connection)
            return None if found is None else self._judge(connection, found)

    def history(self) -> list[CandidateStage]:
        """Every candidate of this deployment, in the order in which they last moved."""
        rows = self.registry.workspace.state.rows(f"{_STANDINGS} ORDER BY since, rowid", (self.registry.deployment,))
        return [_standing(tuple(row.values())) for row in rows]

    def of(self, policy: str) -> CandidateStage | None:
        """Where one version is; None where it never left offline."""
        return next((one for one in self.history() if one.policy == policy), None)

    def _now(self, connection: sqlite3.Connection) -> CandidateStage | None:
        row = connection.execute(
            f"{_STANDINGS} AND stage IN ('shadow', 'canary')", (self.registry.deployment,)
        ).fetchone()
        return None if row is None else _standing(row)

    def _insert(self, connection: sqlite3.Connection, found: CandidateStage, told: EpisodeOutcome) -> None:
        if found.stage == "shadow" and told.shadow is None:
            raise InputError(
                f"Episode {told.episode}: {found.policy} is in shadow, and nothing is said of its commands. Give "
                "shadow=ShadowLog.summary()."
            )
        key = (self.registry.deployment, found.policy, found.run_seed, found.stage, told.episode)
        known = connection.execute(
            "SELECT 1 FROM release_episodes "
            "WHERE deployment = ? AND policy = ? AND run_seed = ? AND stage = ? AND episode = ?",
            key,
        ).fetchone()
        if known:
            raise InputError(
                f"Episode {told.episode} of {found.policy} in {found.stage} was told already. Number episodes onwards: "
                "an episode counts once."
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

    def _leave(self, connection: sqlite3.Connection, found: CandidateStage, judgement: StageDecision) -> None:
        """Into the next stage, or out."""
        aborted = judgement.state == "abort"
        following = found.plan.after(found.stage)
        stage: Stage = "aborted" if aborted else "passed" if following == "champion" else following
        moved: dict[str, str | None] = {found.stage: None}
        if aborted:
            moved["candidate"] = None
        elif stage == "canary":
            moved["canary"] = found.policy
        enter(self.registry, connection, found.policy, stage, reason=judgement.reason if aborted else "")
        details = {"stage": stage, "reason": judgement.reason, "figures": dict(judgement.figures)}
        self.registry.write(connection, "abort" if aborted else "stage", found.policy, moved, details)


def begin(
    registry: PolicyRegistry,
    connection: sqlite3.Connection,
    policy: str,
    stage: Stage,
    plan: StagePlan,
    champion: str | None,
) -> None:
    """Put a candidate into its first stage, within a transaction; the length of the log seeds who acts when."""
    run_seed = connection.execute("SELECT count(*) FROM release_audit").fetchone()[0]
    connection.execute(
        "INSERT OR REPLACE INTO release_stages VALUES (?, ?, ?, ?, ?, ?, ?, NULL)",
        (registry.deployment, policy, champion, stage, dumps(plan.to_json()), run_seed, now()),
    )


def enter(
    registry: PolicyRegistry, connection: sqlite3.Connection, policy: str, stage: Stage, *, reason: str = ""
) -> None:
    """Put a version into a stage, within a transaction; one that was never sent anywhere has an empty plan."""
    connection.execute(
        "INSERT OR IGNORE INTO release_stages VALUES (?, ?, NULL, ?, '{}', 0, ?, NULL)",
        (registry.deployment, policy, stage, now()),
    )
    connection.execute(
        "UPDATE release_stages SET stage = ?, since = ?, reason = ? WHERE deployment = ? AND policy = ?",
        (stage, now(), reason or None, registry.deployment, policy),
    )


def _drawn(found: CandidateStage, episode: int) -> Arm:
    assert found.plan.canary is not None  # noqa: S101 - asked in canary only
    draw = float(uniforms(found.run_seed, f"canary/{found.policy}", [episode])[0, 0])
    return "canary" if draw < found.plan.canary.share else "champion"


def _standing(row: Sequence[Any]) -> CandidateStage:
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
