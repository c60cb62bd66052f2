"""Define a very cheap task, for which the cost outside the physics is visible: a double pendulum for 20 steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.core.seeds import uniforms
from twinloop.simulate import Controller, InitialState, Simulation
from twinloop.simulate.protocol import state_columns
from twinloop.twin import Twin

_QPOS = 2  # mjSTATE_QPOS


class Swing:
    """Start at random angles with a small torque; success if the shoulder ends on the side on which it began."""

    name, version, success_version, expert_version = "swing", "1", "1", "push 1"
    instruction = "swing for a moment"
    nstep = 20

    def __init__(self, twin: Twin) -> None:
        self._twin = twin
        self._shoulder = np.arange(64)[state_columns(twin.model, _QPOS)][0]

    def reset(self, params: ParamTable, *, run_seed: int, episodes: Sequence[int], attempt: int = 0) -> InitialState:
        """Draw angles within ±1 rad of the home position."""
        home = InitialState.home(self._twin, params.nworld)
        angles = 2.0 * uniforms(run_seed, "reset/swing", episodes, size=2, attempt=attempt) - 1.0
        return InitialState(
            qpos=home.qpos + angles,
            qvel=home.qvel,
            mocap_pos=home.mocap_pos,
            mocap_quat=home.mocap_quat,
            command=home.command,
        )

    def success(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return in which steps the shoulder is on the side on which it began."""
        shoulder = states[..., self._shoulder]
        return shoulder * shoulder[:, :1] > 0

    def expert(self, initial: InitialState) -> Controller:
        """Apply a constant torque against the initial shoulder angle."""
        torque = -0.1 * np.sign(initial.qpos[:, :2])

        def push(simulation: Simulation) -> NDArray[np.float64]:
            del simulation
            return torque

        return push
