"""Compute summary statistics of a log for simulation-based inference: scores at the estimate, and residual statistics.

The summaries of a world's readings start from their difference to the readings at the estimate. This difference is
whitened by the autocorrelation of the noise. One Gauss–Newton step computes the change of the parameters, and of the
initial states of the windows (parts of episodes), that explains the whitened difference best. The scores are the
parameters' part of this step.

To first order the scores contain all information of the readings about the parameters (Alsing & Wandelt, MNRAS Letters
476, 2018). Far from the estimate they lose information: a posterior then becomes wider, but not biased.

Five statistics of each channel's residuals test the twin itself: mean, logarithm of the size, correlation from frame to
frame, correlation with the sign of the speed (friction), and correlation with the position (stiffness, gravity).
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
    """Function from readings to summary statistics, linearized at the estimate of a fit.

    Shapes use p for parameters and m for corrected coordinates of a window's initial state.

    Attributes:
        centre: Readings at the estimate, without corrections of initial states, ``(nwindow, nframe, nchannel)``.
        slopes: Whitened derivatives with respect to parameters, ``(nwindow, nframe, nchannel, p)``; 0 where not
            ``present``.
        starts: Whitened derivatives with respect to the windows' initial states, ``(nwindow, nframe, nchannel, m)``; 0
            where not ``present``.
        present: Mask of measured readings, ``(nwindow, nframe, nchannel)``, excluding the first frame of a window, from
            which the replay starts.
        noise: Residual noise.
        prior: Prior standard deviations of the parameters, ``(p,)``.
        local_sd: Prior standard deviations of the initial states, ``(m,)``.
    """

    centre: Array
    slopes: Array
    starts: Array
    present: NDArray[np.bool_]
    noise: ResidualNoise
    prior: Array
    local_sd: Array

    def __call__(self, readings: Array) -> tuple[Array, Array]:
        """Compute the summaries of one world's readings ``(nwindow, nframe, nchannel)``.

        Returns:
            Scores ``(p,)`` and residual statistics ``(5 nchannel,)``. A score is the Gauss–Newton step s of a parameter
            in standard errors, as asinh(s), which keeps the order and limits outliers. The statistics describe the
            whitened residuals that remain after the step. For each channel they are: mean divided by root mean square,
            logarithm of the root mean square, correlation of successive frames, correlation with the sign of the
            channel's rate of change at the estimate, and correlation with the channel's reading at the estimate.
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
        """Matrices that eliminate the initial states of the windows (nuisance parameters) from the normal equations.

        They are the normal matrix N of the initial states ``(nwindow, m, m)``, its cross terms C with the parameters
        ``(nwindow, m, p)``, N⁻¹ C, and the covariance of the parameters ``(p, p)``, for p parameters and m corrected
        coordinates of an initial state.
        """
        inner = np.einsum("efcm,efcn->emn", self.starts, self.starts, optimize=True) + np.diag(self.local_sd**-2.0)
        cross = np.einsum("efcm,efcp->emp", self.starts, self.slopes, optimize=True)
        solved = np.linalg.solve(inner, cross)
        fisher = np.einsum("efcp,efcq->pq", self.slopes, self.slopes, optimize=True)
        fisher -= np.einsum("emp,emq->pq", cross, solved)
        return inner, cross, solved, np.linalg.inv(fisher + np.diag(self.prior**-2.0))

    @property
    def covariance(self) -> Array:
        """Posterior covariance of the p parameters in the linearized model, with its noise and prior, ``(p, p)``."""
        return self._elimination[3]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the residual statistics (five per channel), in the order in which they are returned."""
        return tuple(f"{statistic} of {channel}" for channel in self.noise.channels for statistic in LEFT)

    def _summarize_residuals(self, left: Array) -> Array:
        metrics = []
        for j in range(left.shape[-1]):
            seen = self.present[..., j]
            rest, both = left[..., j], seen[:, 1:] & seen[:, :-1]
            speed, place = np.gradient(self.centre[..., j], axis=1)[seen], self.centre[..., j][seen]
            size = max(float(np.sqrt(np.mean(rest[seen] ** 2))), 1e-12)
            ahead = float(np.mean((rest[:, 1:] * rest[:, :-1])[both])) / size**2
            correlations = [_correlation(rest[seen], each, size) for each in (np.sign(speed), place - place.mean())]
            metrics += [float(np.mean(rest[seen])) / size, float(np.log(size)), ahead, *correlations]
        return np.array(metrics)


def whiten(values: Array, noise: ResidualNoise, present: NDArray[np.bool_]) -> Array:
    """Return the innovations of AR(1) noise along the frames, in standard deviations.

    The innovation at a frame is its value minus the lag-1 autocorrelation times the value at the frame before. If the
    frame before is missing, it is the value divided by the standard deviation of the noise. Missing measurements give
    0.

    Args:
        values: Readings or derivatives, ``(nwindow, nframe, nchannel)``.
        noise: Standard deviation and lag-1 autocorrelation of each channel.
        present: Mask of the measured values, same shape.
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
    """Build the function that reduces replayed readings to summary statistics for simulation-based inference.

    It is linearized at a fit's estimate and uses the noise of the fit's residuals.

    Args:
        backend: The backend that simulates the replays.
        logs: The training windows.
        space: The free parameters.
        point: The estimate in solver coordinates (ln or SI), ``(p,)``.
        config: Configuration of the fit.
    """
    problem = fit_problem(backend, logs, space, point, replace(config, coupled=True))
    here = linearize(problem, point, separate_worlds=True)
    first = here.residual * problem.width + logs.measured
    for _ in range(_LOCAL_STEPS * bool(logs.nlocal)):
        local = here.local + normal_equations(problem, here, 0).recover(np.zeros(len(point)))
        here = linearize(problem, point, local, separate_worlds=True)
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
