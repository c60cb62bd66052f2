"""Build a Drake plant from a MuJoCo model: bodies, hinges and collision shapes."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.twin.quantities.rotation import rotate_vectors

# Pressure of a compliant shape per relative depth (hydroelastic modulus) in Pa: with 5 MPa a cube on the table sinks by
# 0.02 mm, and a grasp with 20 N dents it by 0.1 mm, like hard plastic with a soft skin.
_MODULUS = 5e6
_DISSIPATION = 10.0  # s/m, Hunt and Crossley; our choice: contacts of 0.1 m/s hardly rebound
_POINT_STIFFNESS = 1e5  # N/m, for pairs without a pressure field
_DEPTH = 0.1  # m: half the thickness of the box that replaces a plane
_RESOLUTION = 1.0  # m: one element per side of a box


def import_drake() -> Any:
    """Import and return ``pydrake.all``.

    Raises:
        MissingDependencyError: If Drake is not installed.
    """
    try:
        import pydrake.all as drake  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(
            "The SO-101 in Drake needs pydrake.", remedy="pip install 'twinloop[drake]'"
        ) from error
    return drake


class DrakePlant:
    """Plant of the bodies of a MuJoCo model with hinges and free bodies, and its contact.

    Drake solves contact as pressure fields (hydroelastic contact) between free bodies, which are compliant, and all
    boxes; other pairs touch in points. Pairs that cannot collide in the MuJoCo model do not collide here.

    Args:
        model: the MuJoCo model. Masses, inertias, hinges with their ranges, and shapes are used; actuators, friction,
            damping and armature of joints are not.
        joints: names of the driven hinges; they must be all hinges of the model.
        step: time step in s.
        free: whether free bodies are part of the plant.

    Raises:
        MissingDependencyError: If Drake is not installed.
        InputError: If a joint is neither a driven hinge nor free, or a colliding shape has another type than box,
            capsule and plane.
    """

    def __init__(self, model: mujoco.MjModel, joints: list[str], step: float, *, free: bool = True) -> None:
        self.drake, self._model, self.step = import_drake(), model, step
        drake = self.drake
        builder = drake.DiagramBuilder()
        self.plant, self._scene = drake.AddMultibodyPlantSceneGraph(builder, step)
        self.plant.SetUseSampledOutputPorts(False)  # no output is read, and copies of outputs cost time
        self.plant.set_contact_model(drake.ContactModel.kHydroelasticWithFallback)
        self.plant.set_discrete_contact_approximation(drake.DiscreteContactApproximation.kLagged)
        self.plant.mutable_gravity_field().set_gravity_vector(model.opt.gravity)
        self._free_bodies = [i for i in range(model.nbody) if self._is_free(i)]
        self._bodies = self._add_bodies(free)
        for body in self._bodies:
            if body and not self._is_free(body):
                self._add_joint(body, joints)
        shapes = {shape: self._add_shape(shape) for shape in range(model.ngeom) if self._collides(shape)}
        self.plant.Finalize()
        self._exclude_pairs(shapes)
        self.diagram = builder.Build()
        self.layout = StateLayout(
            model, self.plant, joints, [body for body in self._free_bodies if body in self._bodies]
        )

    def start(self, qpos: NDArray[np.float64]) -> DrakeWorld:
        """Return a world at rest at MuJoCo's positions ``(nq,)``."""
        return DrakeWorld(self, self.layout.to_drake(qpos))

    def _is_free(self, body: int) -> bool:
        first = self._model.body_jntadr[body]
        return bool(first >= 0 and self._model.jnt_type[first] == mujoco.mjtJoint.mjJNT_FREE)

    def _add_bodies(self, free: bool) -> dict[int, Any]:
        model, drake = self._model, self.drake
        bodies = {0: self.plant.world_body()}
        for body in range(1, model.nbody):
            if model.body_mocapid[body] >= 0 or (self._is_free(body) and not free):
                continue
            turn = self._pose(np.zeros(3), model.body_iquat[body]).rotation()
            inertia = drake.RotationalInertia(*model.body_inertia[body]).ReExpress(turn)
            mass, centre = model.body_mass[body], model.body_ipos[body]
            spatial = drake.SpatialInertia.MakeFromCentralInertia(mass, centre, inertia)
            bodies[body] = self.plant.AddRigidBody(model.body(body).name, spatial)
        return bodies

    def _add_joint(self, body: int, joints: list[str]) -> None:
        model, drake, child = self._model, self.drake, self._bodies[body].body_frame()
        parent, pose = self._bodies[model.body_parentid[body]], self._pose(model.body_pos[body], model.body_quat[body])
        if not model.body_jntnum[body]:
            self.plant.WeldFrames(parent.body_frame(), child, pose)
            return
        joint = model.joint(model.body_jntadr[body])
        if model.body_jntnum[body] > 1 or joint.name not in joints or joint.type[0] != mujoco.mjtJoint.mjJNT_HINGE:
            raise InputError(f"The body {model.body(body).name} has other joints than one driven hinge.")
        anchor = drake.RigidTransform(joint.pos)
        before = self.plant.AddFrame(drake.FixedOffsetFrame(f"{joint.name}/before", parent.body_frame(), pose @ anchor))
        after = self.plant.AddFrame(drake.FixedOffsetFrame(f"{joint.name}/after", child, anchor))
        hinge = drake.RevoluteJoint(joint.name, before, after, joint.axis, *joint.range, 0.0)
        self.plant.AddJointActuator(joint.name, self.plant.AddJoint(hinge))

    def _collides(self, shape: int) -> bool:
        model = self._model
        return bool(model.geom_contype[shape] or model.geom_conaffinity[shape]) and (
            model.geom_bodyid[shape] in self._bodies
        )

    def _add_shape(self, index: int) -> Any:
        model, drake, kind = self._model, self.drake, mujoco.mjtGeom(int(self._model.geom_type[index]))
        size, name = model.geom_size[index], model.geom(index).name
        makers = {
            mujoco.mjtGeom.mjGEOM_BOX: lambda: drake.Box(*(2.0 * size)),
            mujoco.mjtGeom.mjGEOM_CAPSULE: lambda: drake.Capsule(size[0], 2.0 * size[1]),
            mujoco.mjtGeom.mjGEOM_PLANE: lambda: drake.Box(2.0 * size[0], 2.0 * size[1], 2.0 * _DEPTH),
        }
        if kind not in makers:
            raise InputError(f"The shape {name} is a {kind.name}. Boxes, capsules and planes are supported.")
        body = int(model.geom_bodyid[index])
        properties = self._contact_properties(soft=self._is_free(body), flat=kind != mujoco.mjtGeom.mjGEOM_CAPSULE)
        pose = self._pose(model.geom_pos[index], model.geom_quat[index])
        if kind == mujoco.mjtGeom.mjGEOM_PLANE:
            pose = pose @ drake.RigidTransform([0.0, 0.0, -_DEPTH])
        return self.plant.RegisterCollisionGeometry(self._bodies[body], pose, makers[kind](), name, properties)

    def _contact_properties(self, *, soft: bool, flat: bool) -> Any:
        """Return contact properties; friction is that of the free body in all pairs, as in the twin."""
        drake, model, properties = self.drake, self._model, self.drake.ProximityProperties()
        mine = [shape for shape in range(model.ngeom) if model.geom_bodyid[shape] in self._free_bodies]
        friction = float(model.geom_friction[mine[0], 0])
        drake.AddContactMaterial(
            dissipation=_DISSIPATION,
            point_stiffness=_POINT_STIFFNESS,
            friction=drake.CoulombFriction(friction, friction),
            properties=properties,
        )
        if soft:
            drake.AddCompliantHydroelasticProperties(_RESOLUTION, _MODULUS, properties)
        elif flat:
            drake.AddRigidHydroelasticProperties(_RESOLUTION, properties)
        return properties

    def _exclude_pairs(self, shapes: dict[int, Any]) -> None:
        drake, manager, numbers = self.drake, self._scene.collision_filter_manager(), list(shapes)
        for row, one in enumerate(numbers):
            others = [shapes[other] for other in numbers[row + 1 :] if not self._can_touch(one, other)]
            if others:
                pairs = drake.GeometrySet(shapes[one]), drake.GeometrySet(others)
                manager.Apply(drake.CollisionFilterDeclaration().ExcludeBetween(*pairs))

    def _can_touch(self, one: int, other: int) -> bool:
        """Return whether two shapes can collide in the MuJoCo model, by its bits and its rule for neighbours."""
        model = self._model
        kinds, affinities = model.geom_contype, model.geom_conaffinity
        first, second = (int(model.geom_bodyid[shape]) for shape in (one, other))
        match = kinds[one] & affinities[other] or kinds[other] & affinities[one]
        near = model.body_parentid[first] == second or model.body_parentid[second] == first
        excluded = (first << 16) + second in model.exclude_signature or (
            second << 16
        ) + first in model.exclude_signature
        return bool(match) and first != second and not (near and first and second) and not excluded

    def _pose(self, position: NDArray[np.float64], quaternion: NDArray[np.float64]) -> Any:
        drake = self.drake
        turn = drake.RotationMatrix(drake.Quaternion(quaternion / np.linalg.norm(quaternion)))
        return drake.RigidTransform(turn, position)


