"""Convert measurements to scores, which are distances from the measurements of successful episodes.

A scorer is fitted to rows of shape ``(m, T, d)`` from m successful episodes with T steps and d columns, NaN after the
end of an episode. It then scores rows of other episodes. It consists of arrays only, so that a calibration file can
store it.

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
_LEAST_SHARE = 0.3  # smallest spread, as a share of the usual one, if all successes agree by accident (our choice)


class Scorer(Protocol):
    """Scorer of one stream of measurements; it gives one score per row and signal.

    Attributes:
        kind: name under which a calibration file stores the scorer.
    """

    kind: ClassVar[str]

    def compute_scores(self, rows: Array, step: ArrayLike) -> dict[str, Array]:
        """Return the scores of rows, where larger means less usual, shape ``(…,)`` for each signal.

        Args:
            rows: measurements, shape ``(…, d)``.
            step: step of the episode at which each row was measured, shape ``(…,)``.

        Returns:
            Scores by suffix, which is appended to the scorer's name to form the signal's name: the suffix ``/latency``
            of the scorer ``drives`` gives the signal ``drives/latency``. It is "" if the scorer has only one signal.
        """
        ...


class ArrayRecord:
    """Frozen dataclass whose fields are arrays, so that it can be stored in a file and read again.

    Attributes:
        kind: name under which a calibration file stores the class.
    """

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        freeze_fields(self, *(field.name for field in fields(self)))  # pyright: ignore[reportArgumentType]

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the object by field name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # pyright: ignore[reportArgumentType]

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """Return an object from its arrays; the inverse of `to_arrays`."""
        return cls(**arrays)


@dataclass(frozen=True, kw_only=True)
class MahalanobisScorer(ArrayRecord):
    """Scorer by the Mahalanobis distance from the mean of successful episodes at the same step.

    Attributes:
        mean: mean of the d columns at each of T steps, shape ``(T, d)``.
        sd: standard deviation, smoothed over the steps, shape ``(T, d)``.
        inverse: inverse of the shrunk correlation matrix of all steps together, shape ``(d, d)``.
    """

    kind: ClassVar[str] = "departure"
    mean: Array
    sd: Array
    inverse: Array

    @classmethod
    def fit(cls, rows: Array, *, skip: int = 0, least: float = _LEAST_SD) -> MahalanobisScorer:
        """Fit a scorer to measurements of successful episodes.

        Args:
            rows: measurements of m episodes, shape ``(m, T, d)``; NaN after the end of an episode.
            skip: number of steps at the beginning that are used only for means and standard deviations, not for
                correlations.
            least: lower limit of the standard deviation, in the unit of the rows. If all successful episodes have the
                same value, their standard deviation does not show how far a usual value may differ.
        """
        reached = np.flatnonzero(np.isfinite(rows[..., 0]).sum(axis=0) >= min(3, len(rows)))[-1] + 1
        head = rows[:, :reached]
        mean, sd = np.nanmean(head, axis=0), np.nanstd(head, axis=0)
        sd = np.sqrt(running_mean(sd**2, _SMOOTHED))
        usual = np.sqrt(np.mean(sd[min(skip, reached - 1) :] ** 2, axis=0))
        sd = np.maximum(sd, np.maximum(_LEAST_SHARE * usual, least))
        standardized = ((head - mean) / sd)[:, min(skip, reached - 1) :].reshape(-1, rows.shape[-1])
        standardized = standardized[np.isfinite(standardized).all(axis=1)]
        covariance = shrunk_covariance(standardized)
        covariance += np.diag(np.where(np.diag(covariance) < _CONSTANT, 1.0, 0.0))
        return cls(mean=mean, sd=sd, inverse=np.asarray(np.linalg.inv(covariance), dtype=np.float64))

    def standardize(self, rows: Array, step: ArrayLike) -> Array:
        """Return rows in standard deviations from the mean at their step, shape ``(…, d)``.

        Args:
            rows: measurements, shape ``(…, d)``.
            step: step of each row, shape ``(…,)``; steps after the last fitted one use the last one.
        """
        at = np.minimum(np.asarray(step), len(self.mean) - 1)
        return (rows - self.mean[at]) / self.sd[at]

    def compute_scores(self, rows: Array, step: ArrayLike) -> dict[str, Array]:
        """Return the Mahalanobis distance of each row from the mean of successful episodes at the same step.

        Args:
            rows: measurements, shape ``(…, d)``.
            step: step of each row, shape ``(…,)``; steps after the last fitted one use the last one.

        Returns:
            Distances with the key "", shape ``(…,)``.
        """
        standardized = self.standardize(rows, step)
        return {"": np.sqrt(np.maximum(np.einsum("...d,de,...e->...", standardized, self.inverse, standardized), 0.0))}


@dataclass(frozen=True, kw_only=True)
class DriveScorer(ArrayRecord):
    """Scorer of the drives' regression coefficients: distance from successful episodes, in total and along each fault.

    The coefficients are estimated fault sizes, see `faults.ResidualDirections`. They are standardized with mean and
    standard deviation of successful episodes; z are the results, and Σ is their correlation matrix. The signature s of
    a fault is the change of z that it causes. The score of a fault is that of the matched filter, sᵀ Σ⁻¹ z / √(sᵀ Σ⁻¹
    s): how far z has moved along s, in standard deviations.

    Attributes:
        names: names of the nfault faults, shape ``(nfault,)``.
        mean: mean of the d coefficients (of all joints) at each of T steps, shape ``(T, d)``.
        sd: standard deviation of the coefficients at each step, shape ``(T, d)``.
        inverse: inverse Σ⁻¹ of the shrunk correlation matrix, shape ``(d, d)``.
        signature: effect of each fault on the coefficients in standard deviations, shape ``(nfault, T, d)``.
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
        """Fit a scorer to coefficients (estimated sizes of each fault at each joint) of successful episodes.

        Args:
            rows: coefficients of m episodes, shape ``(m, T, d)`` for T steps and d coefficients (of all joints and
                faults); NaN after the end of an episode.
            signature: effect of each fault on the coefficients, shape ``(nfault, T, d)``.
            names: names of the faults.
            skip: number of steps at the beginning that are used only for means and standard deviations, not for
                correlations.
        """
        known = MahalanobisScorer.fit(rows, skip=skip)
        reached = np.minimum(np.arange(len(known.mean)), signature.shape[1] - 1)
        return cls(names=np.array(names), signature=signature[:, reached] / known.sd, **known.to_arrays())

    def compute_scores(self, rows: Array, step: ArrayLike) -> dict[str, Array]:
        """Return one score for each fault, and the score ``any`` for a difference in any direction.

        Args:
            rows: coefficients (estimated fault sizes of all joints), shape ``(…, d)``.
            step: step of each row, shape ``(…,)``. Mean, standard deviation and signatures of this step are used; steps
                after the last fitted one use the last one.

        Returns:
            Scores by name of the fault, and ``any``, shape ``(…,)`` each.
        """
        at = np.minimum(np.asarray(step), len(self.mean) - 1)
        standardized = (rows - self.mean[at]) / self.sd[at]
        weighted = standardized @ self.inverse
        scores = {"any": np.sqrt(np.maximum(np.einsum("...d,...d->...", weighted, standardized), 0.0))}
        for name, direction in zip(self.names.tolist(), self.signature[:, at], strict=True):
            length = np.sqrt(np.maximum(np.einsum("...d,de,...e->...", direction, self.inverse, direction), 1e-6))
            scores[name] = np.einsum("...d,...d->...", weighted, direction) / length
        return scores

    def compute_evidence(self, rows: Array, step: ArrayLike) -> Array:
        """Return the products whose sums over an episode `compute_similarity` needs, for each row of coefficients.

        z is the row's difference from the mean of successful episodes in standard deviations, Σ the correlation matrix
        of z, and s the signature (change of z that a fault causes).

        Args:
            rows: coefficients (estimated fault sizes of all joints), shape ``(…, d)``.
            step: step of each row, shape ``(…,)``.

        Returns:
            sᵀ Σ⁻¹ z of each of nfault faults, sᵀ Σ⁻¹ s of each fault, and zᵀ Σ⁻¹ z, one after another in the last axis,
            shape ``(…, 2 nfault + 1)``. They are 0 for a row with NaN.
        """
        at = np.minimum(np.asarray(step), len(self.mean) - 1)
        standardized = np.nan_to_num((rows - self.mean[at]) / self.sd[at])
        known = np.expand_dims(np.isfinite(rows).all(axis=-1), -1)
        weighted, directions = standardized @ self.inverse, np.moveaxis(self.signature[:, at], 0, -2)
        along = np.einsum("...d,...hd->...h", weighted, directions)
        sizes = np.einsum("...hd,de,...he->...h", directions, self.inverse, directions)
        departed = np.einsum("...d,...d->...", weighted, standardized)[..., None]
        return np.concatenate([along, sizes, departed], axis=-1) * known

    def compute_similarity(self, evidence: Array) -> dict[str, float]:
        """Return the similarity of an episode to each fault, by name; 1 means identical.

        It is the cosine between the measured coefficients and the signature of the fault (the coefficients that the
        fault would cause), over all joints and all steps since the first one. Both are whitened with the correlation
        matrix of successful episodes. The signature assumes that the fault exists since the first step.

        Args:
            evidence: sums of the rows of `compute_evidence` over the steps of the episode, shape ``(2 nfault + 1,)``:
                sᵀ Σ⁻¹ z of each fault, sᵀ Σ⁻¹ s of each fault, and zᵀ Σ⁻¹ z. Here z are the standardized coefficients,
                s is the signature of a fault, and Σ the correlation matrix.
        """
        count = len(self.names)
        along, sizes = evidence[:count], evidence[count : 2 * count]
        cosines = along / np.sqrt(np.maximum(sizes * evidence[-1], 1e-12))
        return dict(zip(self.names.tolist(), cosines.tolist(), strict=True))


