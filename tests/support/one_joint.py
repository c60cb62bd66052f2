"""Tiny worlds of a few equal joints without gravity, driven by a servo preset or by bare motors."""

from __future__ import annotations

import yaml

from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.twin import load_twin

INERTIA = 0.01  # of each body about its joint, in addition to the armature
PARAMS = (
    "joint/*/damping",
    "joint/*/frictionloss",
    "joint/*/armature",
    "joint/*/stiction",
    "joint/*/stribeck_velocity",
    "joint/*/load_friction",
    "joint/*/backlash",
    "joint/*/gear_stiffness",
    "actuator/*/kp",
    "actuator/*/torque_limit",
    "actuator/*/voltage",
    "actuator/*/firmware_gain",
    "actuator/*/torque_constant",
    "actuator/*/resistance",
    "actuator/*/no_load_speed",
    "actuator/*/thermal_resistance",
    "actuator/*/thermal_time",
    "actuator/*/temperature_rise",
    "actuator/*/delay",
    "supply/bus/resistance",
    "sensor/*/offset",
    "sensor/*/resolution",
    "sensor/*/noise",
    "sensor/*/lag",
    "timing/command/jitter",
    "timing/command/drop_rate",
    "timing/control/period",
    "timing/control/jitter",
    "timing/readings/rate",
    "timing/readings/phase",
    "timing/readings/delay",
)

GAINS = tuple(
    f"actuator/*/{name}" for name in ("kd", "kv", "gain", "time_constant", "ki", "integral_limit", "slew_limit")
)


def joints_twin(folder, *, joints=1, robot=None, control_hz=100, substeps=10, inertia=INERTIA):
    """A twin of ``joints`` parallel hinges; ``robot`` adds to or replaces keys of its robot section."""
    stiff = 'solimpfriction="0.9999 0.9999 0.001" solreffriction="0.004 1"'  # no creep under dry friction
    bodies = "".join(
        f'<body name="b{i}" pos="0 {i} 0"><inertial pos="0 0 0" mass="1" diaginertia="{inertia} {inertia} {inertia}"/>'
        f'<joint name="j{i}" axis="0 0 1" {stiff}/><geom size="0.1" contype="0" conaffinity="0"/></body>'
        for i in range(joints)
    )
    (folder / "joints.xml").write_text(
        f'<mujoco><option gravity="0 0 0" integrator="implicitfast"/><worldbody>{bodies}</worldbody></mujoco>'
    )
    names = [f"j{i}" for i in range(joints)]
    spec = {
        "schema": 1,
        "name": "joints",
        "model": "joints.xml",
        "control_hz": control_hz,
        "substeps": substeps,
        "robot": {"type": "joints", "joints": names, "units": ["rad"] * joints, "servo": "sts3215_7v4"} | (robot or {}),
        "params": [{"name": name, "source": "test"} for name in PARAMS],
    }
    path = folder / "joints.yaml"
    path.write_text(yaml.safe_dump(spec))
    return load_twin(path)


def actuator_twin(
    folder, actuator, *, control="position", unit="rad", control_hz=200, substeps=20, gravity=0.0, params=()
):
    """A twin of one hinge ``j0`` without friction, which an actuator in MJCF with the name and joint ``j0`` turns.

    Its inertia is 0.1 kg·m². With gravity, its weight of 0.4 N per m/s² acts at 0.25 m, horizontal at position 0.
    """
    inertia = 0.1 - 0.4 * 0.25**2
    (folder / "hinge.xml").write_text(
        f'<mujoco><option gravity="0 0 {-gravity}" integrator="implicitfast"/><worldbody><body>'
        f'<inertial pos="0.25 0 0" mass="0.4" diaginertia="{inertia} {inertia} {inertia}"/>'
        f'<joint name="j0" axis="0 -1 0"/><geom size="0.1" contype="0" conaffinity="0"/></body></worldbody>'
        f"<actuator>{actuator}</actuator></mujoco>"
    )
    names = [name for name in PARAMS if name not in ("actuator/*/voltage", "actuator/*/firmware_gain")]
    rows = [{"name": name, "source": "test"} for name in (*names, *GAINS, "sensor/*/scale")]
    spec = {
        "name": "hinge",
        "model": "hinge.xml",
        "control_hz": control_hz,
        "substeps": substeps,
        "robot": {"type": "hinge", "joints": ["j0"], "units": [unit], "control": control},
        "params": [*rows, *params],
    }
    (folder / "hinge.yaml").write_text(yaml.safe_dump(spec))
    return load_twin(folder / "hinge.yaml")


def run(twin, table, commands, *, backend="threads", record=(), initial=None):
    """A rollout from home, or from ``initial``."""
    start = initial or InitialState.home(twin, table.nworld)
    return rollout(open_backend(backend), twin, table, start, commands, commands.shape[1], record=record)
