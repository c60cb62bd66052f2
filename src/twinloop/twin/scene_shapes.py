"""From the ``scene:`` section to shapes: every member of every set, with its pieces, mass and colour."""

from __future__ import annotations

import colorsys
from pathlib import Path

import numpy as np

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
from twinloop.twin.mesh_files import read_piece
from twinloop.twin.scene_spec import LARGEST, ShapeSpec
from twinloop.twin.shapes import PRIMITIVES, Piece, Shape, bounds, fitted, primitive, procedural


def expand(spec: ShapeSpec, folder: Path, *, where: str) -> list[Shape]:
    """The shapes of one entry: ``count`` of them, a function of the entry and its files alone.

    Raises:
        InputError: a shape that does not fit its box, or a mesh that is no solid body; names the entry.
    """
    return [_shape(spec, index, folder, f"{where} ({spec.name or spec.shape})") for index in range(spec.count)]


def _shape(spec: ShapeSpec, index: int, folder: Path, where: str) -> Shape:
    rng = generator(spec.seed, f"scene/{spec.name or spec.shape}", index)
    low, high = spec.scale
    try:
        pieces = _pieces(spec, index, float(rng.uniform(low, high)), folder, where)
    except InputError as error:
        message = str(error)
        raise InputError(message if message.startswith(where) else f"{where}: {message}") from error
    low_corner, high_corner = bounds(pieces)
    largest = float((high_corner - low_corner).max())
    if spec.shape == "mesh" and largest > LARGEST:
        raise InputError(f"{where}: the mesh is {largest:.4g} m large. If its file is in mm, say `size:` in m.")
    volume = sum(piece.volume for piece in pieces)
    name = spec.name or spec.shape
    return Shape(
        name=name if spec.count == 1 else f"{name}_{index}",
        pieces=pieces,
        extents=high_corner - low_corner,
        mass=spec.mass if spec.mass is not None else spec.density * volume,
        rgba=(*(spec.color or _color(rng)), 1.0),
    )


def _pieces(spec: ShapeSpec, index: int, factor: float, folder: Path, where: str) -> tuple[Piece, ...]:
    extents = spec.extents(factor)
    if spec.shape == "mesh":
        read = tuple(read_piece(folder / name, accept_hull=spec.hull, where=where) for name in spec.files)
        low, high = bounds(read)
        return fitted(read, factor * (high - low) if extents is None else extents)
    if extents is None:
        raise InputError(f"a {spec.shape} needs a size")
    if spec.shape in PRIMITIVES:
        return primitive(spec.shape, extents)
    return procedural(spec.shape, extents, seed=spec.seed, index=index, **spec.options)


def _color(rng: np.random.Generator) -> tuple[float, float, float]:
    """A muted colour of any hue."""
    hue, saturation, value = rng.uniform((0.0, 0.35, 0.45), (1.0, 0.75, 0.9))
    return colorsys.hsv_to_rgb(float(hue), float(saturation), float(value))
