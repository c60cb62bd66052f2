"""Compute each frame's contribution to gradient and curvature of a fit's loss, and group frames into clusters.

The uncertainty of a fit is computed from the variation between these clusters, which are independent of each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.identify.problem import FitProblem, Linearization, build_initial_state_system
from twinloop.stats import block_frames, integrated_time, time_blocks

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class FrameScores:
    """Derivatives of the loss of one block with p parameters at a point, frame by frame.

    The initial state of each window has m corrected coordinates. They are eliminated: for each value of the parameters
    they take their optimal value.

    Attributes:
        slopes: Derivatives of the residual with respect to the parameters, with the initial states eliminated,
            ``(nwindow, nframe, nchannel, p)``; 0 at missing measurements.
        loss_gradient: First derivative of the loss with respect to the residual, times the frame's weight,
            ``(nwindow, nframe, nchannel)``.
        loss_curvature: Second derivative of the loss with respect to the residual, times the frame's weight, same
            shape.
        prior_gradient: Contribution of the initial states' prior to the gradient, ``(nwindow, p)``.
        prior_curvature: Contribution of the initial states' prior to the second derivative, ``(nwindow, p, p)``.
        penalty: Second derivative of the parameters' prior, ``(p, p)``.
        penalty_gradient: Gradient of the parameters' prior, ``(p,)``.
        first_state_slope: Derivatives of the optimal initial states with respect to the parameters, ``(nwindow, m,
            p)``.
        first_state_step: Newton step of the initial states if the parameters do not change, ``(nwindow, m)``.
    """

    slopes: Array
    loss_gradient: Array
    loss_curvature: Array
    prior_gradient: Array
    prior_curvature: Array
    penalty: Array
    penalty_gradient: Array
    first_state_slope: Array
    first_state_step: Array

    @property
    def gradient(self) -> Array:
        """Gradient of the loss excluding the parameters' prior, ``(p,)``."""
        return np.einsum("efcp,efc->p", self.slopes, self.loss_gradient, optimize=True) + self.prior_gradient.sum(
            axis=0
        )

    @property
    def curvature(self) -> Array:
        """Second derivative of the loss with respect to the parameters, excluding their prior, ``(p, p)``.

        The corrections of the windows' initial states are eliminated (Schur complement).
        """
        own = np.einsum("efcp,efc,efcq->pq", self.slopes, self.loss_curvature, self.slopes, optimize=True)
        return own + self.prior_curvature.sum(axis=0)

    @property
    def frame_gradients(self) -> Array:
        """Contribution of each frame to the gradient of the loss, ``(nwindow, nframe, p)``.

        The prior of a window's initial state counts as part of the window's first frame.
        """
        frames = np.einsum("efcp,efc->efp", self.slopes, self.loss_gradient, optimize=True)
        frames[:, 0] += self.prior_gradient
        return frames

    def sum_by_cluster(self, labels: NDArray[np.intp]) -> tuple[Array, Array]:
        """Sum the loss derivatives with respect to the p parameters over the frames of each of C clusters.

        Args:
            labels: Cluster number of each frame from 0, ``(nwindow, nframe)``.

        Returns:
            The second derivatives of the loss ``(C, p, p)`` and its gradients ``(C, p)``.
        """
        count, p = int(labels.max()) + 1, self.slopes.shape[-1]
        gradients = np.zeros((count, p))
        np.add.at(gradients, labels, self.frame_gradients)
        curvatures = np.zeros((count, p, p))
        np.add.at(curvatures, labels[:, 0], self.prior_curvature)
        rows = (np.sqrt(self.loss_curvature)[..., None] * self.slopes).reshape(labels.size, -1, p)
        order = np.argsort(labels, axis=None, kind="stable")
        edges = np.flatnonzero(np.diff(labels.ravel()[order])) + 1
        for frames in np.split(order, edges):
            flat = rows[frames].reshape(-1, p)
            curvatures[labels.ravel()[frames[0]]] += flat.T @ flat
        return curvatures, gradients


def frame_scores(problem: FitProblem, here: Linearization, block: int, weights: Array | None = None) -> FrameScores:
    """Compute first and second derivatives of a block's Huber loss frame by frame, with the shapes of `FrameScores`.

    Residuals beyond the Huber width add a constant gradient and no second derivative.

    Args:
        problem: Least-squares problem of the fit.
        here: Linearization at the point of interest.
        block: Index of the block of jointly solved parameters.
        weights: Factor of each frame's loss, ``(nwindow, nframe)``, such as the number of times that a bootstrap draws
            the frame; by default 1.
    """
    columns, channels = problem.blocks[block].columns, problem.blocks[block].channels
    residual = here.residual[..., channels]
    present = ~np.isnan(residual)
    error = np.where(present, residual, 0.0)
    weight = np.where(present, problem.frame_weight[channels], 0.0)
    if weights is not None:
        weight = weight * weights[..., None]
    pull = np.clip(error, -1.0, 1.0) * weight
    bend = np.where(np.abs(error) <= 1.0, weight, 0.0)
    slopes = np.where(present[..., None], here.jacobians[block], 0.0)
    m, p = len(problem.local_sd), len(columns)
    follow, settle = np.zeros((len(slopes), m, p)), np.zeros((len(slopes), m))
    local_pull, local_bend = np.zeros((len(slopes), p)), np.zeros((len(slopes), p, p))
    if m:
        own, inner, cross = build_initial_state_system(problem, here, block, slopes, bend)
        local_penalty = np.diag(problem.local_weight / problem.local_sd**2)
        local_gradient = np.einsum("efcm,efc->em", own, pull, optimize=True) + here.local @ local_penalty
        solved = np.asarray(
            np.linalg.solve(inner, np.concatenate([cross, local_gradient[..., None]], axis=-1)), dtype=np.float64
        )
        follow, settle = -solved[..., :-1], -solved[..., -1]
        slopes = slopes + np.einsum("efcm,emp->efcp", own, follow, optimize=True)
        local_pull = np.einsum("emp,em->ep", follow, here.local @ local_penalty)
        local_bend = np.einsum("emp,mn,enq->epq", follow, local_penalty, follow)
    prior_curvature = problem.prior_weight / problem.sd[columns] ** 2
    return FrameScores(
        slopes=slopes,
        loss_gradient=pull,
        loss_curvature=bend,
        prior_gradient=local_pull,
        prior_curvature=local_bend,
        penalty=np.diag(prior_curvature),
        penalty_gradient=prior_curvature * (here.point - problem.centre)[columns],
        first_state_slope=follow,
        first_state_step=settle,
    )


