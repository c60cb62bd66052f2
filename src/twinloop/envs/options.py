"""Define the options of an environment, which are keyword arguments of ``gymnasium.make`` and ``make_vec``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.randomize import Plan, read_identified, section_plan
from twinloop.rollout.world_camera import WorldCamera
from twinloop.tasks import Task
from twinloop.tasks.rewards import read_reward
from twinloop.twin import Twin

Observation = Literal["readings", "state", "lerobot"]
Action = Literal["absolute", "delta", "dataset"]

_CHOICES = {"observation": get_args(Observation), "action": get_args(Action)}
_WHERE = "the options of an environment"
_OF_A_RUN = ("adaptive", "design")  # sections that need a known number of episodes


def require_whole_number(name: str, value: Any, *, least: int, why: str, most: int | None = None) -> None:
    """Raise an error unless a value is a whole number from ``least`` to ``most``.

    Args:
        name: name of the option, for the message.
        value: the value to check.
        least: smallest allowed number.
        why: reason for the limit, for the message.
        most: largest allowed number; None for no upper limit.

    Raises:
        InputError: If the value is not such a number.
    """
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        limit = f"from {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{name} = {value!r}: {why}; give a whole number {limit}.")


@dataclass(frozen=True, kw_only=True)
class EnvOptions:
    """Options of an environment.

    Attributes:
        twin: name of a built-in twin, a file, or a `Twin`.
        goal: name of the task, see `tasks.goals`; by default the only task of the twin's YAML.
        randomization: ``default`` (every parameter that has a default range is drawn from it), None (nominal worlds),
            a `Plan`, or a mapping as in the section ``randomization:`` of a generate file. The mapping
            ``{"identified": RUN, "kappa": 1.0}`` draws from the identified distribution of the run folder RUN, with its
            covariance multiplied by kappa.
        observation: ``readings`` (joint readings and the last command), ``state`` (also joint velocities and true
            quantities of the scene, which only a simulator has), or ``lerobot`` (``agent_pos`` and ``pixels`` as in
            LeRobot, in the dataset's units).
        action: ``absolute`` or ``delta`` joint targets, scaled to [-1, 1]; or ``dataset``, targets in the dataset's
            units.
        reward: ``dense``, ``sparse``, or weights of reward terms, see `tasks.rewards`.
        delta: largest change of a target per control step if ``action`` is ``delta``, as a fraction of the joint's
            range. The default is our choice: 2 % moves an SO-101 joint by up to 2.3 rad/s, below the 4 to 5 rad/s of
            its unloaded servo.
        max_episode_steps: control steps until truncation; None for the task's own limit.
        end_at_success: whether success ends an episode. If false, only the time limit and invalid worlds do.
        repeat_episode: whether an environment repeats its episode, instead of starting the next one.
        backend: name of the simulation backend, see `simulate.open_backend`.
        nthread: number of simulation threads; 0 for all cores.
        autoreset_mode: ``NextStep``, ``SameStep`` or ``Disabled`` (Gymnasium's ``AutoresetMode``).
        report_params: whether the infos of an episode's first step contain the drawn parameters.
        cameras: cameras whose images are part of ``lerobot`` observations.
        environment_state: whether ``lerobot`` observations contain ``environment_state``, the true tracked values of
            the task, as in datasets.
        render_mode: None, or ``rgb_array`` to return images from ``render``.
        camera: camera of ``render``; None for the first camera of the twin.
        height: height of all images, in pixels.
        width: width of all images, in pixels.
        renderer: name of the renderer of all images, see `render.open_renderer`.
    """

    twin: str | Path | Twin
    goal: str = ""
    randomization: Mapping[str, Any] | Plan | Literal["default"] | None = "default"
    observation: Observation = "state"
    action: Action = "absolute"
    reward: str | Mapping[str, float] = "dense"
    delta: float = 0.02
    max_episode_steps: int | None = None
    end_at_success: bool = True
    repeat_episode: bool = False
    backend: str = "threads"
    nthread: int = 0
    autoreset_mode: Any = "NextStep"
    report_params: bool = False
    cameras: tuple[str, ...] = ()
    environment_state: bool = False
    render_mode: str | None = None
    camera: str | None = None
    height: int = 240
    width: int = 320
    renderer: str = "auto"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise UnknownNameError(name, str(getattr(self, name)), choices, where=_WHERE)
        if self.render_mode not in (None, "rgb_array"):
            raise UnknownNameError("render_mode", str(self.render_mode), ["rgb_array"], where=_WHERE)
        if not (isinstance(self.delta, int | float) and 0 < self.delta <= 1):
            raise InputError(f"delta = {self.delta!r} is not a part of a joint's range; give a number in (0, 1].")
        if self.max_episode_steps is not None:
            require_whole_number(
                "max_episode_steps", self.max_episode_steps, least=1, why="an episode has at least one step"
            )
        for name in ("height", "width"):
            require_whole_number(
                name, getattr(self, name), least=16, why="an image has 16 to 8192 pixels per side", most=8192
            )
        require_whole_number("nthread", self.nthread, least=0, why="0 uses every core")
        for name in ("report_params", "end_at_success", "repeat_episode"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} = {getattr(self, name)!r}: give True or False.")
        read_reward(self.reward, where=_WHERE)
        self._check_cameras()

    def _check_cameras(self) -> None:
        cameras = (self.cameras,) if isinstance(self.cameras, str) else self.cameras
        object.__setattr__(self, "cameras", tuple(cameras))
        if self.cameras and self.observation != "lerobot":
            raise InputError('cameras need observation="lerobot". Give that too, or leave cameras out.')
        if self.environment_state and self.observation != "lerobot":
            raise InputError('environment_state needs observation="lerobot". "state" has true values of the scene.')

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> EnvOptions:
        """Create options from keyword arguments.

        Raises:
            UnknownNameError: If an option, or the value of an option with fixed choices, does not exist.
            InputError: If the twin is missing, or a value is out of range.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name not in names:
                raise UnknownNameError("option", name, names, where=_WHERE)
        if "twin" not in options:
            raise InputError(
                f"An environment needs a twin: twin=NAME or a file. Further options: {', '.join(names[1:])}."
            )
        return cls(**options)

    def plan(self, twin: Twin, task: Task) -> Plan:
        """Return the plan from which the worlds are drawn; its run seed is 0 unless a plan is given.

        Raises:
            TwinloopError: If ``randomization`` is invalid; see `randomize.section_plan`.
        """
        section = self.randomization
        if isinstance(section, Plan):
            return section
        if section is None:
            return Plan(twin=twin, run_seed=0, draws=())
        if section != "default" and not isinstance(section, Mapping):
            raise InputError(f'randomization must be "default", None, a Plan or a mapping; given {section!r}.')
        options = {} if section == "default" else section
        for key in _OF_A_RUN:
            if key in options:
                raise InputError(f"randomization.{key} needs a run with a known number of episodes. Leave it out.")
        identified = None
        if "identified" in options:
            identified = ParamDistribution.from_json(read_identified(Path(options["identified"]))["distribution"])
        return section_plan(
            section,
            twin,
            run_seed=0,
            episodes=0,
            where=_WHERE,
            identified=identified,
            kappa=options.get("kappa"),
            named=lambda: getattr(task, "constraints", {}),
        )


def open_world_camera(plan: Plan, options: EnvOptions) -> tuple[WorldCamera, str]:
    """Create the `WorldCamera`, which renders the images of an environment's worlds.

    Returns:
        The `WorldCamera`, and the name of the camera for ``render``; the name is empty if no camera is used at all.

    Raises:
        UnknownNameError: If the twin has no camera of a given name.
        InputError: If ``render_mode`` is set and the twin has no camera.
    """
    wanted, existing = list(options.cameras), plan.twin.spec.cameras
    if options.render_mode is not None:
        if not existing:
            raise InputError(f"The twin {plan.twin.name} has no camera to render with. Add `cameras:` to its YAML.")
        wanted.append(options.camera or existing[0])
    taker = WorldCamera(
        plan.twin,
        wanted,
        height=options.height,
        width=options.width,
        renderer=options.renderer,
        scenery=plan.scenery,
    )
    return taker, wanted[-1] if wanted else ""
