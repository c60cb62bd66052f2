"""Compare images with a reference of the same camera: brightness, sharpness, and motion of the static scene.

The motion is a shift, a scale and a rotation about the image centre. It is estimated coarse to fine by Lucas & Kanade's
registration in its inverse compositional form (Baker & Matthews, "Lucas–Kanade 20 years on: a unifying framework", IJCV
56, 2004). Images are first normalized: the local mean around each pixel is subtracted, and the result is divided by the
local contrast. Changes of gain and offset are therefore not mistaken for motion. Only pixels of a mask are used. Pixels
that differ by more than a motion can explain, for example where the arm covers the scene, get a lower weight (Tukey's
biweight).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, map_coordinates, uniform_filter

from twinloop.core.errors import InputError
from twinloop.core.records import freeze_fields
from twinloop.encoders.images import sharpness

Array = NDArray[np.float64]
_WIDEST = 160  # px: wider images are reduced first, by block means (our choice)
_BLURS = (4.0, 2.0, 1.0)  # px, coarse to fine: the first decides how far an image may have moved (our choice)
_AROUND = 8.0  # side of the square over which mean and contrast are computed, in blurs
_ROUNDS = 8  # largest number of steps at each level
_STILL_MOVING = 0.01  # px: smaller steps end a level
_NOISE = 3.0  # grey levels of 255, twice a cheap camera's noise: lower contrast is ignored
_REACH = 0.5  # largest remaining displacement of a pixel at a level, in blurs; multiplied by the slope of its edge
_LEAST_SLACK = 0.2  # smallest `slack`, as a share of the contrast, for faint edges
_TUKEY = 4.685  # Tukey's constant: 95 % of the efficiency of least squares without outliers
_WHOLE = 0.9  # smallest value of the blurred mask at a pixel that is used
_MOST_PIXELS, _FEWEST = 1200, 40  # largest and smallest number of used pixels, those on the clearest edges
_BLIND = 0.1  # smallest eigenvalue, relative to the largest: other motions cannot be determined


@dataclass(frozen=True)
class _BlurLevel:
    """Reference image at one blur, with the quantities that registration needs at the M used pixels.

    Attributes:
        blur: standard deviation of the Gaussian blur in px.
        x: coordinate to the right from the image centre in px, shape ``(M,)``.
        y: coordinate down from the image centre in px, shape ``(M,)``.
        value: normalized value, shape ``(M,)``.
        basis: derivative of the value along each of k directions of motion, shape ``(M, k)``.
        ways: the k directions of image motion that the image content determines, as columns, shape ``(4, k)``. The rows
            are shift right, shift down, scale and rotation.
        slack: tolerance: largest change of the value by a displacement of half the blur, which is the largest motion
            expected at this blur, shape ``(M,)``.
    """

    blur: float
    x: Array
    y: Array
    value: Array
    basis: Array
    ways: Array
    slack: Array


class Registration:
    """Estimator of the motion between a reference image and other images of the same camera.

    Args:
        reference: reference in grey levels, shape ``(height, width)``.
        still: mask of the pixels to use, those of the static scene, shape ``(height, width)``.

    Raises:
        InputError: If the static pixels have too few edges.
    """

    def __init__(self, reference: NDArray, still: NDArray[np.bool_]) -> None:
        self._block = -(-reference.shape[1] // _WIDEST)
        given = _reduce_image(reference, self._block)
        self._shape = given.shape
        whole = _reduce_image(still, self._block) == 1.0
        self._levels = [level for blur in _BLURS if (level := _make_level(given, whole, blur)) is not None]
        if not self._levels:
            raise InputError(
                f"{100 * float(still.mean()):.0f} % of the pixels are static, with too few edges to detect a "
                "motion of the camera. Give images that show the scene around the robot."
            )

    def estimate_motion(self, images: NDArray) -> Array:
        """Return the motion of the static scene in n grey images since the reference, in pixels, shape ``(n, 4)``.

        The columns are the shift to the right and the shift down at the image centre, and the displacement of an image
        corner by the scale (outward) and by the rotation (from right to down).

        Args:
            images: images in grey levels, shape ``(n, height, width)``.
        """
        found = [self._register_image(_reduce_image(one, self._block)) for one in images]
        return self._block * np.array(found).reshape(-1, 4)

    def _register_image(self, image: Array) -> Array:
        turn, shift = 1.0 + 0.0j, 0.0 + 0.0j  # a point z = x + iy of the reference appears at turn · z + shift
        height, width = self._shape
        radius = _compute_radius(self._shape)
        for level in self._levels:
            plain = _normalize_contrast(image, level.blur)
            for _ in range(_ROUNDS):
                at = turn * (level.x + 1j * level.y) + shift
                row, column = at.imag + (height - 1) / 2.0, at.real + (width - 1) / 2.0
                error = map_coordinates(plain, [row, column], order=1, mode="nearest") - level.value
                inside = (row >= 0) & (row <= height - 1) & (column >= 0) & (column <= width - 1)
                weight = inside * np.clip(1.0 - (error / (_TUKEY * level.slack)) ** 2, 0.0, None) ** 2
                weighted = level.basis * weight[:, None]
                normal = level.basis.T @ weighted
                normal += np.diag(1e-9 + 1e-3 * np.diag(normal))
                step = level.ways @ np.linalg.solve(normal, weighted.T @ error)
                turn = turn / (1.0 + complex(step[2], step[3]) / radius)
                shift = shift - turn * complex(step[0], step[1])
                if np.abs(step).max() < _STILL_MOVING:
                    break
        corner = (turn - 1.0) * radius
        return np.array([shift.real, shift.imag, corner.real, corner.imag])


def _make_level(reference: Array, still: NDArray[np.bool_], blur: float) -> _BlurLevel | None:
    """Prepare the reference for one blur level of the coarse-to-fine image registration.

    Args:
        reference: reference in grey levels, shape ``(height, width)``.
        still: mask of the static pixels, shape ``(height, width)``.
        blur: standard deviation of the Gaussian blur in px.

    Returns:
        The blur level; None if too few static pixels are on an edge and far enough from moving parts.
    """
    plain = _normalize_contrast(reference, blur)
    # Moving parts affect neighbouring pixels when blurred: only pixels with a nearly full blurred mask are used.
    counts = gaussian_filter(still.astype(np.float64), blur, mode="nearest") > _WHOLE
    down, right = (np.asarray(np.gradient(plain, axis=axis), dtype=np.float64) for axis in (0, 1))
    steep = np.where(counts, np.hypot(down, right), 0.0)
    chosen = np.argsort(-steep, axis=None)[:_MOST_PIXELS]
    chosen = chosen[steep.ravel()[chosen] > 0.05 * steep.max(initial=1e-9)]
    if len(chosen) < _FEWEST:
        return None
    rows, columns = np.unravel_index(chosen, reference.shape)
    y, x = rows - (reference.shape[0] - 1) / 2.0, columns - (reference.shape[1] - 1) / 2.0
    gx, gy, radius = right[rows, columns], down[rows, columns], _compute_radius(reference.shape)
    basis = np.stack([gx, gy, (gx * x + gy * y) / radius, (gy * x - gx * y) / radius], axis=1)
    size, axes = np.linalg.eigh(basis.T @ basis)
    ways = axes[:, size > _BLIND * size[-1]]
    return _BlurLevel(
        blur=blur,
        x=x,
        y=y,
        value=plain[rows, columns],
        basis=basis @ ways,
        ways=ways,
        slack=_LEAST_SLACK + _REACH * blur * steep[rows, columns],
    )


def _normalize_contrast(image: Array, blur: float) -> Array:
    """Return a blurred image minus its local mean, divided by its local contrast.

    Mean and contrast are computed over a square around each pixel, whose side is about eight times ``blur``.

    Args:
        image: image in grey levels, shape ``(height, width)``.
        blur: standard deviation of the Gaussian blur in px.
    """
    wide = 1 + 2 * round(_AROUND * blur / 2.0)
    blurred = np.asarray(gaussian_filter(image, blur, mode="nearest"), dtype=np.float64)
    blurred = blurred - uniform_filter(blurred, wide, mode="nearest")
    contrast = np.asarray(uniform_filter(blurred**2, wide, mode="nearest"), dtype=np.float64)
    return blurred / np.sqrt(contrast + (_NOISE / blur) ** 2)


def _reduce_image(image: NDArray, block: int) -> Array:
    """Return the means of square blocks of an image, with ``block`` pixels per side.

    Remaining pixels at the right and bottom are cut off.
    """
    height, width = (side // block for side in image.shape)
    cut = np.asarray(image, dtype=np.float64)[: height * block, : width * block]
    return np.asarray(cut.reshape(height, block, width, block).mean(axis=(1, 3)), dtype=np.float64)


def _compute_radius(shape: tuple[int, ...]) -> float:
    """Return the distance in px from the centre to a corner of an image with this shape."""
    return math.hypot(*shape) / 2.0


# Smallest usual spread of each measurement, above noise and rounding: light in stops, shift in px (our choice).
LEAST = {"light": 0.02, "sharpness": 0.02, "shift": 0.1}
_GREY = np.full(3, 1 / 3, dtype=np.float32)
_MOST = 200  # images for a reference; the median of more is the same (our choice)
COLUMNS = {"light": (0,), "sharpness": (1,), "shift": (2, 3, 4, 5)}  # columns of `compare_images` by quantity
_CALM, _MOSTLY = 3.0, 0.75  # a static pixel is within 3 grey levels of its median in 75 % of the images


@dataclass(frozen=True, kw_only=True)
class ImageReference:
    """Reference image of one camera and mask of the static scene.

    Attributes:
        background: median of many images in grey levels, shape ``(height, width)``.
        still: mask of the pixels that rarely differ from the median, shape ``(height, width)``.
    """

    background: Array
    still: NDArray[np.bool_]

    def __post_init__(self) -> None:
        freeze_fields(self, "background")
        object.__setattr__(self, "still", np.array(self.still, dtype=bool))

    @classmethod
    def of(cls, images: NDArray[np.uint8]) -> ImageReference:
        """Build a reference from images of several episodes at several times.

        Args:
            images: n colour images, shape ``(n, height, width, 3)``.

        Raises:
            InputError: If there are no images.
        """
        if not len(images):
            raise InputError("A camera's reference needs images, but there are none. Give episodes with images.")
        chosen = _to_grey(images[np.linspace(0, len(images) - 1, min(len(images), _MOST)).astype(int)])
        background = np.median(chosen, axis=0).astype(np.float64)
        deviation = np.quantile(np.abs(chosen - background), _MOSTLY, axis=0)
        return cls(background=background, still=deviation <= _CALM)

    @cached_property
    def registration(self) -> Registration | None:
        """Estimator of the image motion since the reference images; None if their static pixels have too few edges."""
        try:
            return Registration(self.background, self.still)
        except InputError:
            return None

    def compare_images(self, images: NDArray[np.uint8], name: str) -> Array:
        """Compare n images with the reference, and return six measurements for each image, shape ``(n, 6)``.

        - Column 0, brightness: median difference from the reference over static pixels, in stops (factors of two).
        - Column 1, sharpness: log ratio of fine to coarse intensity differences (`encoders.images.sharpness`).
        - Columns 2 to 5, motion in pixels: shift right, shift down, scale and rotation
          (`Registration.estimate_motion`). They are NaN if the static scene has too few edges.

        Args:
            images: colour images, shape ``(n, height, width, 3)``.
            name: name of the camera, for error messages.

        Raises:
            InputError: If the images have another size than the reference.
        """
        if images.shape[1:] != (*self.background.shape, 3):
            height, width = self.background.shape
            raise InputError(
                f"The camera {name} gives images {images.shape[1:]}; the monitor was calibrated on "
                f"{width}x{height}. Calibrate it again for this camera."
            )
        grey = _to_grey(images)
        counts = self.still if self.still.any() else np.ones_like(self.still)
        ratio = np.log2((grey[:, counts] + 1.0) / (self.background[counts].astype(np.float32) + 1.0))
        moved = (
            np.full((len(grey), 4), np.nan) if self.registration is None else self.registration.estimate_motion(grey)
        )
        return np.column_stack([np.median(ratio, axis=1), sharpness(grey), moved]).astype(np.float64)


def describe_motion(row: Array, focal: float | None) -> str:
    """Describe in words how far a camera's image of the static scene has moved relative to the reference image.

    The angle in degrees is the camera rotation with the same effect. The equivalent shift of the camera is not given,
    because it depends on the distance of the scene.

    Args:
        row: six measurements of one image by `ImageReference.compare_images`: brightness, sharpness, shift right, shift
            down, scale and rotation. The last four are in px; scale and rotation are the displacements of an image
            corner that they cause.
        focal: focal length in px; None if unknown, which leaves the angle out.
    """
    middle, corner = math.hypot(row[2], row[3]), math.hypot(row[4], row[5])
    turned = "" if focal is None else f", as if the camera had turned by {math.degrees(math.atan(middle / focal)):.1f}°"
    return f"by {middle:.1f} px at the image centre{turned}, and additionally by {corner:.1f} px in the corners"


def _to_grey(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    return images.astype(np.float32) @ _GREY
