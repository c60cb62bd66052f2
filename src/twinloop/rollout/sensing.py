"""Compute a robot's joint readings from simulated states, for a whole episode or step by step."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.sensors.filters import low_pass
from twinloop.sensors.sampling import find_newest_sample, interpolate_hermite
from twinloop.sensors.servo import encoder_reading
from twinloop.simulate.protocol import state_columns
from twinloop.twin import Twin
from twinloop.twin.quantities import find_kind, names_of_stage

_STREAM = "rollout/readings"
_PARTS = 8  # parts of a control step in which a filtered position is linear; 4 ms at 30 Hz


def joint_readings(
    twin: Twin,
    params: ParamTable,
    qpos: NDArray[np.float64],
    *,
    qvel: NDArray[np.float64] | None = None,
    time: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Return the joint positions that the robot reports at each control step, ``(nworld, nstep, n)`` in rad or m.

    At each step, the controller computes a command from the newest encoder sample that has been delivered by then (see
    `sensors.sampling.find_newest_sample`). That sample is the reading of the step. True positions between steps are
    interpolated; see `sensors.sampling.interpolate_hermite`.

    Args:
        twin: twin of the worlds.
        params: parameters of the worlds, one row each.
        qpos: true generalized positions when each command was due, from the start of every world, ``(nworld, nstep,
            nq)``.
        qvel: true generalized velocities at these times, ``(nworld, nstep, nv)``.
        time: true time since the start of the world, ``(nworld, nstep)`` in s. ``qvel`` and ``time`` are needed if
            readings have a sample rate, latency, filter lag or noise.

    Returns:
        Encoder readings of n joints at each step, in the joints' units.

    Raises:
        InputError: If needed velocities or times are missing, readings have noise but ``params`` has no seeds, or the
            lag of a filter changes at every control step.
    """
    true = qpos[..., twin.encoder_qpos]
    if not _has_history(twin, params):
        return _encode_positions(twin, params, true)
    if qvel is None or time is None:
        raise InputError(
            "Readings with their own clock, latency, lag or noise depend on earlier states. Give velocities and times "
            "of the whole episode."
        )
    taken, number = find_newest_sample(time, **_clock(params))
    positions = _filter_positions(time, true, qvel[..., twin.encoder_qvel], taken, _lag(twin, params))
    return _encode_positions(twin, params, positions, _draw_noise(twin, params, number))


def _has_history(twin: Twin, params: ParamTable) -> bool:
    """Return whether readings have a sample rate, latency, lag or noise.

    Such readings need more than the state at the time of each command.
    """
    clock = _clock(params)
    clocked = bool(np.any(clock["rate"] > 0.0) or np.any(clock["delay"] > 0.0))
    return clocked or _has_noise(twin, params) or bool(_lag(twin, params).any())


def _clock(params: ParamTable) -> dict[str, NDArray[np.float64]]:
    zeros = np.zeros(params.nworld)
    return {name: params.get(f"timing/readings/{name}", zeros) for name in ("rate", "phase", "delay")}


def _lag(twin: Twin, params: ParamTable) -> NDArray[np.float64]:
    """Return the time constants of the encoders' low-pass filters, ``(nworld, n)`` in s.

    Raises:
        InputError: If a time constant changes at every control step.
    """
    lags = [f"sensor/{joint}/lag" for joint in twin.robot.joints]
    changing = [name for name in params.steps if name in lags]
    if changing:
        raise InputError(
            f"{changing[0]} changes at every control step, but a filter needs a constant value. Draw it per episode."
        )
    return twin.column(params, "sensor", "lag")


