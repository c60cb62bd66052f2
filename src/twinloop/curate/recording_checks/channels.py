"""Columns that say nothing, and commands that the robot does not follow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from twinloop.curate.check import Measured
from twinloop.curate.judging import UsualLimitCheck
from twinloop.curate.motion import filled
from twinloop.curate.recording import Recording

_NEVER = 1e6  # times less than usual, of a column that does not move at all


class DeadChannel(UsualLimitCheck):
    """Joints, commands and signals that do not move where they move in the other episodes.

    The figure is how many times less a column moves than the widest one beside it: what never moves anywhere is usual.
    """

    reads = frozenset({"raw"})

    name = "recording/dead_channel"
    meaning = "a column of states, commands or signals does not change, though it does in the other episodes"
    unit = "times less"
    floor, spread = 200.0, 0.3

    def measure(self, recording: Recording) -> Sequence[Measured]:
        """See `MeasuringCheck`."""
        raw = recording.raw
        tables = {"": (raw.joints, raw.state)}
        if raw.command != "none":
            tables["action/"] = (raw.joints, raw.action)
        for name, signal in raw.signals.items():
            tables[f"{name}/"] = (signal.columns, signal.values)
        made = []
        for prefix, (columns, values) in tables.items():
            reach = np.ptp(filled(values), axis=0) if len(values) else np.zeros(len(columns))
            widest = float(reach.max(initial=0.0))
            for column, own in zip(columns, reach, strict=False):
                times = widest / own if own > widest / _NEVER else _NEVER
                said = (
                    f"{prefix}{column} moves by {own:.3g} in the whole episode, the widest beside it by {widest:.3g}."
                )
                made.append(Measured(value=times if widest else _NEVER, channel=prefix + column, said=said))
        return made or [Measured(value=None, said="There is no column.")]


class Saturation(UsualLimitCheck):
    """How far joints stay behind their commands: a joint that cannot follow, or commands beyond what it can do."""

    reads = frozenset({"raw"})

    name = "recording/saturation"
    meaning = "a joint stays far from its command for longer than usual: it cannot follow, or is told what it cannot do"
    unit = "of its range"
    floor, spread = 0.1, 0.2
    part = 0.75  # quantile over the frames: what holds for a quarter of the episode

    def measure(self, recording: Recording) -> Sequence[Measured]:
        """See `MeasuringCheck`."""
        raw = recording.raw
        if raw.command != "position" or raw.action.shape != raw.state.shape:
            return [Measured(value=None, said="Commands are no positions of these joints.")]
        state, action = filled(raw.state), filled(raw.action)
        apart = np.abs(action - state)
        reach = np.maximum(np.ptp(state, axis=0), np.ptp(action, axis=0))
        least = 0.05 * float(reach.max(initial=0.0))
        made = []
        for column, joint in enumerate(raw.joints):
            range_ = max(float(reach[column]), least)
            value = float(np.quantile(apart[:, column], self.part)) / range_ if range_ else 0.0
            far = np.flatnonzero(apart[:, column] > 0.1 * range_)
            said = f"{joint} is {100 * value:.0f} % of its range from its command for a quarter of the episode."
            first, last = (int(far[0]), int(far[-1])) if len(far) else (None, None)
            made.append(Measured(value=value, channel=joint, said=said, first_frame=first, last_frame=last))
        return made
