"""How late joints answer their commands, beside the other episodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from twinloop.curate.check import Measured, MeasuringCheck, Score
from twinloop.curate.judging import shortened
from twinloop.curate.limits import LEAST
from twinloop.curate.recording import Recording
from twinloop.dataset.logs.checks.response import answers, response_pair
from twinloop.dataset.logs.checks.series import prepare


class Lag(MeasuringCheck):
    """Joints that answer their commands later or earlier than in the other episodes."""

    reads = frozenset({"raw"})

    name = "physics/lag"
    meaning = "joints answer their commands later or earlier than in the other episodes"
    unit = "s"
    frames = 1.5  # that every episode may differ by, and of single joints twice as many

    def measure(self, recording: Recording) -> Sequence[Measured]:
        """See `MeasuringCheck`."""
        raw = recording.raw
        series = prepare(raw)
        pair = None if series is None else response_pair(raw, series)
        found = [] if pair is None else [answer for answer in answers(pair) if abs(answer.correlation) > 0.8]
        if series is None or not found:
            return [Measured(value=None, said="No joint follows a command clearly, so no delay can be told.")]
        rows = [Measured(value=answer.lag_s, channel=answer.joint, facts={"dt": series.dt}) for answer in found]
        return [Measured(value=float(np.median([a.lag_s for a in found])), facts={"dt": series.dt}), *rows]

    def judge(self, recordings: Sequence[Recording], measured: Sequence[Sequence[Measured]]) -> Iterator[Score]:
        """See `MeasuringCheck`."""
        lags: dict[tuple[object, ...], list[float]] = defaultdict(list)
        for recording, rows in zip(recordings, measured, strict=True):
            for row in rows:
                if row.value is not None:
                    lags[*recording.group, row.channel].append(row.value)
        for recording, rows in zip(recordings, measured, strict=True):
            yield from shortened([self._score(recording, row, lags[*recording.group, row.channel]) for row in rows])

    def _score(self, recording: Recording, row: Measured, others: Sequence[float]) -> Score:
        if row.value is None:
            return self.of(recording, row, "unknown")
        what = row.channel or "The median joint"
        said = f"{what} answers after {1e3 * row.value:.0f} ms"
        if len(others) < LEAST:
            told = f"{said}. Only {len(others)} episodes are alike; from {LEAST} on it is known what is usual."
            return self.of(recording, row, "unknown", reason=told)
        usual = float(np.median(others))
        spread = 1.4826 * float(np.median(np.abs(np.asarray(others) - usual)))
        limit = max((2 if row.channel else 1) * self.frames * row.facts["dt"], 6 * spread)
        apart = abs(row.value - usual)
        told = f"{said}, in the median episode after {1e3 * usual:.0f} ms. Limit {1e3 * limit:.0f} ms apart: "
        told += "a frame and a half (of one joint three), or six spreads of the other episodes."
        verdict = "bad" if apart > 2 * limit else "suspect" if apart > limit else "good"
        scored = Measured(value=apart, channel=row.channel)
        return self.of(recording, scored, verdict, limit=limit, reason=told)
