"""Write a robot's MuJoCo model as a URDF, which another engine reads: the file that a maker publishes for its robot."""

from xml.etree import ElementTree

import mujoco
import numpy as np

BOX, CAPSULE = mujoco.mjtGeom.mjGEOM_BOX, mujoco.mjtGeom.mjGEOM_CAPSULE


def write_urdf(path, model, root, site):
    """Write the hinge tree below the body ``root``; the last link ``tool`` is the site. Only collision shapes are kept.

    Off-diagonal inertias are left out. Frames of bodies must coincide with those of their joints.
    """
    robot = ElementTree.Element("robot", name=path.stem)
    add_link(robot, model, model.body(root).id)
    tool = model.site(site)
    link = ElementTree.SubElement(ElementTree.SubElement(robot, "link", name="tool"), "inertial")
    ElementTree.SubElement(link, "mass", value="1e-6")  # without one, engines assume 1 kg
    ElementTree.SubElement(link, "inertia", dict.fromkeys(("ixx", "iyy", "izz"), "1e-9"), ixy="0", ixz="0", iyz="0")
    add_joint(robot, "tool", "fixed", model.body(tool.bodyid[0]).name, "tool", tool.pos, tool.quat)
    ElementTree.indent(robot)
    ElementTree.ElementTree(robot).write(path, xml_declaration=True)


def add_link(robot, model, body):
    link = ElementTree.SubElement(robot, "link", name=model.body(body).name)
    inertial = ElementTree.SubElement(link, "inertial")
    add_origin(inertial, model.body_ipos[body], [1, 0, 0, 0])
    ElementTree.SubElement(inertial, "mass", value=str(model.body_mass[body]))
    moments = dict(zip(("ixx", "iyy", "izz"), map(str, body_axes_inertia(model, body)), strict=True))
    ElementTree.SubElement(inertial, "inertia", {**moments, "ixy": "0", "ixz": "0", "iyz": "0"})
    for geom in np.flatnonzero((model.geom_bodyid == body) & (model.geom_contype > 0)):
        collision = ElementTree.SubElement(link, "collision")
        add_origin(collision, model.geom_pos[geom], model.geom_quat[geom])
        add_shape(ElementTree.SubElement(collision, "geometry"), model.geom_type[geom], model.geom_size[geom])
    for child in np.flatnonzero(model.body_parentid == body):
        add_link(robot, model, child)
        joint = model.joint(model.body_jntadr[child])
        added = add_joint(robot, joint.name, "revolute", model.body(body).name, model.body(child).name,
                          model.body_pos[child], model.body_quat[child])  # fmt: skip
        ElementTree.SubElement(added, "axis", xyz=join(joint.axis / np.linalg.norm(joint.axis)))
        low, high = map(str, joint.range)
        ElementTree.SubElement(added, "limit", lower=low, upper=high, effort="10", velocity="10")


def body_axes_inertia(model, body):
    """Return the diagonal of the inertia about the centre of mass, along the axes of the body."""
    turn = np.empty(9)
    mujoco.mju_quat2Mat(turn, model.body_iquat[body])
    return np.diag(turn.reshape(3, 3) @ np.diag(model.body_inertia[body]) @ turn.reshape(3, 3).T)


def add_joint(robot, name, kind, parent, child, place, quat):
    joint = ElementTree.SubElement(robot, "joint", name=name, type=kind)
    ElementTree.SubElement(joint, "parent", link=parent)
    ElementTree.SubElement(joint, "child", link=child)
    add_origin(joint, place, quat)
    return joint


def add_origin(parent, place, quat):
    w, x, y, z = quat
    roll = np.arctan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y))
    pitch = np.arcsin(np.clip(2 * (w * y - z * x), -1.0, 1.0))
    yaw = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    ElementTree.SubElement(parent, "origin", xyz=join(place), rpy=join([roll, pitch, yaw]))


def add_shape(geometry, kind, size):
    if kind == BOX:
        ElementTree.SubElement(geometry, "box", size=join(2 * size))
    elif kind == CAPSULE:
        ElementTree.SubElement(geometry, "capsule", radius=str(size[0]), length=str(2 * size[1]))
    else:
        raise NotImplementedError(mujoco.mjtGeom(kind).name)


def join(values):
    return " ".join(f"{value:.9g}" for value in values)