class StateLayout:
    """Order of positions and velocities in Drake and in MuJoCo.

    In Drake a free body has its quaternion before its position and its angular velocity before its linear velocity, and
    its angular velocity is expressed in the world frame; in MuJoCo it is expressed in the body frame.

    Attributes:
        positions: index of each driven joint's position in a state of Drake, ``(n,)``.
        velocities: index of its velocity.
    """

    def __init__(self, model: mujoco.MjModel, plant: Any, joints: list[str], free: list[int]) -> None:
        found, after = [plant.GetJointByName(name) for name in joints], plant.num_positions()
        self.positions = np.array([joint.position_start() for joint in found])
        self.velocities = np.array([joint.velocity_start() for joint in found]) + after
        hinges = [model.joint(name) for name in joints]
        self._qpos, self._qvel = [hinge.qposadr[0] for hinge in hinges], [hinge.dofadr[0] for hinge in hinges]
        self._from_q, self._from_v = self.positions.tolist(), self.velocities.tolist()
        self._turned: list[tuple[int, int]] = []  # first index of quaternion in qpos, and of angular velocity in qvel
        for body in free:
            joint, drake = model.joint(model.body_jntadr[body]), plant.GetBodyByName(model.body(body).name)
            first, speed = drake.floating_positions_start(), after + drake.floating_velocities_start_in_v()
            self._qpos += range(joint.qposadr[0], joint.qposadr[0] + 7)
            self._from_q += [first + 4, first + 5, first + 6, first, first + 1, first + 2, first + 3]
            self._qvel += range(joint.dofadr[0], joint.dofadr[0] + 6)
            self._from_v += [speed + 3, speed + 4, speed + 5, speed, speed + 1, speed + 2]
            self._turned.append((joint.qposadr[0] + 3, joint.dofadr[0] + 3))
        self._size = (model.nq, model.nv, after)

    def to_drake(self, qpos: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return Drake's positions for MuJoCo's positions ``(nq,)``."""
        positions = np.zeros(self._size[2])
        positions[self._from_q] = qpos[self._qpos]
        return positions

    def to_mujoco(
        self, states: NDArray[np.float64], absent: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return MuJoCo's ``qpos`` ``(nworld, nq)`` and ``qvel`` ``(nworld, nv)`` for states of Drake.

        ``absent`` are positions ``(nworld, nq)``, which are used for bodies that the plant lacks.
        """
        qpos, qvel = absent.copy(), np.zeros((len(states), self._size[1]))
        qpos[:, self._qpos], qvel[:, self._qvel] = states[:, self._from_q], states[:, self._from_v]
        for turn, spin in self._turned:
            inverse = qpos[:, turn : turn + 4] * [1.0, -1.0, -1.0, -1.0]
            qvel[:, spin : spin + 3] = rotate_vectors(inverse, qvel[:, spin : spin + 3])
        return qpos, qvel


class DrakeWorld:
    """One running world of a plant."""

    def __init__(self, plant: DrakePlant, positions: NDArray[np.float64]) -> None:
        self._plant = plant.plant
        self._simulator = plant.drake.Simulator(plant.diagram)
        self._context = self._plant.GetMyMutableContextFromRoot(self._simulator.get_mutable_context())
        self._plant.SetPositions(self._context, positions)
        size = self._plant.num_actuators()
        self._torque = self._plant.get_actuation_input_port().FixValue(self._context, np.zeros(size))
        self._rows = plant.layout.velocities - self._plant.num_positions()
        self._simulator.Initialize()

    @property
    def state(self) -> NDArray[np.float64]:
        """Positions and velocities in Drake's order."""
        return self._plant.GetPositionsAndVelocities(self._context)

    def gravity_torques(self) -> NDArray[np.float64]:
        """Return the torques of gravity at the driven joints in the present pose, ``(n,)`` in N·m."""
        return self._plant.CalcGravityGeneralizedForces(self._context)[self._rows]

    def advance(self, torque: NDArray[np.float64], moment: float) -> None:
        """Simulate until the time ``moment`` in s under constant torques ``(n,)`` at the driven joints in N·m."""
        self._torque.GetMutableData().get_mutable_value().set_value(torque)
        self._simulator.AdvanceTo(moment)
