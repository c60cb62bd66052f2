"""Replay episodes: recompute their states from the recorded commands and parameters."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable, SeedPath
from twinloop.core.records import Provenance, SimEpisode
from twinloop.rollout.episodes import INITIAL_COMMAND, STEP_PARAMS
from twinloop.simulate import Backend, InitialState, open_backend, rollout
from twinloop.simulate.protocol import STATE_SPEC, state_columns
from twinloop.twin import Twin

_BIT = mujoco.mjtState


@dataclass(frozen=True, kw_only=True)
class ReplayStates:
    """Replayed and recorded states of one episode with T control steps.

    Attributes:
        states: replayed states, ``(T + 1, nstate)``.
        recorded: recorded states, ``(T + 1, nstate)``.
    """

    states: NDArray[np.float64]
    recorded: NDArray[np.float64]

    @property
    def identical(self) -> bool:
        """Whether replayed and recorded states are equal bit for bit."""
        return self.states.tobytes() == self.recorded.tobytes()

    @property
    def difference(self) -> float:
        """Largest absolute difference of any state component at any step.

        It is infinite if the shapes differ or a value is not finite.
        """
        if self.states.shape != self.recorded.shape:
            return float("inf")
        finite = np.isfinite(self.states) & np.isfinite(self.recorded)
        return float(np.abs(self.states - self.recorded).max()) if finite.all() else float("inf")


def initial_from_state(twin: Twin, state: ArrayLike, command: ArrayLike) -> InitialState:
    """Return initial states for a simulation from recorded states.

    The solver's warm start and the time are reset to zero. A replay from the first state of an episode is exact. A
    replay from a later state agrees within the solver's tolerance. If commands are delayed, this needs one more
    condition: before the state, ``command`` must have been constant for at least the delay, because no older commands
    are known.

    Args:
        twin: twin of the states.
        state: recorded state ``(nstate,)``, or ``(nworld, nstate)``.
        command: command before the first step, ``(nu,)`` or ``(nworld, nu)``; it fills the history of delayed commands.

    Raises:
        InputError: If the states do not match the twin.
    """
    model = twin.model
    states = np.atleast_2d(np.asarray(state, dtype=np.float64))
    size = mujoco.mj_stateSize(model, STATE_SPEC)
    if states.shape[1] != size:
        raise InputError(
            f"The state has {states.shape[1]} numbers, but states of {twin.name} have {size}. "
            "Give a state of this twin."
        )

    def part(kind: int) -> NDArray[np.float64]:
        return states[:, state_columns(model, int(kind))]

    return InitialState(
        qpos=part(_BIT.mjSTATE_QPOS),
        qvel=part(_BIT.mjSTATE_QVEL),
        mocap_pos=part(_BIT.mjSTATE_MOCAP_POS).reshape(len(states), model.nmocap, 3),
        mocap_quat=part(_BIT.mjSTATE_MOCAP_QUAT).reshape(len(states), model.nmocap, 4),
        command=np.broadcast_to(np.asarray(command, dtype=np.float64), (len(states), model.nu)),
        act=part(_BIT.mjSTATE_ACT),
        plastic=part(_BIT.mjSTATE_PLASTIC),
    )


def replay(
    twin: Twin,
    params: ParamTable,
    initial: InitialState,
    commands: ArrayLike,
    *,
    backend: Backend | None = None,
) -> NDArray[np.float64]:
    """Simulate worlds under recorded commands, and return their states.

    Args:
        twin: twin of the worlds.
        params: parameters of the worlds, one row each.
        initial: initial states of the worlds.
        commands: commands in SI units, ``(nworld, T, nu)``, or ``(T, nu)`` for a single world.
        backend: backend that runs the worlds; None for the default.

    Returns:
        States ``(nworld, T + 1, nstate)``, or ``(T + 1, nstate)`` for a single world.
    """
    issued = np.asarray(commands, dtype=np.float64)
    single = issued.ndim == 2
    batch = np.ascontiguousarray(issued[None] if single else issued)
    states = rollout(backend or open_backend(), twin, params, initial, batch, batch.shape[1]).states
    return states[0] if single else states


def recorded_params(twin: Twin, provenance: Provenance) -> ParamTable:
    """Return the parameters of an episode from its provenance, as a table with one row.

    The table also has the episode's seed path (run seed, episode number, attempt), which determines its random effects.
    """
    steps = {name: np.atleast_2d(rows) for name, rows in provenance.extra.get(STEP_PARAMS, {}).items()}
    run_seed, number, attempt = provenance.seed_path
    seeds = SeedPath.of(run_seed, [number], attempt)
    return twin.table(1, provenance.params).with_steps(steps).with_seeds(seeds)


def replay_episode(twin: Twin, episode: SimEpisode, *, backend: Backend | None = None) -> ReplayStates:
    """Replay an episode from its provenance, first state and commands.

    Raises:
        InputError: If another twin made the episode, or the episode lacks its states or the command before the first.
    """
    provenance = episode.provenance
    if provenance.twin_hash != twin.hash:
        raise InputError(
            f"Episode {episode.number} was made with {provenance.twin} {provenance.twin_hash[:12]}, "
            f"this is {twin.name} {twin.hash[:12]}. Replay with the version of the twin that made it."
        )
    command = provenance.extra.get(INITIAL_COMMAND)
    if command is None or not len(episode.states):
        missing = "states" if command is not None else f"{INITIAL_COMMAND!r} in its provenance"
        raise InputError(f"Episode {episode.number} holds no {missing}, so it cannot be replayed.")
    initial = initial_from_state(twin, episode.states[0], command)
    states = replay(twin, recorded_params(twin, provenance), initial, episode.commands, backend=backend)
    return ReplayStates(states=states, recorded=np.asarray(episode.states))
