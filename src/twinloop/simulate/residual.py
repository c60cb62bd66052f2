"""Apply the residual of a twin: bounded offsets of the controls, and a random disturbance that is correlated in time.

The offset of a joint is a function of its position, velocity and control error at the start of a control step, and is
held during this step (`twin.residual_spec`). The disturbance is an Ornstein-Uhlenbeck process with one value per
control step. Both are multiplied by an amplitude per world. All operations are elementwise over worlds.
"""

from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from twinloop.core.params import ParamTable
from twinloop.simulate.command import Array, AsArray
from twinloop.twin import Twin
from twinloop.twin.quantities.world import RESIDUAL_ACTION, RESIDUAL_DISTURBANCE
from twinloop.twin.residual_spec import ResidualSpec

_FULL_SPEED = 0.1  # of the largest speed: from here on the offset in the direction of motion is nearly complete
_COLUMNS = ("speed", "difference", "bound", "sd", "time")


class ResidualShape:
    """Residual of a twin in arrays with one row per actuator; actuators without a residual have an offset of 0.

    Attributes:
        weights: Offsets of the joint's positions, and those by direction, velocity and control error, in the unit of
            the command, shape ``(nu, noffset + 3)``.
        bound: Largest absolute offset, shape ``(nu,)``.
        sd: Standard deviation of the disturbance, shape ``(nu,)``.
        time: Correlation time of the disturbance in s, shape ``(nu,)``.
    """

    def __init__(self, twin: Twin, residual: ResidualSpec, *, as_array: AsArray = np.asarray) -> None:
        """Convert the residual of a robot's joints to arrays."""
        rows = [residual.joints.get(name) for name in twin.robot.joints]
        count = len(next(iter(residual.joints.values())).offsets)
        self.weights = as_array(
            np.array([[*r.offsets, r.direction, r.damping, r.stiffness] if r else [0.0] * (count + 3) for r in rows])
        )
        range_ = np.array([r.positions if r else (0.0, 1.0) for r in rows])
        missing = {"bound": 0.0, "sd": 0.0}
        columns = {
            name: np.array([getattr(r, name) if r else missing.get(name, 1.0) for r in rows]) for name in _COLUMNS
        }
        self.sd, self.time = columns["sd"], columns["time"]
        self._speed, self._difference, self.bound = (as_array(columns[name]) for name in _COLUMNS[:3])
        self._low, self._spacing = as_array(range_[:, 0]), as_array((range_[:, 1] - range_[:, 0]) / (count - 1))
        self._knots = as_array(np.arange(count, dtype=np.float64))

    def compute_features(self, position: Array, velocity: Array, difference: Array) -> Array:
        """Return the features whose weighted sum is the offset, from −1 to 1, shape ``(n, nu, noffset + 3)``.

        Args:
            position: Joint positions in rad or m, shape ``(n, nu)``.
            velocity: Joint velocities, shape ``(n, nu)``.
            difference: Control errors, shape ``(n, nu)``; see `compute_difference`.
        """
        xp = array_namespace(position)
        place = (position - self._low) / self._spacing
        hats = xp.clip(1.0 - xp.abs(place[..., None] - self._knots), 0.0, 1.0)
        speed = velocity / self._speed
        terms = [
            xp.tanh(speed / _FULL_SPEED),
            xp.clip(speed, -1.0, 1.0),
            xp.clip(difference / self._difference, -1.0, 1.0),
        ]
        inside = xp.sum(hats, axis=-1)[..., None]  # 1 in the range of the data, 0 far outside
        return xp.concat([hats, inside * xp.stack(terms, axis=-1)], axis=-1)

    def compute_offsets(self, features: Array) -> Array:
        """Return the offsets of the controls within their bounds, shape ``(n, nu)``, from ``(n, nu, noffset + 3)``."""
        xp = array_namespace(features)
        total = xp.sum(features * self.weights, axis=-1)
        return xp.maximum(xp.minimum(total, self.bound), -self.bound)


