"""Fit the DFKI's simple pendulum to the run of one controller, and replay the runs of the others.

The published parameters come from the same identification run, by regression of the measured torque on accelerations.
The run's vibration dominates these, so that inertia and gravity are too small by factors of 2.6 and 3. The published
parameters are scored in the same way and with the same form of model, including their torque offset.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.real_data.arm_windows import (
    REPLAY,
    at_rate,
    between,
    body_inertial,
    inertial_text,
    rms_errors,
    window_errors,
)
from benchmarks.real_data.case import PUBLISHED, Candidate, Errors, Fitted, Fold, RealCase, leave_one_out
from twinloop.core.records import Episode
from twinloop.identify import FitConfig, identify
from twinloop.simulate import Backend
from twinloop.twin import Twin, load_twin
from twinloop.twin.quantities import Prior
from twinloop.twin.quantities.rigid import second_moments

IDENTIFICATION = "pd"  # the controller whose run is fitted
FREE = (
    "link/arm/log_cholesky/d3",
    "link/arm/log_cholesky/t3",
    "joint/pendulum/frictionloss",
    "joint/pendulum/damping",
)
PRIORS = {
    # The weight is 0.546 kg here; other weights (1 kg) and other parts have been on this arm.
    "link/arm/log_cholesky/d3": Prior(spread=0.5),
    "link/arm/log_cholesky/t3": Prior(spread=0.1),
    "joint/pendulum/frictionloss": Prior(spread=0.1),
    "joint/pendulum/damping": Prior(spread=0.05),
}
# tau = J a + mc g sin q + Fv v + Fc atan(100 v) + offset: the set's system_identification.txt.
REGRESSION = {"J": 0.06259, "mc": 0.1022, "Fv": 0.04707, "Fc": 0.1839, "offset": -0.0759}
STRUCTURES = {"body and friction": FREE, "friction": FREE[2:]}
SPANS = {"60 ms": 0.06, "40 ms": 0.04, "20 ms": 0.02}  # of past positions for an initial velocity
_SPAN = "60 ms"  # for the nominal twin and the published parameters
_STRIDE = 0.1  # s between the starts of training windows, because the only run is 3.9 s long
_ALL_WINDOWS = 10_000


def published_values(twin: Twin) -> dict[str, float]:
    """Convert the published parameters: J and mc become mass and stretch at the drawing's centre of mass."""
    nominal = body_inertial(twin, twin.table(1), "arm")
    depth, moments = abs(float(nominal.com[0, 2])), second_moments(nominal.inertia[0])
    mass = REGRESSION["mc"] / depth
    armature = twin.params["joint/pendulum/armature"].nominal
    about_com = REGRESSION["J"] - armature - mass * depth**2
    factor = mass / nominal.mass[0]
    along = about_com / factor - moments[0]  # I_yy = S_x + S_z
    return {
        "link/arm/log_cholesky/alpha": 0.5 * math.log(factor),
        "link/arm/log_cholesky/d3": 0.5 * math.log(along / moments[2]),
        "joint/pendulum/damping": REGRESSION["Fv"],
        "joint/pendulum/frictionloss": REGRESSION["Fc"] * math.pi / 2,
    }


class SimplePendulum(RealCase):
    """See `RealCase`."""

    name = "dfki_simple_pendulum"
    twin = "simple_pendulum"
    published = Fitted(values=published_values(load_twin(twin)), prediction=PUBLISHED)
    rule = "fitted to the PD controller's run, scored on all other controllers'"
    candidates = tuple(
        Candidate(name=f"{structure}, {span}", structure=f"{structure}, {span}", prediction=span)
        for structure in STRUCTURES
        for span in SPANS
    )

    def folds(self, episodes: Sequence[Episode]) -> list[Fold]:
        """See `RealCase`."""
        training = _identification(episodes)
        test = [episode for episode in episodes if episode not in training]
        return [Fold(name="all but pd", training=training, test=test)]

    def inner_folds(self, training: Sequence[Episode]) -> list[Fold]:
        """See `RealCase`; the folds are the two halves of each run's time."""
        halves = {
            name: [_half(run, number) for run in _identification_or_all(training)]
            for number, name in enumerate(("first", "second"))
        }
        return leave_one_out(halves)

    def fit(self, training: Sequence[Episode], structure: str, backend: Backend) -> Fitted:
        """See `RealCase`; only runs of the identification's controller are fitted, if there are any."""
        twin, (free, span) = load_twin(self.twin), structure.split(", ")
        config = FitConfig(
            replay=replace(REPLAY, stride=_STRIDE),
            free=STRUCTURES[free],
            priors=PRIORS,
            walk=_ALL_WINDOWS,
            width=2.0,
            polish=0,
        )
        result = identify(twin, at_rate(_identification_or_all(training), SPANS[span]), backend=backend, config=config)
        found = body_inertial(twin, twin.table(1, result.values), "arm")
        return Fitted(
            values=dict(result.values), result=result, notes=(f"The arm as identified: {inertial_text(found)}.",)
        )

    def errors(self, fitted: Fitted, test: Sequence[Episode], backend: Backend) -> Errors:
        """Return RMS errors over all windows, and over the windows of each controller."""
        twin, runs = load_twin(self.twin), at_rate(test, SPANS.get(fitted.prediction, SPANS[_SPAN]))
        if fitted.prediction == PUBLISHED:
            runs = [_with_torque(run, -REGRESSION["offset"]) for run in runs]
        squares = [window_errors(twin, [run], fitted.values, backend)[:, 0] for run in runs]
        labels = [_label(run) for run in runs for _ in squares[run.index]]
        names = ["all", *dict.fromkeys(labels)]
        weights = np.array([[name in ("all", label) for name in names] for label in labels], dtype=np.float64)
        pooled = rms_errors(np.repeat(np.concatenate(squares)[:, None], len(names), axis=1), names)
        return replace(pooled, weights=weights)


def _identification(episodes: Sequence[Episode]) -> list[Episode]:
    return [episode for episode in episodes if episode.task.split("/")[0] == IDENTIFICATION]


def _identification_or_all(training: Sequence[Episode]) -> list[Episode]:
    """Return the runs of the identification's controller; all runs if there is none."""
    return _identification(training) or list(training)


def _half(run: Episode, number: int) -> Episode:
    """Return the first (0) or second (1) half of a run's time."""
    middle = 0.5 * (run.time[0] + run.time[-1])
    return between(run, *((run.time[0], middle), (middle, run.time[-1]))[number])


def _label(run: Episode) -> str:
    mass: Mapping[str, float] = run.conditions
    return run.task + (f", {mass['mass_variant']:g} kg" if "mass_variant" in mass else "")


def _with_torque(run: Episode, more: float) -> Episode:
    """Add ``more`` N·m to the measured torque of a run."""
    torque = run.signals["joint_torque"]
    raised = replace(torque, values=torque.values + more)
    return replace(run, signals={**run.signals, "joint_torque": raised})


CASE = SimplePendulum()
