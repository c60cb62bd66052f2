"""Resample an episode's joint positions to a constant rate, and compute hand positions with a twin's kinematics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, LogError
from twinloop.core.records import Episode
from twinloop.core.units import UnitMap, unit_map_from_ranges
from twinloop.curate.motion import find_runs
from twinloop.curate.recording import RecordedEpisode
from twinloop.curate.registry import EpisodeTwins
from twinloop.dataset.logs.resampling import full_turns, hold, interpolate, unwrap_columns
from twinloop.twin import Twin

Array = NDArray[np.float64]
LEAST_FRAMES = 8  # as for a clip: three differences, and a spectrum of a few lines
# Below this share of the 90th percentile of the episode's speed the arm is at rest: movements start and end at 5 % of
# the peak speed (the usual threshold in studies of reaching; Balasubramanian et al. 2015, "Methods").
STILL = 0.05
PAUSE_S = 0.3  # shortest pause; simple reaction times are 0.2 to 0.3 s
_LEAST_S = 0.4  # about the duration of a person's quickest reach; shorter movements are ignored
_UNEVEN = 0.1  # of a step: if steps differ by more, the episode is resampled to a constant rate


@dataclass(frozen=True, kw_only=True)
class Movement:
    """Joint positions and commands of an episode at a constant rate: T frames of n joints.

    Attributes:
        position: measured positions ``(T, n)``, in rad or m if ``si`` is true, else in the log's own unit.
        command: commanded positions ``(T, n)``, in the same unit; None if the actions are not positions.
        joints: names of the joints.
        arm: columns of the joints of the arm.
        gripper: column of the gripper, whose lower values are more closed; None if there is no gripper.
        rate_hz: frames per second.
        si: whether positions are in SI units.
        frames: nearest recorded frame of each row ``(T,)``.
    """

    position: Array
    command: Array | None
    joints: tuple[str, ...]
    arm: tuple[int, ...]
    gripper: int | None
    rate_hz: float
    si: bool
    frames: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.position)

    @property
    def velocity(self) -> Array:
        """Velocities of the narm joints of the arm between frames, ``(T - 1, narm)``, in ``position`` units per s."""
        return np.diff(self.position[:, self.arm], axis=0) * self.rate_hz

    @property
    def speed(self) -> Array:
        """Norm of the arm's joint velocities ``(T - 1,)``; 1 m of a slide joint counts as 1 rad."""
        return np.sqrt(np.sum(self.velocity**2, axis=1))

    @classmethod
    def of(cls, episode: Episode, units: UnitMap | None = None) -> Movement:
        """Create the movement of a validated episode.

        Args:
            episode: the episode.
            units: map to SI units; by default that of the episode.

        Raises:
            LogError: If the episode has too few frames or no joints.
        """
        if len(episode) < LEAST_FRAMES or not episode.joints:
            raise LogError(
                f"Episode {episode.index} has {len(episode)} frames of {len(episode.joints)} joints; at least "
                f"{LEAST_FRAMES} frames are needed to measure its motion."
            )
        steps = np.diff(episode.time)
        step = float(np.median(steps))
        position = unwrap_columns(episode.state, full_turns(episode.units))
        command = unwrap_columns(episode.action, full_turns(episode.units)) if episode.command == "position" else None
        frames = np.arange(len(episode))
        if float(np.abs(steps - step).max()) > _UNEVEN * step:
            grid = episode.time[0] + step * np.arange(int((episode.time[-1] - episode.time[0]) / step) + 1)
            frames = np.clip(np.searchsorted(episode.time, grid - step / 2), 0, len(episode) - 1)
            position = interpolate(episode.time, position, grid)
            command = None if command is None else hold(episode.time, command, grid)
        units = units or episode.units
        if units.known:
            position = units.to_si(position)
            command = None if command is None else units.to_si(command)
        gripping = [i for i, joint in enumerate(episode.joints) if "grip" in joint or "finger" in joint]
        return cls(
            position=position,
            command=command,
            joints=episode.joints,
            arm=tuple(i for i in range(len(episode.joints)) if i not in gripping) or (0,),
            gripper=gripping[0] if gripping else None,
            rate_hz=1.0 / step,
            si=units.known,
            frames=frames,
        )


