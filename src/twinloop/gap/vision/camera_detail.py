"""Estimate the blur and the noise of a camera from the edges and the flat surfaces of real images.

Edge width and noise are measured in the same way on real images and on simulated images that already have the real
colours (`camera_tone`). Therefore a bias of these measurements cancels in the difference. The simulated images are then
recomputed with the estimated blur or noise, and the estimate is divided by the ratio of the measured to the predicted
change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from twinloop.core.seeds import generator
from twinloop.dataset.media.images import Images
from twinloop.gap.vision.develop import (
    BLUR,
    CameraResponse,
    choose_exposure,
    colour_gains,
    noise_variance,
    redevelop_images,
    sensor_values,
)
from twinloop.gap.vision.image_statistics import NOISE_LEVELS, measure_edge_spread, measure_noise
from twinloop.sensors.camera import sensor
from twinloop.sensors.camera.tone import display_of_linear
from twinloop.stats import welch_test
from twinloop.stats.bootstrap import cluster_weights, stretched_percentile

Array = NDArray[np.float64]
_ALPHA = 0.01  # as in `camera_tone`
_LEAST_SQUARE = 0.02  # px²: a smaller change of blur changes a sharp edge of 0.5 px by less than 4 %
_ROUNDS = 2  # corrections after the first estimate
_LEAST_NOISE = 0.05  # (8-bit steps)², half of the rounding noise
_ONE_LEFT = 0.1  # of the difference: if one noise parameter leaves more, two are fitted
_MODEL = 0.08  # of a difference: error of the noise model at low noise, where rounding matters (by planted values)
_DRAWS = 999


@dataclass(frozen=True, kw_only=True)
class DetailFit:
    """Estimated value of one camera parameter, with the lower and upper end of its interval.

    Attributes:
        quantity: Name of the parameter's quantity, such as ``blur``.
        value: Estimated value, in the unit of the quantity.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    quantity: str
    value: float
    low: float
    high: float


def fit_blur(
    real: Array,
    images: Sequence[Images],
    camera: CameraResponse,
    *,
    source: CameraResponse | None = None,
    level: float = 0.95,
) -> DetailFit | None:
    """Estimate the blur that makes simulated edges as wide as real ones.

    Args:
        real: Edge width of each real episode in px, shape ``(nepisode,)``; NaN if an episode has no edges.
        images: Simulated images of each episode, made with the camera ``source``; they are recomputed for ``camera``.
        camera: The simulated camera after its other parameters (such as colours) were corrected.
        source: The camera before these corrections; None means ``camera``.
        level: Confidence level of the interval.

    Returns:
        The estimate; None if the edge widths do not differ significantly.
    """
    source = source or camera
    wanted = real[np.isfinite(real)] ** 2

    def squares(square: float) -> Array:
        other = camera.with_values(**{BLUR: np.sqrt(max(square, 0.0))})
        found = (
            np.array([measure_edge_spread(redevelop_images(p, source, other, seed=i)) for i, p in enumerate(images)])
            ** 2
        )
        return found[np.isfinite(found)]

    start = camera.blur**2
    now = squares(start)
    if min(len(wanted), len(now)) < 2:
        return None
    test = welch_test(wanted, now, level=level)
    missing = float(test.difference.estimate)
    if test.p_value > _ALPHA or abs(missing) < _LEAST_SQUARE:
        return None
    guess, yields = max(start + missing, 0.0), 1.0
    for _ in range(_ROUNDS):
        got = float(squares(guess).mean() - now.mean())
        if abs(got) < _LEAST_SQUARE / 4:
            break
        yields = got / (guess - start)
        guess = max(start + missing / yields, 0.0)
    ends = [np.sqrt(max(start + float(end) / yields, 0.0)) for end in (test.difference.low, test.difference.high)]
    return DetailFit(quantity=BLUR, value=float(np.sqrt(guess)), low=ends[0], high=ends[1])


