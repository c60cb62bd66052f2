"""Convert a posed MuJoCo model to a Mitsuba scene, which is built once and then updated frame by frame.

Every geom that the classic renderer shows (groups 0 to 2, not fully transparent) becomes a mesh in world coordinates.
Number of triangles, texture size, transparency and emission of a mesh cannot change after the scene is built. A frame
in which one of them changes rebuilds the scene.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.render.mitsuba import lights, materials
from twinloop.render.mitsuba.lights import LightSource
from twinloop.render.mitsuba.materials import GeomMaterial, MaterialSet
from twinloop.render.mitsuba.shapes import TriangleMesh, make_surface
from twinloop.render.mitsuba.textures import ENVIRONMENT, TextureMapping, make_mapping, sky_faces, surrounding_light
from twinloop.render.physical import LightExposure

_GROUPS = 3  # MuJoCo's visualizer shows geom groups 0, 1, 2
_MOST_SURFACES = 1024  # surfaces in the cache


@dataclass(frozen=True, kw_only=True)
class PosedGeom:
    """One geom in one frame.

    Attributes:
        geom: id of the geom.
        surface: its triangles in its own axes.
        position: position in the world, ``(3,)`` in m.
        rotation: rotation matrix from its axes to world axes, ``(3, 3)``.
        material: its material.
    """

    geom: int
    surface: TriangleMesh
    position: NDArray[np.float64]
    rotation: NDArray[np.float64]
    material: GeomMaterial

    @property
    def kind(self) -> tuple[Any, ...]:
        """Geom id, mesh size, flat shading and material type, which Mitsuba cannot change after building the mesh."""
        return self.geom, len(self.surface.positions), self.surface.flat, self.material.kind

    def has_moved(self, other: PosedGeom) -> bool:
        """Return whether the triangles have other world positions than those of the same geom in another frame."""
        same = self.surface is other.surface and np.array_equal(self.position, other.position)
        return not (same and np.array_equal(self.rotation, other.rotation))

    @property
    def corners(self) -> NDArray[np.float32]:
        """World coordinates of the triangles' corners in m, as a flat array."""
        return (self.surface.positions @ self.rotation.T + self.position).astype(np.float32).ravel()

    @property
    def normals(self) -> NDArray[np.float32]:
        """Normals at the triangles' corners in world axes, as a flat array."""
        return (self.surface.normals @ self.rotation.T).astype(np.float32).ravel()

    @property
    def uv(self) -> NDArray[np.float32]:
        """Texture coordinates at the triangles' corners, as a flat array."""
        return self.surface.uv.astype(np.float32).ravel()


