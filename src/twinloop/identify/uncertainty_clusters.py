"""What counts as independent in a log: its episodes, or stretches of time where there are too few of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.stats import block_frames, integrated_time, time_blocks

Array = NDArray[np.float64]
# With fewer clusters than this many per parameter a sandwich is nearly singular.
_PER_PARAMETER = 2


@dataclass(frozen=True, kw_only=True)
class FrameTimes:
    """When each window begins, ``(nwindow,)`` in s of its episode, and the time between frames ``dt`` in s."""

    begins: Array
    dt: float


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """Which frames belong together.

    ``labels`` ``(nwindow, nframe)`` number the clusters from 0; ``length`` is that of time blocks in s, 0 for episodes.
    ``correlated`` is over how many s the influence of frames on the slowest parameter is correlated, ``independent``
    how many such stretches there are. ``few`` says that there are fewer than twice as many clusters as parameters.
    """

    kind: Literal["episode", "time block"]
    labels: NDArray[np.intp]
    length: float
    correlated: float
    independent: float
    few: bool

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.labels.max()) + 1


def choose_clusters(
    influences: Sequence[Array], present: NDArray[np.bool_], owners: NDArray[np.intp], times: FrameTimes
) -> Clusters | None:
    """Episodes where there are two for each parameter, else time blocks where these are more.

    Args:
        influences: what each frame adds to the error of each parameter, ``(nwindow, nframe, p)`` for every block of a
            fit; the block with most parameters decides.
        present: frames with a measurement, ``(nwindow, nframe)``.
        owners: number of each window's episode from 0, ``(nwindow,)``.
        times: when windows begin.

    Returns:
        None for a single episode that is too short to be cut.
    """
    wanted = _PER_PARAMETER * max(influence.shape[-1] for influence in influences)
    episodes = int(owners.max()) + 1
    frames = float(present.sum())
    tau = max(float(np.max(integrated_time(_tracks(each, owners, times)))) for each in influences)
    said = {"correlated": tau * times.dt, "independent": frames / tau}
    whole = np.repeat(owners[:, None], present.shape[1], axis=1)
    if episodes < wanted:
        length = block_frames(frames, tau)
        if length is not None:
            labels = time_blocks(times.begins, present.shape[1], times.dt, owners, length * times.dt)
            labels = _occupied(labels, present)
            count = int(labels.max()) + 1
            if count > episodes:
                length_s = length * times.dt
                return Clusters(kind="time block", labels=labels, length=length_s, few=count < wanted, **said)
    if episodes == 1:
        return None
    return Clusters(kind="episode", labels=whole, length=0.0, few=episodes < wanted, **said)


def _tracks(influence: Array, owners: NDArray[np.intp], times: FrameTimes) -> list[Array]:
    """The influence of each episode's frames in order of time; windows that overlap add up."""
    tracks = []
    for owner in np.unique(owners):
        rows = owners == owner
        begin = np.round((times.begins[rows] - times.begins[rows].min()) / times.dt).astype(np.intp)
        at = begin[:, None] + np.arange(influence.shape[1])
        track = np.zeros((int(at.max()) + 1, influence.shape[-1]))
        np.add.at(track, at, influence[rows])
        tracks.append(track)
    return tracks


def _occupied(labels: NDArray[np.intp], present: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Blocks in which something was measured, renumbered; frames past a window's end go with its first block."""
    kept = np.where(present, labels, labels[:, :1])
    return np.unique(kept, return_inverse=True)[1].reshape(labels.shape)
