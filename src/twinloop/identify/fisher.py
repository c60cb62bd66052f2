"""Compute the Fisher information of readings, and find parameter combinations that the data do not determine.

The residuals of a fit are correlated in time: the twin errs in the same direction for many frames. The information here
is that of the fit's estimator, least squares over all frames, under such noise. The noise of each channel is modelled
as a first-order autoregression, Σ_ts = σ² ρ^|t−s|. Least squares has the weights w = (1 − ρ)/((1 + ρ) σ²), which count
effective frames. With a Gaussian prior of precision P its covariance is (A + P)⁻¹ (B + P) (A + P)⁻¹, where A = w JᵀJ
and B = w² JᵀΣJ (Godambe's sandwich; Huber, Proc. 5th Berkeley Symp. 1, 1967). Both sums add over windows.

`assess_determination` finds undetermined combinations: after a fit from the curvature of its loss, before one from the
information.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.signal import lfilter

from twinloop.identify.problem import FitProblem, Linearization, eliminate_initial_states, normal_equations

Array = NDArray[np.float64]
# Nearly constant residuals would make thousands of frames count as one; a log cannot resolve higher correlations.
_MOST_RHO = 0.999


@dataclass(frozen=True, kw_only=True)
class ResidualNoiseModel:
    """Residual noise of a fit, ``(nchannel,)``: ``sd`` in the channels' units, ``rho`` its lag-1 autocorrelation."""

    sd: Array
    rho: Array

    @property
    def inflation(self) -> Array:
        """Number of frames with the information of one uncorrelated frame: (1 + ρ) / (1 − ρ)."""
        return (1.0 + self.rho) / (1.0 - self.rho)


@dataclass(frozen=True, kw_only=True)
class FisherInformation:
    """Information of windows or their sums: ``matrix`` A and ``score`` B of the module docstring, ``(…, p, p)``."""

    matrix: Array
    score: Array

    def __add__(self, other: FisherInformation) -> FisherInformation:
        return FisherInformation(matrix=self.matrix + other.matrix, score=self.score + other.score)

    def take(self, rows: NDArray[np.intp]) -> FisherInformation:
        """Return the information of some windows, by position."""
        return FisherInformation(matrix=self.matrix[rows], score=self.score[rows])

    def times(self, count: float) -> FisherInformation:
        """Return the information of ``count`` times as much data."""
        return FisherInformation(matrix=count * self.matrix, score=count * self.score)

    def total(self) -> FisherInformation:
        """Return the sum over windows."""
        return FisherInformation(matrix=self.matrix.sum(axis=0), score=self.score.sum(axis=0))

    def covariance(self, sd: ArrayLike) -> Array:
        """Return the expected covariance of the estimate, ``(…, p, p)``, under a prior with deviations ``sd`` ``(p,)``.

        A parameter of standard deviation 0 is fixed.
        """
        spread = np.asarray(sd, dtype=np.float64)
        scale = spread[:, None] * spread
        eye = np.eye(len(spread))
        curved = np.linalg.inv(self.matrix * scale + eye)
        return scale * (curved @ (self.score * scale + eye) @ curved)

    def added_precision(self, sd: ArrayLike) -> Array:
        """Return the precision that the data add to the prior's, ``(…, p, p)``, with correlated noise."""
        spread = np.asarray(sd, dtype=np.float64)
        units = np.linalg.inv(self.covariance(spread) / (spread[:, None] * spread)) - np.eye(len(spread))
        return (units + np.swapaxes(units, -1, -2)) / (2.0 * spread[:, None] * spread)


