"""Compute the streams of a monitor: the measurements at every step before they are scored.

The streams, each ``(nworld, d)``:

- ``drives``, ``grip``: coefficients of the residuals of arm and gripper, joint by joint (see `faults`);
- ``tracker``: tool position from the tracker minus tool position from the joint readings, x, y, z in m, averaged over a
  third of a second. A worn joint changes both positions; a moved tracker or camera changes one;
- ``observation``: joint readings and the tracker's observation; ``latent``: the policy's features;
- ``chunk``: difference between the latest chunk and the one before, over the steps that both predict, by joint;
- ``camera/NAME``: brightness, sharpness and shift (see `pictures`).

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
_TRACKED_S = 1.0 / 3.0  # over which the tracker's residual is averaged: a tag flickers from frame to frame (our choice)


class ObservedPolicy(Protocol):
    """Attributes of a policy in the loop that a monitor reads; `policies.PolicyLoop` has them."""

    chunk: NDArray[np.float64]
    previous_chunk: NDArray[np.float64]
    chunk_step: NDArray[np.int64]
    previous_step: NDArray[np.int64]
    predicted: NDArray[np.bool_]
    latent: NDArray[np.float64]


class MonitorStreams:
    """Streams of ``nworld`` robots of one kind; each robot may start a new episode while the others continue.

    Args:
        twin: the identified twin of the robot, with ``params``.
        contract: units of readings and commands, and names of the tracker's columns.
        params: one row of parameters; nominal by default.
        pictures: references of the cameras to monitor, by name.
        nthread: C threads.
    """

    def __init__(
        self,
        twin: Twin,
        contract: Contract,
        params: ParamTable | None = None,
        *,
        pictures: Mapping[str, ImageReference] | None = None,
        nthread: int = 1,
    ) -> None:
        self._twin, self._contract, self._pictures = twin, contract, dict(pictures or {})
        self._units = contract.state or twin.units
        self._params = twin.table(1) if params is None else params
        self._observers = ObserverBank(twin, self._params, nthread=nthread)
        self.hypotheses = self._observers.wrong
        self.arm, self.grip = split_arm_and_grip(twin)
        self._tool = _find_tool_columns(contract)
        home = twin.home()[0]
        self._chain = Chain(twin.model, twin.robot.tcp, home) if twin.robot.tcp and self._tool else None
        self._keep = math.exp(-1.0 / (_TRACKED_S * twin.control_hz))

    def begin(self, nworld: int) -> None:
        """Reset all streams; episodes of ``nworld`` robots start with the next call of `look`."""
        n, wrong = len(self._twin.robot.joints), len(self.hypotheses)
        self.nworld = nworld
        self._fresh = np.ones(nworld, dtype=bool)
        self._never = True
        self._directions = ResidualDirections((nworld, n, wrong), self._twin.control_hz)
        self._tracked = np.full((nworld, 3), np.nan)
        self._disagreed = np.full((nworld, len(self._contract.action.names)), np.nan)
        self._command = np.zeros((nworld, self._twin.model.nu))
        self._shown: dict[str, tuple[NDArray, Array]] = {}

    def restart(self, worlds: ArrayLike) -> None:
        """Start new episodes of some robots with the next call of `look`."""
        self._fresh[np.asarray(worlds)] = True

    def measure_step(
        self,
        observation: Mapping[str, NDArray],
        acting: ObservedPolicy | None,
        command: ArrayLike,
        reading: ArrayLike | None = None,
    ) -> dict[str, Array]:
        """Return the rows of this step.

        Args:
            observation: observation of this step, with LeRobot's names, in the dataset's units.
            acting: the policy after its decision at this step; None without a policy.
            command: command sent at this step, ``(nworld, k)`` in the dataset's units, after any envelope.
            reading: joint readings ``(nworld, n)`` if they are not in the observation.

        Raises:
            InputError: readings are missing, not finite, or of another number.
        """
        read = self._check_readings(observation, reading)
        position = self._units.to_si(read)
        rows = self._measure_drives(position)
        fresh = self._fresh.copy()
        self._fresh[:] = False
        sent = np.asarray(command, dtype=np.float64)
        self._command = self._contract.action.to_si(sent) if self._contract.command == "position" else sent
        rows["observation"] = np.concatenate([read, *self._check_tracker_columns(observation)], axis=1)
        if self._chain is not None:
            tool = np.asarray(observation[ENVIRONMENT])[:, self._tool]
            rows["tracker"] = self._measure_tracker(self._chain, position, tool, fresh)
        if acting is not None:
            rows |= self._measure_policy(acting, fresh)
        for name, reference in self._pictures.items():
            if IMAGES + name in observation:
                rows[f"camera/{name}"] = self._measure_images(reference, np.asarray(observation[IMAGES + name]), name)
        return rows

    def _measure_images(self, reference: ImageReference, pictures: NDArray, name: str) -> Array:
        """Return the rows of images; a repeated image keeps its row, since a camera may be slower than the control."""
        before = self._shown.get(name)
        if before is None or before[0].shape != pictures.shape:
            row = reference.compare_images(pictures, name)
        else:
            row, fresh = before[1].copy(), (pictures != before[0]).any(axis=(1, 2, 3))
            if fresh.any():
                row[fresh] = reference.compare_images(pictures[fresh], name)
        self._shown[name] = pictures.copy(), row
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
        apart = tool - chain.pose((offset + scale * position)[:, order]).position
        before = np.where(fresh[:, None], apart, self._tracked)
        self._tracked = self._keep * before + (1.0 - self._keep) * apart
        return self._tracked.copy()

    def _measure_policy(self, acting: ObservedPolicy, fresh: NDArray[np.bool_]) -> dict[str, Array]:
        self._disagreed[fresh] = np.nan
        both = acting.predicted & (acting.previous_step >= 0)
        for shift in np.unique((acting.chunk_step - acting.previous_step)[both]):
            worlds = np.flatnonzero(both & (acting.chunk_step - acting.previous_step == shift))
            self._disagreed[worlds] = compare_chunks(acting.chunk[worlds], acting.previous_chunk[worlds], int(shift))
        rows = {"chunk": self._disagreed.copy()}
        if acting.latent.shape[1]:
            rows["latent"] = np.array(acting.latent, dtype=np.float64)
        return rows


def compare_chunks(chunk: Array, previous: Array, shift: int) -> Array:
    """Return the difference of chunks ``(n, size, k)`` from those predicted ``shift`` steps before, over common steps.

    It is the root mean square over these steps, ``(n, k)``; NaN if there are none.
    """
    common = chunk.shape[1] - shift
    if common < 1:
        return np.full((len(chunk), chunk.shape[2]), np.nan)
    return np.sqrt(np.mean((chunk[:, :common] - previous[:, shift:]) ** 2, axis=1))


def split_arm_and_grip(twin: Twin) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the indices of the arm joints and of the gripper joint, which stops at an object when it closes."""
    gripper = twin.robot.gripper
    grip = [i for i, name in enumerate(twin.robot.joints) if gripper is not None and name == gripper.joint]
    return np.setdiff1d(np.arange(len(twin.robot.joints)), grip), np.array(grip, dtype=np.intp)


def _find_tool_columns(contract: Contract) -> list[int]:
    names, seen = [f"tool.{axis}" for axis in "xyz"], contract.environment
    return [seen.index(name) for name in names] if set(names) <= set(seen) else []
