"""A first look at a log: how much each channel moves, how long windows are, how many episodes there are."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.simulate.measure import Channel
from twinloop.simulate.replay_logs import ReplayLogs

Array = NDArray[np.float64]
_ANGLE = 1.0  # rad, the scale of angles whose measured value is zero by definition


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What the figures need to know of a log beforehand.

    Attributes:
        channels: what is compared.
        episodes: numbers, in the order in which they pass.
        windows: how many there are.
        frames: of the longest window.
        hz: frames per second of the replay.
        mean: of the measured values, ``(nchannel,)``.
        scale: what a channel's error is measured by where channels are averaged: the standard deviation of its measured
            values; the size of the object for a distance from where it was measured, 1 rad for an angle. NaN where
            nothing moves.
        sizes: m, largest extent of each object whose pose is compared, by body.
    """

    channels: tuple[Channel, ...]
    episodes: tuple[int, ...]
    windows: int
    frames: int
    hz: float
    mean: Array
    scale: Array
    sizes: dict[str, float]

    @property
    def length(self) -> float:
        """Seconds from the first to the last frame of the longest window."""
        return (self.frames - 1) / self.hz


def survey(portions: Iterable[ReplayLogs]) -> Survey:
    """Read every window once."""
    source = iter(portions)
    first = next(source)  # a log has an episode, else `stream_logs` refuses it
    centre = np.nan_to_num(np.nanmean(_flat(first), axis=0))
    episodes, windows, frames, sums = list[int](), 0, 0, np.zeros((3, len(centre)))
    for logs in itertools.chain([first], source):
        values = _flat(logs) - centre
        sums += [np.sum(~np.isnan(values), axis=0), np.nansum(values, axis=0), np.nansum(values**2, axis=0)]
        episodes += dict.fromkeys(logs.numbers)
        windows, frames = windows + len(logs), max(frames, int(logs.ends.max()))
    count = np.maximum(sums[0], 1.0)
    spread = np.sqrt(np.maximum(sums[2] / count - (sums[1] / count) ** 2, 0.0))
    sizes = object_sizes(first)
    return Survey(
        channels=first.channels,
        episodes=tuple(episodes),
        windows=windows,
        frames=frames,
        hz=first.twin.control_hz,
        mean=centre + sums[1] / count,
        scale=np.array([_scale(c, s, sizes) for c, s in zip(first.channels, spread.tolist(), strict=True)]),
        sizes=sizes,
    )


def object_sizes(logs: ReplayLogs) -> dict[str, float]:
    """Largest extent in m of each body whose pose is compared: of its geoms' boxes, in the body's axes."""
    names = [channel.name.split("/") for channel in logs.channels]
    bodies = dict.fromkeys(name[1] for name in names if name[0] in ("pose", "pose_error"))
    return {body: _extent(logs.twin.model, body) for body in bodies}


def _flat(logs: ReplayLogs) -> Array:
    return logs.measured.reshape(-1, logs.measured.shape[-1])


def _scale(channel: Channel, spread: float, sizes: dict[str, float]) -> float:
    """See `Survey.scale`."""
    family, _, rest = channel.name.partition("/")
    if family == "pose_error":
        return sizes[rest.split("/")[0]] or np.nan if channel.unit == "m" else _ANGLE
    if family == "pose" and channel.unit == "rad":
        return _ANGLE
    return spread if spread > 0 else np.nan


def _extent(model: mujoco.MjModel, body: str) -> float:
    corners = []
    for geom in np.flatnonzero(model.geom_bodyid == model.body(body).id):
        centre, half = model.geom_aabb[geom, :3], model.geom_aabb[geom, 3:]
        turn = np.zeros(9)
        mujoco.mju_quat2Mat(turn, model.geom_quat[geom])
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=3)))
        corners.append((centre + signs * half) @ turn.reshape(3, 3).T + model.geom_pos[geom])
    return float(np.ptp(np.concatenate(corners), axis=0).max()) if corners else 0.0
