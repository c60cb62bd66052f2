"""Compare each column of an episode with the same columns of other episodes; turn log findings into scores."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from twinloop.curate.check import CheckScore, Measurement, MeasuringCheck
from twinloop.curate.judging import LEAST, convert_severity, select_reported_scores
from twinloop.curate.motion import fill_gaps
from twinloop.curate.recording import RecordedEpisode
from twinloop.dataset.logs.checks import LogFinding
from twinloop.dataset.logs.checks.response import CommandPair, check_response, find_command_pair, find_responses
from twinloop.dataset.logs.checks.series import prepare_series
from twinloop.dataset.logs.checks.timing import check_drift, check_timing
from twinloop.dataset.logs.checks.units import check_units
from twinloop.dataset.logs.checks.values import check_jumps, check_numbers, check_standstill
from twinloop.dataset.logs.importers.protocol import RawEpisode

VERDICT = "verdict"


class FindingCheck(MeasuringCheck):
    """Log findings of some kinds in one episode. An error makes the episode bad, a warning suspect.

    The value is the first number that a finding gives under a name in ``figure``, else 1; without a finding it is 0.
    """

    reads = frozenset({"raw"})
    kinds: ClassVar[frozenset[str]]
    figure: ClassVar[tuple[str, ...]] = ("count",)
    nothing: ClassVar[str]

    @staticmethod
    def findings(raw: RawEpisode, /) -> Iterable[LogFinding]:
        """Return the findings of the log checks."""
        raise NotImplementedError

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return one value for each finding of the check's kinds, or 0 without a finding."""
        raw = recording.raw
        rows = [self._make_measurement(raw, finding) for finding in self.findings(raw) if finding.kind in self.kinds]
        return rows or [Measurement(value=0.0, said=f"{self.nothing} in {len(raw)} frames.", facts={VERDICT: "good"})]

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Give each finding the verdict of its severity."""
        for recording, rows in zip(recordings, measured, strict=True):
            yield from select_reported_scores(
                [self.make_score(recording, row, row.facts.get(VERDICT, "unknown")) for row in rows]
            )

    def _make_measurement(self, raw: RawEpisode, finding: LogFinding) -> Measurement:
        value = next((finding.figures[name] for name in self.figure if name in finding.figures), 1.0)
        frame = int(np.searchsorted(np.nan_to_num(raw.time, nan=np.inf), finding.begin_s - 1e-9))
        return Measurement(
            value=value,
            channel=finding.column,
            said=f"{finding.column + ': ' if finding.column else ''}{finding.evidence} {finding.remedy}",
            first_frame=min(frame, max(len(raw) - 1, 0)),
            facts={VERDICT: convert_severity(finding.severity)},
        )


def find_response_faults(raw: RawEpisode) -> Iterable[LogFinding]:
    """Return findings on how measurements follow their commands; empty without commands or with too little motion."""
    pair = _prepare_pair(raw)
    return () if pair is None else check_response(raw, pair)


def find_drifts(raw: RawEpisode) -> Iterable[LogFinding]:
    """Return findings on changes of the delay from command to measurement; empty if it cannot be measured."""
    pair = _prepare_pair(raw)
    return () if pair is None else check_drift(raw.index, pair, find_responses(pair))


def _prepare_pair(raw: RawEpisode) -> CommandPair | None:
    series = prepare_series(raw)
    return None if series is None else find_command_pair(raw, series)


class ClockJumps(FindingCheck):
    """Timestamps that go back, repeat, are not finite, or leave a gap."""

    name = "recording/clock_jump"
    meaning = "timestamps of frames, commands or signals go back, repeat, stop or leave gaps"
    kinds = frozenset({"time_backwards", "time_duplicate", "time_not_finite", "gap", "time_unit"})
    figure = ("longest_s", "jump_s", "count")
    nothing = "Timestamps are regular"
    findings = staticmethod(check_timing)


class ClockDrift(FindingCheck):
    """Delay from command to measurement that changes within the episode: two clocks, or one clock that stepped."""

    name = "recording/clock_drift"
    meaning = "the delay from command to measurement grows or jumps: their clocks differ"
    kinds = frozenset({"clock_drift", "clock_step"})
    figure = ("total_s", "step_s")
    nothing = "The delay from command to measurement is constant"
    findings = staticmethod(find_drifts)


class NotFinite(FindingCheck):
    """NaN and infinity."""

    name = "recording/not_finite"
    meaning = "measurements, commands or signals hold NaN or infinity"
    kinds = frozenset({"not_finite"})
    nothing = "Every value is finite"
    findings = staticmethod(check_numbers)


class Spikes(FindingCheck):
    """Single values outside a joint's possible motion: lost packets, and readings that wrap around."""

    name = "recording/spikes"
    meaning = "single readings are far from their neighbours, or wrap around"
    kinds = frozenset({"spike", "wraps"})
    nothing = "No reading is far from its neighbours"
    findings = staticmethod(check_jumps)


