"""How far a picture has moved against a reference, told by the edges of what stands still.

Lucas & Kanade's registration in its inverse compositional form (Baker & Matthews, "Lucas–Kanade 20 years on: a unifying
framework", IJCV 56, 2004) of a shift, a scale and a rotation about the centre, coarse to fine. Pictures are compared by
what is left when the mean around every pixel is taken away and divided by the contrast there, so that gain and offset
of brightness are estimated everywhere and light is no move. Only pixels of a mask count, and of those whatever
differs by more than a move can explain, such as an arm that is in the way today, is weighted down (Tukey's biweight).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, map_coordinates, uniform_filter

from twinloop.core.errors import InputError

Array = NDArray[np.float64]
_WIDEST = 160  # px: wider pictures are made smaller first, by means of blocks (our choice)
_BLURS = (4.0, 2.0, 1.0)  # px, coarse to fine: the first decides how far a picture may have moved (our choice)
_AROUND = 8.0  # blurs, the side of the square over which mean and contrast are taken
_ROUNDS = 8  # steps at each level, at most
_STILL_MOVING = 0.01  # px: smaller steps end a level
_NOISE = 3.0  # grey levels of 255, twice a cheap camera's: contrast below it is none
_REACH = 0.5  # blurs that a pixel may yet have to go at its level, in slopes of its edge
_LEAST_SLACK = 0.2  # of the contrast: where an edge is faint
_TUKEY = 4.685  # Tukey's constant: 95 % of least squares' efficiency where nothing is in the way
_WHOLE = 0.9  # of a blurred mask's weight around a pixel that counts
_MOST, _FEWEST = 1200, 40  # pixels that are looked at, those on the clearest edges; with fewer nothing can be told
_BLIND = 0.1  # of the clearest direction's information: moves along which the scene has no edges are left out


@dataclass(frozen=True)
class _Level:
    """One blur of the reference: what registration needs of it, at the pixels that count.

    ``x``, ``y`` from the centre; ``basis`` ``(M, k)`` how values change along each of ``ways`` ``(4, k)``, the moves
    that the scene can tell; ``slack`` how far a value may be off because of a move within this level's reach.
    """

    blur: float
    x: Array
    y: Array
    value: Array
    basis: Array
    ways: Array
    slack: Array


class Registration:
    """Registers pictures against one reference.

    Args:
        reference: ``(height, width)``, grey levels.
        still: mask of the pixels that count, ``(height, width)``.

    Raises:
        InputError: hardly an edge stands still.
    """

    def __init__(self, reference: NDArray, still: NDArray[np.bool_]) -> None:
        self._block = -(-reference.shape[1] // _WIDEST)
        given = _reduced(reference, self._block)
        self._shape = given.shape
        whole = _reduced(still, self._block) == 1.0
        self._levels = [level for blur in _BLURS if (level := _level(given, whole, blur)) is not None]
        if not self._levels:
            raise InputError(
                f"{100 * float(still.mean()):.0f} % of the pixels stand still, and hardly an edge is among them: "
                "whether the camera has moved cannot be told. Give pictures that show the scene beside the robot."
            )

    def moved(self, pictures: NDArray) -> Array:
        """How the still scene has moved in pictures ``(n, height, width)``, all in pixels ``(n, 4)``.

        To the right and down at the centre of the picture; then what its scale moves in a corner (outward), and its
        rotation (from right to down).
        """
        found = [self._one(_reduced(one, self._block)) for one in pictures]
        return self._block * np.array(found).reshape(-1, 4)

    def _one(self, picture: Array) -> Array:
        turn, shift = 1.0 + 0.0j, 0.0 + 0.0j  # a point z = x + iy of the reference is seen at turn · z + shift
        height, width = self._shape
        radius = _radius(self._shape)
        for level in self._levels:
            plain = _normalized(picture, level.blur)
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


def _level(reference: Array, still: NDArray[np.bool_], blur: float) -> _Level | None:
    """A level; None where too few still pixels are on an edge and far enough from what moves."""
    plain = _normalized(reference, blur)
    # What moves smears over its neighbours: those count whose blurred mask is nearly whole.
    counts = gaussian_filter(still.astype(np.float64), blur, mode="nearest") > _WHOLE
    down, right = (np.asarray(np.gradient(plain, axis=axis), dtype=np.float64) for axis in (0, 1))
    steep = np.where(counts, np.hypot(down, right), 0.0)
    chosen = np.argsort(-steep, axis=None)[:_MOST]
    chosen = chosen[steep.ravel()[chosen] > 0.05 * steep.max(initial=1e-9)]
    if len(chosen) < _FEWEST:
        return None
    rows, columns = np.unravel_index(chosen, reference.shape)
    y, x = rows - (reference.shape[0] - 1) / 2.0, columns - (reference.shape[1] - 1) / 2.0
    gx, gy, radius = right[rows, columns], down[rows, columns], _radius(reference.shape)
    basis = np.stack([gx, gy, (gx * x + gy * y) / radius, (gy * x - gx * y) / radius], axis=1)
    size, axes = np.linalg.eigh(basis.T @ basis)
    ways = axes[:, size > _BLIND * size[-1]]
    return _Level(
        blur=blur,
        x=x,
        y=y,
        value=plain[rows, columns],
        basis=basis @ ways,
        ways=ways,
        slack=_LEAST_SLACK + _REACH * blur * steep[rows, columns],
    )


def _normalized(picture: Array, blur: float) -> Array:
    """A blurred picture less its mean around, over the contrast around."""
    wide = 1 + 2 * round(_AROUND * blur / 2.0)
    apart = np.asarray(gaussian_filter(picture, blur, mode="nearest"), dtype=np.float64)
    apart = apart - uniform_filter(apart, wide, mode="nearest")
    contrast = np.asarray(uniform_filter(apart**2, wide, mode="nearest"), dtype=np.float64)
    return apart / np.sqrt(contrast + (_NOISE / blur) ** 2)


def _reduced(picture: NDArray, block: int) -> Array:
    """Means of square blocks; what is left over at the right and below is cut off."""
    height, width = (side // block for side in picture.shape)
    cut = np.asarray(picture, dtype=np.float64)[: height * block, : width * block]
    return np.asarray(cut.reshape(height, block, width, block).mean(axis=(1, 3)), dtype=np.float64)


def _radius(shape: tuple[int, ...]) -> float:
    """From the centre to a corner, px."""
    return math.hypot(*shape) / 2.0
