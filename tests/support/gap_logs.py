"""Logs that a twin made, with planted differences."""

from __future__ import annotations

import numpy as np

from twinloop.core.records import Episode
from twinloop.core.seeds import generator
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay


def episode(index, units, action, state, **changes):
    fields = {"time": np.arange(len(action)) / 30, "action": action, "state": state, "units": units, "source": "sim"}
    return Episode(index=index, **{**fields, **changes})


def log_of(twin, backend, values, *, count=4, nframe=60, seed=0):
    """Episodes of the twin itself with some parameters, without noise, in its own units; of unlike lengths."""
    rng = generator(seed, "test/gap")
    blank = []
    for index in range(count):
        frames = nframe - 5 * index
        turns = rng.uniform(-25, 25, size=(2, 6)) * np.sin(np.linspace(0, [[3], [7]], frames, axis=-1)).transpose(
            2, 0, 1
        )
        action = turns.sum(axis=1) + np.array([0, -40, 40, 30, 0, 40])
        blank.append(episode(index, twin.units, action, action))
    readings = replay(backend, prepare_replay(twin, blank), twin.table(1, values))[0]
    return [episode(e.index, e.units, e.action, readings[i, : len(e)]) for i, e in enumerate(blank)]


ARM = """<mujoco><option integrator="implicitfast"/><worldbody><body name="upper">
<joint name="shoulder" axis="0 1 0" damping="0.3" range="-2 2" limited="true"/>
<geom type="capsule" fromto="0 0 0 0.2 0 0" size="0.02" mass="0.3"/>
<body name="lower" pos="0.2 0 0"><joint name="elbow" axis="0 1 0" damping="0.2" range="-2 2" limited="true"/>
<geom type="capsule" fromto="0 0 0 0.15 0 0" size="0.02" mass="0.2"/></body></body></worldbody>
<actuator><position name="shoulder" joint="shoulder" kp="12" ctrlrange="-2 2"/>
<position name="elbow" joint="elbow" kp="8" ctrlrange="-2 2"/></actuator></mujoco>"""
ARM_YAML = """name: two_joints
model: arm.xml
control_hz: 50
substeps: 4
robot: {type: arm, joints: [shoulder, elbow], units: [rad, rad]}
params:
- {name: "actuator/*/kp", source: test}
- {name: "actuator/*/delay", source: test}
- {name: "joint/*/damping", source: test}
- {name: "sensor/*/scale", source: test}
- {name: "sensor/*/offset", source: test}
"""


def arm_twin(folder):
    """Two joints with position servos, 50 Hz, fast to simulate."""
    from twinloop.twin import load_twin

    (folder / "arm.xml").write_text(ARM)
    (folder / "arm.yaml").write_text(ARM_YAML)
    return load_twin(folder / "arm.yaml")


def arm_log(twin, backend, values, *, count=6, seconds=4.0, noise=0.0, scripts=None, seed=0):
    """Episodes of the arm with some parameters and white reading noise (rad); ``scripts`` numbers each one's motion."""
    rng = generator(seed, "test/arm")
    time = np.arange(round(seconds * twin.control_hz)) / twin.control_hz
    blank = []
    for index in range(count):
        script = generator(index if scripts is None else scripts[index], "test/script")
        phase, speed = script.uniform(0, 6, (2, 3)), script.uniform(1.5, 7.0, (2, 3))
        action = 0.25 * np.sin(speed * time[:, None, None] + phase).sum(axis=-1)
        blank.append(episode(index, twin.units, action, action, time=time))
    readings = replay(backend, prepare_replay(twin, blank), twin.table(1, values))[0]
    readings = readings + noise * rng.standard_normal(readings.shape)
    return [episode(e.index, e.units, e.action, readings[i], time=time) for i, e in enumerate(blank)]
