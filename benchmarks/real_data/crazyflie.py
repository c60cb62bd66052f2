"""Fit the Crazyflie's thrust curve, and its inertia about the axes about which the flights rotate it.

The logs contain an inertial unit and throttles. A window starts at the gyroscope's rates. Its attitude does not matter,
because no reading in the body's axes depends on it. First the thrust is fitted to the vertical acceleration of all
flights. Then, with this thrust, the inertia is fitted to the rates of those flights that rotate the drone. In other
flights small differences between rotors are the only torque.

The published thrust curve is based on accelerations that are too small: its notebook multiplies the vertical
accelerometer, which is in g, by 9.18 instead of 9.81, and thrusts and torques are proportional to it. Published values
are compared after correction by that factor (`FACTOR`); a drone at rest in these logs reads 9.81 m/s².
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.real_data.arm_windows import between, body_inertial, inertia_matrix
from benchmarks.real_data.case import Candidate, Constant, Errors, Fitted, Fold, RealCase, grouped, leave_one_out
from twinloop.core.distribution import ParamDistribution
from twinloop.core.records import Episode
from twinloop.dataset.logs.resampling import resample
from twinloop.identify import FitConfig, IdentifyResult, identify
from twinloop.simulate import Backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayOptions, prepare_replay
from twinloop.twin import load_twin
from twinloop.twin.quantities import Prior

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
    # The mean throttles differ by 5 % from rotor to rotor, as if the centre of mass were 1 mm off.
    "object/crazyflie/log_cholesky/t?": Prior(spread=0.003),
    DRAG: Prior(spread=0.5, relative=True),
    "rotors/all/damping": Prior(spread=1e-4),
}
FACTOR = 9.81 / 9.18
PUBLISHED_THRUST = (0.0213, -0.0112, 0.1201)  # N, coefficients of 1, throttle and throttle²
PUBLISHED_INERTIA = (1.029e-5, 1.105e-5)  # kg·m² about x and y
_THROTTLES = (0.45, 0.5, 0.6, 0.75)  # 90 % of the flown throttles are between 0.45 and 0.8
_HZ = 250.0
_PIECE, _THIRD = 4.0, 3  # length of a piece of flight in s; every third piece is held out
_SHORTEST = 0.5  # s
_NUMBER = "piece"  # name of the condition with the number of a piece
_FLYING, _EDGE = 0.2, 3.0  # smallest mean throttle in flight; s after take-off and before landing that are excluded
_TURNING = 1.0  # rad/s, smallest RMS rate about the horizontal axes of a flight that is used for the inertia
LIFT = ReplayOptions(window=0.5, start="measured", compare=("acceleration/imu",))
TURN = ReplayOptions(window=0.25, start="measured", compare=("angular_velocity/imu",), local={"spin": 0.1})
BOTH = replace(LIFT, window=0.25, compare=("acceleration/imu", "angular_velocity/imu"))
TURN_AND_LIFT = replace(BOTH, local=TURN.local)
_COMPARED = {"acceleration/imu/z": "m/s²", "angular_velocity/imu/x": "rad/s", "angular_velocity/imu/y": "rad/s"}
_ALL_WINDOWS = 10_000


# Which readings the two lags from throttle to thrust are fitted to: each sensor has its own filter.
TOGETHER, APART, LIFTED = "one fit of acceleration and rates", "lags of the rates", "lags of the acceleration"


class Crazyflie(RealCase):
    """See `RealCase`."""

    name = "crazyflie_sysid"
    twin = "crazyflie"
    rule = "every third piece of 4 s of the last flight is held out, three times"
    candidates = tuple(Candidate(name=name, structure=name) for name in (LIFTED, APART, TOGETHER))

    def folds(self, episodes: Sequence[Episode]) -> list[Fold]:
        """See `RealCase`; all flights except the last are always fitted."""
        *before, last = episodes
        begin, end = _flight(last)
        cuts = np.arange(begin, end - _SHORTEST, _PIECE)
        pieces = [
            replace(between(last, float(cut), min(float(cut) + _PIECE, end)), conditions={_NUMBER: float(number)})
            for number, cut in enumerate(cuts)
        ]
        return _leave_out_pieces(before, pieces)

    def inner_folds(self, training: Sequence[Episode]) -> list[Fold]:
        """See `RealCase`; pieces that are held out together stay together."""
        pieces = [episode for episode in training if _NUMBER in episode.conditions]
        whole = [episode for episode in training if _NUMBER not in episode.conditions]
        return _leave_out_pieces(whole, pieces) if pieces else self.folds(training)

    def fit(self, training: Sequence[Episode], structure: str, backend: Backend) -> Fitted:
        """See `RealCase`."""
        flights = airborne(training)
        turning = [flight for flight in flights if _horizontal_rate(flight) > _TURNING] or flights
        lift = _identify(flights, LIFT, (*THRUST, *LAGS), {}, backend)
        known = {name: lift.values[name] for name in (*THRUST, *(LAGS if structure == LIFTED else ()))}
        free = (*STRETCH, *CENTRE, DRAG, "rotors/all/damping")
        if structure == TOGETHER:
            result = _identify(turning, TURN_AND_LIFT, (*LAGS, *free), known, backend)
        else:
            result = _identify(turning, TURN, free if structure == LIFTED else (*LAGS, *free), known, backend)
        extra = {"lift": lift.distribution.to_json(), "turning_flights": len(turning)}
        return Fitted(values={**known, **result.values}, result=result, notes=_notes(lift, result), extra=extra)

    def errors(self, fitted: Fitted, test: Sequence[Episode], backend: Backend) -> Errors:
        """Return RMS errors of replayed readings in windows of 0.25 s that start from the gyroscope's rates."""
        logs = prepare_replay(load_twin(self.twin), airborne(test), BOTH)
        read = replay(backend, logs, logs.twin.table(1, fitted.values))[0]
        squares = np.nanmean((read - logs.measured) ** 2, axis=1)
        at = [channel.name for channel in logs.channels]
        return Errors(
            names=tuple(f"RMS {name}, 0.25 s windows" for name in _COMPARED),
            units=tuple(_COMPARED.values()),
            values=squares[:, [at.index(name) for name in _COMPARED]],
            weights=np.ones(len(squares)),
            squared=True,
        )

    def constants(self, fitted: Fitted) -> list[Constant]:
        """See `RealCase`."""
        if fitted.result is None:
            return []
        lift = ParamDistribution.from_json(fitted.extra["lift"])
        return [*_thrusts(lift), *_inertias(fitted.result.distribution), _yaw(fitted)]


