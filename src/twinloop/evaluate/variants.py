"""Change a twin for an evaluation slice: another object shape, additional objects on the table, contact sensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np

from twinloop.core.errors import InputError
from twinloop.core.files import sha256_json
from twinloop.twin import Twin
from twinloop.twin.compiling import changed_settings_lines, compile_model
from twinloop.twin.devices import sensor_params
from twinloop.twin.params import declared_params, expand_params
from twinloop.twin.scene import SceneSlots
from twinloop.twin.scene_build import CONTACT_SETTINGS, GEOM_TYPES, build_scene, expand_shapes
from twinloop.twin.scene_spec import SceneSpec, ShapeSpec
from twinloop.twin.servos import preset_nominals
from twinloop.twin.shapes import ConvexPart
from twinloop.twin.spec import ParamSpec

# Data field of a contact sensor (mjtConDataField) and the reported contacts (0: any, 2: the largest force).
_FOUND, _FORCE, _ANY, _LARGEST = 1, 2, 0, 2
PEAK, WORLD, SELF, HAND = "evaluate/peak", "evaluate/world", "evaluate/self", "evaluate/hand"


def with_object(twin: Twin, body: str, shape: ShapeSpec) -> Twin:
    """Return the twin with another shape for a body, scaled to the height of the old shape.

    The mass is kept unless ``shape`` has one. Contact settings, material and colour of the body are kept.

    Raises:
        InputError: If the body has no shape to replace, or the new shape cannot be made.
    """
    mjspec = twin.mjspec.copy()
    target = mjspec.body(body)
    if target is None or not target.geoms:
        raise InputError(f"The twin {twin.name} has no body {body} with a shape to replace.")
    replacement = expand_shapes(shape, Path(), where=f"object ({shape.shape})")[0]
    height, mass = _measure_height(twin, body), float(twin.model.body(body).mass[0])
    factor = height / replacement.extents[2]
    first, total = target.geoms[0], shape.mass or mass
    for spare in target.geoms[1:]:
        mjspec.delete(spare)
    copied_names = (*CONTACT_SETTINGS, "condim", "material")
    copied = {name: np.copy(value) if np.ndim(value := getattr(first, name)) else value for name in copied_names}
    for number, piece in enumerate(replacement.pieces):
        geom = first if number == 0 else target.add_geom(rgba=first.rgba)
        for name, value in copied.items() if number else ():
            setattr(geom, name, value)
        _set_shape(mjspec, geom, piece, factor, f"evaluate/{body}/{number}")
        geom.mass = total * piece.volume / replacement.volume
    return _rebuild_twin(twin, mjspec, change=["object", body, shape.model_dump(mode="json")])


def with_scene(twin: Twin, scene: SceneSpec) -> Twin:
    """Return the twin with additional objects on the table.

    Raises:
        InputError: If the twin already has a scene, or the objects do not fit into it.
    """
    if twin.scene is not None:
        raise InputError(f"The twin {twin.name} has a scene already, so a slice cannot add another. Use its scene.")
    mjspec = twin.mjspec.copy()
    like = twin.spec.objects[0] if twin.spec.objects else None
    layout = build_scene(mjspec, scene, Path(), like=like, where="scene of a slice")
    changed = _rebuild_twin(twin, mjspec, change=["scene", scene.model_dump(mode="json")])
    spec = twin.spec.model_copy(update={"scene": scene})
    built = SceneSlots(layout=layout, model=changed.model)
    robot = twin.spec.robot
    rows = declared_params(spec, scene=built.param_specs(), sensors=sensor_params(twin.devices))
    params = expand_params(changed.model, rows, where=twin.name, nominals=preset_nominals(robot, twin.servos))
    return replace(changed, spec=spec, scene=built, params=params)


def with_contact_sensors(twin: Twin) -> Twin:
    """Return the twin with sensors for the robot's contacts; the simulated motion stays the same, bit for bit.

    The sensor ``evaluate/peak`` measures the contact force with the largest magnitude between the robot and anything,
    as three components in N. Three other sensors count contacts: ``evaluate/world`` between robot and world,
    ``evaluate/self`` of the robot with itself, and ``evaluate/hand`` of its hand with itself. A robot with a free base
    stands on the world, so that only contacts of the base itself count, and not those of its wheels or feet.
    """
    model, robot = twin.model, twin.robot
    base = int(model.body_rootid[model.joint(robot.joints[0]).bodyid[0]])
    root = model.body(base).name
    joints = model.jnt_type[model.body_jntadr[base] : model.body_jntadr[base] + model.body_jntnum[base]]
    stands = (joints == int(mujoco.mjtJoint.mjJNT_FREE)).any()
    mjspec = twin.mjspec.copy()
    tree, body = mujoco.mjtObj.mjOBJ_XBODY, mujoco.mjtObj.mjOBJ_BODY
    contact = mujoco.mjtSensor.mjSENS_CONTACT
    common = {"type": contact, "objtype": tree, "objname": root}
    mjspec.add_sensor(name=PEAK, **common, intprm=[_FORCE, _LARGEST, 1])
    touching = common | ({"objtype": body} if stands else {})
    mjspec.add_sensor(name=WORLD, **touching, reftype=body, refname="world", intprm=[_FOUND, _ANY, 1])
    mjspec.add_sensor(name=SELF, **common, reftype=tree, refname=root, intprm=[_FOUND, _ANY, 1])
    hand = find_hand_body(twin)
    if hand is not None:
        common |= {"objname": hand}
        mjspec.add_sensor(name=HAND, **common, reftype=tree, refname=hand, intprm=[_FOUND, _ANY, 1])
    return replace(_compile_twin(twin, mjspec), hash=twin.hash)


def find_hand_body(twin: Twin) -> str | None:
    """Return the body that carries the tool site; None if the robot has no tool site."""
    if twin.robot.tcp is None:
        return None
    return twin.model.body(int(twin.model.site(twin.robot.tcp).bodyid[0])).name


def _measure_height(twin: Twin, body: str) -> float:
    """Return the height in m of a body's geoms together, in the body's unrotated frame."""
    model = twin.model
    low, high = np.inf, -np.inf
    for geom in np.flatnonzero(model.geom_bodyid == model.body(body).id):
        turn = np.empty(9)
        mujoco.mju_quat2Mat(turn, model.geom_quat[geom])
        centre = model.geom_pos[geom] + turn.reshape(3, 3) @ model.geom_aabb[geom, :3]
        half = np.abs(turn.reshape(3, 3)) @ model.geom_aabb[geom, 3:]
        low, high = min(low, centre[2] - half[2]), max(high, centre[2] + half[2])
    return float(high - low)


def _set_shape(mjspec: mujoco.MjSpec, geom: mujoco.MjsGeom, piece: ConvexPart, factor: float, name: str) -> None:
    geom.type = GEOM_TYPES[piece.kind]
    geom.pos = factor * np.asarray(piece.position)
    if piece.vertices is None:
        geom.size = factor * np.resize(np.asarray(piece.size, dtype=np.float64), 3)
        return
    exact = mujoco.mjtMeshInertia.mjMESH_INERTIA_EXACT
    mjspec.add_mesh(name=name, uservert=(factor * piece.vertices).ravel(), inertia=exact)
    geom.meshname = name


def _compile_twin(twin: Twin, mjspec: mujoco.MjSpec) -> Twin:
    model = compile_model(mjspec)
    scene = None if twin.scene is None else SceneSlots(layout=twin.scene.layout, model=model)
    return replace(twin, model=model, mjspec=mjspec, scene=scene)


def _rebuild_twin(twin: Twin, mjspec: mujoco.MjSpec, *, change: list[object]) -> Twin:
    """Return the twin with a changed model: compile the model, and compute nominal values and hash again.

    Args:
        twin: The twin before the change.
        mjspec: The changed model.
        change: Description of the change, which enters the hash.
    """
    changed = _compile_twin(twin, mjspec)
    scene = changed.scene.param_specs() if changed.scene else ()
    rows = declared_params(twin.spec, scene=scene, sensors=sensor_params(twin.devices))
    known = preset_nominals(twin.spec.robot, twin.servos)
    rows = [row for row in rows if _has_param(changed, row, known)]
    params = expand_params(changed.model, rows, where=twin.name, nominals=known)
    return replace(
        changed, params=params, hash=sha256_json([twin.hash, *change, *changed_settings_lines(changed.model)])
    )


def _has_param(twin: Twin, row: ParamSpec, known: Mapping[str, float]) -> bool:
    """Return whether a changed model still has a parameter.

    For example, if a mesh replaces a box, the object has no parameter ``size`` any more.

    Args:
        twin: The changed twin.
        row: Specification of the parameter.
        known: Nominal values that are not in the model, by parameter name (see `preset_nominals`). A parameter whose
            nominal value is not in the model exists only if ``known`` or ``row`` has this value.
    """
    try:
        expand_params(twin.model, [row], where=twin.name, nominals=known)
    except InputError:
        return False
    return True
