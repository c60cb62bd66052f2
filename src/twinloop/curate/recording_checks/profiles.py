"""Check columns of an episode against other episodes (units, swapped columns), and score findings of log checks.

The log checks in `dataset.logs.checks` also run at the import of a log; each of their findings is one defect.
"""

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
from twinloop.dataset.logs.checks.finding import LogFinding
from twinloop.dataset.logs.checks.response import CommandPair, check_response, find_command_pair, find_responses
from twinloop.dataset.logs.checks.series import prepare_series
from twinloop.dataset.logs.checks.timing import check_drift, check_timing
from twinloop.dataset.logs.checks.units import check_units
from twinloop.dataset.logs.checks.values import check_jumps, check_numbers, check_standstill
from twinloop.dataset.logs.importers.protocol import RawEpisode

VERDICT = "verdict"


class FindingCheck(MeasuringCheck):
    """Base class of checks that score the findings of a log check: an error makes the episode bad, a warning suspect.

    Subclasses set the attributes and `findings`.

    Attributes:
        kinds: kinds of findings that the check scores.
        value_names: names of a finding's numbers, in order of preference. The first of them that a finding has is its
            value, else 1. The value is 0 if there is no finding.
        no_finding_text: text of the reason if there is no finding.
    """

    reads = frozenset({"raw"})
    kinds: ClassVar[frozenset[str]]
    value_names: ClassVar[tuple[str, ...]] = ("count",)
    no_finding_text: ClassVar[str]

    @staticmethod
    def findings(raw: RawEpisode, /) -> Iterable[LogFinding]:
        """Return the findings of a log check on one episode."""
        raise NotImplementedError

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return one measurement for each finding of the log check whose kind is in ``kinds``.

        If there is no such finding, one measurement with the value 0 is returned.
        """
        raw = recording.raw
        rows = [self._make_measurement(raw, finding) for finding in self.findings(raw) if finding.kind in self.kinds]
        return rows or [
            Measurement(value=0.0, text=f"{self.no_finding_text} in {len(raw)} frames.", facts={VERDICT: "good"})
        ]

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Yield one score per finding; its severity ``error`` is bad, ``warning`` suspect and ``note`` good.

        If an episode has no suspect or bad finding, only the one with the largest value is yielded.
        """
        for recording, rows in zip(recordings, measured, strict=True):
            yield from select_reported_scores(
                [self.make_score(recording, row, row.facts.get(VERDICT, "unknown")) for row in rows]
            )

    def _make_measurement(self, raw: RawEpisode, finding: LogFinding) -> Measurement:
        value = next((finding.metrics[name] for name in self.value_names if name in finding.metrics), 1.0)
        frame = int(np.searchsorted(np.nan_to_num(raw.time, nan=np.inf), finding.begin_s - 1e-9))
        return Measurement(
            value=value,
            channel=finding.column,
            text=f"{finding.column + ': ' if finding.column else ''}{finding.evidence} {finding.remedy}",
            first_frame=min(frame, max(len(raw) - 1, 0)),
            facts={VERDICT: convert_severity(finding.severity)},
        )


def find_response_faults(raw: RawEpisode) -> Iterable[LogFinding]:
    """Return findings on measurements that do not follow their commands: wrong sign, unit or joint.

    The result is empty if the log has no commands or too little motion.
    """
    pair = _prepare_pair(raw)
    return () if pair is None else check_response(raw, pair)


def find_drifts(raw: RawEpisode) -> Iterable[LogFinding]:
    """Return findings on changes of the delay from command to measurement; empty if the delay cannot be measured."""
    pair = _prepare_pair(raw)
    return () if pair is None else check_drift(raw.index, pair, find_responses(pair))


def _prepare_pair(raw: RawEpisode) -> CommandPair | None:
    series = prepare_series(raw)
    return None if series is None else find_command_pair(raw, series)


class ClockJumps(FindingCheck):
    """Check for timestamps that go back, repeat, are not finite, or leave a gap."""

    name = "recording/clock_jump"
    meaning = "timestamps of frames, commands or signals go back, repeat, stop or leave gaps"
    kinds = frozenset({"time_backwards", "time_duplicate", "time_not_finite", "gap", "time_unit"})
    value_names = ("longest_s", "jump_s", "count")
    no_finding_text = "Timestamps are regular"
    findings = staticmethod(check_timing)


class ClockDrift(FindingCheck):
    """Check for a delay from command to measurement that changes within the episode.

    The cause is two clocks with different rates, or one clock that jumped.
    """

    name = "recording/clock_drift"
    meaning = "the delay from command to measurement grows or jumps: their clocks differ"
    kinds = frozenset({"clock_drift", "clock_step"})
    value_names = ("total_s", "step_s")
    no_finding_text = "The delay from command to measurement is constant"
    findings = staticmethod(find_drifts)


