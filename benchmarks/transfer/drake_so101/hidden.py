"""Draw the hidden values of an SO-101 that Drake simulates; identification does not see them."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import mujoco
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from twinloop.core.params import ParamTable
from twinloop.core.seeds import uniforms
from twinloop.core.yaml_documents import load_yaml
from twinloop.hardware import make_hidden_cell
from twinloop.randomize import Plan, default_draws
from twinloop.rollout import TrackerNoise
from twinloop.twin import Twin

_RANGES = Path(__file__).with_name("hidden.yaml")
_SCENE = ("object/*", "geom/*")  # parameters of the cell that the plant uses; cameras and lights do not matter
_IN_TWIN = {  # parameters of the twin's drives that this robot has too
    "sensor/{}/offset": "zero",
    "sensor/{}/scale": "scale",
    "actuator/{}/kp": "stiffness",
    "actuator/{}/torque_limit": "torque_limit",
    "actuator/{}/delay": "delay",
    "joint/{}/damping": "damping",
    "joint/{}/frictionloss": "coulomb",
    "joint/{}/armature": "inertia",
}
_COUNT = 2.0 * np.pi / 4096  # rad, Feetech STS3215


class _Range(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    per: Literal["joint", "robot"]
    range: tuple[float, float]
    source: str


@dataclass(frozen=True, kw_only=True)
class DriveValues:
    """True values of the drives of one robot, in SI units at the output of the gear; arrays ``(n,)`` are per joint.

    Attributes:
        stiffness: torque of the servo per error of position, N·m/rad.
        torque_limit: largest torque of the servo, N·m.
        damping: viscous friction and back-EMF of the motor, N·m·s/rad.
        inertia: inertia of the motor, kg·m².
        dead_zone: largest error of position that the servo ignores, rad.
        coulomb: friction of the motor in motion, N·m.
        static_ratio: friction at rest divided by friction in motion.
        stribeck_velocity: speed at which friction falls from static to Coulomb friction, rad/s.
        load_friction: additional Coulomb friction per torque in the gear.
        gear_stiffness: stiffness of the gear, N·m/rad.
        gear_damping: damping of the gear, N·m·s/rad.
        backlash: total play between motor and link, rad.
        zero: true position at which the encoder reads 0, rad.
        scale: true motion per motion of the reading.
        count: resolution of the encoder, rad.
        noise: standard deviation of a reading before it is rounded to counts, rad.
        delay: age of a command when it takes effect, s.
        command_jitter: longest additional age of a command, s.
        loop_jitter: longest delay of the recording loop, s.
    """

    stiffness: NDArray[np.float64]
    torque_limit: NDArray[np.float64]
    damping: NDArray[np.float64]
    inertia: NDArray[np.float64]
    dead_zone: NDArray[np.float64]
    coulomb: NDArray[np.float64]
    static_ratio: NDArray[np.float64]
    stribeck_velocity: NDArray[np.float64]
    load_friction: NDArray[np.float64]
    gear_stiffness: NDArray[np.float64]
    gear_damping: NDArray[np.float64]
    backlash: NDArray[np.float64]
    zero: NDArray[np.float64]
    scale: NDArray[np.float64]
    count: float
    noise: NDArray[np.float64]
    delay: NDArray[np.float64]
    command_jitter: float
    loop_jitter: float


@dataclass(frozen=True, kw_only=True)
class DrakeRobot:
    """Hidden values of one robot and its scene.

    Attributes:
        twin: the nominal twin.
        seed: number of the robot.
        drives: true values of the drives.
        values: true values of the twin's parameters that the robot has too, by name: drives, cube and table. Resets use
            them, because they compute the commands that hold the arm at rest.
        tracker: errors of the tracker.
    """

    twin: Twin
    seed: int
    drives: DriveValues
    values: dict[str, float]
    tracker: TrackerNoise

    def draw_params(self, run_seed: int, numbers: Sequence[int]) -> ParamTable:
        """Return the worlds of numbered initial conditions: poses drawn by number, all else as on this robot."""
        stage = {name: param.quantity.stage for name, param in self.twin.params.items()}
        draws = [draw for draw in default_draws(self.twin) if stage[draw.names[0]] == "reset"]
        drawn = Plan(twin=self.twin, run_seed=run_seed, draws=tuple(draws)).draw(numbers)
        placed = {name: drawn[name] for draw in draws for name in draw.names}
        return replace(self.twin.table(len(numbers), {**self.values, **placed}), seeds=drawn.seeds)

    def model(self) -> mujoco.MjModel:
        """Return the twin's model with this robot's cube and table, from which the plant is built."""
        model = copy.copy(self.twin.model)
        self.twin.fields(self.twin.table(1, self.values)).write_inplace(model, 0)
        return model


def draw_robot(twin: Twin, seed: int) -> DrakeRobot:
    """Draw the hidden values of robot number ``seed``; ranges and sources are in ``hidden.yaml``."""
    joints, drives, cell = twin.robot.joints, _draw_drives(twin, seed), make_hidden_cell(twin, seed)
    scene = {
        name: value
        for name, value in cell.values.items()
        if name in twin.params and any(fnmatch.fnmatchcase(name, pattern) for pattern in _SCENE)
    }
    known = {
        path.format(joint): float(getattr(drives, field)[row])
        for path, field in _IN_TWIN.items()
        for row, joint in enumerate(joints)
    }
    return DrakeRobot(twin=twin, seed=seed, drives=drives, values={**scene, **known}, tracker=cell.tracker)


@cache
def _ranges() -> dict[str, _Range]:
    return {name: _Range.model_validate(row) for name, row in load_yaml(_RANGES).items()}


def _draw_drives(twin: Twin, seed: int) -> DriveValues:
    model, dof, size = twin.model, twin.joint_qvel, len(twin.robot.joints)
    drawn = {name: _draw(row, name, seed, size) for name, row in _ranges().items()}
    inertia = model.dof_armature[dof] * drawn["inertia_scale"]
    link = np.maximum(model.dof_M0[dof] - model.dof_armature[dof], 1e-6)
    reduced = inertia * link / (inertia + link)
    gear = drawn["gear_stiffness"]
    own = ("static_ratio", "stribeck_velocity", "load_friction", "gear_stiffness", "backlash", "zero", "scale")
    return DriveValues(
        stiffness=model.actuator_gainprm[:, 0] * drawn["supply_scale"] * drawn["stiffness_scale"],
        torque_limit=model.actuator_forcerange[:, 1] * drawn["supply_scale"] * drawn["torque_limit_scale"],
        damping=model.dof_damping[dof] * drawn["damping_scale"],
        inertia=inertia,
        dead_zone=drawn["dead_zone_counts"] * _COUNT,
        coulomb=model.dof_frictionloss[dof] * drawn["coulomb_scale"],
        gear_damping=2.0 * drawn["gear_damping_ratio"] * np.sqrt(gear * reduced),
        count=_COUNT,
        noise=drawn["noise_counts"] * _COUNT,
        delay=drawn["delay"] + drawn["joint_delay"],
        command_jitter=float(drawn["command_jitter"][0]),
        loop_jitter=float(drawn["loop_jitter"][0]),
        **{name: drawn[name] for name in own},
    )


def _draw(row: _Range, name: str, seed: int, size: int) -> NDArray[np.float64]:
    low, high = row.range
    chance = uniforms(seed, f"drake/{name}", [0], size=size if row.per == "joint" else 1)[0]
    return np.broadcast_to(low + (high - low) * chance, (size,))