@dataclass(frozen=True, kw_only=True)
class MagnitudeScorer(ArrayRecord):
    """Scorer by the root mean square of a row whose columns are divided by ``unit``.

    Attributes:
        unit: divisor of each column, for example the standard deviation of the commands, shape ``(d,)``.
    """

    kind: ClassVar[str] = "size"
    unit: Array

    def compute_scores(self, rows: Array, step: ArrayLike) -> dict[str, Array]:  # noqa: ARG002  # see `Scorer`
        """Return the root mean square of each row, after dividing each column by ``unit``.

        Args:
            rows: measurements, shape ``(…, d)``.
            step: not used.

        Returns:
            Scores with the key "", shape ``(…,)``.
        """
        return {"": np.sqrt(np.mean((rows / self.unit) ** 2, axis=-1))}


Kind = Literal["neighbours", "density", "random_network"]
_MOST_ROWS = 3000  # reference rows that are kept: 200 distances to each take a millisecond
_TARGETS, _FEATURES, _RIDGE = 32, 256, 1e-3  # of the random network; our choice


@dataclass(frozen=True, kw_only=True)
class OutlierScorer(ArrayRecord):
    """Scorer by the logarithm of the distance to the rows of successful episodes; the step of a row does not matter.

    Attributes:
        mean: mean of the d columns, shape ``(d,)``.
        sd: standard deviation of each column, shape ``(d,)``.
        whiten: map from standardized columns to p principal axes with unit variance, shape ``(d, p)``.
        inverse: inverse of the shrunk covariance of the standardized columns, shape ``(d, d)``.
        rows: reference rows in whitened coordinates, shape ``(n, p)``; one dummy row if ``dense`` is 1.
        dense: number that selects the distance: 1 for the Mahalanobis distance from the mean (method ``density``), 0
            for the distance to the fifth nearest neighbour (method ``neighbours``).
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
        """Fit a scorer to rows of successful episodes.

        Args:
            rows: measurements, shape ``(n, d)``.
            dense: if true, score by the Mahalanobis distance (method ``density``), which models the rows as one normal
                distribution. If false, score by the distance to the fifth nearest neighbour (method ``neighbours``),
                which also suits several clusters.
        """
        space = WhitenedReference.of(rows, np.zeros(len(rows), dtype=np.int64))
        kept = space.rows[np.linspace(0, len(rows) - 1, min(len(rows), _MOST_ROWS)).astype(int)]
        whole = {name: getattr(space, name) for name in ("mean", "sd", "whiten", "inverse")}
        return cls(rows=kept[:1] if dense else kept, dense=np.array(float(dense)), **whole)

    def compute_scores(self, rows: Array, step: ArrayLike) -> dict[str, Array]:  # noqa: ARG002  # see `Scorer`
        """Return the logarithm of the distance of each row from the rows of successful episodes.

        Args:
            rows: measurements, shape ``(…, d)``.
            step: not used.

        Returns:
            Scores with the key "", shape ``(…,)``; NaN if the row is not finite.
        """
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
    """Scorer by the error of a regression on successful episodes that predicts a fixed random network's output.

    This is random network distillation (Burda, Edwards, Storkey & Klimov, "Exploration by random network distillation",
    ICLR 2019), with a ridge regression on random features instead of a trained network, so that the fit is unique.

    Attributes:
        mean: mean of the d columns, shape ``(d,)``.
        sd: standard deviation of each column, shape ``(d,)``.
        target: weights of the random network with t outputs, shape ``(d, t)``.
        hidden: frequencies of f random cosine features, shape ``(d, f)``.
        bias: phases of the features, shape ``(f,)``.
        weights: fitted weights from features to the network's outputs, shape ``(f, t)``.
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
        """Fit a scorer to rows of successful episodes.

        Args:
            rows: measurements, shape ``(n, d)``.
            seed: seed of the random network and features.
        """
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
        """Return the logarithm of the mean squared error of the regression's prediction of the random network.

        Args:
            rows: measurements, shape ``(…, d)``.
            step: not used.

        Returns:
            Scores with the key "", shape ``(…,)``.
        """
        given = self._scale_rows(rows)
        error = self._compute_features(given) @ self.weights - np.tanh(given @ self.target)
        return {"": np.log(np.mean(error**2, axis=-1) + 1e-12)}

    def _scale_rows(self, rows: Array) -> Array:
        return np.clip((rows - self.mean) / self.sd, -10.0, 10.0)

    def _compute_features(self, given: Array) -> Array:
        return np.cos(given @ self.hidden + self.bias)


