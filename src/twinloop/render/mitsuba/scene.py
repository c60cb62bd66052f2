"""Convert a posed model to a Mitsuba scene, built once and then updated.

Every geom that the classic renderer shows (groups 0 to 2, not fully transparent) is a mesh in world coordinates. The
structure of a mesh (number of triangles, texture, transparency, emission) is fixed once built; a frame with another
structure rebuilds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.render.mitsuba import lights, materials
from twinloop.render.mitsuba.lights import LightExposure, LightSource
from twinloop.render.mitsuba.materials import GeomMaterial, MaterialSet
from twinloop.render.mitsuba.shapes import TriangleMesh, make_surface
from twinloop.render.mitsuba.textures import ENVIRONMENT, TextureMapping, make_mapping, sky_faces, surrounding_light

_GROUPS = 3  # MuJoCo's visualizer shows geom groups 0, 1, 2
_KEPT = 1024  # surfaces in the cache


@dataclass(frozen=True, kw_only=True)
class PosedGeom:
    """A geom in one frame: its surface in its own axes, its pose, its material."""

    geom: int
    surface: TriangleMesh
    position: NDArray[np.float64]
    rotation: NDArray[np.float64]
    look: GeomMaterial

    @property
    def kind(self) -> tuple[Any, ...]:
        """Properties that cannot change once Mitsuba has built it."""
        return self.geom, len(self.surface.positions), self.surface.flat, self.look.kind

    def has_moved(self, other: PosedGeom) -> bool:
        """Return whether its triangles have other positions than another's."""
        same = self.surface is other.surface and np.array_equal(self.position, other.position)
        return not (same and np.array_equal(self.rotation, other.rotation))

    @property
    def corners(self) -> NDArray[np.float32]:
        """World coordinates of the corners, flattened."""
        return (self.surface.positions @ self.rotation.T + self.position).astype(np.float32).ravel()

    @property
    def normals(self) -> NDArray[np.float32]:
        """World normals of the corners, flattened."""
        return (self.surface.normals @ self.rotation.T).astype(np.float32).ravel()

    @property
    def uv(self) -> NDArray[np.float32]:
        """Texture coordinates of the corners, flattened."""
        return self.surface.uv.astype(np.float32).ravel()