# With fewer clusters than this many per parameter a sandwich is nearly singular.
_PER_PARAMETER = 2


@dataclass(frozen=True, kw_only=True)
class FrameTimes:
    """Times of the frames of windows.

    Attributes:
        start_times: Time of each window's first frame in its episode, ``(nwindow,)``, s.
        dt: Time between frames, s.
    """

    start_times: Array
    dt: float


@dataclass(frozen=True, kw_only=True)
class FrameClusters:
    """Clusters of frames; frames of different clusters count as independent.

    Attributes:
        kind: Whether a cluster is an episode or a block of time.
        labels: Cluster number of each frame from 0, ``(nwindow, nframe)``.
        length: Length of the time blocks, s; 0 for episodes.
        correlated: Integrated autocorrelation time of each frame's contribution to a parameter's error, s; the longest
            of all parameters.
        independent: Number of effectively independent frames: the measured duration divided by ``correlated``.
        has_few_clusters: Whether there are fewer than twice as many clusters as parameters.
    """

    kind: Literal["episode", "time block"]
    labels: NDArray[np.intp]
    length: float
    correlated: float
    independent: float
    has_few_clusters: bool

    @property
    def count(self) -> int:
        """Number of clusters."""
        return int(self.labels.max()) + 1


def choose_clusters(
    influences: Sequence[Array], present: NDArray[np.bool_], owners: NDArray[np.intp], times: FrameTimes
) -> FrameClusters | None:
    """Choose the clusters of frames for the uncertainty of a fit: episodes, or time blocks of episodes.

    Time blocks are used if there are fewer than two episodes per parameter, and more time blocks than episodes. Their
    length is a multiple of the integrated autocorrelation time, see `stats.series.block_frames`.

    Args:
        influences: For each group of jointly solved parameters (`ParameterBlock`), each frame's contribution to each
            parameter's error, ``(nwindow, nframe, p)``. The largest group determines how many clusters are needed.
        present: Mask of the frames with a measurement, ``(nwindow, nframe)``.
        owners: Index of each window's episode from 0, ``(nwindow,)``.
        times: Times of the windows in their episodes.

    Returns:
        The clusters, or None for a single episode that is too short to be cut into time blocks.
    """
    least_count = _PER_PARAMETER * max(influence.shape[-1] for influence in influences)
    episodes = int(owners.max()) + 1
    frames = float(present.sum())
    tau = max(float(np.max(integrated_time(_influence_series(each, owners, times)))) for each in influences)
    correlation = {"correlated": tau * times.dt, "independent": frames / tau}
    whole = np.repeat(owners[:, None], present.shape[1], axis=1)
    if episodes < least_count:
        length = block_frames(frames, tau)
        if length is not None:
            labels = time_blocks(times.start_times, present.shape[1], times.dt, owners, length * times.dt)
            labels = _renumber_blocks(labels, present)
            count = int(labels.max()) + 1
            if count > episodes:
                length_s = length * times.dt
                return FrameClusters(
                    kind="time block",
                    labels=labels,
                    length=length_s,
                    has_few_clusters=count < least_count,
                    **correlation,
                )
    if episodes == 1:
        return None
    return FrameClusters(
        kind="episode", labels=whole, length=0.0, has_few_clusters=episodes < least_count, **correlation
    )


def _influence_series(influence: Array, owners: NDArray[np.intp], times: FrameTimes) -> list[Array]:
    """Return the influence of the frames of each episode in order of time, ``(ntime, p)`` for ntime frames.

    The influences of frames at the same time in overlapping windows are summed.

    Args:
        influence: Each frame's contribution to each parameter's error, ``(nwindow, nframe, p)``.
        owners: Index of each window's episode from 0, ``(nwindow,)``.
        times: Begin times of the windows.
    """
    tracks = []
    for owner in np.unique(owners):
        rows = owners == owner
        begin = np.round((times.start_times[rows] - times.start_times[rows].min()) / times.dt).astype(np.intp)
        at = begin[:, None] + np.arange(influence.shape[1])
        track = np.zeros((int(at.max()) + 1, influence.shape[-1]))
        np.add.at(track, at, influence[rows])
        tracks.append(track)
    return tracks


def _renumber_blocks(labels: NDArray[np.intp], present: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Renumber from 0 the time blocks that have measurements.

    Frames without a measurement are assigned to their window's first block.

    Args:
        labels: Block number of each frame, ``(nwindow, nframe)``.
        present: Mask of the frames with a measurement, ``(nwindow, nframe)``.
    """
    assigned = np.where(present, labels, labels[:, :1])
    return np.unique(assigned, return_inverse=True)[1].reshape(labels.shape)
