"""Simulate flights of a quadrotor like the Crazyflie whose true parameters are known, with its inertial unit.

Everything is computed here: rigid body, rotors and their lag, and a controller that knows the twin's nominal values
only. Axes as in the twin: z up, rotors at ``_ARMS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from twinloop.core.records import Episode, LoggedSignal
from twinloop.core.units import UnitMap
from twinloop.twin import Twin, load_twin

Array = NDArray[np.float64]
EFFECTS = ("air_drag", "rotor_imbalance", "battery_sag")
HZ, SECONDS, FLIGHTS = 250.0, 5.0, 8  # rate of commands and readings; length and number of flights: our choice
_BODY = "crazyflie"
_GRAVITY = 9.81
_PLACE = np.array([0.0, 0.0, 1.0])  # about which it flies, m
_SUBSTEPS, _SETTLE = 4, 1.0  # integration steps per command; s of hovering before the recording
_NOISE = {"acceleration/imu": 0.05, "angular_velocity/imu": 0.01}  # m/s², rad/s: our choice

# Controller, our choice: natural frequencies in rad/s and damping ratios of position, attitude and heading.
_POSITION, _ATTITUDE, _HEADING = (2.0, 0.9), (9.0, 0.9), (3.0, 0.9)
_MOST_TILT = math.radians(40.0)
# Flights, our choice: size of waypoints in m, turns in rad, tilts in rad; intervals between them in s.
_BOX, _TURN, _TILTS, _EVERY = 0.6, (0.7, 2.5), (0.15, 0.5), (0.5, 1.2)
_TILT_TIME = (0.12, 0.4)  # s, of each half of a tilt and its opposite

# Distributions, our choice: standard deviations of logarithms, and ranges.
_SPREADS = {"thrust": 0.1, "drag": 0.2, "inertia": 0.15, "mass": 0.05}
_LAG = (0.02, 0.06)  # s
_MOST_STRETCH = 1.5  # of a log-Cholesky parameter; inertias beyond it, or that no body can have, are drawn again
_AIR_DRAG = (0.1, 0.4)  # deceleration per speed, 1/s
_WEAK_ROTOR, _SAG = 0.92, 0.15  # thrust of the weak rotor; loss of thrust over the log


@dataclass(frozen=True, kw_only=True)
class PlantedQuadrotor:
    """True values of a quadrotor, SI units.

    Attributes:
        thrust: Coefficients of 1, u and u² of a rotor's thrust, u its throttle after the lag, shape ``(3,)``, N.
        lag: Time constant of a rotor, s.
        drag: Torque about its axis per thrust of a rotor, m.
        inertia: Inertia about x, y and z, shape ``(3,)``, kg·m².
        mass: Mass, kg.
        arms: Positions x and y of the rotors, shape ``(4, 2)``, m.
        spins: Sign of each rotor's torque, shape ``(4,)``.
        air_drag: Force against the motion per speed, N·s/m.
        strength: Factor on the thrust of each rotor, shape ``(4,)``.
        sag: Part of the thrust that the battery has lost at the end of the log.
    """

    thrust: Array
    lag: float
    drag: float
    inertia: Array
    mass: float
    arms: Array
    spins: Array
    air_drag: float
    strength: Array
    sag: float

    @property
    def mixing(self) -> Array:
        """Matrix from rotor thrusts to total thrust and torques about x, y and z, shape ``(4, 4)``."""
        return np.stack([np.ones(4), self.arms[:, 1], -self.arms[:, 0], self.drag * self.spins])


@cache
def load_quadrotor() -> Twin:
    """Load the twin."""
    return load_twin("crazyflie")


def nominal_quadrotor() -> PlantedQuadrotor:
    """Return the nominal values of the twin."""
    twin = load_quadrotor()
    model, params = twin.model, twin.params
    return PlantedQuadrotor(
        thrust=np.array([params[f"rotors/all/thrust/{name}"].nominal for name in ("constant", "linear", "quadratic")]),
        lag=params["rotors/all/lag"].nominal,
        drag=params["rotors/all/drag"].nominal,
        inertia=model.body(_BODY).inertia.copy(),
        mass=float(model.body(_BODY).mass[0]),
        arms=model.site_pos[model.actuator_trnid[:, 0], :2].copy(),
        spins=np.sign(model.actuator_gear[:, 5]),
        air_drag=0.0,
        strength=np.ones(4),
        sag=0.0,
    )


def draw_quadrotor(rng: np.random.Generator, effect: str | None = None) -> tuple[PlantedQuadrotor, dict[str, float]]:
    """Draw the true values; return them, and those that the twin declares by parameter name in SI units.

    Args:
        rng: Generator.
        effect: Effect of `EFFECTS` that the quadrotor has and its twin lacks; None for none.
    """
    nominal = nominal_quadrotor()
    factors = {key: float(rng.lognormal(0.0, _SPREADS[key])) for key in ("thrust", "drag", "mass")}
    while True:
        inertia = nominal.inertia * rng.lognormal(0.0, _SPREADS["inertia"], 3)
        moments, before = (0.5 * i.sum() - i for i in (inertia, nominal.inertia))  # second moments of mass
        if moments.min() > 0.0:
            alpha = 0.5 * math.log(factors["mass"])
            stretch = 0.5 * np.log(moments / before) - alpha
            if np.abs(stretch).max() < _MOST_STRETCH:
                break
    planted = replace(
        nominal,
        thrust=nominal.thrust * [1.0, factors["thrust"], factors["thrust"]],
        lag=float(rng.uniform(*_LAG)),
        drag=nominal.drag * factors["drag"],
        inertia=inertia,
        mass=nominal.mass * factors["mass"],
    )
    rotors = dict(zip(("constant", "linear", "quadratic"), planted.thrust.tolist(), strict=True))
    values = {f"rotors/all/thrust/{name}": value for name, value in rotors.items()}
    values |= {"rotors/all/lag": planted.lag, "rotors/all/second_lag": 0.0, "rotors/all/drag": planted.drag}
    body = dict(zip(("alpha", "d1", "d2", "d3", "t1", "t2"), [alpha, *stretch.tolist(), 0.0, 0.0], strict=True))
    values |= {f"object/{_BODY}/log_cholesky/{name}": value for name, value in body.items()}
    severity: dict[str, Callable[[], dict[str, Any]]] = {
        "air_drag": lambda: {"air_drag": planted.mass * rng.uniform(*_AIR_DRAG)},
        "rotor_imbalance": lambda: {"strength": np.where(np.arange(4) == rng.integers(4), _WEAK_ROTOR, 1.0)},
        "battery_sag": lambda: {"sag": _SAG},
    }
    chosen = replace(planted, **severity[effect]()) if effect else planted
    return chosen, values | {"rotors/all/damping": 0.0}


@dataclass
class _Flight:
    """State of N flights: position, velocity ``(N, 3)``, attitude, rates in body axes ``(N, 3)``, rotors ``(N, 4)``."""

    position: Array
    velocity: Array
    attitude: Rotation
    rates: Array
    rotors: Array


def fly(
    planted: PlantedQuadrotor, kind: str, rng: np.random.Generator, flights: int = FLIGHTS, seconds: float = SECONDS
) -> list[Episode]:
    """Fly N flights one after the other and return their throttles and the readings of the inertial unit.

    Args:
        planted: True values.
        kind: ``fourier`` (waypoints), ``reach`` (turns of the heading near one place) or ``steps`` (quick tilts).
        rng: Generator of motion and noise.
        flights: Number N of flights.
        seconds: Length of a flight, s.
    """
    frames = round(seconds * HZ)
    place, heading, tilt = _plan(kind, flights, frames, rng)
    nominal = nominal_quadrotor()
    state = _Flight(
        place[:, 0], np.zeros((flights, 3)), Rotation.identity(flights), np.zeros((flights, 3)),
        np.full((flights, 4), _throttles(nominal, np.array(nominal.mass * _GRAVITY / 4))),
    )  # fmt: skip
    readings = {"motor": np.empty((flights, frames, 4)), **{key: np.empty((flights, frames, 3)) for key in _NOISE}}
    starts, h = np.arange(flights)[:, None] / flights, 1.0 / (HZ * _SUBSTEPS)
    for frame in range(-round(_SETTLE * HZ), frames):
        at = max(frame, 0)
        throttle = _control(nominal, state, place[:, at], heading[:, at], tilt[:, at])
        power = planted.strength * (1.0 - planted.sag * (starts + at / frames / flights))
        if frame >= 0:
            readings["motor"][:, frame] = throttle
            readings["angular_velocity/imu"][:, frame] = state.rates
            readings["acceleration/imu"][:, frame] = _specific_force(planted, state, power)
        for _ in range(_SUBSTEPS):
            _advance(planted, state, throttle, power, h)
    for key, noise in _NOISE.items():
        readings[key] += noise * rng.standard_normal(readings[key].shape)
    return [_episode(index, kind, {key: values[index] for key, values in readings.items()}) for index in range(flights)]


def _episode(index: int, kind: str, readings: dict[str, Array]) -> Episode:
    model = load_quadrotor().model
    rotors = tuple(model.actuator(number).name for number in range(model.nu))
    about = {"motor": (rotors, "1"), "acceleration/imu": (("x", "y", "z"), "m/s²")}
    about["angular_velocity/imu"] = (("x", "y", "z"), "rad/s")
    time = np.arange(len(readings["motor"])) / HZ
    blank = np.empty((len(time), 0))
    return Episode(
        index=index,
        time=time,
        action=blank,
        state=blank,
        units=UnitMap(joints=(), source="planted quadrotor"),
        task=kind,
        robot_type=_BODY,
        command="none",
        signals={
            key: LoggedSignal(time=time, values=values, columns=about[key][0], unit=about[key][1])
            for key, values in readings.items()
        },
    )


def _plan(kind: str, flights: int, frames: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Return wanted places ``(N, T, 3)``, headings ``(N, T)`` and, besides, tilts about x and y ``(N, T, 2)``."""
    place, heading = np.tile(_PLACE, (flights, frames, 1)), np.zeros((flights, frames))
    tilt = np.zeros((flights, frames, 2))
    for flight in range(flights):
        now = 0.0
        while (now := now + rng.uniform(*_EVERY)) * HZ < frames:
            first = round(now * HZ)
            if kind == "fourier":
                place[flight, first:] = _PLACE + rng.uniform(-_BOX, _BOX, 3)
                heading[flight, first:] += rng.uniform(-0.3, 0.3)
            elif kind == "reach":
                heading[flight, first:] += rng.choice([-1, 1]) * rng.uniform(*_TURN)
                place[flight, first:] = _PLACE + 0.3 * rng.uniform(-_BOX, _BOX, 3)
            else:
                half = round(rng.uniform(*_TILT_TIME) * HZ)
                size = rng.uniform(*_TILTS) * rng.choice([-1, 1])
                axis = rng.integers(2)
                tilt[flight, first : first + half, axis] = size
                tilt[flight, first + half : first + 2 * half, axis] = -size
                heading[flight, first:] += rng.uniform(-0.5, 0.5)
    return place, heading, tilt


