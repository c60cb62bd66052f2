"""Turn measurements into scores: how far a row is from those of successes, smoothed over the steps.

A judge is fitted to rows ``(episode, time, d)`` of successes, NaN where an episode has ended, and scores rows of other
episodes. It is made of arrays alone, which are what a calibration file keeps.

Which of them sees most is measured by `python -m benchmarks monitor`; see docs/monitoring.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import freeze_fields
from twinloop.core.seeds import generator
from twinloop.stats.conformal import running_mean
from twinloop.stats.novelty import WhitenedReference, shrunk_covariance

Array = NDArray[np.float64]
_LEAST_SD = 1e-9
_CONSTANT = 1e-2  # of the variance that is taken for it: such a column has been the same in all successes
_SMOOTHED = 7  # steps over which spreads are averaged: with tens of episodes they are ragged (our choice)
_LEAST_SHARE = 0.3  # of its usual spread: where all successes agree by accident, it must not be a trap (our choice)


class Scorer(Protocol):
    """Scores by signal: rows ``(…, d)`` at their steps ``(…,)`` to one number each."""

    kind: ClassVar[str]

    def scores(self, rows: Array, step: ArrayLike) -> dict[str, Array]:
        """Larger is worse; the names are ends of signals' names, empty for a judge that has but one."""
        ...


class ArrayRecord:
    """A frozen dataclass of arrays that goes into files and comes back."""

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        freeze_fields(self, *(field.name for field in fields(self)))  # pyright: ignore[reportArgumentType]

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Its arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # pyright: ignore[reportArgumentType]

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """The inverse of `to_arrays`."""
        return cls(**arrays)


@dataclass(frozen=True, kw_only=True)
class MahalanobisScorer(ArrayRecord):
    """Mahalanobis' distance from the mean of successes at the same time, by their spread then.

    ``mean`` and ``sd`` ``(T, d)``, ``inverse`` ``(d, d)`` of the shrunk correlations, which are those of all times.
    """

    kind: ClassVar[str] = "departure"
    mean: Array
    sd: Array
    inverse: Array

    @classmethod
    def fit(cls, rows: Array, *, skip: int = 0, least: float = _LEAST_SD) -> MahalanobisScorer:
        """From rows ``(m, T, d)``; the first ``skip`` steps have a mean and do not count for the covariance.

        No spread is taken to be less than ``least``, in the rows' unit: successes that all read the same say nothing
        of how far a reading may lie from theirs.
        """
        reached = np.flatnonzero(np.isfinite(rows[..., 0]).sum(axis=0) >= min(3, len(rows)))[-1] + 1
        head = rows[:, :reached]
        mean, sd = np.nanmean(head, axis=0), np.nanstd(head, axis=0)
        sd = np.sqrt(running_mean(sd**2, _SMOOTHED))
        usual = np.sqrt(np.mean(sd[min(skip, reached - 1) :] ** 2, axis=0))
        sd = np.maximum(sd, np.maximum(_LEAST_SHARE * usual, least))
        apart = ((head - mean) / sd)[:, min(skip, reached - 1) :].reshape(-1, rows.shape[-1])
        apart = apart[np.isfinite(apart).all(axis=1)]
        covariance = shrunk_covariance(apart)
        covariance += np.diag(np.where(np.diag(covariance) < _CONSTANT, 1.0, 0.0))
        return cls(mean=mean, sd=sd, inverse=np.asarray(np.linalg.inv(covariance), dtype=np.float64))

    def standard(self, rows: Array, step: ArrayLike) -> Array:
        """Rows ``(…, d)`` in standard deviations from the mean of their time."""
        at = np.minimum(np.asarray(step), len(self.mean) - 1)
        return (rows - self.mean[at]) / self.sd[at]

    def scores(self, rows: Array, step: ArrayLike) -> dict[str, Array]:
        """See `Scorer`."""
        apart = self.standard(rows, step)
        return {"": np.sqrt(np.maximum(np.einsum("...d,de,...e->...", apart, self.inverse, apart), 0.0))}


