"""Which combinations of parameters data determine, and which they leave open, in the parameters' own names.

Used after a fit on the curvature of its loss, and before one on a Fisher information.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

# A parameter is open when more than this share of it lies in directions that the data leave open.
OPEN_SHARE = 0.1
# Parameters with less than this part in a direction are not named in it.
_NAMED = 0.25


@dataclass(frozen=True, kw_only=True)
class Direction:
    """A combination of parameters that the data leave open.

    ``moves`` are the parameters' moves, in the coordinates of the fit (natural logarithms where a parameter has them),
    that are together one standard deviation of what was known beforehand; the largest part is positive. ``gain`` is
    how much the data curve the loss along it, in units of what counts as determined: below 1.
    """

    moves: Mapping[str, float]
    gain: float

    def __str__(self) -> str:
        return " ".join(f"{move:+.2g} {name}" for name, move in self.moves.items())


@dataclass(frozen=True, kw_only=True)
class Determination:
    """How well data determine parameters.

    ``condition`` is cond(ĴᵀĴ) with columns of unit length, infinite where a parameter moves nothing. ``gains`` ``(p,)``
    are those of all principal directions, ascending, and ``vectors`` ``(p, p)`` the directions as columns, in prior
    standard deviations. ``directions`` are those left open, ``share`` ``(p,)`` the part of each parameter in them.
    """

    condition: float
    gains: NDArray[np.float64]
    vectors: NDArray[np.float64]
    directions: tuple[Direction, ...]
    share: NDArray[np.float64]

    @property
    def open(self) -> NDArray[np.bool_]:
        """Parameters that the data leave open, ``(p,)``."""
        return self.share > OPEN_SHARE


def determination(curvature: ArrayLike, sd: ArrayLike, names: Sequence[str], *, least: float = 1.0) -> Determination:
    """Principal directions of a curvature against what was known beforehand.

    Args:
        curvature: ``(p, p)`` second derivative of the loss (JᵀWJ), or Fisher information, without any prior.
        sd: standard deviation of each parameter beforehand, ``(p,)``.
        names: of the parameters.
        least: a direction is open where one standard deviation along it curves the loss less than this: the weight of
            the prior in a fit, so that what counts as open is what the prior would decide; 1 for a log-likelihood.
    """
    matrix, spread = np.asarray(curvature, dtype=np.float64), np.asarray(sd, dtype=np.float64)
    values, vectors = np.linalg.eigh(matrix * np.outer(spread, spread))
    gains = np.maximum(values, 0.0) / least
    unknown = np.flatnonzero(gains < 1.0)
    return Determination(
        condition=scaled_condition(matrix),
        gains=gains,
        vectors=vectors,
        directions=tuple(_direction(vectors[:, i], float(gains[i]), spread, names) for i in unknown),
        share=np.sum(vectors[:, unknown] ** 2, axis=1),
    )


def _direction(vector: NDArray[np.float64], gain: float, sd: NDArray[np.float64], names: Sequence[str]) -> Direction:
    order = [int(i) for i in np.argsort(-np.abs(vector)) if abs(vector[i]) > _NAMED] or [int(np.argmax(np.abs(vector)))]
    sign = np.sign(vector[order[0]])
    return Direction(moves={names[i]: float(sign * vector[i] * sd[i]) for i in order}, gain=gain)


def scaled_condition(curvature: ArrayLike) -> float:
    """cond(ĴᵀĴ) with every column of the Jacobian scaled to unit length; columns of zeros make it infinite."""
    matrix = np.asarray(curvature, dtype=np.float64)
    size = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    if (size == 0).any():
        return float("inf")
    return float(np.linalg.cond(matrix / np.outer(size, size)))