def compute_information(problem: FitProblem, here: Linearization, noise: ResidualNoiseModel) -> FisherInformation:
    """Return each window's information about all parameters at a point, ``(nwindow, p, p)``, with unknown first states.

    If joints are fitted in separate blocks, the information has the same blocks.
    """
    count, nwindow = len(problem.sd), len(here.residual)
    matrix, score = np.zeros((nwindow, count, count)), np.zeros((nwindow, count, count))
    quiet = replace(here, residual=np.where(np.isnan(here.residual), np.nan, 0.0))  # no robust weights
    for number, block in enumerate(problem.blocks):
        slopes = eliminate_initial_states(problem, quiet, number) * problem.width[block.channels][:, None]
        for i, channel in enumerate(block.channels):
            of_channel, sd = slopes[:, :, i], noise.sd[channel]
            weight = 1.0 / (sd**2 * noise.inflation[channel])
            at = np.ix_(np.arange(nwindow), block.columns, block.columns)
            matrix[at] += weight * np.einsum("efp,efq->epq", of_channel, of_channel, optimize=True)
            smeared = _apply_correlation(of_channel, float(noise.rho[channel]))
            score[at] += (weight * sd) ** 2 * np.einsum("efp,efq->epq", of_channel, smeared, optimize=True)
    return FisherInformation(matrix=matrix, score=(score + np.swapaxes(score, 1, 2)) / 2)


def _apply_correlation(slopes: Array, rho: float) -> Array:
    """Return slopes ``(nwindow, nframe, p)`` multiplied by the correlation ρ^|t−s| along the frames."""
    ahead = np.asarray(lfilter([1.0], [1.0, -rho], slopes, axis=1), dtype=np.float64)
    back = np.asarray(lfilter([1.0], [1.0, -rho], slopes[:, ::-1], axis=1), dtype=np.float64)
    return ahead + back[:, ::-1] - slopes


def compute_excitation(problem: FitProblem, here: Linearization, noise: ResidualNoiseModel) -> Array:
    """Return the RMS change of the readings per prior deviation of each parameter, in units of noise, ``(p,)``."""
    moved = np.zeros(len(problem.sd))
    for number, block in enumerate(problem.blocks):
        slopes = (
            here.jacobians[number] * (problem.width / noise.sd)[block.channels][:, None] * problem.sd[block.columns]
        )
        present = ~np.isnan(here.residual[..., block.channels])
        square = np.sum(np.where(present[..., None], slopes, 0.0) ** 2, axis=(0, 1)) / present.sum(axis=(0, 1))[:, None]
        moved[block.columns] = np.sqrt(square.max(axis=0))
    return moved


def estimate_residual_noise(problem: FitProblem, here: Linearization, least: Array) -> ResidualNoiseModel:
    """Return the noise model of the residuals after one more linear step of a fit: noise plus missing physics.

    Args:
        problem: the fit.
        here: linearization near the optimum; the nearer, the less error of the parameters counts as noise.
        least: lower limit of each channel's standard deviation, for example its encoder's, ``(nchannel,)``.
    """
    left = here.residual.copy()
    for number, block in enumerate(problem.blocks):
        equations = normal_equations(problem, here, number)
        move = -np.linalg.solve(equations.matrix, equations.gradient).astype(np.float64)
        left[..., block.channels] += here.jacobians[number] @ move
        if len(problem.local_sd):
            shift = equations.recover(move)
            left += np.einsum("efcm,em->efc", here.local_jacobian, shift)
    quieter = np.nanvar(left, axis=(0, 1)) < np.nanvar(here.residual, axis=(0, 1))
    left = np.where(quieter, left, here.residual) * problem.width
    size = np.asarray(np.sqrt(np.nanmean(left**2, axis=(0, 1))), dtype=np.float64)
    return ResidualNoiseModel(sd=np.maximum(size, least), rho=_lag_one_correlation(left))


def _lag_one_correlation(left: Array) -> Array:
    """Return the frame-to-frame correlation about 0, ``(nchannel,)``; about 0 because constant residuals count too."""
    both = ~np.isnan(left[:, 1:]) & ~np.isnan(left[:, :-1])
    product = np.sum(np.where(both, left[:, 1:] * left[:, :-1], 0.0), axis=(0, 1))
    square = np.sum(np.where(both, (left[:, 1:] ** 2 + left[:, :-1] ** 2) / 2, 0.0), axis=(0, 1))
    return np.clip(np.divide(product, square, out=np.zeros_like(product), where=square > 0), 0.0, _MOST_RHO)


