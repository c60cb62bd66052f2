"""Define the interface of all renderers (states in, images out), and convert between sRGB values and linear light."""

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
    """Convert 8-bit sRGB values (IEC 61966-2-1) to linear light from 0 to 1, with a table of all 256 values."""
    return _DECODED[np.asarray(values, dtype=np.uint8)]


def encode_srgb(light: ArrayLike) -> NDArray[np.uint8]:
    """Convert linear light to rounded 8-bit sRGB values; light outside 0 to 1 is clipped."""
    linear = np.clip(np.asarray(light, dtype=np.float32), 0.0, 1.0)
    return np.rint(255.0 * linear_to_srgb(linear)).astype(np.uint8)


_DECODED = srgb_to_linear(np.arange(256) / 255.0).astype(np.float32)


Fields: TypeAlias = Mapping[str, NDArray]
"""Model fields that differ from the compiled model, by MuJoCo's name (``geom_rgba``, ``cam_pos``, …).

An array has the field's own shape if all frames share the value. It has a leading axis of length n if each of n frames
has a value, because the frames belong to different worlds or because a parameter changes with time.
"""

ChannelArrays: TypeAlias = dict[str, dict[str, NDArray]]
"""Rendered channels by camera name and channel name, each ``(n, height, width, …)`` for n frames.

`CHANNELS` defines the element type and the last axis of each channel. The first row is the top of the image.
"""

Frames: TypeAlias = dict[str, NDArray[np.uint8]]
"""Colour images by camera name, ``(n, height, width, 3)`` uint8 sRGB for n frames; the first row is the top."""


@dataclass(frozen=True, kw_only=True)
class ImageChannel:
    """Description of one channel that renderers can compute, such as colour or depth.

    Attributes:
        dtype: element type of its arrays.
        width: numbers per pixel, which is the length of the last axis; None for one number per pixel and no such axis.
        meaning: meaning and unit of the numbers.
    """

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
    """Poses of a model in n frames, as the input of a renderer; the arrays are copied and made read-only.

    Attributes:
        qpos: generalized positions of MuJoCo, ``(n, nq)``.
        mocap_pos: positions of the mocap bodies in m, ``(n, nmocap, 3)``. None if the model has no mocap bodies, or if
            they keep the positions of the compiled model.
        mocap_quat: orientations of the mocap bodies as quaternions wxyz, ``(n, nmocap, 4)``; None as for ``mocap_pos``.
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
        """Return the selected frames, in the order of ``rows`` (frame indices or a slice)."""
        rows = rows if isinstance(rows, slice) else np.asarray(rows)
        return SceneStates(
            qpos=self.qpos[rows],
            mocap_pos=None if self.mocap_pos is None else self.mocap_pos[rows],
            mocap_quat=None if self.mocap_quat is None else self.mocap_quat[rows],
        )


class Renderer(Protocol):
    """Renderer for images of one compiled model; cameras and image size are chosen when it is opened.

    The same states and fields give the same pixels, independent of earlier calls. A renderer must not be shared between
    threads. A subclass needs to implement only `observe` and `close`.

    Attributes:
        name: name of the renderer, such as ``gl``.
        cameras: names of the model's cameras that it renders.
        channels: names of the channels in `CHANNELS` that it supports.
        height, width: size of its images in pixels.
    """

    name: str
    cameras: tuple[str, ...]
    channels: tuple[str, ...]
    height: int
    width: int

    def render(self, states: SceneStates, fields: Fields | None = None) -> Frames:
        """Return colour images of every state from every camera.

        Args:
            states: poses of n frames.
            fields: model fields that differ from the compiled model (camera poses, lights, materials, sizes), shared by
                all frames or one per frame. None renders the compiled model.

        Returns:
            Images ``(n, height, width, 3)`` uint8 sRGB by camera name.

        Raises:
            InputError: If the states do not fit the model, or a field is unknown, has a wrong shape or is fixed at
                compile time.
        """
        return {name: seen["rgb"] for name, seen in self.observe(states, fields).items()}

    def observe(
        self, states: SceneStates, fields: Fields | None = None, *, channels: Sequence[str] = ("rgb",)
    ) -> ChannelArrays:
        """Return the requested channels of every state from every camera; all channels agree pixel by pixel.

        Args:
            states: poses of n frames.
            fields: model fields that differ from the compiled model; see `render`.
            channels: names of channels in `CHANNELS`.

        Returns:
            Arrays ``(n, height, width, …)`` by camera name and channel name.

        Raises:
            UnknownNameError: If a channel is unknown, or not supported by this renderer.
            InputError: If the states or the fields do not fit the model; see `render`.
        """
        ...

    def detach(self) -> None:
        """Let another thread use or close the renderer; without effect where any thread may."""
        return

    def close(self) -> None:
        """Free all resources. A second call does nothing."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_size(height: int, width: int) -> None:
    """Check that renderers support an image size.

    Raises:
        InputError: If the height or the width is below 1 or above 8192 pixels.
    """
    if not (1 <= height <= 8192 and 1 <= width <= 8192):
        raise InputError(f"An image of {height}×{width} pixels is impossible. Both sides must be from 1 to 8192.")


def check_channels(requested: Sequence[str], supported: Sequence[str], *, renderer: str) -> None:
    """Check that a renderer supports all requested channels.

    Args:
        requested: requested channels.
        supported: channels that the renderer supports.
        renderer: name of the renderer for the error message.

    Raises:
        UnknownNameError: If a requested channel is not supported. The message has the nearest supported names.
    """
    for name in requested:
        if name not in supported:
            raise UnknownNameError("channel", name, supported, where=f"the renderer {renderer}")


def new_channels(
    cameras: Sequence[str], channels: Sequence[str], frames: int, height: int, width: int
) -> ChannelArrays:
    """Allocate uninitialized arrays for the channels of some frames, for a renderer to fill.

    Returns:
        Arrays ``(frames, height, width, …)`` by camera name and channel name, with the element types of `CHANNELS`.
    """
    kinds = {name: CHANNELS[name] for name in channels}
    return {
        camera: {
            name: np.empty((frames, height, width, *(() if kind.width is None else (kind.width,))), dtype=kind.dtype)
            for name, kind in kinds.items()
        }
        for camera in cameras
    }
