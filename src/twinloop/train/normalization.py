"""Statistics that a policy normalizes by: of one source, or of all by their shares of a batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.contract import ACTION, STATE
from twinloop.core.errors import UnknownNameError
from twinloop.policies.settings import Settings
from twinloop.policies.statistics import LAST_COMMAND, ColumnStatistics, Statistics, relative_actions
from twinloop.train.data import Data, Ints

POOLED = "pooled"
_TAILS = (0.01, 0.99)  # as `policies.statistics`
_MOST_CHUNKS = 20_000  # frames whose relative chunks are measured: quantiles of 1 % then rest on 200


def measure(data: Data, episodes: Ints, share: ArrayLike, settings: Settings, *, whose: str = POOLED) -> Statistics:
    """The statistics of what is trained on.

    Args:
        data: all frames.
        episodes: those that are trained on.
        share: of each source, see `mixture.shares`; each frame of a source counts alike.
        settings: of the policy, which say whether its actions are relative and whether it sees the last command.
        whose: ``pooled``, or the name of the source that alone counts.

    Raises:
        UnknownNameError: no such source.
    """
    names = [source.name for source in data.sources]
    if whose != POOLED and whose not in names:
        raise UnknownNameError("source", whose, [*names, POOLED], where="normalization")
    part = np.asarray(share, dtype=np.float64)
    part = part if whose == POOLED else (np.array(names) == whose).astype(np.float64)
    said = ", ".join(f"{name} {one:.3g}" for name, one in zip(names, part, strict=True) if one > 0)
    frames = data.frames_of(episodes[part[data.source_of[episodes]] > 0])
    weight = _weights(data, frames, part)
    columns = {
        key: weighted_statistics(values[frames], weight)
        for key, values in data.columns.items()
        if key != ACTION or settings.action_space == "absolute"
    }
    if settings.action_space == "delta_to_state":
        columns[ACTION] = _relative(data, frames, part, settings.chunk_size)
        if settings.last_command:
            columns[LAST_COMMAND] = weighted_statistics(data.columns[ACTION][frames], weight)
    return Statistics(columns=columns, source=f"frames of {said}")


def weighted_statistics(values: ArrayLike, weight: ArrayLike) -> ColumnStatistics:
    """Statistics of rows ``(n, k)`` that count by ``weight`` ``(n,)``.

    A quantile is the smallest value that at least so much of the weight does not exceed.
    """
    rows, weights = np.asarray(values, dtype=np.float64), np.asarray(weight, dtype=np.float64)
    weights = weights / weights.sum()
    mean = np.average(rows, axis=0, weights=weights)
    std = np.sqrt(np.average((rows - mean) ** 2, axis=0, weights=weights))
    order = np.argsort(rows, axis=0, kind="stable")
    below = np.cumsum(weights[order], axis=0)
    sorted_ = np.take_along_axis(rows, order, axis=0)
    low, high = (_quantile(sorted_, below, tail) for tail in _TAILS)
    return ColumnStatistics(mean=mean, std=std, min=sorted_[0], max=sorted_[-1], q01=low, q99=high)


def _quantile(sorted_: NDArray[np.float64], below: NDArray[np.float64], tail: float) -> NDArray[np.float64]:
    place = np.minimum((below < tail).sum(axis=0), len(sorted_) - 1)
    return np.take_along_axis(sorted_, place[None], axis=0)[0]


def _weights(data: Data, frames: Ints, share: NDArray[np.float64]) -> NDArray[np.float64]:
    source = data.source_of[data.episode_of(frames)]
    counts = np.bincount(source, minlength=len(share))
    return (share / np.maximum(counts, 1))[source]


def _relative(data: Data, frames: Ints, share: NDArray[np.float64], chunk: int) -> ColumnStatistics:
    """Of the commands of chunks relative to the newest readings; those beyond an episode's end do not count."""
    frames = frames[:: max(1, len(frames) // _MOST_CHUNKS)]
    ahead = frames[:, None] + np.arange(chunk)
    inside = ahead <= data.last[data.episode_of(frames)][:, None]
    actions = data.columns[ACTION][np.where(inside, ahead, frames[:, None])]
    relative = relative_actions(actions, data.columns[STATE][frames])
    weight = np.broadcast_to(_weights(data, frames, share)[:, None], inside.shape)
    return weighted_statistics(relative[inside], weight[inside])
