"""Fit linear and logistic ridge regressions, evaluated on held-out groups of rows (episodes).

Coefficients are those of le Cessie & van Houwelingen ("Ridge estimators in logistic regression", Applied Statistics 41,
1992). The ridge is chosen within the training part alone, so held-out predictions do not depend on their own outcomes.
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
    """Predict every fold from the others, with the penalty of least error; 0 if no penalty beats the prediction 0.

    Args:
        features: ``(nwindow, nframe, k)``, of about unit spread, without NaN.
        target: ``(nwindow, nframe)``, NaN if unknown.
        fold: fold of each window, ``(nwindow,)``.

    Returns:
        The predictions, ``(nwindow, nframe)``.
    """
    x, y, label = np.asarray(features, dtype=np.float64), np.asarray(target, dtype=np.float64), np.asarray(fold)
    known = ~np.isnan(y)
    best, least = np.zeros_like(y), np.nansum(y**2)
    grams = {}
    for number in np.unique(label):
        rows = known & (label != number)[:, None]
        chosen, wanted = x[rows], y[rows]
        values, vectors = np.linalg.eigh(chosen.T @ chosen / max(1, len(chosen)))
        grams[number] = (values, vectors, vectors.T @ (chosen.T @ wanted / max(1, len(chosen))))
    for penalty in _PENALTIES:
        guess = np.zeros_like(y)
        for number, (values, vectors, moment) in grams.items():
            weights = vectors @ (moment / (np.maximum(values, 0.0) + penalty))
            guess[label == number] = x[label == number] @ weights
        error = np.nansum((y - guess) ** 2)
        if error < least:
            best, least = guess, error
    return best


# Of the mean square of standardized columns: from nearly no ridge to a fit of the base rate alone.
PENALTIES = 10.0 ** np.arange(-3.0, 2.0, 0.5)
_STEPS, _DONE = 50, 1e-9
_FOLDS, _INNER = 5, 4


@dataclass(frozen=True, kw_only=True)
class LogisticRidge:
    """P(yes) = 1 / (1 + exp(−(intercept + Σ coefficient · (column − mean) / sd))); a constant column counts as 0."""

    intercept: float
    coefficients: Array
    mean: Array
    sd: Array
    penalty: float

    def probability(self, rows: ArrayLike) -> Array:
        """Return the probabilities of rows ``(n, d)``: ``(n,)``."""
        return expit(self.intercept + self.parts(rows).sum(axis=1))

    def parts(self, rows: ArrayLike) -> Array:
        """Return each column's contribution to the log odds of each row, ``(n, d)``."""
        return (np.asarray(rows, dtype=np.float64) - self.mean) / self.sd * self.coefficients


@dataclass(frozen=True, kw_only=True)
class CrossValidatedPrediction:
    """Held-out prediction of an outcome.

    ``held_out`` ``(n,)`` is the probability of each row by a fit without it; ``auc`` is the area under the curve of
    these. ``model`` is fitted to all rows, to predict others.
    """

    held_out: Array
    auc: Interval
    model: LogisticRidge


def fit_logistic(rows: ArrayLike, outcome: ArrayLike, penalty: float) -> LogisticRidge:
    """Minimize −log likelihood / n + ``penalty`` / 2 · |coefficients|² by Newton's method, columns standardized."""
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
        rows: ``(n, d)``.
        outcome: ``(n,)``, true or false.
        level: confidence level of the AUC's interval, bootstrapped over rows given their predictions.
        draws: number of resamples.
        seed: seed of folds and resamples.

    Raises:
        InputError: a value that is not finite, or one outcome has fewer rows than there are folds.
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
    """Return the ridge with the best held-out likelihood within these rows; the largest if no fold can be held out."""
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
