"""Shared helpers for tests of invalid worlds in generate."""

from __future__ import annotations

import json

import pytest

# Every fifth world begins to spin ever faster at step 12, until its velocity is beyond what MuJoCo takes for sane.
TASK = """
import numpy as np
from benchmarks.speed.swing import Swing

class Runaway(Swing):
    name = "runaway"

    def expert(self, initial):
        runaway = np.isclose(initial.qpos[:, 0] % 0.5, 0.25, atol=0.05)
        push = super().expert(initial)
        def act(simulation):
            torque = push(simulation).copy()
            if simulation.step_index >= 12:
                torque[runaway] = 1e14
            return torque
        return act
"""


@pytest.fixture(scope="module")
def value(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    (folder / "runaway.py").write_text(TASK)
    twin = {
        "schema": 1,
        "name": "free_swing",
        "model": "swing.xml",
        "control_hz": 500,
        "substeps": 4,
        "robot": {"type": "swing", "joints": ["shoulder", "elbow"], "units": ["rad", "rad"], "control": "torque"},
        "params": [{"name": "joint/*/damping", "low": 0.0, "high": 1.0, "range": [0.001, 0.1], "source": "planted"}],
    }
    (folder / "swing.yaml").write_text(json.dumps(twin))
    (folder / "swing.xml").write_text(MODEL)
    return folder, {
        "scene": {"twin": "swing.yaml", "task": "runaway.py:Runaway"},
        "rollout": {"parallel_envs": 10, "episodes_per_env": 4},
    }


MODEL = """
<mujoco>
  <option timestep="0.0005"/>
  <worldbody>
    <body><joint name="shoulder" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0 0 -.3" size=".02" mass="1"/>
      <body pos="0 0 -.3"><joint name="elbow" axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0 0 0 -.3" size=".02" mass="1" contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor name="shoulder" joint="shoulder"/><motor name="elbow" joint="elbow"/></actuator>
</mujoco>
"""
