"""Compute the streams of a monitor, which are the measurements at every control step before they are scored.

The streams, each with the shape ``(nworld, d)`` for d columns:

- ``drives``, ``grip``: estimated size of each fault at each joint of arm and gripper. It is the coefficient of a
  regression of the joint's residuals (readings minus predictions of the twin) on the effects of the faults (see
  `faults`);
- ``tracker``: tool position from the tracker minus tool position from the joint readings, x, y, z in m, averaged over a
  third of a second. A worn joint changes both positions; a moved tracker or camera changes one;
- ``observation``: joint readings and the tracker's observation;
- ``latent``: features of the policy;
- ``chunk``: difference between the latest action chunk and the one before, over the steps that both predict, by joint;
- ``camera/NAME``: brightness, sharpness and motion of the static scene (see `images`).

A stream that a robot or a policy does not have is left out. A row is NaN until there is a measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.contract import ENVIRONMENT, IMAGES, STATE, Contract
from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.release.monitor.faults import ObserverBank, ResidualDirections
from twinloop.release.monitor.images import ImageReference
from twinloop.tasks.kinematics import Chain
from twinloop.twin import Twin

Array = NDArray[np.float64]
_TRACKED_S = 1.0 / 3.0  # averaging time of the tracker's residual, because a tag's pose is noisy (our choice)


class ObservedPolicy(Protocol):
    """Attributes that a monitor reads from a policy in closed loop; see `policies.PolicyLoop` for their meaning."""

    chunk: NDArray[np.float64]
    previous_chunk: NDArray[np.float64]
    chunk_step: NDArray[np.int64]
    previous_step: NDArray[np.int64]
    predicted: NDArray[np.bool_]
    features: NDArray[np.float64]


class MonitorStreams:
    """Computation of the streams of ``nworld`` robots of one kind; each robot may start a new episode at any time.

    Streams are a monitor's measurements at every control step, see `streams` for the list.

    Args:
        twin: identified twin of the robots.
        contract: units of readings and commands, and names of the observed positions (``environment``) that an external
            tracker measures.
        params: parameters of the twin, one row; nominal values by default.
        images: reference images of the cameras to monitor, by name.
        nthread: number of threads for the twin's physics.

    Attributes:
        hypotheses: faults of the drives that are distinguished.
        arm: indices of the arm's joints.
        grip: index of the gripper's joint; empty if there is none.
    """

    def __init__(
        self,
        twin: Twin,
        contract: Contract,
        params: ParamTable | None = None,
        *,
        images: Mapping[str, ImageReference] | None = None,
        nthread: int = 1,
    ) -> None:
        self._twin, self._contract, self._images = twin, contract, dict(images or {})
        self._units = contract.state or twin.units
        self._params = twin.table(1) if params is None else params
        self._observers = ObserverBank(twin, self._params, nthread=nthread)
        self.hypotheses = self._observers.hypotheses
        self.arm, self.grip = split_arm_and_grip(twin)
        self._tool = _find_tool_columns(contract)
        home = twin.home()[0]
        self._chain = Chain(twin.model, twin.robot.tcp, home) if twin.robot.tcp and self._tool else None
        self._keep = math.exp(-1.0 / (_TRACKED_S * twin.control_hz))

    def begin(self, nworld: int) -> None:
        """Reset all streams for ``nworld`` robots, whose episodes start with the next call of `measure_step`."""
        n, count = len(self._twin.robot.joints), len(self.hypotheses)
        self.nworld = nworld
        self._fresh = np.ones(nworld, dtype=bool)
        self._never = True
        self._directions = ResidualDirections((nworld, n, count), self._twin.control_hz)
        self._tracked = np.full((nworld, 3), np.nan)
        self._disagreed = np.full((nworld, len(self._contract.action.names)), np.nan)
        self._command = np.zeros((nworld, self._twin.model.nu))
        self._shown: dict[str, tuple[NDArray, Array]] = {}

    def restart(self, worlds: ArrayLike) -> None:
        """Start new episodes of the robots with these indices; they begin with the next call of `measure_step`."""
        self._fresh[np.asarray(worlds)] = True

    def measure_step(
        self,
        observation: Mapping[str, NDArray],
        acting: ObservedPolicy | None,
        command: ArrayLike,
        reading: ArrayLike | None = None,
    ) -> dict[str, Array]:
        """Return the measurements of one control step by stream, shape ``(nworld, d)`` each.

        Args:
            observation: observation of this step by LeRobot's names, in the dataset's units.
            acting: policy after its decision at this step; None if no policy acts.
            command: command sent at this step, after any envelope, shape ``(nworld, k)`` for k joints, in the dataset's
                units.
            reading: joint readings, shape ``(nworld, n)`` for n joints, if they are not in the observation.

        Raises:
            InputError: If joint readings or the tracker's columns are missing or have a wrong shape, or a reading is
                not finite.
        """
        read = self._check_readings(observation, reading)
        position = self._units.to_si(read)
        rows = self._measure_drives(position)
        fresh = self._fresh.copy()
        self._fresh[:] = False
        sent = np.asarray(command, dtype=np.float64)
        self._command = self._contract.command_units.to_si(sent)
        rows["observation"] = np.concatenate([read, *self._check_tracker_columns(observation)], axis=1)
        if self._chain is not None:
            tool = np.asarray(observation[ENVIRONMENT])[:, self._tool]
            rows["tracker"] = self._measure_tracker(self._chain, position, tool, fresh)
        if acting is not None:
            rows |= self._measure_policy(acting, fresh)
        for name, reference in self._images.items():
            if IMAGES + name in observation:
                rows[f"camera/{name}"] = self._measure_images(reference, np.asarray(observation[IMAGES + name]), name)
        return rows

    def _measure_images(self, reference: ImageReference, images: NDArray, name: str) -> Array:
        """Return the measurements of images, shape ``(nworld, 6)``; an image that is repeated keeps its measurements.

        The columns are brightness, sharpness, shift right, shift down, scale and rotation, see
        `ImageReference.compare_images`. Images are repeated if a camera is slower than the control.

        Args:
            reference: reference of the camera.
            images: images, shape ``(nworld, height, width, 3)``.
        """
        before = self._shown.get(name)
        if before is None or before[0].shape != images.shape:
            row = reference.compare_images(images, name)
        else:
            row, fresh = before[1].copy(), (images != before[0]).any(axis=(1, 2, 3))
            if fresh.any():
                row[fresh] = reference.compare_images(images[fresh], name)
        self._shown[name] = images.copy(), row
        return row.copy()

    def _check_readings(self, observation: Mapping[str, NDArray], reading: ArrayLike | None) -> Array:
        given = observation.get(STATE) if reading is None else np.asarray(reading)
        if given is None:
            raise InputError(f"A monitor needs joint readings: give {STATE} in the observation, or `reading`.")
        wanted = (self.nworld, len(self._twin.robot.joints))
        if given.shape != wanted or not np.isfinite(given).all():
            raise InputError(
                f"Joint readings must be finite and of shape {wanted} (robots, joints); their shape is {given.shape}."
            )
        return np.asarray(given, dtype=np.float64)

    def _measure_drives(self, position: Array) -> dict[str, Array]:
        if self._never:
            self._observers.begin(position)
            self._never = False
        residual, moved = self._observers.advance_step(self._command, position)
        coefficients = self._directions.update_coefficients(residual, moved)
        worlds = np.flatnonzero(self._fresh)
        if worlds.size:
            self._observers.restart(worlds, position[worlds])
            self._directions.restart(worlds)
            coefficients[worlds] = 0.0
        rows = {"drives": coefficients[:, self.arm].reshape(self.nworld, -1)}
        if self.grip.size:
            rows["grip"] = coefficients[:, self.grip].reshape(self.nworld, -1)
        return rows

    def _check_tracker_columns(self, observation: Mapping[str, NDArray]) -> list[Array]:
        names = self._contract.environment
        if not names:
            return []
        seen = np.asarray(observation.get(ENVIRONMENT, np.empty((self.nworld, 0))), dtype=np.float64)
        if seen.shape != (self.nworld, len(names)):
            raise InputError(
                f"The monitor needs {ENVIRONMENT} with {', '.join(names)}; in the observation its shape is "
                f"{seen.shape}. Give the tracker's columns in this order."
            )
        return [seen]

    def _measure_tracker(self, chain: Chain, position: Array, tool: NDArray, fresh: NDArray[np.bool_]) -> Array:
        offset, scale = (self._twin.column(self._params, "sensor", kind) for kind in ("offset", "scale"))
        order = [self._twin.joint_qpos.tolist().index(row) for row in chain.qpos.tolist()]
        difference = tool - chain.pose((offset + scale * position)[:, order]).position
        before = np.where(fresh[:, None], difference, self._tracked)
        self._tracked = self._keep * before + (1.0 - self._keep) * difference
        return self._tracked.copy()

    def _measure_policy(self, acting: ObservedPolicy, fresh: NDArray[np.bool_]) -> dict[str, Array]:
        self._disagreed[fresh] = np.nan
        both = acting.predicted & (acting.previous_step >= 0)
        for shift in np.unique((acting.chunk_step - acting.previous_step)[both]):
            worlds = np.flatnonzero(both & (acting.chunk_step - acting.previous_step == shift))
            self._disagreed[worlds] = compare_chunks(acting.chunk[worlds], acting.previous_chunk[worlds], int(shift))
        rows = {"chunk": self._disagreed.copy()}
        if acting.features.shape[1]:
            rows["latent"] = np.array(acting.features, dtype=np.float64)
        return rows


def compare_chunks(chunk: Array, previous: Array, shift: int) -> Array:
    """Return the root mean square difference of two action chunks over the steps that both predict.

    Args:
        chunk: latest chunks of n robots, shape ``(n, size, k)`` for k joints.
        previous: chunks that were predicted before them, of the same shape.
        shift: number of control steps between both predictions.

    Returns:
        Difference by joint, shape ``(n, k)``; NaN if the chunks have no common steps.
    """
    common = chunk.shape[1] - shift
    if common < 1:
        return np.full((len(chunk), chunk.shape[2]), np.nan)
    return np.sqrt(np.mean((chunk[:, :common] - previous[:, shift:]) ** 2, axis=1))


def split_arm_and_grip(twin: Twin) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the indices of the arm's joints, and the index of the gripper's joint (empty if there is no gripper).

    They are separate because the gripper stops at an object when it closes.
    """
    gripper = twin.robot.gripper
    grip = [i for i, name in enumerate(twin.robot.joints) if gripper is not None and name == gripper.joint]
    return np.setdiff1d(np.arange(len(twin.robot.joints)), grip), np.array(grip, dtype=np.intp)


def _find_tool_columns(contract: Contract) -> list[int]:
    names, seen = [f"tool.{axis}" for axis in "xyz"], contract.environment
    return [seen.index(name) for name in names] if set(names) <= set(seen) else []
