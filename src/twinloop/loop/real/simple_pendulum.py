"""The DFKI's simple pendulum: identified under one controller, replayed under the others.

The published parameters come from the same identification run, by regression of the measured torque on accelerations,
in which that run's vibration drowns: inertia and gravity come out too small by factors of 2.6 and 3. They are scored in
the same way and with the same form of model, their torque offset included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from twinloop.core.records import Episode
from twinloop.identify import FitConfig, identify
from twinloop.identify.space import Prior
from twinloop.loop.real.arm_windows import REPLAY, at_rate, rms_scores, window_errors
from twinloop.loop.real.case import Fitted, Score
from twinloop.simulate import Backend
from twinloop.twin import Twin, load_twin
from twinloop.twin.inertia import body_inertial, inertial_text
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
PUBLISHED = {"J": 0.06259, "mc": 0.1022, "Fv": 0.04707, "Fc": 0.1839, "offset": -0.0759}
SPAN = 0.06  # s of positions behind a first speed: at 20 ms the training run's own windows are off three times as far
_STRIDE = 0.1  # s from one training window to the next: the one run is 3.9 s long
_MANY = 10_000


class SimplePendulum:
    """See `RealCase`."""

    name = "dfki_simple_pendulum"
    twin = "simple_pendulum"
    baseline = "the published parameters, identified by regression on the same run"
    split_rule = "fitted to the PD controller's run, scored on all other controllers'"

    def split(self, episodes: Sequence[Episode]) -> tuple[list[Episode], list[Episode]]:
        """See `RealCase`."""
        training = _identification(episodes)
        return training, [episode for episode in episodes if episode not in training]

    def fit(self, training: Sequence[Episode], backend: Backend) -> Fitted:
        """See `RealCase`; of all runs given, those of the identification's controller."""
        twin = load_twin(self.twin)
        config = FitConfig(
            replay=replace(REPLAY, stride=_STRIDE), free=FREE, priors=PRIORS, walk=_MANY, width=2.0, polish=0
        )
        runs = at_rate(_identification(training) or training, SPAN)
        result = identify(twin, runs, backend=backend, config=config)
        found = body_inertial(twin, twin.table(1, result.values), "arm")
        return Fitted(
            values=dict(result.values), result=result, notes=(f"The arm as identified: {inertial_text(found)}.",)
        )

    def score(self, fitted: Fitted | None, test: Sequence[Episode], backend: Backend) -> list[Score]:
        """See `RealCase`; the target is what the published parameters reach on the same windows."""
        twin, runs = load_twin(self.twin), at_rate(test, SPAN)
        offset = [_with_torque(run, -PUBLISHED["offset"]) for run in runs]
        before, windows = window_errors(twin, offset, published_values(twin), backend)
        squares = before if fitted is None else window_errors(twin, runs, fitted.values, backend)[0]
        scores = []
        for name, rows in [
            ("all", np.arange(len(runs))),
            *((_label(run), np.array([i])) for i, run in enumerate(runs)),
        ]:
            target = float(np.sqrt(np.average(before[rows, 0], weights=windows[rows])))
            scores += rms_scores(
                squares[rows], windows[rows], [name], targets=[target], source="the published parameters, same windows"
            )
        return scores


def published_values(twin: Twin) -> dict[str, float]:
    """The published parameters as the twin's: J and mc by mass and stretch at the drawing's centre of mass."""
    nominal = body_inertial(twin, twin.table(1), "arm")
    depth, moments = abs(float(nominal.com[0, 2])), second_moments(nominal.inertia[0])
    mass = PUBLISHED["mc"] / depth
    armature = twin.params["joint/pendulum/armature"].nominal
    about_com = PUBLISHED["J"] - armature - mass * depth**2
    factor = mass / nominal.mass[0]
    along = about_com / factor - moments[0]  # I_yy = S_x + S_z
    return {
        "link/arm/log_cholesky/alpha": 0.5 * math.log(factor),
        "link/arm/log_cholesky/d3": 0.5 * math.log(along / moments[2]),
        "joint/pendulum/damping": PUBLISHED["Fv"],
        "joint/pendulum/frictionloss": PUBLISHED["Fc"] * math.pi / 2,
    }


def _identification(episodes: Sequence[Episode]) -> list[Episode]:
    return [episode for episode in episodes if episode.task.split("/")[0] == IDENTIFICATION]


def _label(run: Episode) -> str:
    mass: Mapping[str, float] = run.conditions
    return run.task + (f", {mass['mass_variant']:g} kg" if "mass_variant" in mass else "")


def _with_torque(run: Episode, more: float) -> Episode:
    """The run with its measured torque raised, in N·m."""
    torque = run.signals["joint_torque"]
    raised = replace(torque, values=torque.values + more)
    return replace(run, signals={**run.signals, "joint_torque": raised})


CASE = SimplePendulum()