def compute_movement(recording: RecordedEpisode) -> Movement:
    """Return the joint movement of a recording at a constant rate.

    Raises:
        LogError: If the episode has invalid values or is too short.
    """
    return Movement.of(recording.episode)


def find_rest(motion: Movement) -> NDArray[np.bool_]:
    """Return the mask ``(T - 1,)`` of the steps in which the arm is at rest.

    At rest means slower than 5 % of the 90th percentile of the arm's speed in motion.
    """
    speed = np.convolve(motion.speed, np.ones(3) / 3, mode="same")  # a single repeated reading does not count as rest
    moving = speed[speed > 0]
    return speed < STILL * float(np.quantile(moving, 0.9)) if len(moving) else np.ones(len(speed), dtype=bool)


def find_long_runs(flags: NDArray[np.bool_], least: float) -> list[tuple[int, int]]:
    """Return start and end (exclusive) of each run of at least ``least`` consecutive true values."""
    return [(begin, end) for begin, end in find_runs(flags) if end - begin >= least]


def split_movements(motion: Movement) -> list[tuple[int, int]]:
    """Return start and end (exclusive) of each movement between two pauses, as row indices of `Movement.velocity`."""
    moving = np.ones(len(motion) - 1, dtype=bool)
    for begin, end in find_long_runs(find_rest(motion), PAUSE_S * motion.rate_hz):
        moving[begin:end] = False
    return find_long_runs(moving, max(4, _LEAST_S * motion.rate_hz))


def infer_units(episode: Episode, twin: Twin) -> UnitMap | None:
    """Return the unit map of an episode, which converts its joint positions to rad or m.

    If the episode has no calibration, the conversion is derived from the twin's joint ranges. None is returned if the
    joints or units do not match the twin.
    """
    joints, unit_names = list(twin.robot.joints), [unit.unit for unit in episode.units.joints]
    if not set(episode.joints) <= set(joints) or (not episode.units.known and "unknown" in unit_names):
        return None
    if episode.units.known:
        return episode.units
    ranges = twin.joint_ranges[[joints.index(name) for name in episode.joints]]
    return unit_map_from_ranges(episode.joints, ranges, unit_names, source=f"joint ranges of {twin.name}")


class ToolPositions:
    """Computation of tool positions (of the robot's hand) from a twin's kinematics; each twin is compiled once.

    Args:
        twins: function that returns the twin of an episode. If None, no position is computed.
    """

    def __init__(self, twins: EpisodeTwins | None = None) -> None:
        self._twins = twins
        self._read: dict[str, tuple[mujoco.MjModel, mujoco.MjData]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the MuJoCo models; each process compiles them again."""
        return {"_twins": self._twins, "_read": {}}

    def compute_positions(self, recording: RecordedEpisode) -> Array | None:
        """Return the positions of the twin's tool site in the world frame, ``(T, 3)`` in m.

        None is returned if the episode has no twin, the twin has no tool site, or the joints do not match. If the log
        uses LeRobot's normalized units (-100 to 100) without calibration, it is converted with the twin's joint ranges.
        """
        if self._twins is None:
            return None
        try:
            twin = self._twins(recording)
        except InputError:
            return None
        episode = recording.episode
        units = infer_units(episode, twin)
        if twin.robot.tcp is None or units is None:
            return None
        return self._compute_positions(twin, episode.joints, units.to_si(episode.state))

    def _compute_positions(self, twin: Twin, joints: Sequence[str], values: Array) -> Array:
        if twin.hash not in self._read:
            self._read[twin.hash] = (twin.model, mujoco.MjData(twin.model))
        model, data = self._read[twin.hash]
        data.qpos[:], _ = twin.home()
        address = [int(model.joint(name).qposadr[0]) for name in joints]
        site = model.site(str(twin.robot.tcp)).id
        found = np.empty((len(values), 3))
        for frame, row in enumerate(values):
            data.qpos[address] = row
            mujoco.mj_kinematics(model, data)
            found[frame] = data.site_xpos[site]
        return found
