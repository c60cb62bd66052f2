"""Encoder zeros of a run, estimated window by window from the windows before.

An arm that is zeroed where it hangs reads 0 at the beginning of every run, whatever its true angle: first frames at
rest contain no information on the zero. A window's prediction may use what was measured before it begins, so the zeros
get weights from the windows of the same run that have ended, and the prediction is the weighted mean over zeros. The
first window has the prior's weights.
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
    """Mean square error of every window per joint, ``(nwindow, n)`` in rad².

    ``noise`` ``(n,)`` is the root mean square error of training windows at their own runs' zeros, in rad.
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
    """Weights ``(nzero, nwindow)`` of zeros ``(nzero, n)`` in rad for every window, from the windows before it alone.

    A normal prior times Cauchy's likelihood of each window's root mean square error, its scale the ``noise``:
    ``squares`` are ``(nzero, nwindow, n)``. A window that the twin explains badly at any zero says little of the zeros.
    """
    cost = np.log1p(squares / noise**2).sum(axis=-1)
    before = np.concatenate([np.zeros((len(zeros), 1)), np.cumsum(cost, axis=1)[:, :-1]], axis=1)
    log = -before - 0.5 * np.sum((zeros / SPREAD) ** 2, axis=-1)[:, None]
    weights = np.exp(log - log.max(axis=0))
    return weights / weights.sum(axis=0)
