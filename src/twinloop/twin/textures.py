"""Create a pool of procedural textures and add it to a model as materials, from which a world selects by index."""

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
    """Coordinates in [0, 1) and random numbers of one texture, which depend only on (seed, index)."""

    def __init__(self, seed: int, index: int, height: int, width: int) -> None:
        self.seed, self.index, self.shape = seed, index, (height, width)
        self.v, self.u = np.meshgrid(
            (np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width, indexing="ij"
        )
        self.numbers = uniforms(seed, "texture", [index], size=16)[0]

    def draw_integer(self, number: int, low: int, high: int) -> int:
        """Return an integer from low to high, inclusive, drawn by the ``number``-th uniform."""
        return low + int(self.numbers[number] * (high - low + 1))

    def draw_uniforms(self, name: str, size: int) -> NDArray[np.float64]:
        """Return ``size`` uniforms from a named random stream of this texture."""
        return uniforms(self.seed, f"texture/{name}", [self.index], size=size)[0]

    def draw_noise(self, name: str, cells: int) -> Mask:
        """Return smooth noise in (0, 1): a periodic lattice of ``cells`` × ``cells`` values, Hermite-interpolated."""
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
    """Return textures ``(size, height, width, 3)`` uint8 sRGB, each a pattern of two drawn colours.

    Texture ``i`` depends only on ``(seed, first + i)`` and its resolution, so a longer pool begins with a shorter one.
    """
    pool = np.empty((size, height, width, 3), dtype=np.uint8)
    names = list(PATTERNS)
    for i in range(size):
        canvas = _Canvas(seed, first + i, height, width)
        mask = PATTERNS[names[canvas.draw_integer(0, 0, len(names) - 1)]](canvas)[..., None]
        ground, figure = canvas.numbers[1:4], canvas.numbers[4:7]
        pool[i] = np.round(255 * np.clip(ground + mask * (figure - ground), 0, 1))
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
    """Add ``size`` textures and matt materials ``pool/<i>`` to a spec; return the materials' names in order.

    ``cube`` puts the texture on each face and suits boxes, cylinders and meshes; ``2d`` is projected onto the local
    x–y plane, ``repeat`` times along each side, and is stretched on vertical sides.

    Raises:
        InputError: the pool would be larger than the renderer's tables, or the spec has a pool already.
    """
    if not 0 <= size <= MAX_POOL:
        raise InputError(f"A texture pool of {size} is not possible, the renderer holds 0…{MAX_POOL}.")
    if spec.material(f"{POOL}/0") is not None:
        raise InputError("The model has a texture pool already. Compile from the spec without it.")
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
    """Return the material ids of a compiled model's pool, in the pool's order; empty without a pool."""
    found = {}
    for i in range(model.nmat):
        match = re.fullmatch(rf"{POOL}/(\d+)", model.material(i).name)
        if match:
            found[int(match[1])] = i
    return np.array([found[k] for k in sorted(found)], dtype=np.intp)
