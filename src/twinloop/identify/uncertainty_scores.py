"""What every frame adds to the gradient and curvature of a fit's loss, and which frames count as independent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.identify.problem import FitProblem, Linearization, local_system
from twinloop.stats import block_frames, integrated_time, time_blocks

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class FrameScores:
    """One block's loss, frame by frame, at a point.

    ``slopes`` ``(nwindow, nframe, nchannel, p)`` are those of the residual with each window's first state eliminated,
    0 where nothing was measured; ``pull`` ``(nwindow, nframe, nchannel)`` is the loss's derivative by the residual,
    ``bend`` its second derivative, both with the frame's weight. ``local_pull`` ``(nwindow, p)`` and ``local_bend``
    ``(nwindow, p, p)`` are what the prior of the first states adds to gradient and curvature; ``penalty`` ``(p, p)``
    and ``drawn`` ``(p,)`` are the curvature and the gradient of the parameters' own prior. ``follow`` ``(nwindow, m,
    p)`` and ``settle`` ``(nwindow, m)`` say how first states move: settle + follow · move.
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
        """Of the loss without the prior, ``(p,)``."""
        return np.einsum("efcp,efc->p", self.slopes, self.pull, optimize=True) + self.local_pull.sum(axis=0)

    @property
    def curvature(self) -> Array:
        """Second derivative of the loss without the prior, ``(p, p)``, first states eliminated."""
        own = np.einsum("efcp,efc,efcq->pq", self.slopes, self.bend, self.slopes, optimize=True)
        return own + self.local_bend.sum(axis=0)

    @property
    def per_frame(self) -> Array:
        """The gradient frame by frame, ``(nwindow, nframe, p)``; a first state's prior counts in the first."""
        frames = np.einsum("efcp,efc->efp", self.slopes, self.pull, optimize=True)
        frames[:, 0] += self.local_pull
        return frames

    def by_cluster(self, labels: NDArray[np.intp]) -> tuple[Array, Array]:
        """Curvature ``(C, p, p)`` and gradient ``(C, p)`` of each cluster; ``labels`` ``(nwindow, nframe)`` from 0."""
        count, p = int(labels.max()) + 1, self.slopes.shape[-1]
        gradients = np.zeros((count, p))
        np.add.at(gradients, labels, self.per_frame)
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
    """Gradient and curvature of Huber's own loss: frames beyond its width pull by their weight and do not bend.

    Args:
        problem: the fit.
        here: where it is looked at.
        block: number of the block.
        weights: how often each frame counts, ``(nwindow, nframe)``; None for once.
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
        own, inner, cross = local_system(problem, here, block, slopes, bend)
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
    """When each window begins, ``(nwindow,)`` in s of its episode, and the time between frames ``dt`` in s."""

    begins: Array
    dt: float


@dataclass(frozen=True, kw_only=True)
class FrameClusters:
    """Which frames belong together.

    ``labels`` ``(nwindow, nframe)`` number the clusters from 0; ``length`` is that of time blocks in s, 0 for episodes.
    ``correlated`` is over how many s the influence of frames on the slowest parameter is correlated, ``independent``
    how many such stretches there are. ``few`` says that there are fewer than twice as many clusters as parameters.
    """

    kind: Literal["episode", "time block"]
    labels: NDArray[np.intp]
    length: float
    correlated: float
    independent: float
    few: bool

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.labels.max()) + 1


def choose_clusters(
    influences: Sequence[Array], present: NDArray[np.bool_], owners: NDArray[np.intp], times: FrameTimes
) -> FrameClusters | None:
    """Episodes where there are two for each parameter, else time blocks where these are more.

    Args:
        influences: what each frame adds to the error of each parameter, ``(nwindow, nframe, p)`` for every block of a
            fit; the block with most parameters decides.
        present: frames with a measurement, ``(nwindow, nframe)``.
        owners: number of each window's episode from 0, ``(nwindow,)``.
        times: when windows begin.

    Returns:
        None for a single episode that is too short to be cut.
    """
    wanted = _PER_PARAMETER * max(influence.shape[-1] for influence in influences)
    episodes = int(owners.max()) + 1
    frames = float(present.sum())
    tau = max(float(np.max(integrated_time(_tracks(each, owners, times)))) for each in influences)
    said = {"correlated": tau * times.dt, "independent": frames / tau}
    whole = np.repeat(owners[:, None], present.shape[1], axis=1)
    if episodes < wanted:
        length = block_frames(frames, tau)
        if length is not None:
            labels = time_blocks(times.begins, present.shape[1], times.dt, owners, length * times.dt)
            labels = _occupied(labels, present)
            count = int(labels.max()) + 1
            if count > episodes:
                length_s = length * times.dt
                return FrameClusters(kind="time block", labels=labels, length=length_s, few=count < wanted, **said)
    if episodes == 1:
        return None
    return FrameClusters(kind="episode", labels=whole, length=0.0, few=episodes < wanted, **said)


def _tracks(influence: Array, owners: NDArray[np.intp], times: FrameTimes) -> list[Array]:
    """The influence of each episode's frames in order of time; windows that overlap add up."""
    tracks = []
    for owner in np.unique(owners):
        rows = owners == owner
        begin = np.round((times.begins[rows] - times.begins[rows].min()) / times.dt).astype(np.intp)
        at = begin[:, None] + np.arange(influence.shape[1])
        track = np.zeros((int(at.max()) + 1, influence.shape[-1]))
        np.add.at(track, at, influence[rows])
        tracks.append(track)
    return tracks


def _occupied(labels: NDArray[np.intp], present: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Blocks in which something was measured, renumbered; frames past a window's end go with its first block."""
    kept = np.where(present, labels, labels[:, :1])
    return np.unique(kept, return_inverse=True)[1].reshape(labels.shape)
