"""Read the ``scene:`` section of a twin's YAML: permanent objects, random objects, and their regions.

::

    scene:
      support: table                 # the geom that supports the objects
      like: cube                     # contact settings of every object: those of this body's geom
      sets:
        household:
          - {shape: mug, size: [0.05, 0.035, 0.04], mass: 0.05}
          - {shape: polyhedron, size: 0.03, count: 6, seed: 1}
          - {shape: mesh, files: [bolt.stl], mass: 0.02}
      objects:
        - {name: can, shape: cylinder, size: [0.03, 0.03, 0.05], mass: 0.04, position: [0.30, 0.15]}
      clutter:
        distractors: {set: household, count: [0, 5], x: [0.12, 0.34], y: [-0.2, 0.2]}
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]
Region = tuple[float, float]
Positive = Annotated[float, Field(gt=0)]
# In m, of objects on a table: a larger number was probably meant in mm or cm; our choice.
LARGEST = 2.0
Length = Annotated[float, Field(ge=0.001, le=LARGEST)]
Channel = Annotated[float, Field(ge=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ShapeSpec(_Strict):
    """One shape, or ``count`` random variants of it.

    ``size`` is the bounding box in m: one number or x, y, z. ``scale`` is the range of a factor on it, drawn per
    variant. A mesh without ``size`` has the size in its file, in m. ``mass`` is in kg; by default it is computed from
    ``density``, 500 kg/m³: between a hollow print and wood; our choice, no published range.
    """

    name: Name = ""
    shape: Literal[
        "box", "cylinder", "sphere", "capsule", "ellipsoid", "prism", "polyhedron", "superquadric", "ell", "mug", "mesh"
    ]
    size: Length | tuple[Length, Length, Length] | None = None
    scale: tuple[Positive, Positive] = (1.0, 1.0)
    mass: Positive | None = None
    density: Positive = 500.0
    color: tuple[Channel, Channel, Channel] | None = None
    count: int = Field(default=1, ge=1, le=1000)
    seed: int = Field(default=0, ge=0)
    files: list[str] = []
    hull: bool = False
    sides: int | None = Field(default=None, ge=3, le=32)
    taper: float | None = Field(default=None, gt=0, le=1)
    corners: int | None = Field(default=None, ge=6, le=64)
    exponents: tuple[float, float] | None = None
    thickness: float | None = Field(default=None, gt=0, lt=1)
    wall: float | None = Field(default=None, gt=0, lt=1)

    @property
    def options(self) -> dict[str, float | int | tuple[float, float]]:
        """Options of a procedural shape, by the argument names of its function."""
        names = {
            "prism": ("sides", "taper"),
            "polyhedron": ("corners",),
            "superquadric": ("exponents",),
            "ell": ("thickness",),
            "mug": ("wall",),
        }
        return {key: value for key in names.get(self.shape, ()) if (value := getattr(self, key)) is not None}

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        said = {key for key in ("sides", "taper", "corners", "exponents", "thickness", "wall") if getattr(self, key)}
        foreign = sorted(said - set(self.options))
        if self.scale[0] > self.scale[1]:
            raise ValueError(f"scale is a range [low, high], given [{self.scale[0]:g}, {self.scale[1]:g}]")
        if foreign:
            raise ValueError(f"a {self.shape} has no {', '.join(foreign)}")
        if self.shape != "mesh" and self.size is None:
            raise ValueError(f"a {self.shape} needs a size: its bounding box in m, one number or x, y, z")
        if (self.shape == "mesh") != bool(self.files):
            raise ValueError("a mesh has files, and only a mesh: its convex parts, one file each")
        if self.exponents and not all(0.05 <= value <= 2 for value in self.exponents):
            raise ValueError("exponents of a convex superquadric are from 0.05 to 2")
        return self

    def extents(self, factor: float) -> NDArray[np.float64] | None:
        """Return the bounding box in m times a factor, ``(3,)``, or None without a size."""
        return None if self.size is None else factor * np.broadcast_to(np.asarray(self.size, dtype=np.float64), 3)


class ObjectSpec(ShapeSpec):
    """A permanent object at ``position`` (x, y in m), which parameters may override."""

    position: tuple[float, float]
    yaw: float = 0.0

    @model_validator(mode="after")
    def _check_single(self) -> Self:
        if self.count != 1 or not self.name:
            raise ValueError("an object is a single shape with a name; shapes for random draws belong in `sets`")
        return self


class OcclusionSpec(_Strict):
    """Occlusion: an object of a group is dropped between ``camera`` and ``object``, ``distance`` (m) before ``object``.

    ``visible`` is the accepted range of the visible fraction of ``object`` in the camera.
    """

    camera: str
    object: str
    distance: Region = (0.03, 0.08)
    visible: Region = (0.2, 0.9)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if not 0 < self.distance[0] <= self.distance[1]:
            raise ValueError(f"distance is a range [low, high] in m above 0, given {list(self.distance)}")
        if not 0 <= self.visible[0] < self.visible[1] <= 1:
            raise ValueError(f"visible is a range [low, high] of parts from 0 to 1, given {list(self.visible)}")
        return self


class ClutterSpec(_Strict):
    """Random objects: ``count[0]`` to ``count[1]`` of a set, dropped into a region of the table.

    ``clear`` is the smallest distance (m) of their edge from the centre of the task's objects. With ``overlap`` they
    may fall onto each other. With ``upright`` they are rotated about the vertical only.
    """

    set: Name
    count: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=1, le=32)]]
    x: Region
    y: Region
    clear: float = Field(default=0.05, ge=0)
    overlap: bool = False
    upright: bool = False
    occlude: OcclusionSpec | None = None

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        for key in ("count", "x", "y"):
            low, high = getattr(self, key)
            if low > high or (key != "count" and low == high):
                raise ValueError(f"{key} is a range [low, high], given [{low:g}, {high:g}]")
        return self


class SceneSpec(_Strict):
    """Content of the ``scene:`` section; see the module for an example.

    ``rolling`` is the smallest rolling friction of its objects, in m: a ball of radius r does not roll on a slope below
    rolling / r. With 0.5 mm a ball of radius 12 mm stays on slopes up to 2.4 degrees, for tables that are not quite
    level; our choice, no published range.
    """

    support: str = "table"
    like: str | None = None
    rolling: float = Field(default=0.0005, ge=0)
    sets: dict[Name, Annotated[list[ShapeSpec], Field(min_length=1)]] = {}
    objects: list[ObjectSpec] = []
    clutter: dict[Name, ClutterSpec] = {}
