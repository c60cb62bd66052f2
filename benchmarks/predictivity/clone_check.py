"""How near re-implemented controllers come to the recorded commands of rollouts that they have not seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.predictivity.arm import deviation
from benchmarks.predictivity.compensation import LIMITS, Compensation
from benchmarks.predictivity.policies import REST, McPilco, SacLqr, regulator_gain, states_read, within_region
from twinloop.core.records import Episode
from twinloop.core.seeds import generator

Array = NDArray[np.float64]
_HELD_OUT = 2  # of ten rollouts, the first
_STREAM = "loop/real_policies/clone_check"


def clone_errors(mcpilco: Sequence[Episode], sac: Sequence[Episode], compensation: Compensation) -> dict[str, float]:
    """Root mean square errors of commands in N·m on the first two rollouts of each, clones being made of the others.

    ``sac_chance`` is what two draws of the clone differ by, over √2: the part of ``sac`` that nobody can predict.
    ``regulator`` is the largest error of the regulator's recorded commands within its region, all rollouts.
    """
    policy = McPilco.of(mcpilco[_HELD_OUT:])
    errors = np.concatenate(
        [policy.torque(states_read(each)[REST:]) - each.action[REST:] for each in mcpilco[:_HELD_OUT]]
    )
    swing = SacLqr.of(sac[_HELD_OUT:], compensation)
    rng = generator(0, _STREAM)
    missed, chance = [], []
    for rollout in sac[:_HELD_OUT]:
        state, command, added = _before_regulator(rollout, compensation)
        told = [np.clip(swing.clone(state, chosen) + added, -LIMITS[0], LIMITS[0]) for chosen in (None, rng, rng)]
        missed.append(told[0] - command)
        chance.append((told[1] - told[2]) / np.sqrt(2))
    return {
        "mcpilco_shoulder": _rms(errors[:, 0]),
        "mcpilco_elbow": _rms(errors[:, 1]),
        "sac": _rms(np.concatenate(missed)),
        "sac_chance": _rms(np.concatenate(chance)),
        "regulator": regulator_error(sac, compensation),
    }


def regulator_error(rollouts: Sequence[Episode], compensation: Compensation) -> float:
    """The largest difference in N·m of the regulator from commands recorded after the state entered its region."""
    worst = [0.0]
    for rollout in rollouts:
        state = states_read(rollout)
        entered = np.flatnonzero(within_region(state))
        if len(entered):
            after = state[entered[0] :]
            held = np.clip(-deviation(after) @ regulator_gain(), -LIMITS[0], LIMITS[0])
            wanted = np.clip(held + compensation(after[:, 2:])[:, 0], -LIMITS[0], LIMITS[0])
            worst.append(float(np.abs(wanted - rollout.action[entered[0] :, 0]).max()))
    return max(worst)


def _before_regulator(rollout: Episode, compensation: Compensation) -> tuple[Array, Array, Array]:
    state = states_read(rollout)
    entered = np.flatnonzero(within_region(state))
    end = entered[0] if len(entered) else len(state)
    return state[:end], rollout.action[:end, 0], compensation(state[:end, 2:])[:, 0]


def _rms(errors: Array) -> float:
    return float(np.sqrt(np.mean(errors**2)))
