"""Convert measurements to scores: distance of a row from rows of successful episodes, smoothed over the steps.

A scorer is fitted to rows ``(episode, time, d)`` of successful episodes, NaN after the end of an episode, and scores
rows of other episodes. It consists of arrays only, so that a calibration file can store it.

`python -m benchmarks monitor` measures which scorers detect most; see docs/guides/monitoring.md.
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
_CONSTANT = 1e-2  # standardized variance below which a column counts as constant in all successes
_SMOOTHED = 7  # steps over which spreads are averaged: with tens of episodes they are noisy (our choice)
_LEAST_SHARE = 0.3  # of the usual spread: lower limit for steps where all successes agree by accident (our choice)


class Scorer(Protocol):
    """Scorer of one stream: each row of ``(…, d)`` at its step ``(…,)`` gives one score per signal."""

    kind: ClassVar[str]

    def compute_scores(self, rows: Array, step: ArrayLike) -> dict[str, Array]:
        """Return the scores, where larger is worse, by suffix of the signal's name; "" if there is only one signal."""
        ...


class ArrayRecord:
    """A frozen dataclass of arrays that can be written to a file and read again."""

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        freeze_fields(self, *(field.name for field in fields(self)))  # pyright: ignore[reportArgumentType]

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return its arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # pyright: ignore[reportArgumentType]

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """Return an object from its arrays; the inverse of `to_arrays`."""
        return cls(**arrays)