class NotFinite(FindingCheck):
    """Check for NaN and infinity in measurements, commands and signals."""

    name = "recording/not_finite"
    meaning = "measurements, commands or signals hold NaN or infinity"
    kinds = frozenset({"not_finite"})
    no_finding_text = "Every value is finite"
    findings = staticmethod(check_numbers)


class Spikes(FindingCheck):
    """Check for single readings that no joint motion can explain: lost packets, and readings that wrap around."""

    name = "recording/spikes"
    meaning = "single readings are far from their neighbours, or wrap around"
    kinds = frozenset({"spike", "wraps"})
    no_finding_text = "No reading is far from its neighbours"
    findings = staticmethod(check_jumps)


class SignConsistency(FindingCheck):
    """Check for joints that move opposite to their commands."""

    name = "recording/sign"
    meaning = "a joint moves opposite to its command: a sign is wrong"
    kinds = frozenset({"wrong_sign"})
    value_names = ("correlation",)
    no_finding_text = "No joint moves opposite to its command"
    findings = staticmethod(find_response_faults)


class Standstill(FindingCheck):
    """Check for joints whose reading is constant while their command changes."""

    name = "recording/frozen_joint"
    meaning = "a joint's reading is constant, for a while or throughout, while its command moves"
    kinds = frozenset({"constant", "frozen"})
    value_names = ("lasts_s",)
    no_finding_text = "No reading is constant while its command moves"
    findings = staticmethod(check_standstill)


Array = NDArray[np.float64]

_TABLES = ("state", "action")
_MOVES = 0.02  # share of the widest joint's range; joints that move less are not used to check units
_SIDES = (("left", "right"), ("l", "r"))


@dataclass(frozen=True, kw_only=True)
class ColumnProfile:
    """Profile of the n columns of a table (states or commands) in one episode: first value and percentiles.

    Attributes:
        shape: values of the profile ``(n, 4)``: first value, 5th, 50th and 95th percentile of each column.
    """

    shape: Array

    @property
    def reach(self) -> Array:
        """Width of the usual range of each column, from the 5th to the 95th percentile, ``(n,)``."""
        return self.shape[:, 3] - self.shape[:, 1]


def compute_profiles(recording: RecordedEpisode) -> dict[str, ColumnProfile]:
    """Compute the profiles (first value and percentiles of each column) of the tables ``state`` and ``action``.

    The profile of ``action`` is missing if actions are not joint positions.
    """
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
    """Base class of checks that compare column profiles with those of comparable episodes with the same joints.

    The profile of a column is its first value and its 5th, 50th and 95th percentiles in an episode.

    Attributes:
        limit: value above which a column is bad.
        no_finding_text: text of the reason if no fault is found.
    """

    reads = frozenset({"raw"})

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return one measurement, whose ``facts`` hold the column profiles and the result of `find_own_faults`."""
        raw = recording.raw
        facts = {
            "profiles": compute_profiles(recording),
            "joints": raw.joints,
            "found": tuple(self.find_own_faults(raw)),
        }
        return [Measurement(value=0.0, facts=facts)]

    def find_own_faults(self, raw: RawEpisode) -> Iterator[tuple[str, str]]:
        """Yield (column, reason) for each fault that is visible without other episodes."""
        raise NotImplementedError

    def compare_with_others(
        self, joints: Sequence[str], own: ColumnProfile, others: Sequence[ColumnProfile]
    ) -> Iterator[tuple[str, float, str]]:
        """Compare a table of an episode with the same table of other episodes.

        Args:
            joints: names of the columns.
            own: profile of the episode.
            others: profiles of all comparable episodes.

        Yields:
            Column, value and reason; a value above ``limit`` is bad.
        """
        raise NotImplementedError

    limit: float
    no_finding_text: str

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Yield the faults that are visible without other episodes, and the results of the comparison with them."""
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
                    f"{self.no_finding_text}. Only {len(others)} episodes are comparable; "
                    f"a comparison needs at least {LEAST}."
                )
                scores.append(self.make_score(recording, Measurement(value=0.0), "good", reason=said))
                continue
            for column, metric, why in self.compare_with_others(joints, own, others):  # pyright: ignore[reportArgumentType]
                channel = column if table == "state" else f"action/{column}"
                verdict = "bad" if metric > self.limit else "good"
                row = Measurement(value=metric, channel=channel)
                scores.append(self.make_score(recording, row, verdict, limit=self.limit, reason=f"{table}: {why}"))
        return scores or [self.make_score(recording, Measurement(value=0.0), "good", reason=f"{self.no_finding_text}.")]


