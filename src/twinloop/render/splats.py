"""Define Gaussian splats, and read them from PLY files.

Gaussian splats represent a captured scene by coloured, semi-transparent ellipsoids (Kerbl et al., "3D Gaussian
Splatting for Real-Time Radiance Field Rendering", SIGGRAPH 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.documents import read_bytes
from twinloop.core.errors import InputError
from twinloop.core.records import freeze_array

_MOST_BYTES = 4 << 30  # ten times the file size of a scanned room
_SH0 = 0.28209479177387814
"""Value of the constant spherical harmonic (degree 0), 1 / (2 √π)."""

_NUMBERS = {
    **dict.fromkeys(("char", "int8"), "i1"),
    **dict.fromkeys(("uchar", "uint8"), "u1"),
    **dict.fromkeys(("short", "int16"), "i2"),
    **dict.fromkeys(("ushort", "uint16"), "u2"),
    **dict.fromkeys(("int", "int32"), "i4"),
    **dict.fromkeys(("uint", "uint32"), "u4"),
    **dict.fromkeys(("float", "float32"), "f4"),
    **dict.fromkeys(("double", "float64"), "f8"),
}
_COLUMNS = (
    ("position", ("x", "y", "z")),
    ("colour", ("f_dc_0", "f_dc_1", "f_dc_2")),
    ("opacity", ("opacity",)),
    ("scale", ("scale_0", "scale_1", "scale_2")),
    ("rotation", ("rot_0", "rot_1", "rot_2", "rot_3")),
)


@dataclass(frozen=True, kw_only=True)
class Splats:
    """Gaussian splats of a scene, ``n`` Gaussians; the arrays are copied and made read-only.

    Attributes:
        position: centres in m, ``(n, 3)``.
        rotation: quaternions wxyz, ``(n, 4)``; they are normalized.
        scale: standard deviations in m along each Gaussian's own axes, ``(n, 3)``.
        rgba: sRGB colour from 0 to 1, the same from all directions, and opacity at the centre, ``(n, 4)``.

    Raises:
        InputError: If the shapes do not fit each other, a scale is not positive, a rotation has length zero, or a
            number is not finite.
    """

    position: NDArray[np.float64]
    rotation: NDArray[np.float64]
    scale: NDArray[np.float64]
    rgba: NDArray[np.float64]

    def __post_init__(self) -> None:
        for name, width in (("position", 3), ("rotation", 4), ("scale", 3), ("rgba", 4)):
            value = np.asarray(getattr(self, name), dtype=np.float64)
            if value.shape != (len(self.position), width):
                raise InputError(
                    f"{name} of splats has shape {value.shape}. For {len(self.position)} splats it must be "
                    f"({len(self.position)}, {width})."
                )
            if not np.isfinite(value).all():
                raise InputError(f"{name} of splats has numbers that are not finite. Remove these splats first.")
            object.__setattr__(self, name, freeze_array(value))
        if not (self.scale > 0.0).all():
            raise InputError("The scale of a splat is its standard deviation in m; it must be positive.")
        length = np.linalg.norm(self.rotation, axis=-1, keepdims=True)
        if not (length > 0.0).all():
            raise InputError("The rotation of a splat is a quaternion wxyz; its length must not be zero.")
        object.__setattr__(self, "rotation", freeze_array(self.rotation / length))

    def __len__(self) -> int:
        return len(self.position)

    def transform_splats(self, position: ArrayLike, rotation: ArrayLike, scale: float = 1.0) -> Splats:
        """Return the splats scaled about the origin, rotated and moved, to place a captured scene in the world.

        Args:
            position: translation ``(3,)`` in m, applied last.
            rotation: rotation matrix ``(3, 3)`` from the axes of the capture to those of the world.
            scale: metres of the world per length unit of the capture.
        """
        from scipy.spatial.transform import Rotation

        turn = np.asarray(rotation, dtype=np.float64)
        own = Rotation.from_matrix(turn) * Rotation.from_quat(self.rotation, scalar_first=True)
        return Splats(
            position=scale * self.position @ turn.T + np.asarray(position, dtype=np.float64),
            rotation=own.as_quat(scalar_first=True),
            scale=scale * self.scale,
            rgba=self.rgba,
        )


def read_splats(path: Path) -> Splats:
    """Read Gaussian splats from a PLY file of a 3D Gaussian splatting program, in the file's frame and unit.

    The properties of its vertices are: ``scale_*``, logarithms of standard deviations; ``opacity``, a logit; ``rot_*``,
    a quaternion wxyz that need not be normalized; ``f_dc_*``, spherical harmonics of degree 0, which give the colour
    0.5 + 0.28209479 · ``f_dc_*``. Harmonics of higher degrees (``f_rest_*``) are ignored, so colour does not depend on
    the direction.

    Raises:
        InputError: If the file is not a binary little-endian PLY file, or lacks properties. The message has the missing
            properties.
    """
    content = read_bytes(path, _MOST_BYTES)
    table = _vertices(content, path)
    missing = [name for _, names in _COLUMNS for name in names if name not in (table.dtype.names or ())]
    if missing:
        raise InputError(
            f"{path} has no Gaussian splats, because its vertices have no {', '.join(missing)}. "
            "Export the splats as PLY."
        )
    columns = {key: np.stack([table[name].astype(np.float64) for name in names], -1) for key, names in _COLUMNS}
    colour = np.clip(0.5 + _SH0 * columns["colour"], 0.0, 1.0)
    opacity = 1.0 / (1.0 + np.exp(-columns["opacity"]))
    return Splats(
        position=columns["position"],
        rotation=columns["rotation"],
        scale=np.exp(columns["scale"]),
        rgba=np.concatenate([colour, opacity], axis=-1),
    )


def _vertices(content: bytes, path: Path) -> np.ndarray:
    """Return the vertices of a little-endian binary PLY file as a structured array.

    Args:
        content: bytes of the file.
        path: path of the file for error messages.

    Raises:
        InputError: If the content is not such a file.
    """
    head, mark, body = content.partition(b"end_header\n")
    lines = [line.split() for line in head.decode("ascii", errors="replace").splitlines()]
    if not mark or not lines or lines[0] != ["ply"]:
        raise InputError(f"{path} is not a PLY file. Give a PLY file of Gaussian splats.")
    if ["format", "binary_little_endian", "1.0"] not in lines:
        raise InputError(f"{path} is not in the PLY format binary_little_endian 1.0. Export it in this format.")
    elements = [i for i, line in enumerate(lines) if line[:1] == ["element"]]
    if not elements or lines[elements[0]][1] != "vertex":
        raise InputError(f"{path} does not begin with vertices. Export the splats as PLY.")
    count, last = int(lines[elements[0]][2]), [*elements, len(lines)][1]
    properties = [line for line in lines[elements[0] : last] if line[:1] == ["property"]]
    if any(line[1] not in _NUMBERS for line in properties):
        raise InputError(f"{path} has lists among the properties of its vertices. Export splats, which have none.")
    kind = np.dtype([(line[2], "<" + _NUMBERS[line[1]]) for line in properties])
    if len(body) < count * kind.itemsize:
        raise InputError(
            f"{path} is incomplete: {count} vertices of {kind.itemsize} bytes need more than its {len(body)} bytes. "
            "Copy or export it again."
        )
    return np.frombuffer(body, dtype=kind, count=count)
