"""What a gate asks, as a person writes it in YAML.

::

    candidate: pick@2             # a version, an alias, or the folder of a saved policy
    champion: champion            # what it is compared with; null where there is none yet
    evidence: {candidate: [runs/evaluate/new], champion: [runs/evaluate/old]}
    success: {within: 0.05}       # not worse by more than 5 points; or {better: 0.0}: better
    floor: {success: 0.5}         # of every slice, the worst too
    robot: {within: 0.1}          # not worse there by 10 points, where there are trials on a robot
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
from twinloop.twin.spec import describe

Looks = Literal["any", "once"]
_RULES = ("success", "floor", "regressions", "latency", "context")  # that a file has to speak of
Metric = Literal["success", "progress"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WaivedRule(_Part):
    """A rule that a person took away, and why; the decision and the log keep it."""

    waived: str = Field(min_length=3)

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, value: Any) -> Any:
        beside = [str(key) for key in value if key != "waived"] if isinstance(value, dict) else []
        if beside:
            raise ValueError(
                f"a rule is waived or given, and this one is both: leave out waived, or {', '.join(beside)}"
            )
        return value


def _given_or_waived(value: Any) -> str:
    """Which of both a value is meant to be, so that a wrong one is held against that alone."""
    return "[waived]" if isinstance(value, WaivedRule) or (isinstance(value, dict) and "waived" in value) else "[given]"


_Rule = TypeVar("_Rule", bound=_Part)
_OrWaived = Annotated[
    Annotated[_Rule, Tag("[given]")] | Annotated[WaivedRule, Tag("[waived]")], Discriminator(_given_or_waived)
]


class SuccessRule(_Part):
    """The candidate's success against the champion's, on the same trials.

    ``within``: it is not lower by that much or more. ``better``: it is higher by more than that. ``slices``: it is in
    no slice lower by that much or more. ``suites`` and ``domain`` name what counts; by default all that is no
    regression suite.
    """

    within: float | None = Field(default=None, gt=0, lt=1)
    better: float | None = Field(default=None, ge=0, lt=1)
    slices: float | None = Field(default=None, gt=0, lt=1)
    suites: tuple[str, ...] | None = None
    domain: Domain | None = None

    @model_validator(mode="after")
    def _one(self) -> SuccessRule:
        if (self.within is None) == (self.better is None):
            raise ValueError("give either within (a margin: not worse) or better (a least effect: better)")
        return self

    @property
    def margin(self) -> float:
        """The difference that has to be exceeded."""
        return -self.within if self.within is not None else float(self.better or 0.0)


class RobotRule(_Part):
    """The candidate's success against the champion's in their trials on a robot, wherever there are such trials.

    ``within``: it is not lower by that much or more, tested on these trials by themselves, so that no gain in
    simulation makes up for a loss on the robot. ``suites`` name what was tried on a robot, a virtual one too, beside
    every evaluation of the domain ``real``.
    """

    within: float = Field(default=0.1, gt=0, lt=1)
    suites: tuple[str, ...] = ("real",)


class ImprovementRule(_Part):
    """One of several effects of which at least one must be shown: of a metric, in all trials or in one slice."""

    metric: Metric = "success"
    slice: str | None = None
    better: float = Field(default=0.0, ge=0, lt=1)


class FloorRule(_Part):
    """The success rate that every slice must be shown to reach."""

    success: float = Field(gt=0, lt=1)


class InvariantRule(_Part):
    """What must hold in every trial: no violation of a safety limit; success in every trial of ``must_succeed``.

    ``invalid`` is the share of trials that may be lost to a diverged world; each counts as a failure besides.
    """

    violations: Literal[0] = 0
    invalid: float = Field(default=0.0, ge=0, lt=1)
    must_succeed: tuple[str, ...] = ()


class RegressionRule(_Part):
    """No stored failure that the champion handles and the candidate does not.

    A scenario is handled where at least the share ``handled`` of its trials succeed.
    """

    suites: tuple[str, ...] = ("failures",)
    handled: float = Field(default=0.5, gt=0, le=1)


class LatencyRule(_Part):
    """How long a command may take: the ``quantile`` over trials of their mean, with its upper limit of confidence."""

    budget_s: float = Field(gt=0)
    quantile: float = Field(default=0.95, gt=0, lt=1)


class ContextRule(_Part):
    """Where the candidate will run, and that it was trained for that.

    ``contract`` is a JSON file of what the place offers; without it, what ``twin`` and ``task`` offer. ``distribution``
    is the folder of an identify run: its intervals of ``level`` must lie within what the training data drew. Without
    one, the training data must come from this very twin.
    """

    twin: str | None = None
    task: str = DEFAULT_TASK
    contract: Path | None = None
    cameras: dict[str, tuple[int, int]] = Field(default_factory=dict)
    distribution: Path | None = None
    level: float = Field(default=0.95, gt=0, lt=1)
    parameters: tuple[str, ...] = ("*",)

    @model_validator(mode="after")
    def _place(self) -> ContextRule:
        if self.twin is None and (self.contract is None or self.distribution is None):
            raise ValueError("give twin, or both contract and distribution")
        return self


class ShadowStage(_Part):
    """See `plan.ShadowPlan`."""

    limit: float = Field(gt=0)
    quantile: float = Field(default=0.95, gt=0, lt=1)
    episodes: int = Field(default=10, ge=1)


class CanaryStage(_Part):
    """See `plan.CanaryPlan`."""

    share: float = Field(default=0.1, gt=0, lt=1)
    episodes: int = Field(default=50, ge=1)
    alpha: float = Field(default=0.05, gt=0, lt=1)


class StagesSection(_Part):
    """Which stages follow on a yes; null leaves one out, as is usual for a first champion, who has nobody beside it."""

    shadow: ShadowStage | None = None
    canary: CanaryStage | None = Field(default_factory=CanaryStage)


class EvidenceSection(_Part):
    """Folders of evaluations."""

    candidate: tuple[Path, ...]
    champion: tuple[Path, ...] = ()


class GateConfig(_Part):
    """A gate. ``alpha`` is the chance of a yes to a candidate that breaks a tested rule, spent once over all of them.

    ``looks`` ``any``: the evidence may be looked at again when more trials have come in. ``once``: exact tests at the
    number of trials that was planned, which need fewer; a second look is refused.
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
    def _first(cls, value: Any) -> Any:
        """A first champion has no stages, unless the file gives them."""
        if isinstance(value, dict) and "stages" not in value and value.get("champion", "") is None:
            return {**value, "stages": {"shadow": None, "canary": None}}
        return value

    @property
    def plan(self) -> StagePlan:
        """What later stages ask for."""
        return StagePlan.from_json(self.stages.model_dump())

    @property
    def regression_suites(self) -> tuple[str, ...]:
        """Suites that are judged by the rule of regressions alone."""
        return self.regressions.suites if isinstance(self.regressions, RegressionRule) else ("failures",)


def parse_gate(value: Any, *, where: str = "the gate") -> GateConfig:
    """A checked gate from plain values.

    Raises:
        InputError: names every key that is wrong or missing.
    """
    try:
        return GateConfig.model_validate(value)
    except ValidationError as error:
        absent = any(
            (item["type"] == "missing" or item["input"] is None) and item["loc"][0] in _RULES for item in error.errors()
        )
        more = f"\nEvery rule ({', '.join(_RULES)}) is given or waived: {{waived: WHY}}." if absent else ""
        raise InputError(describe(error, where=where, model=GateConfig) + more) from error


def read_gate(path: Path) -> GateConfig:
    """The gate in a YAML file; paths in it are taken from where the file lies.

    Raises:
        InputError: it is missing, no YAML, or a key is wrong or missing.
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
