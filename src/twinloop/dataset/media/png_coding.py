"""Encode numeric images (depth, masks, normals, optical flow) as lossless PNG that other tools can read.

- depth: 16 bits, number of steps of a given unit along the optical axis; 0: no surface; 65535: that far or farther.
- instance: 16 bits, ids of the name table; 0: no object.
- semantic: 8 bits, numbers of the class table; 0: background.
- normals: 8-bit RGB in camera axes (x right, y down, z forward), (n_x, n_y, n_z) = (RGB - 128) / 127; all 128: no
normal.
- flow: 16-bit RGB as in the KITTI benchmark (Menze and Geiger 2015): (u, v) = (R - 32768, G - 32768) / 64 px to the
next frame; B is a set of bits: 1: the flow is known, 2: the point is visible in the next frame.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import DatasetError

FLOW_UNIT = 1.0 / 64.0
FLOW_VALID, FLOW_SEEN = 1, 2
_FLOW_ZERO = 1 << 15
_FORMATS = {(2, 1): "gray", (2, 2): "gray16be", (3, 1): "rgb24", (3, 2): "rgb48be"}
# zlib's fastest level with prediction from the row above: half the time of higher levels and 4/3 of their bytes.
_OPTIONS = {"compression_level": "1", "pred": "up", "threads": "1"}


def encode_png(image: NDArray[Any]) -> bytes:
    """Encode a uint8 or uint16 image, grey ``(H, W)`` or RGB ``(H, W, 3)``, as PNG; equal images give equal bytes."""
    import av

    codec = av.CodecContext.create("png", "w")
    codec.height, codec.width = image.shape[:2]
    codec.pix_fmt = _FORMATS[image.ndim, image.itemsize]
    codec.time_base, codec.options = Fraction(1), _OPTIONS
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format=codec.pix_fmt)
    return b"".join(bytes(packet) for packet in codec.encode(frame))  # pyright: ignore[reportAttributeAccessIssue]


def decode_png(data: bytes) -> NDArray[Any]:
    """Decode a PNG file to an array of the shape and type given to `encode_png`.

    Raises:
        DatasetError: If the data is not a PNG.
    """
    import av
    import av.error

    codec = av.CodecContext.create("png", "r")
    codec.thread_count = 1  # starting threads would take longer
    try:
        frames = codec.decode(av.Packet(data))  # pyright: ignore[reportAttributeAccessIssue]
    except av.error.FFmpegError as error:
        raise DatasetError(
            f"An image of {len(data)} bytes is not a PNG ({error}). Restore the file that contains it."
        ) from error
    return frames[0].to_ndarray()


def encode_depth(depth: ArrayLike, unit: float) -> NDArray[np.uint16]:
    """Encode distances in m as whole numbers of steps.

    Args:
        depth: Distances in m; inf or NaN if there is no surface, which is encoded as 0.
        unit: Size of a step in m. Distances of 65535 steps or more are encoded as 65535.
    """
    counts = np.rint(np.asarray(depth, dtype=np.float64) / unit)
    near = np.clip(np.where(np.isfinite(counts), counts, 0.0), 0.0, 65535.0)
    return np.where(np.isfinite(counts) & (near == 0.0), 1.0, near).astype(np.uint16)


def decode_depth(counts: NDArray[np.uint16], unit: float) -> NDArray[np.float32]:
    """Convert stored counts (multiples of ``unit``) to distances in m.

    The distance is inf if there is no surface or it is too far for the encoding.

    Args:
        counts: Encoded image.
        unit: Distance of one count in m.
    """
    known = (counts > 0) & (counts < 65535)
    return np.where(known, counts * unit, np.inf).astype(np.float32)


def encode_normals(normals: ArrayLike) -> NDArray[np.uint8]:
    """Encode unit normal vectors ``(…, 3)`` with 8 bits per component.

    A component n is encoded as 127 n, rounded, plus 128. A zero vector means no normal; all its components become 128.
    """
    return (np.rint(127.0 * np.asarray(normals, dtype=np.float32)) + 128.0).astype(np.uint8)


def decode_normals(coded: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode normal vectors ``(…, 3)`` and normalize them; pixels that have no normal get zero vectors.

    The vectors are in the axes in which they were encoded; stored annotations have camera axes (x right, y down, z
    forward).

    Args:
        coded: Result of `encode_normals`: 127 n + 128 for each component n; 128 three times if there is no normal.
    """
    vector = coded.astype(np.float32) - 128.0
    length = np.linalg.norm(vector, axis=-1, keepdims=True)
    return np.divide(vector, length, out=np.zeros_like(vector), where=length > 0)


def encode_flow(flow: NDArray[np.floating[Any]], visible: NDArray[np.bool_]) -> NDArray[np.uint16]:
    """Encode optical flow to the next frame as an image of shape ``(…, 3)``.

    The first two channels are the displacements to the right and down, in steps of 1/64 px plus 32768; 0 if unknown.
    The third channel is 0 for an unknown flow, 1 for a known one, and 3 for a known one to a visible point.

    Args:
        flow: Displacement to the right and down in px, shape ``(…, 2)``; NaN if unknown. A flow of more than 512 px is
            encoded as unknown.
        visible: True for points that are visible in the next frame, shape ``(…)``.
    """
    across, down = (flow[..., i].astype(np.float32) * np.float32(1.0 / FLOW_UNIT) + (_FLOW_ZERO + 0.5) for i in (0, 1))
    known = (across >= 0.0) & (across < 65536.0) & (down >= 0.0) & (down < 65536.0)  # no comparison holds for nan
    coded = np.zeros((*known.shape, 3), dtype=np.uint16)
    np.copyto(coded[..., 0], across, where=known, casting="unsafe")  # truncated after adding half a count: rounded
    np.copyto(coded[..., 1], down, where=known, casting="unsafe")
    coded[..., 2] = FLOW_VALID * known + FLOW_SEEN * (known & visible)
    return coded


def decode_flow(coded: NDArray[np.uint16]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Decode optical flow to the next frame.

    Args:
        coded: Result of `encode_flow`, shape ``(…, 3)``: displacements to the right and down, in steps of 1/64 px plus
            32768; then the sum of 1 for a known flow and 2 for a point that is visible in the next frame.

    Returns:
        Displacement to the right and down in px, shape ``(…, 2)``, NaN if unknown; and the mask of points that are
        visible in the next frame, shape ``(…)``.
    """
    bits = coded[..., 2]
    flow = (coded[..., :2].astype(np.float32) - _FLOW_ZERO) * np.float32(FLOW_UNIT)
    return np.where((bits & FLOW_VALID)[..., None] > 0, flow, np.nan).astype(np.float32), (bits & FLOW_SEEN) > 0
