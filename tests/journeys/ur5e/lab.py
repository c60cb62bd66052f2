"""The lab's UR5e cell, here simulated with gains, friction, delay and encoder zeros that the twin does not know."""

import csv
from collections import deque
from pathlib import Path

import mujoco
import numpy as np

from twinloop.hardware import OwnRobot

JOINTS = ["shoulder_pan_joint", "shoulder_lift_joint", "elbow_joint", "wrist_1_joint", "wrist_2_joint", "wrist_3_joint"]
HOME = np.array([-1.5708, -1.5708, 1.5708, -1.5708, -1.5708, 0.0])
GAIN = np.array([0.8, 1.2, 0.7, 0.9, 1.1, 1.0])  # times the model's
FRICTION = np.array([6.0, 8.0, 5.0, 1.5, 1.2, 1.0])  # N·m
ZERO = np.array([0.01, -0.012, 0.008, 0.0, 0.015, -0.01])  # rad: reading less true angle
DELAY = 0.025  # s


class Lab(OwnRobot):
    name, joints, unit = "cell", tuple(JOINTS), "rad"
    tracked = ("tool.x", "tool.y", "tool.z", "puck.x", "puck.y", "puck.z", "puck.heading.cos", "puck.heading.sin")
    target = np.array([0.1, 0.55])

    def __init__(self, model="cell.xml"):
        self.model = mujoco.MjModel.from_xml_path(model)
        self.model.opt.timestep = 0.0005
        self.model.actuator_gainprm[:, 0] *= GAIN
        self.model.actuator_biasprm[:, 1] *= GAIN
        self.model.dof_frictionloss[:6] = FRICTION

    def reset(self, episode):
        random = np.random.default_rng(episode)
        self.data = mujoco.MjData(self.model)
        self.data.qpos[:6] = self.data.ctrl[:] = HOME
        self.data.qpos[6:9] = [*random.uniform([-0.21, 0.45], [-0.05, 0.55]), 0.03]
        self.queue = deque([(0.0, HOME)])
        mujoco.mj_forward(self.model, self.data)

    def step(self, command, dt):
        self.queue.append((self.data.time + DELAY, np.array(command)))
        end = self.data.time + dt
        while self.data.time < end - 1e-9:
            while self.queue and self.queue[0][0] <= self.data.time + 1e-9:
                self.data.ctrl[:] = self.queue.popleft()[1] - ZERO
            mujoco.mj_step(self.model, self.data)

    def read(self):
        return self.data.qpos[:6] + ZERO

    def track(self):
        tool, (w, x, y, z) = self.data.site("attachment_site").xpos, self.data.qpos[9:13]
        yaw = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
        return [*tool, *self.data.qpos[6:9], np.cos(yaw), np.sin(yaw)]

    def success(self):
        return bool(np.linalg.norm(self.data.qpos[6:8] - self.target) < 0.04)


def write_logs(folder, number=12, seconds=8.0, hz=100):
    """Log smooth random motions as the robot's controller does: a CSV file per run."""
    robot = Lab()
    Path(folder).mkdir()
    for k in range(number):
        random = np.random.default_rng(100 + k)
        robot.reset(k)
        robot.data.qpos[6:9] = [0, -0.8, 0.03]  # out of the way
        frequency, phase = random.uniform(0.1, 0.7, (2, 6)), random.uniform(0, 2 * np.pi, (2, 6))
        size = random.uniform(0.05, 0.25, (2, 6))
        with (Path(folder) / f"run_{k:02d}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["t", *(f"{name}_{j}" for name in ("q_des", "q", "qd") for j in range(1, 7))])
            for i in range(round(seconds * hz)):
                t = i / hz
                waves = size * (np.sin(2 * np.pi * frequency * t + phase) - np.sin(phase))
                command = HOME + min(1.0, t) * waves.sum(axis=0)
                writer.writerow([f"{value:.6f}" for value in (t, *command, *robot.read(), *robot.data.qvel[:6])])
                robot.step(command, 1 / hz)
