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
    # The mean throttles differ by 5 % from rotor to rotor, as with the centre of mass a millimetre off.
    "object/crazyflie/log_cholesky/t?": Prior(spread=0.003),
    DRAG: Prior(spread=0.5, relative=True),
    "rotors/all/damping": Prior(spread=1e-4),
}
FACTOR = 9.81 / 9.18
PUBLISHED_THRUST = (0.0213, -0.0112, 0.1201)  # N, of throttle squared, throttle and 1 the other way round
PUBLISHED_INERTIA = (1.029e-5, 1.105e-5)  # kg·m² about x and y
_THROTTLES = (0.45, 0.5, 0.6, 0.75)  # the middle nine tenths of the throttles flown lie between 0.45 and 0.8
_HZ = 250.0
_PIECE, _THIRD = 4.0, 3  # s of a piece of flight, of which every third is left out together
_SHORTEST = 0.5  # s
_NUMBER = "piece"  # condition of a piece: its number in the flight
_FLYING, _EDGE = 0.2, 3.0  # least mean throttle in flight; s from take-off and to landing that are left out
_TURNING = 1.0  # rad/s, RMS rate about the horizontal axes from which on a flight counts as turned about
LIFT = ReplayOptions(window=0.5, start="measured", compare=("acceleration/imu",))
TURN = ReplayOptions(window=0.25, start="measured", compare=("angular_velocity/imu",), local={"spin": 0.1})
BOTH = replace(LIFT, window=0.25, compare=("acceleration/imu", "angular_velocity/imu"))
TURN_AND_LIFT = replace(BOTH, local=TURN.local)
_COMPARED = {"acceleration/imu/z": "m/s²", "angular_velocity/imu/x": "rad/s", "angular_velocity/imu/y": "rad/s"}
_MANY = 10_000


# Which readings the two lags from throttle to thrust are fitted to: the sensors are filtered apart.
TOGETHER, APART, LIFTED = "one fit of acceleration and rates", "lags of the rates", "lags of the acceleration"


class Crazyflie(RealCase):
    """See `RealCase`."""

    name = "crazyflie_sysid"
    twin = "crazyflie"
    rule = "every third piece of 4 s of the last flight is held out, three times"
    candidates = tuple(Candidate(name=name, structure=name) for name in (LIFTED, APART, TOGETHER))

    def folds(self, episodes: Sequence[Episode]) -> list[Fold]:
        """See `RealCase`; other flights than the last are always fitted."""
        *before, last = episodes
        begin, end = _flight(last)
        cuts = np.arange(begin, end - _SHORTEST, _PIECE)
        pieces = [
            replace(between(last, float(cut), min(float(cut) + _PIECE, end)), conditions={_NUMBER: float(number)})
            for number, cut in enumerate(cuts)
        ]
        return _leave_out_pieces(before, pieces)

    def inner_folds(self, training: Sequence[Episode]) -> list[Fold]:
        """See `RealCase`; pieces that are left out together stay together."""
        pieces = [episode for episode in training if _NUMBER in episode.conditions]
        whole = [episode for episode in training if _NUMBER not in episode.conditions]
        return _leave_out_pieces(whole, pieces) if pieces else self.folds(training)

    def fit(self, training: Sequence[Episode], structure: str, backend: Backend) -> Fitted:
        """See `RealCase`."""
        flights = airborne(training)
        turning = [flight for flight in flights if _turned(flight) > _TURNING] or flights
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
        """RMS error of replayed readings in windows of 0.25 s from the gyroscope's first rates."""
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
    """Folds that leave every third piece out and train on all other pieces and the whole flights."""
    groups = grouped(pieces, [f"pieces {piece.conditions[_NUMBER] % _THIRD + 1:g}, …" for piece in pieces])
    return [replace(fold, training=[*whole, *fold.training]) for fold in leave_one_out(groups)]


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
        pieces += resample(between(episode, *_flight(episode)), _HZ)
    return [replace(piece, index=number) for number, piece in enumerate(pieces)]


def _flight(episode: Episode) -> tuple[float, float]:
    """From when to when a flight is neither taking off nor landing, in s; a log may begin or end in flight."""
    motor = episode.signals["motor"]
    flying = motor.values.mean(axis=1) > _FLYING
    first, last = np.flatnonzero(flying)[[0, -1]]
    begin = motor.time[first] + (_EDGE if first else 0.0)
    return float(begin), float(motor.time[last] - (_EDGE if last < len(flying) - 1 else 0.0))


def _half(distribution: ParamDistribution, gradient: dict[str, float]) -> float:
    """95 % half-width of a function of the parameters by its gradient where the solver walks."""
    slope = np.array([gradient.get(name, 0.0) for name in distribution.names])
    return 1.96 * math.sqrt(float(slope @ distribution.covariance @ slope))


def _thrusts(distribution: ParamDistribution) -> list[Constant]:
    """The thrust curve at some throttles, with its band."""
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
    """Inertia about x and y; log-Cholesky stretches scale second moments: I_xx = S_y + S_z."""
    twin, constants = load_twin(Crazyflie.twin), []
    inertia = inertia_matrix(body_inertial(twin, twin.table(1, distribution.estimate), "crazyflie"))[0]
    moments = 0.5 * np.trace(inertia) - np.diag(inertia)
    known = dict(zip(distribution.names, distribution.determined, strict=True))
    for axis in (0, 1):
        told = {STRETCH[0], STRETCH[1]} - {STRETCH[axis]}  # the body is thin: S_z hardly counts
        slopes = {key: 2.0 * float(moments[i]) for i, key in enumerate(STRETCH) if i != axis and known[key]}
        constants.append(
            Constant(
                name=f"inertia about {'xy'[axis]}",
                unit="kg·m²",
                value=float(inertia[axis, axis]),
                half=_half(distribution, slopes) if told <= slopes.keys() else math.nan,
                published=FACTOR * PUBLISHED_INERTIA[axis],
            )
        )
    return constants


def _yaw(fitted: Fitted) -> Constant:
    """Inertia about z: not determined where the data leave the rotors' drag, or the body's thickness, open."""
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
        "Published figures are multiplied by 9.81 / 9.18.",
        f"Lags: {lags[0]} from throttle to acceleration, {lags[1]} to rates.",
        (
            "The published inertia assumes one lag and no damping, and puts all errors into the torque: "
            "docs/evidence/real_data.md."
        ),
    )


CASE = Crazyflie()