class SignConsistency(FindingCheck):
    """Measurements that move opposite to their commands."""

    name = "recording/sign"
    meaning = "a joint moves opposite to its command: a sign is wrong"
    kinds = frozenset({"wrong_sign"})
    figure = ("correlation",)
    nothing = "No joint moves opposite to its command"
    findings = staticmethod(find_response_faults)


class Standstill(FindingCheck):
    """Joints whose reading is constant while their command moves."""

    name = "recording/frozen_joint"
    meaning = "a joint's reading is constant, for a while or throughout, while its command moves"
    kinds = frozenset({"constant", "frozen"})
    figure = ("lasts_s",)
    nothing = "No reading is constant while its command moves"
    findings = staticmethod(check_standstill)


Array = NDArray[np.float64]

_TABLES = ("state", "action")
_MOVES = 0.02  # share of the widest joint's range; joints that move less are not used to check units
_SIDES = (("left", "right"), ("l", "r"))


@dataclass(frozen=True, kw_only=True)
class ColumnProfile:
    """Profile of a table's n columns: first value and percentiles; ``reach`` is the 5th to the 95th percentile.

    ``shape`` ``(n, 4)`` holds the first value and the 5th, 50th and 95th percentile.
    """

    shape: Array

    @property
    def reach(self) -> Array:
        """Distance from the 5th to the 95th percentile, ``(n,)``."""
        return self.shape[:, 3] - self.shape[:, 1]


def compute_profiles(recording: RecordedEpisode) -> dict[str, ColumnProfile]:
    """Return the profiles of states and commands; commands only if they are joint positions."""
    return recording.compute_once("profiles", _compute_profiles)


def _compute_profiles(recording: RecordedEpisode) -> dict[str, ColumnProfile]:
    raw = recording.raw
    tables = {"state": raw.state}
    if raw.command == "position" and raw.action.shape[1:] == raw.state.shape[1:] and len(raw.action):
        tables["action"] = raw.action
    wholes = {name: fill_gaps(values) for name, values in tables.items()}
    return {
        name: ColumnProfile(shape=np.column_stack([whole[0], *np.percentile(whole, [5, 50, 95], axis=0)]))
        for name, whole in wholes.items()
    }


