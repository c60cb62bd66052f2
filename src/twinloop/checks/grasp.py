"""Check that a twin compiles, that no geoms overlap at the start, and that the gripper holds an object by friction.

For the grasp, the object is placed at the tool point (TCP) with its axes along the tool's axes. A force compensates its
weight while the gripper closes. Then the force is removed, and only friction holds the object; there is no weld.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.checks.corners import corner_values
from twinloop.checks.report import CheckOutcome
from twinloop.twin import Param, Twin
from twinloop.twin.twin import move_coupled_joint

PENETRATION_LIMIT_MM = 0.1  # soft contacts at rest overlap by less than this; overlapping shapes by more


def check_compiles(twin: Twin) -> CheckOutcome:
    """Check that the twin's MJCF compiles to the model that the twin already has, with finite numbers only."""
    name = "compiles"
    try:
        again = twin.mjspec.copy().compile()
    except ValueError as error:
        return CheckOutcome.fail(name, f"the description does not compile: {error}")
    differing = [field for field in _arrays(twin.model) if not _is_equal_field(twin.model, again, field)]
    infinite = [field for field in _arrays(twin.model) if not np.isfinite(getattr(twin.model, field)).all()]
    wrong = sorted({*differing, *infinite})
    size = f"nq {twin.model.nq}, nv {twin.model.nv}, nu {twin.model.nu}, {len(twin.params)} parameters"
    detail = f"{size}; wrong fields: {', '.join(wrong[:6])}" if wrong else size
    return CheckOutcome.judge(name, len(wrong), 0, "fields", detail=detail)


def check_penetration(twin: Twin) -> CheckOutcome:
    """Check the largest penetration depth of colliding geoms in the home pose, in mm."""
    model, data = twin.model, mujoco.MjData(twin.model)
    data.qpos[:] = twin.home()[0]
    mujoco.mj_forward(model, data)
    depth, pair = deepest_overlap(model, data)
    detail = f"between {pair}" if depth > 0 else f"{data.ncon} contacts"
    return CheckOutcome.judge("no initial penetration", 1e3 * depth, PENETRATION_LIMIT_MM, "mm", detail=detail)


def deepest_overlap(model: mujoco.MjModel, data: mujoco.MjData, *, body: int | None = None) -> tuple[float, str]:
    """Return the largest penetration depth of the current contacts in m, and the names of the two geoms or soft bodies.

    Without a penetration, the depth is 0 and the text is empty.

    Args:
        model: MuJoCo model.
        data: State with computed contacts.
        body: Index of a body. If given, only contacts of this body are used.
    """
    depth, pair = 0.0, ""
    for contact in data.contact:
        touching = [int(geom) for geom in contact.geom]
        if body is not None and all(geom < 0 or model.geom_bodyid[geom] != body for geom in touching):
            continue
        if -contact.dist > depth:
            depth = float(-contact.dist)
            pair = " and ".join(_shape_name(model, *ids) for ids in zip(touching, contact.flex, strict=True))
    return depth, pair


def _shape_name(model: mujoco.MjModel, geom: int, flex: int) -> str:
    if geom < 0:
        return f"soft body {mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_FLEX, int(flex))}"
    return model.geom(geom).name or f"geom {geom}"


def _arrays(model: mujoco.MjModel) -> list[str]:
    names = (name for name in dir(model) if not name.startswith("_"))
    return [name for name in names if isinstance(value := getattr(model, name), np.ndarray) and value.dtype.kind == "f"]


def _is_equal_field(model: mujoco.MjModel, other: mujoco.MjModel, field: str) -> bool:
    left, right = getattr(model, field), getattr(other, field)
    return left.shape == right.shape and np.array_equal(left, right, equal_nan=True)


SLIP_LIMIT_MM = 1.0
CLOSE_S = 1.0
HOLD_S = 10.0
_SEARCH_MM = 20


