"""Create textures of common surfaces (wood, cloth, concrete, …) with the reflectances that real ones have.

A texture is made in linear light and tiles without seams. Each kind has a pattern and a range of reflectance, the share
of the light that is reflected. Sources of the ranges:

- DIAL: DIALux evo, article "Reflection", typical reflection factors;
- OSRAM: Encyclopedia of Light, reflectances of common colours and materials;
- EN 12464-1:2011, 4.2.2: 0.5 to 0.8 for walls, 0.2 to 0.4 for floors, 0.2 to 0.7 for furniture;
- Lagarde: "Physically based rendering in Frostbite", SIGGRAPH 2014 course: 0.03 to 0.9 for all but metals.
"""

from __future__ import annotations

import colorsys
import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.imaging import LUMA, linear_to_srgb
from twinloop.core.seeds import generator

Array = NDArray[np.float64]
SIZE = 256  # pixels of a texture's side


class _Canvas:
    """Random numbers and noise of one texture.

    Args:
        random: Generator of its random numbers.
    """

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        self.v, self.u = np.meshgrid(*(2 * [(np.arange(SIZE) + 0.5) / SIZE]), indexing="ij")

    def noise(self, rows: int, columns: int, *, octaves: int = 1, shift: Array | float = 0.0) -> Array:
        """Return smooth noise, about 0 to 1, ``(SIZE, SIZE)``.

        Random values on a periodic lattice are interpolated with cubic Hermite polynomials.

        Args:
            rows, columns: Numbers of cells of the coarsest octave; each next one has twice as many and half the weight.
            octaves: Number of octaves.
            shift: Displacement along the columns of the texture, in texture heights.
        """
        total, weights = np.zeros((SIZE, SIZE)), [0.5**octave for octave in range(octaves)]
        for octave, weight in enumerate(weights):
            n, m = min(rows << octave, SIZE), min(columns << octave, SIZE)
            lattice = self.random.random((n, m))
            row, column = (self.v + shift) * n, self.u * m
            i, j = np.floor(row).astype(int), np.floor(column).astype(int)
            s, t = (x * x * (3.0 - 2.0 * x) for x in (row - i, column - j))
            i, below, j, right = i % n, (i + 1) % n, j % m, (j + 1) % m
            upper = lattice[i, j] * (1 - t) + lattice[i, right] * t
            total += weight * (upper * (1 - s) + (lattice[below, j] * (1 - t) + lattice[below, right] * t) * s)
        return total / sum(weights)


Pattern = Callable[[_Canvas], Array]
"""Function that draws a pattern: factors on the mean reflectance, ``(SIZE, SIZE)`` or with a last axis of channels."""


def _plain(canvas: _Canvas) -> Array:
    return 1.0 + 0.06 * (canvas.noise(3, 3, octaves=3) - 0.5)


def _wood(canvas: _Canvas) -> Array:
    boards = canvas.random.integers(1, 7)
    board = np.floor(canvas.v * boards).astype(int)
    bend = 0.06 * canvas.noise(2, 3, octaves=2) + canvas.random.random(boards)[board]
    rings = canvas.noise(int(canvas.random.integers(6, 14)), 1, octaves=2, shift=bend)
    fibres = canvas.noise(64, 2, octaves=2, shift=bend)
    value = 0.7 + 0.45 * rings + 0.2 * (fibres - 0.5) + 0.15 * (canvas.random.random(boards)[board] - 0.5)
    edge = np.abs(canvas.v * boards - np.round(canvas.v * boards)) < 0.004 * boards
    return np.where(edge & (boards > 1), 0.5 * value, value)


def _cloth(canvas: _Canvas) -> Array:
    threads = 2 * np.pi * canvas.random.integers(24, 60)
    weave = np.where(np.sin(threads * canvas.u) * np.sin(threads * canvas.v) > 0, np.cos(threads * canvas.u), 0.0)
    return 1.0 + 0.18 * weave + 0.25 * (canvas.noise(8, 8, octaves=4) - 0.5)


def _chequered(canvas: _Canvas) -> Array:
    cells = canvas.random.integers(3, 9)
    lines = [np.floor(2 * cells * side) % 2 for side in (canvas.u, canvas.v)]
    return _cloth(canvas) * (0.55 + 0.3 * (lines[0] + lines[1]))