def fit_outlier_scorer(rows: Array, kind: Kind) -> OutlierScorer | RandomNetworkScorer:
    """Return an outlier scorer that is fitted to rows of successful episodes.

    Args:
        rows: measurements, shape ``(n, d)``.
        kind: method: ``neighbours``, ``density`` (Mahalanobis distance) or ``random_network``.
    """
    return (
        RandomNetworkScorer.fit(rows) if kind == "random_network" else OutlierScorer.fit(rows, dense=kind == "density")
    )


SCORERS: dict[str, Any] = {
    one.kind: one for one in (MahalanobisScorer, DriveScorer, OutlierScorer, RandomNetworkScorer, MagnitudeScorer)
}
SMOOTHED_S = 0.25  # averaging time for scores of streams without memory, as FIPER's windows (our choice)
_NO_MEMORY = ("observation", "latent")


@dataclass(frozen=True, kw_only=True)
class ScorerSet:
    """All scorers of a monitor.

    Attributes:
        scorers: scorers by name. The name is that of a stream, or of some columns of a stream (``camera/front/light``
            for columns of ``camera/front``).
        columns: for each scorer of some columns of a stream, the indices of these columns.
        control_hz: control steps per second.
    """

    scorers: Mapping[str, Scorer]
    columns: Mapping[str, tuple[int, ...]]
    control_hz: float

    def compute_scores(self, rows: Mapping[str, Array], step: ArrayLike) -> dict[str, Array]:
        """Return the scores of measurements by signal, shape ``(…,)`` each, before smoothing over the steps.

        A stream is a kind of measurement with d columns, such as ``drives``. A signal is one score, such as
        ``drives/latency``; one stream can give several signals.

        Args:
            rows: measurements by stream, shape ``(…, d)`` each.
            step: step of each row, shape ``(…,)``.

        Raises:
            InputError: If a stream is missing.
        """
        scores: dict[str, Array] = {}
        for name, scorer in self.scorers.items():
            for end, values in scorer.compute_scores(self._select_rows(rows, name), step).items():
                scores[f"{name}/{end}" if end else name] = values
        return scores

    @property
    def drive_scorer(self) -> DriveScorer:
        """Scorer of the drives, which every monitor has."""
        scorer = self.scorers["drives"]
        assert isinstance(scorer, DriveScorer)  # noqa: S101 - `calibration.fit_calibration` made it
        return scorer

    def smooth_scores(self, before: Mapping[str, Array] | None, now: Mapping[str, Array]) -> dict[str, Array]:
        """Return the scores of a step by signal, with those of ``observation`` and ``latent`` averaged over time.

        It is an exponential average: the weight of a score decreases by the factor e in 0.25 s. The scores of all other
        signals remain unchanged.

        Args:
            before: smoothed scores of the previous step; None at the first step.
            now: scores of this step.
        """
        if before is None:
            return dict(now)
        return {name: self._smooth(name, before[name], values) for name, values in now.items()}

    def compute_curves(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        """Return the smoothed scores of whole episodes by signal (named score of the monitor), shape ``(m, T)`` each.

        Args:
            rows: measurements of m episodes with T steps, by stream (kind of measurement), shape ``(m, T, d)`` each.
                One stream can give several signals.
        """
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
