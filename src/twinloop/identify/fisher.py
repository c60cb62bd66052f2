"""Compute the Fisher information of readings, and find parameter combinations that the data do not determine.

The residuals of a fit are correlated in time, because the twin errs in the same direction for many frames. The noise of
each channel is therefore modelled as a first-order autoregression, with the covariance Σ_ts = σ² ρ^|t−s| between the
frames t and s. J is the Jacobian of the readings with respect to the parameters. P is the precision (inverse
covariance) of the Gaussian prior.

The fit is least squares over all frames. Its weights w = (1 − ρ)/((1 + ρ) σ²) count effectively independent frames. Two
matrices are computed for each window, and summed over windows: A = w JᵀJ and B = w² JᵀΣJ. The covariance of the
estimate is then (A + P)⁻¹ (B + P) (A + P)⁻¹ (Godambe's sandwich; Huber, Proc. 5th Berkeley Symp. 1, 1967).

`assess_determination` finds undetermined combinations. After a fit, it is applied to the curvature of the fit's loss.
Before a fit, it is applied to the Fisher information.
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
    """First-order autoregressive noise of a fit's residuals.

    Attributes:
        sd: Standard deviation in the channels' units, ``(nchannel,)``.
        rho: Lag-1 autocorrelation ρ, ``(nchannel,)``.
    """

    sd: Array
    rho: Array

    @property
    def inflation(self) -> Array:
        """Number of frames with as much information as one uncorrelated frame, (1 + ρ) / (1 − ρ), ``(nchannel,)``.

        ρ is the lag-1 autocorrelation ``rho``.
        """
        return (1.0 + self.rho) / (1.0 - self.rho)


@dataclass(frozen=True, kw_only=True)
class FisherInformation:
    """Fisher information of windows, or its sum over windows, about p parameters.

    Attributes:
        matrix: A = w JᵀJ, ``(…, p, p)``: curvature of the loss, with the weights w and the Jacobian J of the readings.
        score: B = w² JᵀΣJ, ``(…, p, p)``: covariance of the loss gradient (score), with the covariance Σ of the noise.
    """

    matrix: Array
    score: Array

    def __add__(self, other: FisherInformation) -> FisherInformation:
        return FisherInformation(matrix=self.matrix + other.matrix, score=self.score + other.score)

    def take(self, rows: NDArray[np.intp]) -> FisherInformation:
        """Return the information of the windows at positions ``rows``."""
        return FisherInformation(matrix=self.matrix[rows], score=self.score[rows])

    def times(self, count: float) -> FisherInformation:
        """Return the information of ``count`` repetitions of the data."""
        return FisherInformation(matrix=count * self.matrix, score=count * self.score)

    def total(self) -> FisherInformation:
        """Return the information summed over the windows of the log (first axis)."""
        return FisherInformation(matrix=self.matrix.sum(axis=0), score=self.score.sum(axis=0))

    def covariance(self, sd: ArrayLike) -> Array:
        """Return the expected covariance of the estimate, ``(…, p, p)``.

        Args:
            sd: Prior standard deviations of the parameters, ``(p,)``; a parameter with 0 is fixed.
        """
        spread = np.asarray(sd, dtype=np.float64)
        scale = spread[:, None] * spread
        eye = np.eye(len(spread))
        curved = np.linalg.inv(self.matrix * scale + eye)
        return scale * (curved @ (self.score * scale + eye) @ curved)

    def added_precision(self, sd: ArrayLike) -> Array:
        """Return the precision (inverse covariance) that the data add to the prior, ``(…, p, p)``.

        Args:
            sd: Prior standard deviations of the parameters, ``(p,)``.
        """
        spread = np.asarray(sd, dtype=np.float64)
        units = np.linalg.inv(self.covariance(spread) / (spread[:, None] * spread)) - np.eye(len(spread))
        return (units + np.swapaxes(units, -1, -2)) / (2.0 * spread[:, None] * spread)


def compute_information(problem: FitProblem, here: Linearization, noise: ResidualNoiseModel) -> FisherInformation:
    """Return each window's Fisher information about all p parameters at a point, ``(nwindow, p, p)``.

    If the fit corrects the initial states of windows, these count as unknown too. If joints are fitted in separate
    blocks, the information between parameters of different blocks is 0.

    Args:
        problem: Least-squares problem of the fit.
        here: Linearization at the point.
        noise: Noise of the residuals.
    """
    count, nwindow = len(problem.sd), len(here.residual)
    matrix, score = np.zeros((nwindow, count, count)), np.zeros((nwindow, count, count))
    quiet = replace(
        here, residual=np.where(np.isnan(here.residual), np.nan, 0.0)
    )  # zero residuals: all robust weights are 1
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
    """Multiply slopes ``(nwindow, nframe, p)`` by the correlation matrix ρ^|t−s| between frames t and s."""
    ahead = np.asarray(lfilter([1.0], [1.0, -rho], slopes, axis=1), dtype=np.float64)
    back = np.asarray(lfilter([1.0], [1.0, -rho], slopes[:, ::-1], axis=1), dtype=np.float64)
    return ahead + back[:, ::-1] - slopes


def compute_excitation(problem: FitProblem, here: Linearization, noise: ResidualNoiseModel) -> Array:
    """Return how much each parameter changes the readings, ``(p,)``.

    This is the RMS change of a channel's readings per prior standard deviation of the parameter, in units of noise. For
    each parameter, the value of the channel with the largest change is returned.

    Args:
        problem: Least-squares problem of the fit.
        here: Linearization at the point of interest.
        noise: Noise of the residuals.
    """
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
    """Estimate the noise model of a fit's residuals, which describes the sensors' noise together with missing physics.

    One more linear step of the fit removes most of the residual that is due to wrong parameters.

    Args:
        problem: Least-squares problem of the fit.
        here: Linearization near the optimum. Far from it, errors of the parameters are counted as noise.
        least: Lower limit of each channel's standard deviation, for example its encoder's, ``(nchannel,)``.
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
    """Return the lag-1 autocorrelation of residuals ``(nwindow, nframe, nchannel)``, shape ``(nchannel,)``, at least 0.

    It is computed about 0 and not about the mean, so that constant residuals count as correlated.
    """
    both = ~np.isnan(left[:, 1:]) & ~np.isnan(left[:, :-1])
    product = np.sum(np.where(both, left[:, 1:] * left[:, :-1], 0.0), axis=(0, 1))
    square = np.sum(np.where(both, (left[:, 1:] ** 2 + left[:, :-1] ** 2) / 2, 0.0), axis=(0, 1))
    return np.clip(np.divide(product, square, out=np.zeros_like(product), where=square > 0), 0.0, _MOST_RHO)


