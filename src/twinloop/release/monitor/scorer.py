"""Judges of every stream together: from rows to scores by signal, smoothed over the last moments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.release.monitor.judging import Departure, Drives, Judge, Size
from twinloop.release.monitor.outlying import Outlying, RandomNetwork

Array = NDArray[np.float64]
KINDS: dict[str, Any] = {one.kind: one for one in (Departure, Drives, Outlying, RandomNetwork, Size)}
SMOOTHED_S = 0.25  # mean of scores that have no memory of their own, as FIPER's windows (our choice)
_NO_MEMORY = ("observation", "latent")


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """Judges by name: of a stream, or of some columns of one (``camera/front/light`` of ``camera/front``)."""

    judges: Mapping[str, Judge]
    columns: Mapping[str, tuple[int, ...]]
    control_hz: float

    def scores(self, rows: Mapping[str, Array], step: ArrayLike) -> dict[str, Array]:
        """Scores by signal of rows ``(…, d)`` by stream at their steps ``(…,)``, not smoothed yet.

        Raises:
            InputError: a stream is missing, or has another count of columns.
        """
        told: dict[str, Array] = {}
        for name, judge in self.judges.items():
            for end, values in judge.scores(self._rows(rows, name), step).items():
                told[f"{name}/{end}" if end else name] = values
        return told

    @property
    def drives(self) -> Drives:
        """The judge of the drives, which every monitor has."""
        judge = self.judges["drives"]
        assert isinstance(judge, Drives)  # noqa: S101 - `calibration.fit` made it
        return judge

    def smoothed(self, before: Mapping[str, Array] | None, now: Mapping[str, Array]) -> dict[str, Array]:
        """Scores of a step, averaged with those of the steps before where their stream has no memory."""
        if before is None:
            return dict(now)
        return {name: self._mixed(name, before[name], values) for name, values in now.items()}

    def curves(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        """Smoothed scores ``(m, T)`` by signal of whole episodes, rows ``(m, T, d)``."""
        length = next(iter(rows.values())).shape[1]
        raw = self.scores(rows, np.arange(length)[None])
        for name, values in raw.items():
            for step in range(1, length):
                values[:, step] = self._mixed(name, values[:, step - 1], values[:, step])
        return raw

    def _mixed(self, name: str, before: Array, now: Array) -> Array:
        if name not in _NO_MEMORY:
            return now
        keep = math.exp(-1.0 / (SMOOTHED_S * self.control_hz))
        return np.where(np.isfinite(before), keep * before + (1.0 - keep) * now, now)

    def _rows(self, rows: Mapping[str, Array], name: str) -> Array:
        stream = name if name in rows else name.rpartition("/")[0]
        if stream not in rows:
            there = ", ".join(rows)
            raise InputError(
                f"The monitor was calibrated with {name}, and this robot gives {there}. Give the same observations, "
                "or calibrate it for these."
            )
        return rows[stream][..., list(self.columns[name])] if name in self.columns else rows[stream]
