"""What robots report at their latest step, by the same stages as afterwards."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import ParamTable
from twinloop.rollout.sensing import joint_readings
from twinloop.simulate.protocol import state_columns
from twinloop.twin import Twin


class Readings:
    """`rollout.sensing.joint_readings` step by step, for worlds that begin anew one by one.

    Readings that are late, or differ by chance from step to step, need the episode's past: it is kept where the
    parameters ask for it, at the cost of all stages over the whole past at every step.
    """

    def __init__(self, twin: Twin, num_envs: int, nstep: int) -> None:
        self._twin, self._shape = twin, (num_envs, nstep + 1, twin.model.nq)
        self._qpos = state_columns(twin.model, mujoco.mjtState.mjSTATE_QPOS)
        self._past: NDArray[np.float64] | None = None

    def now(
        self, states: NDArray[np.float64], params: ParamTable, steps: NDArray[np.int64], envs: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        """Joint positions ``(k, n)`` as some robots report them at their ``steps``, one row of every argument each."""
        qpos = states[:, self._qpos]
        if not _remembers(params):
            return joint_readings(self._twin, params.at(steps), qpos[:, None])[:, 0]
        if self._past is None:
            self._past = np.zeros(self._shape)
        self._past[envs, steps] = qpos
        past = self._past[envs, : int(steps.max()) + 1]
        return joint_readings(self._twin, params, past)[np.arange(len(envs)), steps]


def _remembers(params: ParamTable) -> bool:
    """Whether a reading depends on more than the state at its step: on earlier ones, or on the number of the step."""
    named = [
        name
        for name in params.names
        if name.startswith("timing/readings/") or (name.startswith("sensor/") and name.endswith("/noise"))
    ]
    return any(bool(params[name].any()) or name in params.steps for name in named)