def check_grasp(twin: Twin) -> CheckOutcome:
    """Check how far an object slips in the gripper while it is held for 10 s, in mm.

    The object is held in the nominal world, and in the worlds at the ends of the default ranges where this is hardest:
    low friction and a weak gripper, with the lightest and with the heaviest object. Slip is the motion of the object's
    farthest point relative to the tool.
    """
    name = "grasp holds"
    hand = _find_gripper(twin)
    if isinstance(hand, str):
        return CheckOutcome.skip(name, hand)
    welded = _find_weld(twin.model, hand.body)
    if welded:
        return CheckOutcome.fail(
            name, f"{welded} fixes {twin.model.body(hand.body).name}; a grasp must hold by friction only"
        )
    worlds = _hard_worlds(twin, hand)
    table = twin.table(len(worlds), {p: [w.get(p, twin.params[p].nominal) for w in worlds] for p in worlds[-1]})
    fields, slip = twin.fields(table), []
    for world in range(len(worlds)):
        model = copy.copy(twin.model)
        fields.write_inplace(model, world)
        slip.append(1e3 * _measure_slip(twin, model, hand))
    detail = (
        f"{twin.robot.type} holds {twin.model.body(hand.body).name} for {HOLD_S:g} s, {len(worlds)} worlds, no weld"
    )
    return CheckOutcome.judge(
        name, max(slip), SLIP_LIMIT_MM, "mm", detail=detail, metrics={"nominal_mm": slip[0], "worst_mm": max(slip)}
    )


@dataclass(frozen=True, kw_only=True)
class _GripperIds:
    """Indices of the MuJoCo elements that take part in a grasp, and the commands of the gripper.

    Attributes:
        body: Body of the object.
        qpos: First entry of the object's free joint in ``qpos``.
        site: Site of the tool point (TCP).
        actuator: Actuator of the gripper.
        joint_qpos: Entry of the gripper joint in ``qpos``.
        open: Command that opens the gripper.
        closed: Command that closes the gripper.
    """

    body: int
    qpos: int
    site: int
    actuator: int
    joint_qpos: int
    open: float
    closed: float


def _find_gripper(twin: Twin) -> _GripperIds | str:
    """Return the indices for a grasp, or a sentence with the reason why this twin cannot grasp."""
    robot, model = twin.spec.robot, twin.model
    if robot is None:
        return "the twin has no robot"
    if robot.gripper is None or robot.tcp is None:
        return f"the twin's YAML does not name {robot.missing_for_grasp}"
    if not twin.spec.objects:
        return "the twin lists no objects to hold"
    body = model.body(twin.spec.objects[0])
    if body.jntnum[0] != 1 or model.jnt_type[body.jntadr[0]] != mujoco.mjtJoint.mjJNT_FREE:
        return f"{twin.spec.objects[0]} is not a free body"
    joint = robot.joints.index(robot.gripper.joint)
    return _GripperIds(
        body=body.id,
        qpos=int(model.jnt_qposadr[body.jntadr[0]]),
        site=model.site(robot.tcp).id,
        actuator=model.actuator(robot.actuator_names[joint]).id,
        joint_qpos=int(twin.joint_qpos[joint]),
        open=robot.gripper.open,
        closed=robot.gripper.closed,
    )


def _find_weld(model: mujoco.MjModel, body: int) -> str:
    """Return the name of a weld or connect equality that constrains the body; "" if there is none."""
    for row in range(model.neq):
        kind = mujoco.mjtEq(int(model.eq_type[row]))
        if kind in (mujoco.mjtEq.mjEQ_WELD, mujoco.mjtEq.mjEQ_CONNECT):
            named = {int(model.eq_obj1id[row]), int(model.eq_obj2id[row])}
            if model.eq_objtype[row] == mujoco.mjtObj.mjOBJ_SITE:
                named = {int(model.site_bodyid[site]) for site in named}
            if body in named:
                return f"{kind.name.removeprefix('mjEQ_').lower()} {model.equality(row).name or row}"
    return ""


def _hard_worlds(twin: Twin, hand: _GripperIds) -> list[dict[str, float]]:
    """Return the parameter values of the worlds of the grasp check: nominal, and the two hardest corners.

    Both corners have the lowest friction, gain and torque limit of their ranges, one with the lightest object and one
    with the heaviest. The dictionary of the nominal world is empty; the other dictionaries have the same parameter
    names.
    """
    body, motor = twin.model.body(hand.body).name, twin.model.actuator(hand.actuator).name
    weak = {f"object/{body}/friction/slide", f"actuator/{motor}/kp", f"actuator/{motor}/torque_limit"}
    mass = f"object/{body}/mass"

    def chosen(param: Param, heavy: bool) -> bool | None:
        return heavy if param.name == mass else (False if param.name in weak else None)

    return [{}, *(corner_values(twin, lambda param, heavy=heavy: chosen(param, heavy)) for heavy in (False, True))]


