"""A world with everything that is needed to run it again, under the actor that was there or any other.

An episode is reset from a seed; a pinned world is kept: its twin and task, every parameter, where it began, what
chance did in it, the commands that were issued, and what came of it. Worlds like it come from `PinnedWorld.beginning`:
the world itself first, then the same world with other chance and, where its parameters are only known as a
distribution, with other draws of them.
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
from twinloop.core.extension import mark
from twinloop.core.files import sha256_json
from twinloop.core.params import ParamTable, SeedPath
from twinloop.core.records import SimEpisode, Source, frozen
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
    """Where a pinned world comes from: a folder or catalog, the episode in it, and who acted there."""

    source: Source = "sim"
    place: str = ""
    episode_id: str = ""
    episode: int = -1
    actor: str = ""


@dataclass(frozen=True, kw_only=True)
class PinnedWorld:
    """One world, kept.

    Attributes:
        name: of the scenario; the name of its folder.
        twin, task: what `load_twin` and `open_task` take.
        twin_hash: of the twin that it was pinned on; another version of the twin is refused, see `rebased`.
        params: every parameter of the world, one row, with those that change at every control step.
        initial: where it began, one world.
        run_seed, episode, attempt: what chance within it is a function of.
        nstep: control steps that it lasted.
        success, reason: what came of it, and why in words where somebody says.
        commands: ``(nstep, nu)`` as issued, in SI; None where they are not known.
        readings: ``(n,)`` first readings of the encoders in SI, of a world rebuilt from a log: its joints stand where
            each draw's encoders say so. None where the joints' true positions are known.
        draws: further rows of ``params``, of what is not known exactly, ``(ndraw, nparam)``; None where all is known.
        departs: parameters in which the world departs from its twin's nominal values: its own. The rest is the
            twin's, and changes where the twin does.
        meaning: why it is kept, for people; the only thing that may be edited by hand.
        evidence: what was measured of it (how often it fails, under whom), plain values; see `scenario`.
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
                object.__setattr__(self, name, frozen(getattr(self, name)))

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
        """A simulated episode, as its record has it: every bit of its beginning, parameters and commands.

        Args:
            twin_reference: what `load_twin` takes; the twin's name by default.

        Raises:
            InputError: the episode was made with another twin, or lacks states or the first command.
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
            departs=departing(twin, params),
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
        """Names the world: everything that decides what happens in it, and nothing that was measured of it."""
        arrays = {key: value.tolist() for key, value in self.arrays.items()}
        said = (self.twin_hash, self.task, self.task_version, self.success_version, self.nstep, self.success)
        chance = (self.run_seed, self.episode, self.attempt)
        return sha256_json([*said, *chance, list(self.params.names), list(self.departs), arrays])

    @property
    def task_reference(self) -> str:
        """Return the task as `open_task` takes it: a class of the user's own runs only where it is approved."""
        return mark(self.task, f"scenario {self.name}")

    @property
    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """Its numbers by name, as they are stored."""
        begun = {key: getattr(self.initial, key)[0] for key in INITIAL_ARRAYS}
        optional = {key: getattr(self, key) for key in ("commands", "readings", "draws")}
        steps = {f"steps/{name}": rows[0] for name, rows in self.params.steps.items()}
        present = {key: value for key, value in optional.items() if value is not None}
        return {"params": self.params.values[0], **begun, **present, **steps}

    def open(self, twin: Twin | None = None) -> tuple[Twin, Task]:
        """The twin and the task that it runs on.

        Args:
            twin: instead of loading its own by name.

        Raises:
            InputError: the twin is another version than it was pinned on.
        """
        found = twin or load_twin(self.twin)
        if found.hash != self.twin_hash:
            raise InputError(
                f"Scenario {self.name} was pinned on {self.twin} {self.twin_hash[:12]}, and the twin is "
                f"{found.hash[:12]} now. Move it over with `twinloop scenario regress --twin {self.twin}`, which says "
                "what differs."
            )
        return found, open_task(self.task_reference, found)

    def beginning(
        self,
        n: int = 1,
        *,
        twin: Twin,
        task: Task,
        chance: Chance = "varied",
        values: Mapping[str, Any] | None = None,
        uncertain: bool = True,
    ) -> EpisodeStart:
        """Worlds to run under any actor with ``run_batch(…, episodes=b.numbers, initial=b.initial)``.

        World 0 is the pinned world itself, to the bit. Further ones have chance of their own (episode numbers that
        follow its own, ``"varied"``) or the same (``"held"``), and take the drawn rows of what is uncertain in turn.
        What a changed parameter or other chance moves at a reset moves as the task's reset moves it; all else stays.
        Clutter is no chance of its own: it lies where it lay, unless a changed parameter puts it elsewhere.

        Args:
            n: how many worlds.
            twin, task: as `open` gives them.
            values: parameters set in all worlds, or ``(n,)`` one each.
            uncertain: whether the drawn rows are used; otherwise every world has the pinned parameters.

        Raises:
            UnknownNameError, BoundsError: a value that is no parameter of the twin, or outside its bounds.
            InputError: fewer than one world.
        """
        if n < 1:
            raise InputError(f"{n} worlds of scenario {self.name} were asked for; ask for at least one.")
        numbers = np.full(n, self.episode)
        if chance == "varied":
            numbers = (numbers + np.arange(n)) % MOST_EPISODES
        rows = np.tile(self.params.values, (n, 1))
        if uncertain and self.draws is not None and n > 1:
            rows[1:] = self.draws[np.arange(n - 1) % len(self.draws)]
        for name, value in (values or {}).items():
            twin.require(name).check(value)
            rows[:, self.params.names.index(name)] = value
        steps = {name: np.tile(row, (n, 1)) for name, row in self.params.steps.items() if name not in (values or {})}
        seeds = SeedPath.of(self.run_seed, numbers, self.attempt)
        table = ParamTable(names=self.params.names, values=rows, steps=steps, seeds=seeds)
        return EpisodeStart(
            numbers=numbers,
            params=table,
            initial=self._begun(twin, task, table, numbers),
            run_seed=self.run_seed,
            attempt=self.attempt,
        )

    @property
    def departures(self) -> dict[str, float]:
        """Values of the parameters that are the world's own, by name."""
        row = self.params.row(0)
        return {name: row[name] for name in self.departs}

    def _begun(self, twin: Twin, task: Task, table: ParamTable, numbers: NDArray[np.int64]) -> InitialState:
        """Where worlds of a table begin: the pinned beginning, moved as far as the task's reset differs."""
        n = table.nworld
        pinned = self.initial.take(np.zeros(n, dtype=np.intp))
        if (table.values == self.params.values).all() and (numbers == self.episode).all():
            return pinned
        own = self.params.with_seeds(SeedPath.of(self.run_seed, [self.episode], self.attempt))
        here = task.reset(own, run_seed=self.run_seed, episodes=[self.episode], attempt=self.attempt)
        if twin.scene is not None and twin.scene.clutter:  # what lay there lies there in every world like it
            numbers = np.full(n, self.episode)
            table = table.with_seeds(SeedPath.of(self.run_seed, numbers, self.attempt))
        there = task.reset(table, run_seed=self.run_seed, episodes=numbers.tolist(), attempt=self.attempt)
        moved = _moved(twin, pinned, here, there)
        return moved if self.readings is None else self._as_read(twin, table, moved, self.readings)

    def _as_read(
        self, twin: Twin, table: ParamTable, initial: InitialState, readings: NDArray[np.float64]
    ) -> InitialState:
        """Joints where the first readings put them through each world's encoders; the command is the log's."""
        offset, scale = twin.column(table, "sensor", "offset"), twin.column(table, "sensor", "scale")
        qpos = initial.qpos.copy()
        qpos[:, twin.joint_qpos] = encoder_command(readings[None], offset, scale)
        command = np.tile(self.initial.command, (table.nworld, 1))
        return replace(initial, qpos=twin.with_motors(qpos), command=command)


def departing(twin: Twin, params: ParamTable) -> tuple[str, ...]:
    """Names of the parameters that some world of a table moves from nominal, or that change in it step by step."""
    moved = twin.moved(params) | set(params.steps)
    return tuple(name for name in params.names if name in moved)


def _moved(twin: Twin, pinned: InitialState, here: InitialState, there: InitialState) -> InitialState:
    """``pinned`` with what stands elsewhere ``there`` than ``here``: whole joints, whole mocap bodies, commands."""
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
