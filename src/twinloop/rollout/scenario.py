"""Define scenarios: single worlds that are stored with everything needed to run them again with any actor.

An ordinary episode is created from a seed by the task's reset. A scenario instead stores the whole world: its twin and
task, all parameters, initial state, random effects, issued commands, and outcome. `Scenario.make_worlds` returns the
stored world and variations of it. The variations have new random effects. They also have other draws of the parameters
if the parameters are known only as a distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.extension import mark_references
from twinloop.core.files import sha256_json
from twinloop.core.params import ParamTable, SeedPath
from twinloop.core.records import SimEpisode, Source, freeze_array
from twinloop.core.seeds import MAX_EPISODES
from twinloop.rollout.actor import EpisodeStart
from twinloop.rollout.episodes import INITIAL_COMMAND
from twinloop.rollout.replay import initial_from_state, recorded_params
from twinloop.sensors.servo import encoder_command
from twinloop.simulate import InitialState
from twinloop.tasks import Task, open_task
from twinloop.tasks.assignment import assign
from twinloop.twin import Twin, load_twin

RandomNumbers = Literal["held", "varied"]
INITIAL_ARRAYS = ("qpos", "qvel", "mocap_pos", "mocap_quat", "command", "earlier")
_JOINT_WIDTH = {mujoco.mjtJoint.mjJNT_FREE: 7, mujoco.mjtJoint.mjJNT_BALL: 4}


@dataclass(frozen=True, kw_only=True)
class WorldOrigin:
    """Origin of a stored world.

    Attributes:
        source: source of the episode: real, sim, augmented or human-in-the-loop.
        place: folder or catalog with the episode.
        episode_id: id of the episode in the catalog.
        episode: number of the episode in its dataset; -1 if unknown.
        actor: name of the actor that chose the commands.
    """

    source: Source = "sim"
    place: str = ""
    episode_id: str = ""
    episode: int = -1
    actor: str = ""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One stored world (scenario).

    Attributes:
        name: name of the scenario and of its folder.
        twin, task: names of the twin and the task, or paths in ``sources``.
        twin_hash: hash of the twin version with which the world was stored. Another version is refused; see
            `scenario_files.rebase`.
        task_version, success_version: versions of the task and of its success predicate.
        params: all parameters of the world, one row, including values that change at every control step.
        initial: initial state of the world.
        run_seed, episode, attempt: seed of the run, episode number and attempt, which determine the random effects.
        nstep: number of control steps.
        success: whether the world ended in success.
        reason: explanation of the outcome, if known.
        commands: issued commands in SI units, ``(nstep, nu)``; None if unknown.
        readings: first encoder readings in SI units, ``(n,)``, for a world reconstructed from a log. The true joint
            positions are computed from them with the encoder parameters, which differ between draws of the parameters.
            None if the true positions are known.
        draws: further draws of uncertain parameters, ``(ndraw, nparam)``; None if all parameters are known.
        non_nominal: names of the parameters that differ from the twin's nominal values. All other parameters take the
            nominal values of a new twin version.
        origin: episode from which the world was stored.
        meaning: why the world is stored, as text; the only field that a user may edit in the file.
        evidence: measurements of the world, such as how often an actor fails in it, as plain values.
        versions: versions of the software that simulated the world.
        sources: files of the user's own twin and task, by their path in the scenario's folder.
    """

    name: str
    twin: str
    twin_hash: str
    task: str
    task_version: str
    success_version: str
    params: ParamTable
    initial: InitialState
    run_seed: int
    episode: int
    attempt: int = 0
    nstep: int
    success: bool
    reason: str = ""
    commands: NDArray[np.float64] | None = None
    readings: NDArray[np.float64] | None = None
    draws: NDArray[np.float64] | None = None
    non_nominal: tuple[str, ...] = ()
    origin: WorldOrigin = field(default_factory=WorldOrigin)
    meaning: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict[str, Any])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    sources: Mapping[str, Path] = field(default_factory=dict[str, Path])

    def __post_init__(self) -> None:
        if self.params.nworld != 1 or self.initial.nworld != 1:
            raise InputError(
                f"Scenario {self.name} has {self.params.nworld} worlds. Store each world as its own scenario."
            )
        for name in ("commands", "readings", "draws"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, freeze_array(getattr(self, name)))

    @classmethod
    def of_episode(
        cls,
        episode: SimEpisode,
        twin: Twin,
        task: Task,
        *,
        name: str,
        reason: str = "",
        meaning: str = "",
        origin: WorldOrigin | None = None,
    ) -> Scenario:
        """Return a simulated episode as a scenario, with exact initial state, parameters and commands.

        Args:
            episode: record of the episode.
            twin, task: twin and task of the episode.
            name: name of the scenario.
            reason: explanation of the outcome.
            meaning: why the world is stored.
            origin: origin of the episode; by default its source and actor.

        Raises:
            InputError: If another twin made the episode, or the episode lacks states or the command before the first.
        """
        record = episode.provenance
        if record.twin_hash != twin.hash:
            raise InputError(
                f"Episode {episode.number} was made with {record.twin} {record.twin_hash[:12]}, this is {twin.name} "
                f"{twin.hash[:12]}. Store it with the version of the twin that made it."
            )
        command = record.extra.get(INITIAL_COMMAND)
        if command is None or not len(episode.states):
            raise InputError(
                f"Episode {episode.number} holds no states or no first command, so it cannot be stored as a scenario."
            )
        run_seed, number, attempt = record.seed_path
        params = replace(recorded_params(twin, record), seeds=None)
        return cls(
            name=name,
            twin=twin.name,
            twin_hash=twin.hash,
            task=task.name,
            task_version=str(record.extra.get("task_version", task.version)),
            success_version=record.success_version,
            params=params,
            non_nominal=find_non_nominal(twin, params),
            initial=initial_from_state(twin, episode.states[0], command),
            run_seed=run_seed,
            episode=number,
            attempt=attempt,
            nstep=len(episode.commands),
            success=bool(record.success),
            reason=reason,
            commands=episode.commands,
            origin=origin or WorldOrigin(source=record.source, actor=record.actor),
            meaning=meaning,
            versions=record.versions,
        )

    @cached_property
    def hash(self) -> str:
        """Hash of everything that determines the world's course; its measurements are excluded."""
        arrays = {key: value.tolist() for key, value in self.arrays.items()}
        course = (self.twin_hash, self.task, self.task_version, self.success_version, self.nstep, self.success)
        chance = (self.run_seed, self.episode, self.attempt)
        return sha256_json([*course, *chance, list(self.params.names), list(self.non_nominal), arrays])

    def with_references(self, twin_reference: str, task_reference: str, twin: Twin, task: Task) -> Scenario:
        """Return the scenario with a twin and a task, whose files are stored with it.

        Args:
            twin_reference, task_reference: arguments of `load_twin` and `open_task` that gave ``twin`` and ``task``.
            twin, task: twin and task of the world.
        """
        made, files = assign(twin_reference, task_reference, twin, task)
        return replace(self, twin=made.twin, task=made.task, sources=files)

    @property
    def twin_reference(self) -> str:
        """Reference with which `load_twin` loads the twin."""
        return str(self.sources.get(self.twin, self.twin))

    @property
    def task_reference(self) -> str:
        """Reference with which `open_task` opens the task.

        If the task is a class in a user's file, the user must approve this file before its code runs.
        """
        path, colon, name = self.task.rpartition(":")
        return mark_references(f"{self.sources.get(path, path)}{colon}{name}", f"scenario {self.name}")

    @property
    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """Arrays of the world by name, as they are stored."""
        initial = {key: getattr(self.initial, key)[0] for key in INITIAL_ARRAYS}
        optional = {key: getattr(self, key) for key in ("commands", "readings", "draws")}
        steps = {f"steps/{name}": rows[0] for name, rows in self.params.steps.items()}
        present = {key: value for key, value in optional.items() if value is not None}
        return {"params": self.params.values[0], **initial, **present, **steps}

    def open(self, twin: Twin | None = None) -> tuple[Twin, Task]:
        """Return the twin and the task of the world.

        Args:
            twin: twin to use; None loads it by name.

        Raises:
            InputError: If the twin's version differs from the stored one.
        """
        found = twin or load_twin(self.twin_reference)
        if found.hash != self.twin_hash:
            raise InputError(
                f"Scenario {self.name} was stored for {self.twin} {self.twin_hash[:12]}, but the twin is "
                f"{found.hash[:12]} now. Move it with `twinloop scenario regress --twin {self.twin}`, which lists "
                "the differences."
            )
        return found, open_task(self.task_reference, found)

    def make_worlds(
        self,
        n: int = 1,
        *,
        twin: Twin,
        task: Task,
        random_numbers: RandomNumbers = "varied",
        values: Mapping[str, Any] | None = None,
        uncertain: bool = True,
    ) -> EpisodeStart:
        """Return the stored world and variations of it, to run with any actor.

        Run them with ``run_batch(…, episodes=start.numbers, initial=start.initial)``, where ``start`` is the result. If
        ``values`` is empty, the first world equals the stored world bit for bit. If a parameter or the random effects
        change, the initial state changes in the same way as the task's reset would change it. Clutter (objects that are
        irrelevant for the task) is an exception: it keeps its position unless a changed parameter moves it.

        Args:
            n: number of worlds.
            twin, task: result of `open`.
            random_numbers: ``varied``: world i has the random effects of episode number ``episode`` + i, so only the
                first world keeps the stored ones. ``held``: all worlds have the stored random effects.
            values: parameters to set in all worlds, by name: one value, or ``(n,)`` values.
            uncertain: whether worlds after the first take the stored draws of uncertain parameters in turn. Otherwise
                all worlds have the parameters of the stored world.

        Raises:
            UnknownNameError: If the twin has no such parameter.
            BoundsError: If a value is outside the bounds of its parameter.
            InputError: If ``n`` is below 1.
        """
        if n < 1:
            raise InputError(f"{n} worlds of scenario {self.name} were requested; request at least one.")
        numbers = np.full(n, self.episode)
        if random_numbers == "varied":
            numbers = (numbers + np.arange(n)) % MAX_EPISODES
        rows = np.tile(self.params.values, (n, 1))
        if uncertain and self.draws is not None and n > 1:
            rows[1:] = self.draws[np.arange(n - 1) % len(self.draws)]
        for name, value in (values or {}).items():
            twin.find_param(name).check(value)
            rows[:, self.params.names.index(name)] = value
        steps = {name: np.tile(row, (n, 1)) for name, row in self.params.steps.items() if name not in (values or {})}
        seeds = SeedPath.of(self.run_seed, numbers, self.attempt)
        table = ParamTable(names=self.params.names, values=rows, steps=steps, seeds=seeds)
        return EpisodeStart(
            numbers=numbers,
            params=table,
            initial=self._make_initial_states(twin, task, table, numbers),
            run_seed=self.run_seed,
            attempt=self.attempt,
        )

    @property
    def non_nominal_values(self) -> dict[str, float]:
        """Values of the parameters that differ from nominal, by name."""
        row = self.params.row(0)
        return {name: row[name] for name in self.non_nominal}

    def _make_initial_states(
        self, twin: Twin, task: Task, table: ParamTable, numbers: NDArray[np.int64]
    ) -> InitialState:
        """Return the initial states of a table's worlds.

        The task's reset is computed for the stored world and for each new world. Every value that differs between the
        two resets is taken from the new world's reset. All other values are those of the stored state.

        Args:
            twin, task: twin and task of the world.
            table: parameters of the worlds, n rows.
            numbers: episode numbers of the worlds, ``(n,)``.
        """
        n = table.nworld
        stored = self.initial.take(np.zeros(n, dtype=np.intp))
        if (table.values == self.params.values).all() and (numbers == self.episode).all():
            return stored
        own = self.params.with_seeds(SeedPath.of(self.run_seed, [self.episode], self.attempt))
        here = task.reset(own, run_seed=self.run_seed, episodes=[self.episode], attempt=self.attempt)
        if twin.scene is not None and twin.scene.clutter:  # clutter keeps its poses in every world
            numbers = np.full(n, self.episode)
            table = table.with_seeds(SeedPath.of(self.run_seed, numbers, self.attempt))
        there = task.reset(table, run_seed=self.run_seed, episodes=numbers.tolist(), attempt=self.attempt)
        moved = _apply_reset_difference(twin, stored, here, there)
        return moved if self.readings is None else self._set_read_joints(twin, table, moved, self.readings)

    def _set_read_joints(
        self, twin: Twin, table: ParamTable, initial: InitialState, readings: NDArray[np.float64]
    ) -> InitialState:
        """Set the joints so that each world's encoders give the first readings; set the command to that of the log.

        Args:
            twin: twin of the worlds.
            table: parameters of the worlds, one row each.
            initial: initial states of the worlds.
            readings: first encoder readings in SI units, ``(n,)``.
        """
        offset, scale = twin.column(table, "sensor", "offset"), twin.column(table, "sensor", "scale")
        qpos = initial.qpos.copy()
        qpos[:, twin.joint_qpos] = encoder_command(readings[None], offset, scale)
        command = np.tile(self.initial.command, (table.nworld, 1))
        return replace(initial, qpos=twin.align_motors(qpos), command=command)