@dataclass(frozen=True, kw_only=True)
class DriveScorer(ArrayRecord):
    """Whether the coefficients of the drives depart from those of successes, and as which fault would move them.

    ``mean``, ``sd`` and ``inverse`` are those of `MahalanobisScorer` over all joints' coefficients; ``signature``
    ``(nwrong, T, d)`` is how each fault moves them, in those standard deviations. A fault's score is the matched
    filter's, sᵀ Σ⁻¹ z / √(sᵀ Σ⁻¹ s): how many standard deviations the coefficients have gone that way.
    """

    kind: ClassVar[str] = "drives"
    names: NDArray[np.str_]
    mean: Array
    sd: Array
    inverse: Array
    signature: Array

    def __post_init__(self) -> None:
        freeze_fields(self, "mean", "sd", "inverse", "signature")

    @classmethod
    def fit(cls, rows: Array, signature: Array, names: tuple[str, ...], *, skip: int) -> DriveScorer:
        """From coefficients ``(m, T, d)`` and how each fault moves them ``(nwrong, T, d)``."""
        known = MahalanobisScorer.fit(rows, skip=skip)
        reached = np.minimum(np.arange(len(known.mean)), signature.shape[1] - 1)
        return cls(names=np.array(names), signature=signature[:, reached] / known.sd, **known.to_arrays())

    def scores(self, rows: Array, step: ArrayLike) -> dict[str, Array]:
        """See `Scorer`: one for each fault, and ``any`` for a departure whichever way."""
        at = np.minimum(np.asarray(step), len(self.mean) - 1)
        apart = (rows - self.mean[at]) / self.sd[at]
        pulled = apart @ self.inverse
        told = {"any": np.sqrt(np.maximum(np.einsum("...d,...d->...", pulled, apart), 0.0))}
        for name, way in zip(self.names.tolist(), self.signature[:, at], strict=True):
            length = np.sqrt(np.maximum(np.einsum("...d,de,...e->...", way, self.inverse, way), 1e-6))
            told[name] = np.einsum("...d,...d->...", pulled, way) / length
        return told

    def evidence(self, rows: Array, step: ArrayLike) -> Array:
        """What rows ``(…, d)`` say for every fault, to be added up over an episode; see `likeness`.

        ``(…, 2 nwrong + 1)``: sᵀ Σ⁻¹ z and sᵀ Σ⁻¹ s of each, then zᵀ Σ⁻¹ z; zeros where a row is NaN.
        """
        at = np.minimum(np.asarray(step), len(self.mean) - 1)
        apart = np.nan_to_num((rows - self.mean[at]) / self.sd[at])
        known = np.expand_dims(np.isfinite(rows).all(axis=-1), -1)
        pulled, ways = apart @ self.inverse, np.moveaxis(self.signature[:, at], 0, -2)
        along = np.einsum("...d,...hd->...h", pulled, ways)
        sizes = np.einsum("...hd,de,...he->...h", ways, self.inverse, ways)
        departed = np.einsum("...d,...d->...", pulled, apart)[..., None]
        return np.concatenate([along, sizes, departed], axis=-1) * known

    def likeness(self, evidence: Array) -> dict[str, float]:
        """How much a departure is like each fault's, by name, from evidence summed over time.

        The cosine between what was seen from the first step on and what the fault would have brought, in whitened
        coefficients of all joints and times: 1 is alike, and a fault that should have shown earlier is unlike.
        """
        count = len(self.names)
        along, sizes = evidence[:count], evidence[count : 2 * count]
        cosines = along / np.sqrt(np.maximum(sizes * evidence[-1], 1e-12))
        return dict(zip(self.names.tolist(), cosines.tolist(), strict=True))


@dataclass(frozen=True, kw_only=True)
class MagnitudeScorer(ArrayRecord):
    """The root mean square of a row in units of its columns, ``unit`` ``(d,)``."""

    kind: ClassVar[str] = "size"
    unit: Array

    def scores(self, rows: Array, step: ArrayLike) -> dict[str, Array]:  # noqa: ARG002  # see `Scorer`
        """See `Scorer`."""
        return {"": np.sqrt(np.mean((rows / self.unit) ** 2, axis=-1))}


Kind = Literal["neighbours", "density", "random_network"]
_MOST_ROWS = 3000  # kept of the references: 200 distances to each take a millisecond
_TARGETS, _FEATURES, _RIDGE = 32, 256, 1e-3  # of the random network; our choice


