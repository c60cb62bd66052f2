"""Compute single frames' contributions to gradient and curvature of a fit's loss, and choose clusters of frames."""

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
    """Derivatives of one block's loss at a point, frame by frame.

    ``slopes`` ``(nwindow, nframe, nchannel, p)`` are those of the residual with each window's first state eliminated, 0
    at missing measurements. ``pull`` ``(nwindow, nframe, nchannel)`` and ``bend`` are first and second derivative of
    the loss by the residual, both multiplied by the frame's weight. ``local_pull`` ``(nwindow, p)`` and ``local_bend``
    ``(nwindow, p, p)`` are the contributions of the first states' prior to gradient and curvature. ``penalty`` ``(p,
    p)`` and ``drawn`` ``(p,)`` are curvature and gradient of the parameters' own prior. ``follow`` ``(nwindow, m, p)``
    and ``settle`` ``(nwindow, m)`` define the step of the first states: settle + follow · step.
    """

    slopes: Array
    pull: Array
    bend: Array
    local_pull: Array
    local_bend: Array
    penalty: Array
    drawn: Array
    follow: Array
    settle: Array

    @property
    def gradient(self) -> Array:
        """Gradient of the loss without the prior, ``(p,)``."""
        return np.einsum("efcp,efc->p", self.slopes, self.pull, optimize=True) + self.local_pull.sum(axis=0)

    @property
    def curvature(self) -> Array:
        """Second derivative of the loss without the prior, ``(p, p)``, first states eliminated."""
        own = np.einsum("efcp,efc,efcq->pq", self.slopes, self.bend, self.slopes, optimize=True)
        return own + self.local_bend.sum(axis=0)

    @property
    def frame_gradients(self) -> Array:
        """Gradient of each frame, ``(nwindow, nframe, p)``; a window's first frame includes its first state's prior."""
        frames = np.einsum("efcp,efc->efp", self.slopes, self.pull, optimize=True)
        frames[:, 0] += self.local_pull
        return frames

    def sum_by_cluster(self, labels: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return curvature ``(C, p, p)`` and gradient ``(C, p)`` per cluster of ``labels`` ``(nwindow, nframe)``."""
        count, p = int(labels.max()) + 1, self.slopes.shape[-1]
        gradients = np.zeros((count, p))
        np.add.at(gradients, labels, self.frame_gradients)
        curvatures = np.zeros((count, p, p))
        np.add.at(curvatures, labels[:, 0], self.local_bend)
        rows = (np.sqrt(self.bend)[..., None] * self.slopes).reshape(labels.size, -1, p)
        order = np.argsort(labels, axis=None, kind="stable")
        edges = np.flatnonzero(np.diff(labels.ravel()[order])) + 1
        for frames in np.split(order, edges):
            flat = rows[frames].reshape(-1, p)
            curvatures[labels.ravel()[frames[0]]] += flat.T @ flat
        return curvatures, gradients


def frame_scores(problem: FitProblem, here: Linearization, block: int, weights: Array | None = None) -> FrameScores:
    """Return gradient and curvature of Huber's loss: residuals beyond its width add constant gradient and no curvature.

    Args:
        problem: the fit.
        here: linearization at the point of interest.
        block: index of the block.
        weights: multiplicity of each frame, ``(nwindow, nframe)``; by default 1.
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
        firm = np.diag(problem.local_weight / problem.local_sd**2)
        toward = np.einsum("efcm,efc->em", own, pull, optimize=True) + here.local @ firm
        solved = np.asarray(
            np.linalg.solve(inner, np.concatenate([cross, toward[..., None]], axis=-1)), dtype=np.float64
        )
        follow, settle = -solved[..., :-1], -solved[..., -1]
        slopes = slopes + np.einsum("efcm,emp->efcp", own, follow, optimize=True)
        local_pull = np.einsum("emp,em->ep", follow, here.local @ firm)
        local_bend = np.einsum("emp,mn,enq->epq", follow, firm, follow)
    firmness = problem.prior_weight / problem.sd[columns] ** 2
    return FrameScores(
        slopes=slopes,
        pull=pull,
        bend=bend,
        local_pull=local_pull,
        local_bend=local_bend,
        penalty=np.diag(firmness),
        drawn=firmness * (here.point - problem.centre)[columns],
        follow=follow,
        settle=settle,
    )


# With fewer clusters than this many per parameter a sandwich is nearly singular.
_PER_PARAMETER = 2


@dataclass(frozen=True, kw_only=True)
class FrameTimes:
    """Begin of each window, ``(nwindow,)`` in s of its episode, and the time between frames ``dt`` in s."""

    begins: Array
    dt: float


@dataclass(frozen=True, kw_only=True)
class FrameClusters:
    """Clusters of frames that are not independent of each other.

    ``labels`` ``(nwindow, nframe)`` are cluster numbers from 0. ``length`` is that of time blocks in s, 0 for episodes.
    ``correlated`` is the time in s over which frames' influence on the slowest parameter is correlated; ``independent``
    is the number of such stretches. ``few`` states that there are fewer than twice as many clusters as parameters.
    """

    kind: Literal["episode", "time block"]
    labels: NDArray[np.intp]
    length: float
    correlated: float
    independent: float
    few: bool

    @property
    def count(self) -> int:
        """Number of clusters."""
        return int(self.labels.max()) + 1


def choose_clusters(
    influences: Sequence[Array], present: NDArray[np.bool_], owners: NDArray[np.intp], times: FrameTimes
) -> FrameClusters | None:
    """Choose episodes as clusters if there are two per parameter; otherwise time blocks if these are more.

    Args:
        influences: each frame's contribution to each parameter's error, ``(nwindow, nframe, p)`` for every block of a
            fit; the block with most parameters decides.
        present: frames with a measurement, ``(nwindow, nframe)``.
        owners: index of each window's episode from 0, ``(nwindow,)``.
        times: begin times of the windows.

    Returns:
        None for a single episode that is too short to be cut.
    """
    wanted = _PER_PARAMETER * max(influence.shape[-1] for influence in influences)
    episodes = int(owners.max()) + 1
    frames = float(present.sum())
    tau = max(float(np.max(integrated_time(_influence_series(each, owners, times)))) for each in influences)
    said = {"correlated": tau * times.dt, "independent": frames / tau}
    whole = np.repeat(owners[:, None], present.shape[1], axis=1)
    if episodes < wanted:
        length = block_frames(frames, tau)
        if length is not None:
            labels = time_blocks(times.begins, present.shape[1], times.dt, owners, length * times.dt)
            labels = _renumber_blocks(labels, present)
            count = int(labels.max()) + 1
            if count > episodes:
                length_s = length * times.dt
                return FrameClusters(kind="time block", labels=labels, length=length_s, few=count < wanted, **said)
    if episodes == 1:
        return None
    return FrameClusters(kind="episode", labels=whole, length=0.0, few=episodes < wanted, **said)


def _influence_series(influence: Array, owners: NDArray[np.intp], times: FrameTimes) -> list[Array]:
    """Return the influence of each episode's frames in order of time; overlapping windows are summed."""
    tracks = []
    for owner in np.unique(owners):
        rows = owners == owner
        begin = np.round((times.begins[rows] - times.begins[rows].min()) / times.dt).astype(np.intp)
        at = begin[:, None] + np.arange(influence.shape[1])
        track = np.zeros((int(at.max()) + 1, influence.shape[-1]))
        np.add.at(track, at, influence[rows])
        tracks.append(track)
    return tracks


def _renumber_blocks(labels: NDArray[np.intp], present: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Renumber the blocks that have measurements; missing frames are assigned to their window's first block."""
    kept = np.where(present, labels, labels[:, :1])
    return np.unique(kept, return_inverse=True)[1].reshape(labels.shape)
