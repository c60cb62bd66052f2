"""Stages between a passed gate and the champion, their requirements, and the rules that end them.

All functions depend only on the outcomes so far, which `stages` stores.
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
    """Stage in which the candidate computes commands but does not act.

    ``limit`` is the largest distance of its commands from the champion's, in the unit of the commands: the ``quantile``
    over an episode's steps of the largest difference of any joint. It depends on robot and task and has no default.
    """

    limit: float
    quantile: float = 0.95
    episodes: int = 10

    def __post_init__(self) -> None:
        _require_between("quantile", self.quantile, 0.0, 1.0)
        if not self.limit > 0 or self.episodes < 1:
            raise InputError(
                f"A shadow needs a limit above 0 and at least 1 episode, not {self.limit:g} and {self.episodes}."
            )


@dataclass(frozen=True, kw_only=True)
class CanaryPlan:
    """Stage in which the candidate acts in a ``share`` of the episodes until it has acted in ``episodes``.

    It is aborted at the first violation of a safety limit, or when the sequential test shows that it succeeds less
    often than the champion in the same period. ``alpha`` is the probability of this for a candidate that is as good,
    for any number of looks.
    """

    share: float = 0.1
    episodes: int = 50
    alpha: float = 0.05

    def __post_init__(self) -> None:
        _require_between("share", self.share, 0.0, 1.0)
        _require_between("alpha", self.alpha, 0.0, 1.0)
        if self.episodes < 1:
            raise InputError(f"A canary of {self.episodes} episodes has no result. Give at least one.")

    @property
    def block_sizes(self) -> tuple[int, int]:
        """Numbers of canary and champion episodes in one block of the test, close to their expected ratio."""
        odds = (1 - self.share) / self.share
        return (1, max(1, round(odds))) if odds >= 1 else (max(1, round(1 / odds)), 1)


@dataclass(frozen=True, kw_only=True)
class StagePlan(JsonRecord):
    """Stages of a candidate; None leaves one out."""

    shadow: ShadowPlan | None = None
    canary: CanaryPlan | None = field(default_factory=CanaryPlan)

    @property
    def order(self) -> tuple[Stage, ...]:
        """The stages in order; the last one is ``champion``."""
        return (*(("shadow",) if self.shadow else ()), *(("canary",) if self.canary else ()), "champion")

    def get_next_stage(self, stage: Stage) -> Stage:
        """Return the stage after ``stage``; after the last stage this is ``champion``."""
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
    """Outcome of an episode; ``shadow`` is the difference of the candidate's commands if it was in shadow."""

    episode: int
    arm: Arm
    success: bool
    violations: int = 0
    shadow: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class StageDecision:
    """State of a stage: going, passed or to be aborted, with a reason and metrics."""

    state: State
    reason: str
    figures: Mapping[str, Any]


def judge_shadow(plan: ShadowPlan, told: Sequence[EpisodeOutcome]) -> StageDecision:
    """Decide whether a candidate in shadow stays close enough to the champion."""
    seen = [(one.episode, one.shadow) for one in told if one.shadow is not None]
    figures = {"episodes": len(seen), "of": plan.episodes, "largest": max((s["value"] for _, s in seen), default=None)}
    for episode, shadow in seen:
        if shadow["faults"]:
            reason = f"Episode {episode}: the shadow gave no command at {shadow['faults']} steps ({shadow['fault']})."
            return StageDecision(state="abort", reason=reason, figures=figures)
        if shadow["value"] > plan.limit:
            reason = (
                f"Episode {episode}: commands differ by {shadow['value']:.4g} at the {plan.quantile:g} quantile of its "
                f"steps, most in {shadow['joint']}; the limit is {plan.limit:g}."
            )
            return StageDecision(state="abort", reason=reason, figures=figures)
    state: State = "passed" if len(seen) >= plan.episodes else "going"
    return StageDecision(state=state, reason=f"{len(seen)} of {plan.episodes} episodes in shadow.", figures=figures)


def judge_canary(plan: CanaryPlan, told: Sequence[EpisodeOutcome]) -> StageDecision:
    """Decide whether a canary broke no limit and is not shown to be worse than the champion in the same period."""
    mine = [one for one in told if one.arm == "canary"]
    others = [one for one in told if one.arm == "champion"]
    figures: dict[str, Any] = {
        "canary": {"episodes": len(mine), "of": plan.episodes, "successes": sum(one.success for one in mine)},
        "champion": {"episodes": len(others), "successes": sum(one.success for one in others)},
        "violations": sum(one.violations > 0 for one in mine),
    }
    broken = next((one for one in mine if one.violations), None)
    if broken is not None:
        reason = f"Episode {broken.episode}: {broken.violations} control steps beyond a safety limit."
        return StageDecision(state="abort", reason=reason, figures=figures)
    from twinloop.stats import decision_blocks

    wealth = compute_canary_wealth(plan, [one.success for one in mine], [one.success for one in others])
    figures["p_worse"] = float(np.exp(-max(wealth.max(initial=0.0), 0.0)))
    if len(wealth) and int(decision_blocks(wealth, alpha=plan.alpha)):
        reason = (
            f"The canary succeeds less often: {figures['canary']['successes']} of {len(mine)} against "
            f"{figures['champion']['successes']} of {len(others)} of the champion, p = {figures['p_worse']:.2g} "
            f"valid at every look."
        )
        return StageDecision(state="abort", reason=reason, figures=figures)
    state: State = "passed" if len(mine) >= plan.episodes else "going"
    return StageDecision(state=state, reason=f"{len(mine)} of {plan.episodes} episodes as canary.", figures=figures)


def compute_canary_wealth(plan: CanaryPlan, canary: ArrayLike, champion: ArrayLike) -> NDArray[np.float64]:
    """Return the log wealth after each block against "the canary is as good", empty before the first full block.

    Each arm is a queue in the order of its recorded episodes. The acting policy is drawn independently of the episode,
    so that blocks of the two queues are trials of two rates (`stats.sequential`).

    Args:
        plan: plan with the number of episodes of each arm in a block.
        canary: successes of the episodes in which the canary acted, ``(…, n)``.
        champion: successes of the champion's episodes in the same period, ``(…, m)``.

    Returns:
        ``(…, nblock)``.
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