def _throttles(nominal: PlantedQuadrotor, thrust: Array) -> Array:
    """Return the throttles at which the nominal thrust curve gives a thrust."""
    c0, c1, c2 = nominal.thrust
    root = np.sqrt(np.maximum(c1**2 - 4 * c2 * (c0 - thrust), 0.0))
    return np.clip((root - c1) / (2 * c2), 0.0, 1.0)


def _control(nominal: PlantedQuadrotor, state: _Flight, place: Array, heading: Array, tilt: Array) -> Array:
    """Return throttles ``(N, 4)``; while tilts are wanted, they replace the control of the place."""
    (p, pd), (a, ad), (y, yd) = _POSITION, _ATTITUDE, _HEADING
    pull = p**2 * (place - state.position) - 2 * p * pd * state.velocity
    free = np.any(tilt != 0.0, axis=1, keepdims=True)
    pull[:, :2] = np.where(free, 0.0, pull[:, :2])
    pull[:, 2] += _GRAVITY
    most = math.tan(_MOST_TILT) * _GRAVITY
    pull[:, :2] = np.clip(pull[:, :2], -most, most)
    up = pull / np.linalg.norm(pull, axis=1, keepdims=True)
    front = np.stack([np.cos(heading), np.sin(heading), np.zeros_like(heading)], axis=1)
    left = np.cross(up, front)
    left /= np.linalg.norm(left, axis=1, keepdims=True)
    wanted = Rotation.from_matrix(np.stack([np.cross(left, up), left, up], axis=2))
    wanted = wanted * Rotation.from_rotvec(np.pad(tilt, ((0, 0), (0, 1))))
    error = (state.attitude.inv() * wanted).as_rotvec()
    stiffness, damping = np.array([a, a, y]) ** 2, 2 * np.array([a * ad, a * ad, y * yd])
    torque = nominal.inertia * (stiffness * error - damping * state.rates)
    axis = state.attitude.apply(np.array([0.0, 0.0, 1.0]))
    lift = nominal.mass * np.maximum((pull * axis).sum(axis=1), 0.3 * _GRAVITY)
    thrusts = np.column_stack([lift, torque]) @ np.linalg.inv(nominal.mixing).T
    return _throttles(nominal, thrusts.astype(np.float64))


