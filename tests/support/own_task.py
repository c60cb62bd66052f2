"""A user's own robot and task: a two-axis pusher, and the task to push a puck to a target."""

from pathlib import Path

MODEL = """
<mujoco model="pusher">
  <worldbody>
    <geom name="table" type="plane" size="1 1 0.1"/>
    <body name="x" pos="0 0 0.05">
      <joint name="slide_x" type="slide" axis="1 0 0" range="-0.4 0.4" damping="5"/>
      <geom type="box" size="0.01 0.01 0.01" mass="0.2" contype="0" conaffinity="0"/>
      <body name="y">
        <joint name="slide_y" type="slide" axis="0 1 0" range="-0.4 0.4" damping="5"/>
        <geom name="tip" type="sphere" size="0.02" mass="0.2" pos="0 0 -0.02"/>
        <site name="tool" pos="0 0 -0.02"/>
      </body>
    </body>
    <body name="puck" pos="0.1 0 0.021">
      <freejoint/><geom name="puck" type="box" size="0.02 0.02 0.02" mass="0.05"/>
    </body>
  </worldbody>
  <actuator>
    <position name="slide_x" joint="slide_x" kp="200" ctrlrange="-0.4 0.4"/>
    <position name="slide_y" joint="slide_y" kp="200" ctrlrange="-0.4 0.4"/>
  </actuator>
</mujoco>
"""

TWIN = """
schema: 1
name: pusher
model: pusher.xml
control_hz: 20
substeps: 25
robot: {type: pusher, joints: [slide_x, slide_y], units: [m, m], tcp: tool}
objects: [puck]
params:
  - {name: "object/puck/mass"}
  - {name: "joint/*/damping"}
  - {name: "object/puck/position/x", low: -1.0, high: 1.0, source: "for scenarios"}
  - {name: "object/puck/position/y", low: -1.0, high: 1.0, source: "for scenarios"}
"""

PLACES = """
TARGET = (0.25, 0.0)
RADIUS = 0.05
SIDE = 0.02
"""

TASK = """
import mujoco
import numpy as np
from places import RADIUS, SIDE, TARGET
from twinloop.core.seeds import uniforms
from twinloop.simulate import InitialState
from twinloop.simulate.protocol import state_columns


class Push:
    name, version, success_version, expert_version = "push", "push/1", "push.reached/1", "push.expert/1"
    instruction = "Push the puck to the target."
    environment_names = ("puck.x", "puck.y")

    def __init__(self, twin):
        self.twin, self.nstep = twin, 50
        self._qpos = state_columns(twin.model, int(mujoco.mjtState.mjSTATE_QPOS))

    def reset(self, params, *, run_seed, episodes, attempt=0):
        n = len(episodes)
        qpos = np.tile([0, 0, 0.1, 0, 0.021, 1, 0, 0, 0], (n, 1)).astype(float)
        qpos[:, 3] = SIDE * (2 * uniforms(run_seed, "push/reset", episodes, size=1, attempt=attempt)[:, 0] - 1)
        return InitialState(
            qpos=qpos, qvel=np.zeros((n, self.twin.model.nv)), command=np.zeros((n, 2)),
            mocap_pos=np.zeros((n, 0, 3)), mocap_quat=np.zeros((n, 0, 4)),
        )

    def environment(self, states):
        return states[..., self._qpos][..., 2:4]

    def success(self, states):
        return np.linalg.norm(self.environment(states) - np.array(TARGET), axis=-1) < RADIUS

    def expert(self, initial):
        y, time = initial.qpos[:, 3], [0]

        def control(simulation):
            time[0] += 1
            return np.stack([np.full(len(y), min(0.008 * time[0], TARGET[0] - 0.03)), y], axis=1)

        return control
"""

GENERATE = """
scene: {twin: robot/pusher.yaml, task: "push.py:Push"}
rollout: {environment_state: true, parallel_envs: 8}
"""


def write_own_task(folder: Path) -> Path:
    """Write twin, task and generate file of the pusher into a folder; return the folder."""
    (folder / "robot").mkdir(parents=True)
    files = {
        "robot/pusher.xml": MODEL, "robot/pusher.yaml": TWIN, "push.py": TASK, "places.py": PLACES,
        "generate.yaml": GENERATE,
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).write_text(text.lstrip())
    return folder
