"""Random commands at the extremes of every default range must leave every world finite and without warnings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinloop.checks.corners import corner_table, initial_at
from twinloop.checks.culprits import find_culprits
from twinloop.checks.report import Check
from twinloop.core.params import ParamTable, SeedPath
from twinloop.core.seeds import uniforms
from twinloop.simulate import InitialState, Trajectories, open_backend, rollout
from twinloop.twin import Twin

HOLD_S = 0.5  # every second world holds each random command this long, the others for one control period
_GRACE_S = 2.0  # a parameter alone may break a world later than in company; our choice
_NAMED = 3  # culprits spelled out in the message
TOSS_SPEED = 2.0  # m/s; and four times that in rad/s: the faster of the published cube tosses


def check_stability(twin: Twin, *, seconds: float = 60.0, nworld: int = 8, seed: int = 0) -> Check:
    """Worlds at the corners of the default ranges, under random commands for ``seconds``; counts those that break.

    A twin without actuators is tossed at random instead. Where a world breaks, the parameter to blame is looked for
    and named.
    """
    nstep = round(seconds * twin.control_hz)
    params = corner_table(twin, nworld, seed=seed)
    result = run_random(twin, params, nstep, commands=np.arange(nworld), seed=seed)
    speed = np.abs(result.qvel).max(initial=0.0)
    broken = np.flatnonzero(~result.valid)
    detail = f"{nworld} worlds at all-low, all-high and mixed corners, {seconds:g} s"
    if len(broken):
        first = int(broken[np.argmin(result.invalid_step[broken])])
        step = int(result.invalid_step[first])
        detail += f"; world {first} broke at {step / twin.control_hz:.2f} s: {result.reason[first]}. "
        horizon = min(nstep, step + 1 + round(_GRACE_S * twin.control_hz))
        detail += _blame(twin, params.take([first]), first, horizon, seed)
    return Check.judge(
        "finite at the extremes", len(broken), 0, "worlds", detail=detail, figures={"max_speed": float(speed)}
    )


def _blame(twin: Twin, corner: ParamTable, world: int, nstep: int, seed: int) -> str:
    """A sentence that names the parameters to blame for a corner that broke under the commands of ``world``."""

    def trial(params: ParamTable) -> NDArray[np.bool_]:
        return ~run_random(twin, params, nstep, commands=np.full(params.nworld, world), seed=seed).valid

    culprits = find_culprits(twin, corner, trial)
    if not culprits:
        return "No range is to blame: the model breaks at nominal values. Raise substeps, or look at its integrator."
    named = "; ".join(culprit.text() for culprit in culprits[:_NAMED])
    more = f" and {len(culprits) - _NAMED} more" if len(culprits) > _NAMED else ""
    return f"To blame: {named}{more}. Narrow that range in the twin's YAML, or raise substeps."


def run_random(twin: Twin, params: ParamTable, nstep: int, *, commands: NDArray[np.intp], seed: int) -> Trajectories:
    """Worlds under random commands; world ``i`` gets those of number ``commands[i]``."""
    initial = initial_at(twin, params)
    if not twin.model.nu:
        initial = _tossed(twin, initial, commands, seed)
    sequence = _commands(twin, commands, nstep, seed)
    seeded = params.with_seeds(SeedPath.of(seed, commands))
    with np.errstate(all="ignore"):  # a world that diverges is the finding, not an accident of ours
        return rollout(open_backend("threads"), twin, seeded, initial, sequence, nstep)


def _commands(twin: Twin, commands: NDArray[np.intp], nstep: int, seed: int) -> NDArray[np.float64]:
    """Uniform over each actuator's range, ``(nworld, nstep, nu)``; every second number holds each command longer."""
    model = twin.model
    low, high = np.where(model.actuator_ctrllimited[:, None].astype(bool), model.actuator_ctrlrange, (-1.0, 1.0)).T
    numbers = uniforms(seed, "checks/commands", commands, size=nstep * max(model.nu, 1))
    numbers = numbers.reshape(len(commands), nstep, -1)[..., : model.nu]
    held = np.arange(nstep) // max(1, round(HOLD_S * twin.control_hz))
    slow = commands % 2 == 1
    numbers[slow] = numbers[slow][:, held]
    return low + (high - low) * numbers


def _tossed(twin: Twin, start: InitialState, commands: NDArray[np.intp], seed: int) -> InitialState:
    """The same start with random velocities, angular ones four times the linear."""
    size = max(twin.model.nv, 1)
    numbers = 2.0 * uniforms(seed, "checks/toss", commands, size=size) - 1.0
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
