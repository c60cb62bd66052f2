"""Store one world with everything that is needed to run it again, with the same or another actor.

An episode is reset from a seed. A pinned world is stored: its twin and task, every parameter, its initial state, its
random effects, the issued commands, and the outcome. `PinnedWorld.make_worlds` makes worlds like it: first the world
itself, then the same world with other random effects and, if its parameters are only known as a distribution, with
other draws of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.extension import mark_references
from twinloop.core.files import sha256_json
from twinloop.core.params import ParamTable, SeedPath
from twinloop.core.records import SimEpisode, Source, freeze_array
from twinloop.core.seeds import MOST_EPISODES
from twinloop.rollout.actor import EpisodeStart
from twinloop.rollout.episodes import INITIAL_COMMAND
from twinloop.rollout.replay import initial_from_state, recorded_params
from twinloop.sensors.servo import encoder_command
from twinloop.simulate import InitialState
from twinloop.tasks import Task, open_task
from twinloop.twin import Twin, load_twin

Chance = Literal["held", "varied"]
INITIAL_ARRAYS = ("qpos", "qvel", "mocap_pos", "mocap_quat", "command", "earlier")
_JOINT_WIDTH = {mujoco.mjtJoint.mjJNT_FREE: 7, mujoco.mjtJoint.mjJNT_BALL: 4}


@dataclass(frozen=True, kw_only=True)
class WorldOrigin:
    """Origin of a pinned world: a folder or catalog, the episode in it, and its actor."""

    source: Source = "sim"
    place: str = ""
    episode_id: str = ""
    episode: int = -1
    actor: str = ""


@dataclass(frozen=True, kw_only=True)
class PinnedWorld:
    """One stored world.

    Attributes:
        name: name of the scenario and of its folder.
        twin, task: arguments of `load_twin` and `open_task`.
        twin_hash: hash of the twin on which it was pinned; another version is refused, see `rebase`.
        params: every parameter of the world, one row, with those that change at every control step.
        initial: initial state, one world.
        run_seed, episode, attempt: determine the random effects in the world.
        nstep: number of control steps.
        success, reason: the outcome, and its explanation if known.
        commands: ``(nstep, nu)`` as issued, in SI units; None if unknown.
        readings: ``(n,)`` first encoder readings in SI units, for a world reconstructed from a log: each draw's
            encoders convert them to joint positions. None if the true joint positions are known.
        draws: further rows of ``params`` for uncertain parameters, ``(ndraw, nparam)``; None if all are known.
        departs: parameters that differ from the twin's nominal values. All others follow the twin.
        meaning: why it is stored, as text; the only field to edit by hand.
        evidence: measurements of it (how often it fails, with which actor), plain values; see `scenario`.
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
    departs: tuple[str, ...] = ()
    origin: WorldOrigin = field(default_factory=WorldOrigin)
    meaning: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict[str, Any])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if self.params.nworld != 1 or self.initial.nworld != 1:
            raise InputError(f"Scenario {self.name} holds {self.params.nworld} worlds; a pinned world is one.")
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
        twin_reference: str = "",
        reason: str = "",
        meaning: str = "",
        origin: WorldOrigin | None = None,
    ) -> PinnedWorld:
        """Pin a simulated episode, with the exact initial state, parameters and commands of its record.

        Args:
            twin_reference: argument of `load_twin`; by default the twin's name.

        Raises:
            InputError: another twin made the episode, or it lacks states or the first command.
        """
        record = episode.provenance
        if record.twin_hash != twin.hash:
            raise InputError(
                f"Episode {episode.number} was made with {record.twin} {record.twin_hash[:12]}, this is {twin.name} "
                f"{twin.hash[:12]}. Pin it with the version of the twin that made it."
            )
        command = record.extra.get(INITIAL_COMMAND)
        if command is None or not len(episode.states):
            raise InputError(f"Episode {episode.number} holds no states or no first command, so it cannot be pinned.")
        run_seed, number, attempt = record.seed_path
        params = replace(recorded_params(twin, record), seeds=None)
        return cls(
            name=name,
            twin=twin_reference or twin.name,
            twin_hash=twin.hash,
            task=str(record.extra.get("task", task.name)),
            task_version=str(record.extra.get("task_version", task.version)),
            success_version=record.success_version,
            params=params,
            departs=find_departures(twin, params),
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
        """Hash of everything that determines the world's course, without measurements of it."""
        arrays = {key: value.tolist() for key, value in self.arrays.items()}
        said = (self.twin_hash, self.task, self.task_version, self.success_version, self.nstep, self.success)
        chance = (self.run_seed, self.episode, self.attempt)
        return sha256_json([*said, *chance, list(self.params.names), list(self.departs), arrays])

    @property
    def task_reference(self) -> str:
        """Argument of `open_task` for the task; a user's own class runs only if it is approved."""
        return mark_references(self.task, f"scenario {self.name}")

    @property
    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """Numeric arrays of the world by name, as they are stored."""
        begun = {key: getattr(self.initial, key)[0] for key in INITIAL_ARRAYS}
        optional = {key: getattr(self, key) for key in ("commands", "readings", "draws")}
        steps = {f"steps/{name}": rows[0] for name, rows in self.params.steps.items()}
        present = {key: value for key, value in optional.items() if value is not None}
        return {"params": self.params.values[0], **begun, **present, **steps}

    def open(self, twin: Twin | None = None) -> tuple[Twin, Task]:
        """Return the twin and the task of the world.

        Args:
            twin: a twin to use instead of loading one by name.

        Raises:
            InputError: the twin is another version than the pinned one.
        """
        found = twin or load_twin(self.twin)
        if found.hash != self.twin_hash:
            raise InputError(
                f"Scenario {self.name} was pinned on {self.twin} {self.twin_hash[:12]}, but the twin is "
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
        chance: Chance = "varied",
        values: Mapping[str, Any] | None = None,
        uncertain: bool = True,
    ) -> EpisodeStart:
        """Return worlds to run with any actor by ``run_batch(…, episodes=b.numbers, initial=b.initial)``.

        World 0 equals the pinned world bit for bit. Further worlds have new random effects (episode numbers after its
        own, ``"varied"``) or the same ones (``"held"``), and take the drawn rows of uncertain parameters in turn. A
        changed parameter or random effect moves the initial state as the task's reset would; all else stays. Clutter
        does not follow the random effects: it keeps its position unless a changed parameter moves it.

        Args:
            n: number of worlds.
            twin, task: result of `open`.
            values: parameters set in all worlds, or ``(n,)`` one each.
            uncertain: whether to use the drawn rows; otherwise every world has the pinned parameters.

        Raises:
            UnknownNameError, BoundsError: the twin has no such parameter, or a value is outside its bounds.
            InputError: fewer than one world.
        """
        if n < 1:
            raise InputError(f"{n} worlds of scenario {self.name} were requested; request at least one.")
        numbers = np.full(n, self.episode)
        if chance == "varied":
            numbers = (numbers + np.arange(n)) % MOST_EPISODES
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
    def departures(self) -> dict[str, float]:
        """Values of the parameters that differ from nominal, by name."""
        row = self.params.row(0)
        return {name: row[name] for name in self.departs}

    def _make_initial_states(
        self, twin: Twin, task: Task, table: ParamTable, numbers: NDArray[np.int64]
    ) -> InitialState:
        """Return the initial states of a table's worlds: the pinned one, changed as far as the task's reset differs."""
        n = table.nworld
        pinned = self.initial.take(np.zeros(n, dtype=np.intp))
        if (table.values == self.params.values).all() and (numbers == self.episode).all():
            return pinned
        own = self.params.with_seeds(SeedPath.of(self.run_seed, [self.episode], self.attempt))
        here = task.reset(own, run_seed=self.run_seed, episodes=[self.episode], attempt=self.attempt)
        if twin.scene is not None and twin.scene.clutter:  # clutter keeps its poses in every world
            numbers = np.full(n, self.episode)
            table = table.with_seeds(SeedPath.of(self.run_seed, numbers, self.attempt))
        there = task.reset(table, run_seed=self.run_seed, episodes=numbers.tolist(), attempt=self.attempt)
        moved = _apply_reset_difference(twin, pinned, here, there)
        return moved if self.readings is None else self._set_read_joints(twin, table, moved, self.readings)

    def _set_read_joints(
        self, twin: Twin, table: ParamTable, initial: InitialState, readings: NDArray[np.float64]
    ) -> InitialState:
        """Set joints such that each world's encoders give the first readings; the command is that of the log."""
        offset, scale = twin.column(table, "sensor", "offset"), twin.column(table, "sensor", "scale")
        qpos = initial.qpos.copy()
        qpos[:, twin.joint_qpos] = encoder_command(readings[None], offset, scale)
        command = np.tile(self.initial.command, (table.nworld, 1))
        return replace(initial, qpos=twin.align_motors(qpos), command=command)


def find_departures(twin: Twin, params: ParamTable) -> tuple[str, ...]:
    """Return the parameters that differ from nominal in some world of a table, or change step by step."""
    moved = twin.find_changed_params(params) | set(params.steps)
    return tuple(name for name in params.names if name in moved)


def _apply_reset_difference(twin: Twin, pinned: InitialState, here: InitialState, there: InitialState) -> InitialState:
    """Return ``pinned`` with the differences of ``there`` from ``here``: whole joints, mocap bodies, commands."""
    qpos = pinned.qpos.copy()
    for joint in range(twin.model.njnt):
        first = int(twin.model.jnt_qposadr[joint])
        part = slice(first, first + _JOINT_WIDTH.get(mujoco.mjtJoint(twin.model.jnt_type[joint]), 1))
        other = (there.qpos[:, part] != here.qpos[:, part]).any(axis=1)
        qpos[other, part] = there.qpos[other, part]
    lie = (there.mocap_pos != here.mocap_pos).any(axis=2) | (there.mocap_quat != here.mocap_quat).any(axis=2)
    return replace(
        pinned,
        qpos=qpos,
        mocap_pos=np.where(lie[..., None], there.mocap_pos, pinned.mocap_pos),
        mocap_quat=np.where(lie[..., None], there.mocap_quat, pinned.mocap_quat),
        command=np.where(there.command != here.command, there.command, pinned.command),
        notes=there.notes,
        refused=there.refused,
    )
