"""The Crazyflie's flights: thrust per throttle, and inertia about the axes that the flights turn it about.

The logs hold an inertial unit and throttles. A window begins at the gyroscope's rates; its attitude does not matter,
because no reading in the body's axes depends on it. First the thrust is found from the vertical acceleration of all
flights; then, with the thrust known, the inertia from the rates of those flights that turn the drone about: where it
hardly turns, small differences between rotors are all the torque there is.

The published thrust curve stands on accelerations that are too small: the notebook that it comes from multiplies the
vertical accelerometer, which is in g, by 9.18 in place of 9.81, and thrusts and torques scale with it. Published
figures are compared with that one factor put right (`FACTOR`); a drone at rest in these logs reads 9.81 m/s².
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.distribution import ParamDistribution
from twinloop.core.records import Episode
from twinloop.dataset.resample import resample
from twinloop.identify import FitConfig, IdentifyResult, identify
from twinloop.identify.space import Prior
from twinloop.loop.real.case import Fitted, Score
from twinloop.simulate import Backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayOptions, prepare_replay
from twinloop.twin import load_twin
from twinloop.twin.inertia import body_inertial, inertia_matrix

THRUST = tuple(f"rotors/all/thrust/{name}" for name in ("constant", "linear", "quadratic"))
STRETCH = tuple(f"object/crazyflie/log_cholesky/d{i}" for i in (1, 2, 3))
CENTRE = tuple(f"object/crazyflie/log_cholesky/t{i}" for i in (1, 2))
DRAG = "rotors/all/drag"
LAGS = ("rotors/all/lag", "rotors/all/second_lag")
PRIORS = {
    "rotors/all/thrust/*": Prior(spread=0.05),
    "rotors/all/lag": Prior(spread=0.03),
    "rotors/all/second_lag": Prior(spread=0.01),
    # Other identifications of this drone find 1.0e-5 to 2.4e-5 kg·m² about its horizontal axes.
    "object/crazyflie/log_cholesky/d?": Prior(spread=0.3),
    # The mean throttles differ by 5 % from rotor to rotor, as with the centre of mass a millimetre off.
    "object/crazyflie/log_cholesky/t?": Prior(spread=0.003),
    DRAG: Prior(spread=0.5, relative=True),
    "rotors/all/damping": Prior(spread=1e-4),
}
FACTOR = 9.81 / 9.18
PUBLISHED_THRUST = (0.0213, -0.0112, 0.1201)  # N, of throttle squared, throttle and 1 the other way round
PUBLISHED_INERTIA = (1.029e-5, 1.105e-5)  # kg·m² about x and y
_SOURCE = "published, its accelerometer's factor 9.18 put right to 9.81"
_THROTTLES = (0.45, 0.6, 0.75)  # the middle nine tenths of the throttles flown lie between 0.45 and 0.8
_HZ = 250.0
_PIECE, _FOURTH = 4.0, 4  # s of flight, of which one piece in four is held out
_FLYING, _EDGE = 0.2, 3.0  # least mean throttle in flight; s from take-off and to landing that are left out
_TURNING = 1.0  # rad/s, RMS rate about the horizontal axes from which on a flight counts as turned about
LIFT = ReplayOptions(window=0.5, start="measured", compare=("acceleration/imu",))
TURN = ReplayOptions(window=0.25, start="measured", compare=("angular_velocity/imu",), local={"spin": 0.1})
BOTH = replace(LIFT, window=0.25, compare=("acceleration/imu", "angular_velocity/imu"))
_MANY = 10_000


class Crazyflie:
    """See `RealCase`."""

    name = "crazyflie_sysid"
    twin = "crazyflie"
    baseline = "the published figures themselves"
    split_rule = "figures are the fit's own; one in four pieces of 4 s of the last flight is held out"

    def split(self, episodes: Sequence[Episode]) -> tuple[list[Episode], list[Episode]]:
        """See `RealCase`."""
        *before, last = episodes
        begin, end = _flight(last)
        cuts = np.arange(begin, end, _PIECE)
        pieces = [_between(last, float(cut), min(float(cut) + _PIECE, end)) for cut in cuts]
        training = [piece for number, piece in enumerate(pieces) if number % _FOURTH != _FOURTH - 1]
        return [*before, *training], pieces[_FOURTH - 1 :: _FOURTH]

    def fit(self, training: Sequence[Episode], backend: Backend) -> Fitted:
        """See `RealCase`."""
        flights = airborne(training)
        lift = _identify(flights, LIFT, (*THRUST, *LAGS), {}, backend)
        turning = [flight for flight in flights if _turned(flight) > _TURNING] or flights
        known = {name: lift.values[name] for name in THRUST}
        result = _identify(turning, TURN, (*LAGS, *STRETCH, *CENTRE, DRAG, "rotors/all/damping"), known, backend)
        extra = {"lift": lift.distribution.to_json(), "turning_flights": len(turning)}
        return Fitted(values={**known, **result.values}, result=result, notes=_notes(lift, result), extra=extra)

    def score(self, fitted: Fitted | None, test: Sequence[Episode], backend: Backend) -> list[Score]:
        """See `RealCase`."""
        if fitted is None or fitted.result is None:
            return [*_thrusts(None), *_inertias(None), _yaw(None), *_errors(fitted, test, backend)]
        lift = ParamDistribution.from_json(fitted.extra["lift"])
        inertias = _inertias(fitted.result.distribution)
        return [*_thrusts(lift), *inertias, _yaw(fitted), *_errors(fitted, test, backend)]


def _identify(
    flights: Sequence[Episode],
    options: ReplayOptions,
    free: tuple[str, ...],
    known: Mapping[str, float],
    backend: Backend,
) -> IdentifyResult:
    """A fit of some parameters to some readings, others being known."""
    config = FitConfig(
        replay=options, free=free, fixed=known, priors=PRIORS, walk=_MANY, width=3.0, polish=0, physics_hz=2 * _HZ
    )
    return identify(load_twin(Crazyflie.twin), flights, backend=backend, config=config)


def _turned(flight: Episode) -> float:
    """RMS rate about the horizontal axes, rad/s."""
    rates = flight.signals["angular_velocity/imu"].values[:, :2]
    return float(np.sqrt(np.mean(rates**2)))


def airborne(episodes: Sequence[Episode]) -> list[Episode]:
    """Flights without take-off and landing, on a uniform grid; numbered 0 and up."""
    pieces = []
    for episode in episodes:
        pieces += resample(_between(episode, *_flight(episode)), _HZ)
    return [replace(piece, index=number) for number, piece in enumerate(pieces)]


def _flight(episode: Episode) -> tuple[float, float]:
    """From when to when a flight is neither taking off nor landing, in s; a log may begin or end in flight."""
    motor = episode.signals["motor"]
    flying = motor.values.mean(axis=1) > _FLYING
    first, last = np.flatnonzero(flying)[[0, -1]]
    begin = motor.time[first] + (_EDGE if first else 0.0)
    return float(begin), float(motor.time[last] - (_EDGE if last < len(flying) - 1 else 0.0))


def _between(episode: Episode, begin: float, end: float) -> Episode:
    """Part of an episode, on its own clock."""

    def rows(time: NDArray[np.float64]) -> NDArray[np.bool_]:
        return (time >= begin) & (time <= end)

    kept = rows(episode.time)
    signals = {
        name: replace(signal, time=signal.time[rows(signal.time)], values=signal.values[rows(signal.time)])
        for name, signal in episode.signals.items()
    }
    return replace(
        episode, time=episode.time[kept], action=episode.action[kept], state=episode.state[kept], signals=signals
    )


def _half(distribution: ParamDistribution, gradient: dict[str, float]) -> float:
    """95 % half-width of a function of the parameters by its gradient where the solver walks."""
    slope = np.array([gradient.get(name, 0.0) for name in distribution.names])
    return 1.96 * math.sqrt(float(slope @ distribution.covariance @ slope))


def _thrusts(distribution: ParamDistribution | None) -> list[Score]:
    """The thrust curve at some throttles, with its band."""
    scores = []
    for throttle in _THROTTLES:
        powers = (1.0, throttle, throttle**2)
        published = FACTOR * float(np.dot(powers, PUBLISHED_THRUST))
        name, half, value = f"thrust of a rotor at throttle {throttle:g}", math.nan, published
        if distribution is not None:
            value = sum(distribution.estimate[key] * p for key, p in zip(THRUST, powers, strict=True))
            half = _half(distribution, dict(zip(THRUST, powers, strict=True)))
        scores.append(_within(name, "N", value, half, published))
    return scores


def _inertias(distribution: ParamDistribution | None) -> list[Score]:
    """Inertia about x and y; log-Cholesky stretches scale second moments: I_xx = S_y + S_z."""
    twin, scores = load_twin(Crazyflie.twin), []
    for axis in (0, 1):
        published = FACTOR * PUBLISHED_INERTIA[axis]
        value, half = published, math.nan
        if distribution is not None:
            found = body_inertial(twin, twin.table(1, distribution.estimate), "crazyflie")
            value = float(inertia_matrix(found)[0, axis, axis])
            moments = 0.5 * np.trace(inertia_matrix(found)[0]) - np.diag(inertia_matrix(found)[0])
            known = dict(zip(distribution.names, distribution.determined, strict=True))
            told = {STRETCH[0], STRETCH[1]} - {STRETCH[axis]}  # the body is thin: S_z hardly counts
            slopes = {key: 2.0 * float(moments[i]) for i, key in enumerate(STRETCH) if i != axis and known[key]}
            half = _half(distribution, slopes) if told <= slopes.keys() else math.nan
        scores.append(_within(f"inertia about {'xy'[axis]}", "kg·m²", value, half, published))
    return scores


def _within(name: str, unit: str, value: float, half: float, published: float) -> Score:
    return Score(
        name=name,
        unit=unit,
        value=value,
        low=value - half,
        high=value + half,
        target=published,
        source=_SOURCE,
        kind="within",
    )


def _yaw(fitted: Fitted | None) -> Score:
    """Inertia about z: not determined where the data leave the rotors' drag, or the body's thickness, open."""
    value = math.nan
    if fitted is not None and fitted.result is not None:
        open_ = {row.name for row in fitted.result.estimates if not row.determined}
        if not {DRAG, STRETCH[2]} & open_:
            twin = load_twin(Crazyflie.twin)
            found = body_inertial(twin, twin.table(1, fitted.values), "crazyflie")
            value = float(inertia_matrix(found)[0, 2, 2])
    return Score(name="inertia about z", unit="kg·m²", value=value, kind="undetermined", source="no yaw was flown")


def _errors(fitted: Fitted | None, test: Sequence[Episode], backend: Backend) -> list[Score]:
    """RMS error of replayed readings in windows of 0.25 s from the gyroscope's first rates."""
    twin = load_twin(Crazyflie.twin)
    logs = prepare_replay(twin, airborne(test), BOTH)
    read = replay(backend, logs, logs.twin.table(1, {} if fitted is None else fitted.values))[0]
    error = np.sqrt(np.nanmean((read - logs.measured) ** 2, axis=(0, 1)))
    chosen = {"acceleration/imu/z": "m/s²", "angular_velocity/imu/x": "rad/s", "angular_velocity/imu/y": "rad/s"}
    at = [channel.name for channel in logs.channels]
    return [
        Score(name=f"RMS {name}, 0.25 s windows", unit=unit, value=float(error[at.index(name)]))
        for name, unit in chosen.items()
    ]


def _notes(lift: IdentifyResult, turn: IdentifyResult) -> tuple[str, ...]:
    lags = [f"{1e3 * found.values[LAGS[0]]:.0f} + {1e3 * found.values[LAGS[1]]:.0f} ms" for found in (lift, turn)]
    return (
        "Published figures are multiplied by 9.81 / 9.18.",
        f"Lags: {lags[0]} from throttle to acceleration, {lags[1]} to rates.",
        "The published inertia assumes one lag and no damping, and puts all errors into the torque: docs/real_arms.md.",
    )


CASE = Crazyflie()
