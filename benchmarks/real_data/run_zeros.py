"""Estimate the encoder offsets (zeros) of a run for each window, from earlier windows only.

An arm that is zeroed while it hangs reads 0 at the beginning of every run, independent of its true angle, so first
frames at rest contain no information on the zero. A window's prediction may use earlier measurements. Therefore zeros
get weights from earlier windows of the same run, and the prediction is the weighted mean over zeros. The first window
has the prior's weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from benchmarks.real_data.arm_windows import REPLAY, Array
from twinloop.core.records import Episode
from twinloop.simulate import Backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.twin import Twin

SPREAD = 0.04  # rad: friction of 0.25 N·m against gravity of 3.6 N·m/rad lets a hanging arm rest within 0.07 rad
_STEPS = np.linspace(-2.25, 2.25, 9)  # of the spread


def window_errors_with_zeros(
    twin: Twin, run: Episode, values: Mapping[str, float], noise: Array, backend: Backend
) -> Array:
    """Return the mean square error of every window per joint, ``(nwindow, n)`` in rad².

    ``noise`` ``(n,)`` is the RMS error of training windows at their own runs' zeros, in rad.
    """
    logs = prepare_replay(twin, [run], REPLAY)
    zeros = SPREAD * np.array(list(itertools.product(_STEPS, repeat=len(logs.joints))))
    offsets = {f"sensor/{joint}/offset": zeros[:, column] for column, joint in enumerate(logs.joints)}
    rows = {name: np.full(len(zeros), value) for name, value in values.items()}
    readings = replay(backend, logs, logs.twin.table(len(zeros), {**rows, **offsets}))
    squares = np.nanmean((readings - logs.measured) ** 2, axis=2)
    prediction = np.einsum("zw,zwtj->wtj", zero_weights(zeros, squares, noise), readings)
    return np.nanmean((prediction - logs.measured) ** 2, axis=1)


def zero_weights(zeros: Array, squares: Array, noise: Array) -> Array:
    """Return weights ``(nzero, nwindow)`` of candidate zeros, from earlier windows only.

    The weight is a normal prior times a Cauchy likelihood of each window's RMS error. So a window that the twin
    predicts badly at every zero has little effect.

    Args:
        zeros: Candidate zeros ``(nzero, n)`` of n joints, rad.
        squares: Mean square errors ``(nzero, nwindow, n)``, rad².
        noise: Scale of the likelihood, ``(n,)``, rad.
    """
    cost = np.log1p(squares / noise**2).sum(axis=-1)
    before = np.concatenate([np.zeros((len(zeros), 1)), np.cumsum(cost, axis=1)[:, :-1]], axis=1)
    log = -before - 0.5 * np.sum((zeros / SPREAD) ** 2, axis=-1)[:, None]
    weights = np.exp(log - log.max(axis=0))
    return weights / weights.sum(axis=0)
