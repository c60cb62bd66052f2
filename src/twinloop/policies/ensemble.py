"""Temporal ensembling: a command is the weighted mean of all predictions that were made for its step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Ensemble:
    """Predictions of the last ``chunk`` steps of many worlds (Zhao et al. 2023, algorithm 2).

    Of the predictions for a step, oldest first, the i-th has the weight exp(-decay · i): with a positive decay older
    ones count more. Steps at which a world predicted nothing have none.

    Args:
        shape: (nworld, chunk, k).
        decay: the paper's m, 0.01 there.
    """

    def __init__(self, shape: tuple[int, ...], decay: float) -> None:
        nworld, chunk, size = shape
        self._decay, self._chunk, self._now = decay, chunk, 0
        self._made = np.full((nworld, chunk, chunk, size), np.nan)  # world, when modulo chunk, step of the chunk

    def forget(self, worlds: NDArray[np.intp]) -> None:
        """Worlds of which nothing is known any more."""
        self._made[worlds] = np.nan

    def age(self) -> None:
        """A step has passed; the oldest predictions say nothing of those to come."""
        self._now = (self._now + 1) % self._chunk
        self._made[:, self._now] = np.nan

    def put(self, worlds: NDArray[np.intp], chunk: NDArray[np.float64]) -> None:
        """Predictions of this step, ``(len(worlds), chunk, k)``."""
        self._made[worlds, self._now] = chunk

    def mean(self) -> NDArray[np.float64]:
        """The command of this step ``(nworld, k)``, NaN where nothing was predicted for it."""
        since = np.arange(self._chunk)[::-1]  # steps since a prediction, oldest first
        said = self._made[:, (self._now - since) % self._chunk, since]
        there = ~np.isnan(said[..., 0])
        weight = np.where(there, np.exp(-self._decay * (np.cumsum(there, axis=1) - 1)), 0.0)[..., None]
        total, mean = weight.sum(axis=1), (weight * np.nan_to_num(said)).sum(axis=1)
        return np.divide(mean, total, out=np.full_like(mean, np.nan), where=total > 0)
