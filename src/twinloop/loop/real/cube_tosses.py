"""ContactNets' cube: tossed by hand onto a table, replayed whole from the first frame's measured pose and twist.

In the recordings' units things fall at 9.6 m/s² and the cube rests 2 % lower than half its side, as if their metre were
2 % short: gravity and size are free, and the table's height. The cube is a printed block with a tag on each face, of
unknown balance: so are its moments of mass and its centre, which matter as much as friction.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from twinloop.core.records import Episode
from twinloop.identify import FitConfig, identify
from twinloop.identify.space import Prior
from twinloop.loop.real.case import Fitted, Score
from twinloop.loop.real.free_flight import flight_errors, with_speeds_at_frames
from twinloop.loop.real.means import mean_score
from twinloop.simulate import Backend
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.twin import load_twin

WIDTH = 0.1048  # m, the cube's side
PHYSICS_HZ = 592.0  # four steps to a frame: sixteen change the mean errors by 3 % at most and take four times as long
REPLAY = ReplayOptions(start="measured", compare=("pose_error/cube",), contacts=True)
PRIORS = {
    # Published: friction 0.18, restitution 0.125. Half of either more or less would not surprise.
    "object/cube/friction/slide": Prior(spread=0.06),
    "object/cube/contact/stiffness": Prior(spread=0.7),
    "object/cube/contact/damping_ratio": Prior(spread=0.3),
    "object/cube/contact/impedance/*": Prior(spread=0.03),
    # The recordings' scale, twice over: 2 % of lengths and of gravity.
    "object/cube/size": Prior(spread=0.02),
    "world/gravity/magnitude": Prior(spread=0.3),
    "geom/table/position/z": Prior(spread=0.001),
    "world/gravity/tilt_?": Prior(spread=0.005),
    # A shell has 5/3 of a full cube's moments; the published inertia lies between.
    "object/cube/inertia/*": Prior(spread=0.25),
    "object/cube/com/*": Prior(spread=0.003),
}
# Where the search begins: the published friction, the contact that bounces as published, the scale that falls tell.
START = {"object/cube/size": 0.98, "world/gravity/magnitude": 9.61}
_SEEN = 120  # tosses that the search sees; more change the estimate by less than tosses differ
_SOURCE = "friction and solref fitted by least squares to 100 tosses, scored on 200 others"


class CubeTosses:
    """See `RealCase`."""

    name = "contactnets_cube_tosses"
    twin = "cube_toss"
    baseline = "MuJoCo's default friction 1, all else as published"
    split_rule = "every third toss is fitted, the others are scored"

    def split(self, episodes: Sequence[Episode]) -> tuple[list[Episode], list[Episode]]:
        """See `RealCase`."""
        return list(episodes[::3]), [episode for i, episode in enumerate(episodes) if i % 3]

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
            generations=40,
            population=12,
            iterations=5,
            rescale=0,
            polish=0,
        )
        chosen = np.unique(np.linspace(0, len(training) - 1, min(_SEEN, len(training))).round().astype(int))
        result = identify(load_twin(self.twin), _ready([training[i] for i in chosen]), backend=backend, config=config)
        return Fitted(values=dict(result.values), result=result)

    def score(self, fitted: Fitted | None, test: Sequence[Episode], backend: Backend) -> list[Score]:
        """See `RealCase`: mean errors over whole tosses, averaged over tosses."""
        values = {"object/cube/friction/slide": 1.0} if fitted is None else fitted.values
        errors = flight_errors(load_twin(self.twin), _ready(test), REPLAY, values, backend, physics_hz=PHYSICS_HZ)
        return [
            mean_score("mean position", "% of width", 100.0 * errors[:, 0] / WIDTH, target=14.6, source=_SOURCE),
            mean_score("mean rotation", "deg", np.degrees(errors[:, 1]), target=17.8, source=_SOURCE),
        ]


def _ready(episodes: Sequence[Episode]) -> list[Episode]:
    return [with_speeds_at_frames(episode, "twist/cube", "vz") for episode in episodes]


CASE = CubeTosses()
