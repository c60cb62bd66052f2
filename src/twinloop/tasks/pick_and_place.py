"""Define the task to pick up an object and place it on a target disc."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.params import ParamTable
from twinloop.randomize import Constraint
from twinloop.simulate import Controller, InitialState
from twinloop.simulate.arrays import HOST, ArrayLibrary
from twinloop.simulate.protocol import state_columns
from twinloop.tasks.arm import Arm, mocap_row
from twinloop.tasks.grasp_rules import GraspRules
from twinloop.tasks.grasping import GraspFromAbove
from twinloop.tasks.ground import FreeBody, count_equal_turns, place_bodies
from twinloop.tasks.hand import FITS, GripperHand, measure_jaw_openings, object_fits_constraint
from twinloop.tasks.pick_and_place_config import NAME, PickAndPlaceConfig
from twinloop.tasks.pick_and_place_events import PlacementSeries, classify_failure, find_phases
from twinloop.tasks.pick_and_place_expert import PickAndPlaceExpert
from twinloop.tasks.placement import place_clutter
from twinloop.tasks.predicates import above_plane, held_for, in_disc, occurred_before, running_maximum, slower_than
from twinloop.tasks.reaching import heading
from twinloop.tasks.reactive import ReactiveExpert
from twinloop.tasks.settings import read_settings
from twinloop.twin import Twin


class PickAndPlace:
    """Task to pick up an object and place it on a target disc.

    It has progress, phases and tracked values.
    """

    name = NAME
    version = "pick_and_place/2"
    success_version = "pick_and_place.placed/2"
    expert_version = "pick_and_place.expert/2"

    def __init__(self, twin: Twin, config: PickAndPlaceConfig | None = None) -> None:
        """Prepare the task for a twin; ``config`` are its settings, by default those of the twin's ``task:`` section.

        Raises:
            InputError: If the twin does not fit the task.
            UnknownNameError: If the twin lacks the object or the target.
        """
        self.twin = twin
        self.config = config or read_settings(PickAndPlaceConfig, twin, NAME)
        self.arm = Arm(twin)
        self.chain, self.servo = self.arm.chain, self.arm.servo
        self.hand = GripperHand.of(twin)
        self.object = FreeBody.of(twin, self.config.object)
        self._target = mocap_row(twin, self.config.target)
        self.nstep = round(self.config.duration * twin.control_hz)
        self.instruction = f"Pick up the {self.config.object} and place it on the {self.config.target}."

    def reset(self, params: ParamTable, *, run_seed: int, episodes: Sequence[int], attempt: int = 0) -> InitialState:
        """Return initial states: object and target as the parameters define, the arm near home and at rest.

        Objects are on the table of each world, and `place_clutter` places the clutter of the scene around them. See
        `Arm.make_initial_state` for the arm, whose joints deviate from home by up to ``joint_noise``.
        """
        draws = {"run_seed": run_seed, "episodes": episodes, "attempt": attempt}
        initial = self.arm.make_initial_state(
            params, self.config.joint_noise, stream=f"{self.name}/reset/joints", **draws
        )
        placed = place_bodies(
            self.twin,
            params,
            initial,
            objects={self.config.object: self.object.qpos},
            targets={self.config.target: self._target},
        )
        return place_clutter(self.twin, params, placed, **draws)

    def success(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return success at each recorded state, ``(nworld, nstep + 1)``; `PickAndPlaceConfig` defines success."""
        scene, config = self.scene_features(states), self.config
        rise = scene.height - scene.height[:, :1]
        placed = scene.above_target & (np.abs(rise) <= config.height_tolerance)
        return placed & held_for(scene.released_at_rest, self.rest_steps) & occurred_before(rise >= config.lifted)

    def progress(self, states: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the progress at each recorded state, ``(nworld, nstep + 1)`` in [0, 1].

        It is the mean of four terms in [0, 1]:

        - ``reach``: the fraction of the initial distance between tool and object that has been covered; 1 for a lifted
          object.
        - ``lift``: the object's height divided by the height that counts as lifted; 1 after the object was lifted.
        - ``carry``: for a lifted object, the covered fraction of the horizontal distance to the target's disc.
        - ``placed``: success.

        The first three terms are the best value so far. Equal weights are our choice; `goals.PickAndPlaceGoal` has
        similar terms.
        """
        scene, config = self.scene_features(states), self.config
        rise = scene.height - scene.height[:, :1]
        lifted = occurred_before(rise >= config.lifted)
        gap = np.sqrt(((scene.tool - scene.object) ** 2).sum(axis=-1))
        away = np.sqrt(((scene.object - scene.target)[..., :2] ** 2).sum(axis=-1)) - config.target_radius
        reach = np.where(lifted, 1.0, running_maximum(1.0 - gap / gap[:, :1]))
        lift = np.where(lifted, 1.0, running_maximum(rise / config.lifted))
        carry = running_maximum(np.where(lifted, 1.0 - away / np.maximum(away[:, :1], config.target_radius), 0.0))
        return (reach + lift + carry + self.success(states)) / 4.0

    @property
    def rest_steps(self) -> int:
        """Number of control steps for which a placed object must be at rest, released and out of the hand's reach."""
        return max(1, round(self.config.rest_time * self.twin.control_hz))

    def scene_features(self, states: NDArray[np.float64]) -> SceneFeatures:
        """Return the features that determine success, for recorded states ``(…, nstate)``."""
        config = self.config
        finite = np.asarray(np.isfinite(states).all(axis=-1))
        sound = np.where(finite[..., None], states, 0.0)
        qpos, qvel, mocap, turn = (sound[..., state_columns(self.twin.model, kind)] for kind in _PARTS)
        centre = qpos[..., self.object.qpos : self.object.qpos + 3]
        target = mocap[..., 3 * self._target : 3 * self._target + 3]
        tool = self.chain.tool_position(qpos)
        height = above_plane(centre, target, turn[..., 4 * self._target : 4 * self._target + 4])
        still = slower_than(qvel[..., self.object.qvel : self.object.qvel + 6], config.rest_speed, config.rest_spin)
        return SceneFeatures(
            object=centre,
            target=target,
            tool=tool,
            height=height,
            above_target=finite & in_disc(centre, target, config.target_radius),
            released_at_rest=still & self._is_released(qpos, tool - centre),
        )

    @property
    def environment_names(self) -> tuple[str, ...]:
        """Names of the values of `environment`: positions in m in the world frame, and the object's heading."""
        thing, target = self.config.object, self.config.target
        places = [f"{owner}.{axis}" for owner in ("tool", thing, target) for axis in "xyz"]
        return (*places, f"{thing}.heading.cos", f"{thing}.heading.sin")

    @property
    def equal_turns(self) -> Mapping[str, int]:
        """By how many turns about the vertical the object looks the same; see `ground.count_equal_turns`."""
        return {self.config.object: count_equal_turns(self.twin, self.config.object)}

    def environment(self, states: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the true tracked poses ``(…, 11)`` in recorded states ``(…, nstate)``.

        They are the positions x, y, z of tool, object and target, then cosine and sine of the object's heading;
        ``environment_names`` names them. A tracker measures the true position of the hand, independent of errors of
        joint encoders or backlash.
        """
        scene = self.scene_features(states)
        row = self.object.qpos + 3
        turn = states[..., state_columns(self.twin.model, int(mujoco.mjtState.mjSTATE_QPOS))][..., row : row + 4]
        yaw = heading(np.nan_to_num(turn))
        parts = [scene.tool, scene.object, scene.target, np.cos(yaw)[..., None], np.sin(yaw)[..., None]]
        return np.concatenate(parts, axis=-1)

    def make_success_evaluation(self, nworld: int) -> PlacementSuccess:
        """Return an object that evaluates `success` state by state, for ``nworld`` running worlds."""
        return PlacementSuccess(self.config, self.rest_steps, nworld)

    def expert(self, initial: InitialState) -> Controller:
        """Return the scripted expert for worlds that start in ``initial``."""
        return PickAndPlaceExpert(self, initial)

    def memoryless_expert(
        self, initial: InitialState, params: ParamTable, *, believed: ParamTable | None = None
    ) -> ReactiveExpert:
        """Return the expert whose commands depend on the present state alone; see `tasks.reactive`."""
        grasp = self.make_grasp(initial)
        grasp.centre_between_jaws(*self._jaw_openings)
        return ReactiveExpert(
            self.arm,
            params,
            GraspRules(grasp=grasp, radius=self.config.target_radius, clear=self.release_distance).rules(),
            frame=grasp.frame,
            turn_of=grasp.frame.turn_of,
            hand=self.hand,
            command=initial.command,
            believed=believed,
        )

    @functools.cached_property
    def _jaw_openings(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return measure_jaw_openings(self.twin, self.hand)

    def make_grasp(self, initial: InitialState, arrays: ArrayLibrary = HOST) -> GraspFromAbove:
        """Return the grasp and the placement in worlds that start in ``initial``, for arrays of a library."""
        config = self.config
        return GraspFromAbove(
            self.arm,
            self.hand,
            self.object,
            initial,
            target=self.target_position(initial),
            grasp_height=config.grasp_height,
            lift_height=config.lift_height,
            tilt=config.approach_tilt,
            ground=self.ground(initial),
            arrays=arrays,
        )

    def phases(self, states: NDArray[np.float64], fps: float) -> Sequence[tuple[str, int | None]]:
        """Return each phase's name and the index of the state at which it begins, or None if it does not.

        Args:
            states: recorded states of one episode, ``(T + 1, nstate)``.
            fps: control steps per second.
        """
        return find_phases(self._make_series(states, fps))

    def failure(self, states: NDArray[np.float64], fps: float) -> tuple[str, str] | None:
        """Return the failure class of an episode and its reason; None for an episode that ends in success.

        Args:
            states: recorded states of one episode, ``(T + 1, nstate)``.
            fps: control steps per second.
        """
        placing = self._make_series(states, fps)
        return None if placing.success[-1] else classify_failure(placing, fps)

    def _make_series(self, states: NDArray[np.float64], fps: float) -> PlacementSeries:
        scene, hand = self.scene_features(states), self.hand
        qpos = states[:, state_columns(self.twin.model, int(mujoco.mjtState.mjSTATE_QPOS))]
        moves = np.gradient(scene.tool, axis=0) * fps
        return PlacementSeries(
            distance=np.linalg.norm(scene.tool - scene.object, axis=1),
            rise=scene.height - scene.height[0],
            opening=hand.opening_share(qpos),
            distance_from_target=np.linalg.norm((scene.object - scene.target)[:, :2], axis=1),
            distance_from_start=np.linalg.norm((scene.object - scene.object[0])[:, :2], axis=1),
            speed=np.stack([np.linalg.norm(moves[:, :2], axis=1), moves[:, 2]], axis=1),
            released_at_rest=scene.released_at_rest,
            success=self.success(states[None])[0],
            reach=self.release_distance,
            lifted=self.config.lifted,
            radius=self.config.target_radius,
            tolerance=self.config.height_tolerance,
        )

    def target_position(self, initial: InitialState) -> NDArray[np.float64]:
        """Return the centre of the target disc in every world, ``(nworld, 3)`` in m."""
        return initial.mocap_pos[:, self._target]

    def ground(self, initial: InitialState) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the change of the table's height at the target, and the table's slope.

        The change ``(nworld,)`` in m is relative to the nominal twin. The slope ``(nworld, 2)`` is the rise in m per m
        along x and y. Both are computed from the pose of the target, which is flat on the table.
        """
        body = int(np.flatnonzero(self.twin.model.body_mocapid == self._target)[0])
        rise = initial.mocap_pos[:, self._target, 2] - self.twin.model.body_pos[body, 2]
        quaternion = initial.mocap_quat[:, self._target]
        axes = (np.array([1.0, 0.0, 0.0]), np.array([0.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0]))
        zero = np.zeros(3)
        x, y, z = (above_plane(axis, zero, quaternion) for axis in axes)
        return rise, np.stack([-x / z, -y / z], axis=1)

    @property
    def constraints(self) -> dict[str, Constraint]:
        """Constraints on worlds that a randomization can use, by name."""
        tips = max(0.0, self.config.grasp_height - self.hand.tip)
        return {FITS: object_fits_constraint(self.twin, self.hand, self.config.object, tips=tips)}

    @property
    def home(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """``qpos`` and command of the home pose."""
        return self.arm.home.copy(), self.arm.home_command.copy()

    @property
    def release_distance(self) -> float:
        """Distance between tool site and object beyond which no part of the hand can touch the object, in m."""
        return self.object.radius + self.hand.tip

    def _is_released(self, qpos: NDArray[np.float64], offset: NDArray[np.float64]) -> NDArray[np.bool_]:
        opening = self.hand.opening_share(qpos)
        return (opening > 0.5) & ((offset**2).sum(axis=-1) > self.release_distance**2)


@dataclass(frozen=True, kw_only=True)
class SceneFeatures:
    """Features of simulator states that determine success; all arrays have the same leading shape.

    If a state is not finite, its features are computed from zeros, and ``above_target`` is false.

    Attributes:
        object: position of the object's centre, ``(…, 3)`` in m.
        target: position of the target, ``(…, 3)`` in m.
        tool: position of the tool site, ``(…, 3)`` in m.
        height: height of the object above the plane of the target, ``(…)`` in m.
        above_target: whether the object is above the target's disc, ``(…)``.
        released_at_rest: whether the object is at rest, and the hand is open and out of reach, ``(…)``.
    """

    object: NDArray[np.float64]
    target: NDArray[np.float64]
    tool: NDArray[np.float64]
    height: NDArray[np.float64]
    above_target: NDArray[np.bool_]
    released_at_rest: NDArray[np.bool_]


class PlacementSuccess:
    """Evaluation of `PickAndPlace.success` for running worlds, state by state; each world may restart at any time.

    Attributes:
        lifted: whether each world's object has been lifted since the world's start, ``(nworld,)``.
        rise: current height of each world's object above its initial height, ``(nworld,)`` in m.
    """

    def __init__(self, config: PickAndPlaceConfig, rest_steps: int, nworld: int) -> None:
        self._config, self._rest_steps = config, rest_steps
        self._streak, self._resting = np.zeros(nworld, dtype=np.int64), np.zeros(nworld)
        self.lifted, self.rise = np.zeros(nworld, dtype=bool), np.zeros(nworld)

    def evaluate_states(
        self, scene: SceneFeatures, worlds: NDArray[np.intp], *, begin: ArrayLike = False
    ) -> NDArray[np.bool_]:
        """Return the success ``(k,)`` of k worlds at their next state.

        Args:
            scene: features of these states, one row per world.
            worlds: indices of the worlds.
            begin: whether this is a world's first state, scalar or ``(k,)``.
        """
        self._streak[worlds] = np.where(scene.released_at_rest, np.where(begin, 0, self._streak[worlds]) + 1, 0)
        self._resting[worlds] = np.where(begin, scene.height, self._resting[worlds])
        rise = scene.height - self._resting[worlds]
        self.rise[worlds] = rise
        self.lifted[worlds] = (rise >= self._config.lifted) | (self.lifted[worlds] & ~np.asarray(begin))
        placed = scene.above_target & (np.abs(rise) <= self._config.height_tolerance)
        return placed & (self._streak[worlds] >= self._rest_steps) & self.lifted[worlds]


_PARTS = tuple(
    int(kind)
    for kind in (
        mujoco.mjtState.mjSTATE_QPOS,
        mujoco.mjtState.mjSTATE_QVEL,
        mujoco.mjtState.mjSTATE_MOCAP_POS,
        mujoco.mjtState.mjSTATE_MOCAP_QUAT,
    )
)