def fit_noise(
    real: Array,
    images: Sequence[Images],
    camera: CameraResponse,
    *,
    source: CameraResponse | None = None,
    level: float = 0.95,
) -> list[DetailFit]:
    """Estimate the noise scale and the read noise with which simulated flat surfaces are as noisy as real ones.

    In sensor units the noise variance is linear in the signal (`develop.noise_variance`). The noise scale determines
    the slope. The read noise determines the variance without light. If one of the two parameters suffices, only that
    one is returned.

    Args:
        real: Noise variance of each real episode at the brightness levels of `measure_noise`, shape ``(nepisode,
            nlevel)``.
        images: Simulated images of each episode, delivered by the camera ``source``; they are recomputed for
            ``camera``.
        camera: The simulated camera after its other parameters (such as colours and blur) were corrected.
        source: The simulated camera before these corrections; None if there were none, so that it equals ``camera``.
        level: Confidence level of the intervals.

    Returns:
        At most two estimates; an empty list if the noise does not differ significantly.
    """
    source = source or camera
    simulated = np.stack([measure_noise(redevelop_images(p, source, camera, seed=i)) for i, p in enumerate(images)])
    enough = [np.isfinite(rows).sum(axis=0) >= max(2, len(rows) // 2) for rows in (real, simulated)]
    bins = np.flatnonzero(enough[0] & enough[1])
    if not len(bins):
        return []
    real, simulated = real[:, bins], simulated[:, bins]
    draws = _bootstrap_means(real) - _bootstrap_means(simulated)
    spread = draws.std(axis=0)
    missing = np.nanmean(real, axis=0) - np.nanmean(simulated, axis=0)
    weights = 1.0 / (spread**2 + (_MODEL * missing) ** 2 + _LEAST_NOISE**2)
    whole, whole_draws = (weights @ missing / weights.sum(), draws @ weights / weights.sum())
    low, high = stretched_percentile(whole_draws, *_count_episodes(real, simulated), level=1 - _ALPHA)
    if low <= 0.0 <= high or abs(whole) < _LEAST_NOISE:
        return []
    line = _NoiseLine(camera, bins)
    yields = np.ones(len(bins))
    solve = _choose_solver(line, missing, weights, yields)
    for _ in range(_ROUNDS):
        changed = line.with_noise(solve(missing, yields), stronger=True)
        again = [measure_noise(redevelop_images(p, source, changed, seed=i)) for i, p in enumerate(images)]
        got = np.nanmean(np.stack(again)[:, bins], axis=0) - np.nanmean(simulated, axis=0)
        due = line.variance(changed) - line.variance(camera)
        yields = np.where((got > 0.0) & (due > 0.0), np.clip(got / np.maximum(due, 1e-12), 0.05, 20.0), yields)
        solve = _choose_solver(line, missing, weights, yields)
    values = solve(missing, yields)
    wrong = _MODEL * generator(0, "gap/vision/noise-model").standard_normal(len(draws))
    drawn = [solve(row, yields) for row in draws + wrong[:, None] * missing]
    fits = []
    for name, value in values.items():
        low, high = stretched_percentile(
            np.array([row[name] for row in drawn]), *_count_episodes(real, simulated), level=level
        )
        ends = max(min(float(low), value), 0.0), max(float(high), value)
        fits.append(DetailFit(quantity=name, value=value, low=ends[0], high=ends[1]))
    return fits


Solver = Callable[[Array, Array], dict[str, float]]


class _NoiseLine:
    """Linear model of the noise variance of the green channel, in (8-bit steps)², as a function of the signal.

    The model is evaluated at the centres of the brightness levels ``bins``.

    Args:
        camera: The simulated camera.
        bins: Indices of the brightness levels, which are the intervals between the values of `NOISE_LEVELS`.
    """

    def __init__(self, camera: CameraResponse, bins: NDArray[np.intp]) -> None:
        self._camera = camera
        model = camera.model
        display = ((NOISE_LEVELS[:-1] + NOISE_LEVELS[1:]) / 2)[bins] / 255.0
        balanced = sensor_values(np.repeat(display[:, None], 3, axis=1), model)[:, 1]
        self.read = balanced / colour_gains(model)[1]
        step = 1e-4
        rise = display_of_linear(balanced + step, model) - display_of_linear(balanced - step, model)
        self.steepness = (255.0 * rise / (2 * step) * colour_gains(model)[1]) ** 2
        gain = choose_exposure(model).gain
        unit = gain / model.full_well
        self.per_electron = self.steepness * unit**2  # variance per squared electron
        self.electrons = self.read / unit
        self.other = sensor.read_noise(model, gain) ** 2 - model.read_noise**2  # read noise² after the gain

    def variance(self, camera: CameraResponse) -> Array:
        """Return the noise variance at each brightness level if the noise parameters were those of ``camera``."""
        return noise_variance(self.read, camera.model) * self.steepness

    def with_noise(self, values: dict[str, float], *, stronger: bool = False) -> CameraResponse:
        """Return the camera with other noise parameters.

        Args:
            values: Values by name of the parameter.
            stronger: If true, raise the values to a minimum at which the change of noise can be measured in simulated
                images, in order to compare it with the change that the model predicts.
        """
        if stronger:
            least = {"noise_scale": 0.3, "read_noise": 1.0}
            values = {n: max(value, 1.2 * self._camera.value(n), least[n]) for n, value in values.items()}
        return self._camera.with_values(**values)

    def fit_noise_scale(self, missing: Array, weights: Array) -> tuple[dict[str, float], Array]:
        """Fit the parameter ``noise_scale`` and leave the read noise unchanged.

        Returns its value and the variance at each brightness level that remains unexplained.

        Args:
            missing: Real minus simulated variance at each brightness level.
            weights: Weight of each level in the least-squares fit.
        """
        per_unit = self.per_electron * (self.electrons + self._camera.model.read_noise**2 + self.other)
        return self._fit_one("noise_scale", per_unit, missing, weights)

    def fit_read_noise(self, missing: Array, weights: Array) -> tuple[dict[str, float], Array]:
        """Fit the parameter ``read_noise`` and leave the noise scale unchanged.

        Returns its value and the variance at each brightness level that remains unexplained.

        Args:
            missing: Real minus simulated variance at each brightness level.
            weights: Weight of each level in the least-squares fit.
        """
        per_unit = self.per_electron * self._camera.model.noise_scale**2
        return self._fit_one("read_noise", per_unit, missing, weights)

    def _fit_one(self, name: str, per_unit: Array, missing: Array, weights: Array) -> tuple[dict[str, float], Array]:
        """Fit one noise parameter by weighted least squares; return its value and the unexplained variance.

        Args:
            name: Name of the parameter.
            per_unit: Variance at each brightness level that a squared parameter value of 1 adds.
            missing: Real minus simulated variance at each level.
            weights: Weight of each level.
        """
        now = self._camera.value(name) ** 2
        slope = float(np.sum(weights * per_unit * missing) / np.sum(weights * per_unit * per_unit))
        square = max(now + slope, 0.0)
        return {name: square**0.5}, missing - (square - now) * per_unit

    def fit_both(self, missing: Array, weights: Array) -> tuple[dict[str, float], Array]:
        """Fit noise scale and read noise together; return their values and the unexplained variance at each level.

        Args:
            missing: Real minus simulated variance at each brightness level.
            weights: Weight of each level in the least-squares fit.
        """
        model = self._camera.model
        whole = missing + model.noise_scale**2 * self.per_electron * (self.electrons + self.other + model.read_noise**2)
        shapes = np.stack([self.per_electron * (self.electrons + self.other), self.per_electron], axis=1)
        root = np.sqrt(weights)
        (slope, height), _ = nnls(shapes * root[:, None], whole * root)
        read2 = height / max(slope, 1e-12) if slope > 0.0 else model.read_noise**2
        values = {"noise_scale": float(slope**0.5), "read_noise": float(min(read2, 1e6) ** 0.5)}
        return values, whole - shapes @ np.array([slope, height])


def _choose_solver(line: _NoiseLine, missing: Array, weights: Array, ratio: Array) -> Solver:
    """Return a function that fits the camera's noise parameters to the difference of variance.

    It fits the noise scale or the read noise alone if one of them explains the difference, otherwise both.

    Args:
        line: Noise model of the camera.
        missing: Real minus simulated variance at each brightness level.
        weights: Weight of each level.
        ratio: Measured change of variance divided by the change that the model predicts, at each level; it corrects the
            model's predictions.
    """
    ways = [line.fit_noise_scale]
    if line.variance(line.with_noise({})).any():
        ways.insert(0, line.fit_read_noise)
    left = [float(np.sum(weights * way(missing / ratio, weights * ratio**2)[1] ** 2 * ratio**2)) for way in ways]
    whole = float(np.sum(weights * missing**2))
    way = ways[int(np.argmin(left))]
    if min(left) > _ONE_LEFT * whole and len(missing) > 2:
        both = line.fit_both(missing / ratio, weights * ratio**2)[1]
        if np.sum(weights * both**2 * ratio**2) < 0.5 * min(left):
            way = line.fit_both
    return lambda difference, seen: way(difference / seen, weights * seen**2)[0]


def _bootstrap_means(rows: Array) -> Array:
    """Return bootstrap means over episodes, shape ``(ndraw, nlevel)``, of ``rows`` with shape ``(nepisode, nlevel)``.

    NaN entries are ignored.
    """
    there = np.isfinite(rows)
    weights = cluster_weights(len(rows), _DRAWS)
    counts = weights @ there
    means = (weights @ np.where(there, rows, 0.0)) / np.maximum(counts, 1.0)
    return np.where(counts > 0, means, np.nanmean(rows, axis=0))


def _count_episodes(real: Array, simulated: Array) -> tuple[int, int]:
    fewest = min(len(real), len(simulated))
    return fewest, fewest - 1