@dataclass(frozen=True, kw_only=True)
class MahalanobisScorer(ArrayRecord):
    """Mahalanobis distance from the mean of successful episodes at the same time, with their spread at that time.

    ``mean`` and ``sd`` are ``(T, d)``; ``inverse`` ``(d, d)`` is that of the shrunk correlations, pooled over all
    times.
    """

    kind: ClassVar[str] = "departure"
    mean: Array
    sd: Array
    inverse: Array

    @classmethod
    def fit(cls, rows: Array, *, skip: int = 0, least: float = _LEAST_SD) -> MahalanobisScorer:
        """Fit to rows ``(m, T, d)``; the first ``skip`` steps have a mean but are not used for the covariance.

        The spread is at least ``least``, in the rows' unit: if all successful episodes read the same, their spread does
        not show how far a usual reading may differ.
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

    def standardize(self, rows: Array, step: ArrayLike) -> Array:
        """Return rows ``(…, d)`` in standard deviations from the mean of their time."""
        at = np.minimum(np.asarray(step), len(self.mean) - 1)
        return (rows - self.mean[at]) / self.sd[at]

    def compute_scores(self, rows: Array, step: ArrayLike) -> dict[str, Array]:
        """Return the Mahalanobis distance of each row at its step, ``(…,)``."""
        apart = self.standardize(rows, step)
        return {"": np.sqrt(np.maximum(np.einsum("...d,de,...e->...", apart, self.inverse, apart), 0.0))}


@dataclass(frozen=True, kw_only=True)
class DriveScorer(ArrayRecord):
    """Difference of the drives' coefficients from those of successful episodes, in total and along each fault.

    ``mean``, ``sd`` and ``inverse`` are those of `MahalanobisScorer` over all joints' coefficients. ``signature``
    ``(nwrong, T, d)`` is the effect of each fault on them, in those standard deviations. The score of a fault is that
    of the matched filter, sᵀ Σ⁻¹ z / √(sᵀ Σ⁻¹ s): the change of the coefficients along the signature in standard
    deviations.
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
        """Fit to coefficients ``(m, T, d)`` and the effect of each fault on them ``(nwrong, T, d)``."""
        known = MahalanobisScorer.fit(rows, skip=skip)
        reached = np.minimum(np.arange(len(known.mean)), signature.shape[1] - 1)
        return cls(names=np.array(names), signature=signature[:, reached] / known.sd, **known.to_arrays())

    def compute_scores(self, rows: Array, step: ArrayLike) -> dict[str, Array]:
        """Return one score for each fault, and ``any`` for a difference in any direction, ``(…,)`` each."""
        at = np.minimum(np.asarray(step), len(self.mean) - 1)
        apart = (rows - self.mean[at]) / self.sd[at]
        pulled = apart @ self.inverse
        told = {"any": np.sqrt(np.maximum(np.einsum("...d,...d->...", pulled, apart), 0.0))}
        for name, way in zip(self.names.tolist(), self.signature[:, at], strict=True):
            length = np.sqrt(np.maximum(np.einsum("...d,de,...e->...", way, self.inverse, way), 1e-6))
            told[name] = np.einsum("...d,...d->...", pulled, way) / length
        return told

    def compute_evidence(self, rows: Array, step: ArrayLike) -> Array:
        """Return the evidence of rows ``(…, d)`` for every fault, to be summed over an episode; see `likeness`.

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

    def compute_likeness(self, evidence: Array) -> dict[str, float]:
        """Return the similarity to each fault, by name, from evidence summed over time.

        It is the cosine between the measured coefficients from the first step on and those expected under the fault,
        both whitened, over all joints and times. 1 means identical. A fault that should have appeared earlier has a low
        value.
        """
        count = len(self.names)
        along, sizes = evidence[:count], evidence[count : 2 * count]
        cosines = along / np.sqrt(np.maximum(sizes * evidence[-1], 1e-12))
        return dict(zip(self.names.tolist(), cosines.tolist(), strict=True))


@dataclass(frozen=True, kw_only=True)
class MagnitudeScorer(ArrayRecord):
    """Root mean square of a row in units of its columns, ``unit`` ``(d,)``."""

    kind: ClassVar[str] = "size"
    unit: Array

    def compute_scores(self, rows: Array, step: ArrayLike) -> dict[str, Array]:  # noqa: ARG002  # see `Scorer`
        """Return the root mean square of each row, ``(…,)``, in units of the columns."""
        return {"": np.sqrt(np.mean((rows / self.unit) ** 2, axis=-1))}


Kind = Literal["neighbours", "density", "random_network"]
_MOST_ROWS = 3000  # reference rows that are kept: 200 distances to each take a millisecond
_TARGETS, _FEATURES, _RIDGE = 32, 256, 1e-3  # of the random network; our choice


@dataclass(frozen=True, kw_only=True)
class OutlierScorer(ArrayRecord):
    """Distance from rows of successful episodes: logarithm of distances to neighbours, or of the Mahalanobis distance.

    The arrays are those of `stats.novelty.WhitenedReference`; ``dense`` is 1 for the Mahalanobis distance.
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
        """Fit to rows ``(n, d)``."""
        space = WhitenedReference.of(rows, np.zeros(len(rows), dtype=np.int64))
        kept = space.rows[np.linspace(0, len(rows) - 1, min(len(rows), _MOST_ROWS)).astype(int)]
        whole = {name: getattr(space, name) for name in ("mean", "sd", "whiten", "inverse")}
        return cls(rows=kept[:1] if dense else kept, dense=np.array(float(dense)), **whole)

    def compute_scores(self, rows: Array, step: ArrayLike) -> dict[str, Array]:  # noqa: ARG002  # see `Scorer`
        """Return the logarithm of the distance of each row, ``(…,)``; NaN if a row is not finite."""
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
    """Error of a regression, fitted on successful episodes, that predicts the output of a fixed random network.

    Random network distillation (Burda, Edwards, Storkey & Klimov, "Exploration by random network distillation", ICLR
    2019) with a ridge regression on random features instead of a trained network, so that the fit is unique.
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
        """Fit to rows ``(n, d)``."""
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
        given = made._scale_rows(rows)
        known, wanted = made._compute_features(given), np.tanh(given @ made.target)
        penalty = _RIDGE * len(rows) * np.eye(_FEATURES)
        weights = np.linalg.solve(known.T @ known + penalty, known.T @ wanted)
        return cls(**{**made.to_arrays(), "weights": weights})

    def compute_scores(self, rows: Array, step: ArrayLike) -> dict[str, Array]:  # noqa: ARG002  # see `Scorer`
        """Return the logarithm of the mean squared error of each row, ``(…,)``."""
        given = self._scale_rows(rows)
        error = self._compute_features(given) @ self.weights - np.tanh(given @ self.target)
        return {"": np.log(np.mean(error**2, axis=-1) + 1e-12)}

    def _scale_rows(self, rows: Array) -> Array:
        return np.clip((rows - self.mean) / self.sd, -10.0, 10.0)

    def _compute_features(self, given: Array) -> Array:
        return np.cos(given @ self.hidden + self.bias)


def fit_outlier_scorer(rows: Array, kind: Kind) -> OutlierScorer | RandomNetworkScorer:
    """Return a scorer of a kind, fitted to rows ``(n, d)``."""
    return (
        RandomNetworkScorer.fit(rows) if kind == "random_network" else OutlierScorer.fit(rows, dense=kind == "density")
    )


JUDGES: dict[str, Any] = {
    one.kind: one for one in (MahalanobisScorer, DriveScorer, OutlierScorer, RandomNetworkScorer, MagnitudeScorer)
}
SMOOTHED_S = 0.25  # averaging time for scores of streams without memory, as FIPER's windows (our choice)
_NO_MEMORY = ("observation", "latent")


@dataclass(frozen=True, kw_only=True)
class ScorerSet:
    """Scorers by name: for a stream, or for some columns of one (``camera/front/light`` of ``camera/front``)."""

    judges: Mapping[str, Scorer]
    columns: Mapping[str, tuple[int, ...]]
    control_hz: float

    def compute_scores(self, rows: Mapping[str, Array], step: ArrayLike) -> dict[str, Array]:
        """Return scores by signal of rows ``(…, d)`` by stream at their steps ``(…,)``, before smoothing.

        Raises:
            InputError: a stream is missing.
        """
        told: dict[str, Array] = {}
        for name, judge in self.judges.items():
            for end, values in judge.compute_scores(self._select_rows(rows, name), step).items():
                told[f"{name}/{end}" if end else name] = values
        return told

    @property
    def drive_scorer(self) -> DriveScorer:
        """The scorer of the drives, which every monitor has."""
        judge = self.judges["drives"]
        assert isinstance(judge, DriveScorer)  # noqa: S101 - `calibration.fit_calibration` made it
        return judge

    def smooth_scores(self, before: Mapping[str, Array] | None, now: Mapping[str, Array]) -> dict[str, Array]:
        """Return the scores of a step, averaged with those of earlier steps for streams without memory."""
        if before is None:
            return dict(now)
        return {name: self._smooth(name, before[name], values) for name, values in now.items()}

    def compute_curves(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        """Return smoothed scores ``(m, T)`` by signal of whole episodes, rows ``(m, T, d)``."""
        length = next(iter(rows.values())).shape[1]
        raw = self.compute_scores(rows, np.arange(length)[None])
        for name, values in raw.items():
            for step in range(1, length):
                values[:, step] = self._smooth(name, values[:, step - 1], values[:, step])
        return raw

    def _smooth(self, name: str, before: Array, now: Array) -> Array:
        if name not in _NO_MEMORY:
            return now
        keep = math.exp(-1.0 / (SMOOTHED_S * self.control_hz))
        return np.where(np.isfinite(before), keep * before + (1.0 - keep) * now, now)

    def _select_rows(self, rows: Mapping[str, Array], name: str) -> Array:
        stream = name if name in rows else name.rpartition("/")[0]
        if stream not in rows:
            raise InputError(
                f"The monitor was calibrated with {name}, but this robot gives {', '.join(rows)}. Give the same "
                "observations, or calibrate a monitor for these."
            )
        return rows[stream][..., list(self.columns[name])] if name in self.columns else rows[stream]
