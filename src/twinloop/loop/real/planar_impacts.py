"""Nima Fazeli's planar drops: a square that falls, bounces and slides, replayed whole from its first measured state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from twinloop.core.records import Episode
from twinloop.identify import FitConfig, identify
from twinloop.identify.space import Prior
from twinloop.loop.real.case import Fitted, Score
from twinloop.loop.real.free_flight import Array, flight_errors, with_speeds_at_frames
from twinloop.loop.real.means import mean_score
from twinloop.simulate import Backend
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.twin import load_twin

PHYSICS_HZ = 1000.0  # four steps to a frame, as for the tosses
REPLAY = ReplayOptions(start="measured", contacts=True)
PRIORS = {
    "geom/square/friction/slide": Prior(spread=0.4),
    "geom/square/contact/stiffness": Prior(spread=1.0),
    "geom/square/contact/damping_ratio": Prior(spread=0.3),
    "geom/square/contact/impedance/d0": Prior(spread=0.03),
    "geom/square/contact/impedance/dwidth": Prior(spread=0.02),
    "geom/floor/position/z": Prior(spread=0.0005),
    "sensor/th/offset": Prior(spread=0.01),
    "world/gravity/magnitude": Prior(spread=0.3),
    "world/gravity/tilt_y": Prior(spread=0.005),
    # A frame has up to three times the inertia of a full square.
    "link/square/inertia/?": Prior(spread=0.4),
    "link/square/com/?": Prior(spread=0.001),
}
# The best of 40 draws over the plausible on every second of the shared drops: hard, slippery and springy.
START = {
    "geom/square/friction/slide": 0.14,
    "geom/square/contact/stiffness": 27000.0,
    "geom/square/contact/damping_ratio": 0.3,
    # 58 of 60 drops end at 0.0327 rad (SD 0.0039) less than whole quarter turns, on a floor level to 0.003 rad.
    "sensor/th/offset": 0.0327,
    "world/gravity/magnitude": 9.4,
    "link/square/inertia/x": 1.5,
    "link/square/inertia/z": 1.5,
}
_SEEN = 60


class PlanarImpacts:
    """See `RealCase`."""

    name = "planar_impacts"
    twin = "planar_square"
    baseline = "MuJoCo's default contact parameters"
    split_rule = "every second drop is fitted, the others are scored"

    def split(self, episodes: Sequence[Episode]) -> tuple[list[Episode], list[Episode]]:
        """See `RealCase`."""
        return list(episodes[::2]), list(episodes[1::2])

    def fit(self, training: Sequence[Episode], backend: Backend) -> Fitted:
        """See `RealCase`."""
        config = FitConfig(
            replay=REPLAY,
            free=tuple(PRIORS),
            priors=PRIORS,
            start=START,
            walk=_SEEN,
            physics_hz=PHYSICS_HZ,
            search="cma",
            starts=1,
            generations=45,
            population=16,
            iterations=3,
            rescale=0,
            polish=0,
        )
        result = identify(load_twin(self.twin), _ready(training), backend=backend, config=config)
        return Fitted(values=dict(result.values), result=result)

    def score(self, fitted: Fitted | None, test: Sequence[Episode], backend: Backend) -> list[Score]:
        """See `RealCase`; the target is half of what the default parameters are off by on the same drops."""
        before = _errors(test, {}, backend)
        errors = before if fitted is None else _errors(test, fitted.values, backend)
        half = 0.5 * before.mean(axis=0)
        source = "half of the error with MuJoCo's default contact parameters, same drops"
        return [
            mean_score("mean position", "mm", errors[:, 0], target=float(half[0]), source=source),
            mean_score("mean angle, turns counted", "deg", errors[:, 1], target=float(half[1]), source=source),
        ]


def _errors(test: Sequence[Episode], values: Mapping[str, float], backend: Backend) -> Array:
    """Mean distance in mm and angle in degrees of each drop, ``(ndrop, 2)``."""
    return flight_errors(
        load_twin(PlanarImpacts.twin), _ready(test), REPLAY, values, backend, physics_hz=PHYSICS_HZ, sizes=_sizes
    )


def _sizes(residual: Array) -> Array:
    """Of x, z in m and the angle in rad."""
    return np.stack([1e3 * np.hypot(residual[..., 0], residual[..., 1]), np.degrees(np.abs(residual[..., 2]))], axis=-1)


def _ready(episodes: Sequence[Episode]) -> list[Episode]:
    """With speeds of their frames; nothing drives a drop, so its commands are torques of zero."""
    return [replace(with_speeds_at_frames(e, "joint_velocity", "z"), command="torque") for e in episodes]


CASE = PlanarImpacts()
