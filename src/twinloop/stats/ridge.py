"""Linear predictions of what was not seen: ridge regression, cross-validated over groups of rows (episodes)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

_PENALTIES = 10.0 ** np.arange(-4.0, 3.0)  # of the features' mean square; the one that predicts best is taken


def ridge_predictions(features: ArrayLike, target: ArrayLike, fold: ArrayLike) -> Array:
    """Predictions of every fold by the others, at the penalty that predicts best over all; zero where none does.

    Args:
        features: ``(nwindow, nframe, k)``, of about unit spread, without NaN.
        target: ``(nwindow, nframe)``, NaN where nothing is known.
        fold: of each window, ``(nwindow,)``.

    Returns:
        ``(nwindow, nframe)``.
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
