"""Fit a Dynamixel XL330 with a pendulum at some firmware gains and score it at others (Rhoban's BAM runs).

The servo's torque fades within a second of load, as if its winding warmed. The thermal constants are effective values:
at constant full duty they would imply more heat than a winding withstands, so driver, magnets or grease contribute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.real_data.case import (
    Candidate,
    Errors,
    Fitted,
    Fold,
    RealCase,
    grouped,
    leave_one_out,
    mean_errors,
)
from twinloop.core.records import Episode
from twinloop.dataset.logs.resampling import resample
from twinloop.identify import FitConfig, identify
from twinloop.simulate import Backend
from twinloop.simulate.channels import interpolate_at_frames
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayLogs, ReplayOptions, prepare_replay
from twinloop.twin import load_twin
from twinloop.twin.quantities import Prior

Array = NDArray[np.float64]

JOINT, GAIN = "pendulum", "firmware_kp"
_LENGTH = 0.1  # m, length of the twin's arm; its parameter is the difference from it
# Rhoban/bam, xl330, model m1: the preset contains all its values except the encoder offset.
PUBLISHED_ZERO = {f"sensor/{JOINT}/offset": 0.0309}
_FIT_HZ, _FIT_PHYSICS_HZ = 100.0, 200.0  # lower than the twin's, to save time
REPLAY = ReplayOptions(
    conditions={
        f"actuator/{JOINT}/firmware_gain": GAIN,
        f"actuator/{JOINT}/voltage": "voltage",
        "link/weight/mass": "mass",
        "link/weight/com/x": "length_shift",
    }
)
PRIORS = {
    # BAM's own models of this servo have 0.366 to 0.387 and 2.8 to 4.0 ohm.
    f"actuator/{JOINT}/torque_constant": Prior(spread=0.2),
    f"actuator/{JOINT}/resistance": Prior(spread=0.4),
    # Winding to case: 20 K/W and 4.2 s in a motor of 8 mm (Faulhaber 0816 SR), 6 K/W and 5 s in one of 13 (1331 SR).
    f"actuator/{JOINT}/thermal_resistance": Prior(spread=20.0),
    f"actuator/{JOINT}/thermal_time": Prior(spread=1.0),
    f"joint/{JOINT}/load_friction": Prior(spread=0.3),
    f"joint/{JOINT}/frictionloss": Prior(spread=0.01),
    f"joint/{JOINT}/armature": Prior(spread=0.3),
    f"sensor/{JOINT}/offset": Prior(spread=0.03),
    # 7.4 V fall to 7.1 V at full duty, about 1.5 A of the stalled motor: 0.2 ohm.
    "supply/bus/resistance": Prior(spread=0.5),
}
START = {
    f"actuator/{JOINT}/thermal_resistance": 20.0,
    f"joint/{JOINT}/load_friction": 0.15,
}
_SIMPLE = (
    f"actuator/{JOINT}/torque_constant",
    f"actuator/{JOINT}/resistance",
    f"joint/{JOINT}/frictionloss",
    f"joint/{JOINT}/armature",
    f"sensor/{JOINT}/offset",
)
_LOAD = f"joint/{JOINT}/load_friction"
STRUCTURES = {
    "load friction and heat": (
        *_SIMPLE,
        _LOAD,
        f"actuator/{JOINT}/thermal_resistance",
        f"actuator/{JOINT}/thermal_time",
    ),
    "load friction and supply sag": (*_SIMPLE, _LOAD, "supply/bus/resistance"),
    "load friction": (*_SIMPLE, _LOAD),
    "viscous and Coulomb friction": (*_SIMPLE, f"joint/{JOINT}/damping"),
}


class BamServo(RealCase):
    """Open-loop replay of whole runs from their first frame, while the motor is on, at the log's own times."""

    name, twin = "bam_servo", "xl330_pendulum"
    rule = "each firmware gain is held out"
    published = Fitted(values=PUBLISHED_ZERO)
    candidates = tuple(Candidate(name=name, structure=name) for name in STRUCTURES)

    def folds(self, episodes: Sequence[Episode]) -> list[Fold]:
        """See `RealCase`."""
        return leave_one_out(grouped(episodes, [f"gain {episode.conditions[GAIN]:g}" for episode in episodes]))

    def fit(self, training: Sequence[Episode], structure: str, backend: Backend) -> Fitted:
        """See `RealCase`."""
        free = STRUCTURES[structure]
        config = FitConfig(
            replay=REPLAY,
            free=free,
            priors=PRIORS,
            start={name: value for name, value in START.items() if name in free},
            physics_hz=_FIT_PHYSICS_HZ,
            walk=len(training),
        )
        result = identify(load_twin(self.twin), on_grid(training, _FIT_HZ), backend=backend, config=config)
        return Fitted(values=result.values, result=result)

    def errors(self, fitted: Fitted, test: Sequence[Episode], backend: Backend) -> Errors:
        """Return the mean absolute position error of each run."""
        errors = 1e3 * run_errors(fitted.values, test, backend)
        return mean_errors(errors[:, None], ["mean absolute error"], ["mrad"])


def on_grid(episodes: Sequence[Episode], rate_hz: float) -> list[Episode]:
    """Resample the runs uniformly, and add the twin's condition for the arm's length."""
    pieces = []
    for episode in episodes:
        conditions = {**episode.conditions, "length_shift": episode.conditions["length"] - _LENGTH}
        pieces.append(replace(resample(episode, rate_hz, longest_gap_s=np.inf)[0], conditions=conditions))
    return pieces


def run_errors(values: Mapping[str, float], episodes: Sequence[Episode], backend: Backend) -> Array:
    """Return the mean absolute position error of each run in rad, at its own frames while the motor is on."""
    logs, readings = replayed(values, episodes, backend)
    errors = []
    for episode, row in zip(episodes, readings, strict=True):
        on = interpolate_at_frames(episode, "enabled")[:, 0] > 0.0
        grid = episode.time[0] + np.arange(len(row)) / logs.twin.control_hz
        errors.append(np.mean(np.abs(np.interp(episode.time[on], grid, row) - episode.state[on, 0])))
    return np.array(errors)


def replayed(values: Mapping[str, float], episodes: Sequence[Episode], backend: Backend) -> tuple[ReplayLogs, Array]:
    """Replay the runs in the twin: return the logs, and positions ``(nrun, nframe)`` in rad at the control rate."""
    twin = load_twin(BamServo.twin)
    logs = prepare_replay(twin, on_grid(episodes, twin.control_hz), REPLAY)
    return logs, replay(backend, logs, logs.twin.table(1, values))[0][..., 0]


CASE = BamServo()