class _ProfileCheck(MeasuringCheck):
    """Base of checks that compare profiles with those of episodes with the same joints."""

    reads = frozenset({"raw"})

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the column profiles and the faults that the episode shows without a comparison."""
        raw = recording.raw
        facts = {
            "profiles": compute_profiles(recording),
            "joints": raw.joints,
            "found": tuple(self.find_own_faults(raw)),
        }
        return [Measurement(value=0.0, facts=facts)]

    def find_own_faults(self, raw: RawEpisode) -> Iterator[tuple[str, str]]:
        """Yield the column and the reason of each fault that the episode shows without a comparison."""
        raise NotImplementedError

    def compare_with_others(
        self, joints: Sequence[str], own: ColumnProfile, others: Sequence[ColumnProfile]
    ) -> Iterator[tuple[str, float, str]]:
        """Compare a table with other episodes; yield column, value and reason. A value above ``limit`` is bad."""
        raise NotImplementedError

    limit: float
    nothing: str

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Report the faults found without a comparison, and compare profiles with those of comparable episodes."""
        groups: dict[tuple[object, ...], dict[str, list[ColumnProfile]]] = defaultdict(lambda: defaultdict(list))
        for recording, (row, *_) in zip(recordings, measured, strict=True):
            if row.value is not None:
                for table, profile in row.facts["profiles"].items():
                    groups[*recording.group, row.facts["joints"]][table].append(profile)
        for recording, (row, *_) in zip(recordings, measured, strict=True):
            if row.value is None:
                yield self.make_score(recording, row, "unknown")
                continue
            yield from select_reported_scores(
                self._score_tables(recording, row.facts, groups[*recording.group, row.facts["joints"]])
            )

    def _score_tables(
        self, recording: RecordedEpisode, facts: Mapping[str, object], groups: Mapping[str, list[ColumnProfile]]
    ) -> list[CheckScore]:
        joints, profiles, found = facts["joints"], facts["profiles"], facts["found"]
        scores = [self.make_score(recording, Measurement(value=1.0, channel=c), "bad", reason=why) for c, why in found]  # pyright: ignore[reportGeneralTypeIssues]
        for table, own in profiles.items():  # pyright: ignore[reportAttributeAccessIssue]
            others = groups[table]
            if len(others) < LEAST:
                said = (
                    f"{self.nothing}. Only {len(others)} episodes are comparable; a comparison needs at least {LEAST}."
                )
                scores.append(self.make_score(recording, Measurement(value=0.0), "good", reason=said))
                continue
            for column, figure, why in self.compare_with_others(joints, own, others):  # pyright: ignore[reportArgumentType]
                channel = column if table == "state" else f"action/{column}"
                verdict = "bad" if figure > self.limit else "good"
                row = Measurement(value=figure, channel=channel)
                scores.append(self.make_score(recording, row, verdict, limit=self.limit, reason=f"{table}: {why}"))
        return scores or [self.make_score(recording, Measurement(value=0.0), "good", reason=f"{self.nothing}.")]


class UnitConsistency(_ProfileCheck):
    """Values in another unit than declared, or than in the other episodes.

    One episode alone shows values outside every joint's range, and measurements that move by a known factor times their
    command. The comparison with others shows columns whose range is several times larger or smaller.
    """

    name = "recording/units"
    meaning = "values are in another unit than the unit map, their commands or the other episodes"
    unit = "times"
    limit = 6.0  # motions of one task differ by up to 3; radians taken for another unit differ by at least 57
    nothing = "No unit looks wrong"

    def find_own_faults(self, raw: RawEpisode) -> Iterator[tuple[str, str]]:
        """Yield columns whose range or motion contradicts their unit."""
        for finding in check_units([raw], None):
            if finding.kind == "unit" and finding.severity == "error":
                yield finding.column, f"{finding.column}: {finding.evidence} {finding.remedy}"
        for finding in find_response_faults(raw):
            if finding.kind == "unit_mismatch":
                yield finding.column, f"{finding.column}: {finding.evidence} {finding.remedy}"

    def compare_with_others(
        self, joints: Sequence[str], own: ColumnProfile, others: Sequence[ColumnProfile]
    ) -> Iterator[tuple[str, float, str]]:
        """Yield columns whose range differs from the usual one by a factor that indicates another unit."""
        usual = np.median([profile.reach for profile in others], axis=0)
        moves = (usual > _MOVES * usual.max()) & (own.reach > 1e-9)
        if not moves.any():
            return
        factor = np.divide(own.reach, usual, out=np.ones_like(usual), where=moves)
        size = np.abs(np.log(factor))
        # One joint that moves less than usual is normal motion. Most joints with one factor, or one joint with a
        # factor of 40, indicate another unit.
        common = float(np.median(np.log(factor[moves])))
        alike = np.sum(np.abs(np.log(factor[moves]) - common) < math.log(3)) >= 0.6 * moves.sum()
        if moves.sum() > 1 and alike and abs(common) > math.log(self.limit):
            said = f"the joints' range is {math.exp(common):.3g} times that of the other episodes: another unit."
            yield "", math.exp(abs(common)), said
            return
        for column in np.flatnonzero(moves).tolist():
            far = float(np.exp(size[column]))
            said = f"{joints[column]} has {factor[column]:.3g} times the range of the other episodes."
            larger = factor[column] > 1
            yield joints[column], far if larger and far > 40 else min(far, self.limit), said


