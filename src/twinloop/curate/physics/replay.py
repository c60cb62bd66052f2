"""How well a twin foretells a recorded episode: replays in short windows, beside the other episodes' replays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from twinloop.curate.check import Measured
from twinloop.curate.judging import UsualLimitCheck
from twinloop.curate.physics.kinematics import params_of
from twinloop.curate.recording import Recording
from twinloop.curate.registry import Twins
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayLogs, ReplayOptions, prepare_replay
from twinloop.twin import Twin

_WINDOW_S = 0.5  # long enough for a servo to answer (0.17 s), short enough that errors are of the moment
_NOISE = 0.01  # of a joint's travel: play in the gears and stiction, which move a joint although no twin foretells it


class ReplayResidual(UsualLimitCheck):
    """The replay's error over the movement in windows of half a second, joint by joint.

    A twin that was not fitted errs in every episode; only an episode in which it errs far more than in the others is
    suspect.
    """

    reads = frozenset({"raw"})

    name = "physics/replay"
    meaning = "the twin foretells this episode far worse than the others: its dynamics were not the same"
    unit = "of the movement"
    floor, spread = 0.25, 0.15

    def __init__(self, twins: Twins) -> None:
        self._twins = twins

    def measure(self, recording: Recording) -> Sequence[Measured]:
        """See `MeasuringCheck`."""
        twin = self._twins(recording)
        episode = recording.episode
        if episode.command != twin.robot.control:
            return [Measured(value=None, said=f"{twin.name} is not commanded by a {episode.command}.")]
        return _residuals(twin, recording)


def _residuals(twin: Twin, recording: Recording) -> list[Measured]:
    episode = recording.episode
    logs = prepare_replay(twin, [episode], ReplayOptions(window=_WINDOW_S, start="measured"))
    params = params_of(recording, twin) or twin.table(1)
    errors = replay(open_backend("threads", nthread=1), logs, params)[0] - logs.measured
    moved = logs.held - logs.measured
    travel = _travel(twin, logs)
    made = []
    for column, channel in enumerate(logs.channels):
        error, size = errors[..., column], moved[..., column]
        if not np.isfinite(error[np.isfinite(size)]).all():
            made.append(Measured(value=1e3, channel=channel.name, said=f"The replay of {channel.name} diverges."))
            continue
        moves = float(np.nanmax(logs.measured[..., column]) - np.nanmin(logs.measured[..., column]))
        least = _NOISE * max(moves, travel.get(channel.name, 0.0))
        rms, movement = float(np.sqrt(np.nanmean(error**2))), float(np.sqrt(np.nanmean(size**2)))
        value = rms / (movement + least) if movement + least > 0 else 0.0
        worst = int(np.argmax(np.nanmean(error**2, axis=1)))
        frame = int(np.searchsorted(episode.time, logs.begins[worst] - 1e-9))
        said = f"The replay of {channel.name} errs by {100 * value:.0f} % of its movement, most from frame {frame} on."
        made.append(Measured(value=value, channel=channel.name, said=said, first_frame=frame))
    return made


def _travel(twin: Twin, logs: ReplayLogs) -> dict[str, float]:
    """Return how far each joint with ends can move, by the name of its channel and in its unit."""
    joints = [twin.model.joint(name) for name in twin.robot.joints]
    low, high = logs.units.from_si(np.array([joint.range for joint in joints]).T)
    return {
        f"position/{joint.name}": abs(float(high[i] - low[i]))
        for i, joint in enumerate(joints)
        if twin.model.jnt_limited[joint.id]
    }
