"""Define the least-squares problem of a fit over batched replays: residuals, robust loss, priors, slopes.

All perturbations run in one batch. If joints barely affect each other's readings, the k-th parameters of all joints are
perturbed in the same world and the Jacobian is block-diagonal. A single block with all parameters is the full Jacobian.
Corrections of each window's first state (``local``) affect that window alone. One world therefore perturbs the k-th
correction of all windows, and the corrections are eliminated from the normal equations window by window (the Schur
complement of multiple shooting).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Readings = Callable[[Array, Array], Array]

# Finite-difference step in units of the prior's standard deviation: far above round-off and above the roughness of
# replays with stiction, far below their curvature.
_DIFFERENCE = 0.05
# Weight of the prior against a mean loss of about one per joint: it decides parameters that data do not. Chosen on
# episodes 20 to 29 of the SO-101 log by fits to 0 to 19: from 3e-4 to 1.5e-2 the error moves by under 5 %, at 6e-2
# the elbow's grows by half; in the middle the identified servos are most similar.
PRIOR_WEIGHT = 4e-3


@dataclass(frozen=True, kw_only=True)
class ParameterBlock:
    """Parameters that are solved together, and the channels that they are fitted to."""

    columns: NDArray[np.intp]
    channels: NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class FitProblem:
    """A fit in transformed coordinates.

    ``readings`` maps points ``(nworld, p)`` and corrections of first states ``(nworld, nwindow, m)`` to replayed
    readings ``(nworld, nwindow, nframe, nchannel)``. ``measured`` is NaN at missing measurements. ``centre`` and ``sd``
    are the weak prior of the parameters, ``local_sd`` ``(m,)`` is that of the corrections. ``width`` ``(nchannel,)`` is
    the residual at which the loss changes from square to linear, in the channels' units. Corrections need a single
    block. ``clusters`` ``(nwindow,)`` numbers the episodes of the windows; without it each window is one cluster.
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
    clusters: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, dtype=np.intp))

    def __post_init__(self) -> None:
        if not len(self.clusters):
            object.__setattr__(self, "clusters", np.arange(len(self.measured)))

    @property
    def zero_corrections(self) -> Array:
        """Zero corrections: the first states as measured, ``(nwindow, m)``."""
        return np.zeros((len(self.measured), len(self.local_sd)))

    @property
    def frame_weight(self) -> Array:
        """Weight of one reading of each channel, ``(nchannel,)``: losses are means over all measured values."""
        return 1.0 / np.maximum(np.sum(~np.isnan(self.measured), axis=(0, 1)), 1)

    @property
    def local_weight(self) -> float:
        """Weight of one window's prior: that of one reading, because it is one measurement of the first state."""
        return float(np.mean(self.frame_weight))

    def residual(self, points: Array, local: Array) -> Array:
        """Return replayed minus measured readings in Huber widths, ``(nworld, nwindow, nframe, nchannel)``.

        A missing measurement gives NaN. A measured frame without a finite replayed value gives infinity.
        """
        readings = self.readings(points, local)
        residual = (readings - self.measured) / self.width
        return np.where(np.isnan(readings) & ~np.isnan(self.measured), np.inf, residual)

    def losses(self, residual: Array, points: Array, local: Array) -> Array:
        """Return the loss of every block at every point, ``(nworld, nblock)``."""
        channel = np.nanmean(huber_loss(residual), axis=(-3, -2))
        prior = 0.5 * self.prior_weight * ((points - self.centre) / self.sd) ** 2
        losses = np.stack([channel[:, b.channels].sum(-1) + prior[:, b.columns].sum(-1) for b in self.blocks], axis=-1)
        if len(self.local_sd):
            losses[:, 0] += 0.5 * self.local_weight * np.sum((local / self.local_sd) ** 2, axis=(-2, -1))
        return losses

    def losses_at(self, points: Array, local: Array | None = None) -> Array:
        """Replay points ``(nworld, p)`` and return each block's loss; ``local`` None keeps first states as measured."""
        local = np.repeat(self.zero_corrections[None], len(points), axis=0) if local is None else local
        return self.losses(self.residual(points, local), points, local)


