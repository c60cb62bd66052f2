"""Estimate exposure, white balance, tone curve and shading of a camera from the colours of real images.

Pixels of simulated episodes are computed again with other camera values (`develop`) until their statistics match those
of the real images, on average over episodes. The statistics are quantiles of each colour, quantiles of the difference
between colours, and the brightness in rings around the image centre. Parameters are added one at a time, starting with
the one that explains most, as long as each explains enough (stepwise regression).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.special import stdtr, stdtrit

from twinloop.gap.vision.develop import CameraResponse, compute_display_values, scale_sensor_values, sensor_values
from twinloop.gap.vision.image_statistics import ImageStatistics, PixelSample, compute_colour_statistics
from twinloop.twin.quantities.sensing import CAMERA_SENSORS

Array = NDArray[np.float64]
CANDIDATES = (
    "exposure_compensation",
    "white_balance_red",
    "white_balance_blue",
    "saturation",
    "vignetting",
    "gamma",
    "contrast",
    "brightness",
)
_FLOOR = 0.5 / 255.0  # uncertainty of a mean level by rounding to 8 bits and by sampling its pixels
_RING_FLOOR = 0.01  # the same for a ring's share of light
_ENOUGH = 0.05  # part of the whole difference that a parameter must explain to be reported
_ALPHA = 0.01  # significance level of its change
_EPISODES = 32  # number of episodes that are developed again; more change the means by less than `_FLOOR`
_STEP = 1e-3  # step of numerical slopes; the parameters have ranges of about 1
_CLOSE = 1e-3  # margin to a parameter's bounds, of their width, for central differences


@dataclass(frozen=True, kw_only=True)
class ToneFit:
    """Fitted values of the camera parameters that were selected.

    Attributes:
        names: Names of the p parameters.
        values: Fitted values, shape ``(p,)``.
        low: Lower ends of the intervals, from the covariance of the fit.
        high: Upper ends of the intervals.
        p_values: p-values of no change of each parameter.
        explained: Share of the squared difference that is lost if the parameter is removed.
        remaining: Share of the squared difference that remains with all parameters.
    """

    names: tuple[str, ...]
    values: Array
    low: Array
    high: Array
    p_values: Array
    explained: Array
    remaining: float


class ToneProblem:
    """Least-squares fit of camera parameters to real image statistics, with simulated pixels as input.

    Args:
        real: Statistics of the real episodes.
        sim: Statistics of the simulated episodes.
        pixels: Sampled pixels of the simulated episodes, in the same order.
        camera: The camera that delivered the simulated images.
        level: Confidence level of the intervals.
    """

    def __init__(
        self,
        real: ImageStatistics,
        sim: ImageStatistics,
        pixels: Sequence[PixelSample],
        camera: CameraResponse,
        *,
        level: float = 0.95,
    ) -> None:
        self.camera, self.level = camera, level
        self._rows = [
            _stack_statistics(real.levels, real.chroma, real.rings),
            _stack_statistics(sim.levels, sim.chroma, sim.rings),
        ]
        self._difference = self._rows[0].mean(axis=0) - self._rows[1].mean(axis=0)
        self._floor = np.full(self._difference.shape, _FLOOR)
        self._floor[-real.rings.shape[1] :] = _RING_FLOOR
        self._parts = [np.cov(rows, rowvar=False) / len(rows) for rows in self._rows]
        self._scale = np.sqrt(np.diag(self._parts[0]) + np.diag(self._parts[1]) + self._floor**2)
        chosen = np.unique(np.linspace(0, len(pixels) - 1, min(len(pixels), _EPISODES)).astype(np.intp))
        self._radius2 = np.stack([pixels[i].radius2 for i in chosen])
        self._values = sensor_values(np.stack([pixels[i].values for i in chosen]), camera.model)
        self._base = self._simulate_statistics(camera)
        bounds = {q.quantity: (q.low, q.high) for q in CAMERA_SENSORS}
        self._bounds = {name: bounds[name] for name in CANDIDATES}

    @property
    def total_difference(self) -> float:
        """Squared difference of real and simulated statistics before any change, each divided by its standard error."""
        return float(np.sum((self._difference / self._scale) ** 2))

    def select_parameters(self) -> ToneFit:
        """Select the parameters that are worth changing, and return their joint fit.

        Forward selection can choose badly, because contrast and brightness together imitate exposure and gamma.
        Therefore parameter sets from backward elimination are fitted too. The set with the smallest sum of remaining
        difference and a fixed penalty per parameter is chosen. The parameters of the result are sorted by the share of
        the difference that each one closes. If no set is significant, the result is empty.
        """
        forward = self._select_forward()
        sets = [
            forward,
            *(s for s in self._eliminate_backward() if len(s) <= max(len(forward), 1) and set(s) != set(forward)),
        ]
        fits = [(names, *self.fit(names)) for names in sets if names]
        scored = sorted(
            (cost / self.total_difference + _ENOUGH * len(names), i) for i, (names, _, cost) in enumerate(fits)
        )
        for _, i in scored if forward else []:
            names, values, cost = fits[i]
            fitted = self._compute_intervals(names, values, cost)
            if np.all(fitted.p_values <= _ALPHA):
                return self._sort_parameters(fitted)
        none = np.empty(0)
        return ToneFit(names=(), values=none, low=none, high=none, p_values=none, explained=none, remaining=1.0)

    def _select_forward(self) -> list[str]:
        """Return the parameters chosen by forward selection.

        Each step adds the parameter that reduces the difference of colour statistics most. It stops if the reduction is
        below 5 % of the original difference or not significant.
        """
        names: list[str] = []
        remaining, start = self.total_difference, np.empty(0)
        while len(names) < len(CANDIDATES):
            tried = []
            for name in (name for name in CANDIDATES if name not in names):
                values, cost = self.fit([*names, name], np.append(start, self.camera.value(name)))
                tried.append((cost, name, values))
            cost, name, values = min(tried, key=lambda row: row[0])
            if (
                remaining - cost < _ENOUGH * self.total_difference
                or self._compute_intervals([*names, name], values, cost).p_values[-1] > _ALPHA
            ):
                break
            names.append(name)
            remaining, start = cost, values
        return names

    def _eliminate_backward(self) -> list[list[str]]:
        """Return parameter sets by backward elimination, one set after each removal of a parameter.

        It starts with all parameters. Each step removes the parameter whose removal increases the cost least. The cost
        is the squared difference of statistics, computed from the statistics linearized at the fit of all parameters.
        """
        names = list(CANDIDATES)
        values, _ = self.fit(names)
        slope, sets = self._compute_slopes(names, values), []
        target = slope @ (values - np.array([self.camera.value(name) for name in names])) - self._compute_residual(
            names, values
        )
        while len(names) > 1:
            step = np.linalg.lstsq(slope, target, rcond=None)[0]
            cost = step**2 / np.maximum(np.diag(np.linalg.pinv(slope.T @ slope)), 1e-12)
            out = int(np.argmin(cost))
            names, slope = [*names[:out], *names[out + 1 :]], np.delete(slope, out, axis=1)
            sets.append(names)
        return sets

    def _sort_parameters(self, fitted: ToneFit) -> ToneFit:
        """Return the fit with its parameters sorted by the share of the original difference that each one closes.

        The share is the part of the difference that reappears if the other parameters are fitted without this one.
        """
        count = len(fitted.names)
        missing = np.empty(count)
        for i in range(count):
            others = [*fitted.names[:i], *fitted.names[i + 1 :]]
            missing[i] = (
                self.fit(others)[1] if others else self.total_difference
            ) / self.total_difference - fitted.remaining
        order = np.argsort(-missing, kind="stable")
        rows = {name: getattr(fitted, name)[order] for name in ("values", "low", "high", "p_values")}
        names = tuple(fitted.names[i] for i in order)
        return ToneFit(names=names, **rows, explained=missing[order], remaining=fitted.remaining)

    def fit(self, names: Sequence[str], start: Array | None = None) -> tuple[Array, float]:
        """Fit the given parameters; return their values and the remaining squared difference.

        Args:
            names: Parameters to fit; all other parameters keep the values of the camera.
            start: Start values of the optimization; None: the values of the camera.
        """
        start = np.array([self.camera.value(name) for name in names]) if start is None else start
        low, high = np.array([self._bounds[name] for name in names]).T
        margin = _CLOSE * (high - low)
        inside = np.clip(start, low + margin, high - margin)
        found = least_squares(
            lambda values: self._compute_residual(names, values), inside, bounds=(low, high), x_scale=0.1, max_nfev=12
        )
        return found.x, 2.0 * float(found.cost)

    def _compute_intervals(self, names: Sequence[str], values: Array, cost: float) -> ToneFit:
        """Return the fit with confidence intervals over episodes by the delta method.

        The fitted parameters change by A = (JᵀWJ)⁻¹JᵀW per unit change of the mean statistics, where J is the Jacobian
        of the statistics and W the matrix of weights. The degrees of freedom are those of Welch and Satterthwaite for
        two groups of episodes. Rounding to 8 bits adds an error that is the same in all statistics (fully correlated).

        Args:
            names: Names of the fitted parameters.
            values: Fitted values.
            cost: Remaining squared difference.
        """
        gain = np.linalg.pinv(self._compute_slopes(names, values))
        parts = np.stack(
            [np.einsum("ps,st,pt->p", gain / self._scale, part, gain / self._scale) for part in self._parts]
        )
        error = np.sqrt(parts.sum(axis=0) + np.sum(gain * (self._floor / self._scale), axis=1) ** 2)
        counts = np.array([len(rows) for rows in self._rows])[:, None] - 1
        freedom = parts.sum(axis=0) ** 2 / np.maximum(np.sum(parts**2 / counts, axis=0), 1e-300)
        freedom = np.clip(freedom, counts.min(), counts.sum())
        reach = stdtrit(freedom, (1 + self.level) / 2) * error
        change = values - np.array([self.camera.value(name) for name in names])
        return ToneFit(
            names=tuple(names),
            values=values,
            low=values - reach,
            high=values + reach,
            p_values=2.0 * stdtr(freedom, -np.abs(change) / np.maximum(error, 1e-12)),
            explained=np.zeros(len(names)),
            remaining=cost / max(self.total_difference, 1e-12),
        )

    def _compute_slopes(self, names: Sequence[str], values: Array) -> Array:
        """Return the Jacobian of the weighted statistics ``(nstatistic, nparameter)``, by central differences."""
        steps = _STEP * np.eye(len(names))
        moved = [
            self._compute_residual(names, values + row) - self._compute_residual(names, values - row) for row in steps
        ]
        return np.stack(moved, axis=1) / (2 * _STEP)

    def _compute_residual(self, names: Sequence[str], values: Array) -> Array:
        camera = self.camera.with_values(**dict(zip(names, values.tolist(), strict=True)))
        return (self._simulate_statistics(camera) - self._base - self._difference) / self._scale

    def _simulate_statistics(self, camera: CameraResponse) -> Array:
        """Return the mean colour statistics of the simulated pixels as the camera ``camera`` would deliver them.

        The statistics are the quantiles of colour and chroma, and the light in rings around the image centre, shape
        ``(nstatistic,)``.
        """
        shown = compute_display_values(
            scale_sensor_values(self._values, self._radius2, self.camera.model, camera.model), camera.model
        )
        levels, chroma, rings, _ = compute_colour_statistics(shown)
        return _stack_statistics(levels, chroma, rings).mean(axis=0)


def _stack_statistics(levels: Array, chroma: Array, rings: Array) -> Array:
    """Return all statistics as one row per episode, shape ``(nepisode, nstatistic)``."""
    return np.concatenate([levels.reshape(len(levels), -1), chroma, rings], axis=1)
