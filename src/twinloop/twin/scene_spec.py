"""Define and check the ``scene:`` section of a twin's YAML: permanent objects and random clutter on a support.

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

``size`` has the full extents of the bounding box in m, and ``mass`` is in kg. In ``sets``, ``count`` is a number of
variants of a shape; in ``clutter``, it is the smallest and largest number of objects in a world. ``position``, ``x``
and ``y`` are in m in the world frame; ``x`` and ``y`` are the ranges of random positions.
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
MAX_LENGTH = 2.0
Length = Annotated[float, Field(ge=0.001, le=MAX_LENGTH)]
Channel = Annotated[float, Field(ge=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ShapeSpec(_Strict):
    """Shape entry of the ``scene:`` section: one shape, or several random variants of it.

    Attributes:
        name: Name of the shape; by default its kind.
        shape: Kind of shape.
        size: Extents of the bounding box in m, one number or x, y, z. A mesh without ``size`` has the size in its file,
            in m.
        scale: Range of a factor on the size, which is drawn for every variant.
        mass: Mass in kg; by default it is computed from the density.
        density: Density in kg/m³. The default is between a hollow 3D print and wood; our choice, no published range.
        color: Red, green and blue from 0 to 1; by default random.
        count: Number of variants.
        seed: Seed of the variants.
        files: Mesh files of the convex parts of a ``mesh``, one file per part.
        hull: Whether a mesh that is not convex is replaced by its convex hull; otherwise it is an error.
        sides: Number of sides of a ``prism``.
        taper: Size of the top of a ``prism`` divided by the size of its base.
        corners: Number of corners of a ``polyhedron``.
        exponents: Exponents of a ``superquadric``, for vertical and horizontal sections; 1 is round, near 0 is square.
        thickness: Thickness of the arms of an ``ell`` (L shape), as a fraction of its extents.
        wall: Wall thickness of a ``mug``, as a fraction of its radius.
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
        """Options of a procedural shape that are given in the YAML, by the argument names of the shape's function."""
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
        given = {key for key in ("sides", "taper", "corners", "exponents", "thickness", "wall") if getattr(self, key)}
        unsupported = sorted(given - set(self.options))
        if self.scale[0] > self.scale[1]:
            raise ValueError(f"scale is a range [low, high], given [{self.scale[0]:g}, {self.scale[1]:g}]")
        if unsupported:
            raise ValueError(f"a {self.shape} has no {', '.join(unsupported)}")
        if self.shape != "mesh" and self.size is None:
            raise ValueError(f"a {self.shape} needs a size: its bounding box in m, one number or x, y, z")
        if (self.shape == "mesh") != bool(self.files):
            raise ValueError("only a mesh has files, and a mesh needs them: one file for each of its convex parts")
        if self.exponents and not all(0.05 <= value <= 2 for value in self.exponents):
            raise ValueError("exponents of a convex superquadric are from 0.05 to 2")
        return self

    def extents(self, factor: float) -> NDArray[np.float64] | None:
        """Return the extents of the bounding box times a factor in m, shape ``(3,)``, or None if no size is given."""
        return None if self.size is None else factor * np.broadcast_to(np.asarray(self.size, dtype=np.float64), 3)


class ObjectSpec(ShapeSpec):
    """Entry of a permanent object in the ``scene:`` section.

    Attributes:
        position: Position x, y in m. Parameters of the twin may override it.
        yaw: Rotation about the vertical in rad.
    """

    position: tuple[float, float]
    yaw: float = 0.0

    @model_validator(mode="after")
    def _check_single(self) -> Self:
        if self.count != 1 or not self.name:
            raise ValueError("an object is a single shape with a name; shapes for random draws belong in `sets`")
        return self


class OcclusionSpec(_Strict):
    """Settings for clutter that hides part of an object from a camera.

    One object of the clutter group is placed between the camera and the object, and falls onto the table there.

    Attributes:
        camera: Name of the camera.
        object: Name of the object that is partly hidden.
        distance: Range of the distance in m between the hidden object and the object that hides it.
        visible: Accepted range of the fraction of the object that the camera sees.
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
            raise ValueError(f"visible is a range [low, high] of fractions from 0 to 1, given {list(self.visible)}")
        return self


class ClutterSpec(_Strict):
    """Settings of one group of random objects, which are dropped into a region of the table.

    Attributes:
        set: Name of the set from which shapes are drawn.
        count: Smallest and largest number of objects.
        x: Range of positions along x in m.
        y: Range of positions along y in m.
        clear: Smallest horizontal distance in m between the edge of an object of the group and the centre of an object
            of the task.
        overlap: Whether objects of the group may fall onto each other.
        upright: Whether objects are rotated only about the vertical; otherwise their orientation is random.
        occlude: Settings for hiding an object of the task from a camera, or None.
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
    """Content of the ``scene:`` section of a twin's YAML; the module has an example.

    Attributes:
        support: Name of the geom that supports the objects.
        like: Name of the body whose contact settings the objects get; None for the default.
        rolling: Smallest rolling friction of the objects in m. A ball of radius r does not roll on a slope below
            rolling / r. With 0.5 mm, a ball of radius 12 mm stays on slopes up to 2.4 degrees, for tables that are not
            quite level; our choice, no published range.
        sets: Lists of shapes by set name, from which clutter is drawn.
        objects: Permanent objects.
        clutter: Groups of random objects by group name.
    """

    support: str = "table"
    like: str | None = None
    rolling: float = Field(default=0.0005, ge=0)
    sets: dict[Name, Annotated[list[ShapeSpec], Field(min_length=1)]] = {}
    objects: list[ObjectSpec] = []
    clutter: dict[Name, ClutterSpec] = {}