def _leave_out_pieces(whole: Sequence[Episode], pieces: Sequence[Episode]) -> list[Fold]:
    """Make folds that hold out every third piece and train on all other pieces and the whole flights."""
    groups = grouped(pieces, [f"pieces {piece.conditions[_NUMBER] % _THIRD + 1:g}, …" for piece in pieces])
    return [replace(fold, training=[*whole, *fold.training]) for fold in leave_one_out(groups)]


def _identify(
    flights: Sequence[Episode],
    options: ReplayOptions,
    free: tuple[str, ...],
    known: Mapping[str, float],
    backend: Backend,
) -> IdentifyResult:
    """Fit the parameters ``free`` to the readings of ``options``, with the ``known`` values fixed."""
    config = FitConfig(
        replay=options,
        free=free,
        fixed=known,
        priors=PRIORS,
        walk=_ALL_WINDOWS,
        width=3.0,
        polish=0,
        physics_hz=2 * _HZ,
    )
    return identify(load_twin(Crazyflie.twin), flights, backend=backend, config=config)


def _horizontal_rate(flight: Episode) -> float:
    """Return the RMS rate about the horizontal axes, rad/s."""
    rates = flight.signals["angular_velocity/imu"].values[:, :2]
    return float(np.sqrt(np.mean(rates**2)))