def _metal(canvas: _Canvas) -> Array:
    return 1.0 + 0.25 * (canvas.noise(SIZE, 2) - 0.5) + 0.12 * (canvas.noise(3, 3, octaves=3) - 0.5)


def _concrete(canvas: _Canvas) -> Array:
    value = 0.8 + 0.4 * canvas.noise(3, 3, octaves=5)
    return np.where(canvas.random.random((SIZE, SIZE)) < 0.01, 0.6, 1.0) * value


def _stone(canvas: _Canvas) -> Array:
    value = 0.8 + 0.3 * canvas.noise(6, 6, octaves=4)
    value = np.where(canvas.noise(40, 40, octaves=2) > 0.62, 0.55, value)
    return np.where(canvas.noise(48, 48, octaves=2) > 0.66, 1.35, value)


def _cork(canvas: _Canvas) -> Array:
    return 0.6 + 0.8 * np.round(5 * canvas.noise(28, 28, octaves=2)) / 5


def _bricks(canvas: _Canvas) -> Array:
    rows, columns = 8, 4
    row = np.floor(canvas.v * rows)
    along = canvas.u * columns + 0.5 * (row % 2)
    brick = (np.floor(along) % columns + columns * row).astype(int)
    mortar = (np.abs(along - np.round(along)) < 0.03) | (np.abs(canvas.v * rows - np.round(canvas.v * rows)) < 0.06)
    value = 0.75 + 0.5 * canvas.random.random(rows * columns)[brick] + 0.3 * (canvas.noise(16, 16, octaves=4) - 0.5)
    return np.where(mortar, 1.9, value)


def _tiles(canvas: _Canvas) -> Array:
    cells = int(canvas.random.integers(2, 7))
    gap = np.minimum(*(np.abs(side * cells - np.round(side * cells)) for side in (canvas.u, canvas.v))) < 0.02
    tone = canvas.random.uniform(0.92, 1.08, cells * cells)
    cell = (np.floor(canvas.u * cells) + cells * np.floor(canvas.v * cells)).astype(int)
    return np.where(gap, 0.6, tone[cell])


@dataclass(frozen=True, kw_only=True)
class SurfaceKind:
    """One kind of surface.

    Attributes:
        pattern: Function that draws its pattern.
        reflectance: Least and largest mean reflectance of its textures.
        hue: Least and largest hue, in turns (0 red, 1/3 green, 2/3 blue).
        saturation: Least and largest saturation of the linear colour.
        roughness: Roughness, 0 (mirror) to 1 (matt); the ranges of roughness are our choice.
        metres: Length of a texture's side in m; our choice, as the sizes of the patterns.
        metallic: Whether it is bare metal.
        source: Source of the range of reflectance.
    """

    pattern: Pattern
    reflectance: tuple[float, float]
    hue: tuple[float, float] = (0.0, 1.0)
    saturation: tuple[float, float] = (0.0, 0.15)
    roughness: tuple[float, float]
    metres: float = 1.0
    metallic: bool = False
    source: str


