"""Random commands at the extremes of every default range must leave every world finite and without warnings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinloop.checks.corners import corner_table, initial_at
from twinloop.checks.report import Check
from twinloop.core.seeds import uniforms
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.twin import Twin

HOLD_S = 0.5  # every second world holds each random command this long, the others for one control period
TOSS_SPEED = 2.0  # m/s; and four times that in rad/s: the faster of the published cube tosses


def check_stability(twin: Twin, *, seconds: float = 60.0, nworld: int = 8, seed: int = 0) -> Check:
    """Worlds at the corners of the default ranges, under random commands for ``seconds``; counts those that break.

    A twin without actuators is tossed at random instead.
    """
    nstep = round(seconds * twin.control_hz)
    params = corner_table(twin, nworld, seed=seed)
    initial = initial_at(twin, params)
    if not twin.model.nu:
        initial = _tossed(twin, initial, seed)
    with np.errstate(all="ignore"):  # a world that diverges is the finding, not an accident of ours
        result = rollout(open_backend("threads"), twin, params, initial, _commands(twin, nworld, nstep, seed), nstep)
        speed = np.abs(result.qvel).max(initial=0.0)
    broken = np.flatnonzero(~result.valid)
    detail = f"{nworld} worlds at all-low, all-high and mixed corners, {seconds:g} s"
    if len(broken):
        first = broken[0]
        when = result.invalid_step[first] / twin.control_hz
        detail += f"; world {first} broke at {when:.2f} s: {result.reason[first]}"
    return Check.judge(
        "finite at the extremes", len(broken), 0, "worlds", detail=detail, figures={"max_speed": float(speed)}
    )


def _commands(twin: Twin, nworld: int, nstep: int, seed: int) -> NDArray[np.float64]:
    """Uniform over each actuator's range, ``(nworld, nstep, nu)``."""
    model = twin.model
    low, high = np.where(model.actuator_ctrllimited[:, None].astype(bool), model.actuator_ctrlrange, (-1.0, 1.0)).T
    numbers = uniforms(seed, "checks/commands", np.arange(nworld), size=nstep * max(model.nu, 1))
    numbers = numbers.reshape(nworld, nstep, -1)[..., : model.nu]
    held = np.arange(nstep) // max(1, round(HOLD_S * twin.control_hz))
    numbers[1::2] = numbers[1::2, held]
    return low + (high - low) * numbers


def _tossed(twin: Twin, start: InitialState, seed: int) -> InitialState:
    """The same start with random velocities, angular ones four times the linear."""
    size = max(twin.model.nv, 1)
    numbers = 2.0 * uniforms(seed, "checks/toss", np.arange(start.nworld), size=size) - 1.0
    scale = np.where(np.arange(twin.model.nv) % 6 < 3, TOSS_SPEED, 4 * TOSS_SPEED)
    velocity = numbers[:, : twin.model.nv] * scale
    velocity[:, 2::6] = np.abs(velocity[:, 2::6])
    return InitialState(
        qpos=start.qpos,
        qvel=velocity,
        mocap_pos=start.mocap_pos,
        mocap_quat=start.mocap_quat,
        command=start.command,
    )
