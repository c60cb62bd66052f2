"""The gap as a record: figures with intervals, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.headline import Headline
from twinloop.gap.delay import Delays
from twinloop.gap.measure_clips import Clip
from twinloop.gap.noise_floor import NoiseFloor
from twinloop.gap.report_headline import dynamics_headline
from twinloop.gap.report_text import gap_text
from twinloop.simulate.measure import Channel
from twinloop.stats import Interval

Array = NDArray[np.float64]
Intervals = Mapping[str, Interval]


@dataclass(frozen=True, kw_only=True)
class Phase:
    """RMSE of each twin in the frames of one phase of contact; ``frames`` ``(nchannel,)`` is how many these are."""

    name: str
    frames: Array
    rmse: Intervals

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return {"name": self.name, "frames": self.frames.tolist(), "rmse": _json(self.rmse)}


@dataclass(frozen=True, kw_only=True)
class GapReport:
    """How far a twin is from a log, open loop in windows, beside guesses that know no physics.

    The first frame of a window is given and does not count. Mappings are by the name of a twin (``nominal``, and
    ``identified`` where parameters were given) or of a baseline; an interval holds a value for each channel, in its
    unit.

    Attributes:
        channels: what is compared.
        episodes: numbers of the measured episodes; ``lengths`` are the frames of each one's windows.
        windows: how many windows there are, and ``length``, of the longest, in s; ``hz`` is the rate of the frames.
        scale: what each channel's error is divided by where channels are averaged, in its unit, see `Survey.scale`;
            ``sizes`` are those of objects in m.
        source: where the episodes come from.
        meanings: of the baselines.
        names: of the twins; the last one is judged.
        rmse, mae: root mean square and mean absolute errors.
        edges: of the horizon's bins in s; ``curves`` are RMSE by bin, ``(nbin, nchannel)``.
        nrmse: mean over channels of RMSE / scale, a number each.
        skills: 1 − RMSE / RMSE of a baseline, by baseline and for the ``best`` of each channel.
        overall_skill: 1 − nrmse over the same of each channel's best baseline.
        improvement: MAE of the identified twin less the nominal one's, paired: negative is better.
        phases: by contact, where contacts are simulated and can be told.
        delays: by twin, delay apart from amplitude; empty where windows are too short for it.
        floor: real against real, where a motion is repeated; ``repeats`` says how repeats were looked for.
        worst: the three worst clips.
        episode_errors: mean absolute errors ``(nepisode, nchannel)``.
        drawn: how the intervals are made, or why there are none.
    """

    channels: tuple[Channel, ...]
    episodes: tuple[int, ...]
    lengths: Array
    windows: int
    length: float
    hz: float
    scale: Array
    sizes: Mapping[str, float]
    source: str
    meanings: Mapping[str, str]
    names: tuple[str, ...]
    rmse: Intervals
    mae: Intervals
    edges: Array
    curves: Intervals
    nrmse: Intervals
    skills: Intervals
    overall_skill: Interval
    improvement: Interval | None
    phases: tuple[Phase, ...]
    delays: Mapping[str, Delays]
    floor: NoiseFloor | None
    repeats: str
    worst: tuple[Clip, ...]
    episode_errors: Mapping[str, Array]
    drawn: str

    @cached_property
    def joints(self) -> tuple[str, ...]:
        """Names of the channels; a joint's position goes by the joint's name."""
        return tuple(channel.name.removeprefix("position/") for channel in self.channels)

    @property
    def log_units(self) -> tuple[str, ...]:
        """Units of the channels."""
        return tuple(channel.unit for channel in self.channels)

    @property
    def judged(self) -> str:
        """The twin that skill and ratio are of: the identified one where there is one."""
        return self.names[-1]

    @property
    def twins(self) -> Intervals:
        """Mean absolute errors of the twins."""
        return {name: self.mae[name] for name in self.names}

    @property
    def baselines(self) -> Intervals:
        """Mean absolute errors of the baselines."""
        return {name: self.mae[name] for name in self.meanings}

    @property
    def best(self) -> Interval:
        """Mean absolute error of the identified twin where there is one, else of the nominal one."""
        return self.mae[self.judged]

    @property
    def delay(self) -> Delays | None:
        """Delay apart from amplitude, of the twin that is judged."""
        return self.delays.get(self.judged)

    def skill(self, baseline: str = "best") -> Array:
        """1 − RMSE / RMSE of a baseline, per channel: 1 is perfect, 0 no better than it."""
        return self.skills[baseline].estimate

    def headline(self) -> list[Headline]:
        """The figures that programs watch."""
        return dynamics_headline(self)

    def to_json(self) -> dict[str, Any]:
        """A plain form for files (schema 2)."""
        return {
            "schema": 2,
            "joints": list(self.joints),
            "channels": [{"name": channel.name, "unit": channel.unit} for channel in self.channels],
            "log_units": list(self.log_units),
            "episodes": list(self.episodes),
            "frames": int(self.lengths.sum()),
            "windows": {"count": self.windows, "length": self.length, "hz": self.hz},
            "scale": self.scale.tolist(),
            "sizes": dict(self.sizes),
            "source": self.source,
            "intervals": self.drawn,
            "twins": _json(self.twins),
            "baselines": _json(self.baselines),
            "rmse": _json(self.rmse),
            "horizon": {"edges": self.edges.tolist(), "rmse": _json(self.curves)},
            "nrmse": _json(self.nrmse),
            "meanings": dict(self.meanings),
            "improvement": None if self.improvement is None else self.improvement.to_json(),
            "skill": _json(self.skills),
            "overall_skill": self.overall_skill.to_json(),
            "phases": [phase.to_json() for phase in self.phases],
            "delay": {name: delays.to_json() for name, delays in self.delays.items()},
            "noise_floor": None if self.floor is None else self.floor.to_json(),
            "repeats": self.repeats,
            "worst": [clip.to_json() for clip in self.worst],
            "episode_errors": {name: errors.tolist() for name, errors in self.episode_errors.items()},
        }

    def text(self) -> str:
        """The report for a terminal."""
        return "\n\n".join(gap_text(self))


def _json(values: Intervals) -> dict[str, Any]:
    return {name: interval.to_json() for name, interval in values.items()}
