"""Create procedural textures and add them to a model as a pool of materials, from which each world selects by index."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.seeds import uniforms

Mask = NDArray[np.float64]
Pattern = Callable[["_Canvas"], Mask]

POOL = "pool"
MAX_POOL = 900  # the classic renderer holds 1000 textures (mjMAXTEXTURE) and 1000 materials (mjMAXMATERIAL)


class _Canvas:
    """Pixel coordinates and random numbers of one texture; they depend only on the seed and the index of the texture.

    Args:
        seed: Seed of the texture pool.
        index: Index of the texture.
        height: Height in pixels.
        width: Width in pixels.
    """

    def __init__(self, seed: int, index: int, height: int, width: int) -> None:
        self.seed, self.index, self.shape = seed, index, (height, width)
        self.v, self.u = np.meshgrid(
            (np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width, indexing="ij"
        )
        self.numbers = uniforms(seed, "texture", [index], size=16)[0]

    def draw_integer(self, number: int, low: int, high: int) -> int:
        """Return a random integer from ``low`` to ``high``, inclusive.

        Args:
            number: Index, from 0 to 15, of one of the texture's 16 uniform random numbers, which determines the
                integer.
            low: Smallest integer.
            high: Largest integer.
        """
        return low + int(self.numbers[number] * (high - low + 1))

    def draw_uniforms(self, name: str, size: int) -> NDArray[np.float64]:
        """Return uniform random numbers in (0, 1) of this texture, shape ``(size,)``.

        Args:
            name: Name of the random stream; different names give independent numbers.
            size: Number of random numbers.
        """
        return uniforms(self.seed, f"texture/{name}", [self.index], size=size)[0]

    def draw_noise(self, name: str, cells: int) -> Mask:
        """Return smooth value noise in (0, 1), shape ``(height, width)``.

        Random values on a periodic lattice are interpolated with cubic Hermite polynomials.

        Args:
            name: Name of the random stream.
            cells: Number of lattice cells along each side.
        """
        lattice = self.draw_uniforms(f"{name}/{cells}", cells * cells).reshape(cells, cells)
        row, column = self.v * cells, self.u * cells
        i, j = row.astype(int), column.astype(int)
        s, t = (x * x * (3 - 2 * x) for x in (row - i, column - j))
        i, j, below, right = i % cells, j % cells, (i + 1) % cells, (j + 1) % cells
        upper = lattice[i, j] * (1 - t) + lattice[i, right] * t
        lower = lattice[below, j] * (1 - t) + lattice[below, right] * t
        return upper * (1 - s) + lower * s


def _noise(canvas: _Canvas) -> Mask:
    cells = canvas.draw_integer(8, 2, 6)
    octaves = [canvas.draw_noise("octave", cells * 2**k) * 0.5**k for k in range(3)]
    return np.sum(octaves, axis=0) / 1.75


def _checker(canvas: _Canvas) -> Mask:
    cells = 2 * canvas.draw_integer(8, 1, 6)
    return ((canvas.u * cells).astype(int) + (canvas.v * cells).astype(int)) % 2.0


def _stripes(canvas: _Canvas) -> Mask:
    # Integer frequencies along both sides, so that the repeated texture has no seams.
    phase = canvas.draw_integer(8, 1, 8) * canvas.u + canvas.draw_integer(9, -4, 4) * canvas.v + canvas.numbers[10]
    wave = np.sin(2 * np.pi * phase)
    return np.clip(0.5 + wave * (0.6 + 8 * canvas.numbers[11]), 0, 1)


def _wood(canvas: _Canvas) -> Mask:
    bend = canvas.draw_noise("bend", 3) * (0.1 + 0.3 * canvas.numbers[9])
    rings = np.sin(2 * np.pi * canvas.draw_integer(8, 3, 9) * (canvas.v + bend))
    return 0.5 + 0.4 * rings + 0.1 * (2 * canvas.draw_noise("fibre", 24) - 1)


def _speckle(canvas: _Canvas) -> Mask:
    grain = canvas.draw_uniforms("speckle", canvas.u.size).reshape(canvas.shape)
    return (grain < 0.03 + 0.25 * canvas.numbers[8]).astype(float)


def _gradient(canvas: _Canvas) -> Mask:
    angle = 2 * np.pi * canvas.numbers[8]
    ramp = np.cos(angle) * canvas.u + np.sin(angle) * canvas.v
    return (ramp - ramp.min()) / (ramp.max() - ramp.min())


PATTERNS: dict[str, Pattern] = {
    "noise": _noise,
    "checker": _checker,
    "stripes": _stripes,
    "wood": _wood,
    "speckle": _speckle,
    "gradient": _gradient,
}


def texture_pool(size: int, *, seed: int, height: int = 64, width: int = 64, first: int = 0) -> NDArray[np.uint8]:
    """Return random textures as uint8 sRGB images, shape ``(size, height, width, 3)``, each a pattern of two colours.

    Texture ``i`` depends only on ``seed``, ``first + i`` and the resolution, so a larger pool begins with the textures
    of a smaller one.

    Args:
        size: Number of textures.
        seed: Seed of the pool.
        height: Height in pixels.
        width: Width in pixels.
        first: Index of the first texture.
    """
    pool = np.empty((size, height, width, 3), dtype=np.uint8)
    names = list(PATTERNS)
    for i in range(size):
        canvas = _Canvas(seed, first + i, height, width)
        mask = PATTERNS[names[canvas.draw_integer(0, 0, len(names) - 1)]](canvas)[..., None]
        background, foreground = canvas.numbers[1:4], canvas.numbers[4:7]
        pool[i] = np.round(255 * np.clip(background + mask * (foreground - background), 0, 1))
    return pool


def add_texture_pool(
    spec: mujoco.MjSpec,
    size: int,
    *,
    seed: int,
    resolution: int = 64,
    mapping: Literal["cube", "2d"] = "cube",
    repeat: tuple[float, float] = (1.0, 1.0),
) -> list[str]:
    """Add random textures to a model specification, in place, each with a matt material ``pool/<i>``.

    Args:
        spec: Model specification, changed in place.
        size: Number of textures.
        seed: Seed of the pool.
        resolution: Width and height of a texture in pixels.
        mapping: ``cube`` puts the texture on each face and suits boxes, cylinders and meshes. ``2d`` projects it onto
            the local x–y plane, so that it is stretched on vertical sides.
        repeat: Number of repetitions along x and y.

    Returns:
        Names of the materials, in the order of the textures.

    Raises:
        InputError: If ``size`` is more than 900 (MuJoCo's renderer has room for 1000 textures), or if the specification
            has a pool already.
    """
    if not 0 <= size <= MAX_POOL:
        raise InputError(
            f"A texture pool of {size} is not possible: MuJoCo's renderer supports 0 to {MAX_POOL} textures."
        )
    if spec.material(f"{POOL}/0") is not None:
        raise InputError("The model already has a texture pool. Add the pool to a model without one.")
    names = []
    for i, image in enumerate(texture_pool(size, seed=seed, height=resolution, width=resolution)):
        name = f"{POOL}/{i}"
        sides = np.tile(image, (6, 1, 1)) if mapping == "cube" else image
        kind = mujoco.mjtTexture.mjTEXTURE_CUBE if mapping == "cube" else mujoco.mjtTexture.mjTEXTURE_2D
        texture = spec.add_texture(name=name, type=kind, width=resolution, height=len(sides), nchannel=3)
        texture.data = sides.tobytes()
        material = spec.add_material(name=name, texrepeat=repeat, specular=0.0, shininess=0.0)
        material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = name
        names.append(name)
    return names


def pool_indices(model: mujoco.MjModel) -> NDArray[np.intp]:
    """Return the material ids of a compiled model's texture pool, in the pool's order; empty if there is no pool.

    The texture pool is the set of materials from which a randomization draws.
    """
    ids = {}
    for i in range(model.nmat):
        match = re.fullmatch(rf"{POOL}/(\d+)", model.material(i).name)
        if match:
            ids[int(match[1])] = i
    return np.array([ids[k] for k in sorted(ids)], dtype=np.intp)