# A parameter is undetermined if more than this share of it is in undetermined directions.
OPEN_SHARE = 0.1
# A direction names only parameters with at least this part in it.
_NAMED = 0.25


@dataclass(frozen=True, kw_only=True)
class UndeterminedDirection:
    """Combination of parameters that the data do not determine.

    Attributes:
        moves: Change of each parameter along the direction, in solver coordinates (natural logarithms of positive
            parameters). In units of the prior standard deviations, the vector of changes has length 1. The largest
            change is positive.
        gain: Curvature of the loss along the direction, as a fraction of the smallest curvature that counts as
            determined; below 1.
    """

    moves: Mapping[str, float]
    gain: float

    def __str__(self) -> str:
        return " ".join(f"{move:+.2g} {name}" for name, move in self.moves.items())


@dataclass(frozen=True, kw_only=True)
class Determination:
    """Result of `assess_determination`: the directions in parameter space that data determine and do not determine.

    Attributes:
        condition: Condition number of JᵀJ with the columns of the Jacobian J scaled to unit length; infinite if a
            parameter has no effect.
        gains: Curvature along each of the p principal directions, divided by the curvature from which a direction
            counts as determined; ascending, ``(p,)``.
        vectors: The directions as columns, in prior standard deviations, ``(p, p)``.
        directions: The undetermined directions, those with a gain below 1.
        share: Part of each parameter in the undetermined directions, from 0 to 1, ``(p,)``.
    """

    condition: float
    gains: NDArray[np.float64]
    vectors: NDArray[np.float64]
    directions: tuple[UndeterminedDirection, ...]
    share: NDArray[np.float64]

    @property
    def undetermined_mask(self) -> NDArray[np.bool_]:
        """Mask of the parameters that the data do not determine, ``(p,)``."""
        return self.share > OPEN_SHARE


def assess_determination(
    curvature: ArrayLike, sd: ArrayLike, names: Sequence[str], *, least: float = 1.0
) -> Determination:
    """Find the principal directions of a curvature relative to the prior, and those that the data do not determine.

    Parameters are first scaled by their prior standard deviations.

    Args:
        curvature: Second derivative of the loss or Fisher information, excluding any prior, ``(p, p)``.
        sd: Prior standard deviation of each parameter, ``(p,)``.
        names: Names of the parameters.
        least: A direction is undetermined if its curvature after the scaling is below this value. For a log-likelihood
            use 1: the data then add less information than the prior has. For a fit use `FitProblem.prior_weight`,
            because the loss of a fit multiplies the prior by this weight.
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
) -> UndeterminedDirection:
    order = [int(i) for i in np.argsort(-np.abs(vector)) if abs(vector[i]) > _NAMED] or [int(np.argmax(np.abs(vector)))]
    sign = np.sign(vector[order[0]])
    return UndeterminedDirection(moves={names[i]: float(sign * vector[i] * sd[i]) for i in order}, gain=gain)


def scaled_condition(curvature: ArrayLike) -> float:
    """Return the condition number of a curvature JᵀJ with the columns of J scaled to unit length.

    It is infinite if a column is zero.
    """
    matrix = np.asarray(curvature, dtype=np.float64)
    size = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    if (size == 0).any():
        return float("inf")
    return float(np.linalg.cond(matrix / np.outer(size, size)))
