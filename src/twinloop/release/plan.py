"""Define the stages between a passed gate and the champion, and decide when a candidate passes or leaves a stage.

All functions depend only on their arguments. The module `stages` stores the outcomes of the episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.plain import JsonRecord

Stage = Literal["offline", "shadow", "canary", "passed", "champion", "aborted", "rolled back", "retired"]
Arm = Literal["champion", "canary"]
State = Literal["going", "passed", "abort"]


@dataclass(frozen=True, kw_only=True)
class ShadowPlan:
    """Plan of the shadow stage, in which the candidate computes commands but the champion acts.

    Attributes:
        limit: largest allowed distance of the candidate's commands from the champion's, in the unit of the commands.
            The distance of an episode is the ``quantile`` over its steps of the largest difference of any joint. The
            limit depends on robot and task, so it has no default.
        quantile: quantile of this distance, between 0 and 1.
        episodes: number of episodes after which the stage is passed.
    """

    limit: float
    quantile: float = 0.95
    episodes: int = 10

    def __post_init__(self) -> None:
        _require_between("quantile", self.quantile, 0.0, 1.0)
        if not self.limit > 0 or self.episodes < 1:
            raise InputError(
                f"A shadow stage needs a limit above 0 and at least 1 episode, but the limit is {self.limit:g} and the "
                f"number of episodes is {self.episodes}. Correct them in the plan."
            )


@dataclass(frozen=True, kw_only=True)
class CanaryPlan:
    """Plan of the canary stage, in which the candidate acts in a random part of the episodes.

    The stage is aborted at the first violation of a safety limit by the candidate. It is also aborted if a sequential
    test shows that the candidate succeeds less often than the champion in the same period.

    Attributes:
        share: probability that the candidate acts in an episode.
        episodes: number of episodes in which the candidate must act before the stage is passed.
        alpha: probability that the test aborts a candidate that is as good as the champion, however often the results
            are checked.
    """

    share: float = 0.1
    episodes: int = 50
    alpha: float = 0.05

    def __post_init__(self) -> None:
        _require_between("share", self.share, 0.0, 1.0)
        _require_between("alpha", self.alpha, 0.0, 1.0)
        if self.episodes < 1:
            raise InputError(f"A canary stage of {self.episodes} episodes has no result. Give at least 1 episode.")

    @property
    def block_sizes(self) -> tuple[int, int]:
        """Numbers of candidate and champion episodes in a block of the sequential test.

        Their ratio is near that of the expected numbers of episodes: a ``share`` of 0.1 gives 1 and 9.
        """
        odds = (1 - self.share) / self.share
        return (1, max(1, round(odds))) if odds >= 1 else (max(1, round(1 / odds)), 1)


@dataclass(frozen=True, kw_only=True)
class StagePlan(JsonRecord):
    """Stages that a candidate has to pass before it becomes champion; a stage that is None is skipped."""

    shadow: ShadowPlan | None = None
    canary: CanaryPlan | None = field(default_factory=CanaryPlan)

    @property
    def order(self) -> tuple[Stage, ...]:
        """Names of the stages in order; the last name is ``champion``."""
        return (*(("shadow",) if self.shadow else ()), *(("canary",) if self.canary else ()), "champion")

    def get_next_stage(self, stage: Stage) -> Stage:
        """Return the stage after ``stage``; ``champion`` after the last stage, and for a stage outside the plan."""
        if stage == "offline":
            return self.order[0]
        return self.order[self.order.index(stage) + 1] if stage in self.order[:-1] else "champion"

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StagePlan:
        """Return a plan from its JSON value; the inverse of `to_json`."""
        shadow, canary = value.get("shadow"), value.get("canary")
        return cls(
            shadow=None if shadow is None else ShadowPlan(**shadow),
            canary=None if canary is None else CanaryPlan(**canary),
        )


@dataclass(frozen=True, kw_only=True)
class EpisodeOutcome:
    """Outcome of one episode on the robot.

    Attributes:
        episode: number of the episode.
        arm: arm of the comparison (no part of the robot), which is the policy that acted: ``canary`` (the candidate) or
            ``champion``.
        success: whether the episode succeeded; None if nobody judged it.
        violations: number of control steps at which a safety limit was broken.
        shadow: result of `ShadowLog.summary` if the candidate was in shadow, else None.
    """

    episode: int
    arm: Arm
    success: bool | None
    violations: int = 0
    shadow: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class StageDecision:
    """Decision about a stage, with its reason.

    Attributes:
        state: ``going`` (more episodes are needed), ``passed`` or ``abort``.
        reason: reason as a sentence.
        metrics: metrics behind the decision, by name.
    """

    state: State
    reason: str
    metrics: Mapping[str, Any]


def judge_shadow(plan: ShadowPlan, outcomes: Sequence[EpisodeOutcome]) -> StageDecision:
    """Decide whether the commands of a candidate in shadow stay close enough to those of the champion.

    The stage is aborted if the candidate gave no valid command at some step, or if the distance of an episode exceeds
    the plan's limit.

    Args:
        outcomes: outcomes of the episodes so far.
    """
    in_shadow = [(one.episode, one.shadow) for one in outcomes if one.shadow is not None]
    metrics = {
        "episodes": len(in_shadow),
        "of": plan.episodes,
        "largest": max((s["value"] for _, s in in_shadow), default=None),
    }
    for episode, shadow in in_shadow:
        if shadow["faults"]:
            reason = f"Episode {episode}: the shadow gave no command at {shadow['faults']} steps ({shadow['fault']})."
            return StageDecision(state="abort", reason=reason, metrics=metrics)
        if shadow["value"] > plan.limit:
            reason = (
                f"Episode {episode}: commands differ by {shadow['value']:.4g} at the {plan.quantile:g} quantile of its "
                f"steps, most in {shadow['joint']}; the limit is {plan.limit:g}."
            )
            return StageDecision(state="abort", reason=reason, metrics=metrics)
    state: State = "passed" if len(in_shadow) >= plan.episodes else "going"
    return StageDecision(
        state=state, reason=f"{len(in_shadow)} of {plan.episodes} episodes in shadow.", metrics=metrics
    )


def judge_canary(plan: CanaryPlan, outcomes: Sequence[EpisodeOutcome]) -> StageDecision:
    """Decide whether the candidate broke no safety limit and is not shown to succeed less often than the champion.

    Episodes with an unknown outcome count only if they broke a safety limit.

    Args:
        outcomes: outcomes of the episodes of both policies so far.
    """
    acted = [one for one in outcomes if one.arm == "canary"]
    mine = [one.success for one in acted if one.success is not None]
    others = [one.success for one in outcomes if one.arm == "champion" and one.success is not None]
    metrics: dict[str, Any] = {
        "canary": {"episodes": len(mine), "of": plan.episodes, "successes": sum(mine)},
        "champion": {"episodes": len(others), "successes": sum(others)},
        "unknown": sum(one.success is None for one in outcomes),
        "violations": sum(one.violations > 0 for one in acted),
    }
    broken = next((one for one in acted if one.violations), None)
    if broken is not None:
        reason = f"Episode {broken.episode}: {broken.violations} control steps beyond a safety limit."
        return StageDecision(state="abort", reason=reason, metrics=metrics)
    from twinloop.stats import decision_blocks

    wealth = compute_canary_wealth(plan, mine, others)
    metrics["p_worse"] = float(np.exp(-max(wealth.max(initial=0.0), 0.0)))
    if len(wealth) and int(decision_blocks(wealth, alpha=plan.alpha)):
        reason = (
            f"The canary succeeds less often: {metrics['canary']['successes']} of {len(mine)} against "
            f"{metrics['champion']['successes']} of {len(others)} of the champion, p = {metrics['p_worse']:.2g} "
            f"valid at every look."
        )
        return StageDecision(state="abort", reason=reason, metrics=metrics)
    state: State = "passed" if len(mine) >= plan.episodes else "going"
    unjudged = f", {len(acted) - len(mine)} more that nobody judged" if len(acted) > len(mine) else ""
    return StageDecision(
        state=state, reason=f"{len(mine)} of {plan.episodes} episodes as canary{unjudged}.", metrics=metrics
    )


def compute_canary_wealth(plan: CanaryPlan, canary: ArrayLike, champion: ArrayLike) -> NDArray[np.float64]:
    """Return the evidence against "the candidate succeeds as often as the champion", as the logarithm of an e-process.

    An e-process is a test statistic that may be evaluated at any time: if the hypothesis is true, the probability that
    it ever reaches 1/α is at most α (see `stats.sequential`). Its value is also called wealth, because it is the money
    of a bettor against the hypothesis.

    It is computed after each block of episodes. The episodes of each policy are put into blocks in the order in which
    they were recorded. This is valid because the acting policy is drawn independently of the episode.

    Args:
        plan: plan with the number of episodes of each policy in a block (`CanaryPlan.block_sizes`).
        canary: successes (0 or 1) of the episodes in which the candidate acted, shape ``(…, n)``.
        champion: successes (0 or 1) of the champion's episodes in the same period, shape ``(…, m)``.

    Returns:
        Logarithm after each full block, shape ``(…, nblock)``; empty before the first full block.
    """
    mine, others = np.asarray(canary, dtype=np.int64), np.asarray(champion, dtype=np.int64)
    size_mine, size_others = plan.block_sizes
    blocks = min(mine.shape[-1] // size_mine, others.shape[-1] // size_others)
    if not blocks:
        return np.zeros((*mine.shape[:-1], 0))
    from twinloop.stats import log_e_rates  # imported here, because a rollback must not wait for it

    return log_e_rates(
        _sum_blocks(mine, blocks, size_mine),
        _sum_blocks(others, blocks, size_others),
        size_a=size_mine,
        size_b=size_others,
        alternative="less",
    )


def _sum_blocks(won: NDArray[np.int64], blocks: int, size: int) -> NDArray[np.int64]:
    return won[..., : blocks * size].reshape(*won.shape[:-1], blocks, size).sum(axis=-1)


def _require_between(name: str, value: float, low: float, high: float) -> None:
    if not low < value < high:
        raise InputError(f"{name} must be between {low:g} and {high:g}, not {value:g}. Write 10 % as 0.1.")