@dataclass(frozen=True, kw_only=True)
class OutlierScorer(ArrayRecord):
    """How far from rows of successes: logarithms of distances to neighbours, or of Mahalanobis' distance.

    The arrays are those of `stats.novelty.WhitenedReference`; ``dense`` is 1 for Mahalanobis' distance.
    """

    kind: ClassVar[str] = "outlying"
    mean: Array
    sd: Array
    whiten: Array
    inverse: Array
    rows: NDArray[Any]
    dense: NDArray[Any]

    @classmethod
    def fit(cls, rows: Array, *, dense: bool) -> OutlierScorer:
        """To rows ``(n, d)``."""
        space = WhitenedReference.of(rows, np.zeros(len(rows), dtype=np.int64))
        kept = space.rows[np.linspace(0, len(rows) - 1, min(len(rows), _MOST_ROWS)).astype(int)]
        whole = {name: getattr(space, name) for name in ("mean", "sd", "whiten", "inverse")}
        return cls(rows=kept[:1] if dense else kept, dense=np.array(float(dense)), **whole)

    def scores(self, rows: Array, step: ArrayLike) -> dict[str, Array]:  # noqa: ARG002  # see `Scorer`
        """See `Scorer`."""
        space = WhitenedReference(
            mean=self.mean,
            sd=self.sd,
            whiten=self.whiten,
            inverse=self.inverse,
            rows=self.rows.astype(np.float32),
            clusters=np.zeros(len(self.rows), dtype=np.int64),
        )
        flat = rows.reshape(-1, rows.shape[-1])
        known = np.isfinite(flat).all(axis=1)
        out = np.full(len(flat), np.nan)
        if known.any():
            out[known] = space.score(flat[known], "density" if self.dense else "neighbours")
        return {"": out.reshape(rows.shape[:-1])}


@dataclass(frozen=True, kw_only=True)
class RandomNetworkScorer(ArrayRecord):
    """How badly a regression that was fitted on successes foretells what a fixed random network makes of a row.

    Random network distillation (Burda, Edwards, Storkey & Klimov, "Exploration by random network distillation", ICLR
    2019) with a ridge regression on random features in the place of a trained network, so that a fit has one answer.
    """

    kind: ClassVar[str] = "random_network"
    mean: Array
    sd: Array
    target: Array
    hidden: Array
    bias: Array
    weights: Array

    @classmethod
    def fit(cls, rows: Array, *, seed: int = 0) -> RandomNetworkScorer:
        """To rows ``(n, d)``."""
        random, d = generator(seed, "monitor/random_network"), rows.shape[1]
        mean, sd = rows.mean(axis=0), np.maximum(rows.std(axis=0), 1e-9)
        made = cls(
            mean=mean,
            sd=sd,
            target=random.normal(size=(d, _TARGETS)) * 2.0 / np.sqrt(d),
            hidden=random.normal(size=(d, _FEATURES)) / np.sqrt(d),
            bias=random.uniform(0.0, 2.0 * np.pi, _FEATURES),
            weights=np.zeros((_FEATURES, _TARGETS)),
        )
        given = made._scaled(rows)
        known, wanted = made._features(given), np.tanh(given @ made.target)
        penalty = _RIDGE * len(rows) * np.eye(_FEATURES)
        weights = np.linalg.solve(known.T @ known + penalty, known.T @ wanted)
        return cls(**{**made.to_arrays(), "weights": weights})

    def scores(self, rows: Array, step: ArrayLike) -> dict[str, Array]:  # noqa: ARG002  # see `Scorer`
        """See `Scorer`: the logarithm of the mean squared error."""
        given = self._scaled(rows)
        error = self._features(given) @ self.weights - np.tanh(given @ self.target)
        return {"": np.log(np.mean(error**2, axis=-1) + 1e-12)}

    def _scaled(self, rows: Array) -> Array:
        return np.clip((rows - self.mean) / self.sd, -10.0, 10.0)

    def _features(self, given: Array) -> Array:
        return np.cos(given @ self.hidden + self.bias)


def fit_outlying(rows: Array, kind: Kind) -> OutlierScorer | RandomNetworkScorer:
    """A judge of a kind, fitted to rows ``(n, d)``."""
    return (
        RandomNetworkScorer.fit(rows) if kind == "random_network" else OutlierScorer.fit(rows, dense=kind == "density")
    )


JUDGES: dict[str, Any] = {
    one.kind: one for one in (MahalanobisScorer, DriveScorer, OutlierScorer, RandomNetworkScorer, MagnitudeScorer)
}
SMOOTHED_S = 0.25  # mean of scores that have no memory of their own, as FIPER's windows (our choice)
_NO_MEMORY = ("observation", "latent")


@dataclass(frozen=True, kw_only=True)
class ScorerSet:
    """Judges by name: of a stream, or of some columns of one (``camera/front/light`` of ``camera/front``)."""

    judges: Mapping[str, Scorer]
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
    def drives(self) -> DriveScorer:
        """The judge of the drives, which every monitor has."""
        judge = self.judges["drives"]
        assert isinstance(judge, DriveScorer)  # noqa: S101 - `calibration.fit` made it
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
            raise InputError(
                f"The monitor was calibrated with {name}, and this robot gives {', '.join(rows)}. Give the same "
                "observations, or calibrate it for these."
            )
        return rows[stream][..., list(self.columns[name])] if name in self.columns else rows[stream]
