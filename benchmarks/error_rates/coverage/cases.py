"""Define the cases of the coverage study: a position servo and a double pendulum, with correct and with wrong twins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.error_rates.coverage.study import CoverageCase
from twinloop.identify import FitConfig
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.twin.quantities import Prior

Array = NDArray[np.float64]
LEVEL = 0.9
_ALL_WINDOWS = 10_000  # more than the number of windows
_STROKE = 0.4  # s


def _strokes(rng: np.random.Generator, time: Array) -> Array:
    """Return position commands ``(T, 1)`` in rad: ramps to random angles, each followed by a rest."""
    at = time / _STROKE
    whole = at.astype(int)
    knots = rng.uniform(-1.2, 1.2, size=int(whole[-1]) + 2)
    knots[0] = 0.0
    ease = np.clip(2 * (at - whole), 0, 1)
    return ((1 - ease) * knots[whole] + ease * knots[whole + 1])[:, None]


def _swings(rng: np.random.Generator, time: Array) -> Array:
    """Return torques of shoulder and elbow, ``(T, 2)`` in N·m, as sums of three sines: swings below the horizontal."""
    rate = rng.uniform(0.5, 2.5, size=(3, 2))
    phase = rng.uniform(0, 2 * np.pi, size=(3, 2))
    return np.sum(np.sin(2 * np.pi * rate * time[:, None, None] + phase), axis=1) * [0.9, 0.5]


_JOINT, _MOTOR = "joint/pendulum", "actuator/pendulum"
_SERVO_TRUTH = {
    f"{_MOTOR}/kp": 0.65,
    f"{_JOINT}/damping": 0.055,
    f"{_JOINT}/frictionloss": 0.02,
    f"{_MOTOR}/delay": 0.02,
}
SERVO = CoverageCase(
    name="servo",
    twin="xl330_pendulum",
    commands=_strokes,
    truth=_SERVO_TRUTH,
    fit=FitConfig(free=tuple(_SERVO_TRUTH), start=_SERVO_TRUTH, physics_hz=250.0, walk=_ALL_WINDOWS, level=LEVEL),
    seconds=1.6,
    episodes=8,
    start={"position": 0.003, "velocity": 0.05},
)
# Load-dependent friction 0.2, static friction 1.5 times the kinetic one: Rhoban/bam's models m2 to m6 of this servo.
_SERVO_MISSING = {f"{_JOINT}/load_friction": 0.2, f"{_JOINT}/stiction": 1.5}

_PENDULUM_TRUTH = {
    "joint/shoulder/damping": 0.004,
    "joint/elbow/damping": 0.003,
    "joint/shoulder/frictionloss": 0.13,
    "joint/elbow/frictionloss": 0.11,
    "link/link1/log_cholesky/t3": 0.01,
}
_PENDULUM_PRIORS = {  # as for the fits to the real pendulum, `benchmarks.real_data.double_pendulum`
    "link/*/log_cholesky/t3": Prior(spread=0.05),
    "joint/*/frictionloss": Prior(spread=0.1),
    "joint/*/damping": Prior(spread=0.01),
}
PENDULUM = CoverageCase(
    name="pendulum",
    twin="double_pendulum",
    commands=_swings,
    truth=_PENDULUM_TRUTH,
    fit=FitConfig(
        replay=ReplayOptions(window=0.5, start="measured", local={"velocity": 0.1}),
        free=tuple(_PENDULUM_TRUTH),
        priors=_PENDULUM_PRIORS,
        start=_PENDULUM_TRUTH,
        physics_hz=400.0,
        walk=_ALL_WINDOWS,
        level=LEVEL,
    ),
    hz=100.0,
    seconds=2.0,
    episodes=12,
    noise=0.002,
    rho=0.9,
    start={"position": 0.05, "velocity": 0.5},
    population=100,
)
_PENDULUM_MISSING = {f"joint/{joint}/load_friction": 0.05 for joint in ("shoulder", "elbow")}

CASES = (
    SERVO,
    replace(SERVO, name="servo, 2 recordings of 12 s", episodes=2, seconds=12.0, population=30),
    replace(SERVO, name="servo without its load friction and stiction", missing=_SERVO_MISSING, episodes=12),
    PENDULUM,
    replace(PENDULUM, name="pendulum without its load friction", missing=_PENDULUM_MISSING),
    replace(SERVO, name="servo, every log fitted anew", refit=True),
)