class MitsubaScene:
    """Mitsuba scene of one model; `update` sets it to the geoms, materials and lights of a posed model.

    Attributes:
        far: distance of the far plane in m.
        faces: linear light of the background's cube texture; None if the model has no background.
        scene: Mitsuba's scene; None before the first update.
        has_emission: whether a geom emits light.
        has_transparency: whether a geom is semi-transparent.

    Args:
        mitsuba: the module, with a selected variant.
        model: compiled model.
        data: data in the home pose. The light positions in this pose determine the constants that scale light
            intensities.
    """

    def __init__(self, mitsuba: Any, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        self._mitsuba = mitsuba
        self._exposure = LightExposure.of(model, data.light_xpos)
        self.far = float(model.vis.map.zfar * model.stat.extent)
        self._materials = MaterialSet()
        self._surfaces: dict[tuple[Any, ...], TriangleMesh] = {}
        self._things: list[PosedGeom] = []
        self._lamps: list[LightSource] = []
        self._kind: tuple[Any, ...] | None = None
        self.faces = sky_faces(model)
        self.scene: Any = None
        self.has_emission = self.has_transparency = False

    def forget_textures(self) -> None:
        """Discard decoded textures, because the pixels in the model have changed."""
        self._materials.clear_images()

    def load_sky(self, model: mujoco.MjModel) -> None:
        """Read the background of a model again, because its pixels or its choice have changed."""
        self.faces = sky_faces(model)

    def update(self, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        """Set the scene to a posed model: geoms, materials, lights and sky.

        Raises:
            InputError: If a texture is not an image, or a shape has no triangles.
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
        """Convert Mitsuba's shape numbers (an image of any shape) to geom ids of the model, -1 for none."""
        return self._ids[shape_index.astype(np.int64)]

    def _pose_geom(self, model: mujoco.MjModel, data: mujoco.MjData, geom: int) -> PosedGeom:
        mapping = make_mapping(model, int(model.geom_matid[geom]))
        return PosedGeom(
            geom=geom,
            surface=self._surface(model, geom, mapping),
            position=data.geom_xpos[geom].copy(),
            rotation=data.geom_xmat[geom].reshape(3, 3).copy(),
            material=self._materials.make_material(model, geom),
        )

    def _surface(self, model: mujoco.MjModel, geom: int, mapping: TextureMapping | None) -> TriangleMesh:
        key = (int(model.geom_type[geom]), int(model.geom_dataid[geom]), model.geom_size[geom].tobytes(), mapping)
        if key not in self._surfaces:
            if len(self._surfaces) >= _MOST_SURFACES:
                self._surfaces.clear()
            self._surfaces[key] = make_surface(model, geom, mapping, reach=2.0 * self.far)
        return self._surfaces[key]

    def _build(self, things: list[PosedGeom], lamps: list[LightSource], light: NDArray[np.float32]) -> None:
        mitsuba = self._mitsuba
        parts: dict[str, Any] = {"type": "scene"}
        if light.any():  # a black sky would use samples that the lamps need
            alone = not lamps and not any(thing.material.emission > 0.0 for thing in things)
            parts["sky"] = self._sky(light, alone=alone)
        for thing in things:
            parts[f"geom{thing.geom}"] = self._mesh(thing)
        for lamp in lamps:
            parts |= {lamp.name: self._disc(lamp)} if lamp.disc else lights.describe_bulb(mitsuba, lamp)
        self.scene = mitsuba.load_dict(parts)
        self.has_emission = any(thing.material.emission > 0.0 for thing in things)
        self.has_transparency = any(thing.material.opacity < 1.0 for thing in things)
        self._values = mitsuba.traverse(self.scene)
        self._names = _names(self._values.keys())
        self._ids = _shape_ids(mitsuba, self.scene)

    def _sky(self, light: NDArray[np.float32], *, alone: bool) -> dict[str, Any]:
        """Return Mitsuba's description of the light from all directions (environment map).

        If there are lamps, paths receive this light only when they leave the scene. It is not sampled like a lamp,
        because it is nearly uniform. In camera ``front`` of the example twin so101_tabletop this divides the variance
        of the noise by three, for an equal number of samples.

        Args:
            light: radiance by direction; see `textures.surrounding_light`.
            alone: whether the scene has no other light.
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
        properties["bsdf"] = self._mitsuba.load_dict(materials.describe_bsdf(self._mitsuba, thing.material))
        if thing.material.emission > 0.0:
            properties["emitter"] = self._mitsuba.load_dict(materials.describe_emitter(self._mitsuba, thing.material))
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
            self._write_material(name, thing.material, before.material)
        for lamp, before in zip(lamps, self._lamps, strict=True):
            self._write_lamp(lamp, before)
        if not np.array_equal(light, self._light):
            values["sky.data"] = _wrap_columns(light, values["sky.data"].shape)
        values.update()
        for thing in moved:  # after the update of their positions, which recomputes normals
            if not thing.surface.flat:
                values[f"geom{thing.geom}.vertex_normals"] = thing.normals
        values.update()

    def _write_material(self, name: str, material: GeomMaterial, before: GeomMaterial) -> None:
        if material == before:
            return
        for end, value in materials.material_parameters(material).items():
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
    """Return the ids of the geoms that MuJoCo's visualizer shows: group 0 to 2, not fully transparent."""
    alpha = np.array([materials.shown_rgba(model, geom)[3] for geom in range(model.ngeom)])
    return np.flatnonzero((model.geom_group < _GROUPS) & (alpha > 0.0)).tolist()


def _names(names: Any) -> dict[tuple[str, str], str]:
    """Return Mitsuba's full parameter names by object name and by the last part, or last two parts, of the name.

    For example, ``geom3.….roughness.value`` has the keys ``("geom3", "value")`` and ``("geom3", "roughness.value")``.
    """
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
    """Return an array of geom ids, indexed by Mitsuba's shape number (``shape_index``); -1 for other shapes.

    Scalar variants number the shapes in order from 1. In other variants a shape number is the id of the shape in
    Dr.Jit's registry.
    """
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
    """Return an environment image in Mitsuba's layout, which repeats the first column after the last.

    Args:
        light: image ``(rows, columns, 3)``.
        shape: shape of Mitsuba's array.
    """
    wrapped = np.ones(shape, dtype=np.float32)
    wrapped[..., :3] = np.concatenate([light, light[:, :1]], axis=1)[:, : shape[1]]
    return wrapped
