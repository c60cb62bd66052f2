"""What every renderer takes and gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import frozen

Fields: TypeAlias = Mapping[str, NDArray]
"""Model fields of one world that differ from the compiled model, by MuJoCo's name and in the field's own shape."""

Frames: TypeAlias = dict[str, NDArray[np.uint8]]
"""Pictures by camera name, ``(n, height, width, 3)`` uint8 sRGB, first row at the top."""


@dataclass(frozen=True, kw_only=True)
class SceneStates:
    """Where everything is in ``n`` frames of one world; arrays are copied and frozen.

    ``qpos`` is ``(n, nq)``; ``mocap_pos`` ``(n, nmocap, 3)`` and ``mocap_quat`` ``(n, nmocap, 4)`` wxyz are None
    where the model has no mocap bodies, or where these stay as compiled.
    """

    qpos: NDArray[np.float64]
    mocap_pos: NDArray[np.float64] | None = None
    mocap_quat: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "qpos", frozen(np.atleast_2d(self.qpos)))
        for name, width in (("mocap_pos", 3), ("mocap_quat", 4)):
            value = getattr(self, name)
            if value is None:
                continue
            object.__setattr__(self, name, frozen(value).reshape(len(self), -1, width))

    def __len__(self) -> int:
        return len(self.qpos)

    def take(self, rows: ArrayLike | slice) -> SceneStates:
        """Some of the frames, in the order given."""
        rows = rows if isinstance(rows, slice) else np.asarray(rows)
        return SceneStates(
            qpos=self.qpos[rows],
            mocap_pos=None if self.mocap_pos is None else self.mocap_pos[rows],
            mocap_quat=None if self.mocap_quat is None else self.mocap_quat[rows],
        )


class Renderer(Protocol):
    """Makes pictures of one compiled model, from cameras chosen when it was opened.

    The same states and fields give the same pixels, whatever was rendered before. What a renderer makes beside
    colour (depth, ids, normals) comes as further methods of the same arguments, so that a renderer without them
    stays a renderer. Not safe to share between threads.
    """

    name: str
    cameras: tuple[str, ...]
    height: int
    width: int

    def render(self, states: SceneStates, fields: Fields | None = None) -> Frames:
        """Colour pictures of every state from every camera.

        Args:
            states: ``n`` frames of one world.
            fields: that world's model fields (camera pose, lights, materials, sizes); None for the model as compiled.

        Raises:
            InputError: the states do not fit the model, or a field is unknown, misshapen or fixed at compile time.
        """
        ...

    def close(self) -> None:
        """Free what the renderer holds; a second call does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def check_size(height: int, width: int) -> None:
    """Refuse picture sizes that no renderer makes.

    Raises:
        InputError: a side is below 1 or above 8192 pixels.
    """
    if not (1 <= height <= 8192 and 1 <= width <= 8192):
        raise InputError(f"A picture of {height}×{width} pixels cannot be made. Both sides must lie in 1…8192.")
