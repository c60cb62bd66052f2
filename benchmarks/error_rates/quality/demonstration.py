"""Measure how many planted faults of demonstrations are detected, and how often good demonstrations are flagged."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.error_rates.quality.planted.demonstration import FAULTS, Fault, empty
from benchmarks.error_rates.quality.replaced import Replaced
from benchmarks.error_rates.quality.study import Bench, alarms_table, recorded, simulated
from benchmarks.studies import Study, StudyTable
from twinloop.core.seeds import generator
from twinloop.curate.check import CheckScore, Measurement, MeasuringCheck
from twinloop.curate.demonstration.consistency import ActionConsistency
from twinloop.curate.demonstration.duplicates import NearDuplicates
from twinloop.curate.demonstration.gripper import GripperUse
from twinloop.curate.demonstration.outcome import OutcomeConsistency
from twinloop.curate.demonstration.smoothness import DimensionlessJerk, Hesitation, PathEfficiency, Smoothness
from twinloop.curate.recording import RecordedEpisode
from twinloop.stats.proportion import wilson

_EPISODES = 96  # of simulated data
_NOTE = (
    "One in ten episodes is faulty. Recall: share of faulty episodes that a check for this fault calls suspect or "
    "bad. Precision: share of faulty episodes among all that this check calls suspect or bad. False alarms: share of "
    "good episodes that it calls suspect or bad. All have Wilson's 95 % intervals. Simulated: 96 episodes of SO-101 "
    "pick and place by the expert, parameters drawn over their default ranges. Real: the 40 episodes of "
    "so101_pick_place_tape. Faults of gripper and actions change commands and reached positions. Ranges are those of "
    "each joint in the episode."
)
_OUTCOMES = (
    "In one of three episodes the gripper loses the object, which is a failure. The stated share of outcome labels "
    "is flipped. Nothing else distinguishes successes from failures here, so the rates hold for episodes in which "
    "the cause of failure is visible."
)
_SHARE = 10  # one in ten episodes is faulty
_FAILS = 3  # one in three episodes fails in the study of outcomes
_FLIPPED = (0.05, 0.1, 0.2)
CHECKS: tuple[type[MeasuringCheck], ...] = (
    Smoothness,
    DimensionlessJerk,
    PathEfficiency,
    Hesitation,
    GripperUse,
    ActionConsistency,
    NearDuplicates,
)


@dataclass(frozen=True, kw_only=True)
class Base:
    """Good episodes with the measurements of every check, by the check's name."""

    name: str
    recordings: list[RecordedEpisode]
    measured: dict[str, list[Sequence[Measurement]]]


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Counts for one fault at one severity in one set of episodes.

    Attributes:
        base: Name of the set.
        checks: Names of the checks that should detect the fault.
        planted: Number of faulty episodes.
        found: Number of faulty episodes that are flagged.
        false: Number of good episodes that are flagged.
        good: Number of good episodes.
    """

    name: str
    severity: str
    base: str
    checks: tuple[str, ...]
    planted: int
    found: int
    false: int
    good: int

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON types."""
        return {**self.__dict__, "checks": list(self.checks)}


@contextmanager
def open_bases(*, seed: int) -> Generator[list[Base]]:
    """Yield a simulated batch, and the recorded data set if it can be loaded."""
    with simulated(_EPISODES, seed=seed, pixels=False) as sim, recorded() as real:
        yield [_base(name, data) for name, data in (("simulated", sim), ("real", real)) if data]


def _base(name: str, recordings: list[RecordedEpisode]) -> Base:
    checks = [kind() for kind in CHECKS]
    return Base(
        name=name,
        recordings=recordings,
        measured={check.name: [check.measure_safely(recording) for recording in recordings] for check in checks},
    )


def flagged_ids(scores: Sequence[CheckScore]) -> set[str]:
    """Return the ids of the episodes whose verdict is suspect or bad."""
    return {score.episode_id for score in scores if score.verdict in ("suspect", "bad")}