def _filter_positions(
    time: NDArray[np.float64],
    true: NDArray[np.float64],
    slope: NDArray[np.float64],
    taken: NDArray[np.float64],
    lag: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the joint positions after the encoders' low-pass filters at the sample times, ``(nworld, nstep, n)``.

    Args:
        time: true time of each control step, ``(nworld, nstep)`` in s.
        true: true joint positions at these times, ``(nworld, nstep, n)``.
        slope: true joint velocities at these times, ``(nworld, nstep, n)``.
        taken: sample times, ``(nworld, nstep)`` in s.
        lag: time constants of the filters, ``(nworld, n)`` in s.
    """
    positions = interpolate_hermite(time, true, slope, taken)
    if not lag.any():
        return positions
    part = np.arange(_PARTS) / _PARTS
    between = (time[:, :-1, None] + part * np.diff(time)[..., None]).reshape(len(time), -1)
    fine = np.concatenate([between, time[:, -1:]], axis=1)
    bandwidth = np.divide(1.0, 2.0 * np.pi * lag, out=np.zeros_like(lag), where=lag > 0.0)
    signal = np.moveaxis(interpolate_hermite(time, true, slope, fine), 2, 1)
    times = np.broadcast_to(fine[:, None], signal.shape)
    behind = low_pass(times, signal[..., None], bandwidth)[..., 0]
    for world, joint in np.argwhere(lag > 0.0):
        positions[world, :, joint] = np.interp(taken[world], fine[world], behind[world, joint])
    return positions


def _has_noise(twin: Twin, params: ParamTable) -> bool:
    names = [f"sensor/{joint}/noise" for joint in twin.robot.joints]
    values = [params.steps.get(name, params.get(name, np.zeros(1))) for name in names]
    return any(bool(np.any(value > 0.0)) for value in values)


def _draw_noise(twin: Twin, params: ParamTable, number: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """Return standard normal noise of each reading, ``(nworld, nstep, n)``; None if no encoder has noise.

    A sample that is reported twice has the same noise both times.

    Args:
        twin: twin of the worlds.
        params: parameters of the worlds.
        number: number of the reported sample, ``(nworld, nstep)``.
    """
    if not _has_noise(twin, params):
        return None
    worlds = np.repeat(np.arange(len(number)), number.shape[1])
    paths = params.require_seeds("sensor/*/noise happens").take(worlds)
    uniform = paths.uniforms(_STREAM, size=len(twin.robot.joints), step=number.ravel())
    return ndtri(uniform).reshape(*number.shape, -1)


def _encode_positions(
    twin: Twin, params: ParamTable, true: NDArray[np.float64], noise: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return the encoder readings of true joint positions, ``(nworld, nstep, n)``.

    Args:
        twin: twin of the worlds.
        params: parameters of the worlds.
        true: true joint positions, ``(nworld, nstep, n)``.
        noise: standard normal noise, ``(nworld, nstep, n)``; None for no noise.
    """
    if not names_of_stage(params.steps, "encoder"):
        return _encode_constant(twin, params, true, noise)
    parts = [
        _encode_constant(twin, params.at(t), true[:, [t]], None if noise is None else noise[:, [t]])
        for t in range(true.shape[1])
    ]
    return np.concatenate(parts, axis=1)


def _encode_constant(
    twin: Twin, params: ParamTable, true: NDArray[np.float64], noise: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """Return the encoder readings of true joint positions for constant encoder parameters.

    The arguments are those of `_encode_positions`.
    """
    return encoder_reading(
        true,
        twin.column(params, "sensor", "offset"),
        twin.column(params, "sensor", "scale"),
        resolution=twin.column(params, "sensor", "resolution", twin.encoder_resolution),
        noise=0.0 if noise is None else noise * twin.column(params, "sensor", "noise")[:, None],
    )


class JointReadings:
    """Joint readings of running worlds, step by step.

    The readings equal those of `joint_readings`. Each world has its own step count, so single worlds can restart while
    others continue. If readings have latency or noise per step, the states of the episode are stored and all of them
    are processed at every step, so the time per step grows with the length of the episode.

    Args:
        twin: twin of the worlds.
        num_envs: number of worlds.
        nstep: largest number of control steps of an episode.
    """

    def __init__(self, twin: Twin, num_envs: int, nstep: int) -> None:
        self._twin, self._length = twin, (num_envs, nstep + 1)
        parts = (mujoco.mjtState.mjSTATE_QPOS, mujoco.mjtState.mjSTATE_QVEL, mujoco.mjtState.mjSTATE_TIME)
        self._qpos, self._qvel, self._time = (state_columns(twin.model, int(part)) for part in parts)
        self._past: NDArray[np.float64] | None = None

    def read_joints(
        self, states: NDArray[np.float64], params: ParamTable, steps: NDArray[np.int64], envs: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        """Return the joint positions ``(k, n)`` that k of the robots report, in rad or m.

        Args:
            states: states of these worlds, ``(k, nstate)``.
            params: parameters of these worlds, k rows.
            steps: number of the control step of each world, ``(k,)``.
            envs: indices of these worlds, ``(k,)``.
        """
        if not _needs_history(params):
            return joint_readings(self._twin, params.at(steps), states[:, None, self._qpos])[:, 0]
        if self._past is None:
            self._past = np.zeros((*self._length, states.shape[1]))
        self._past[envs, steps] = states
        until_now = np.minimum(
            np.arange(int(steps.max()) + 1), steps[:, None]
        )  # later entries belong to older episodes
        past = self._past[envs[:, None], until_now]
        qpos, qvel, time = past[..., self._qpos], past[..., self._qvel], past[..., self._time[0]]
        return joint_readings(self._twin, params, qpos, qvel=qvel, time=time)[np.arange(len(envs)), steps]


def _needs_history(params: ParamTable) -> bool:
    """Return whether a reading depends on earlier states or on the number of the control step."""
    named = [name for name in params.names if (kind := find_kind(name)) is not None and kind.history]
    return any(bool(params[name].any()) or name in params.steps for name in named)