def _measure_slip(twin: Twin, model: mujoco.MjModel, hand: _GripperIds) -> float:
    """Simulate a grasp, and return how far the object slips after its support force is removed.

    Returns:
        The largest motion in m of any point of the object relative to the tool; infinite if the object was lost or
        could not be placed in the gripper.
    """
    data = mujoco.MjData(model)
    if not _place(twin, model, data, hand):
        return np.inf
    weight = -model.body_mass[hand.body] * model.opt.gravity
    data.ctrl[hand.actuator] = hand.closed
    data.xfrc_applied[hand.body, :3] = weight
    _run(model, data, CLOSE_S)
    before = _pose_in_hand(data, hand)
    data.xfrc_applied[hand.body, :3] = 0.0
    radius = float(np.linalg.norm(_half_size(model, hand.body)))
    worst = 0.0
    for _ in range(round(HOLD_S / 0.1)):
        _run(model, data, 0.1)
        worst = max(worst, _bound_motion(before, _pose_in_hand(data, hand), radius))
    return worst if _is_held(model, data, hand) and np.isfinite(data.qpos).all() else np.inf


def _is_held(model: mujoco.MjModel, data: mujoco.MjData, hand: _GripperIds) -> bool:
    """Return whether the object touches the robot and nothing else."""
    robot = model.body_rootid[model.site_bodyid[hand.site]]
    geoms = data.contact.geom[: data.ncon]
    bodies = model.geom_bodyid[geoms[(geoms >= 0).all(axis=1)]]  # soft bodies have the index -1
    touching = bodies[(bodies == hand.body).any(axis=1)]
    others = touching[touching != hand.body]
    return len(others) > 0 and bool((model.body_rootid[others] == robot).all())


def _place(twin: Twin, model: mujoco.MjModel, data: mujoco.MjData, hand: _GripperIds) -> bool:
    """Set the home pose with an open gripper, and place the object at the tool point, in place in ``data``.

    If the object overlaps the gripper there, it is moved along an axis of the tool by up to 20 mm.

    Returns:
        Whether a position without overlap was found.
    """
    data.qpos[:], data.ctrl[:] = twin.home()
    data.qpos[hand.joint_qpos] = data.ctrl[hand.actuator] = hand.open
    for row in np.flatnonzero((model.eq_type == mujoco.mjtEq.mjEQ_JOINT) & (model.eq_obj2id >= 0)):
        move_coupled_joint(model, int(row), data.qpos, data.qvel)
    mujoco.mj_kinematics(model, data)
    tool, position = data.site_xmat[hand.site].reshape(3, 3).copy(), data.site_xpos[hand.site].copy()
    mujoco.mju_mat2Quat(data.qpos[hand.qpos + 3 : hand.qpos + 7], tool.ravel())
    offsets = [np.zeros(3), *(s * axis * d for d in range(1, _SEARCH_MM + 1) for axis in np.eye(3) for s in (1, -1))]
    for offset in offsets:
        data.qpos[hand.qpos : hand.qpos + 3] = position + tool @ (1e-3 * offset)
        mujoco.mj_forward(model, data)
        if 1e3 * deepest_overlap(model, data, body=hand.body)[0] <= PENETRATION_LIMIT_MM:
            return True
    return False


def _run(model: mujoco.MjModel, data: mujoco.MjData, seconds: float) -> None:
    mujoco.mj_step(model, data, nstep=max(1, round(seconds / model.opt.timestep)))


def _pose_in_hand(data: mujoco.MjData, hand: _GripperIds) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the position in m and the rotation matrix of the object in the frame of the tool point."""
    tool = data.site_xmat[hand.site].reshape(3, 3)
    position = tool.T @ (data.xpos[hand.body] - data.site_xpos[hand.site])
    return position, tool.T @ data.xmat[hand.body].reshape(3, 3)


def _bound_motion(before: tuple[NDArray, NDArray], after: tuple[NDArray, NDArray], radius: float) -> float:
    """Return an upper bound in m of the motion of any point of the object relative to the tool.

    Args:
        before: Earlier position and rotation matrix of the object in the tool frame.
        after: Later position and rotation matrix.
        radius: Largest distance in m of a point from the object's origin.
    """
    cosine = (np.trace(before[1].T @ after[1]) - 1.0) / 2.0
    angle = np.arccos(np.clip(cosine, -1.0, 1.0))
    return float(np.linalg.norm(after[0] - before[0]) + angle * radius)


def _half_size(model: mujoco.MjModel, body: int) -> NDArray[np.float64]:
    """Return the half extents in m, shape ``(3,)``, of the bounding box of a body's largest geom."""
    geoms = np.flatnonzero(model.geom_bodyid == body)
    return model.geom_aabb[geoms[np.argmax(model.geom_rbound[geoms])], 3:]
