"""Define the input and output of every renderer, and convert display values to linear light."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.imaging import linear_to_srgb, srgb_to_linear
from twinloop.core.records import freeze_array


def decode_srgb(values: ArrayLike) -> NDArray[np.float32]:
    """Return linear light from 0 to 1 of 8-bit sRGB (IEC 61966-2-1), by a table of its 256 values."""
    return _DECODED[np.asarray(values, dtype=np.uint8)]


def encode_srgb(light: ArrayLike) -> NDArray[np.uint8]:
    """Return 8-bit sRGB of linear light, rounded; values outside 0 to 1 are clipped."""
    linear = np.clip(np.asarray(light, dtype=np.float32), 0.0, 1.0)
    return np.rint(255.0 * linear_to_srgb(linear)).astype(np.uint8)


_DECODED = srgb_to_linear(np.arange(256) / 255.0).astype(np.float32)


Fields: TypeAlias = Mapping[str, NDArray]
"""Model fields that differ from the compiled model, by MuJoCo's name.

Each has the field's shape, for all frames, or a leading axis of ``n`` frames, for different worlds or parameters that
change with time.
"""

Observed: TypeAlias = dict[str, dict[str, NDArray]]
"""Channels by camera and channel name, ``(n, height, width, …)`` of the types in `CHANNELS`, first row at the top."""

Frames: TypeAlias = dict[str, NDArray[np.uint8]]
"""Images by camera name, ``(n, height, width, 3)`` uint8 sRGB, first row at the top."""


@dataclass(frozen=True, kw_only=True)
class ImageChannel:
    """Content of an image per pixel: element type, numbers per pixel (none: one, without an axis), meaning."""

    dtype: np.dtype
    width: int | None
    meaning: str


def _channel(dtype: type, width: int | None, meaning: str) -> ImageChannel:
    return ImageChannel(dtype=np.dtype(dtype), width=width, meaning=meaning)


CHANNELS: dict[str, ImageChannel] = {
    "rgb": _channel(np.uint8, 3, "sRGB"),
    "linear": _channel(
        np.float32,
        3,
        "linear Rec. 709 light, 1 at sRGB white, more if brighter; a renderer that computes display "
        "values decodes them",
    ),
    "depth": _channel(np.float32, None, "distance in m along the optical axis, inf without a surface"),
    "geom": _channel(np.int32, None, "id of the model's geom, -1 for none"),
    "normal": _channel(
        np.float32, 3, "unit normal of the surface towards the camera, in its axes x right, y down, z forward; 0: none"
    ),
}


@dataclass(frozen=True, kw_only=True)
class SceneStates:
    """Positions of everything in ``n`` frames; arrays are copied and frozen.

    ``qpos`` is ``(n, nq)``; ``mocap_pos`` ``(n, nmocap, 3)`` and ``mocap_quat`` ``(n, nmocap, 4)`` wxyz are None
    if the model has no mocap bodies, or if these stay as compiled.
    """

    qpos: NDArray[np.float64]
    mocap_pos: NDArray[np.float64] | None = None
    mocap_quat: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "qpos", freeze_array(np.atleast_2d(self.qpos)))
        for name, width in (("mocap_pos", 3), ("mocap_quat", 4)):
            value = getattr(self, name)
            if value is None:
                continue
            object.__setattr__(self, name, freeze_array(value).reshape(len(self), -1, width))

    def __len__(self) -> int:
        return len(self.qpos)

    def take(self, rows: ArrayLike | slice) -> SceneStates:
        """Return some of the frames, in the order given."""
        rows = rows if isinstance(rows, slice) else np.asarray(rows)
        return SceneStates(
            qpos=self.qpos[rows],
            mocap_pos=None if self.mocap_pos is None else self.mocap_pos[rows],
            mocap_quat=None if self.mocap_quat is None else self.mocap_quat[rows],
        )


class Renderer(Protocol):
    """Renderer of images of one compiled model, from cameras chosen when it was opened.

    The same states and fields give the same pixels, independent of earlier images. ``channels`` are those of `CHANNELS`
    that it supports. Not safe to share between threads. A subclass needs only `observe` and `close`.
    """

    name: str
    cameras: tuple[str, ...]
    channels: tuple[str, ...]
    height: int
    width: int

    def render(self, states: SceneStates, fields: Fields | None = None) -> Frames:
        """Return colour images of every state from every camera.

        Args:
            states: ``n`` frames.
            fields: model fields (camera pose, lights, materials, sizes), for all frames or per frame; None for the
                model as compiled.

        Raises:
            InputError: the states do not fit the model, or a field is unknown, misshapen or fixed at compile time.
        """
        return {name: seen["rgb"] for name, seen in self.observe(states, fields).items()}

    def observe(
        self, states: SceneStates, fields: Fields | None = None, *, channels: Sequence[str] = ("rgb",)
    ) -> Observed:
        """Return several channels of every state from every camera, pixel by pixel in agreement; arguments as `render`.

        Raises:
            UnknownNameError: an unknown channel, or one that this renderer does not support.
            InputError: as `render`.
        """
        ...

    def close(self) -> None:
        """Free all resources; a second call does nothing."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_size(height: int, width: int) -> None:
    """Refuse image sizes that no renderer supports.

    Raises:
        InputError: a side is below 1 or above 8192 pixels.
    """
    if not (1 <= height <= 8192 and 1 <= width <= 8192):
        raise InputError(f"An image of {height}×{width} pixels is impossible. Both sides must be from 1 to 8192.")


def check_channels(wanted: Sequence[str], made: Sequence[str], *, renderer: str) -> None:
    """Refuse channels that do not exist, or that a renderer does not support.

    Raises:
        UnknownNameError: the message has the nearest supported names.
    """
    for name in wanted:
        if name not in made:
            raise UnknownNameError("channel", name, made, where=f"the renderer {renderer}")


def new_channels(cameras: Sequence[str], channels: Sequence[str], frames: int, height: int, width: int) -> Observed:
    """Return empty arrays for a renderer to fill."""
    kinds = {name: CHANNELS[name] for name in channels}
    return {
        camera: {
            name: np.empty((frames, height, width, *(() if kind.width is None else (kind.width,))), dtype=kind.dtype)
            for name, kind in kinds.items()
        }
        for camera in cameras
    }
