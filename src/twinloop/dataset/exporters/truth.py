"""What is known of episodes beyond the dataset: by the simulator that made them, and by whoever labels them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import StoredSimulation

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something to read at a time of the episode, in s."""

    time: float
    text: str
    level: Literal["info", "warning", "error"] = "info"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a body looks like: ``size`` as MuJoCo has it for its kind, placed in the body's frame; colours 0 to 1.

    A ``mesh`` has ``vertices`` ``(n, 3)`` in m and ``faces`` ``(m, 3)``.
    """

    body: str
    kind: Literal["box", "sphere", "ellipsoid", "capsule", "cylinder", "mesh"]
    size: tuple[float, float, float]
    position: tuple[float, float, float]
    quaternion: tuple[float, float, float, float]
    rgba: tuple[float, float, float, float]
    vertices: NDArray[np.float32] | None = None
    faces: NDArray[np.int32] | None = None


@dataclass(frozen=True, kw_only=True)
class Bodies:
    """Where every body is at every frame, in the world: ``position`` ``(T, n, 3)``, ``quaternion`` wxyz."""

    names: tuple[str, ...]
    position: Array
    quaternion: Array
    shapes: tuple[Shape, ...] = ()


def _nothing(_index: int) -> None:
    return None


def _no_events(_index: int) -> Sequence[Event]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What the simulator, and whoever labels episodes, know of them beyond the dataset; each is asked when needed.

    ``command`` is what the twin takes, ``position`` or ``torque``. ``notes`` are said with every export.
    """

    simulation: Callable[[int], StoredSimulation | None] = _nothing
    bodies: Callable[[int], Bodies | None] = _nothing
    events: Callable[[int], Sequence[Event]] = _no_events
    command: str = "position"
    notes: tuple[str, ...] = ()


NOTHING = Truth()