def find_non_nominal(twin: Twin, params: ParamTable) -> tuple[str, ...]:
    """Return the names of parameters that differ from nominal in some world, or change at every control step."""
    moved = twin.find_changed_params(params) | set(params.steps)
    return tuple(name for name in params.names if name in moved)


def _apply_reset_difference(
    twin: Twin, stored: InitialState, reset_before: InitialState, reset_after: InitialState
) -> InitialState:
    """Return the stored initial states with the changes from one reset of the task to another.

    If parameters change, only the objects that depend on them are moved, because all others keep their stored state. A
    joint, mocap body or command that differs between the two resets takes the value of ``reset_after``.

    Args:
        twin: twin of the worlds.
        stored: initial states to change.
        reset_before: the task's reset with the stored parameters.
        reset_after: the task's resets with the new parameters.
    """
    qpos = stored.qpos.copy()
    for joint in range(twin.model.njnt):
        first = int(twin.model.jnt_qposadr[joint])
        part = slice(first, first + _JOINT_WIDTH.get(mujoco.mjtJoint(twin.model.jnt_type[joint]), 1))
        other = (reset_after.qpos[:, part] != reset_before.qpos[:, part]).any(axis=1)
        qpos[other, part] = reset_after.qpos[other, part]
    moved = (reset_after.mocap_pos != reset_before.mocap_pos).any(axis=2)
    moved |= (reset_after.mocap_quat != reset_before.mocap_quat).any(axis=2)
    return replace(
        stored,
        qpos=qpos,
        mocap_pos=np.where(moved[..., None], reset_after.mocap_pos, stored.mocap_pos),
        mocap_quat=np.where(moved[..., None], reset_after.mocap_quat, stored.mocap_quat),
        command=np.where(reset_after.command != reset_before.command, reset_after.command, stored.command),
        notes=reset_after.notes,
        refused=reset_after.refused,
    )