class SwappedColumns(_ProfileCheck):
    """Columns that are exchanged.

    One episode alone shows a measurement that follows another joint's command. The comparison with others shows
    columns, or a whole left and right arm, that match each other's usual profiles.
    """

    name = "recording/swapped"
    meaning = "joints, or left and right arm, are exchanged"
    unit = "times"
    limit = 2.0  # distance of columns from their own usual profile, divided by that from each other's
    least = 4.0  # smallest distance from the own usual profile, in spreads between episodes
    nothing = "No column follows another's command"

    def find_own_faults(self, raw: RawEpisode) -> Iterator[tuple[str, str]]:
        """Yield measurements that follow the command of another joint."""
        for finding in find_response_faults(raw):
            if finding.kind == "swapped":
                yield finding.column, f"{finding.column} {finding.evidence} {finding.remedy}"

    def compare_with_others(
        self, joints: Sequence[str], own: ColumnProfile, others: Sequence[ColumnProfile]
    ) -> Iterator[tuple[str, float, str]]:
        """Yield the exchange of columns that fits the usual profiles best."""
        cost = _compute_column_distances(own, others)
        keep = np.arange(len(cost))
        exchanges = [("left and right", order) for order in _iterate_exchanges(joints)]
        _, best = linear_sum_assignment(cost)
        if (best != keep).any():
            moved = [joints[i] for i in np.flatnonzero(best != keep).tolist()]
            exchanges.append((" and ".join(moved), best))
        worst = ("", 1.0, "every column is most similar to the same column of the other episodes.")
        for what, order in exchanges:
            moved = order != keep
            before, after = float(cost[keep, keep][moved].mean()), float(cost[keep, order][moved].mean())
            ratio = before / max(after, 0.5) if before > self.least else 1.0
            if ratio > worst[1]:
                said = f"{what}: {before:.3g} spreads from their own usual profile, {after:.3g} from each other's."
                worst = (what.replace(" and ", "/") if len(what) < 60 else "several", ratio, said)
        yield worst


def _compute_column_distances(own: ColumnProfile, others: Sequence[ColumnProfile]) -> Array:
    """Return the distance of each column ``i`` from the usual column ``j``, ``(n, n)``, in spreads of column j."""
    shapes = np.array([profile.shape for profile in others])  # (episodes, n, 4)
    usual = np.median(shapes, axis=0)
    spread = 1.4826 * np.median(np.abs(shapes - usual), axis=0)
    spread = np.maximum(spread, 0.03 * np.ptp(shapes, axis=(0, 2)).max())
    apart = np.abs(own.shape[:, None, :] - usual[None]) / np.maximum(spread[None], 1e-12)
    return apart.mean(axis=2)


def _iterate_exchanges(joints: Sequence[str]) -> Iterator[NDArray[np.intp]]:
    """Yield the column order with left and right arm exchanged, if the joint names distinguish them."""
    for left, right in _SIDES:
        words = [re.split(r"([_./\-\s]+)", joint.lower()) for joint in joints]
        names = ["".join(word) for word in words]
        other = {left: right, right: left}
        changed = ["".join(other.get(part, part) for part in word) for word in words]
        if changed != names and set(changed) == set(names) and len(set(names)) == len(names):
            yield np.array([names.index(name) for name in changed])
            return


def find_arm_pairs(joints: Sequence[str]) -> list[tuple[int, int]]:
    """Return column pairs of the left and the right arm; empty if the names have no sides."""
    return [(i, int(j)) for order in _iterate_exchanges(joints) for i, j in enumerate(order) if i < j]
