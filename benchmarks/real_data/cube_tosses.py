"""Fit ContactNets' cube, tossed by hand onto a table, by replay of whole tosses from the first measured pose and twist.

In the recordings' units objects fall at 9.6 m/s² and the cube rests 2 % lower than half its side, as if the metre were
2 % short. Therefore gravity, size and the table's height are free. The cube is a printed block with a tag on each face
and unknown mass distribution, so its moments of inertia and its centre of mass are free too. They matter as much as
friction.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
from benchmarks.real_data.free_flight import flight_errors, with_speeds_at_frames
from twinloop.core.records import Episode
from twinloop.identify import FitConfig, identify
from twinloop.simulate import Backend
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.twin import load_twin
from twinloop.twin.quantities import Prior

WIDTH = 0.1048  # m, the cube's side
PHYSICS_HZ = 592.0  # four steps to a frame: sixteen change the mean errors by 3 % at most and take four times as long
REPLAY = ReplayOptions(start="measured", compare=("pose_error/cube",), contacts=True)
PRIORS = {
    # Published: friction 0.18, restitution 0.125. A deviation by half is plausible.
    "object/cube/friction/slide": Prior(spread=0.06),
    "object/cube/contact/stiffness": Prior(spread=0.7),
    "object/cube/contact/damping_ratio": Prior(spread=0.3),
    "object/cube/contact/impedance/*": Prior(spread=0.03),
    # Scale error of the recordings: 2 % of lengths and of gravity.
    "object/cube/size": Prior(spread=0.02),
    "world/gravity/magnitude": Prior(spread=0.3),
    "geom/table/position/z": Prior(spread=0.001),
    "world/gravity/tilt_?": Prior(spread=0.005),
    # A shell has 5/3 of a full cube's moments; the published inertia lies between.
    "object/cube/inertia/*": Prior(spread=0.25),
    "object/cube/com/*": Prior(spread=0.003),
}
_SEARCH_TOSSES = 50  # tosses used by the search, to limit its time


class CubeTosses(RealCase):
    """See `RealCase`."""

    name = "contactnets_cube_tosses"
    twin = "cube_toss"
    rule = "every second toss is held out"
    candidates = (Candidate(name="contact, size, gravity and inertia"),)

    def folds(self, episodes: Sequence[Episode]) -> list[Fold]:
        """See `RealCase`."""
        return leave_one_out(grouped(episodes, [("even tosses", "odd tosses")[i % 2] for i in range(len(episodes))]))

    def fit(self, training: Sequence[Episode], structure: str, backend: Backend) -> Fitted:  # noqa: ARG002
        """See `RealCase`."""
        config = FitConfig(
            replay=REPLAY,
            free=tuple(PRIORS),
            priors=PRIORS,
            walk=_SEARCH_TOSSES,
            physics_hz=PHYSICS_HZ,
            search="cma",
            starts=1,
            generations=30,
            population=12,
            iterations=5,
            rescale=0,
            polish=0,
        )
        chosen = np.unique(np.linspace(0, len(training) - 1, min(_SEARCH_TOSSES, len(training))).round().astype(int))
        result = identify(
            load_twin(self.twin), _with_corrected_speeds([training[i] for i in chosen]), backend=backend, config=config
        )
        return Fitted(values=dict(result.values), result=result)

    def errors(self, fitted: Fitted, test: Sequence[Episode], backend: Backend) -> Errors:
        """Return mean errors over whole tosses."""
        twin = load_twin(self.twin)
        errors = flight_errors(
            twin, _with_corrected_speeds(test), REPLAY, fitted.values, backend, physics_hz=PHYSICS_HZ
        )
        sizes = np.stack([100.0 * errors[:, 0] / WIDTH, np.degrees(errors[:, 1])], axis=1)
        return mean_errors(sizes, ["mean position", "mean rotation"], ["% of width", "deg"])


def _with_corrected_speeds(episodes: Sequence[Episode]) -> list[Episode]:
    return [with_speeds_at_frames(episode, "twist/cube", "vz") for episode in episodes]


CASE = CubeTosses()
