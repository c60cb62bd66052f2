"""Define the settings of a study on virtual robots: training conditions, size, and the recipe of all its policies."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from twinloop.core.errors import InputError
from twinloop.core.files import sha256_json


@dataclass(frozen=True, kw_only=True)
class TransferCondition:
    """One kind of training data for a policy.

    Attributes:
        number: number in the tables.
        name: name in folder names.
        label: label in the tables.
        worlds: worlds of the simulated demonstrations: ``nominal`` (nominal twin), ``ranges`` (default randomization),
            ``point`` (estimated parameters), ``posterior`` (identified distribution), or "" for no such demonstrations.
        real: whether the policy is also trained on demonstrations on the virtual robot.
    """

    number: int
    name: str
    label: str
    worlds: str
    real: bool = False

    @property
    def per_robot(self) -> bool:
        """True if a separate policy is trained for each robot."""
        return self.real or self.worlds in ("point", "posterior")


CONDITIONS = (
    TransferCondition(number=1, name="nominal", label="nominal twin", worlds="nominal"),
    TransferCondition(number=2, name="ranges", label="hand-written randomization", worlds="ranges"),
    TransferCondition(number=3, name="identified", label="identified twin, point estimate", worlds="point"),
    TransferCondition(
        number=4, name="posterior", label="randomization from the identified distribution", worlds="posterior"
    ),
    TransferCondition(
        number=5, name="cotrained", label="that and the robot's own demonstrations", worlds="posterior", real=True
    ),
    TransferCondition(number=6, name="real", label="the robot's own demonstrations alone", worlds="", real=True),
)
NUMBERS = {condition.number: condition for condition in CONDITIONS}

TWIN, TASK = "so101_tabletop", "pick_and_place"
FIRST_ROBOT = 100  # robots 100, 101, …: lower seeds were used to develop the recipe
CAMERA = ("front", 72, 96)  # camera, height and width in pixels, for policies with images
DEMONSTRATIONS, PLACES = 11, 77  # run seeds: of the demonstrations, and of the initial conditions of trials


@dataclass(frozen=True, kw_only=True)
class TransferRecipe:
    """Recipe for demonstrations and training, the same in every condition.

    Attributes:
        shake: standard deviation of the noise added to the script's arm commands during demonstrations, in rad; the
            learned actions are the commands without noise (DART: Laskey et al., "Noise injection for robust imitation
            learning", CoRL 2017).
        memory: correlation of the noise from one command to the next.
        tracker_noise: noise of the tracker in randomized worlds, in m; nominal and identified worlds have a perfect
            tracker.
        sees: what the tracker measures for policies: object poses (``scene``), or also the tool's pose (``tool``), with
            which policies can correct encoder errors. While a log is recorded, the tracker always measures the tool
            too.
        policy: kind of the policy.
        settings: settings of the policy.
        batch: batch size of training.
        lr: learning rate of training.
        real_share: share of every batch from the robot's own demonstrations if policies are trained on both kinds.
    """

    shake: float = 0.0
    memory: float = 0.9
    tracker_noise: float = 0.001
    sees: Literal["scene", "tool"] = "scene"
    policy: str = "mlp"
    settings: dict[str, Any] = field(
        default_factory=lambda: {
            "chunk_size": 32,
            "n_action_steps": 24,
            "action_space": "delta_to_state",
            "width": 256,
            "depth": 3,
            "loss": "l1",
        }
    )
    batch: int = 256
    lr: float = 1.5e-3
    real_share: float = 0.25


@dataclass(frozen=True, kw_only=True)
class TransferSettings:
    """Size and settings of a study: a comparison of training conditions on virtual robots.

    Attributes:
        robots: number of virtual robots.
        seeds: number of training runs per condition and robot.
        episodes: number of trials per policy and robot, from the same initial conditions for all.
        demos: number of attempted simulated demonstrations per training set.
        real: number of demonstrations on each virtual robot.
        steps: number of training steps.
        log: number of episodes from which each robot is identified, 8 s of teleoperation each.
        conditions: numbers of the `CONDITIONS` (training data) to compare.
        images: whether policies observe images of the front camera instead of the tracker.
        recipe: see `TransferRecipe`.
    """

    robots: int = 5
    seeds: int = 3
    episodes: int = 30
    demos: int = 300
    real: int = 10
    steps: int = 2000
    log: int = 6
    conditions: tuple[int, ...] = tuple(condition.number for condition in CONDITIONS)
    images: bool = False
    recipe: TransferRecipe = field(default_factory=TransferRecipe)

    def __post_init__(self) -> None:
        for name in ("robots", "seeds", "episodes", "demos", "real", "steps", "log"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} {getattr(self, name)}: a study needs at least one.")
        wrong = [number for number in self.conditions if number not in NUMBERS]
        if wrong or not self.conditions:
            raise InputError(
                f"--conditions {wrong[0] if wrong else '(none)'}: there are {', '.join(map(str, NUMBERS))}."
            )

        if not 0.0 <= self.recipe.shake < 0.5:
            raise InputError(f"--shake {self.recipe.shake:g}: give rad from 0 to 0.5, such as 0.0175.")

    @property
    def selected_conditions(self) -> list[TransferCondition]:
        """The selected conditions, in order of their numbers."""
        return [NUMBERS[number] for number in sorted(set(self.conditions))]

    @property
    def robot_seeds(self) -> list[int]:
        """Seeds of the virtual robots."""
        return [FIRST_ROBOT + n for n in range(self.robots)]

    def made_of(self) -> dict[str, Any]:
        """Return the settings that must be equal to continue a study in the same folder.

        Numbers of robots and training runs and the conditions are excluded, because they may be increased later.
        """
        value = {key: item for key, item in asdict(self).items() if key not in ("robots", "seeds", "conditions")}
        return {**value, "hash": sha256_json(value)}