# A parameter is undetermined if more than this share of it is in undetermined directions.
OPEN_SHARE = 0.1
# A direction names only parameters with at least this part in it.
_NAMED = 0.25


@dataclass(frozen=True, kw_only=True)
class OpenDirection:
    """A combination of parameters that the data do not determine.

    ``moves`` are changes of the parameters in the fit's coordinates (natural logarithms for positive parameters).
    Together they are one prior standard deviation long; the largest part is positive. ``gain`` is the curvature of the
    loss along the direction, relative to the threshold for determined directions: below 1.
    """

    moves: Mapping[str, float]
    gain: float

    def __str__(self) -> str:
        return " ".join(f"{move:+.2g} {name}" for name, move in self.moves.items())


@dataclass(frozen=True, kw_only=True)
class Determination:
    """How well data determine parameters.

    ``condition`` is cond(ĴᵀĴ) with columns of unit length, infinite if a parameter has no effect. ``gains`` ``(p,)``
    are the gains of all principal directions, ascending; ``vectors`` ``(p, p)`` are the directions as columns, in prior
    standard deviations. ``directions`` are the undetermined ones; ``share`` ``(p,)`` is the part of each parameter in
    them.
    """

    condition: float
    gains: NDArray[np.float64]
    vectors: NDArray[np.float64]
    directions: tuple[OpenDirection, ...]
    share: NDArray[np.float64]

    @property
    def undetermined_mask(self) -> NDArray[np.bool_]:
        """Mask of the parameters that the data do not determine, ``(p,)``."""
        return self.share > OPEN_SHARE


def assess_determination(
    curvature: ArrayLike, sd: ArrayLike, names: Sequence[str], *, least: float = 1.0
) -> Determination:
    """Return the principal directions of a curvature relative to the prior.

    Args:
        curvature: ``(p, p)`` second derivative of the loss (JᵀWJ), or Fisher information, without any prior.
        sd: prior standard deviation of each parameter, ``(p,)``.
        names: names of the parameters.
        least: a direction is undetermined if its curvature per squared prior standard deviation is below this value. In
            a fit, give the weight of the prior: undetermined directions are then those that the prior would decide. For
            a log-likelihood, give 1.
    """
    matrix, spread = np.asarray(curvature, dtype=np.float64), np.asarray(sd, dtype=np.float64)
    values, vectors = np.linalg.eigh(matrix * np.outer(spread, spread))
    gains = np.maximum(values, 0.0) / least
    unknown = np.flatnonzero(gains < 1.0)
    return Determination(
        condition=scaled_condition(matrix),
        gains=gains,
        vectors=vectors,
        directions=tuple(_make_direction(vectors[:, i], float(gains[i]), spread, names) for i in unknown),
        share=np.sum(vectors[:, unknown] ** 2, axis=1),
    )


def _make_direction(
    vector: NDArray[np.float64], gain: float, sd: NDArray[np.float64], names: Sequence[str]
) -> OpenDirection:
    order = [int(i) for i in np.argsort(-np.abs(vector)) if abs(vector[i]) > _NAMED] or [int(np.argmax(np.abs(vector)))]
    sign = np.sign(vector[order[0]])
    return OpenDirection(moves={names[i]: float(sign * vector[i] * sd[i]) for i in order}, gain=gain)


def scaled_condition(curvature: ArrayLike) -> float:
    """Return cond(ĴᵀĴ) with every column of the Jacobian scaled to unit length; infinite if a column is zero."""
    matrix = np.asarray(curvature, dtype=np.float64)
    size = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    if (size == 0).any():
        return float("inf")
    return float(np.linalg.cond(matrix / np.outer(size, size)))
