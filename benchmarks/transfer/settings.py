"""Define the settings of the transfer study: training conditions, robots, sizes, and the recipe of all policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from twinloop.core.errors import InputError

Worlds = Literal["nominal", "ranges", "point", "identified", "both"]
FIRST_ROBOT = 300  # lower seeds were used to choose the recipe
FIRST_MEMORY = 320  # of the study of memories, whose robots no other study has
PLACES = 77  # run seed of the initial conditions of the trials
DEMONSTRATED, DEMONSTRATIONS = 78, 10  # run seed of the initial conditions of the demonstrations, and their number


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One kind of worlds in which policies are taught.

    Attributes:
        number: number in the tables.
        worlds: ``nominal`` (nominal twin, only the places of objects vary), ``ranges`` (the twin's own, hand-written
            ranges), ``point`` (the identified values), ``identified`` (the identified distribution), or ``both`` (half
            of the worlds from the ranges, half from the identified distribution).
        label: label in the tables.
        policy: changes of the recipe that all conditions share, see `train.distill.DistillConfig`.
        name: name of the condition in folders; by default ``worlds``.
        base: number of the condition whose policy is adapted with demonstrations on the robot, as `twinloop train
            --adapt` does by default; 0 for a policy that is taught in the worlds.
    """

    number: int
    worlds: Worlds
    label: str
    policy: Mapping[str, Any] = field(default_factory=dict[str, Any])
    name: str = ""
    base: int = 0

    @property
    def folder(self) -> str:
        """Name of the condition in folders."""
        return self.name or self.worlds

    @property
    def per_robot(self) -> bool:
        """True if a separate policy is taught for each robot."""
        return self.base > 0 or self.worlds in ("point", "identified", "both")


_TRACKED: dict[str, Any] = {"inputs": ("*",)}  # the policy reads the position of the tool at every step
CONDITIONS = (
    Condition(number=1, worlds="nominal", label="nominal twin"),
    Condition(number=2, worlds="ranges", label="hand-written ranges"),
    Condition(number=3, worlds="point", label="identified values"),
    Condition(number=4, worlds="identified", label="identified distribution"),
    Condition(number=5, worlds="both", label="half hand-written ranges, half identified distribution"),
    Condition(
        number=6,
        worlds="ranges",
        label="hand-written ranges; four observations as input",
        policy={"settings": {"n_obs_steps": 4}},
        name="ranges-frames",
    ),
    Condition(
        number=7,
        worlds="ranges",
        label="hand-written ranges; a memory that estimates parameters",
        policy={"policy": "adaptive"},
        name="ranges-memory",
    ),
    Condition(number=8, worlds="ranges", label="(2), adapted with demonstrations", name="ranges-adapted", base=2),
    Condition(
        number=9, worlds="identified", label="(4), adapted with demonstrations", name="identified-adapted", base=4
    ),
    Condition(number=10, worlds="nominal", label="(1), the tool tracked", policy=_TRACKED, name="nominal-tool"),
    Condition(number=11, worlds="ranges", label="(2), the tool tracked", policy=_TRACKED, name="ranges-tool"),
)
TRANSFER, MEMORY = (1, 2, 3, 4, 5), (2, 6, 7)  # numbers of the conditions of the two studies
NUMBERS = {condition.number: condition for condition in CONDITIONS}
DIFFERENCES = (
    (4, 2), (5, 2), (4, 1), (2, 1), (4, 3), (5, 4), (6, 2), (7, 2), (7, 6), (8, 2), (9, 4), (10, 1), (11, 2), (11, 10),
)  # fmt: skip
Family = Literal["hidden", "drake", "ur5e"]
FAMILIES: tuple[Family, ...] = get_args(Family)

# `train.distill.DistillConfig` of every policy: the defaults, which were chosen in the twin's own randomized worlds.
RECIPE: dict[str, Any] = {}


@dataclass(frozen=True, kw_only=True)
class TransferSettings:
    """Settings of a study.

    Attributes:
        family: kind of robots; see `robots.open_family`.
        robots: number of robots.
        first: seed of the first robot; the others follow.
        seeds: number of training runs per condition.
        episodes: number of trials per policy and robot, from the same initial conditions for all.
        log: number of episodes from which each robot is identified, 8 s of teleoperation each.
        conditions: numbers of the compared `CONDITIONS`.
        recipe: configuration of every policy, see `train.distill.DistillConfig`.
    """

    family: Family = "hidden"
    robots: int = 10
    first: int = FIRST_ROBOT
    seeds: int = 3
    episodes: int = 30
    log: int = 4
    conditions: tuple[int, ...] = TRANSFER
    recipe: dict[str, Any] = field(default_factory=lambda: dict(RECIPE))

    def __post_init__(self) -> None:
        for name in ("robots", "seeds", "episodes", "log"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} {getattr(self, name)}: a study needs at least one.")
        if self.family not in FAMILIES:
            raise InputError(f"--family {self.family}: there are {', '.join(FAMILIES)}.")
        wrong = [number for number in self.conditions if number not in NUMBERS]
        if wrong or not self.conditions:
            raise InputError(
                f"--conditions {wrong[0] if wrong else '(none)'}: there are {', '.join(map(str, NUMBERS))}."
            )
        adapted = [number for number in self.conditions if NUMBERS[number].base]
        if adapted and self.family == "drake":
            raise InputError(
                f"--conditions {adapted[0]}: demonstrations are not recorded on robots of the family drake. Leave it "
                "out, or choose --family hidden or ur5e."
            )

    @property
    def selected_conditions(self) -> list[Condition]:
        """The selected conditions, in order of their numbers."""
        return [NUMBERS[number] for number in sorted(set(self.conditions))]

    @property
    def robot_seeds(self) -> list[int]:
        """Seeds of the robots."""
        return [self.first + n for n in range(self.robots)]

    def made_of(self) -> dict[str, Any]:
        """Return the settings that must be equal to continue a study in the same folder.

        Numbers of robots and training runs and the conditions are excluded, because they may be increased later.
        """
        return {key: item for key, item in asdict(self).items() if key not in ("robots", "seeds", "conditions")}