class MitsubaScene:
    """The scene of one model; ``update`` sets it to a frame."""

    def __init__(self, mitsuba: Any, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        self._mitsuba = mitsuba
        self._exposure = LightExposure.of(model, data.light_xpos)
        self.far = float(model.vis.map.zfar * model.stat.extent)
        self._wardrobe = MaterialSet()
        self._surfaces: dict[tuple[Any, ...], TriangleMesh] = {}
        self._things: list[PosedGeom] = []
        self._lamps: list[LightSource] = []
        self._kind: tuple[Any, ...] | None = None
        self.faces = sky_faces(model)
        self.scene: Any = None
        self.shines = self.veiled = False

    def forget_textures(self, model: mujoco.MjModel) -> None:
        """Discard decoded textures, because their pixels have changed."""
        self._wardrobe.clear_images()
        self.faces = sky_faces(model)

    def update(self, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        """Update the scene to a posed model.

        Raises:
            InputError: a texture that is not an image, or a shape without triangles.
        """
        things = [self._pose_geom(model, data, geom) for geom in visible_geoms(model)]
        lamps = list(lights.iterate_lamps(model, data, self._exposure, away=20.0 * self.far))
        light = surrounding_light(self.faces, self._exposure.ambient_radiance(model))
        kind = (bool(light.any()), *(thing.kind for thing in things), *(lamp.kind for lamp in lamps))
        if kind != self._kind:
            self._build(things, lamps, light)
            self._kind = kind
        else:
            self._write(things, lamps, light)
        self._things, self._lamps, self._light = things, lamps, light

    def geom_ids(self, shape_index: NDArray[np.float32]) -> NDArray[np.int32]:
        """Return the model's geom ids of Mitsuba's shape numbers, -1 for none."""
        return self._ids[shape_index.astype(np.int64)]

    def _pose_geom(self, model: mujoco.MjModel, data: mujoco.MjData, geom: int) -> PosedGeom:
        mapping = make_mapping(model, int(model.geom_matid[geom]))
        return PosedGeom(
            geom=geom,
            surface=self._surface(model, geom, mapping),
            position=data.geom_xpos[geom].copy(),
            rotation=data.geom_xmat[geom].reshape(3, 3).copy(),
            look=self._wardrobe.make_material(model, geom),
        )

    def _surface(self, model: mujoco.MjModel, geom: int, mapping: TextureMapping | None) -> TriangleMesh:
        key = (int(model.geom_type[geom]), int(model.geom_dataid[geom]), model.geom_size[geom].tobytes(), mapping)
        if key not in self._surfaces:
            if len(self._surfaces) >= _KEPT:
                self._surfaces.clear()
            self._surfaces[key] = make_surface(model, geom, mapping, reach=2.0 * self.far)
        return self._surfaces[key]

    def _build(self, things: list[PosedGeom], lamps: list[LightSource], light: NDArray[np.float32]) -> None:
        mitsuba = self._mitsuba
        parts: dict[str, Any] = {"type": "scene"}
        if light.any():  # a black sky would use samples that the lamps need
            alone = not lamps and not any(thing.look.emission > 0.0 for thing in things)
            parts["sky"] = self._sky(light, alone=alone)
        for thing in things:
            parts[f"geom{thing.geom}"] = self._mesh(thing)
        for lamp in lamps:
            parts |= {lamp.name: self._disc(lamp)} if lamp.disc else lights.describe_bulb(mitsuba, lamp)
        self.scene = mitsuba.load_dict(parts)
        self.shines = any(thing.look.emission > 0.0 for thing in things)
        self.veiled = any(thing.look.opacity < 1.0 for thing in things)
        self._values = mitsuba.traverse(self.scene)
        self._names = _names(self._values.keys())
        self._ids = _shape_ids(mitsuba, self.scene)

    def _sky(self, light: NDArray[np.float32], *, alone: bool) -> dict[str, Any]:
        """Return the light from all directions as an environment that paths hit when they leave the scene.

        It is not sampled like lamps, because it is nearly uniform: with the same samples noise has a third of the
        variance that it had with the sky among the lamps by its brightness (so101_tabletop, front).
        """
        turn = np.eye(4)
        turn[:3, :3] = ENVIRONMENT
        return {
            "type": "envmap",
            "bitmap": self._mitsuba.Bitmap(np.ascontiguousarray(light)),
            "to_world": self._mitsuba.ScalarTransform4f(turn.tolist()),
            "sampling_weight": 1.0 if alone else 0.0,
        }

    def _mesh(self, thing: PosedGeom) -> Any:
        properties = self._mitsuba.Properties()
        properties["bsdf"] = self._mitsuba.load_dict(materials.describe_bsdf(self._mitsuba, thing.look))
        if thing.look.emission > 0.0:
            properties["emitter"] = self._mitsuba.load_dict(materials.describe_emitter(self._mitsuba, thing.look))
        normals = None if thing.surface.flat else thing.normals
        return _loose_triangles(self._mitsuba, f"geom{thing.geom}", thing.corners, normals, thing.uv, properties)

    def _disc(self, lamp: LightSource) -> Any:
        properties = self._mitsuba.Properties()
        colour = {"type": "rgb", "value": lamp.light.tolist()}
        shining = {"type": "area", "radiance": colour, "sampling_weight": lamp.weight}
        properties["emitter"] = self._mitsuba.load_dict(shining)
        corners = lamp.points.astype(np.float32).ravel()
        return _loose_triangles(self._mitsuba, lamp.name, corners, None, np.zeros(0, dtype=np.float32), properties)

    def _write(self, things: list[PosedGeom], lamps: list[LightSource], light: NDArray[np.float32]) -> None:
        values = self._values
        moved = []
        for thing, before in zip(things, self._things, strict=True):
            name = f"geom{thing.geom}"
            if thing.has_moved(before):
                moved.append(thing)
                values[f"{name}.vertex_positions"] = thing.corners
            if thing.surface is not before.surface:
                values[f"{name}.vertex_texcoords"] = thing.uv
            self._write_look(name, thing.look, before.look)
        for lamp, before in zip(lamps, self._lamps, strict=True):
            self._write_lamp(lamp, before)
        if not np.array_equal(light, self._light):
            values["sky.data"] = _wrap_columns(light, values["sky.data"].shape)
        values.update()
        for thing in moved:  # after the update of their positions, which recomputes normals
            if not thing.surface.flat:
                values[f"geom{thing.geom}.vertex_normals"] = thing.normals
        values.update()

    def _write_look(self, name: str, look: GeomMaterial, before: GeomMaterial) -> None:
        if look == before:
            return
        for end, value in materials.material_parameters(look).items():
            full = self._names[name, end]
            self._values[full] = self._mitsuba.Color3f(*value.tolist()) if np.ndim(value) == 1 else value

    def _write_lamp(self, lamp: LightSource, before: LightSource) -> None:
        if np.array_equal(lamp.points, before.points) and np.array_equal(lamp.light, before.light):
            return
        if not lamp.disc:
            for name, value in lights.bulb_parameters(self._mitsuba, lamp).items():
                self._values[name] = value
            return
        self._values[f"{lamp.name}.vertex_positions"] = lamp.points.astype(np.float32).ravel()
        self._values[f"{lamp.name}.emitter.radiance.value"] = self._mitsuba.Color3f(*lamp.light.tolist())
        self._values[f"{lamp.name}.emitter.sampling_weight"] = lamp.weight


def visible_geoms(model: mujoco.MjModel) -> list[int]:
    """Return the ids of the geoms that MuJoCo's visualizer shows."""
    alpha = np.array([materials.shown_rgba(model, geom)[3] for geom in range(model.ngeom)])
    return np.flatnonzero((model.geom_group < _GROUPS) & (alpha > 0.0)).tolist()


def _names(names: Any) -> dict[tuple[str, str], str]:
    """Return Mitsuba's names of parameters by their object and suffix."""
    found = {}
    for name in names:
        first, *rest = name.split(".")
        found |= {(first, ".".join(rest[-count:])): name for count in range(1, 3)}
    return found


def _loose_triangles(
    mitsuba: Any,
    name: str,
    corners: NDArray[np.float32],
    normals: NDArray[np.float32] | None,
    uv: NDArray[np.float32],
    properties: Any,
) -> Any:
    count = len(corners) // 3
    mesh = mitsuba.Mesh(
        name,
        count,
        count // 3,
        props=properties,
        has_vertex_normals=normals is not None,
        has_vertex_texcoords=len(uv) > 0,
    )
    values = mitsuba.traverse(mesh)
    values["vertex_positions"], values["faces"] = corners, np.arange(count, dtype=np.uint32)
    if len(uv):
        values["vertex_texcoords"] = uv
    values.update()
    if normals is not None:
        values["vertex_normals"] = normals
        values.update()
    return mesh


def _shape_ids(mitsuba: Any, scene: Any) -> NDArray[np.int32]:
    """Return geom ids by ``shape_index``: in order from 1 without a compiler, else by Dr.Jit's object numbers."""
    names = [shape.id() for shape in scene.shapes()]
    if mitsuba.variant().startswith("scalar"):
        numbers = list(range(1, len(names) + 1))
    else:
        import drjit  # pyright: ignore[reportMissingImports]

        numbers = np.array(drjit.reinterpret_array(mitsuba.UInt32, scene.shapes_dr())).tolist()
    ids = np.full(max(numbers, default=0) + 1, -1, dtype=np.int32)
    for name, number in zip(names, numbers, strict=True):
        if name.startswith("geom"):
            ids[number] = int(name.removeprefix("geom"))
    return ids


def _wrap_columns(light: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return the image in Mitsuba's layout: the first column repeated after the last."""
    kept = np.ones(shape, dtype=np.float32)
    kept[..., :3] = np.concatenate([light, light[:, :1]], axis=1)[:, : shape[1]]
    return kept
