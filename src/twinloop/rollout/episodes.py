"""Simulate one batch of randomized episodes with an actor, compute sensor readings, and evaluate success."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.core.profile import span
from twinloop.core.records import Provenance, SimEpisode
from twinloop.core.units import UnitMap
from twinloop.rollout.actor import Actor, EpisodeStart, ExpertActor
from twinloop.rollout.sensing import joint_readings
from twinloop.simulate import Backend, InitialState, Trajectories, open_backend, rollout
from twinloop.tasks import Task
from twinloop.twin import Twin
from twinloop.twin.compiling import ENGINE, WARP, solver_settings

INITIAL_COMMAND = "initial_command"  # key in Provenance.extra: command before the first, which fills delay histories
SCENE = "scene/things"  # key in Provenance.extra: objects added to those of the model
SOLVER = "solver"  # key in Provenance.extra: the constraint solver's settings, `core.engine_faults.SolverSettings`
STEP_PARAMS = "step_params"  # key in Provenance.extra: values of parameters that change at every control step


@functools.cache
def software_versions() -> Mapping[str, str]:
    """Return the versions of the software that determines the bytes of a simulated episode, by name."""
    # The library's own version, because the package `mujoco` can be installed with another one's `mujoco-core`.
    return MappingProxyType(
        {"twinloop": version("twinloop"), ENGINE: mujoco.mj_versionString(), "numpy": version("numpy")}
    )


@dataclass(frozen=True, kw_only=True)
class BatchResult:
    """Result of one batch of episodes; world ``i`` is episode ``numbers[i]``.

    Attributes:
        twin, task: twin and task of the worlds.
        actor: name of the actor.
        params: parameters of the worlds, one row each.
        initial: initial states of the worlds.
        trajectories: simulated states and commands, with the invalid worlds.
        observation: joint readings, ``(nworld, nstep, n)`` in ``units``.
        action: commands, ``(nworld, nstep, n)`` in ``units``.
        success_by_state: value of the task's success predicate at each state, ``(nworld, nstep + 1)``.
        numbers: episode numbers of the worlds.
        run_seed, attempt: seed of the run and number of the attempt, which determine the random effects.
        units: units of observation and action.
        config_hash: hash of the run's configuration.
        versions: versions of the software by name.
        extra: further provenance, the same for all episodes.
        notes: further provenance of each world, in the order of the worlds; may be empty.
    """

    twin: Twin
    task: Task
    actor: str
    params: ParamTable
    initial: InitialState
    trajectories: Trajectories
    observation: NDArray[np.float64]
    action: NDArray[np.float64]
    success_by_state: NDArray[np.bool_]
    numbers: tuple[int, ...]
    run_seed: int
    attempt: int
    units: UnitMap
    config_hash: str
    versions: Mapping[str, str]
    extra: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[Mapping[str, Any]] = ()

    @property
    def success(self) -> NDArray[np.bool_]:
        """Whether each world is valid and its last state fulfils the success predicate, ``(nworld,)``."""
        return self.success_by_state[:, -1] & self.trajectories.valid

    def episode(self, world: int) -> SimEpisode:
        """Return the episode record of one world; its arrays are views of the batch's arrays."""
        return SimEpisode(
            number=self.numbers[world],
            commands=self.trajectories.commands[world],
            states=self.trajectories.states[world],
            action=self.action[world],
            observation=self.observation[world],
            next_success=self.success_by_state[world, 1:],
            provenance=self._provenance(world),
        )

    def episodes(self, worlds: Iterable[int] | None = None) -> list[SimEpisode]:
        """Return the episode records of the given worlds, or of all worlds if ``worlds`` is None."""
        return [self.episode(int(world)) for world in (range(len(self.numbers)) if worlds is None else worlds)]

    @property
    def _engine(self) -> str:
        return WARP if WARP in self.versions else ENGINE

    def _provenance(self, world: int) -> Provenance:
        notes = self.notes[world] if self.notes else {}
        reset_notes = {name: float(values[world]) for name, values in self.initial.notes.items()}
        extra = {**self.extra, **notes, **reset_notes, INITIAL_COMMAND: self.initial.command[world].tolist()}
        extra[SOLVER] = solver_settings(self.twin.model, engine=self._engine).to_json()
        if self.twin.scene:
            extra[SCENE] = self.twin.scene.shape_names(self.params, world)
        if self.params.steps:
            extra[STEP_PARAMS] = {name: rows[world].tolist() for name, rows in self.params.steps.items()}
        reason = self.trajectories.reason[world]
        if reason:
            reason = f"{reason} in control step {self.trajectories.invalid_step[world]}"
        return Provenance(
            source="sim",
            twin=self.twin.name,
            twin_hash=self.twin.hash,
            config_hash=self.config_hash,
            params=self.params.row(world),
            seed_path=(self.run_seed, self.numbers[world], self.attempt),
            versions=self.versions,
            actor=self.actor,
            task=self.task.instruction,
            units=self.units.to_json(),
            success=bool(self.success[world]),
            success_version=self.task.success_version,
            valid=not reason,
            invalid_reason=reason,
            extra={"task": self.task.name, "task_version": self.task.version, **extra},
        )


