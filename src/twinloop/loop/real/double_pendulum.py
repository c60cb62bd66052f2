"""The DFKI's double pendulum: another identification run than those trained on, replayed open loop in short windows.

What is free was chosen by leaving one run out after the other, see ``docs/real_arms.md``. Every run has a zero of its
own: the arm is zeroed where it hangs, and friction lets it hang anywhere within 0.07 rad of the vertical. Those zeros
are estimated run by run beside the common parameters, as what differs between runs; a run that was not seen has the
zero 0, and nothing of it is corrected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import Episode
from twinloop.identify import FitConfig, IdentifyResult, identify
from twinloop.identify.space import Prior
from twinloop.loop.real.arm_windows import REPLAY, at_rate, one_step_per_frame, rms_scores, window_errors
from twinloop.loop.real.case import Fitted, Score
from twinloop.simulate import Backend
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.twin import load_twin
from twinloop.twin.inertia import body_inertial, inertial_text

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
    # Friction of 0.25 N·m against 3.6 N·m/rad of gravity: an arm that hangs still is within 0.07 rad of the vertical.
    "sensor/*/offset": Prior(spread=0.04),
    # Where commands drive the arm: the bus's cycle of 2 ms and what the motors take.
    "actuator/*/delay": Prior(spread=0.005),
}
SPAN = 0.028  # s of positions behind a first speed: 15 frames
_JOINTS = ("shoulder", "elbow")
_ROUNDS = 2  # of common parameters and zeros in turn; a third changes the left-out error by less than 2 %
_MANY = 10_000  # windows: all of them
TARGETS = (0.045, 0.085)
SOURCE = "ten parameters by mujoco.sysid on these runs"


@dataclass(frozen=True, kw_only=True)
class DoublePendulum:
    """See `RealCase`. ``replay`` says what drives the arm and ``free`` what is fitted."""

    name: str = "dfki_double_pendulum"
    twin: str = "double_pendulum"
    baseline: str = "the published parameters (model 1.0 of design C.1)"
    split_rule: str = "the first run is held out"
    replay: ReplayOptions = REPLAY
    free: tuple[str, ...] = FREE

    def split(self, episodes: Sequence[Episode]) -> tuple[list[Episode], list[Episode]]:
        """See `RealCase`."""
        return list(episodes[1:]), list(episodes[:1])

    def fit(self, training: Sequence[Episode], backend: Backend) -> Fitted:
        """See `RealCase`."""
        twin, runs = load_twin(self.twin), at_rate(training, SPAN)
        zeros = np.zeros((len(runs), len(_JOINTS)))
        result = self._common(runs, zeros, {}, backend)
        for _ in range(_ROUNDS):
            zeros = np.array([self._zero(run, result, backend) for run in runs])
            result = self._common(runs, zeros, result.values, backend)
        values = dict(result.values)
        table = twin.table(1, values)
        notes = [f"{link}: {inertial_text(body_inertial(twin, table, link))}." for link in ("link1", "link2")]
        spread = np.sqrt(np.mean(zeros**2, axis=0))
        notes.append(
            f"Zeros of the {len(runs)} training runs differ by {spread[0]:.3f} rad (shoulder) and {spread[1]:.3f} rad "
            "(elbow), root mean square about 0; a test run has the zero 0."
        )
        return Fitted(values=values, result=result, notes=tuple(notes), extra={"zeros": zeros.tolist()})

    def score(self, fitted: Fitted | None, test: Sequence[Episode], backend: Backend) -> list[Score]:
        """See `RealCase`."""
        values = {} if fitted is None else fitted.values
        squares, windows = window_errors(load_twin(self.twin), at_rate(test, SPAN), values, backend)
        return rms_scores(squares, windows, _JOINTS, targets=TARGETS, source=SOURCE)

    def _common(
        self, runs: Sequence[Episode], zeros: NDArray[np.float64], start: Mapping[str, float], backend: Backend
    ) -> IdentifyResult:
        """The parameters that all runs share, each run having its zeros ``(nrun, n)``."""
        keys = {f"sensor/{joint}/offset": f"zero/{joint}" for joint in _JOINTS}
        said = [
            replace(run, conditions={**run.conditions, **dict(zip(keys.values(), map(float, zero), strict=True))})
            for run, zero in zip(runs, zeros, strict=True)
        ]
        config = FitConfig(
            replay=replace(self.replay, conditions=keys),
            free=self.free,
            priors=PRIORS,
            start=start,
            walk=_MANY,
            width=4.0,
        )
        return identify(one_step_per_frame(load_twin(self.twin)), said, backend=backend, config=config)

    def _zero(self, run: Episode, result: IdentifyResult, backend: Backend) -> list[float]:
        """The zeros of one run under the common parameters."""
        config = FitConfig(
            replay=self.replay,
            free=("sensor/*/offset",),
            fixed=result.values,
            priors=PRIORS,
            walk=_MANY,
            width=4.0,
        )
        found = identify(one_step_per_frame(load_twin(self.twin)), [run], backend=backend, config=config)
        return [found.values[f"sensor/{joint}/offset"] for joint in _JOINTS]


CASE = DoublePendulum()
