"""What robots report at their latest step, by the same stages as afterwards."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.rollout.sensing import joint_readings
from twinloop.simulate.protocol import state_columns
from twinloop.twin import Twin
from twinloop.twin.quantities import find_kind


class Readings:
    """`rollout.sensing.joint_readings` step by step, for worlds that begin anew one by one.

    Readings that are late, or differ by chance from step to step, need the episode's past: it is kept where the
    parameters ask for it, at the cost of all stages over the whole past at every step.
    """

    def __init__(self, twin: Twin, num_envs: int, nstep: int) -> None:
        self._twin, self._length = twin, (num_envs, nstep + 1)
        parts = (mujoco.mjtState.mjSTATE_QPOS, mujoco.mjtState.mjSTATE_QVEL, mujoco.mjtState.mjSTATE_TIME)
        self._qpos, self._qvel, self._time = (state_columns(twin.model, int(part)) for part in parts)
        self._past: NDArray[np.float64] | None = None

    def now(
        self, states: NDArray[np.float64], params: ParamTable, steps: NDArray[np.int64], envs: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        """Joint positions ``(k, n)`` as some robots report them at their ``steps``, one row of every argument each."""
        if not _remembers(params):
            return joint_readings(self._twin, params.at(steps), states[:, None, self._qpos])[:, 0]
        if self._past is None:
            self._past = np.zeros((*self._length, states.shape[1]))
        self._past[envs, steps] = states
        until_now = np.minimum(np.arange(int(steps.max()) + 1), steps[:, None])  # what lies behind is of older episodes
        past = self._past[envs[:, None], until_now]
        qpos, qvel, time = past[..., self._qpos], past[..., self._qvel], past[..., self._time[0]]
        return joint_readings(self._twin, params, qpos, qvel=qvel, time=time)[np.arange(len(envs)), steps]


def _remembers(params: ParamTable) -> bool:
    """Whether a reading depends on more than the state at its step: on earlier ones, or on the number of the step."""
    named = [name for name in params.names if (kind := find_kind(name)) is not None and kind.history]
    return any(bool(params[name].any()) or name in params.steps for name in named)
