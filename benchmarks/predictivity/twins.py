"""Define the twins of the arm that are compared, from the leaderboard's own to worlds drawn from an identification."""

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
# The leaderboard has no friction and no rotor inertia; 1e-4 kg·m² is the least armature of the twin.
LEADERBOARD = {
    f"joint/{joint}/{name}": value
    for joint in ("shoulder", "elbow")
    for name, value in (("frictionloss", 0.0), ("damping", 0.0), ("armature", 1e-4))
}
# Groups of fitted parameters, by prefixes of their names.
PARTS = {"friction": ("joint/",), "link 1": ("link/link1/",), "link 2": ("link/link2/",)}
_STREAM = "loop/real_policies/zeros"
_DELAY = "/delay"
_HISTORY = 0.03  # s of commands before a window


@dataclass(frozen=True, kw_only=True)
class Guess:
    """One twin of the arm: parameter values per world, encoder offsets ``(nworld, 2)`` in rad, and `Wiring`."""

    name: str
    meaning: str
    table: ParamTable
    zero: Array
    wiring: Wiring


@dataclass(frozen=True, kw_only=True)
class Identified:
    """Parameters identified from the excitation runs.

    Attributes:
        values: Parameter values, SI.
        distribution: Identified distribution of the parameters.
        zero_spread: RMS encoder offset of the runs, ``(2,)``, rad.
        clusters: Number of runs.
    """

    values: Mapping[str, float]
    distribution: ParamDistribution
    zero_spread: Array
    clusters: int


def identify_arm(runs: Sequence[Episode], backend: Backend, *, torque: str) -> Identified:
    """Fit the arm to its excitation runs, driven by ``measured`` torques or by torques of the ``command``.

    With commands, the motors' delay is also free. If a motor reports filtered torques, these are late, and a fit that
    is driven by them estimates an inertia that is too small.

    Raises:
        InputError: If ``torque`` is neither "measured" nor "command".
    """
    if torque == "measured":
        fitted = fit_arm(runs, backend)
    elif torque == "command":
        replay = replace(REPLAY, torque="command", history=_HISTORY)
        fitted = fit_arm(runs, backend, free=(*FREE, "actuator/*/delay"), replay=replay)
    else:
        raise InputError(f"torque={torque!r} is unknown. Use 'measured' or 'command'.")
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
    """Return all twins with ``nworld`` worlds each; twins with random encoder offsets share the same offsets."""
    arm = load_twin(DoublePendulum.twin) if twin is None else twin
    none = np.zeros((nworld, 2))
    chance = generator(seed, _STREAM).standard_normal((nworld, 2))

    def guess(name: str, meaning: str, table: ParamTable, zero: Array, how: Wiring = wiring) -> Guess:
        return Guess(name=name, meaning=meaning, table=table, zero=zero, wiring=how)

    zero = chance * commanded.zero_spread
    fitted = _without_delays(commanded)
    rows = [
        guess("leaderboard", "no friction, exact readings", arm.table(nworld, LEADERBOARD), none, IDEAL),
        guess("published", "published friction, the robot's wiring", arm.table(nworld), none),
        guess("published, zeros", "the same, with zeros as between runs", arm.table(nworld), zero),
        guess(
            "identified by torque",
            "a fit driven by measured torques",
            arm.table(nworld, _without_delays(measured)),
            none,
        ),
        guess("identified by command", "a fit driven by commands", arm.table(nworld, fitted), none),
        guess("identified, drawn", "its distribution, with zeros", _draw_worlds(arm, commanded, nworld, seed), zero),
    ]
    for part, names in PARTS.items():
        part_values = {name: value for name, value in fitted.items() if name.startswith(names)}
        table = arm.table(nworld, part_values)
        rows.append(
            guess(f"published, fitted {part}", "one part of the fit by command in the published arm", table, none)
        )
    return rows


def _without_delays(found: Identified) -> dict[str, float]:
    """Return the values excluding delays.

    The fitted delays belong to the bus of the excitation runs; `Wiring` has the delays of the rollouts.
    """
    return {name: value for name, value in found.values.items() if not name.endswith(_DELAY)}


def _draw_worlds(twin: Twin, found: Identified, nworld: int, seed: int) -> ParamTable:
    """Draw worlds from the identified distribution; undetermined parameters have the estimated value."""
    joint = identified_draws(twin, found.distribution)[0]
    drawn = Plan(twin=twin, run_seed=seed, draws=(joint,)).draw(range(nworld))
    names = [name for name in joint.names if not name.endswith(_DELAY)]
    return twin.table(nworld, {**_without_delays(found), **{name: drawn[name] for name in names}})
