"""Define the least-squares problem of a fit over batched replays: residuals, robust loss, priors, and derivatives.

The Jacobian is computed by finite differences, and all perturbed replays run in one batch. Parameters of joints that
barely affect each other's readings may share a world: one parameter of every joint is perturbed in it, and the Jacobian
is block-diagonal. A single block with all parameters is the full Jacobian.

A window (part of an episode) starts from a measured initial state, which has measurement errors. The fit may therefore
correct m coordinates of this state (``local`` in the code). A correction affects only its window. One world can
therefore perturb the k-th correction of all windows. The corrections are eliminated from the normal equations window by
window, by the Schur complement, as in multiple shooting.

Shapes use p for the number of parameters, m for the number of corrected coordinates. Points are in solver coordinates,
see `assembly.FreeParam`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Readings = Callable[[Array, Array], Array]

# Finite-difference step in units of the prior's standard deviation: far above round-off and above the roughness of
# replays with stiction, far below their curvature.
DIFFERENCE = 0.05
# Weight of the prior during the search, against a mean loss of about one per joint; at the end, `likelihood_weight`.
# Chosen on episodes 20 to 29 of the SO-101 log by fits to 0 to 19: from 3e-4 to 1.5e-2 the error moves by under 5 %, at
# 6e-2 the elbow's grows by half.
PRIOR_WEIGHT = 4e-3
_LEAST_WEIGHT, _MOST_WEIGHT = 1e-6, 1.5e-2
_LEAST_MOVE = -0.9  # part of a value by which one step may lower it


@dataclass(frozen=True, kw_only=True)
class ParameterBlock:
    """Block of parameters that are solved together, and the channels that they are fitted to.

    Attributes:
        columns: Indices of the parameters.
        channels: Indices of the channels.
    """

    columns: NDArray[np.intp]
    channels: NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class FitProblem:
    """Least-squares problem of a fit with p parameters, in solver coordinates (ln or SI).

    Attributes:
        readings: Function from points ``(nworld, p)`` and corrections of the windows' initial states ``(nworld,
            nwindow, m)`` to replayed readings ``(nworld, nwindow, nframe, nchannel)``.
        correction: Added to all readings, ``(nwindow, nframe, nchannel)``, such as the error of the physics step; None
            for none.
        measured: Measured readings, ``(nwindow, nframe, nchannel)``; NaN marks missing measurements.
        blocks: Parameters that are solved together; corrections of initial states need a single block.
        centre: Prior means of the parameters, ``(p,)``.
        sd: Prior standard deviations of the parameters, ``(p,)``.
        low: Lower bounds, ``(p,)``.
        high: Upper bounds, ``(p,)``.
        width: Residual at which the loss changes from square to linear (Huber), ``(nchannel,)``, in the channels'
            units.
        local_sd: Prior standard deviations of the corrections, ``(m,)``; empty if initial states are not corrected.
        prior_weight: Factor of the parameters' prior in the loss, which is otherwise the sum of the channels' mean
            Huber losses.
        clusters: Index of each window's episode, ``(nwindow,)``; by default each window has its own index.
        logarithmic: Mask of the parameters whose coordinate is a logarithm, ``(p,)``; by default none.
    """

    readings: Readings
    measured: Array
    blocks: tuple[ParameterBlock, ...]
    centre: Array
    sd: Array
    low: Array
    high: Array
    width: Array
    local_sd: Array = field(default_factory=lambda: np.zeros(0))
    prior_weight: float = PRIOR_WEIGHT
    correction: Array | None = None
    clusters: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    logarithmic: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))

    def __post_init__(self) -> None:
        if not len(self.clusters):
            object.__setattr__(self, "clusters", np.arange(len(self.measured)))
        if not len(self.logarithmic):
            object.__setattr__(self, "logarithmic", np.zeros(len(self.sd), dtype=np.bool_))

    @property
    def prior_point(self) -> Array:
        """Prior means of the parameters within their bounds, ``(p,)``."""
        return np.clip(self.centre, self.low, self.high)

    def move_along(self, point: Array, move: Array) -> Array:
        """Return the point after a move that is linear in SI units, with the derivatives of the coordinates at a point.

        Motions depend on ratios, such as damping over gain. Where one coordinate is a logarithm and the other is not, a
        straight line in the coordinates changes the ratio, and a line in SI units does not.

        Args:
            point: A point in solver coordinates (ln or SI), ``(p,)``.
            move: The move; for a logarithm the change of the value as a part of the value, above -1.
        """
        return point + np.where(self.logarithmic, np.log1p(np.maximum(move, _LEAST_MOVE)), move)

    def move_between(self, point: Array, other: Array) -> Array:
        """Return the move from a point to another, the inverse of `move_along`."""
        with np.errstate(over="ignore"):
            return np.where(self.logarithmic, np.expm1(other - point), other - point)

    @property
    def zero_corrections(self) -> Array:
        """Corrections that keep the initial states as measured: zeros of shape ``(nwindow, m)``.

        m is the number of corrected coordinates of a window's initial state, the length of ``local_sd``.
        """
        return np.zeros((len(self.measured), len(self.local_sd)))

    @property
    def frame_weight(self) -> Array:
        """Weight of one reading of each channel, ``(nchannel,)``: the inverse of its number of measured values."""
        return 1.0 / np.maximum(np.sum(~np.isnan(self.measured), axis=(0, 1)), 1)

    @property
    def local_weight(self) -> float:
        """Weight of the prior of a window's initial-state correction in the loss, equal to the weight of one reading.

        It counts like one reading because the initial state is measured once.
        """
        return float(np.mean(self.frame_weight))

    def residual(self, points: Array, local: Array) -> Array:
        """Return replayed minus measured readings in Huber widths, ``(nworld, nwindow, nframe, nchannel)``.

        The Huber width is the residual at which the loss changes from square to linear. A missing measurement gives
        NaN. A measured frame at which the replay has diverged gives infinity.

        Args:
            points: Parameters in solver coordinates (ln or SI), ``(nworld, p)``.
            local: Corrections of m coordinates of each window's initial state, ``(nworld, nwindow, m)``.
        """
        readings = self.readings(points, local)
        if self.correction is not None:
            readings = readings + self.correction
        residual = (readings - self.measured) / self.width
        return np.where(np.isnan(readings) & ~np.isnan(self.measured), np.inf, residual)

    @property
    def probe_count(self) -> int:
        """Number of perturbed worlds of one linearization, with one parameter of every block in each world."""
        return max(len(block.columns) for block in self.blocks) + len(self.local_sd)

    def losses(self, residual: Array, points: Array, local: Array) -> Array:
        """Return the loss of every block at every point, ``(nworld, nblock)``, including the priors.

        A block is a group of jointly solved parameters with their channels (`ParameterBlock`). Each point is simulated
        in one world.

        Args:
            residual: Residuals at the points, see `residual`.
            points: Parameters in solver coordinates (ln or SI), ``(nworld, p)``.
            local: Corrections of m coordinates of each window's initial state, ``(nworld, nwindow, m)``.
        """
        channel = np.nanmean(huber_loss(residual), axis=(-3, -2))
        prior = 0.5 * self.prior_weight * ((points - self.centre) / self.sd) ** 2
        losses = np.stack([channel[:, b.channels].sum(-1) + prior[:, b.columns].sum(-1) for b in self.blocks], axis=-1)
        if len(self.local_sd):
            losses[:, 0] += 0.5 * self.local_weight * np.sum((local / self.local_sd) ** 2, axis=(-2, -1))
        return losses

    def losses_at(self, points: Array, local: Array | None = None) -> Array:
        """Replay points ``(nworld, p)`` and return the loss of every block, ``(nworld, nblock)``.

        If ``local`` (corrections of the initial states) is None, initial states stay as measured.
        """
        local = np.repeat(self.zero_corrections[None], len(points), axis=0) if local is None else local
        return self.losses(self.residual(points, local), points, local)


@dataclass(frozen=True, kw_only=True)
class Linearization:
    """Residual of a fit at a point, and its derivatives.

    Attributes:
        point: Parameters in solver coordinates (ln or SI), ``(p,)``.
        local: Corrections of m coordinates of each window's initial state, ``(nwindow, m)``.
        residual: Residual in Huber widths, ``(nwindow, nframe, nchannel)``.
        jacobians: Per block, derivatives with respect to its parameters:
            ``(nwindow, nframe, channels of the block, parameters of the block)``.
        local_jacobian: Derivatives with respect to the corrections, ``(nwindow, nframe, nchannel, m)``.
        losses: Loss of each block, ``(nblock,)``.
    """

    point: Array
    local: Array
    residual: Array
    jacobians: tuple[Array, ...]
    local_jacobian: Array
    losses: Array


def huber_loss(residual: Array) -> Array:
    """Return Huber's loss of residuals r in Huber widths: r²/2 if |r| ≤ 1, otherwise |r| − 1/2.

    Huber, "Robust estimation of a location parameter", Ann. Math. Stat. 35, 1964.
    """
    size = np.abs(residual)
    return np.where(size <= 1.0, 0.5 * size**2, size - 0.5)


# Curvature times variance of Huber's estimator for normal noise, with the median absolute residual as its width:
# (E ψ²)/(E ψ′) with E ψ′ = 0.5 and E ψ² = 0.657.
_HUBER_RATIO = 1.31


def likelihood_weight(residual: Array) -> float:
    """Return the weight of the prior with which the loss is a log-likelihood, up to a factor.

    It is the part of the loss that one independent frame has. Frames count as independent as far as the residuals of a
    frame and the next one are: n frames with the correlation ρ count as n(1 − ρ)/(1 + ρ).

    Args:
        residual: Residuals in Huber widths, ``(nwindow, nframe, nchannel)``.
    """
    present = ~np.isnan(residual)
    error = np.where(present, residual, 0.0)
    both = present[:, 1:] & present[:, :-1]
    product = np.sum(np.where(both, np.clip(error[:, 1:], -3, 3) * np.clip(error[:, :-1], -3, 3), 0.0), axis=(0, 1))
    square = np.sum(np.where(both, np.clip(error[:, 1:], -3, 3) ** 2, 0.0), axis=(0, 1))
    rho = np.clip(product / np.maximum(square, 1e-12), 0.0, 0.999)
    frames = np.maximum(present.sum(axis=(0, 1)), 1)
    return float(np.clip(_HUBER_RATIO * np.median((1 + rho) / (1 - rho) / frames), _LEAST_WEIGHT, _MOST_WEIGHT))


@dataclass(frozen=True, kw_only=True)
class ProbePoints:
    """Point and its perturbations, to be replayed for finite differences.

    Row 0 is the point itself. The next rows perturb parameters. The last m rows perturb corrections of the windows'
    initial states.

    Attributes:
        points: Parameters of each row in solver coordinates (ln or SI), ``(n, p)``.
        local: Corrections of the initial states of each row, ``(n, nwindow, m)``.
        world: Index of the row (and simulated world) that perturbs each parameter, ``(p,)``.
        step: Added perturbation of each parameter, ``(p,)``; negative for a parameter at its upper bound.
        local_step: Added perturbation of each correction, ``(m,)``.
    """

    points: Array
    local: Array
    world: NDArray[np.intp]
    step: Array
    local_step: Array


def probe(
    problem: FitProblem,
    point: Array,
    local: Array | None = None,
    *,
    separate_worlds: bool = False,
    step: Array | None = None,
) -> ProbePoints:
    """Return a point and its perturbations, to be replayed for the derivatives at the point.

    A perturbation that would leave a parameter's bounds gets the opposite sign.

    Args:
        problem: Least-squares problem of the fit.
        point: The point in solver coordinates (ln or SI), ``(p,)``.
        local: Corrections of m coordinates of each window's initial state, ``(nwindow, m)``; by default zero.
        separate_worlds: Perturb every parameter in a separate world. If false, one world perturbs one parameter of
            every block.
        step: Perturbation of each parameter, ``(p,)``; by default a twentieth of the prior's standard deviation.
    """
    local = problem.zero_corrections if local is None else local
    world, m = _probe_worlds(problem, separate_worlds=separate_worlds), len(problem.local_sd)
    step = DIFFERENCE * problem.sd if step is None else step
    step = np.where((point + step > problem.high) | (point + step < problem.low), -step, step)
    depth = int(world.max(initial=0))
    points = np.repeat(point[None], 1 + depth + m, axis=0)
    points[world, np.arange(len(point))] += step
    corrections = np.repeat(local[None], 1 + depth + m, axis=0)
    local_step = DIFFERENCE * problem.local_sd
    corrections[1 + depth + np.arange(m), :, np.arange(m)] += local_step[:, None]
    return ProbePoints(points=points, local=corrections, world=world, step=step, local_step=local_step)


def linearization_from_probe(problem: FitProblem, probed: ProbePoints, residual: Array) -> Linearization:
    """Compute the linearization at a point by one-sided finite differences.

    A parameter whose perturbation diverges gets derivative zero: it keeps its value until the other parameters have
    moved.

    Args:
        problem: Least-squares problem of the fit.
        probed: The point and its perturbations, from `probe`.
        residual: Residuals of their replays, ``(n, nwindow, nframe, nchannel)``.
    """
    here, depth = residual[0], int(probed.world.max(initial=0))

    def slopes(rows: Array, step: Array) -> Array:
        with np.errstate(invalid="ignore"):  # infinity minus infinity
            slope = np.moveaxis(rows, 0, -1) / step
        lost = np.isinf(slope).any(axis=tuple(range(slope.ndim - 1)))
        return np.where(lost, 0.0, slope)

    with np.errstate(invalid="ignore"):
        jacobians = tuple(
            slopes(residual[probed.world[b.columns]][..., b.channels] - here[..., b.channels], probed.step[b.columns])
            for b in problem.blocks
        )
        own = slopes(residual[1 + depth :] - here, probed.local_step)
    return Linearization(
        point=probed.points[0],
        local=probed.local[0],
        residual=here,
        jacobians=jacobians,
        local_jacobian=own,
        losses=problem.losses(residual[:1], probed.points[:1], probed.local[:1])[0],
    )


def linearize(
    problem: FitProblem,
    point: Array,
    local: Array | None = None,
    *,
    separate_worlds: bool = False,
    step: Array | None = None,
) -> Linearization:
    """Replay a point and its perturbations in one batch, and return the residual and its derivatives.

    Args:
        problem: Least-squares problem of the fit.
        point: The point in solver coordinates (ln or SI), ``(p,)``.
        local: Corrections of m coordinates of each window's initial state, ``(nwindow, m)``; by default zero.
        separate_worlds: Perturb every parameter in a separate world, which is exact. If false, one world perturbs one
            parameter of every block, which needs fewer worlds. The derivatives then ignore the small effects between
            joints of different blocks.
        step: Perturbation of each parameter, ``(p,)``; by default a twentieth of the prior's standard deviation.
    """
    probed = probe(problem, point, local, separate_worlds=separate_worlds, step=step)
    return linearization_from_probe(problem, probed, problem.residual(probed.points, probed.local))


_SHORTEST, _LONGEST = 1e-6, 0.1  # prior standard deviations, limits of `small_steps`


def small_steps(problem: FitProblem, size: Array, change: float) -> Array:
    """Return steps ``(p,)`` for derivatives that change the readings by a small part of a Huber width.

    Usual steps give derivatives with errors of a few per cent. With such errors the data seem to determine the common
    scale of all gains, inertias and frictions, which has no effect on the motion.

    Args:
        problem: Least-squares problem of the fit.
        size: Derivatives of the readings, root mean square over the frames, in Huber widths, ``(p,)``; 0 if unknown.
        change: The change of the readings in Huber widths.
    """
    return np.clip(change / np.maximum(size, 1e-12), _SHORTEST * problem.sd, _LONGEST * problem.sd)


def average_slopes(here: Linearization, other: Linearization) -> Linearization:
    """Return a linearization with the mean derivatives of two with opposite steps (central differences)."""
    return replace(
        here,
        jacobians=tuple((one + two) / 2 for one, two in zip(here.jacobians, other.jacobians, strict=True)),
        local_jacobian=(here.local_jacobian + other.local_jacobian) / 2,
    )


# A frame is rough if derivatives by two steps differ by more than this part of their size, plus this part of the usual
# size in its channel; our choice.
_ROUGH, _ROUGH_FLOOR = 0.3, 0.03


def ignore_rough_frames(fine: Linearization, coarse: Linearization, problem: FitProblem) -> Linearization:
    """Set the derivatives of frames to 0 where they depend on the finite-difference step.

    The time at which a joint breaks free from rest may depend on the smallest change of a parameter. The frames after
    it have no derivative, and therefore count as frames without information.

    Args:
        fine: Linearization with small steps, of a problem with one block.
        coarse: Linearization with larger steps, near the same point.
        problem: Least-squares problem of the fit.
    """
    (one,), (other,) = fine.jacobians, coarse.jacobians
    one, other = one * problem.sd, other * problem.sd
    usual = np.sqrt(np.nanmean(np.nansum(other**2, axis=-1), axis=(0, 1)))
    with np.errstate(invalid="ignore"):  # missing measurements
        apart = np.linalg.norm(one - other, axis=-1)
        rough = apart > _ROUGH * np.linalg.norm(other, axis=-1) + _ROUGH_FLOOR * usual
    return replace(
        fine,
        jacobians=(np.where(rough[..., None], 0.0, fine.jacobians[0]),),
        local_jacobian=np.where(rough[..., None], 0.0, fine.local_jacobian),
    )


def derivative_sizes(here: Linearization, problem: FitProblem) -> Array:
    """Return the root mean square derivative of each parameter in the channel with the largest one, ``(p,)``."""
    size = np.zeros(len(here.point))
    for block, slopes in zip(problem.blocks, here.jacobians, strict=True):
        size[block.columns] = np.sqrt(np.nanmax(np.nanmean(slopes**2, axis=(0, 1)), axis=0))
    return size


def _probe_worlds(problem: FitProblem, *, separate_worlds: bool) -> NDArray[np.intp]:
    """Return the index of the world in which each parameter is perturbed, ``(p,)``; world 0 is unperturbed.

    Args:
        problem: Least-squares problem of the fit.
        separate_worlds: Perturb every parameter in a separate world. If false, one world perturbs one parameter of
            every block.
    """
    if separate_worlds:
        return np.arange(1, len(problem.sd) + 1)
    world = np.zeros(len(problem.sd), dtype=np.intp)
    for block in problem.blocks:
        world[block.columns] = np.arange(1, len(block.columns) + 1)
    return world


@dataclass(frozen=True, kw_only=True)
class NormalEquations:
    """Gradient and Gauss–Newton second derivative of one block's loss, including priors.

    The corrections of the windows' initial states are eliminated (Schur complement): for any step of the parameters the
    corrections take their optimal step.

    Attributes:
        matrix: Second derivative with respect to the p parameters of the block, ``(p, p)``.
        gradient: Gradient with respect to these parameters, ``(p,)``.
        recover: Function from a step of the parameters ``(p,)`` to the step of the corrections ``(nwindow, m)``.
    """

    matrix: Array
    gradient: Array
    recover: Callable[[Array], Array]


class InitialStateSystem(NamedTuple):
    """Normal equations of the windows' initial states, and their coupling to a block's p parameters.

    Attributes:
        own: Derivatives of the residual with respect to the corrections, ``(nwindow, nframe, nchannel, m)``; 0 at
            missing measurements.
        inner: Second derivatives of the loss with respect to the corrections, including the prior, ``(nwindow, m, m)``.
        cross: Mixed derivatives with respect to corrections and parameters, ``(nwindow, m, p)``.
    """

    own: Array
    inner: Array
    cross: Array


def build_initial_state_system(
    problem: FitProblem, here: Linearization, block: int, slopes: Array, weight: Array
) -> InitialStateSystem:
    """Build the normal equations of the initial-state corrections for one block of parameters.

    Args:
        problem: Least-squares problem of the fit.
        here: Linearization at the point.
        block: Index of the block of jointly solved parameters.
        slopes: Derivatives of the residual with respect to the parameters, ``(nwindow, nframe, nchannel, p)``.
        weight: Weight of each reading, ``(nwindow, nframe, nchannel)``.
    """
    channels = problem.blocks[block].channels
    absent = np.isnan(here.residual[..., channels])[..., None]
    own = np.where(absent, 0.0, here.local_jacobian[..., channels, :])
    prior = np.diag(problem.local_weight / problem.local_sd**2)
    return InitialStateSystem(
        own=own,
        inner=np.einsum("efcm,efc,efcn->emn", own, weight, own, optimize=True) + prior,
        cross=np.einsum("efcm,efc,efcp->emp", own, weight, slopes, optimize=True),
    )


def normal_equations(problem: FitProblem, here: Linearization, block: int, *, damping: float = 0.0) -> NormalEquations:
    """Return the iteratively reweighted normal equations of one block, in solver coordinates (ln or SI).

    The weight of a residual r (in Huber widths) is 1 / max(|r|, 1), times the channel's `FitProblem.frame_weight`.

    Args:
        problem: Least-squares problem of the fit.
        here: Linearization at the current point, whose residuals give the weights.
        block: Index of the block of jointly solved parameters.
        damping: The diagonal is multiplied by 1 + ``damping`` (Marquardt).
    """
    columns, channels = problem.blocks[block].columns, problem.blocks[block].channels
    residual = here.residual[..., channels]
    present = ~np.isnan(residual)
    error = np.where(present, residual, 0.0)
    weight = np.where(present, 1.0 / np.maximum(np.abs(error), 1.0), 0.0) * problem.frame_weight[channels]
    slopes = np.where(present[..., None], here.jacobians[block], 0.0)
    prior_curvature = problem.prior_weight / problem.sd[columns] ** 2
    matrix = np.einsum("efcp,efc,efcq->pq", slopes, weight, slopes, optimize=True) + np.diag(prior_curvature)
    matrix += damping * np.diag(np.diag(matrix))
    gradient = (
        np.einsum("efcp,efc->p", slopes, weight * error) + prior_curvature * (here.point - problem.centre)[columns]
    )
    if not len(problem.local_sd):
        return NormalEquations(matrix=matrix, gradient=gradient, recover=lambda _: np.zeros_like(here.local))
    own, inner, cross = build_initial_state_system(problem, here, block, slopes, weight)
    inner = inner + damping * inner * np.eye(len(problem.local_sd))
    local_curvature = problem.local_weight / problem.local_sd**2
    slope = np.einsum("efcm,efc->em", own, weight * error) + local_curvature * here.local
    solved = np.linalg.solve(inner, np.concatenate([cross, slope[..., None]], axis=-1))
    return NormalEquations(
        matrix=matrix - np.einsum("emp,emq->pq", cross, solved[..., :-1]),
        gradient=gradient - np.einsum("emp,em->p", cross, solved[..., -1]),
        recover=lambda move: -solved[..., -1] - solved[..., :-1] @ move,
    )


def standard_errors(problem: FitProblem, here: Linearization) -> Array:
    """Return standard errors ``(p,)`` of the parameters of a problem with one block, if the loss is a log-likelihood.

    The prior's weight must be that of `likelihood_weight`.
    """
    matrix = normal_equations(problem, here, 0).matrix
    return np.sqrt(problem.prior_weight * np.diag(np.linalg.inv(matrix)))


def eliminate_initial_states(problem: FitProblem, here: Linearization, block: int) -> Array:
    """Return derivatives of a block's residual with the initial states eliminated, ``(nwindow, nframe, nchannel, p)``.

    The part of a parameter's effect that a correction of the window's initial state can explain is removed. Missing
    measurements give 0.

    Args:
        problem: Least-squares problem of the fit.
        here: Linearization at the point.
        block: Index of the block of jointly solved parameters.
    """
    channels = problem.blocks[block].channels
    residual = here.residual[..., channels]
    slopes = np.where(np.isnan(residual)[..., None], 0.0, here.jacobians[block])
    if not len(problem.local_sd):
        return slopes
    weight = 1.0 / np.maximum(np.abs(np.nan_to_num(residual)), 1.0) * problem.frame_weight[channels]
    own, inner, cross = build_initial_state_system(problem, here, block, slopes, weight)
    return slopes - np.einsum("efcm,emp->efcp", own, np.linalg.solve(inner, cross), optimize=True)