def tallies(base: Base, fault: Fault, *, repetitions: int, seed: int) -> Iterator[Tally]:
    """Plant a fault at each of its severities, ``repetitions`` times into one in ten episodes, and count detections."""
    checks = [kind() for kind in CHECKS if kind.name in fault.checks]
    for severity, words in fault.severities:
        planted = found = false = good = 0
        for repetition in range(repetitions):
            rng = generator(seed, f"quality/{fault.name}/{words}/{base.name}", repetition)
            count = max(2, len(base.recordings) // _SHARE)
            chosen = sorted(rng.choice(len(base.recordings), size=count, replace=False).tolist())
            faulty = [_make_faulty(base.recordings[place], fault, severity, rng, place) for place in chosen]
            called: set[str] = set()
            for check in checks:
                called |= flagged_ids(_judge_changed(check, base, chosen, faulty, copies=fault.copies))
            names = {recording.episode_id for recording in faulty}
            planted, found = planted + len(names), found + len(names & called)
            false, good = false + len(called - names), good + len(base.recordings) - (not fault.copies) * count
        yield Tally(
            name=fault.name, severity=words, base=base.name, checks=fault.checks,
            planted=planted, found=found, false=false, good=good,
        )  # fmt: skip


def _make_faulty(
    recording: RecordedEpisode, fault: Fault, severity: float, rng: np.random.Generator, place: int
) -> RecordedEpisode:
    return Replaced(recording, episode=fault.plant(recording.episode, severity, rng), name=f"faulty {place}")


def _judge_changed(
    check: MeasuringCheck, base: Base, chosen: Sequence[int], faulty: Sequence[RecordedEpisode], *, copies: bool
) -> list[CheckScore]:
    recordings, measured = list(base.recordings), list(base.measured[check.name])
    for place, recording in zip(chosen, faulty, strict=True):
        rows = check.measure_safely(recording)
        if copies:
            recordings.append(recording)
            measured.append(rows)
        else:
            recordings[place], measured[place] = recording, rows
    return list(check.judge(recordings, measured))


def outcome_tallies(base: Base, *, repetitions: int, seed: int) -> Iterator[Tally]:
    """Count detected wrong outcome labels.

    In one of three episodes the gripper is made to lose the object, which is a failure. Some labels are then flipped.
    """
    check = OutcomeConsistency()
    good = [check.measure_safely(recording) for recording in base.recordings]
    rng = generator(seed, f"quality/outcomes/{base.name}")
    fails = np.arange(len(base.recordings)) % _FAILS == 0
    lost = [
        Replaced(recording, episode=empty(recording.episode, 1.0, rng)) if failed else recording
        for recording, failed in zip(base.recordings, fails, strict=True)
    ]
    measured = [
        check.measure_safely(recording) if failed else row
        for recording, row, failed in zip(lost, good, fails, strict=True)
    ]
    for share in (0.0, *_FLIPPED):
        planted = found = false = 0
        for repetition in range(repetitions):
            chance = generator(seed, f"quality/outcomes/{base.name}/{share}", repetition)
            flipped = np.zeros(len(lost), dtype=bool)
            flipped[chance.choice(len(lost), size=round(share * len(lost)), replace=False)] = True
            stated = [
                Replaced(recording, success=bool(not failed ^ flip))
                for recording, failed, flip in zip(lost, fails, flipped, strict=True)
            ]
            called = flagged_ids(list(check.judge(stated, measured)))
            names = {recording.episode_id for recording, flip in zip(stated, flipped, strict=True) if flip}
            planted, found, false = planted + len(names), found + len(called & names), false + len(called - names)
        yield Tally(
            name="wrong outcome", severity=f"{100 * share:.0f} % of labels", base=base.name, checks=(check.name,),
            planted=planted, found=found, false=false, good=repetitions * len(lost) - planted,
        )  # fmt: skip


def faults_study(repetitions: int, seed: int) -> StudyTable:
    """Measure every fault at every severity, ``repetitions`` times in one of ten episodes."""
    found: list[Tally] = []
    with open_bases(seed=seed) as sources:
        for base in sources:
            for fault in FAULTS:
                found += tallies(base, fault, repetitions=repetitions, seed=seed)
    order = [fault.name for fault in FAULTS]
    found.sort(key=lambda tally: order.index(tally.name))
    return tally_table("Planted faults of demonstrations", found, _NOTE)


def outcomes_study(repetitions: int, seed: int) -> StudyTable:
    """Measure the detection of wrong outcome labels."""
    with open_bases(seed=seed) as sources:
        found = [tally for base in sources for tally in outcome_tallies(base, repetitions=repetitions, seed=seed)]
    return tally_table("Outcomes that are stated wrongly", found, _OUTCOMES)


def alarms_study(repetitions: int, seed: int) -> StudyTable:
    """Count false alarms of the demonstration checks on good demonstrations."""
    with simulated(repetitions, seed=seed + 1, pixels=False) as sim, recorded() as real:
        benches = [Bench(n, d, "demonstration") for n, d in (("simulated", sim), ("real", real)) if d]
        return alarms_table("Good episodes and the checks of demonstrations", benches)


def tally_table(title: str, found: Sequence[Tally], note: str) -> StudyTable:
    """Make a table with one row per tally."""
    rows = tuple(
        (
            tally.name,
            tally.severity,
            tally.base,
            str(tally.planted),
            rate(tally.found, tally.planted),
            rate(tally.found, tally.found + tally.false),
            rate(tally.false, tally.good),
        )
        for tally in found
    )
    head = ("planted", "size", "data", "n", "recall [95 %]", "precision [95 %]", "false alarms [95 %]")
    return StudyTable(title=title, head=head, rows=rows, note=note, metrics=tuple(tally.to_json() for tally in found))


def rate(count: int, total: int) -> str:
    """Format a share in per cent with Wilson's 95 % interval; "–" if ``total`` is 0."""
    if not total:
        return "–"
    interval = wilson(count, total)
    return f"{100 * count / total:.0f} % [{100 * float(interval.low):.0f}, {100 * float(interval.high):.0f}]"


TABLES = (
    Study(name="demonstration", page="evidence/curation.md", repetitions=2, run=faults_study),
    Study(name="demonstration_outcomes", page="evidence/curation.md", repetitions=5, run=outcomes_study),
    Study(name="demonstration_alarms", page="evidence/curation.md", repetitions=96, run=alarms_study),
)