SURFACES: dict[str, SurfaceKind] = {
    "light_wood": SurfaceKind(
        pattern=_wood, reflectance=(0.3, 0.6), hue=(0.06, 0.11), saturation=(0.4, 0.65), metres=0.6,
        roughness=(0.3, 0.8),
        source="DIAL: wood, light, 0.30 to 0.60",
    ),
    "dark_wood": SurfaceKind(
        pattern=_wood, reflectance=(0.1, 0.2), hue=(0.03, 0.08), saturation=(0.5, 0.8), metres=0.6,
        roughness=(0.25, 0.8),
        source="DIAL: wood, dark, 0.10 to 0.15; OSRAM: dark walnut 0.2",
    ),
    "laminate": SurfaceKind(
        pattern=_plain, reflectance=(0.2, 0.8), roughness=(0.2, 0.6),
        source="OSRAM: mid-grey 0.2 to white 0.8",
    ),
    "plastic": SurfaceKind(
        pattern=_plain, reflectance=(0.03, 0.8), saturation=(0.2, 0.9), roughness=(0.15, 0.6),
        source="Lagarde: 0.03 and more; OSRAM: white 0.8",
    ),
    "paint": SurfaceKind(
        pattern=_plain, reflectance=(0.5, 0.8), saturation=(0.0, 0.3), roughness=(0.7, 1.0),
        source="EN 12464-1: walls 0.5 to 0.8",
    ),
    "cloth": SurfaceKind(
        pattern=_cloth, reflectance=(0.05, 0.7), saturation=(0.0, 0.7), metres=0.25, roughness=(0.9, 1.0),
        source="Lagarde: 0.03 to 0.9 for everything that is not metal; our choice within",
    ),
    "concrete": SurfaceKind(
        pattern=_concrete, reflectance=(0.2, 0.3), hue=(0.08, 0.16), saturation=(0.0, 0.12), roughness=(0.8, 1.0),
        source="DIAL: concrete, untreated, 0.20 to 0.30",
    ),
    "metal": SurfaceKind(
        pattern=_metal, reflectance=(0.45, 0.6), hue=(0.08, 0.16), saturation=(0.0, 0.08), metres=0.5,
        roughness=(0.2, 0.5), metallic=True,
        source="steel 0.56 at normal incidence (Lagarde), less if brushed or oxidized",
    ),
    "stone": SurfaceKind(
        pattern=_stone, reflectance=(0.1, 0.5), hue=(0.0, 0.12), saturation=(0.0, 0.2), metres=0.5,
        roughness=(0.1, 0.5),
        source="Lagarde: 0.03 to 0.9 for everything that is not metal; our choice within",
    ),
    "cork": SurfaceKind(
        pattern=_cork, reflectance=(0.2, 0.35), hue=(0.05, 0.09), saturation=(0.45, 0.65), metres=0.3,
        roughness=(0.9, 1.0),
        source="between light and dark wood (DIAL); our choice",
    ),
    "chequered": SurfaceKind(
        pattern=_chequered, reflectance=(0.2, 0.6), saturation=(0.3, 0.8), metres=0.4, roughness=(0.9, 1.0),
        source="as cloth",
    ),
    "bricks": SurfaceKind(
        pattern=_bricks, reflectance=(0.1, 0.2), hue=(0.0, 0.05), saturation=(0.4, 0.7), metres=0.6,
        roughness=(0.8, 1.0),
        source="DIAL: brick 0.10 to 0.15; OSRAM: red brick 0.2",
    ),
    "tiles": SurfaceKind(
        pattern=_tiles, reflectance=(0.4, 0.75), saturation=(0.0, 0.25), metres=0.6, roughness=(0.1, 0.4),
        source="OSRAM: tiles, white, 0.7",
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Surface:
    """Texture of a surface.

    Attributes:
        pixels: sRGB, uint8, ``(SIZE, SIZE, 3)``.
        roughness: Roughness, 0 (mirror) to 1 (matt).
        metallic: Whether it is bare metal.
    """

    pixels: NDArray[np.uint8]
    roughness: float
    metallic: bool


@functools.lru_cache(maxsize=256)
def draw_surface(kind: str, *, seed: int, index: int) -> Surface:
    """Return texture number ``index`` of a kind of surface in `SURFACES`; it depends on these arguments alone."""
    random, made = generator(seed, f"surface/{kind}", index), SURFACES[kind]
    hue, saturation, wanted, roughness = (
        random.uniform(*pair) for pair in (made.hue, made.saturation, made.reflectance, made.roughness)
    )
    pattern = np.clip(made.pattern(_Canvas(random)), 0.0, None)
    colour = np.array(colorsys.hsv_to_rgb(hue, saturation, 1.0))
    colour /= colour @ LUMA
    light = (pattern / pattern.mean() * wanted)[..., None] * colour
    # A bright saturated colour exceeds 1 in a channel; it is mixed with grey, so that its luminance stays.
    grey, most = light @ LUMA, light.max(axis=-1)
    excess = np.where(most > 1.0, np.clip((most - 1.0) / np.maximum(most - grey, 1e-9), 0.0, 1.0), 0.0)[..., None]
    light = light + excess * (grey[..., None] - light)
    pixels = np.rint(255.0 * linear_to_srgb(np.clip(light, 0.0, 1.0))).astype(np.uint8)
    return Surface(pixels=pixels, roughness=roughness, metallic=made.metallic)
