"""Compute surface normals with a second ray cast, because the batch ray tracer of ``mujoco_warp`` has no normals."""

# Kernels are in Warp's language, whose types a type checker of Python does not support.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportReturnType=false

from __future__ import annotations

from types import ModuleType
from typing import Any

import mujoco
import numpy as np
import warp as wp  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray

from twinloop.render.warp.worlds import TracedFrames

wp.set_module_options({"enable_backward": False})
_MESH = int(mujoco.mjtGeom.mjGEOM_MESH)
# A vertex normal that leans farther from its face is not used (as in MuJoCo's own renderer, mjr_uploadMesh).
_SMOOTH = wp.constant(0.8)
_BEFORE = wp.constant(
    0.99
)  # share of the depth at which rays begin; closer ones may begin inside a round object by round-off


def surface_normals(
    mjw: ModuleType, worlds: TracedFrames, context: Any, size: tuple[int, int], lenses: NDArray[np.float64] | None
) -> NDArray[np.float32]:
    """Return unit normals towards the camera ``(count, pixels, 3)`` in camera axes (x right, y down, z forward).

    A pixel that shows no surface has the normal 0. Normals are interpolated on meshes with vertex normals, as in
    shading. The pixels of all cameras of the context follow each other. The caller must have traced the context's depth
    before, because rays start just in front of the visible surface. So they do not hit a body that encloses the camera.

    Args:
        mjw: the module ``mujoco_warp``.
        worlds: loaded frames, ``count`` of them.
        context: render context of ``mujoco_warp``.
        size: height and width of the images in pixels.
        lenses: focal lengths and principal points (fx, fy, cx, cy) in pixels, ``(count or 1, cameras, 4)``; None if the
            context has a direction for each pixel.
    """
    shape = (worlds.count, context.total_rays)
    start, ray = wp.empty(shape, dtype=wp.vec3), wp.empty(shape, dtype=wp.vec3)
    distance, geom = wp.empty(shape, dtype=float), wp.empty(shape, dtype=int)
    normal, out = wp.empty(shape, dtype=wp.vec3), wp.zeros(shape, dtype=wp.vec3)
    model, data = worlds.model, worlds.data
    pinholes = wp.array(np.ones((1, context.nrender, 4)) if lenses is None else lenses, dtype=wp.vec4)
    wp.launch(
        _aim,
        dim=shape,
        inputs=[
            *(data.cam_xpos, data.cam_xmat, context.cam_id_map, size[1], size[0], pinholes, lenses is None),
            *(context.ray, context.ray_offset, context.depth_data),
        ],
        outputs=[start, ray],
    )
    every_group = model.geom_surfacevel.dtype(-1.0)  # six numbers, of mujoco_warp's own type
    nobody = wp.full(context.total_rays, -1, dtype=int)
    mjw.rays(model, data, start, ray, every_group, True, nobody, distance, geom, normal, rc=context)
    wp.launch(
        _face_camera,
        dim=shape,
        inputs=[
            *(model.geom_type, model.geom_dataid, model.mesh_faceadr, model.mesh_normaladr, model.mesh_normal),
            *(context.mesh_facenormal, context.mesh_bvh_id, data.geom_xpos, data.geom_xmat, data.cam_xmat),
            *(context.cam_id_map, size[0] * size[1], context.depth_data, start, ray, geom, normal),
        ],
        outputs=[out],
    )
    return out.numpy()


@wp.kernel
def _aim(
    cam_xpos: wp.array2d[wp.vec3],
    cam_xmat: wp.array2d[wp.mat33],
    ids: wp.array[int],
    width: int,
    height: int,
    pinholes: wp.array2d[wp.vec4],
    given: bool,
    rays: wp.array[wp.vec3],
    offsets: wp.array[wp.vec3],
    depth: wp.array2d[float],
    start: wp.array2d[wp.vec3],
    ray: wp.array2d[wp.vec3],
):
    world, pixel = wp.tid()
    slot, rest = pixel // (width * height), pixel % (width * height)
    camera = ids[slot]
    turn = cam_xmat[world, camera]
    lens = pinholes[world % pinholes.shape[0], slot]
    column, row = float(rest % width) + 0.5, float(rest // width) + 0.5
    through = wp.normalize(wp.vec3((column - lens[2]) / lens[0], (lens[3] - row) / lens[1], -1.0))
    local = wp.where(given, rays[pixel], through)
    before = wp.where(given, offsets[pixel], wp.vec3(0.0)) + local * (depth[world, pixel] / -local[2] * _BEFORE)
    start[world, pixel] = cam_xpos[world, camera] + turn @ before
    ray[world, pixel] = turn @ local


@wp.kernel
def _face_camera(
    geom_type: wp.array[int],
    geom_dataid: wp.array2d[int],
    mesh_faceadr: wp.array[int],
    mesh_normaladr: wp.array[int],
    mesh_normal: wp.array[wp.vec3],
    mesh_facenormal: wp.array[wp.vec3i],
    mesh_ids: wp.array[wp.uint64],
    geom_xpos: wp.array2d[wp.vec3],
    geom_xmat: wp.array2d[wp.mat33],
    cam_xmat: wp.array2d[wp.mat33],
    ids: wp.array[int],
    per_camera: int,
    depth: wp.array2d[float],
    start: wp.array2d[wp.vec3],
    ray: wp.array2d[wp.vec3],
    geom: wp.array2d[int],
    normal: wp.array2d[wp.vec3],
    out: wp.array2d[wp.vec3],
):
    world, pixel = wp.tid()
    seen = geom[world, pixel]
    if seen < 0 or depth[world, pixel] == 0.0:
        return
    towards = ray[world, pixel]
    camera_from_world = wp.transpose(cam_xmat[world, ids[pixel // per_camera]])
    turn = geom_xmat[world, seen]
    place = wp.transpose(turn) @ (start[world, pixel] - geom_xpos[world, seen])
    surface = wp.transpose(turn) @ normal[world, pixel]
    if geom_type[seen] == wp.static(_MESH):
        mesh = geom_dataid[world % geom_dataid.shape[0], seen]
        hit = wp.mesh_query_ray(mesh_ids[mesh], place, wp.transpose(turn) @ towards, 1.0e10)
        if hit.result:
            corner = mesh_facenormal[mesh_faceadr[mesh] + hit.face]
            first = mesh_normaladr[mesh]
            surface = wp.normalize(
                _choose_normal(mesh_normal[first + corner[0]], surface) * hit.u
                + _choose_normal(mesh_normal[first + corner[1]], surface) * hit.v
                + _choose_normal(mesh_normal[first + corner[2]], surface) * (1.0 - hit.u - hit.v)
            )
    outward = turn @ surface
    if wp.dot(outward, towards) > 0.0:
        outward = -outward
    local = camera_from_world @ outward
    out[world, pixel] = wp.vec3(local[0], -local[1], -local[2])


@wp.func
def _choose_normal(vertex: wp.vec3, face: wp.vec3) -> wp.vec3:
    if wp.dot(vertex, face) < _SMOOTH:
        return face
    return vertex
