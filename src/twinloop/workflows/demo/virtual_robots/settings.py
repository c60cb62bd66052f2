"""What policies are trained on, how large a comparison is, and the recipe that all of its policies share."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from twinloop.core.errors import InputError
from twinloop.core.files import sha256_json


@dataclass(frozen=True, kw_only=True)
class TransferCondition:
    """One way to come to a policy.

    Attributes:
        number: as the tables count.
        name: a word for folders.
        words: what the tables call it.
        worlds: whose demonstrations it sees: ``nominal``, ``ranges``, ``point``, ``posterior``, or none.
        real: whether it sees demonstrations on the virtual robot.
    """

    number: int
    name: str
    words: str
    worlds: str
    real: bool = False

    @property
    def per_robot(self) -> bool:
        """Whether each robot needs policies of its own."""
        return self.real or self.worlds in ("point", "posterior")


CONDITIONS = (
    TransferCondition(number=1, name="nominal", words="nominal twin", worlds="nominal"),
    TransferCondition(number=2, name="ranges", words="hand-written randomization", worlds="ranges"),
    TransferCondition(number=3, name="identified", words="identified twin, point estimate", worlds="point"),
    TransferCondition(
        number=4, name="posterior", words="randomization from the identified distribution", worlds="posterior"
    ),
    TransferCondition(
        number=5, name="cotrained", words="that and the robot's own demonstrations", worlds="posterior", real=True
    ),
    TransferCondition(number=6, name="real", words="the robot's own demonstrations alone", worlds="", real=True),
)
NUMBERS = {condition.number: condition for condition in CONDITIONS}

TWIN, TASK = "so101_tabletop", "pick_and_place"
FIRST_ROBOT = 100  # robots 100, 101, …: the seeds below were looked at while the recipe was found
PICTURES = ("front", 72, 96)  # camera, height and width in pixels, of the slow version
DEMONSTRATIONS, PLACES = 11, 77  # run seeds: of what is shown, and of where things lie when policies are tried


@dataclass(frozen=True, kw_only=True)
class TransferRecipe:
    """How demonstrations are given and policies trained, the same in every condition.

    Attributes:
        shake: standard deviation of what is added to the script's commands of the arm while it shows, in rad; the
            commands that are learned are those without (DART: Laskey et al., "Noise injection for robust imitation
            learning", CoRL 2017).
        memory: correlation of the shaking from one command to the next.
        tracker_noise: of the tracker in randomized worlds, in m; nominal and identified worlds have a perfect one.
        sees: what a tracker tells policies: where things lie (``scene``), or the tool as well (``tool``), with which
            they can correct what encoders get wrong. Either way it watched the tool while the log was made.
        settings: of the policy.
        batch, lr: of training.
        real_share: part of every batch that the robot's own demonstrations have when policies are trained on both.
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
    """What a study consists of.

    Attributes:
        robots: virtual robots.
        seeds: training runs per condition and robot.
        episodes: trials per policy and robot; the same places for all.
        demos: simulated demonstrations that are attempted per source.
        real: demonstrations on each virtual robot.
        steps: of training.
        log: episodes that each robot is identified from, 8 s of teleoperation each.
        conditions: which of `CONDITIONS`.
        images: policies see pictures of the front camera in place of what a tracker sees.
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
    def chosen(self) -> list[TransferCondition]:
        """The conditions, in their order."""
        return [NUMBERS[number] for number in sorted(set(self.conditions))]

    @property
    def robot_seeds(self) -> list[int]:
        """Seeds of the virtual robots."""
        return [FIRST_ROBOT + n for n in range(self.robots)]

    def made_of(self) -> dict[str, Any]:
        """What every part in the folder depends on; a study that goes on must agree in it."""
        value = {key: item for key, item in asdict(self).items() if key not in ("robots", "seeds", "conditions")}
        return {**value, "hash": sha256_json(value)}
