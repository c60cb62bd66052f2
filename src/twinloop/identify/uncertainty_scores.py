"""What every frame adds to the gradient and to the curvature of a fit's loss, with first states following along."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.identify.problem import Linearization, Problem, local_system

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Scores:
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


def frame_scores(problem: Problem, here: Linearization, block: int, weights: Array | None = None) -> Scores:
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
    return Scores(
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
