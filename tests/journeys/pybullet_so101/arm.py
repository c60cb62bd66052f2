"""A user's SO-101 in PyBullet, with a tracker that measures its tool, a cube and a target.

PyBullet has no rotor inertia, so every link gets that of its rotor. `ZEROS` are errors of the encoders in rad.
"""

import numpy as np
import pybullet as p
from pybullet_utils.bullet_client import BulletClient

from twinloop.hardware import OwnRobot

HOME, TORQUE = np.array([0, -0.6, 0.6, 1.4, 0, 0.6]), np.array([3.25, 3.25, 3.25, 3.25, 3.25, 1.675])
ZEROS = np.radians([1.2, -0.9, 0.8, -1.0, 1.5, 0.0])
STEP, ROTOR, LINKS = 1 / 480, 0.012, range(6)
POSES = [f"{thing}.{axis}" for thing in ("tool", "cube", "target") for axis in "xyz"]


class Arm(OwnRobot):
    twin, tracked = "so101_tabletop", (*POSES, "cube.heading.cos", "cube.heading.sin")

    def __init__(self, gain="7", damping="0.6", friction="0.08", delay="0.05"):
        self.gain, self.damping, self.friction = float(gain), float(damping), float(friction)
        self.delay, self.engine = round(float(delay) / STEP), BulletClient(p.DIRECT)

    def reset(self, episode):
        engine, (x, y, *target, yaw) = self.engine, draw_scene(episode)
        engine.resetSimulation()
        engine.setPhysicsEngineParameter(fixedTimeStep=STEP, numSolverIterations=100)
        engine.setGravity(0, 0, -9.81)
        self.arm = engine.loadURDF("so101.urdf", useFixedBase=True, flags=p.URDF_USE_INERTIA_FROM_FILE)
        table, cube = (
            engine.createCollisionShape(p.GEOM_BOX, halfExtents=half) for half in ([1, 1, 0.02], [0.014] * 3)
        )
        engine.createMultiBody(0, table, basePosition=[0.2, 0, -0.02])
        self.cube = engine.createMultiBody(0.03, cube, -1, [x, y, 0.014], engine.getQuaternionFromEuler([0, 0, yaw]))
        engine.changeDynamics(self.cube, -1, lateralFriction=1.6, spinningFriction=0.005)
        for link in LINKS:
            moments, axis = engine.getDynamicsInfo(self.arm, link)[2], engine.getJointInfo(self.arm, link)[13]
            engine.changeDynamics(self.arm, link, localInertiaDiagonal=moments + ROTOR * np.square(axis))
            engine.resetJointState(self.arm, link, HOME[link])
        engine.setJointMotorControlArray(self.arm, LINKS, p.VELOCITY_CONTROL, forces=[self.friction] * 6)
        self.target, self.queue = [*target, 0.0], [HOME] * (self.delay + 1)

    def step(self, command, dt):
        for _ in range(round(dt / STEP)):
            self.queue = [*self.queue[1:], self.units.to_si(command) - ZEROS]
            q, v = np.transpose([state[:2] for state in self.engine.getJointStates(self.arm, LINKS)])
            torque = np.clip(self.gain * (self.queue[0] - q), -TORQUE, TORQUE) - self.damping * v
            self.engine.setJointMotorControlArray(self.arm, LINKS, p.TORQUE_CONTROL, forces=torque)
            self.engine.stepSimulation()

    def read(self):
        return self.units.from_si([state[0] for state in self.engine.getJointStates(self.arm, LINKS)] + ZEROS)

    def track(self):
        tool = self.engine.getLinkState(self.arm, 6, computeForwardKinematics=True)[4]
        place, turn = self.engine.getBasePositionAndOrientation(self.cube)
        yaw = self.engine.getEulerFromQuaternion(turn)[2]
        return [*tool, *place, *self.target, np.cos(yaw), np.sin(yaw)]

    def success(self):
        tool, cube, target = np.reshape(self.track()[:9], (3, 3))
        return bool(np.hypot(*(cube - target)[:2]) < 0.03 and cube[2] < 0.019 and np.linalg.norm(tool - cube) > 0.04)


def draw_scene(episode):
    """Return x and y of cube and target in m, and the heading of the cube in rad."""
    low, high = [0.18, -0.1, 0.18, -0.1, -0.7], [0.27, 0.1, 0.27, 0.1, 0.7]
    return np.random.default_rng(episode).uniform(low, high)