class UnitConsistency(_ProfileCheck):
    """Check for values in another unit than declared, or than in the other episodes.

    Visible in one episode: values outside every joint's range, and measurements that move by a known factor times their
    command. Visible in comparison with other episodes: columns whose range is several times larger or smaller.
    """

    name = "recording/units"
    meaning = "values are in another unit than the unit map, their commands or the other episodes"
    unit = "times"
    limit = 6.0  # motions of one task differ by up to 3; radians taken for another unit differ by at least 57
    no_finding_text = "No unit looks wrong"

    def find_own_faults(self, raw: RawEpisode) -> Iterator[tuple[str, str]]:
        """Yield (column, reason) for each column whose range or motion contradicts its declared unit.

        This needs no comparison with other episodes.
        """
        for finding in check_units([raw], None):
            if finding.kind == "unit" and finding.severity == "error":
                yield finding.column, f"{finding.column}: {finding.evidence} {finding.remedy}"
        for finding in find_response_faults(raw):
            if finding.kind == "unit_mismatch":
                yield finding.column, f"{finding.column}: {finding.evidence} {finding.remedy}"

    def compare_with_others(
        self, joints: Sequence[str], own: ColumnProfile, others: Sequence[ColumnProfile]
    ) -> Iterator[tuple[str, float, str]]:
        """Yield (column, factor, reason) for each moving joint.

        The factor compares the joint's range with the usual range in other episodes. It is at least 1, whether the
        range is larger or smaller. For a single joint it is limited to ``limit`` (not a fault), unless the range is
        more than 40 times as large as usual. If most joints differ by one factor above ``limit``, only this common
        factor is yielded, with the column "".
        """
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
    """Check for swapped joints, and for a swapped left and right arm.

    Visible in one episode: a measurement that follows the command of another joint. Visible in comparison with other
    episodes: columns whose profiles (first value and percentiles) are more similar to those of the other episodes after
    the columns are exchanged.
    """

    name = "recording/swapped"
    meaning = "joints, or left and right arm, are exchanged"
    unit = "times"
    limit = 2.0  # distance of columns from their own usual profile, divided by that from each other's
    least_difference = 4.0  # smallest distance from the own usual profile, in spreads between episodes
    no_finding_text = "No column follows another's command"

    def find_own_faults(self, raw: RawEpisode) -> Iterator[tuple[str, str]]:
        """Yield (column, reason) for each measurement that follows the command of another joint."""
        for finding in find_response_faults(raw):
            if finding.kind == "swapped":
                yield finding.column, f"{finding.column} {finding.evidence} {finding.remedy}"

    def compare_with_others(
        self, joints: Sequence[str], own: ColumnProfile, others: Sequence[ColumnProfile]
    ) -> Iterator[tuple[str, float, str]]:
        """Yield one item (joints, ratio, reason) for the swap of columns that fits the other episodes' profiles best.

        A profile is the first value and the percentiles of each column. The ratio is the distance of the swapped
        columns from the median profiles before the swap, divided by the distance after it. If no swap fits better than
        the present order, joints is "" and the ratio is 1.
        """
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
            ratio = before / max(after, 0.5) if before > self.least_difference else 1.0
            if ratio > worst[1]:
                said = (
                    f"{what}: {before:.3g} standard deviations from their own usual profile, but {after:.3g} from each "
                    "other's."
                )
                worst = (what.replace(" and ", "/") if len(what) < 60 else "several", ratio, said)
        yield worst


def _compute_column_distances(own: ColumnProfile, others: Sequence[ColumnProfile]) -> Array:
    """Return the distance of each column from the usual profile of every column, ``(n, n)``.

    Entry (i, j) compares column i of the episode with the median profile of column j, in standard deviations of column
    j.

    Args:
        own: profile of the episode.
        others: profiles of comparable episodes; they give the median and the standard deviation.
    """
    shapes = np.array([profile.shape for profile in others])  # (episodes, n, 4)
    usual = np.median(shapes, axis=0)
    spread = 1.4826 * np.median(np.abs(shapes - usual), axis=0)
    spread = np.maximum(spread, 0.03 * np.ptp(shapes, axis=(0, 2)).max())
    apart = np.abs(own.shape[:, None, :] - usual[None]) / np.maximum(spread[None], 1e-12)
    return apart.mean(axis=2)


def _iterate_exchanges(joints: Sequence[str]) -> Iterator[NDArray[np.intp]]:
    """Yield the column order with left and right arm exchanged; nothing if joint names do not distinguish the sides.

    Joint names distinguish the sides if they contain ``left`` and ``right``, or ``l`` and ``r``, as separate words.
    """
    for left, right in _SIDES:
        words = [re.split(r"([_./\-\s]+)", joint.lower()) for joint in joints]
        names = ["".join(word) for word in words]
        other = {left: right, right: left}
        changed = ["".join(other.get(part, part) for part in word) for word in words]
        if changed != names and set(changed) == set(names) and len(set(names)) == len(names):
            yield np.array([names.index(name) for name in changed])
            return


def find_arm_pairs(joints: Sequence[str]) -> list[tuple[int, int]]:
    """Return the pairs of columns of the left and right arm; empty if the joint names do not distinguish the sides."""
    return [(i, int(j)) for order in _iterate_exchanges(joints) for i, j in enumerate(order) if i < j]
