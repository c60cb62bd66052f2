"""Fit the DFKI's double pendulum: each run is held out in turn, and its 0.5 s windows are replayed open loop.

Every run has its own encoder offset (zero), because the arm is zeroed while it hangs, and friction can hold it anywhere
within 0.07 rad of the vertical. A fit alternates between the zeros of its training runs and the common parameters. A
prediction uses zero 0, or averages over zeros weighted by earlier windows of its run (`run_zeros`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.real_data.arm_windows import (
    REPLAY,
    at_rate,
    body_inertial,
    inertial_text,
    one_step_per_frame,
    rms_errors,
    window_errors,
)
from benchmarks.real_data.case import (
    Array,
    Candidate,
    Errors,
    Fitted,
    Fold,
    RealCase,
    grouped,
    leave_one_out,
)
from benchmarks.real_data.run_zeros import SPREAD, window_errors_with_zeros
from twinloop.core.records import Episode
from twinloop.identify import FitConfig, IdentifyResult, identify
from twinloop.simulate import Backend
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.twin import load_twin
from twinloop.twin.quantities import Prior

FREE = (
    "link/link1/log_cholesky/d3",
    "link/link1/log_cholesky/t3",
    "link/link2/log_cholesky/d3",
    "link/link2/log_cholesky/t3",
    "joint/elbow/armature",
    "joint/*/frictionloss",
    "joint/*/damping",
)
PRIORS = {
    # Published identifications of this design differ by a third in masses and centres (models 1.0 and 2.0).
    "link/*/log_cholesky/d3": Prior(spread=0.3),
    "link/*/log_cholesky/t3": Prior(spread=0.05),
    # Coulomb friction 0.17 to 0.27 N·m in the published models 1.0 and 2.0, viscous 0.001 to 0.004 N·m·s.
    "joint/*/frictionloss": Prior(spread=0.1),
    "joint/*/damping": Prior(spread=0.01),
    "joint/elbow/armature": Prior(spread=1e-3),
    "sensor/*/offset": Prior(spread=SPREAD),
    # Only for replays driven by commands: bus cycle of 2 ms plus motor delay.
    "actuator/*/delay": Prior(spread=0.005),
}
SPAN = 0.028  # s of past positions for an initial velocity: 15 frames
STRUCTURES = {"bodies and friction": FREE, "published": ()}
_ESTIMATED = "zero estimated"
_JOINTS = ("shoulder", "elbow")
_ROUNDS = 2  # alternations between common parameters and zeros
_ALL_WINDOWS = 10_000  # more than the number of windows


class DoublePendulum(RealCase):
    """See `RealCase`."""

    name = "dfki_double_pendulum"
    twin = "double_pendulum"
    rule = "each run is held out"
    published = Fitted()  # model 1.0 of design C.1: the nominal values of the twin
    candidates = tuple(
        Candidate(name=f"{structure}, {prediction}", structure=structure, prediction=prediction)
        for structure in STRUCTURES
        for prediction in (_ESTIMATED, "zero 0")
    )

    def folds(self, episodes: Sequence[Episode]) -> list[Fold]:
        """See `RealCase`."""
        return leave_one_out(grouped(episodes, [episode.origin.split("/")[-1] for episode in episodes]))

    def fit(self, training: Sequence[Episode], structure: str, backend: Backend) -> Fitted:
        """See `RealCase`."""
        return fit_arm(training, backend, free=STRUCTURES[structure])

    def errors(self, fitted: Fitted, test: Sequence[Episode], backend: Backend) -> Errors:
        """See `RealCase`."""
        twin, runs = load_twin(self.twin), at_rate(test, SPAN)
        if fitted.prediction != _ESTIMATED:
            return rms_errors(window_errors(twin, runs, fitted.values, backend), _JOINTS)
        noise = np.array(fitted.extra["noise"])
        squares = [window_errors_with_zeros(twin, run, fitted.values, noise, backend) for run in runs]
        return rms_errors(np.concatenate(squares), _JOINTS)


def fit_arm(
    training: Sequence[Episode], backend: Backend, *, free: tuple[str, ...] = FREE, replay: ReplayOptions = REPLAY
) -> Fitted:
    """Fit the ``free`` parameters, common to all runs, and an encoder offset (zero) per run, in alternation.

    ``extra`` contains ``zeros`` ``(nrun, n)`` and the training windows' RMS error ``noise`` ``(n,)``, in rad for n
    joints. If ``free`` is empty, the values are the published ones and ``noise`` is for zeros of 0.
    """
    twin, runs = load_twin(DoublePendulum.twin), at_rate(training, SPAN)
    zeros = np.zeros((len(runs), len(_JOINTS)))
    result = None
    if free:
        result = _fit_common(runs, zeros, {}, free, replay, backend)
        for _ in range(_ROUNDS):
            zeros = np.array([_fit_zero(run, result, replay, backend) for run in runs])
            result = _fit_common(runs, zeros, result.values, free, replay, backend)
    values = {} if result is None else dict(result.values)
    squares = [
        window_errors(twin, [run], {**values, **_offsets(zero)}, backend) for run, zero in zip(runs, zeros, strict=True)
    ]
    table = twin.table(1, values)
    return Fitted(
        values=values,
        result=result,
        notes=tuple(f"{link}: {inertial_text(body_inertial(twin, table, link))}." for link in ("link1", "link2")),
        extra={"zeros": zeros.tolist(), "noise": np.sqrt(np.concatenate(squares).mean(axis=0)).tolist()},
    )


def _offsets(zero: Array) -> dict[str, float]:
    return {f"sensor/{joint}/offset": float(value) for joint, value in zip(_JOINTS, zero, strict=True)}


def _fit_common(
    runs: Sequence[Episode],
    zeros: Array,
    start: Mapping[str, float],
    free: tuple[str, ...],
    replay: ReplayOptions,
    backend: Backend,
) -> IdentifyResult:
    """Fit the parameters that all runs share, with given encoder offsets ``(nrun, n)`` in rad."""
    keys = {name: f"zero of {name}" for name in _offsets(zeros[0])}
    runs_with_zeros = [
        replace(run, conditions={**run.conditions, **{keys[name]: z for name, z in _offsets(zero).items()}})
        for run, zero in zip(runs, zeros, strict=True)
    ]
    config = FitConfig(
        replay=replace(replay, conditions=keys), free=free, priors=PRIORS, start=start, walk=_ALL_WINDOWS, width=4.0
    )
    return identify(one_step_per_frame(load_twin(DoublePendulum.twin)), runs_with_zeros, backend=backend, config=config)


def _fit_zero(run: Episode, result: IdentifyResult, replay: ReplayOptions, backend: Backend) -> list[float]:
    """Fit the encoder offsets of one run, with given common parameters."""
    config = FitConfig(
        replay=replay, free=("sensor/*/offset",), fixed=result.values, priors=PRIORS, walk=_ALL_WINDOWS, width=4.0
    )
    found = identify(one_step_per_frame(load_twin(DoublePendulum.twin)), [run], backend=backend, config=config)
    return [found.values[name] for name in _offsets(np.zeros(len(_JOINTS)))]


CASE = DoublePendulum()