def compute_difference(twin: Twin, control: Array, position: Array, velocity: Array) -> Array:
    """Return the control error of each actuator, shape ``(n, nu)``.

    It is control − position for position servos, control − velocity for velocity servos, and the control for torques.
    """
    measured = {"position": position, "velocity": velocity}.get(twin.robot.control)
    return control if measured is None else control - measured


class Residuals:
    """Residuals of a batch of worlds.

    Attributes:
        active: Whether any world may have a residual.
    """

    def __init__(self, twin: Twin, params: ParamTable, *, as_array: AsArray = np.asarray) -> None:
        """Read the amplitudes of all worlds, at their start."""
        self._twin, self._params, self._as_array = twin, params, as_array
        self.active = False
        if twin.spec.residual is None:
            return
        self._shape = ResidualShape(twin, twin.spec.residual, as_array=as_array)
        self._decay = np.exp(-1.0 / (twin.control_hz * self._shape.time))
        self._qpos, self._qvel = (as_array(rows.astype(np.int64)) for rows in (twin.joint_qpos, twin.joint_qvel))
        self._step = np.zeros(params.nworld, dtype=np.int64)
        self._noise = np.zeros((params.nworld, len(self._decay)))
        self._load(params.at(self._step))
        self.active |= any(name in (RESIDUAL_ACTION, RESIDUAL_DISTURBANCE) for name in params.steps)

    def _load(self, params: ParamTable) -> None:
        self._action = params.get(RESIDUAL_ACTION, np.ones(params.nworld))
        self._disturbance = params.get(RESIDUAL_DISTURBANCE, np.zeros(params.nworld)) * bool(self._shape.sd.any())
        self.active = self.active or bool(self._action.any() or self._disturbance.any())
        self._seeds = params.require_seeds(f"{RESIDUAL_DISTURBANCE} acts") if self._disturbance.any() else None

    def add(self, controls: Array, qpos: Array, qvel: Array) -> Array:
        """Return the controls of a control step with the residuals added, and go on to the next control step.

        Args:
            controls: Controls, shape ``(nworld, substeps or 1, nu)``.
            qpos: Positions at the start of the control step, shape ``(nworld, nq)``.
            qvel: Velocities at that time, shape ``(nworld, nv)``.
        """
        xp = array_namespace(controls)
        if self._params.steps:
            self._load(self._params.at(self._step))
        position, velocity = xp.take(qpos, self._qpos, axis=1), xp.take(qvel, self._qvel, axis=1)
        difference = compute_difference(self._twin, controls[:, 0], position, velocity)
        offset = self._shape.compute_offsets(self._shape.compute_features(position, velocity, difference))
        offset = self._as_array(self._action[:, None]) * offset
        if self._seeds is not None:
            offset = offset + self._as_array(self._disturbance[:, None] * self._shape.sd * self._draw_noise())
        self._step = self._step + 1
        return controls + offset[:, None, :]

    def _draw_noise(self) -> NDArray[np.float64]:
        """Return the next values of the processes of unit variance, shape ``(nworld, nu)``; the first is stationary."""
        assert self._seeds is not None  # noqa: S101 - only called with a disturbance
        chance = self._seeds.uniforms("simulate/residual", size=len(self._decay), step=self._step)
        decay = np.where(self._step[:, None] == 0, 0.0, self._decay)
        self._noise = decay * self._noise + np.sqrt(1.0 - decay * decay) * ndtri(chance)
        return self._noise

    def restart(self, worlds: ArrayLike, params: ParamTable) -> None:
        """Restart some worlds with new parameters, one row per restarted world; ``worlds`` are their indices."""
        if self._twin.spec.residual is None:
            return
        index = np.asarray(worlds)
        self._params = self._params.replace_worlds(index, params)
        self._step = self._step.copy()
        self._step[index] = 0
        self._load(self._params.at(self._step))
