"""Draw the visible objects of a posed model with Filament."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import mujoco
import numpy as np
from mujoco import mjrf
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.render.filament.context import create_context
from twinloop.render.filament.lights import Environment, SceneLights
from twinloop.render.gl import make_visual_options
from twinloop.render.physical import LightExposure, roughness_of_shininess
from twinloop.render.triangles import make_triangles

_GEOM, _OBJ, _ROLE = mujoco.mjtGeom, mujoco.mjtObj, mujoco.mjtTextureRole
_COLOURED = [int(role) for role in (_ROLE.mjTEXROLE_RGB, _ROLE.mjTEXROLE_RGBA, _ROLE.mjTEXROLE_EMISSIVE)]
# MuJoCo's factors of classic materials ("filament.phong.specular_multiplier" and others), which are undone here.
_SPECULAR, _SHININESS, _EMISSION = 0.2, 0.1, 0.3
_SIZES: dict[int, list[int]] = {  # columns of geom_size along the axes
    int(_GEOM.mjGEOM_PLANE): [0, 1],
    int(_GEOM.mjGEOM_SPHERE): [0, 0, 0],
    int(_GEOM.mjGEOM_CAPSULE): [0, 0, 1],
    int(_GEOM.mjGEOM_CYLINDER): [0, 0, 1],
    int(_GEOM.mjGEOM_ELLIPSOID): [0, 1, 2],
    int(_GEOM.mjGEOM_BOX): [0, 1, 2],
}
_STEP, _STEPS = 2e-6, 64  # a step is 17 to 34 times the rounding of float32


def magnification(geoms: NDArray) -> NDArray[np.float64]:
    """Return the factors by which geoms are magnified about the camera, so that no two geoms have the same depth.

    Args:
        geoms: ids of geoms. After 64 geoms, the factors repeat.
    """
    return 1.0 + _STEP * (np.asarray(geoms) % _STEPS)


def prepare_textures(model: mujoco.MjModel) -> None:
    """Mark the textures that colour surfaces as sRGB, in place, as they are in all other renderers.

    Raises:
        InputError: If Filament does not support the channels of a texture; it would end the process.
    """
    others = set(np.delete(model.mat_texid, _COLOURED, axis=1).ravel().tolist())
    for texture in range(model.ntex):
        flat = int(model.tex_type[texture]) == mujoco.mjtTexture.mjTEXTURE_2D
        colours, channels = texture not in others, int(model.tex_nchannel[texture])
        if channels not in ((3, 4) if flat and colours else (1, 3, 4) if flat else (3,)):
            raise InputError(
                f"The texture {model.texture(texture).name or texture} has {channels} channels. The filament renderer "
                "needs 3 (RGB), or 3 or 4 for a 2-D image. Convert its image, or render with gl."
            )
        if colours and int(model.tex_colorspace[texture]) == mujoco.mjtColorSpace.mjCOLORSPACE_AUTO:
            model.tex_colorspace[texture] = mujoco.mjtColorSpace.mjCOLORSPACE_SRGB


class FilamentScene:
    """Filament scene with the geoms, tendons, flexes and skins of a model, without sites and invisible geoms.

    Each scene has its own context, because Filament fails if two scenes of one context are drawn in turn: after
    a drawing, it frees the materials that only the other scene needs.

    Args:
        model: compiled model.
        exposure: constants that convert the colours of its lights; None for a scene without its lights and materials,
            in which the colour of a surface with the unit normal n (world axes) is (1 + n) / 2, and the colour of the
            drawing mode ``DRAW_MODE_SEGMENTATION_BY_ID`` is the geom's id plus 1, or 0.
        occlusion: whether ambient light is darker in corners and gaps.
        shadow_map: side of a lamp's shadow map in pixels; 0 for no shadows.
    """

    def __init__(
        self, model: mujoco.MjModel, *, exposure: LightExposure | None, occlusion: bool = False, shadow_map: int = 0
    ) -> None:
        self._context: Any = create_context()
        self._scene: Any = self._context.create_scene(mjrf.SceneParams())
        self._scene.configure_from_model(_make_settings(model, occlusion=occlusion))
        self._lights = SceneLights(self._context, self._scene, shadow_map=shadow_map)
        self._exposure, self._option = exposure, make_visual_options()
        if exposure is None:
            self._lights.surround(Environment(self._context, np.full(3, 0.5), 0.5 * np.eye(3)))
        self._objects: Any = None
        self._glowing: list[tuple[Any, Any, float]] = []
        self._skies: dict[int, Any] = {}
        self._fields: dict[int, tuple[Any, Any]] = {}
        self._targets: dict[tuple[bool, tuple[int, int]], tuple[Any, NDArray, Any]] = {}
        self.upload(model)

    def upload(self, model: mujoco.MjModel) -> None:
        """Upload the meshes, the textures and the background of a model."""
        self._objects = None
        self._resources: Any = mjrf.ModelResources(self._context, model)
        self._skies.clear()
        self.choose_sky(model)

    def choose_sky(self, model: mujoco.MjModel) -> None:
        """Show the first skybox of a model; each is uploaded once."""
        for texture in np.flatnonzero(model.tex_type == mujoco.mjtTexture.mjTEXTURE_SKYBOX)[:1].tolist():
            if texture not in self._skies:
                self._skies[texture] = _make_sky(self._context, model, texture)
            self._scene.set_skybox(self._skies[texture][0])

    def load(self, model: mujoco.MjModel, data: mujoco.MjData, eye: NDArray[np.float64]) -> None:
        """Replace the objects and the lights by those of a posed model, for drawings by one camera.

        Planes that the camera sees from behind are hidden. Geoms are magnified about the camera by `magnification`.

        Args:
            model, data: posed model. The model must be the uploaded object.
            eye: position of the camera in the world, ``(3,)`` in m.
        """
        self._objects = None  # removes the earlier objects
        self._glowing.clear()
        self._objects = mjrf.ModelRenderables(self._scene, self._resources)
        self._objects.set_options(self._option)
        self._objects.update(data)
        factors = magnification(np.arange(model.ngeom))[:, None]
        places = (eye + factors * (data.geom_xpos - eye)).astype(np.float32)
        turns, sizes = data.geom_xmat.astype(np.float32), (factors * _drawn_sizes(model)).astype(np.float32)
        behind = np.einsum("ni,ni->n", eye - data.geom_xpos, data.geom_xmat[:, 2::3]) < 0.0
        hidden = (behind & (model.geom_type == _GEOM.mjGEOM_PLANE)) | (self._option.geomgroup[model.geom_group] == 0)
        for geom, part in self._iterate_parts(model):
            material = part.get_material()
            if geom >= 0 and (hidden[geom] or material.color[3] <= 0.0):
                self._scene.remove_renderable(part)
                continue
            if geom >= 0:
                if model.geom_type[geom] == _GEOM.mjGEOM_HFIELD:
                    part.set_mesh(self._height_field(model, geom), 0, 0)
                part.set_pose(places[geom], turns[geom])
                part.set_size(sizes[geom])
            if self._exposure is None:
                white = np.ones(4, dtype=np.float32)
                part.set_material(mjrf.Material(color=white, specular=0.0, glossiness=0.0, segmentation_id=geom + 1))
                continue
            _make_physical(material)
            part.set_material(material)
            if material.emissive > 0.0:
                self._glowing.append((part, material, material.emissive))
        if self._exposure is not None:
            self._lights.load(model, data, self._exposure)

    def _iterate_parts(self, model: mujoco.MjModel) -> Iterator[tuple[int, Any]]:
        """Yield all parts of the model's objects, each after the id of its geom; -1 for objects that are no geoms."""
        for geom in range(model.ngeom):
            yield geom, self._objects.get_renderable(_OBJ.mjOBJ_GEOM, geom)
        for skin in range(model.nskin):
            yield -1, self._objects.get_renderable(_OBJ.mjOBJ_SKIN, skin)
        counts = {_OBJ.mjOBJ_FLEX: model.nflex, _OBJ.mjOBJ_TENDON: model.ntendon, _OBJ.mjOBJ_ACTUATOR: model.nu}
        for kind, row in ((kind, row) for kind, count in counts.items() for row in range(count)):
            parts = (self._objects.get_renderable(kind, row, sub_index=number) for number in itertools.count())
            yield from ((-1, part) for part in itertools.takewhile(lambda part: part is not None, parts))

    def _height_field(self, model: mujoco.MjModel, geom: int) -> Any:
        """Return the mesh of a geom's height field; Filament's own has an additional vertex in each of its cells."""
        field = int(model.geom_dataid[geom])
        if field not in self._fields:
            corners, faces = make_triangles(model, geom)
            self._fields[field] = _make_mesh(self._context, corners[faces])
        return self._fields[field][0]

    def set_gain(self, gain: float) -> None:
        """Multiply all light by a factor: of lamps, of the surroundings, and of materials with emission."""
        self._lights.set_gain(gain)
        for part, material, emission in self._glowing:
            material.emissive = gain * emission
            part.set_material(material)

    def draw(
        self, camera: mujoco.MjvGLCamera, size: tuple[int, int], *, numbers: bool = False, **options: Any
    ) -> NDArray:
        """Draw the scene without post-processing; return a buffer that the next drawing overwrites.

        Args:
            camera: pose and frustum of the camera.
            size: height and width of the image in pixels.
            numbers: whether the image has one float32 number per pixel instead of three 8-bit colours.
            options: options of ``mjrf.RenderRequest``; effects are off by default.

        Returns:
            Image ``(height, width, 3)``, or ``(height, width, 1)`` of ``numbers``.
        """
        (height, width), formats = size, mjrf.PixelFormat
        if (numbers, size) not in self._targets:
            pixels = formats.PIXEL_FORMAT_R32F if numbers else formats.PIXEL_FORMAT_RGB8
            kind = mjrf.RenderTargetConfig(width=width, height=height, color_format=pixels)
            target = self._context.create_render_target(kind)
            buffer = np.zeros((*size, 1 if numbers else 3), dtype=np.float32 if numbers else np.uint8)
            reading = mjrf.ReadRequest(target=target)
            reading.set_buffer(buffer)
            self._targets[numbers, size] = target, buffer, reading
        target, buffer, reading = self._targets[numbers, size]
        off = dict.fromkeys(("post_processing", "skybox", "haze", "shadows", "reflections"), False)
        request = mjrf.RenderRequest(
            scene=self._scene,
            camera=_convert_camera(camera),
            viewport=mjrf.Rect(0, 0, width, height),
            target=target,
            **{**off, **self._lights.headlight, **options},
        )
        self._context.wait_for_frame(self._context.render([request], [reading]))
        return buffer

    def close(self) -> None:
        """Free the scene and its context, in the order that Filament needs."""
        self._lights.clear()
        self._glowing.clear()
        self._targets.clear()
        self._fields.clear()
        self._skies = {}
        self._objects = self._resources = self._scene = self._context = None


