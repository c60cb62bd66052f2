"""Fit Nima Fazeli's planar drops: a square that falls, bounces and slides, predicted from its first measured state.

A bounce amplifies the error of the first state, whose velocities are differences of positions. So a prediction may be
the median of many flights: first states are drawn with the scatter that the logged velocities of the training drops
have in free fall, contact parameters with a spread that we chose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.real_data.case import (
    Array,
    Candidate,
    Errors,
    Fitted,
    Fold,
    RealCase,
    grouped,
    leave_one_out,
    mean_errors,
)
from benchmarks.real_data.free_flight import flight_errors, flight_readings, with_speeds_at_frames
from twinloop.core.records import Episode
from twinloop.core.seeds import generator
from twinloop.identify import FitConfig, identify
from twinloop.randomize.sequences import scrambled_sobol
from twinloop.simulate import Backend
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.twin import load_twin
from twinloop.twin.quantities import Prior

PHYSICS_HZ = 1000.0  # four steps to a frame, as for the tosses
# The corrections of first states are drawn in this module; the deviation in the options only enables them.
REPLAY = ReplayOptions(start="measured", contacts=True)
DRAWN = replace(REPLAY, local={"velocity": 1.0})
_SLIDE, _STIFFNESS, _DAMPING = (
    f"geom/square/{name}" for name in ("friction/slide", "contact/stiffness", "contact/damping_ratio")
)
_ZERO = "sensor/th/offset"
PRIORS = {
    _SLIDE: Prior(spread=0.4),
    _STIFFNESS: Prior(spread=1.0),
    _DAMPING: Prior(spread=0.3),
    "geom/square/contact/impedance/d0": Prior(spread=0.03),
    "geom/square/contact/impedance/dwidth": Prior(spread=0.02),
    "geom/floor/position/z": Prior(spread=0.0005),
    _ZERO: Prior(spread=0.01),
    "world/gravity/magnitude": Prior(spread=0.3),
    "world/gravity/tilt_y": Prior(spread=0.005),
    # A frame has up to three times the inertia of a full square.
    "link/square/inertia/?": Prior(spread=0.4),
    "link/square/com/?": Prior(spread=0.001),
}
# Range of the start of the search, log-uniform: polished steel to rubber, MuJoCo's default contact to one 20 times as
# hard, restitution of about 0.05 to 0.6, a full square to a frame.
BEGINNINGS = {
    _SLIDE: (0.1, 1.0),
    _STIFFNESS: (2.5e3, 5e4),
    _DAMPING: (0.15, 1.2),
    "link/square/inertia/x": (1.0, 3.0),
}
_START_DRAWS = 64  # number of draws from it
SPREADS = {"one flight": None, "median over first states": 0.0, "median over first states and contacts": 0.2}
_FLIGHTS = 32  # number of flights of a median
_STREAM = "loop/real/planar_impacts"
_JOINTS = ("x", "z", "th")
_LEAST_FALL = 6  # frames


class PlanarImpacts(RealCase):
    """See `RealCase`."""

    name = "planar_impacts"
    twin = "planar_square"
    rule = "every second drop is held out"
    candidates = tuple(Candidate(name=name, prediction=name) for name in SPREADS)

    def folds(self, episodes: Sequence[Episode]) -> list[Fold]:
        """See `RealCase`."""
        return leave_one_out(grouped(episodes, [("even drops", "odd drops")[i % 2] for i in range(len(episodes))]))

    def fit(self, training: Sequence[Episode], structure: str, backend: Backend) -> Fitted:  # noqa: ARG002
        """See `RealCase`."""
        config = FitConfig(
            replay=REPLAY,
            free=tuple(PRIORS),
            priors=PRIORS,
            start=beginning(training, backend),
            walk=len(training),
            physics_hz=PHYSICS_HZ,
            search="cma",
            starts=1,
            generations=30,
            population=12,
            iterations=3,
            rescale=0,
            polish=0,
        )
        result = identify(load_twin(self.twin), _with_corrected_speeds(training), backend=backend, config=config)
        scatter = speed_scatter(training).tolist()
        return Fitted(values=dict(result.values), result=result, extra={"scatter": scatter})

    def errors(self, fitted: Fitted, test: Sequence[Episode], backend: Backend) -> Errors:
        """Return mean distance and mean angle over each drop."""
        contacts = SPREADS.get(fitted.prediction)
        if contacts is None:
            values = _replay_errors(test, fitted.values, backend)
        else:
            values = _sizes_of_medians(fitted, test, contacts, backend)
        return mean_errors(values, ["mean position", "mean angle, turns counted"], ["mm", "deg"])


def beginning(training: Sequence[Episode], backend: Backend) -> dict[str, float]:
    """Return the start of the search: the best of some draws from `BEGINNINGS` on the training drops."""
    low, high = np.log(np.array(list(BEGINNINGS.values()))).T
    drawn = np.exp(low + (high - low) * scrambled_sobol(np.arange(_START_DRAWS, dtype=np.int64), len(low), run_seed=0))
    points = []
    for row in drawn:
        point = {name: float(value) for name, value in zip(BEGINNINGS, row, strict=True)}
        points.append({**point, "link/square/inertia/z": point["link/square/inertia/x"], _ZERO: rest_zero(training)})
    columns = {name: np.array([point[name] for point in points]) for name in points[0]}
    logs, readings = flight_readings(
        load_twin(PlanarImpacts.twin), _with_corrected_speeds(training), REPLAY, columns, backend, physics_hz=PHYSICS_HZ
    )
    size = np.nanmean(_error_sizes(readings - logs.measured), axis=(1, 2))
    return points[int(np.argmin(np.sum(size / size.min(axis=0), axis=1)))]


def rest_zero(training: Sequence[Episode]) -> float:
    """Return the encoder offset in rad: the median deviation of resting squares from whole quarter turns."""
    quarter = 0.5 * math.pi
    ends = np.array([episode.state[-1, 2] for episode in training])
    return float(np.median((0.5 * quarter - ends) % quarter - 0.5 * quarter))


def speed_scatter(training: Sequence[Episode]) -> Array:
    """Return the scatter of logged velocities in free fall, ``(3,)`` in m/s and rad/s.

    It is the median over drops of the standard deviation about a linear trend.
    """
    found = []
    for episode in training:
        speeds = episode.signals["joint_velocity"].values
        rising = np.diff(speeds[:, 1]) > 0.0
        falling = int(np.argmax(rising)) if rising.any() else len(speeds)
        if falling >= _LEAST_FALL:
            frames = np.arange(falling)
            trend = np.polyval(np.polyfit(frames, speeds[:falling], 1), frames[:, None])
            found.append(np.std(speeds[:falling] - trend, axis=0, ddof=2))
    return np.median(found, axis=0) if found else np.zeros(len(_JOINTS))


def _sizes_of_medians(fitted: Fitted, test: Sequence[Episode], contacts: float, backend: Backend) -> Array:
    """Return mean distance in mm and angle in degrees of each drop from the median flight, ``(ndrop, 2)``.

    ``contacts`` is the standard deviation of the logarithms of the contact parameters.
    """
    chance = generator(0, _STREAM)
    local = np.array(fitted.extra["scatter"]) * chance.standard_normal((_FLIGHTS, len(test), len(_JOINTS)))
    factors = np.exp(contacts * chance.standard_normal((_FLIGHTS, 3)))
    twin = load_twin(PlanarImpacts.twin)
    values = {name: np.full(_FLIGHTS, value) for name, value in fitted.values.items()}
    for column, name in enumerate((_SLIDE, _STIFFNESS, _DAMPING)):
        values[name] = np.clip(values[name] * factors[:, column], twin.params[name].low, twin.params[name].high)
    logs, readings = flight_readings(
        twin, _with_corrected_speeds(test), DRAWN, values, backend, physics_hz=PHYSICS_HZ, local=local
    )
    return np.nanmean(_error_sizes(np.median(readings, axis=0) - logs.measured), axis=1)


def _replay_errors(test: Sequence[Episode], values: Mapping[str, float], backend: Backend) -> Array:
    """Return mean distance in mm and angle in degrees of each drop from its replay, ``(ndrop, 2)``."""
    return flight_errors(
        load_twin(PlanarImpacts.twin),
        _with_corrected_speeds(test),
        REPLAY,
        values,
        backend,
        physics_hz=PHYSICS_HZ,
        sizes=_error_sizes,
    )


def _error_sizes(residual: Array) -> Array:
    """Convert residuals of x, z in m and the angle in rad to distance in mm and absolute angle in degrees."""
    return np.stack([1e3 * np.hypot(residual[..., 0], residual[..., 1]), np.degrees(np.abs(residual[..., 2]))], axis=-1)


def _with_corrected_speeds(episodes: Sequence[Episode]) -> list[Episode]:
    """Correct the velocities of the drops; their commands are zero torques because nothing drives a drop."""
    return [replace(with_speeds_at_frames(e, "joint_velocity", "z"), command="torque") for e in episodes]


CASE = PlanarImpacts()