def _thrusts(planted: PlantedQuadrotor, rotors: Array, power: Array) -> Array:
    c0, c1, c2 = planted.thrust
    return power * np.maximum(c0 + (c1 + c2 * rotors) * rotors, 0.0)


def _specific_force(planted: PlantedQuadrotor, state: _Flight, power: Array) -> Array:
    """Return all forces except gravity per mass, in body axes, ``(N, 3)``."""
    force = -planted.air_drag * state.attitude.inv().apply(state.velocity)
    force[:, 2] += _thrusts(planted, state.rotors, power).sum(axis=1)
    return force / planted.mass


def _advance(planted: PlantedQuadrotor, state: _Flight, throttle: Array, power: Array, h: float) -> None:
    """Advance by one step of h seconds, in place: rotors exactly, rates and attitude at the middle (second order)."""
    fraction = 1.0 - math.exp(-0.5 * h / planted.lag)
    state.rotors = state.rotors + fraction * (throttle - state.rotors)
    torque = _thrusts(planted, state.rotors, power) @ planted.mixing[1:].T
    middle = state.rates
    for _ in range(2):  # fixed point of the implicit midpoint rule
        middle = state.rates + 0.5 * h * (torque - np.cross(middle, planted.inertia * middle)) / planted.inertia
    before = state.attitude
    state.attitude = before * Rotation.from_rotvec(0.5 * h * state.rates)
    push = state.attitude.apply(_specific_force(planted, state, power)) - [0.0, 0.0, _GRAVITY]
    state.attitude = before * Rotation.from_rotvec(h * middle)
    state.rates = 2 * middle - state.rates
    state.position = state.position + h * state.velocity + 0.5 * h**2 * push
    state.velocity = state.velocity + h * push
    state.rotors = state.rotors + fraction * (throttle - state.rotors)
