"""The contract of what is measured in a log and predicted by a replay, and measured signals at an episode's frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import LogError
from twinloop.core.params import ParamTable
from twinloop.core.records import Episode
from twinloop.simulate.open_loop import Motion

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Channel:
    """One column that is measured and predicted, such as ``position/elbow`` or ``pose/cube/rx``."""

    name: str
    unit: str


class Measure(Protocol):
    """One kind of thing that is compared. ``records`` are the derived fields that a rollout must keep for it."""

    channels: tuple[Channel, ...]
    records: tuple[str, ...]

    def measured(self, episode: Episode) -> Array:
        """What is kept of an episode, ``(T, r)`` at its frames; NaN where nothing was measured."""
        ...

    def compare(self, kept: Array) -> Array:
        """The measured columns ``(…, k)`` of what was kept."""
        ...

    def instead(self, kept: Array, other: Array) -> Array:
        """The columns ``(…, nframe, k)`` that would be predicted if ``other`` were there in place of what was kept."""
        ...

    def predicted(self, run: Motion, table: ParamTable, kept: Array) -> Array:
        """The predicted columns ``(nworld, nframe, k)``; ``kept`` is ``(nworld, nframe, r)``."""
        ...


def first_held(kept: Array) -> Array:
    """The first frame of ``(…, nframe, k)``, for as long as something was measured."""
    return np.where(np.isnan(kept), np.nan, kept[..., :1, :])


def at_frames(episode: Episode, name: str) -> Array:
    """A signal at the times of an episode's frames, linearly interpolated; NaN before its first and after its last.

    Raises:
        LogError: the episode holds no such signal; names those that it has.
    """
    if name not in episode.signals:
        has = ", ".join(episode.signals) or "none besides joint positions"
        raise LogError(f"Episode {episode.index} of {episode.origin or 'the log'} has no signal {name}. It has: {has}.")
    signal = episode.signals[name]
    if np.array_equal(signal.time, episode.time):
        return np.array(signal.values)
    columns = [np.interp(episode.time, signal.time, column, left=np.nan, right=np.nan) for column in signal.values.T]
    return np.stack(columns, axis=-1)
