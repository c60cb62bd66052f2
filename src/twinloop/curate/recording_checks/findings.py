"""Checks of logs as checks of episodes: a finding there is a score here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar

import numpy as np

from twinloop.curate.check import Measured, MeasuringCheck, Score
from twinloop.curate.judging import shortened, verdict_of
from twinloop.curate.recording import Recording
from twinloop.dataset.logs.checks import Finding
from twinloop.dataset.logs.checks.response import answers, check_response, response_pair
from twinloop.dataset.logs.checks.series import prepare
from twinloop.dataset.logs.checks.timing import check_drift, check_timing
from twinloop.dataset.logs.checks.values import check_jumps, check_numbers, check_standstill
from twinloop.dataset.logs.importers.protocol import RawEpisode

VERDICT = "verdict"
Look = Callable[[RawEpisode], Iterable[Finding]]


class FindingCheck(MeasuringCheck):
    """Findings of some kinds in one episode. An error makes it bad, a warning suspect.

    The value is the first figure that a finding of the kind gives under ``figure``, else 1; none found is 0.
    """

    reads = frozenset({"raw"})
    kinds: ClassVar[frozenset[str]]
    figure: ClassVar[tuple[str, ...]] = ("count",)
    nothing: ClassVar[str]

    def findings(self, raw: RawEpisode) -> Iterable[Finding]:
        """What the log's checks say of it."""
        raise NotImplementedError

    def measure(self, recording: Recording) -> Sequence[Measured]:
        """See `MeasuringCheck`."""
        raw = recording.raw
        found = [finding for finding in self.findings(raw) if finding.kind in self.kinds]
        rows = [self._row(raw, finding) for finding in found]
        return rows or [Measured(value=0.0, said=f"{self.nothing} in {len(raw)} frames.", facts={VERDICT: "good"})]

    def judge(self, recordings: Sequence[Recording], measured: Sequence[Sequence[Measured]]) -> Iterator[Score]:
        """See `MeasuringCheck`."""
        for recording, rows in zip(recordings, measured, strict=True):
            yield from shortened([self.of(recording, row, row.facts.get(VERDICT, "unknown")) for row in rows])

    def _row(self, raw: RawEpisode, finding: Finding) -> Measured:
        value = next((finding.figures[name] for name in self.figure if name in finding.figures), 1.0)
        frame = int(np.searchsorted(np.nan_to_num(raw.time, nan=np.inf), finding.begin_s - 1e-9))
        return Measured(
            value=value,
            channel=finding.column,
            said=f"{finding.column + ': ' if finding.column else ''}{finding.evidence} {finding.remedy}",
            first_frame=min(frame, max(len(raw) - 1, 0)),
            facts={VERDICT: verdict_of(finding.severity)},
        )


def responses(raw: RawEpisode) -> Iterable[Finding]:
    """How measurements answer their commands; none where nothing is commanded or too little moves."""
    series = prepare(raw)
    pair = None if series is None else response_pair(raw, series)
    return () if pair is None else check_response(raw, pair)


class ClockJumps(FindingCheck):
    """Times that go back, repeat, are no numbers, or leave a gap."""

    name = "recording/clock_jump"
    meaning = "the clock of frames, commands or signals goes back, repeats, stops or skips"
    kinds = frozenset({"time_backwards", "time_duplicate", "time_not_finite", "gap", "time_unit"})
    figure = ("longest_s", "jump_s", "count")
    nothing = "Time runs on evenly"

    def findings(self, raw: RawEpisode) -> Iterable[Finding]:
        """See `FindingCheck`."""
        return check_timing(raw)


class ClockDrift(FindingCheck):
    """Commands and measurements whose delay changes within the episode: two clocks, or one that stepped."""

    name = "recording/clock_drift"
    meaning = "measurements answer commands ever later, or later from some moment on: their clocks differ"
    kinds = frozenset({"clock_drift", "clock_step"})
    figure = ("total_s", "step_s")
    nothing = "Measurements answer commands after the same time throughout,"

    def findings(self, raw: RawEpisode) -> Iterable[Finding]:
        """See `FindingCheck`."""
        series = prepare(raw)
        pair = None if series is None else response_pair(raw, series)
        return () if pair is None else check_drift(raw.index, pair, answers(pair))


class NotFinite(FindingCheck):
    """NaN and infinity."""

    name = "recording/not_finite"
    meaning = "measurements, commands or signals hold NaN or infinity"
    kinds = frozenset({"not_finite"})
    nothing = "Every value is a number"

    def findings(self, raw: RawEpisode) -> Iterable[Finding]:
        """See `FindingCheck`."""
        return check_numbers(raw)


class Spikes(FindingCheck):
    """Single values that no joint reaches: lost packets, and readings that wrap around."""

    name = "recording/spikes"
    meaning = "single readings lie far from their neighbours, or wrap around"
    kinds = frozenset({"spike", "wraps"})
    nothing = "No reading lies far from its neighbours"

    def findings(self, raw: RawEpisode) -> Iterable[Finding]:
        """See `FindingCheck`."""
        return check_jumps(raw)


class Signs(FindingCheck):
    """Measurements that move against their commands."""

    name = "recording/sign"
    meaning = "a joint moves against its command: a sign is wrong"
    kinds = frozenset({"wrong_sign"})
    figure = ("correlation",)
    nothing = "No joint moves against its command"

    def findings(self, raw: RawEpisode) -> Iterable[Finding]:
        """See `FindingCheck`."""
        return responses(raw)


class Standstill(FindingCheck):
    """Joints that read one value while their command moves."""

    name = "recording/frozen_joint"
    meaning = "a joint's reading stands still, for a while or throughout, while its command moves"
    kinds = frozenset({"constant", "frozen"})
    figure = ("lasts_s",)
    nothing = "No reading stands still under a moving command"

    def findings(self, raw: RawEpisode) -> Iterable[Finding]:
        """See `FindingCheck`."""
        return check_standstill(raw)
