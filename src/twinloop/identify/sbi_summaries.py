"""Compute summary statistics of a log for simulation-based inference: scores at the estimate, residual summaries.

Readings minus those at the estimate are whitened by the noise's autocorrelation. Their projection on the slopes, with
first states eliminated, is one Gauss–Newton step of the parameters. To first order it contains all information of the
readings about the parameters (Alsing & Wandelt, MNRAS Letters 476, 2018). Far from the estimate it is no longer an
estimate but still a summary: the loss of information there widens a posterior and does not bias it. Five statistics of
each channel's residuals judge the twin alone: mean, log size, and the correlations from frame to frame, with the sign
of the speed (friction), and with the position (stiffness, gravity).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from twinloop.core.distribution import ResidualNoise
from twinloop.identify.assembly import FitSpace, fit_problem
from twinloop.identify.bands import residual_noise
from twinloop.identify.config import FitConfig
from twinloop.identify.problem import Linearization, linearize, normal_equations
from twinloop.simulate import Backend
from twinloop.simulate.replay_logs import ReplayLogs

Array = NDArray[np.float64]

_LOCAL_STEPS = 2  # Gauss–Newton steps of the first states, at the fit's parameters
LEFT = ("mean", "size", "frame to frame", "sign of speed", "place")


@dataclass(frozen=True, kw_only=True)
class SummaryStatistics:
    """Function from readings to summaries, linearized at one point.

    ``centre`` ``(nwindow, nframe, nchannel)`` are the readings at the estimate without corrections of first states.
    ``slopes`` ``(…, p)`` and ``starts`` ``(…, m)`` are whitened; they are 0 at missing measurements and in a window's
    first frame, from which the replay starts. ``prior`` ``(p,)`` and ``local_sd`` are prior standard deviations.
    """

    centre: Array
    slopes: Array
    starts: Array
    present: NDArray[np.bool_]
    noise: ResidualNoise
    prior: Array
    local_sd: Array

    def __call__(self, readings: Array) -> tuple[Array, Array]:
        """Return scores ``(p,)`` and residual summaries ``(5 nchannel,)`` of one world's readings.

        The readings have shape ``(nwindow, nframe, nchannel)``. Scores are steps s in standard errors, as asinh(s),
        which keeps their order and limits outliers.
        """
        white = whiten(readings - self.centre, self.noise, self.present)
        inner, cross, solved, covariance = self._elimination
        starts = np.linalg.solve(inner, np.einsum("efcm,efc->em", self.starts, white)[..., None])[..., 0]
        score = np.einsum("efcp,efc->p", self.slopes, white) - np.einsum("emp,em->p", cross, starts)
        step = covariance @ score
        left = white - self.slopes @ step - np.einsum("efcm,em->efc", self.starts, starts - solved @ step)
        return np.arcsinh(step / np.sqrt(np.diag(covariance))), self._summarize_residuals(left)

    @cached_property
    def _elimination(self) -> tuple[Array, Array, Array, Array]:
        """Normal matrix of the first states, cross terms, their solution, and the parameters' covariance."""
        inner = np.einsum("efcm,efcn->emn", self.starts, self.starts, optimize=True) + np.diag(self.local_sd**-2.0)
        cross = np.einsum("efcm,efcp->emp", self.starts, self.slopes, optimize=True)
        solved = np.linalg.solve(inner, cross)
        fisher = np.einsum("efcp,efcq->pq", self.slopes, self.slopes, optimize=True)
        fisher -= np.einsum("emp,emq->pq", cross, solved)
        return inner, cross, solved, np.linalg.inv(fisher + np.diag(self.prior**-2.0))

    @property
    def covariance(self) -> Array:
        """First-order covariance of the parameters, under the noise and the prior, ``(p, p)``."""
        return self._elimination[3]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the residual summaries."""
        return tuple(f"{what} of {channel}" for channel in self.noise.channels for what in LEFT)

    def _summarize_residuals(self, left: Array) -> Array:
        figures = []
        for j in range(left.shape[-1]):
            seen = self.present[..., j]
            rest, both = left[..., j], seen[:, 1:] & seen[:, :-1]
            speed, place = np.gradient(self.centre[..., j], axis=1)[seen], self.centre[..., j][seen]
            size = max(float(np.sqrt(np.mean(rest[seen] ** 2))), 1e-12)
            ahead = float(np.mean((rest[:, 1:] * rest[:, :-1])[both])) / size**2
            probes = [_correlation(rest[seen], each, size) for each in (np.sign(speed), place - place.mean())]
            figures += [float(np.mean(rest[seen])) / size, float(np.log(size)), ahead, *probes]
        return np.array(figures)


def whiten(values: Array, noise: ResidualNoise, present: NDArray[np.bool_]) -> Array:
    """Return the innovations of AR(1) noise along the frames of ``(nwindow, nframe, c)``, in standard deviations.

    After a missing frame the value itself is used, in units of the noise. Missing measurements give 0.
    """
    clean = np.where(present, values, 0.0)
    before = np.zeros_like(clean)
    before[:, 1:] = clean[:, :-1]
    follows = np.zeros_like(present)
    follows[:, 1:] = present[:, 1:] & present[:, :-1]
    fresh = (clean - noise.rho * before) / (noise.sd * np.sqrt(1.0 - noise.rho**2))
    return np.where(present, np.where(follows, fresh, clean / noise.sd), 0.0)


def build_summaries(
    backend: Backend, logs: ReplayLogs, space: FitSpace, point: Array, config: FitConfig
) -> SummaryStatistics:
    """Return the summary function at a fit's estimate ``point`` ``(p,)``, with the fit's residual noise."""
    problem = fit_problem(backend, logs, space, point, replace(config, coupled=True))
    here = linearize(problem, point, alone=True)
    first = here.residual * problem.width + logs.measured
    for _ in range(_LOCAL_STEPS * bool(logs.nlocal)):
        local = here.local + normal_equations(problem, here, 0).recover(np.zeros(len(point)))
        here = linearize(problem, point, local, alone=True)
    noise = residual_noise(logs, here.residual * problem.width)
    present = ~np.isnan(logs.measured)
    present[:, 0] = False
    return SummaryStatistics(
        centre=np.where(present, first, 0.0),
        slopes=_whiten_slopes(here, here.jacobians[0], problem.width, noise, present),
        starts=_whiten_slopes(here, here.local_jacobian, problem.width, noise, present),
        present=present,
        noise=noise,
        prior=space.column("sd"),
        local_sd=logs.start.sd,
    )


def _whiten_slopes(
    here: Linearization, slopes: Array, width: Array, noise: ResidualNoise, present: NDArray[np.bool_]
) -> Array:
    columns = [whiten(slopes[..., k] * width, noise, present) for k in range(slopes.shape[-1])]
    return np.stack(columns, axis=-1) if columns else np.zeros((*here.residual.shape, 0))


def _correlation(values: Array, probe: Array, size: float) -> float:
    spread = float(np.sqrt(np.mean(probe**2)))
    return float(np.mean(values * probe)) / (size * spread) if spread > 0 else 0.0
