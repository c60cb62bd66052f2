"""Convert a model's textures and background to linear light, and compute texture coordinates as in MuJoCo."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.imaging import LUMA
from twinloop.render.protocol import decode_srgb

Array = NDArray[np.float64]
_CHANNELS = (1, 3, 4)
_ROLES = (mujoco.mjtTextureRole.mjTEXROLE_RGB, mujoco.mjtTextureRole.mjTEXROLE_RGBA)


@dataclass(frozen=True, kw_only=True)
class TextureMapping:
    """Mapping of a texture onto a shape: a flat image repeated along x and y, or a cube around the shape.

    Attributes:
        cube: whether it is a cube.
        repeat: numbers of repetitions along x and y.
        uniform: whether ``repeat`` counts repetitions per metre instead of per shape.
        side: side length of a cube's face in pixels.
        faces: number of faces in the image of a cube, stacked vertically; 1 if all sides show the same face.
    """

    cube: bool
    repeat: tuple[float, float] = (1.0, 1.0)
    uniform: bool = False
    side: int = 1
    faces: int = 1


def find_texture(model: mujoco.MjModel, material: int) -> int:
    """Return the id of the texture that colours a material; -1 if it has none."""
    if material < 0:
        return -1
    return max(int(model.mat_texid[material, int(role)]) for role in _ROLES)


def make_mapping(model: mujoco.MjModel, material: int) -> TextureMapping | None:
    """Return the mapping of a material's texture; None if the material has no texture."""
    texture = find_texture(model, material)
    if texture < 0:
        return None
    return TextureMapping(
        cube=int(model.tex_type[texture]) != mujoco.mjtTexture.mjTEXTURE_2D,
        repeat=tuple(model.mat_texrepeat[material].tolist()),
        uniform=bool(model.mat_texuniform[material]),
        side=int(model.tex_width[texture]),
        faces=int(model.tex_height[texture] // model.tex_width[texture]) or 1,
    )


def read_pixels(model: mujoco.MjModel, texture: int) -> NDArray[np.uint8]:
    """Return the sRGB pixels ``(height, width, 3)`` of a texture; a grey texture has three equal values.

    Raises:
        InputError: If the pixels are not grey, RGB or RGBA.
    """
    height, width, channels = (int(getattr(model, f"tex_{name}")[texture]) for name in ("height", "width", "nchannel"))
    start = int(model.tex_adr[texture])
    if channels not in _CHANNELS or start < 0 or height * width == 0:
        name = model.texture(texture).name or texture
        raise InputError(
            f"The texture {name} is not an image: {height}×{width} pixels of {channels} channels. "
            "The mitsuba renderer takes grey, RGB and RGBA."
        )
    data = model.tex_data[start : start + height * width * channels].reshape(height, width, channels)
    return np.repeat(data, 3, axis=-1) if channels == 1 else data[..., :3]


def read_linear_light(model: mujoco.MjModel, texture: int) -> NDArray[np.float32]:
    """Return the pixels of a texture as linear light ``(height, width, 3)``."""
    return decode_srgb(read_pixels(model, texture))


def sheet_coordinates(points: Array, repeat: Array) -> Array:
    """Return texture coordinates ``(…, 2)`` of points for a flat image that is projected along z and repeated.

    Along x and along y, the image is repeated ``repeat`` times between the coordinates -1 and 1. A point (x, y) has the
    texture coordinates s = (repeat x - 1) / 2 to the right and t = (-repeat y - 1) / 2 downwards in the image, as in
    MuJoCo's classic renderer for planes.
    """
    return points[..., :2] * repeat * [0.5, -0.5] - 0.5


def wrapped_coordinates(kind: int, points: Array) -> Array:
    """Return texture coordinates of an image applied once to each side of a box, or once around a round shape.

    These rules were measured in images of MuJoCo 4.0. On a plane and a box, u increases along x, but along y on the
    sides ±x of a box. On a round shape, u increases with the azimuth. On all shapes v increases downwards.

    Args:
        kind: geom type: plane, box, sphere, ellipsoid, cylinder or capsule.
        points: corners of m triangles ``(m, 3, 3)`` of a shape scaled to ±1.

    Returns:
        Coordinates (u, v) of the corners, ``(m, 3, 2)``.
    """
    x, y, z = np.moveaxis(points, -1, 0)
    if kind in {int(mujoco.mjtGeom.mjGEOM_PLANE), int(mujoco.mjtGeom.mjGEOM_BOX)}:
        normal = np.abs(np.cross(points[:, 1] - points[:, 0], points[:, 2] - points[:, 0]))
        side = normal.argmax(axis=-1)[:, None]
        return np.stack([(1.0 + np.where(side == 0, y, x)) / 2.0, (1.0 - np.where(side == 2, y, z)) / 2.0], axis=-1)
    azimuth = np.arctan2(y, x) / (2.0 * np.pi) % 1.0
    azimuth += (azimuth < 0.5) & (np.ptp(azimuth, axis=1, keepdims=True) > 0.5)  # triangles across the seam
    if kind == mujoco.mjtGeom.mjGEOM_CYLINDER:
        cap = np.ptp(z, axis=1, keepdims=True) < 1e-9
        return np.stack([np.where(cap, (1.0 + x) / 2.0, azimuth), (1.0 + np.where(cap, y, -z)) / 2.0], axis=-1)
    polar = np.arccos(np.clip(z, -1.0, 1.0)) / np.pi
    if kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
        cap = (np.abs(np.linalg.norm(points, axis=-1) - 1.0) < 1e-6).all(axis=1, keepdims=True)
        polar = np.where(cap, 2.0 * polar, (1.0 - z) / 2.0)
    return np.stack([azimuth, polar], axis=-1)


def cube_coordinates(points: Array, mapping: TextureMapping) -> Array:
    """Return texture coordinates ``(m, 3, 2)`` of triangles in the image of a cube's stacked faces.

    The faces are stacked from top to bottom in the order +x, -x, +y, -y, +z, -z (OpenGL 4.6, section 8.13). All corners
    of a triangle are mapped to one face: the face that a ray from the cube's centre through the triangle's centroid
    hits.

    Args:
        points: corners of m triangles around the cube's centre, ``(m, 3, 3)``.
        mapping: the cube.
    """
    face, across, down = _face_coordinates(points.mean(axis=1), points)
    margin = 0.5 / mapping.side  # filtering must not reach into the next face
    u = np.clip((across + 1.0) / 2.0, margin, 1.0 - margin)
    v = np.clip((down + 1.0) / 2.0, margin, 1.0 - margin)
    return np.stack([u, (v + (face[:, None] if mapping.faces > 1 else 0)) / mapping.faces], axis=-1)


def look_up_cube(image: NDArray[np.float32], directions: Array) -> NDArray[np.float32]:
    """Return the values ``(n, 3)`` of a cube texture in given directions, with bilinear interpolation within a face.

    Args:
        image: faces of ``side`` × ``side`` pixels, ``(6 · side, side, 3)``, in the order and orientation of
            `cube_coordinates`; or one face ``(side, side, 3)`` for all sides.
        directions: directions from the cube's centre in the cube's axes, of any length, ``(n, 3)``.
    """
    side = image.shape[1]
    faces = image.shape[0] // side
    face, across, down = _face_coordinates(directions, directions[:, None])
    x, y = (np.clip((value[:, 0] + 1.0) / 2.0 * side - 0.5, 0.0, side - 1.0) for value in (across, down))
    first = side * (face if faces > 1 else np.zeros_like(face))
    left, top = x.astype(int), y.astype(int)
    right, low = np.minimum(left + 1, side - 1), np.minimum(top + 1, side - 1)
    s, t = (x - left)[:, None], (y - top)[:, None]
    upper = image[first + top, left] * (1.0 - s) + image[first + top, right] * s
    lower = image[first + low, left] * (1.0 - s) + image[first + low, right] * s
    return (upper * (1.0 - t) + lower * t).astype(np.float32)


def _face_coordinates(directions: Array, points: Array) -> tuple[NDArray[np.intp], Array, Array]:
    """Choose a face of a cube for each of m directions, and project k points per direction to this face.

    Args:
        directions: directions from the cube's centre, ``(m, 3)``. Each chooses the face that it hits.
        points: positions relative to the cube's centre, ``(m, k, 3)``, such as the k = 3 corners of a triangle. They
            are projected along the line through the centre.

    Returns:
        Number of the face ``(m,)``, and the position of each point across and down the face, ``(m, k)`` each, from -1
        to 1.
    """
    rows = np.arange(len(directions))
    axis = np.abs(directions).argmax(axis=-1)
    negative = directions[rows, axis] < 0.0
    face = 2 * axis + negative
    across = np.take_along_axis(points, _ACROSS[face][:, None, None], axis=-1)[..., 0] * _SIGNS[face, 0][:, None]
    down = np.take_along_axis(points, _DOWN[face][:, None, None], axis=-1)[..., 0] * _SIGNS[face, 1][:, None]
    away = np.abs(np.take_along_axis(points, axis[:, None, None], axis=-1)[..., 0])
    away = np.maximum(away, 1e-12)
    return face, across / away, down / away


# By face: coordinates along the image's rows and columns, and their signs.
_ACROSS = np.array([2, 2, 0, 0, 0, 0])
_DOWN = np.array([1, 1, 2, 2, 1, 1])
_SIGNS = np.array([[-1, -1], [1, -1], [1, 1], [1, -1], [1, -1], [-1, -1]], dtype=np.float64)


Image = NDArray[np.float32]
_ROWS, _COLUMNS = 16, 32
_HAZE = 0.05  # our choice: a twentieth of white


def sky_faces(model: mujoco.MjModel) -> Image | None:
    """Return the linear light of the background (skybox), cube faces stacked vertically; None if the model has none."""
    skies = np.flatnonzero(model.tex_type == mujoco.mjtTexture.mjTEXTURE_SKYBOX)
    return read_linear_light(model, int(skies[0])) if len(skies) else None


def look_up_sky(faces: Image | None, directions: NDArray[np.float64]) -> Image:
    """Return the background in world directions ``(n, 3)`` as linear light; black if ``faces`` is None.

    MuJoCo rotates its skybox by 90° about x, so the upper face of the cube is in the direction +z.

    Args:
        faces: result of `sky_faces`.
        directions: directions in world axes, ``(n, 3)``.
    """
    if faces is None:
        return np.zeros((len(directions), 3), dtype=np.float32)
    return look_up_cube(faces, directions[:, [0, 2, 1]] * [1.0, 1.0, -1.0])


def surrounding_light(faces: Image | None, ambient: NDArray[np.float64]) -> Image:
    """Return the radiance of the light from all directions, an image ``(16, 32, 3)``.

    Rows are latitudes from the zenith, columns are longitudes. The image is the background plus grey of 0.05 in all
    directions (`_HAZE`). If the background is black, the light is therefore uniform. The sum is scaled so that a white
    horizontal surface that faces up is as bright as under the ambient light alone.

    Args:
        faces: faces of the background, from `sky_faces`; None for no background, which gives the ambient light in all
            directions.
        ambient: radiance of the ambient light, ``(3,)``.
    """
    if faces is None:
        return np.broadcast_to(ambient, (_ROWS, _COLUMNS, 3)).astype(np.float32)
    directions, weight = _directions()
    shape = look_up_sky(faces, directions.reshape(-1, 3)).reshape(_ROWS, _COLUMNS, 3) + _HAZE
    from_above = weight * np.maximum(directions[..., 2], 0.0)
    level = float((shape @ LUMA * from_above).sum() / from_above.sum())
    return (shape * (ambient / level)).astype(np.float32)


def _directions() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the world direction of each pixel of the environment image ``(16, 32)``, and its relative solid angle.

    Mitsuba's environment has y up and begins at -z; the rotation matrix `ENVIRONMENT` converts it to world axes (z up).
    """
    polar = np.pi * np.arange(_ROWS)[:, None] / (_ROWS - 1)
    azimuth = 2.0 * np.pi * np.arange(_COLUMNS)[None] / _COLUMNS
    own = np.stack(
        [np.sin(polar) * np.sin(azimuth), np.cos(polar) + 0.0 * azimuth, -np.sin(polar) * np.cos(azimuth)], axis=-1
    )
    return own @ ENVIRONMENT.T, np.sin(polar) + 0.0 * azimuth


ENVIRONMENT = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
"""Rotation that turns the zenith of Mitsuba's environment from +y to +z."""
