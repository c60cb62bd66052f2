"""Read panoramas: images of all directions (HDRI), the background and the light of random rooms (`twin.places`).

A panorama is an equirectangular image, twice as wide as high: rows from the zenith down, columns clockwise seen from
above, the middle column in the direction +x of the world. OpenEXR and Radiance files have linear light; other images
are sRGB, in which the sun is no brighter than white.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.files import sha256_file
from twinloop.core.imaging import LUMA, linear_to_srgb, srgb_to_linear

Array = NDArray[np.float64]
CODECS = {".hdr": "hdr", ".exr": "exr", ".jpg": "mjpeg", ".jpeg": "mjpeg", ".png": "png"}  # by the end of a name
_SIDE = 512  # pixels of a face's side: 6 per degree
_FEWEST = 16  # rows
_BLUR = math.radians(4.0)  # standard deviation of the blur in which the brightest direction is found
_LOWEST = math.radians(15.0)  # least elevation of the lamp with shadows; our choice
_CONE = math.radians(20.0)  # light from less than this angle from the brightest direction counts as the lamp's
_MIDDLE = 0.2  # linear value of the median brightness in the background; our choice


@dataclass(frozen=True, kw_only=True)
class Panorama:
    """File of a panorama.

    Attributes:
        path: The file.
        sha256: Hash of its content, which enters the hash of a plan instead of the path.
    """

    path: Path
    sha256: str


@dataclass(frozen=True, kw_only=True)
class PanoramaLight:
    """Light of a panorama: one lamp, and light from all directions.

    Attributes:
        towards: Unit vector towards the lamp, ``(3,)``.
        share: Share of the lamp in the light on a horizontal surface.
        lamp, ambient: Linear colours of lamp and other light, ``(3,)`` each, with luminance 1.
    """

    towards: Array
    share: float
    lamp: Array
    ambient: Array

    def to_numbers(self) -> list[float]:
        """Return the light as numbers, in which a model keeps it."""
        return [*self.towards, self.share, *self.lamp, *self.ambient]

    @classmethod
    def from_numbers(cls, numbers: Array) -> PanoramaLight:
        """Return the light that `to_numbers` converted."""
        return cls(towards=numbers[:3], share=float(numbers[3]), lamp=numbers[4:7], ambient=numbers[7:10])


def find_panoramas(value: Any, *, where: str) -> tuple[Panorama, ...]:
    """Return the panoramas of a list of files and folders.

    Args:
        value: A path, or a list of paths, absolute or relative to the working directory; from a folder, all images.
        where: Place of the value, for error messages.

    Raises:
        InputError: If the value is no path, a file does not exist or is no panorama, or a folder has none.
    """
    given = value if isinstance(value, list) else [value]
    if not given or not all(isinstance(item, str) and item for item in given):
        raise InputError(f"{where}: panoramas are a file, a folder, or a list of these; given {value!r:.60}.")
    files = list[Path]()
    for item in given:
        path = Path(item)
        inside = sorted(file for file in path.iterdir() if file.suffix.lower() in CODECS) if path.is_dir() else [path]
        if not inside:
            raise InputError(f"{where}: the folder {path} has no image. Panoramas end in {', '.join(CODECS)}.")
        files += inside
    for file in files:
        try:
            read_panorama(file)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
    return tuple(Panorama(path=file.resolve(), sha256=sha256_file(file)) for file in files)


def read_panorama(path: Path) -> Array:
    """Return the linear light of a panorama, ``(rows, 2 · rows, 3)``, with about 2,048 columns if it has more.

    Raises:
        InputError: If the file does not exist, is no image, or is not twice as wide as high.
    """
    import av

    try:
        decoder = av.VideoCodecContext.create(CODECS[path.suffix.lower()], "r")
        frame = [*decoder.decode(av.Packet(path.read_bytes())), *decoder.decode(None)][0]
        linear = "f32" in frame.format.name or "f16" in frame.format.name
        pixels = frame.to_ndarray(format="gbrpf32le" if linear else "rgb24")
    except (OSError, av.error.FFmpegError, KeyError, IndexError, ValueError) as error:
        reason = "is no image" if path.exists() else "does not exist"
        raise InputError(f"The panorama {path} {reason}. Give a file that ends in {', '.join(CODECS)}.") from error
    rows, columns = pixels.shape[:2]
    if abs(columns - 2 * rows) > 2 or rows < _FEWEST:
        raise InputError(
            f"The panorama {path} has {columns}×{rows} pixels. An equirectangular image of all directions is twice as "
            f"wide as high, and has at least {_FEWEST} rows."
        )
    block = max(1, columns // (4 * _SIDE))
    kept = pixels[: rows // block * block, : columns // block * block]
    light = np.nan_to_num(kept.astype(np.float64), nan=0.0, posinf=0.0).clip(min=0.0)
    light = light if linear else srgb_to_linear(light / 255.0)
    light = light.reshape(rows // block, block, columns // block, block, 3).mean(axis=(1, 3))
    if not light.any():
        raise InputError(f"The panorama {path} is black. Give an image with light.")
    return light


def add_panoramas(spec: mujoco.MjSpec, panoramas: Iterable[Panorama], *, prefix: str) -> None:
    """Add panoramas to a model specification: a background texture each, and a number field with its light.

    Renderers show the first background of a model, which stays the model's own, or is black if it has none.

    Raises:
        InputError: If a file changed since it was found.
    """
    skybox = mujoco.mjtTexture.mjTEXTURE_SKYBOX
    if not any(texture.type == skybox for texture in spec.textures):
        _add_faces(spec, f"{prefix}/none", np.zeros((6, 1, 1, 3), dtype=np.uint8))
    for i, panorama in enumerate(panoramas):
        if sha256_file(panorama.path) != panorama.sha256:
            raise InputError(f"The panorama {panorama.path} changed since this run was planned. Restore the file.")
        image = read_panorama(panorama.path)
        _add_faces(spec, f"{prefix}/{i}", make_faces(image, _SIDE))
        numbers = measure_light(image).to_numbers()
        spec.add_numeric(name=f"{prefix}/{i}", data=numbers, size=len(numbers))


def _add_faces(spec: mujoco.MjSpec, name: str, faces: NDArray[np.uint8]) -> None:
    side = faces.shape[1]
    kind = mujoco.mjtTexture.mjTEXTURE_SKYBOX
    texture = spec.add_texture(name=name, type=kind, width=side, height=6 * side, nchannel=3)
    texture.data = faces.tobytes()


def make_faces(image: Array, side: int) -> NDArray[np.uint8]:
    """Return a panorama as six faces of a cube in sRGB, in MuJoCo's order and axes, ``(6, side, side, 3)``.

    The median brightness becomes 0.2, and what is brighter than 1 is clipped.
    """
    from scipy.ndimage import map_coordinates

    across, down = np.meshgrid(*2 * [(np.arange(side) + 0.5) / side * 2.0 - 1.0])
    one = np.ones_like(across)
    # Faces of a cube map (OpenGL 4.6, table 8.19); MuJoCo turns it by 90° about x, so that its +y is upwards.
    cube = [(one, -down, -across), (-one, -down, across), (across, one, down), (across, -one, -down),
            (across, -down, one), (-across, -down, -one)]  # fmt: skip
    faces = list[NDArray[np.uint8]]()
    light = image @ LUMA
    level = _MIDDLE / float(np.median(light[light > 0.0]))
    rows, columns = image.shape[:2]
    for x, y, z in cube:
        direction = np.stack([x, -z, y], axis=-1)
        row, column = _find_pixel(direction / np.linalg.norm(direction, axis=-1, keepdims=True), rows, columns)
        values = [
            map_coordinates(image[..., c], [row.clip(0, rows - 1), column], order=1, mode="grid-wrap") for c in range(3)
        ]
        shown = linear_to_srgb(np.clip(np.stack(values, axis=-1) * level, 0.0, 1.0))
        faces.append(np.round(255.0 * shown).astype(np.uint8))
    return np.stack(faces)


def _find_pixel(direction: Array, rows: int, columns: int) -> tuple[Array, Array]:
    """Return the row and the column of a panorama in which unit vectors ``(…, 3)`` point."""
    latitude, longitude = np.arcsin(direction[..., 2].clip(-1, 1)), np.arctan2(direction[..., 1], direction[..., 0])
    return (0.5 - latitude / np.pi) * rows - 0.5, (0.5 - longitude / (2.0 * np.pi)) * columns - 0.5


def measure_light(image: Array) -> PanoramaLight:
    """Return the light of a panorama: a lamp in the brightest direction above the horizon, and the rest.

    The lamp's light is that from within 20° of this direction, less what the rest of the image would send from there.
    """
    from scipy.ndimage import gaussian_filter1d

    rows, columns = image.shape[:2]
    latitude = (0.5 - (np.arange(rows) + 0.5) / rows) * np.pi
    longitude = (0.5 - (np.arange(columns) + 0.5) / columns) * 2.0 * np.pi
    up, flat = np.sin(latitude)[:, None], np.cos(latitude)[:, None]
    directions = np.stack(np.broadcast_arrays(flat * np.cos(longitude), flat * np.sin(longitude), up), axis=-1)
    solid = np.broadcast_to(flat, (rows, columns))
    width = _BLUR / math.pi * rows
    smooth = gaussian_filter1d(gaussian_filter1d(image @ LUMA, width, axis=0), width, axis=1, mode="wrap")
    towards = directions[np.unravel_index(np.argmax(np.where(latitude[:, None] > _LOWEST, smooth, 0.0)), smooth.shape)]
    near = directions @ towards > math.cos(_CONE)
    falling = solid * np.maximum(up, 0.0)
    rest = np.average(image[~near], axis=0, weights=solid[~near])
    lamp = np.maximum(image[near] - rest, 0.0).T @ falling[near]
    total = np.einsum("ijc,ij->c", image, falling)
    share = float(np.clip((lamp @ LUMA) / max(float(total @ LUMA), 1e-12), 0.0, 1.0))
    return PanoramaLight(towards=towards, share=share, lamp=_unit(lamp), ambient=_unit(np.maximum(total - lamp, 0.0)))


def _unit(colour: Array) -> Array:
    """Return a colour with luminance 1; white for black."""
    brightness = float(colour @ LUMA)
    return colour / brightness if brightness > 0 else np.ones(3)
