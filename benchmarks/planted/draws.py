"""Draw the true parameters of robots around the nominal ones of their twins; all distributions are our choice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from benchmarks.planted.chain import Gear, LinkTerms, PlantedChain
from twinloop.twin import Twin, load_twin

Array = NDArray[np.float64]
_MODELS = Path(__file__).parent / "models"
TWINS: Mapping[str, str | Path] = {
    "so101": "so101_tabletop",
    "ur5e": _MODELS / "ur5e.yaml",
    "panda": "panda_tabletop",
    "leg": _MODELS / "leg.yaml",
}
EFFECTS = ("stribeck", "backlash", "flexible_gear", "thermal_fade")

# Spreads are standard deviations of the logarithm; zeros and noise are in rad, or m for slides.
_SPREADS = {"kp": 0.3, "kd": 0.3, "torque_limit": 0.1, "damping": 0.4, "frictionloss": 0.4, "armature": 0.2}
_LINK_SPREAD = 0.08
_DELAY, _DELAY_SPREAD = (0.005, 0.05), 0.002  # s, per robot and either way per joint
_ZERO, _SLIDE_ZERO = math.radians(1.5), 5e-4
_NOISE, _SLIDE_NOISE = {"so101": 0.0, "ur5e": 1e-4, "panda": 1e-4, "leg": 1e-3}, 1e-5
# The UR5e's twin has no damping and no friction. Ranges in N·m·s/rad and N·m for its big and small drives.
_UR5E = {"damping": ((0.0, 20.0), (0.0, 4.0)), "frictionloss": ((1.0, 8.0), (0.3, 2.0))}
_UR5E_BIG = 100.0  # N·m, torque limit above which a drive is a big one
# Gears: the springs of the flanks of a backlash are stiff (40 Hz with the link's inertia) and well damped.
_FLANKS, _FLANK_DAMPING, _GEAR_DAMPING = 40.0, 0.5, 0.05
_OUTPUT_ENCODERS = ("so101",)  # robots with encoders behind the gears, as in smart servos


@cache
def load_robot(robot: str) -> Twin:
    """Load the twin of a robot of `TWINS`."""
    return load_twin(TWINS[robot])


def draw_truth(
    robot: str, rng: np.random.Generator, effect: str | None = None
) -> tuple[PlantedChain, dict[str, float]]:
    """Draw the true values of a robot; return them, and those that its twin declares by parameter name in SI units.

    What the twin does not declare keeps its nominal value, because no fit could find it. A robot with an effect has the
    same other values as one without, if ``rng`` is in the same state.

    Args:
        robot: Name of a robot of `TWINS`.
        rng: Generator.
        effect: Effect of `EFFECTS` that the robot has and its twin lacks; None for none.
    """
    twin = load_robot(robot)
    model = twin.model
    joints = np.array([model.joint(name).id for name in twin.robot.joints])
    actuators = [model.actuator(name).id for name in twin.robot.actuator_names]
    dofs, n = model.jnt_dofadr[joints], len(joints)
    slide = model.jnt_type[joints] == mujoco.mjtJoint.mjJNT_SLIDE
    nominal = {
        "kp": model.actuator_gainprm[actuators, 0],
        "kd": np.abs(model.actuator_biasprm[actuators, 2]),
        "torque_limit": model.actuator_forcerange[actuators, 1],
        "damping": model.dof_damping[dofs],
        "frictionloss": model.dof_frictionloss[dofs],
        "armature": model.dof_armature[dofs],
        "delay": np.zeros(n),
        "zero": np.zeros(n),
    }
    drawn = {key: nominal[key] * rng.lognormal(0.0, spread, n) for key, spread in _SPREADS.items()}
    if robot == "ur5e":
        small = (nominal["torque_limit"] < _UR5E_BIG).astype(int)
        drawn |= {key: rng.uniform(*np.array(ranges)[small].T) for key, ranges in _UR5E.items()}
    drawn["delay"] = rng.uniform(*_DELAY) + rng.uniform(-_DELAY_SPREAD, _DELAY_SPREAD, n)
    drawn["zero"] = np.where(slide, _SLIDE_ZERO, _ZERO) * rng.standard_normal(n)
    names = _names(twin)
    true = {
        key: np.where([name in twin.params for name in names[key]], values, nominal[key])
        for key, values in drawn.items()
    }
    links = {
        body: float(rng.lognormal(0.0, _LINK_SPREAD))
        for body in (model.body(index).name for index in range(model.nbody))
        if f"link/{body}/mass" in twin.params
    }
    planted = PlantedChain(
        **true,
        links=links,
        resolution=np.where(slide, 0.0, twin.encoder_resolution),
        noise=np.where(slide, _SLIDE_NOISE, _NOISE[robot]),
    )
    values = {name: float(v) for key in names for name, v in zip(names[key], true[key], strict=True)}
    values |= {f"link/{body}/mass": factor * float(model.body(body).mass[0]) for body, factor in links.items()}
    inertia = np.diagonal(LinkTerms(twin, links).compute(twin.home()[0][None, twin.joint_qpos], np.zeros((1, n)))[0][0])
    chosen = planted
    if effect:
        chosen = replace(planted, **_draw_effect(effect, inertia, slide, rng, behind=robot in _OUTPUT_ENCODERS))
    return chosen, {name: value for name, value in values.items() if name in twin.params}


def _names(twin: Twin) -> dict[str, list[str]]:
    """Return the twin's parameter name of each true value of each joint."""
    joints, actuators = twin.robot.joints, twin.robot.actuator_names
    return {
        **{key: [f"actuator/{name}/{key}" for name in actuators] for key in ("kp", "kd", "torque_limit", "delay")},
        **{key: [f"joint/{name}/{key}" for name in joints] for key in ("damping", "frictionloss", "armature")},
        "zero": [f"sensor/{name}/offset" for name in joints],
    }


def _draw_effect(
    name: str, inertia: Array, slide: NDArray[np.bool_], rng: np.random.Generator, *, behind: bool
) -> dict[str, Any]:
    """Draw the severity of an effect and return it as attributes of a `PlantedChain`; slides have no such effect.

    Args:
        name: Name of the effect.
        inertia: Inertia of the links about each joint, shape ``(n,)``.
        slide: Whether each joint is a slide, shape ``(n,)``.
        rng: Generator.
        behind: Whether the encoders are behind a gear with backlash; those of soft gears are before them, because
            a servo that feels its load through a spring oscillates.
    """
    n = len(inertia)
    if name == "stribeck":
        ratio = np.where(slide, 1.0, rng.uniform(1.5, 3.0, n))
        return {"stribeck_ratio": ratio, "stribeck_velocity": rng.uniform(0.05, 0.3, n)}
    if name == "thermal_fade":
        return {"fade_factor": rng.uniform(0.6, 0.85), "fade_time": rng.uniform(20.0, 60.0)}
    loose = name == "backlash"
    gap = np.radians(rng.uniform(0.3, 1.5, n)) if loose else np.zeros(n)
    rate = 2 * np.pi * np.where(slide | loose, _FLANKS, rng.uniform(6.0, 15.0, n))
    ratio = _FLANK_DAMPING if loose else _GEAR_DAMPING
    gear = Gear(
        stiffness=inertia * rate**2,
        damping=2 * ratio * inertia * rate,
        gap=np.where(slide, 0.0, gap),
        link_encoder=loose and behind,
    )
    return {"gear": gear}
