"""Project directions through a lens to the image and back, with the pinhole and fisheye models of OpenCV.

Camera axes are x right, y down, z forward. Image positions are normalized: an undistorted (ideal) position is
(x, y) = (X / Z, Y / Z) for a point (X, Y, Z), and a distorted position (x', y') is at the pixel (fx x' + cx, fy
y' + cy).

Formulas: OpenCV, "Camera Calibration and 3D Reconstruction", detailed description (pinhole with the rational
model of eight coefficients), and "Fisheye camera model" (after Kannala & Brandt, IEEE PAMI 28(8), 2006).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError, UnknownNameError

LensModel = Literal["pinhole", "fisheye"]
_STEPS = 80  # bisection reaches round-off in 60 steps, Newton's method in five
_FAR = 1e6  # square of a radius outside of every field of view, 89.94° off the axis
_NOTHING = 1e-14  # a coefficient that is negligible relative to 1
_CLOSED = 1e-9  # largest error of a solution, normalized


@dataclass(frozen=True, kw_only=True)
class Lens:
    """Lens with distortion, lateral chromatic aberration and blur; the default is a perfect pinhole.

    Attributes:
        model: ``pinhole`` uses all coefficients (in OpenCV's order k1, k2, p1, p2, k3, k4, k5, k6), ``fisheye``
            uses only ``lens_k1`` to ``lens_k4``.
        lens_k1: radial distortion; likewise ``lens_k2`` to ``lens_k6``.
        lens_p1: tangential distortion; likewise ``lens_p2``.
        chromatic_red: size of the red image relative to the green one, about the principal point.
        chromatic_blue: size of the blue image relative to the green one.
        blur: standard deviation of a point's blur spot, in pixels.

    Raises:
        UnknownNameError: If the model is unknown.
        InputError: If a fisheye lens has a coefficient that its model does not use.
    """

    model: LensModel = "pinhole"
    lens_k1: float = 0.0
    lens_k2: float = 0.0
    lens_k3: float = 0.0
    lens_k4: float = 0.0
    lens_k5: float = 0.0
    lens_k6: float = 0.0
    lens_p1: float = 0.0
    lens_p2: float = 0.0
    chromatic_red: float = 1.0
    chromatic_blue: float = 1.0
    blur: float = 0.0

    def __post_init__(self) -> None:
        if self.model not in get_args(LensModel):
            raise UnknownNameError("lens model", self.model, get_args(LensModel))
        if self.model == "fisheye":
            for name in ("lens_k5", "lens_k6", "lens_p1", "lens_p2"):
                if getattr(self, name) != 0.0:
                    raise InputError(
                        f"A fisheye lens has lens_k1 to lens_k4, and {name} is {getattr(self, name):g}. "
                        "Set it to 0, or choose the lens model pinhole."
                    )

    @property
    def magnifications(self) -> tuple[float, ...]:
        """Sizes of the red, green and blue images relative to the green one; only ``(1.0,)`` if all are equal."""
        if self.chromatic_red == self.chromatic_blue == 1.0:
            return (1.0,)
        return (self.chromatic_red, 1.0, self.chromatic_blue)

    @cached_property
    def limit(self) -> float:
        """Largest ideal radius √(x² + y²), or angle in rad for a fisheye, up to which the distortion is monotonic.

        Beyond it the distortion polynomial decreases (the lens folds), so that a larger radius would appear further
        inside. The limit is infinite if the polynomial always increases, and at most π for a fisheye.
        """
        if self.model == "fisheye":
            return min(math.sqrt(_first_root(self._fisheye_slope)), math.pi)
        above, below = self._rational
        slope = above * below + 2.0 * _S * (above.deriv() * below - above * below.deriv())
        return math.sqrt(min(_first_root(slope), _first_root(below)))

    @cached_property
    def image_limit(self) -> float:
        """Largest normalized radius in the image that light can reach; infinite if there is no such limit.

        It is the distorted radius of the largest ideal radius (or angle) up to which the distortion is monotonic,
        `limit`.
        """
        pole = math.sqrt(_first_root(self._rational[1])) if self.model == "pinhole" else math.inf
        if self.limit >= pole:
            return math.inf
        return float(self._radial(np.array(self.limit))[0])

    def distort(self, points: ArrayLike) -> NDArray[np.float64]:
        """Convert ideal to distorted positions, both normalized and of shape ``(…, 2)``; inverse of `undistort`.

        The formula is also applied to positions beyond `limit`.
        """
        ideal = np.asarray(points, dtype=np.float64)
        if self.model == "pinhole":
            return _distort_with_jacobian(self, ideal)[0]
        radius = np.hypot(ideal[..., 0], ideal[..., 1])
        angle = np.arctan(radius)
        scale = np.divide(self._radial(angle)[0], radius, out=np.ones_like(radius), where=radius > 0.0)
        return ideal * scale[..., None]

    def project(self, rays: ArrayLike) -> NDArray[np.float64]:
        """Project directions in camera axes to distorted positions in the image, normalized, shape ``(…, 2)``.

        A fisheye also maps directions at 90° and more off the axis, up to `limit`. The result is NaN for directions
        outside the field of view.

        Args:
            rays: directions of any length, shape ``(…, 3)``.
        """
        ray = np.asarray(rays, dtype=np.float64)
        across = np.hypot(ray[..., 0], ray[..., 1])
        if self.model == "pinhole":
            in_front = ray[..., 2] > 0.0
            ideal = ray[..., :2] / np.where(in_front, ray[..., 2], 1.0)[..., None]
            visible = in_front & (np.hypot(ideal[..., 0], ideal[..., 1]) <= self.limit)
            return np.where(visible[..., None], self.distort(ideal), np.nan)
        angle = np.arctan2(across, ray[..., 2])
        # On the axis the azimuth is arbitrary: a point there appears in the centre.
        unit = np.divide(ray[..., :2], across[..., None], out=np.zeros_like(ray[..., :2]), where=across[..., None] > 0)
        return np.where((angle <= self.limit)[..., None], unit * self._radial(angle)[0][..., None], np.nan)

    def undistort(self, positions: ArrayLike) -> NDArray[np.float64]:
        """Convert distorted to ideal positions, both normalized and of shape ``(…, 2)``.

        Raises:
            InputError: If no light reaches a position, or its direction is 90° or more off the axis of a fisheye.
        """
        ray = self.rays(positions)
        if (ray[..., 2] <= 0.0).any():
            raise InputError(
                f"{(ray[..., 2] <= 0.0).sum()} of {ray[..., 2].size} positions are 90° or more off the axis, outside "
                "of any flat image. Use directions, with rays."
            )
        return ray[..., :2] / ray[..., 2:]

    def rays(self, positions: ArrayLike) -> NDArray[np.float64]:
        """Return the directions of distorted image positions, as unit vectors ``(…, 3)`` in camera axes.

        Args:
            positions: normalized positions, shape ``(…, 2)``.

        Raises:
            InputError: If no light reaches a position.
        """
        distorted = np.asarray(positions, dtype=np.float64)
        radius = np.hypot(distorted[..., 0], distorted[..., 1])
        along = self._invert_radial(radius)
        if self.model == "fisheye":
            unit = np.divide(distorted, radius[..., None], out=np.zeros_like(distorted), where=radius[..., None] > 0.0)
            self._refuse_unreachable(radius > self.image_limit * (1.0 + _CLOSED), radius)
            return np.concatenate([unit * np.sin(along)[..., None], np.cos(along)[..., None]], axis=-1)
        scale = np.divide(along, radius, out=np.ones_like(radius), where=radius > 0.0)
        ideal = distorted * scale[..., None]
        if self.lens_p1 != 0.0 or self.lens_p2 != 0.0:
            ideal = _invert_distortion(self, distorted.reshape(-1, 2), ideal.reshape(-1, 2)).reshape(distorted.shape)
        projected, jacobian = _distort_with_jacobian(self, ideal)
        folded = np.linalg.det(jacobian) < 0.0
        self._refuse_unreachable(
            folded | (np.abs(distorted - projected) > _CLOSED * np.maximum(1.0, np.abs(distorted))).any(axis=-1), radius
        )
        ray = np.concatenate([ideal, np.ones_like(ideal[..., :1])], axis=-1)
        return ray / np.linalg.norm(ray, axis=-1, keepdims=True)

    def _refuse_unreachable(self, lost: NDArray[np.bool_], radius: NDArray[np.float64]) -> None:
        if lost.any():
            raise InputError(
                f"No light reaches {lost.sum()} of {lost.size} positions in the image, up to {radius.max():.4g} "
                f"focal lengths off its principal point: this lens folds at {self.image_limit:.4g}. Take smaller "
                "coefficients of distortion, or a narrower field of view."
            )

    @cached_property
    def _rational(self) -> tuple[Polynomial, Polynomial]:
        """Numerator and denominator of the pinhole model's radial distortion factor, as polynomials in r².

        r is the ideal radius √(x² + y²). The factor is distorted radius over ideal radius.
        """
        return (
            Polynomial([1.0, self.lens_k1, self.lens_k2, self.lens_k3]),
            Polynomial([1.0, self.lens_k4, self.lens_k5, self.lens_k6]),
        )

    @cached_property
    def _fisheye(self) -> Polynomial:
        """Radial factor of the fisheye model, as a polynomial in θ² (θ: angle off the axis)."""
        return Polynomial([1.0, self.lens_k1, self.lens_k2, self.lens_k3, self.lens_k4])

    @cached_property
    def _fisheye_slope(self) -> Polynomial:
        return self._fisheye + 2.0 * _S * self._fisheye.deriv()

    def _radial(self, along: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the normalized radius in the image and its derivative with respect to ``along``.

        Tangential distortion is not included.

        Args:
            along: normalized ideal radii, or for a fisheye the angles off the axis in rad.
        """
        square = along * along
        if self.model == "fisheye":
            return along * self._fisheye(square), self._fisheye_slope(square)
        factor, slope = _factor(self, square)
        return along * factor, factor + 2.0 * square * slope

    def _invert_radial(self, radius: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the ideal radii (for a fisheye, angles) whose radius in the image is ``radius``; inverse of `_radial`.

        The solution, at most `limit`, is found by Newton's method with bisection.
        """
        low = np.zeros_like(radius)
        high = np.full_like(radius, self.limit) if np.isfinite(self.limit) else np.maximum(radius, 1.0)
        while np.isinf(self.limit) and (short := self._radial(high)[0] < radius).any():
            high = np.where(short, 2.0 * high, high)
        along = np.minimum(radius, 0.5 * high)
        for _ in range(_STEPS):
            with np.errstate(all="ignore"):  # the limit may be a pole of the rational factor
                value, slope = self._radial(along)
                step = along - (value - radius) / slope
            low, high = np.where(value <= radius, along, low), np.where(value >= radius, along, high)
            after = np.where((step >= low) & (step <= high), step, 0.5 * (low + high))
            moved, along = np.abs(after - along), after
            if (moved <= 1e-14 * along).all():
                break
        return along


_S = Polynomial([0.0, 1.0])


def _first_root(polynomial: Polynomial) -> float:
    """Return the smallest positive real root of a polynomial whose value at 0 is 1; infinite if there is no such root.

    The variable is scaled so that no coefficient is above 1; then no root is below 1/2. The function computes the
    reciprocals of the roots. They are the roots of the polynomial with reversed coefficients, whose leading coefficient
    is 1, so that tiny coefficients of high powers are harmless and are not lost.
    """
    coefficients = np.asarray(polynomial.coef, dtype=float)
    powers = np.arange(len(coefficients))
    unit = 1.0 / np.max(np.abs(coefficients[1:]) ** (1.0 / powers[1:]), initial=1.0 / _FAR)
    scaled = Polynomial(coefficients * unit**powers).trim(_NOTHING)
    inverse = Polynomial(scaled.coef[::-1]).roots()
    real = inverse.real[(np.abs(inverse.imag) <= 1e-9 * np.abs(inverse)) & (inverse.real > 0.0)]
    return float(unit / real.max()) if len(real) else math.inf


def _factor(lens: Lens, square: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the pinhole model's radial factor and its derivative with respect to r², for squared ideal radii r²."""
    above, below = lens._rational
    up, down = above(square), below(square)
    return up / down, (above.deriv()(square) * down - up * below.deriv()(square)) / (down * down)


def _distort_with_jacobian(lens: Lens, ideal: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Distort ideal positions ``(…, 2)`` by the pinhole model, and return also the Jacobian ``(…, 2, 2)``."""
    x, y = ideal[..., 0], ideal[..., 1]
    p1, p2, square = lens.lens_p1, lens.lens_p2, x * x + y * y
    factor, slope = _factor(lens, square)
    distorted = np.stack(
        [
            x * factor + 2.0 * p1 * x * y + p2 * (square + 2.0 * x * x),
            y * factor + p1 * (square + 2.0 * y * y) + 2.0 * p2 * x * y,
        ],
        axis=-1,
    )
    mixed = 2.0 * (x * y * slope + p1 * x + p2 * y)
    jacobian = np.empty((*x.shape, 2, 2))
    jacobian[..., 0, 0] = factor + 2.0 * x * x * slope + 2.0 * p1 * y + 6.0 * p2 * x
    jacobian[..., 1, 1] = factor + 2.0 * y * y * slope + 6.0 * p1 * y + 2.0 * p2 * x
    jacobian[..., 0, 1] = jacobian[..., 1, 0] = mixed
    return distorted, jacobian


def _invert_distortion(lens: Lens, distorted: NDArray[np.float64], start: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ideal positions ``(n, 2)`` of distorted positions, by a damped Newton's method.

    A step that leaves `Lens.limit` or increases the error is halved.

    Args:
        lens: a pinhole lens.
        distorted: distorted positions, shape ``(n, 2)``.
        start: initial estimates of the ideal positions, shape ``(n, 2)``.
    """
    ideal, share = start, np.ones((len(start), 1))
    projected, jacobian = _distort_with_jacobian(lens, ideal)
    error = distorted - projected
    for _ in range(_STEPS):
        step = share * _solve_symmetric(jacobian, error)
        if (np.abs(step) <= 1e-15 * np.maximum(1.0, np.abs(ideal))).all():
            break
        candidate = ideal + step
        projected, jacobian_there = _distort_with_jacobian(lens, candidate)
        inside = np.hypot(candidate[:, :1], candidate[:, 1:]) <= lens.limit
        nearer = inside & (np.abs(distorted - projected).sum(axis=1) < np.abs(error).sum(axis=1))[:, None]
        ideal, error = np.where(nearer, candidate, ideal), np.where(nearer, distorted - projected, error)
        jacobian = np.where(nearer[..., None], jacobian_there, jacobian)
        share = np.where(nearer, np.minimum(1.0, 2.0 * share), 0.5 * share)
    return ideal


def _solve_symmetric(matrix: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Solve n symmetric 2×2 linear systems, shape ``(n, 2)``; the solution of a singular system is 0.

    Args:
        matrix: matrices, shape ``(n, 2, 2)``.
        right: right-hand sides, shape ``(n, 2)``.
    """
    a, b, d = matrix[:, 0, 0], matrix[:, 0, 1], matrix[:, 1, 1]
    det = (a * d - b * b)[:, None]
    solution = np.stack([d * right[:, 0] - b * right[:, 1], a * right[:, 1] - b * right[:, 0]], axis=-1)
    return np.divide(solution, det, out=np.zeros_like(solution), where=det != 0.0)
