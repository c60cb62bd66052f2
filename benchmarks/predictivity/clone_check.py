"""Measure the error of the re-implemented controllers on held-out recorded rollouts."""

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
_HELD_OUT = 2  # number of rollouts, the first of ten
_STREAM = "loop/real_policies/clone_check"


def clone_errors(mcpilco: Sequence[Episode], sac: Sequence[Episode], compensation: Compensation) -> dict[str, float]:
    """Return RMS errors of commands in N·m on the first two rollouts of each controller.

    Clones are fitted to the other rollouts. ``sac_chance`` is the RMS difference of two random draws of the clone,
    divided by √2: the unpredictable part of ``sac``. ``regulator`` is the largest error of the regulator's commands
    inside its region, over all rollouts.
    """
    policy = McPilco.of(mcpilco[_HELD_OUT:])
    errors = np.concatenate(
        [policy.torque(states_read(each)[REST:]) - each.action[REST:] for each in mcpilco[:_HELD_OUT]]
    )
    swing = SacLqr.of(sac[_HELD_OUT:], compensation)
    rng = generator(0, _STREAM)
    swing_errors, chance_errors = [], []
    for rollout in sac[:_HELD_OUT]:
        state, command, added = _before_regulator(rollout, compensation)
        torques = [np.clip(swing.clone(state, chosen) + added, -LIMITS[0], LIMITS[0]) for chosen in (None, rng, rng)]
        swing_errors.append(torques[0] - command)
        chance_errors.append((torques[1] - torques[2]) / np.sqrt(2))
    return {
        "mcpilco_shoulder": _rms(errors[:, 0]),
        "mcpilco_elbow": _rms(errors[:, 1]),
        "sac": _rms(np.concatenate(swing_errors)),
        "sac_chance": _rms(np.concatenate(chance_errors)),
        "regulator": regulator_error(sac, compensation),
    }


def regulator_error(rollouts: Sequence[Episode], compensation: Compensation) -> float:
    """Return the largest error in N·m of the regulator's commands after the state entered its region."""
    worst = [0.0]
    for rollout in rollouts:
        state = states_read(rollout)
        entered = np.flatnonzero(within_region(state))
        if len(entered):
            after = state[entered[0] :]
            balance = np.clip(-deviation(after) @ regulator_gain(), -LIMITS[0], LIMITS[0])
            expected = np.clip(balance + compensation(after[:, 2:])[:, 0], -LIMITS[0], LIMITS[0])
            worst.append(float(np.abs(expected - rollout.action[entered[0] :, 0]).max()))
    return max(worst)


def _before_regulator(rollout: Episode, compensation: Compensation) -> tuple[Array, Array, Array]:
    state = states_read(rollout)
    entered = np.flatnonzero(within_region(state))
    end = entered[0] if len(entered) else len(state)
    return state[:end], rollout.action[:end, 0], compensation(state[:end, 2:])[:, 0]


def _rms(errors: Array) -> float:
    return float(np.sqrt(np.mean(errors**2)))