def airborne(episodes: Sequence[Episode]) -> list[Episode]:
    """Return flights excluding take-off and landing, resampled uniformly and numbered from 0."""
    pieces = []
    for episode in episodes:
        pieces += resample(between(episode, *_flight(episode)), _HZ)
    return [replace(piece, index=number) for number, piece in enumerate(pieces)]


def _flight(episode: Episode) -> tuple[float, float]:
    """Return begin and end in s of a flight between take-off and landing; a log may begin or end in flight."""
    motor = episode.signals["motor"]
    flying = motor.values.mean(axis=1) > _FLYING
    first, last = np.flatnonzero(flying)[[0, -1]]
    begin = motor.time[first] + (_EDGE if first else 0.0)
    return float(begin), float(motor.time[last] - (_EDGE if last < len(flying) - 1 else 0.0))


def _half(distribution: ParamDistribution, gradient: dict[str, float]) -> float:
    """Return the 95 % half width of a function of the parameters, given its gradient in the solver's coordinates."""
    slope = np.array([gradient.get(name, 0.0) for name in distribution.names])
    return 1.96 * math.sqrt(float(slope @ distribution.covariance @ slope))


def _thrusts(distribution: ParamDistribution) -> list[Constant]:
    """Return the fitted thrust curve at some throttles."""
    found = []
    for throttle in _THROTTLES:
        powers = (1.0, throttle, throttle**2)
        found.append(
            Constant(
                name=f"thrust of a rotor at throttle {throttle:g}",
                unit="N",
                value=sum(distribution.estimate[key] * p for key, p in zip(THRUST, powers, strict=True)),
                half=_half(distribution, dict(zip(THRUST, powers, strict=True))),
                published=FACTOR * float(np.dot(powers, PUBLISHED_THRUST)),
            )
        )
    return found


def _inertias(distribution: ParamDistribution) -> list[Constant]:
    """Return the inertia about x and y; log-Cholesky stretches scale second moments S: I_xx = S_y + S_z."""
    twin, constants = load_twin(Crazyflie.twin), []
    inertia = inertia_matrix(body_inertial(twin, twin.table(1, distribution.estimate), "crazyflie"))[0]
    moments = 0.5 * np.trace(inertia) - np.diag(inertia)
    known = dict(zip(distribution.names, distribution.determined, strict=True))
    for axis in (0, 1):
        required = {STRETCH[0], STRETCH[1]} - {STRETCH[axis]}  # the body is thin, so that S_z has little effect
        slopes = {key: 2.0 * float(moments[i]) for i, key in enumerate(STRETCH) if i != axis and known[key]}
        constants.append(
            Constant(
                name=f"inertia about {'xy'[axis]}",
                unit="kg·m²",
                value=float(inertia[axis, axis]),
                half=_half(distribution, slopes) if required <= slopes.keys() else math.nan,
                published=FACTOR * PUBLISHED_INERTIA[axis],
            )
        )
    return constants


def _yaw(fitted: Fitted) -> Constant:
    """Return the inertia about z; NaN if the data determine neither the rotors' drag nor the body's thickness."""
    value = math.nan
    if fitted.result is not None and not {DRAG, STRETCH[2]} & {
        row.name for row in fitted.result.estimates if not row.determined
    }:
        twin = load_twin(Crazyflie.twin)
        found = body_inertial(twin, twin.table(1, fitted.values), "crazyflie")
        value = float(inertia_matrix(found)[0, 2, 2])
    return Constant(name="inertia about z", unit="kg·m²", value=value)


def _notes(lift: IdentifyResult, turn: IdentifyResult) -> tuple[str, ...]:
    lags = [
        f"{1e3 * found[LAGS[0]]:.0f} + {1e3 * found[LAGS[1]]:.0f} ms"
        for found in (lift.values, {**lift.values, **turn.values})
    ]
    return (
        "Published values are multiplied by 9.81 / 9.18.",
        f"Lags: {lags[0]} from throttle to acceleration, {lags[1]} to rates.",
        (
            "The published inertia assumes one lag and no damping, and puts all errors into the torque: "
            "docs/evidence/real_data.md."
        ),
    )


CASE = Crazyflie()