@dataclass(frozen=True, kw_only=True)
class Linearization:
    """Residual and slopes at a point.

    ``point`` ``(p,)`` has the corrections ``local`` ``(nwindow, m)``. ``residual`` ``(nwindow, nframe, nchannel)`` is
    in Huber widths. Its slopes are ``jacobians`` ``(nwindow, nframe, channels of the block, columns of the block)`` per
    block and ``local_jacobian`` ``(nwindow, nframe, nchannel, m)``. ``losses`` has one value per block.
    """

    point: Array
    local: Array
    residual: Array
    jacobians: tuple[Array, ...]
    local_jacobian: Array
    losses: Array


def huber_loss(residual: Array) -> Array:
    """Return Huber's loss of residuals in widths: r²/2 up to 1, |r| − 1/2 beyond (Ann. Math. Stat. 35, 1964)."""
    size = np.abs(residual)
    return np.where(size <= 1.0, 0.5 * size**2, size - 0.5)


@dataclass(frozen=True, kw_only=True)
class ProbePoints:
    """A point and its perturbations, to be replayed: ``points`` ``(n, p)`` and ``local`` ``(n, nwindow, m)``.

    Row 0 is the point itself; then follow the perturbations of parameters, then those of corrections. ``world``
    ``(p,)`` is the row that perturbs each parameter. ``step`` ``(p,)`` and ``local_step`` ``(m,)`` are the sizes of the
    perturbations.
    """

    points: Array
    local: Array
    world: NDArray[np.intp]
    step: Array
    local_step: Array


def probe(problem: FitProblem, point: Array, local: Array | None = None, *, alone: bool = False) -> ProbePoints:
    """Return the points to replay for the slopes at a point; steps never cross a bound. Arguments: see `linearize`."""
    local = problem.zero_corrections if local is None else local
    world, m = _probe_worlds(problem, alone=alone), len(problem.local_sd)
    step = _DIFFERENCE * problem.sd
    step = np.where(point + step > problem.high, -step, step)
    depth = int(world.max(initial=0))
    points = np.repeat(point[None], 1 + depth + m, axis=0)
    points[world, np.arange(len(point))] += step
    corrections = np.repeat(local[None], 1 + depth + m, axis=0)
    local_step = _DIFFERENCE * problem.local_sd
    corrections[1 + depth + np.arange(m), :, np.arange(m)] += local_step[:, None]
    return ProbePoints(points=points, local=corrections, world=world, step=step, local_step=local_step)


