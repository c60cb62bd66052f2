"""Twins of the arm, from what its leaderboard simulates to what its own logs say of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.predictivity.closed_loop import IDEAL, Wiring
from benchmarks.real_data.arm_windows import REPLAY
from benchmarks.real_data.double_pendulum import FREE, DoublePendulum, fit_arm
from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.core.records import Episode
from twinloop.core.seeds import generator
from twinloop.randomize import Plan, identified_draws
from twinloop.simulate import Backend
from twinloop.twin import Twin, load_twin

Array = NDArray[np.float64]
# The leaderboard leaves friction and rotors out; 1e-4 kg·m² is the least armature of the twin.
LEADERBOARD = {
    f"joint/{joint}/{name}": value
    for joint in ("shoulder", "elbow")
    for name, value in (("frictionloss", 0.0), ("damping", 0.0), ("armature", 1e-4))
}
# Parts of a fit, by how the names of their parameters begin.
PARTS = {"friction": ("joint/",), "link 1": ("link/link1/",), "link 2": ("link/link2/",)}
_STREAM = "loop/real_policies/zeros"
_DELAY = "/delay"
_HISTORY = 0.03  # s of commands before a window


@dataclass(frozen=True, kw_only=True)
class Guess:
    """One way to simulate the arm: rows of parameters, zeros of the encoders ``(nworld, 2)``, and the wiring."""

    name: str
    meaning: str
    table: ParamTable
    zero: Array
    wiring: Wiring


@dataclass(frozen=True, kw_only=True)
class Identified:
    """What the excitation runs say: parameters with their distribution, and the spread of the zeros (rad)."""

    values: Mapping[str, float]
    distribution: ParamDistribution
    zero_spread: Array
    clusters: int


def identify_arm(runs: Sequence[Episode], backend: Backend, *, torque: str) -> Identified:
    """Fit the arm to its excitation runs, driven by torques as ``measured`` or as in the ``command``.

    With commands the motors' delay is free too. Where a motor reports torque through a filter, the reading is late,
    and a fit that is driven by it takes a lag for less inertia.

    Raises:
        InputError: ``torque`` is neither.
    """
    if torque == "measured":
        fitted = fit_arm(runs, backend)
    elif torque == "command":
        replay = replace(REPLAY, torque="command", history=_HISTORY)
        fitted = fit_arm(runs, backend, free=(*FREE, "actuator/*/delay"), replay=replay)
    else:
        raise InputError(f"A fit is driven by torques as measured or as in the command; {torque!r} is neither.")
    if fitted.result is None:  # pragma: no cover
        raise InputError("The fit of the arm gave no result.")
    zeros = np.array(fitted.extra["zeros"])
    return Identified(
        values=fitted.values,
        distribution=fitted.result.distribution,
        zero_spread=np.sqrt(np.mean(zeros**2, axis=0)),
        clusters=len(zeros),
    )


def guesses(
    wiring: Wiring, measured: Identified, commanded: Identified, nworld: int, seed: int, twin: Twin | None = None
) -> list[Guess]:
    """All twins, ``nworld`` worlds each, with common random zeros where zeros are drawn."""
    arm = load_twin(DoublePendulum.twin) if twin is None else twin
    none = np.zeros((nworld, 2))
    chance = generator(seed, _STREAM).standard_normal((nworld, 2))

    def guess(name: str, meaning: str, table: ParamTable, zero: Array, how: Wiring = wiring) -> Guess:
        return Guess(name=name, meaning=meaning, table=table, zero=zero, wiring=how)

    zero = chance * commanded.zero_spread
    fitted = _arm(commanded)
    rows = [
        guess("leaderboard", "no friction, exact readings", arm.table(nworld, LEADERBOARD), none, IDEAL),
        guess("published", "published friction, the robot's wiring", arm.table(nworld), none),
        guess("published, zeros", "the same, with zeros as between runs", arm.table(nworld), zero),
        guess("identified by torque", "a fit driven by measured torques", arm.table(nworld, _arm(measured)), none),
        guess("identified by command", "a fit driven by commands", arm.table(nworld, fitted), none),
        guess("identified, drawn", "its distribution, with zeros", _drawn(arm, commanded, nworld, seed), zero),
    ]
    for part, names in PARTS.items():
        taken = {name: value for name, value in fitted.items() if name.startswith(names)}
        table = arm.table(nworld, taken)
        rows.append(
            guess(f"published, fitted {part}", "one part of the fit by command in the published arm", table, none)
        )
    return rows


def _arm(found: Identified) -> dict[str, float]:
    """Values without the delays, which hold the bus's cycle of the excitation runs; the wiring has the rollouts'."""
    return {name: value for name, value in found.values.items() if not name.endswith(_DELAY)}


def _drawn(twin: Twin, found: Identified, nworld: int, seed: int) -> ParamTable:
    """Worlds drawn from what was determined; the rest at the estimate."""
    joint = identified_draws(twin, found.distribution)[0]
    drawn = Plan(twin=twin, run_seed=seed, draws=(joint,)).draw(range(nworld))
    names = [name for name in joint.names if not name.endswith(_DELAY)]
    return twin.table(nworld, {**_arm(found), **{name: drawn[name] for name in names}})
