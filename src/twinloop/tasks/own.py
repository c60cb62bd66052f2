"""Base class of a user's own task of an arm or of another robot with joints.

`OwnTask` implements the protocol of tasks (`tasks.protocol.Task`) on top of a few members of the user. A task to push
an object to a target::

    class Push(OwnTask):
        instruction = "Push the cube to the target."

        def success(self, states):
            return in_disc(self.position(states, "cube"), self.position(states, "target"), 0.03)

        def expert(self, initial):
            cube, target = self.start(initial, "cube"), self.start(initial, "target")
            ...
            return WaypointExpert(self.arm, initial, [Waypoint(name="above", position=...), ...])

A method ``rules(initial)``, which returns a list of `reactive.Rule`, gives an expert without memory. It can teach
policies on-policy (`twinloop distill`), and is the task's expert if there is no other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.core.seeds import uniforms
from twinloop.simulate import Controller, InitialState
from twinloop.simulate.protocol import state_columns
from twinloop.tasks.arm import Arm, mocap_rows
from twinloop.tasks.ground import FreeBody, place_bodies
from twinloop.tasks.hand import GripperHand
from twinloop.tasks.placement import place_clutter
from twinloop.tasks.predicates import held_for
from twinloop.tasks.reaching import BearingFrame, GraspFrame, heading
from twinloop.tasks.reactive import ReactiveExpert, Rule
from twinloop.tasks.settings import read_settings
from twinloop.twin import Twin

_TOOL = "tool"
_Settings = TypeVar("_Settings")


class OwnTask:
    """Task of the user; see the module. It defines `success`, and mostly `expert` or `rules`; all else is optional.

    Initial states have the robot near its home pose and at rest. Objects are on the table, at positions and headings
    that the twin's parameters ``object/NAME/position/x``, ``…/y`` and ``object/NAME/yaw`` draw, and targets (mocap
    bodies) likewise. Tracked values are the positions of the tool, of objects and of targets, and the headings of
    objects.

    Attributes:
        name: Name of the task; by default that of the class, as in ``push_cube`` for ``PushCube``.
        instruction: Text for language-conditioned policies.
        seconds: Duration of an episode in s.
        joint_noise: Largest deviation of an initial joint position from home, in rad or m; uniform.
        version: Version of `reset`.
        success_version: Version of `success`.
        expert_version: Version of `expert`.
        twin: The twin.
        nstep: Control steps of an episode.
        objects: Free bodies that the twin names under ``objects:``, by name.
    """

    rules: Callable[[InitialState], Sequence[Rule]]
    expert: Callable[..., Controller]
    memoryless_expert: Callable[..., Controller]
    name: str = ""
    instruction: str = ""
    seconds: float = 6.0
    joint_noise: float = 0.02
    version = success_version = expert_version = ""

    def __init_subclass__(cls, **options: Any) -> None:
        """Set the name and the versions of the class, if it does not define them."""
        super().__init_subclass__(**options)
        cls.name = cls.__dict__.get("name", "") or re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        for key, part in (("version", ""), ("success_version", ".success"), ("expert_version", ".expert")):
            setattr(cls, key, cls.__dict__.get(key, "") or f"{cls.name}{part}/1")
        if hasattr(cls, "rules"):
            cls.memoryless_expert = cls._make_memoryless_expert
            cls.expert = getattr(cls, "expert", cls._follow_rules)

    def __init__(self, twin: Twin) -> None:
        """Prepare the task for a twin.

        Raises:
            UnknownNameError: If the twin's ``objects:`` names a body that is not free.
        """
        self.twin, self.nstep = twin, round(self.seconds * twin.control_hz)
        self.objects = {name: FreeBody.of(twin, name) for name in twin.spec.objects}
        self._targets = mocap_rows(twin)
        kinds = (mujoco.mjtState.mjSTATE_QPOS, mujoco.mjtState.mjSTATE_QVEL, mujoco.mjtState.mjSTATE_MOCAP_POS)
        self._qpos, self._qvel, self._mocap = (state_columns(twin.model, int(kind)) for kind in kinds)

    def read_settings(self, kind: type[_Settings]) -> _Settings:
        """Return the task's settings in the twin's ``task:`` section; a field ``duration`` replaces ``seconds``.

        See `settings.read_settings` for arguments and errors.
        """
        settings = read_settings(kind, self.twin, self.name)
        self.nstep = round(getattr(settings, "duration", self.seconds) * self.twin.control_hz)
        return settings

    def require_bodies(self, *, objects: Iterable[str] = (), targets: Iterable[str] = ()) -> None:
        """Raise UnknownNameError if the twin lacks one of these objects or mocap bodies."""
        where = f"the twin {self.twin.name}, task.{self.name}"
        for kind, names, known in (("object", objects, self.objects), ("mocap body", targets, self._targets)):
            for name in names:
                if name not in known:
                    raise UnknownNameError(kind, name, known, where=where)

    @cached_property
    def arm(self) -> Arm:
        """Arm from the base to the tool site; raise InputError if the twin names no tool site or has other servos."""
        return Arm(self.twin)

    @cached_property
    def hand(self) -> GripperHand:
        """Gripper of the twin; raise InputError if the twin names none."""
        return GripperHand.of(self.twin)

    def reset(self, params: ParamTable, *, run_seed: int, episodes: Sequence[int], attempt: int = 0) -> InitialState:
        """Return initial states; see the class. An own `reset` may change the result of ``super().reset(…)``."""
        draws = {"run_seed": run_seed, "episodes": episodes, "attempt": attempt}
        stream = f"{self.name}/reset/joints"
        if self._has_arm:
            initial = self.arm.make_initial_state(params, self.joint_noise, stream=stream, **draws)
        else:
            chance = uniforms(run_seed, stream, episodes, size=len(self.twin.robot.joints), attempt=attempt)
            initial = self._make_joint_state(params.nworld, chance)
        objects = {name: body.qpos for name, body in self.objects.items()}
        placed = place_bodies(self.twin, params, initial, objects=objects, targets=self._targets)
        return place_clutter(self.twin, params, placed, **draws)

    def success(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return success ``(nworld, nstep + 1)`` at each recorded state ``(nworld, nstep + 1, nstate)``."""
        raise NotImplementedError

    def _follow_rules(self, initial: InitialState) -> Controller:
        """Return the scripted expert for worlds that start in ``initial``, which follows the task's rules."""
        nominal = self.twin.table(initial.nworld)
        return self.memoryless_expert(initial, nominal, believed=nominal)

    def _make_memoryless_expert(
        self, initial: InitialState, params: ParamTable, *, believed: ParamTable | None = None
    ) -> ReactiveExpert:
        """Return an expert that follows the task's rules; see `tasks.protocol.LabellingTask`."""
        frame = self.tool_frame(initial)
        return ReactiveExpert(
            self.arm,
            params,
            self.rules(initial),
            frame=frame,
            turn_of=frame.turn_of,
            hand=self.hand if self.twin.robot.gripper is not None else None,
            command=initial.command,
            believed=believed,
        )

    def tool_frame(self, initial: InitialState) -> BearingFrame | GraspFrame:  # noqa: ARG002 - for other tasks
        """Return the orientation of the tool that rules refer to; by default that of the home pose."""
        return BearingFrame(self.arm.chain, self.arm.home)

    @property
    def bodies(self) -> tuple[str, ...]:
        """Names that `position` takes: ``tool`` if the twin names a tool site, objects and targets."""
        return (*((_TOOL,) if self._has_arm else ()), *self.objects, *self._targets)

    def position(self, states: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        """Return positions of the tool, an object or a target, ``(…, 3)`` in m in the world frame.

        They are NaN in states that are not finite.

        Args:
            states: recorded states, ``(…, nstate)``.
            name: one of `bodies`.

        Raises:
            UnknownNameError: If there is no such body.
        """
        if name not in self.bodies:
            raise UnknownNameError("body", name, self.bodies, where=f"the task {self.name}")
        qpos = self.qpos(states)
        if name in self._targets:
            return states[..., self._mocap][..., 3 * self._targets[name] : 3 * self._targets[name] + 3]
        if name in self.objects:
            return qpos[..., self.objects[name].qpos : self.objects[name].qpos + 3]
        return self.arm.chain.tool_position(np.where(np.isfinite(qpos), qpos, np.nan))

    def joints(self, states: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return positions of the n robot joints, ``(…, n)`` in rad or m, in recorded states ``(…, nstate)``."""
        return self.qpos(states)[..., self.twin.joint_qpos]

    def kept(self, condition: NDArray[np.bool_], seconds: float) -> NDArray[np.bool_]:
        """Return a mask ``(nworld, time)``, true where a condition has held for some time, at least at one state."""
        return held_for(condition, max(1, round(seconds * self.twin.control_hz)))

    def qpos(self, states: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the positions ``(…, nq)`` in recorded states ``(…, nstate)``, in MuJoCo's order and units."""
        return states[..., self._qpos]

    def qvel(self, states: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the velocities ``(…, nv)`` in recorded states ``(…, nstate)``, in MuJoCo's order and units."""
        return states[..., self._qvel]

    def start(self, initial: InitialState, name: str) -> NDArray[np.float64]:
        """Return the positions of an object or a target in initial states, ``(nworld, 3)`` in m.

        Raises:
            UnknownNameError: If there is no such body.
        """
        if name in self._targets:
            return initial.mocap_pos[:, self._targets[name]]
        if name not in self.objects:
            raise UnknownNameError("body", name, (*self.objects, *self._targets), where=f"the task {self.name}")
        return initial.qpos[:, self.objects[name].qpos : self.objects[name].qpos + 3]

    @property
    def environment_names(self) -> tuple[str, ...]:
        """Names of the values of `environment`."""
        places = [f"{name}.{axis}" for name in self.bodies for axis in "xyz"]
        return (*places, *(f"{name}.heading.{part}" for name in self.objects for part in ("cos", "sin")))

    def environment(self, states: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the tracked values ``(…, n)`` in recorded states ``(…, nstate)``: positions in m, then headings."""
        sound = np.nan_to_num(states, nan=0.0, posinf=0.0, neginf=0.0)
        qpos = self.qpos(sound)
        yaws = [heading(qpos[..., body.qpos + 3 : body.qpos + 7])[..., None] for body in self.objects.values()]
        turns = [part(yaw) for yaw in yaws for part in (np.cos, np.sin)]
        places = [self.position(sound, name) for name in self.bodies]
        return np.concatenate([*places, *turns, np.empty((*sound.shape[:-1], 0))], axis=-1)

    @property
    def _has_arm(self) -> bool:
        return self.twin.robot.tcp is not None and self.twin.robot.control == "position"

    def _make_joint_state(self, nworld: int, chance: NDArray[np.float64]) -> InitialState:
        twin, initial = self.twin, InitialState.home(self.twin, nworld)
        limited = np.array([twin.model.joint(name).limited[0] for name in twin.robot.joints], dtype=bool)[:, None]
        low, high = np.where(limited, twin.joint_ranges, [-np.inf, np.inf]).T
        qpos = initial.qpos.copy()
        moved = qpos[:, twin.joint_qpos] + self.joint_noise * (2.0 * chance - 1.0)
        qpos[:, twin.joint_qpos] = np.clip(moved, low, high)
        return replace(initial, qpos=twin.align_motors(qpos))