def run_batch(
    twin: Twin,
    task: Task,
    params: ParamTable,
    *,
    run_seed: int,
    episodes: Sequence[int],
    attempt: int = 0,
    backend: Backend | None = None,
    actor: Actor | None = None,
    initial: InitialState | None = None,
    record: Sequence[str] = (),
    units: UnitMap | None = None,
    config_hash: str = "",
    versions: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
    notes: Sequence[Mapping[str, Any]] = (),
) -> BatchResult:
    """Reset, simulate, sense and evaluate one episode per row of ``params``.

    The bytes of an episode depend on its row, the run seed, its number and the attempt. They do not depend on the other
    episodes of the batch or on the number of threads.

    Args:
        twin: twin of the worlds.
        task: task that resets the worlds and evaluates success.
        params: parameters, one row per episode, in the order of ``episodes``.
        run_seed: seed of the run.
        episodes: episode numbers.
        attempt: how often these episodes were simulated before; it changes their random numbers.
        backend: backend that simulates the worlds; by default ``threads`` on every core.
        actor: chooses the commands; by default the task's expert.
        initial: initial states, such as those of `Scenario.make_worlds`; by default from the task's reset.
        record: MjData fields to store in ``trajectories.records``; their values are one physics step older than the
            state.
        units: units of observation and action; by default the twin's.
        config_hash, versions, extra: further provenance of all episodes.
        notes: further provenance of each episode, in the order of ``episodes``; may be empty.

    Returns:
        States, commands, readings and success of the episodes, in the order of ``episodes``.

    Raises:
        InputError: If the number of rows differs from the number of episodes.
    """
    if params.nworld != len(episodes):
        raise InputError(f"{params.nworld} rows of parameters for {len(episodes)} episodes. Draw one row for each.")
    actor = actor or ExpertActor(task=task)
    units = units or twin.units
    with span("reset"):
        if initial is None:
            initial = task.reset(params, run_seed=run_seed, episodes=episodes, attempt=attempt)
        numbers = np.asarray(episodes, dtype=np.int64)
        worlds = EpisodeStart(numbers=numbers, params=params, initial=initial, run_seed=run_seed, attempt=attempt)
        controller = actor.begin(worlds)
    with span("recording"):
        backend = backend or open_backend()
        trajectories = rollout(backend, twin, params, initial, controller, task.nstep, record=record)
        trajectories = _mark_refused(trajectories, initial)
    with span("sensing and success"):
        observation = units.from_si(_compute_readings(twin, params, trajectories))
        action = units.of_commands(twin.robot.control).from_si(trajectories.commands)
        held = task.success(trajectories.states)
    return BatchResult(
        twin=twin,
        task=task,
        actor=actor.name,
        params=params,
        initial=initial,
        trajectories=trajectories,
        observation=observation,
        action=action,
        success_by_state=held,
        numbers=tuple(int(number) for number in episodes),
        run_seed=run_seed,
        attempt=attempt,
        units=units,
        config_hash=config_hash,
        versions={**software_versions(), **getattr(backend, "versions", {}), **(versions or {})},
        extra=extra or {},
        notes=notes,
    )


def _mark_refused(trajectories: Trajectories, initial: InitialState) -> Trajectories:
    """Mark worlds as invalid from step 0 if the task could not set their initial state; return the new trajectories."""
    refused = np.array([bool(reason) for reason in initial.refused], dtype=bool)
    if not refused.any():
        return trajectories
    pairs = zip(trajectories.reason, initial.refused, strict=True)
    return replace(
        trajectories,
        invalid_step=np.where(refused, 0, trajectories.invalid_step),
        reason=tuple(refusal or reason for reason, refusal in pairs),
    )


def _compute_readings(twin: Twin, params: ParamTable, trajectories: Trajectories) -> NDArray[np.float64]:
    """Return the joint readings at the time of each command, ``(nworld, nstep, n)`` in SI units."""
    qpos, qvel = trajectories.qpos[:, :-1], trajectories.qvel[:, :-1]
    return joint_readings(twin, params, qpos, qvel=qvel, time=trajectories.time[:, :-1])
