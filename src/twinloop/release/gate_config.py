"""Read and check the configuration of a gate, which is written in YAML.

Example::

    candidate: pick@2             # a version, an alias, or the folder of a saved policy
    champion: champion            # the policy it is compared with; null if there is none yet
    evidence: {candidate: [runs/evaluate/new], champion: [runs/evaluate/old]}
    success: {within: 0.05}       # not worse by more than 5 points; or {better: 0.0}: better
    floor: {success: 0.5}         # in every slice (condition of a suite)
    robot: {within: 0.1}          # not worse by 10 points in trials on a robot, if there are any
    regressions: {suites: [failures]}
    latency: {quantile: 0.95, budget_s: 0.03}
    context: {twin: so101_tabletop, distribution: runs/identify/arm}
    stages: {shadow: {limit: 10}, canary: {share: 0.1, episodes: 50}}

Every rule is either given or waived with a reason: ``latency: {waived: "tried on another computer"}``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from twinloop.core.errors import InputError
from twinloop.core.extension import mark_foreign
from twinloop.core.trials import Domain
from twinloop.core.yaml_documents import load_yaml
from twinloop.release.plan import StagePlan
from twinloop.twin.spec import describe_errors

Looks = Literal["any", "once"]
_RULES = ("success", "floor", "regressions", "latency", "context")  # rules that a file must give or waive
Metric = Literal["success", "progress"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WaivedRule(_Section):
    """Rule that a person has waived; ``waived`` is the reason, which the decision and the audit log record."""

    waived: str = Field(min_length=3)

    @model_validator(mode="before")
    @classmethod
    def _check_alone(cls, value: Any) -> Any:
        others = [str(key) for key in value if key != "waived"] if isinstance(value, dict) else []
        if others:
            raise ValueError(
                f"a rule is either waived or given, but this one is both: leave out waived, or {', '.join(others)}"
            )
        return value


def _choose_tag(value: Any) -> str:
    """Return ``[waived]`` if a rule is waived (it has the key ``waived``), or ``[given]`` if it has settings.

    With this tag, Pydantic checks the value against one form only, so that its error messages are about the right form.
    """
    return "[waived]" if isinstance(value, WaivedRule) or (isinstance(value, dict) and "waived" in value) else "[given]"


_Rule = TypeVar("_Rule", bound=_Section)
_OrWaived = Annotated[
    Annotated[_Rule, Tag("[given]")] | Annotated[WaivedRule, Tag("[waived]")], Discriminator(_choose_tag)
]


class SuccessRule(_Section):
    """Rule for the difference of success rates, candidate minus champion, in the same trials.

    Attributes:
        within: margin by which the candidate's rate must not be lower, as a share; give either this or ``better``.
        better: margin by which the candidate's rate must be higher, as a share.
        slices: margin by which the rate must not be lower in any evaluation slice (one condition of a suite); not
            tested by default.
        suites: names of the suites to use; by default all suites that are not regression suites.
        domain: domain of the trials to use, ``sim`` or ``real``; by default both.
    """

    within: float | None = Field(default=None, gt=0, lt=1)
    better: float | None = Field(default=None, ge=0, lt=1)
    slices: float | None = Field(default=None, gt=0, lt=1)
    suites: tuple[str, ...] | None = None
    domain: Domain | None = None

    @model_validator(mode="after")
    def _check_one_margin(self) -> SuccessRule:
        if (self.within is None) == (self.better is None):
            raise ValueError("give either within (a margin: not worse) or better (a least effect: better)")
        return self

    @property
    def margin(self) -> float:
        """Value that the difference of success rates must exceed.

        It is −``within`` for a rule "not worse by more than ``within``", and ``better`` for "better by at least
        ``better``".
        """
        return -self.within if self.within is not None else float(self.better or 0.0)


class RobotRule(_Section):
    """Rule for the difference of success rates, candidate minus champion, in trials on a robot, if there are any.

    Robot trials are tested separately, so that a gain in simulation cannot compensate for a loss on the robot.

    Attributes:
        within: margin by which the candidate's rate must not be lower, as a share.
        suites: names of suites that were run on a robot, including a virtual robot. Every evaluation of the domain
            ``real`` is also used.
    """

    within: float = Field(default=0.1, gt=0, lt=1)
    suites: tuple[str, ...] = ("real",)


class ImprovementRule(_Section):
    """One of several possible improvements over the champion, of which at least one must be shown.

    Attributes:
        metric: metric that must improve, ``success`` or ``progress``.
        slice: evaluation slice (one condition of a suite) in which it must improve; by default all trials together.
        better: margin by which the mean must be higher, as a share.
    """

    metric: Metric = "success"
    slice: str | None = None
    better: float = Field(default=0.0, ge=0, lt=1)


class FloorRule(_Section):
    """Success rate, as a share, that must be shown in every evaluation slice (one condition of a suite)."""

    success: float = Field(gt=0, lt=1)


class InvariantRule(_Section):
    """Conditions on every trial of the candidate.

    Attributes:
        violations: allowed number of control steps that break a safety limit; always 0.
        invalid: largest allowed share of trials in an invalid world. Each of these trials also counts as a failure.
        must_succeed: names of evaluation slices (conditions of a suite) in which every trial must succeed.
    """

    violations: Literal[0] = 0
    invalid: float = Field(default=0.0, ge=0, lt=1)
    must_succeed: tuple[str, ...] = ()


class RegressionRule(_Section):
    """Rule that the candidate must handle every stored failure that the champion handles.

    Attributes:
        suites: names of the suites in which stored failures are repeated.
        handled: share of a scenario's trials that must succeed for the scenario to count as handled.
    """

    suites: tuple[str, ...] = ("failures",)
    handled: float = Field(default=0.5, gt=0, le=1)


class LatencyRule(_Section):
    """Limit for the time that the candidate takes for a command.

    Attributes:
        budget_s: largest allowed time in s; the upper confidence limit of the quantile must not exceed it.
        quantile: quantile, over trials, of the mean time per command in a trial.
    """

    budget_s: float = Field(gt=0)
    quantile: float = Field(default=0.95, gt=0, lt=1)


class ContextRule(_Section):
    """Environment in which the candidate will run; its training data must cover this environment.

    Attributes:
        twin: name or path of the environment's twin. If no distribution is given, training data must come from this
            twin; otherwise it is by default the twin that the candidate keeps.
        task: name of the task or ``FILE.py:CLASS``, which determines the offered contract together with the twin; by
            default the task that the candidate keeps, or that of its contract.
        contract: JSON file with the contract that the environment offers; by default computed from ``twin`` and
            ``task``.
        cameras: height and width in pixels of each camera's images, by name, for the computed contract.
        distribution: folder of an identify run; its parameter intervals must be within the ranges of the training data.
        level: confidence level of these intervals.
        parameters: patterns of the names of the parameters to compare; by default all.
    """

    twin: str | None = None
    task: str | None = None
    contract: Path | None = None
    cameras: dict[str, tuple[int, int]] = Field(default_factory=dict)
    distribution: Path | None = None
    level: float = Field(default=0.95, gt=0, lt=1)
    parameters: tuple[str, ...] = ("*",)

    @model_validator(mode="after")
    def _check_environment(self) -> ContextRule:
        if self.twin is None and self.distribution is None:
            raise ValueError("give twin, or distribution (the folder of an identify run)")
        return self


class ShadowStage(_Section):
    """Settings of the shadow stage, see `plan.ShadowPlan`.

    Attributes:
        limit: largest allowed distance of the candidate's commands from the champion's, in the unit of the commands.
        quantile: quantile, over the steps of an episode, of the largest difference of any joint; it is compared with
            the limit.
        episodes: number of episodes after which the stage is passed.
    """

    limit: float = Field(gt=0)
    quantile: float = Field(default=0.95, gt=0, lt=1)
    episodes: int = Field(default=10, ge=1)


class CanaryStage(_Section):
    """Settings of the canary stage: share of episodes, number of episodes and error level; see `plan.CanaryPlan`."""

    share: float = Field(default=0.1, gt=0, lt=1)
    episodes: int = Field(default=50, ge=1)
    alpha: float = Field(default=0.05, gt=0, lt=1)


class StagesSection(_Section):
    """Stages after a passed gate: shadow (commands are not sent) and canary (some episodes). Null skips a stage.

    By default, there is no shadow stage, and a candidate becomes the first champion without a canary stage.
    """

    shadow: ShadowStage | None = None
    canary: CanaryStage | None = Field(default_factory=CanaryStage)


class EvidenceSection(_Section):
    """Folders with the evaluations of candidate and champion."""

    candidate: tuple[Path, ...]
    champion: tuple[Path, ...] = ()


class GateConfig(_Section):
    """Rules and settings of a gate, see the example in `gate_config`.

    Attributes:
        candidate: version, alias or policy folder of the candidate.
        champion: version, alias or policy folder of the policy that it would replace; None if there is no champion yet.
        evidence: folders of the evaluations.
        alpha: largest probability of passing a candidate that breaks a tested rule, for all rules together.
        looks: ``any`` allows to evaluate the gate again whenever there are more trials. ``once`` uses exact tests at
            the planned number of trials, which need fewer trials; a second evaluation is refused.
        success: rule for the success rate compared with the champion.
        improves: improvements of which at least one must be shown; empty for no such requirement.
        floor: rule for the smallest success rate of an evaluation slice (condition of a suite).
        robot: rule for trials on a robot.
        invariants: conditions on every trial.
        regressions: rule for stored failures.
        latency: rule for the time per command.
        context: rule for the environment in which the candidate will run.
        stages: stages after a passed gate.
    """

    candidate: str
    champion: str | None = "champion"
    evidence: EvidenceSection | None = None
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    looks: Looks = "any"
    success: _OrWaived[SuccessRule]
    improves: tuple[ImprovementRule, ...] = ()
    floor: _OrWaived[FloorRule]
    robot: _OrWaived[RobotRule] = Field(default_factory=RobotRule)
    invariants: _OrWaived[InvariantRule] = Field(default_factory=InvariantRule)
    regressions: _OrWaived[RegressionRule]
    latency: _OrWaived[LatencyRule]
    context: _OrWaived[ContextRule]
    stages: StagesSection = Field(default_factory=StagesSection)

    @model_validator(mode="before")
    @classmethod
    def _set_default_stages(cls, value: Any) -> Any:
        """Set the stages shadow and canary to null if ``champion`` is null, unless the file contains ``stages``.

        Without a champion there is no policy to compare the candidate with.
        """
        if isinstance(value, dict) and "stages" not in value and value.get("champion", "") is None:
            return {**value, "stages": {"shadow": None, "canary": None}}
        return value

    @property
    def plan(self) -> StagePlan:
        """Plan of the stages after a passed gate."""
        return StagePlan.from_json(self.stages.model_dump())

    @property
    def regression_suites(self) -> tuple[str, ...]:
        """Names of the suites that repeat stored failures, which only the regression rule uses."""
        return self.regressions.suites if isinstance(self.regressions, RegressionRule) else ("failures",)


def parse_gate(value: Any, *, where: str = "the gate") -> GateConfig:
    """Return the checked configuration of a gate from plain Python values, such as the content of a YAML file.

    Args:
        value: dictionary with the keys of `GateConfig`.
        where: name of the source for error messages.

    Raises:
        InputError: If a key is wrong or missing.
    """
    try:
        return GateConfig.model_validate(value)
    except ValidationError as error:
        absent = any(
            (item["type"] == "missing" or item["input"] is None) and item["loc"][0] in _RULES for item in error.errors()
        )
        more = (
            f"\nGive or waive every rule ({', '.join(_RULES)}); to waive one, write {{waived: WHY}}." if absent else ""
        )
        raise InputError(describe_errors(error, where=where, model=GateConfig) + more) from error


def read_gate(path: Path) -> GateConfig:
    """Read the configuration of a gate from a YAML file; paths in the file are relative to its folder.

    Raises:
        InputError: If the file is missing or not YAML, or a key in it is wrong or missing.
    """
    config = parse_gate(mark_foreign(load_yaml(path), path), where=str(path))
    at = path.parent
    update: dict[str, Any] = {}
    if config.evidence is not None:
        folders = {name: tuple(at / item for item in given) for name, given in config.evidence}
        update["evidence"] = EvidenceSection(**folders)
    if isinstance(config.context, ContextRule):
        moved = {name: getattr(config.context, name) for name in ("contract", "distribution")}
        given = {name: at / item for name, item in moved.items() if item is not None}
        update["context"] = config.context.model_copy(update=given)
    return config.model_copy(update=update)