def linearization_from_probe(problem: FitProblem, probed: ProbePoints, residual: Array) -> Linearization:
    """Return residual and slopes by one-sided differences, from the ``residual`` of a probe.

    A parameter whose perturbation diverges gets slope zero: it keeps its value until the others have moved.
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


def linearize(problem: FitProblem, point: Array, local: Array | None = None, *, alone: bool = False) -> Linearization:
    """Return residual and slopes at a point by one-sided differences, in one batch.

    Args:
        problem: the fit.
        point: the point, ``(p,)``.
        local: corrections of the first states, ``(nwindow, m)``; by default zero.
        alone: perturb every parameter in a separate world. Otherwise blocks share worlds, which divides the cost by
            their number; the small effect of one joint's parameter on another joint is then attributed to the other
            joint.
    """
    probed = probe(problem, point, local, alone=alone)
    return linearization_from_probe(problem, probed, problem.residual(probed.points, probed.local))


def _probe_worlds(problem: FitProblem, *, alone: bool) -> NDArray[np.intp]:
    """Return the world in which each parameter is perturbed; world 0 is unperturbed."""
    if alone:
        return np.arange(1, len(problem.sd) + 1)
    world = np.zeros(len(problem.sd), dtype=np.intp)
    for block in problem.blocks:
        world[block.columns] = np.arange(1, len(block.columns) + 1)
    return world


@dataclass(frozen=True, kw_only=True)
class NormalEquations:
    """Second derivative and gradient of one block's loss, priors included.

    ``matrix`` ``(p, p)`` and ``gradient`` ``(p,)`` have the corrections eliminated. ``recover`` maps a step of the
    parameters to the step of the corrections, ``(nwindow, m)``.
    """

    matrix: Array
    gradient: Array
    recover: Callable[[Array], Array]


class InitialStateSystem(NamedTuple):
    """Normal equations of the first states, and their coupling to a block's parameters, window by window.

    ``own`` ``(nwindow, nframe, nchannel, m)`` are slopes of the residual, 0 at missing measurements. ``inner``
    ``(nwindow, m, m)`` are second derivatives with the prior; ``cross`` ``(nwindow, m, p)`` are mixed derivatives with
    the parameters.
    """

    own: Array
    inner: Array
    cross: Array


def build_initial_state_system(
    problem: FitProblem, here: Linearization, block: int, slopes: Array, weight: Array
) -> InitialStateSystem:
    """Return the system that eliminates the first states from a block whose residual has these slopes and weights."""
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
    """Return the reweighted normal equations of a block; ``damping`` raises the diagonal by that part (Marquardt)."""
    columns, channels = problem.blocks[block].columns, problem.blocks[block].channels
    residual = here.residual[..., channels]
    present = ~np.isnan(residual)
    error = np.where(present, residual, 0.0)
    weight = np.where(present, 1.0 / np.maximum(np.abs(error), 1.0), 0.0) * problem.frame_weight[channels]
    slopes = np.where(present[..., None], here.jacobians[block], 0.0)
    pull = problem.prior_weight / problem.sd[columns] ** 2
    matrix = np.einsum("efcp,efc,efcq->pq", slopes, weight, slopes, optimize=True) + np.diag(pull)
    matrix += damping * np.diag(np.diag(matrix))
    gradient = np.einsum("efcp,efc->p", slopes, weight * error) + pull * (here.point - problem.centre)[columns]
    if not len(problem.local_sd):
        return NormalEquations(matrix=matrix, gradient=gradient, recover=lambda _: np.zeros_like(here.local))
    own, inner, cross = build_initial_state_system(problem, here, block, slopes, weight)
    inner = inner + damping * inner * np.eye(len(problem.local_sd))
    own_pull = problem.local_weight / problem.local_sd**2
    slope = np.einsum("efcm,efc->em", own, weight * error) + own_pull * here.local
    solved = np.linalg.solve(inner, np.concatenate([cross, slope[..., None]], axis=-1))
    return NormalEquations(
        matrix=matrix - np.einsum("emp,emq->pq", cross, solved[..., :-1]),
        gradient=gradient - np.einsum("emp,em->p", cross, solved[..., -1]),
        recover=lambda move: -solved[..., -1] - solved[..., :-1] @ move,
    )


def eliminate_initial_states(problem: FitProblem, here: Linearization, block: int) -> Array:
    """Return a block's residual slopes after eliminating the first states, ``(nwindow, nframe, nchannel, p)``.

    The part of a parameter's effect that the window's first state can explain is removed. Frames without measurement
    are 0.
    """
    channels = problem.blocks[block].channels
    residual = here.residual[..., channels]
    slopes = np.where(np.isnan(residual)[..., None], 0.0, here.jacobians[block])
    if not len(problem.local_sd):
        return slopes
    weight = 1.0 / np.maximum(np.abs(np.nan_to_num(residual)), 1.0) * problem.frame_weight[channels]
    own, inner, cross = build_initial_state_system(problem, here, block, slopes, weight)
    return slopes - np.einsum("efcm,emp->efcp", own, np.linalg.solve(inner, cross), optimize=True)
