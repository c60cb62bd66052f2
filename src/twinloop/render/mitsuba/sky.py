"""The background of a model: what is seen where nothing is, and the light that comes from all around."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.render.mitsuba.textures import linear, look_up_cube

Image = NDArray[np.float32]
_ROWS, _COLUMNS = 16, 32
_HAZE = 0.05  # our choice: a twentieth of white
_REC709 = np.array([0.2126, 0.7152, 0.0722])  # ITU-R BT.709-6: luminance of linear red, green and blue


def luminance(colour: NDArray) -> NDArray[np.float64]:
    """Of linear Rec. 709 colours ``(…, 3)``, 1 for white."""
    return np.asarray(colour, dtype=np.float64) @ _REC709


def sky_faces(model: mujoco.MjModel) -> Image | None:
    """Linear light of the background's stacked cube faces; None where the model has no background."""
    skies = np.flatnonzero(model.tex_type == mujoco.mjtTexture.mjTEXTURE_SKYBOX)
    return linear(model, int(skies[0])) if len(skies) else None


def seen_sky(faces: Image | None, directions: NDArray[np.float64]) -> Image:
    """What is seen of it in directions ``(n, 3)`` of the world; black where there is none.

    MuJoCo turns its sky by 90° about x: the upper face of the cube is that at +z.
    """
    if faces is None:
        return np.zeros((len(directions), 3), dtype=np.float32)
    return look_up_cube(faces, directions[:, [0, 2, 1]] * [1.0, 1.0, -1.0])


def surrounding_light(faces: Image | None, ambient: NDArray[np.float64]) -> Image:
    """Radiance from all around ``(16, 32, 3)``, as a picture of latitudes (from the zenith) and longitudes.

    It is coloured and graded as the background and a little `_HAZE` before it are (a black one gives even light), and
    scaled so that a white sheet that faces up and sees nothing else has the luminance of ``ambient`` ``(3,)``.
    """
    if faces is None:
        return np.broadcast_to(ambient, (_ROWS, _COLUMNS, 3)).astype(np.float32)
    directions, weight = _directions()
    shape = seen_sky(faces, directions.reshape(-1, 3)).reshape(_ROWS, _COLUMNS, 3) + _HAZE
    from_above = weight * np.maximum(directions[..., 2], 0.0)
    level = float((luminance(shape) * from_above).sum() / from_above.sum())
    return (shape * (ambient / level)).astype(np.float32)


def _directions() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """World directions of the picture's pixels, and the solid angles that they stand for, up to a factor.

    Mitsuba's own environment has y up and begins at −z; `ENVIRONMENT` turns it.
    """
    polar = np.pi * np.arange(_ROWS)[:, None] / (_ROWS - 1)
    azimuth = 2.0 * np.pi * np.arange(_COLUMNS)[None] / _COLUMNS
    own = np.stack(
        [np.sin(polar) * np.sin(azimuth), np.cos(polar) + 0.0 * azimuth, -np.sin(polar) * np.cos(azimuth)], axis=-1
    )
    return own @ ENVIRONMENT.T, np.sin(polar) + 0.0 * azimuth


ENVIRONMENT = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
"""Turns Mitsuba's environment, whose zenith is +y, so that it is +z."""
