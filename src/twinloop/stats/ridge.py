"""Fit linear and logistic ridge regressions, and evaluate them on held-out groups of rows (episodes).

The logistic coefficients are those of le Cessie & van Houwelingen ("Ridge estimators in logistic regression", Applied
Statistics 41, 1992). Its penalty is chosen within the training rows alone, so held-out predictions do not depend on
their own outcomes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
from twinloop.stats.classifier import auc_interval
from twinloop.stats.interval import Interval

Array = NDArray[np.float64]

_PENALTIES = 10.0 ** np.arange(-4.0, 3.0)  # relative to the features' mean square; the best one is used


def ridge_predictions(features: ArrayLike, target: ArrayLike, fold: ArrayLike) -> Array:
    """Predict the target in every fold by a linear ridge regression that is fitted to the other folds.

    A window is a section of a recording. The penalty with the smallest held-out squared error is used. If every penalty
    has a larger error than predictions of 0, all predictions are 0.

    Args:
        features: k features of each frame, of about unit spread, without NaN, shape ``(nwindow, nframe, k)``.
        target: Target of each frame, NaN if unknown, shape ``(nwindow, nframe)``.
        fold: Fold of each window, shape ``(nwindow,)``.

    Returns:
        The predictions, shape ``(nwindow, nframe)``.
    """
    x, y, label = np.asarray(features, dtype=np.float64), np.asarray(target, dtype=np.float64), np.asarray(fold)
    known = ~np.isnan(y)
    best, least = np.zeros_like(y), np.nansum(y**2)
    grams = {}
    for number in np.unique(label):
        rows = known & (label != number)[:, None]
        chosen, targets = x[rows], y[rows]
        values, vectors = np.linalg.eigh(chosen.T @ chosen / max(1, len(chosen)))
        grams[number] = (values, vectors, vectors.T @ (chosen.T @ targets / max(1, len(chosen))))
    for penalty in _PENALTIES:
        predictions = np.zeros_like(y)
        for number, (values, vectors, moment) in grams.items():
            weights = vectors @ (moment / (np.maximum(values, 0.0) + penalty))
            predictions[label == number] = x[label == number] @ weights
        error = np.nansum((y - predictions) ** 2)
        if error < least:
            best, least = predictions, error
    return best


# Ridge penalties to choose from: from nearly no effect to a fit of the base rate alone.
PENALTIES = 10.0 ** np.arange(-3.0, 2.0, 0.5)
_STEPS, _DONE = 50, 1e-9
_FOLDS, _INNER = 5, 4


@dataclass(frozen=True, kw_only=True)
class LogisticRidge:
    """Logistic regression with a ridge penalty, for the probability of an outcome.

    P(yes) = 1 / (1 + exp(−(intercept + Σ coefficient · (column − mean) / sd))). A constant column has no effect.

    Attributes:
        intercept: Intercept.
        coefficients: Coefficient of each of d standardized columns, shape ``(d,)``.
        mean: Mean of each column, shape ``(d,)``.
        sd: Standard deviation of each column, shape ``(d,)``.
        penalty: Ridge penalty of the fit.
    """

    intercept: float
    coefficients: Array
    mean: Array
    sd: Array
    penalty: float

    def probability(self, rows: ArrayLike) -> Array:
        """Return the probability of the outcome for each row ``(n, d)``, shape ``(n,)``."""
        return expit(self.intercept + self.parts(rows).sum(axis=1))

    def parts(self, rows: ArrayLike) -> Array:
        """Return the contribution of each column to the log odds of each row, shape ``(n, d)``."""
        return (np.asarray(rows, dtype=np.float64) - self.mean) / self.sd * self.coefficients


@dataclass(frozen=True, kw_only=True)
class CrossValidatedPrediction:
    """Prediction of an outcome by logistic regression, with held-out probabilities.

    Attributes:
        held_out: Probability of each row by a fit without it, shape ``(n,)``.
        auc: Area under the ROC curve of the held-out probabilities.
        model: Regression fitted to all rows, to predict new rows.
    """

    held_out: Array
    auc: Interval
    model: LogisticRidge


def fit_logistic(rows: ArrayLike, outcome: ArrayLike, penalty: float) -> LogisticRidge:
    """Fit a logistic ridge regression to standardized columns, by Newton's method.

    It minimizes −log likelihood / n + ``penalty`` / 2 · |coefficients|².

    Args:
        rows: Shape ``(n, d)``.
        outcome: True or false for each row, shape ``(n,)``.
        penalty: Weight of the ridge penalty.
    """
    x, y = np.asarray(rows, dtype=np.float64), np.asarray(outcome, dtype=np.float64)
    mean, sd = x.mean(axis=0), x.std(axis=0)
    sd = np.where(sd <= 1e-12 * (1e-300 + np.abs(x).max(axis=0)), np.inf, sd)
    design = np.column_stack([np.ones(len(x)), (x - mean) / sd])
    ridge = np.full(design.shape[1], penalty)
    ridge[0] = 1e-6  # keeps the intercept finite if all outcomes are equal
    weights = np.zeros(design.shape[1])
    for _ in range(_STEPS):
        p = expit(design @ weights)
        slope = design.T @ (p - y) / len(y) + ridge * weights
        curvature = (design * (p * (1 - p))[:, None]).T @ design / len(y) + np.diag(ridge)
        step = np.linalg.solve(curvature, slope)
        weights -= step / max(1.0, float(np.abs(step).max()) / 2.0)
        if float(np.abs(step).max()) < _DONE:
            break
    return LogisticRidge(intercept=float(weights[0]), coefficients=weights[1:], mean=mean, sd=sd, penalty=penalty)


def cross_validated_logistic(
    rows: ArrayLike, outcome: ArrayLike, *, level: float = 0.95, draws: int = 1000, seed: int = 0
) -> CrossValidatedPrediction:
    """Predict an outcome from rows, one row per episode, with five-fold cross-validation.

    Args:
        rows: Shape ``(n, d)``.
        outcome: True or false for each row, shape ``(n,)``.
        level: Confidence level of the interval of the AUC (area under the ROC curve), bootstrapped over rows while
            their predictions stay the same.
        draws: Number of resamples.
        seed: Seed of folds and resamples.

    Raises:
        InputError: If a value is not finite, or one outcome has fewer rows than there are folds.
    """
    x, y = np.asarray(rows, dtype=np.float64), np.asarray(outcome, dtype=bool)
    if x.ndim != 2 or len(x) != len(y) or not np.isfinite(x).all():
        raise InputError(f"Rows are a finite table (n, d) with an outcome each; given {x.shape} and {y.shape}.")
    fewer = int(min(y.sum(), (~y).sum()))
    if fewer < _FOLDS:
        raise InputError(f"{fewer} episodes of the rarer outcome are too few for {_FOLDS} folds. Label more of them.")
    fold = _draw_folds(y, _FOLDS, seed)
    held_out = np.empty(len(y))
    for number in range(_FOLDS):
        rest = fold != number
        penalty = _choose_penalty(x[rest], y[rest], seed + 1 + number)
        held_out[~rest] = fit_logistic(x[rest], y[rest], penalty).probability(x[~rest])
    final = fit_logistic(x, y, _choose_penalty(x, y, seed))
    return CrossValidatedPrediction(
        held_out=held_out, auc=auc_interval(held_out, y, level=level, draws=draws, seed=seed), model=final
    )


def _draw_folds(outcome: NDArray[np.bool_], folds: int, seed: int) -> NDArray[np.intp]:
    """Return the fold of each row ``(n,)``; both outcomes are spread evenly over the folds."""
    rng = generator(seed, "stats/logistic/folds")
    fold = np.empty(len(outcome), dtype=np.intp)
    for side in (outcome, ~outcome):
        fold[side] = rng.permutation(int(side.sum())) % folds
    return fold


def _choose_penalty(x: Array, y: NDArray[np.bool_], seed: int) -> float:
    """Return the ridge penalty with the best cross-validated likelihood within the given rows.

    It is the largest penalty if one outcome has fewer than two rows, so that no fold can be held out.
    """
    folds = min(_INNER, int(min(y.sum(), (~y).sum())))
    if folds < 2:
        return float(PENALTIES[-1])
    fold = _draw_folds(y, folds, seed)
    loss = np.zeros(len(PENALTIES))
    for number in range(folds):
        rest = fold != number
        for place, penalty in enumerate(PENALTIES):
            p = np.clip(fit_logistic(x[rest], y[rest], penalty).probability(x[~rest]), 1e-9, 1 - 1e-9)
            loss[place] -= np.sum(np.where(y[~rest], np.log(p), np.log1p(-p)))
    return float(PENALTIES[np.argmin(loss)])