def _drawn_sizes(model: mujoco.MjModel) -> NDArray[np.float64]:
    """Return the half sizes of geoms along their axes, ``(ngeom, 3)`` in m; 1 for shapes without a size."""
    sizes = np.ones((model.ngeom, 3))
    for kind, columns in _SIZES.items():
        rows = model.geom_type == kind
        sizes[rows, : len(columns)] = model.geom_size[rows][:, columns]
    return sizes


def _make_physical(material: Any) -> None:
    """Convert the classic settings of a material in place, as the path tracer does.

    A ``specular`` of 0.5 reflects 4 %. A missing ``roughness`` follows from the shininess, a missing ``metallic`` is 0.
    """
    roughness = roughness_of_shininess(material.glossiness / _SHININESS)
    if material.metallic >= 0.0 or material.roughness >= 0.0:
        material.metallic = max(material.metallic, 0.0)
        material.roughness = material.roughness if material.roughness >= 0.0 else roughness
    material.specular *= 0.08 / _SPECULAR
    material.glossiness = 1.0 - roughness
    material.emissive /= _EMISSION


def _make_settings(model: mujoco.MjModel, *, occlusion: bool) -> mujoco.MjModel:
    """Return a model whose custom numerics and visual options are the settings of a Filament scene."""
    settings = mujoco.MjModel.from_xml_string(
        f'<mujoco><custom><numeric name="filament.ao.enabled" data="{int(occlusion)}"/></custom></mujoco>'
    )
    settings.vis.map.haze = model.vis.map.haze
    settings.vis.rgba.haze[:] = model.vis.rgba.haze
    return settings


