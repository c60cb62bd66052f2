"""Configuration of a gate, written in YAML.

::

    candidate: pick@2             # a version, an alias, or the folder of a saved policy
    champion: champion            # the policy it is compared with; null if there is none yet
    evidence: {candidate: [runs/evaluate/new], champion: [runs/evaluate/old]}
    success: {within: 0.05}       # not worse by more than 5 points; or {better: 0.0}: better
    floor: {success: 0.5}         # of every slice, including the worst
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
from twinloop.tasks import DEFAULT_TASK
from twinloop.twin.spec import describe_errors

Looks = Literal["any", "once"]
_RULES = ("success", "floor", "regressions", "latency", "context")  # that a file must give or waive
Metric = Literal["success", "progress"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WaivedRule(_Part):
    """A rule that a person waived, with the reason; the decision and the log record it."""

    waived: str = Field(min_length=3)

    @model_validator(mode="before")
    @classmethod
    def _check_alone(cls, value: Any) -> Any:
        beside = [str(key) for key in value if key != "waived"] if isinstance(value, dict) else []
        if beside:
            raise ValueError(
                f"a rule is either waived or given, but this one is both: leave out waived, or {', '.join(beside)}"
            )
        return value


def _choose_tag(value: Any) -> str:
    """Return whether a value is a rule or a waived rule, so that a wrong value is checked against that form only."""
    return "[waived]" if isinstance(value, WaivedRule) or (isinstance(value, dict) and "waived" in value) else "[given]"


_Rule = TypeVar("_Rule", bound=_Part)
_OrWaived = Annotated[
    Annotated[_Rule, Tag("[given]")] | Annotated[WaivedRule, Tag("[waived]")], Discriminator(_choose_tag)
]


class SuccessRule(_Part):
    """Rule for the candidate's success rate compared with the champion's, on the same trials.

    ``within``: it must not be lower by this margin or more. ``better``: it must be higher by more than this.
    ``slices``: it must not be lower by this margin or more in any slice. ``suites`` and ``domain`` select the trials;
    by default all that are not in a regression suite.
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
        """The difference that must be exceeded."""
        return -self.within if self.within is not None else float(self.better or 0.0)


class RobotRule(_Part):
    """Rule for the candidate's success rate compared with the champion's in trials on a robot, if there are any.

    ``within``: it must not be lower by this margin or more. These trials are tested separately, so that a gain in
    simulation cannot compensate for a loss on the robot. ``suites`` are the suites that were run on a robot, including
    a virtual one; every evaluation of the domain ``real`` is also used.
    """

    within: float = Field(default=0.1, gt=0, lt=1)
    suites: tuple[str, ...] = ("real",)


class ImprovementRule(_Part):
    """One of several effects, of which at least one must be shown: of a metric, in all trials or in one slice."""

    metric: Metric = "success"
    slice: str | None = None
    better: float = Field(default=0.0, ge=0, lt=1)


class FloorRule(_Part):
    """Success rate that must be shown for every slice."""

    success: float = Field(gt=0, lt=1)


class InvariantRule(_Part):
    """Conditions for every trial: no violation of a safety limit; success in every trial of ``must_succeed``.

    ``invalid`` is the largest share of trials in an invalid world; each of them also counts as a failure.
    """

    violations: Literal[0] = 0
    invalid: float = Field(default=0.0, ge=0, lt=1)
    must_succeed: tuple[str, ...] = ()


class RegressionRule(_Part):
    """The candidate must handle every stored failure that the champion handles.

    A scenario is handled if at least the share ``handled`` of its trials succeeds.
    """

    suites: tuple[str, ...] = ("failures",)
    handled: float = Field(default=0.5, gt=0, le=1)


class LatencyRule(_Part):
    """Time limit for a command: the ``quantile`` over trials of their mean time, with its upper confidence limit."""

    budget_s: float = Field(gt=0)
    quantile: float = Field(default=0.95, gt=0, lt=1)


class ContextRule(_Part):
    """Environment in which the candidate will run; its training must cover it.

    ``contract`` is a JSON file of the environment's contract; by default the contract of ``twin`` and ``task`` is used.
    ``distribution`` is the folder of an identify run: its intervals of ``level`` must be within the ranges of the
    training data. Without it, the training data must come from this twin.
    """

    twin: str | None = None
    task: str = DEFAULT_TASK
    contract: Path | None = None
    cameras: dict[str, tuple[int, int]] = Field(default_factory=dict)
    distribution: Path | None = None
    level: float = Field(default=0.95, gt=0, lt=1)
    parameters: tuple[str, ...] = ("*",)

    @model_validator(mode="after")
    def _check_environment(self) -> ContextRule:
        if self.twin is None and (self.contract is None or self.distribution is None):
            raise ValueError("give twin, or both contract and distribution")
        return self


class ShadowStage(_Part):
    """Settings of the shadow stage; the keys are the fields of `plan.ShadowPlan`."""

    limit: float = Field(gt=0)
    quantile: float = Field(default=0.95, gt=0, lt=1)
    episodes: int = Field(default=10, ge=1)


class CanaryStage(_Part):
    """Settings of the canary stage; the keys are the fields of `plan.CanaryPlan`."""

    share: float = Field(default=0.1, gt=0, lt=1)
    episodes: int = Field(default=50, ge=1)
    alpha: float = Field(default=0.05, gt=0, lt=1)


class StagesSection(_Part):
    """Stages after a passed gate; null leaves one out. A first champion has none by default."""

    shadow: ShadowStage | None = None
    canary: CanaryStage | None = Field(default_factory=CanaryStage)


class EvidenceSection(_Part):
    """Folders of evaluations."""

    candidate: tuple[Path, ...]
    champion: tuple[Path, ...] = ()


class GateConfig(_Part):
    """A gate. ``alpha`` is the probability of passing a candidate that breaks a tested rule, shared by all rules.

    ``looks`` ``any``: the evidence may be examined again when there are more trials. ``once``: exact tests at the
    planned number of trials, which need fewer trials; a second look is refused.
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
        """Give a first champion no stages, unless the file has them."""
        if isinstance(value, dict) and "stages" not in value and value.get("champion", "") is None:
            return {**value, "stages": {"shadow": None, "canary": None}}
        return value

    @property
    def plan(self) -> StagePlan:
        """Plan of the later stages."""
        return StagePlan.from_json(self.stages.model_dump())

    @property
    def regression_suites(self) -> tuple[str, ...]:
        """Suites that only the regression rule uses."""
        return self.regressions.suites if isinstance(self.regressions, RegressionRule) else ("failures",)


def parse_gate(value: Any, *, where: str = "the gate") -> GateConfig:
    """Return a checked gate from plain values.

    Raises:
        InputError: a key is wrong or missing; names all of them.
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
    """Read the gate from a YAML file; paths in it are relative to the file.

    Raises:
        InputError: it is missing, is not YAML, or a key is wrong or missing.
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