def _make_mesh(context: Any, triangles: NDArray[np.float64]) -> tuple[Any, Any]:
    """Return a mesh of flat triangles ``(n, 3, 3)``, and the data that must exist until Filament has read it."""
    normals = np.cross(triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0])
    areas = np.linalg.norm(normals, axis=-1)
    triangles, normals = triangles[areas > 0.0], normals[areas > 0.0] / areas[areas > 0.0, None]
    # Quaternions xyzw of the shortest rotation from +z to the normal; 1e-6 makes a half turn of -z.
    turns = np.stack([-normals[:, 1], normals[:, 0] + 1e-6, np.zeros(len(normals)), 1.0 + normals[:, 2]], axis=-1)
    turns /= np.linalg.norm(turns, axis=-1, keepdims=True)
    vertices = np.concatenate([triangles, np.broadcast_to(turns[:, None], (len(turns), 3, 4))], axis=-1)
    usage, kind = mjrf.VertexAttributeUsage, mjrf.VertexAttributeType
    config = mjrf.MeshConfig(
        max_vertices=3 * len(triangles),
        max_indices=3 * len(triangles),
        attributes=[
            mjrf.VertexAttribute(usage=usage.VERTEX_ATTRIBUTE_USAGE_POSITION, type=kind.VERTEX_ATTRIBUTE_TYPE_FLOAT3),
            mjrf.VertexAttribute(usage=usage.VERTEX_ATTRIBUTE_USAGE_TANGENTS, type=kind.VERTEX_ATTRIBUTE_TYPE_FLOAT4),
        ],
        interleaved=True,
        index_type=mjrf.IndexType.INDEX_TYPE_U32,
        primitive_type=mjrf.MeshPrimitiveType.MESH_PRIMITIVE_TYPE_TRIANGLES,
    )
    data = mjrf.MeshData(compute_bounds=True)
    data.set_vertices(config, vertices.astype(np.float32).tobytes())
    data.set_indices(config, np.arange(3 * len(triangles), dtype=np.uint32).tobytes())
    mesh = context.create_mesh(config)
    mesh.upload(data)
    return mesh, data


def _make_sky(context: Any, model: mujoco.MjModel, texture: int) -> tuple[Any, Any]:
    """Return the texture of a skybox, and the data that must exist until Filament has read it."""
    height, width = int(model.tex_height[texture]), int(model.tex_width[texture])
    pixels, first = mjrf.TextureData(), int(model.tex_adr[texture])
    pixels.set_image(model.tex_data[first : first + height * width * 3].tobytes())
    sky = context.create_texture(
        mjrf.TextureConfig(
            width=width,
            height=height,
            format=mjrf.PixelFormat.PIXEL_FORMAT_RGB8,
            color_space=mjrf.ColorSpace.COLORSPACE_SRGB,
            sampler_type=mjrf.SamplerType.TEXTURE_SKYBOX,
        )
    )
    sky.upload(pixels)
    return sky, pixels


def _convert_camera(camera: mujoco.MjvGLCamera) -> Any:
    names = ("pos", "forward", "up", "frustum_center", "frustum_width")
    names += ("frustum_bottom", "frustum_top", "frustum_near", "frustum_far")
    return mjrf.Camera(orthographic=bool(camera.orthographic), **{name: getattr(camera, name) for name in names})
