"""How often the learned discriminators find what was planted, and how often they err on data that is alike."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import NDArray

from benchmarks.error_rates.quality.demonstration import Tally, rate, tally_table, wrong
from benchmarks.error_rates.quality.replaced import Replaced
from benchmarks.error_rates.quality.study import recorded, simulated
from benchmarks.studies import Study, StudyTable
from twinloop.core.records import Episode, Source
from twinloop.core.seeds import generator
from twinloop.curate.check import CheckScore, Measurement, MeasuringCheck
from twinloop.curate.learned.realism import OutOfSupport, SimulatedLookingEpisodes
from twinloop.curate.recording import RecordedEpisode

Pictures = NDArray[np.uint8]
_EPISODES = 120  # of simulated data
_SHARE = 0.25  # of the judged episodes are faulty
_CAMERA = "front"
_PIXEL_NOISE = 2.0  # of 255: a webcam's in a lit room
_NOISE = 0.05  # deg, of readings of both sides: half a step of an encoder with 4096 counts a turn
_SIZE = (48, 64)
_NOTE = (
    "Two thirds of one set of episodes are called real, the others simulated. A quarter of the simulated ones is "
    "planted. Nothing else distinguishes the sides. Recall: share of planted episodes called suspect. Precision: "
    "share of planted episodes among all called suspect. False alarms: share of other episodes called suspect. All "
    "have Wilson's 95 % intervals. Simulated: 120 episodes of SO-101 pick and place, parameters over their default "
    "ranges. Real: so101_pick_place_tape. Images are synthetic (a constant background, an object that moves with the "
    "joints, light that differs by episode, noise)."
)
_ALIKE = (
    "Nothing is planted. One set is repeatedly split at random into two thirds called real and one third called "
    "simulated. *Flagged* are episodes that are called suspect: either certainly different from the real ones, which "
    "may happen to any of them in at most one of twenty splits, or beyond the limit from the real episodes' own "
    "scores."
)


@dataclass(frozen=True, kw_only=True)
class Shift:
    """A difference that is planted into simulated episodes: its severities, and the check that is to find it."""

    name: str
    severities: tuple[tuple[float, str], ...]
    check: type[MeasuringCheck]
    plant: Callable[[Replaced, float], Replaced]


def _workspace(recording: Replaced, severity: float) -> Replaced:
    """The first joint turned by so many degrees throughout: another part of the table."""
    episode = recording.episode
    turn = np.zeros(len(episode.joints))
    turn[0] = severity if "deg" in episode.units.joints[0].unit else severity / 1.8  # ±100 of about a half turn
    moved = replace(episode, state=episode.state + turn, action=episode.action + turn)
    return _read_as(recording, moved)


def _lag(recording: Replaced, severity: float) -> Replaced:
    """Joints that follow ``severity`` seconds later, as where they are damped more: a filter of first order."""
    episode = recording.episode
    keep = float(np.exp(-np.median(np.diff(episode.time)) / severity))
    begin = episode.state[:1] * keep
    state = scipy.signal.lfilter([1 - keep], [1, -keep], episode.state, axis=0, zi=begin)[0]
    return _read_as(recording, replace(episode, state=_noisy(state, recording.index)))


def _noiseless(recording: Replaced, severity: float) -> Replaced:
    """Readings without the noise that the other side has."""
    del severity
    return _read_as(recording, recording.of.episode)


def _colour(recording: Replaced, severity: float) -> Replaced:
    """Pictures whose red is stronger and whose blue weaker by a share."""
    return _seen(recording, recording.episode, warmth=severity, name=_planted(recording))


def _still(recording: Replaced, severity: float) -> Replaced:
    """Pictures with only ``severity`` of the camera's noise: a background that stays as it is."""
    return _seen(recording, recording.episode, noise=_PIXEL_NOISE * severity, name=_planted(recording))


SHIFTS = (
    Shift(
        name="another part of the workspace",
        severities=((10.0, "10°"), (30.0, "30°"), (60.0, "60°")),
        check=OutOfSupport,
        plant=_workspace,
    ),
    Shift(
        name="joints that follow later",
        severities=((0.05, "50 ms"), (0.1, "100 ms"), (0.2, "200 ms")),
        check=OutOfSupport,
        plant=_lag,
    ),
    Shift(
        name="colour-shifted pictures",
        severities=((0.05, "5 %"), (0.15, "15 %"), (0.3, "30 %")),
        check=OutOfSupport,
        plant=_colour,
    ),
    Shift(name="readings without noise", severities=((1.0, "none"),), check=SimulatedLookingEpisodes, plant=_noiseless),
    Shift(
        name="pictures without noise",
        severities=((0.8, "80 % of the noise"), (0.4, "40 %"), (0.0, "none")),
        check=SimulatedLookingEpisodes,
        plant=_still,
    ),
)


def _planted(recording: RecordedEpisode) -> str:
    return f"planted {recording.index}"


def _read_as(recording: Replaced, episode: Episode) -> Replaced:
    """Other positions and commands, seen by the same camera as before."""
    return _seen(recording, episode, name=_planted(recording))


def _seen(
    recording: Replaced, episode: Episode, *, noise: float = _PIXEL_NOISE, warmth: float = 0.0, name: str = ""
) -> Replaced:
    """An episode under a camera whose pictures are made by formula, of where the joints were in truth."""
    state, index = recording.of.episode.state, recording.index

    def pictures(frames: Sequence[int]) -> Pictures:
        return np.stack([_picture(state, index, frame, noise, warmth) for frame in frames])

    return Replaced(recording.of, name=name, episode=episode, cameras={_CAMERA: pictures})


def _picture(state: NDArray[np.float64], index: int, frame: int, noise: float, warmth: float) -> Pictures:
    rng = generator(index, "quality/pictures", frame)
    rows, columns = np.mgrid[: _SIZE[0], : _SIZE[1]] / 8.0
    scene = 110 + 40 * np.sin(rows)[..., None] * np.cos(columns[..., None] + np.array([0.0, 0.5, 1.0]))
    scene = scene * (1.0 + 0.08 * np.sin(7.0 * index))  # light of the day
    spread = np.ptp(state, axis=0) + 1e-9
    place = (state[frame] - state.min(axis=0)) / spread
    away = (rows * 8 - place[1] * _SIZE[0]) ** 2 + (columns * 8 - place[0] * _SIZE[1]) ** 2
    scene += 60 * np.exp(-away / 60.0)[..., None]
    scene *= 1.0 + warmth * np.array([1.0, 0.0, -1.0])
    return np.clip(scene + noise * rng.normal(size=scene.shape), 0, 255).round().astype(np.uint8)


@dataclass(frozen=True, kw_only=True)
class _Set:
    """One set of episodes with noise and pictures, and what both checks keep of each."""

    name: str
    recordings: list[Replaced]
    facts: list[Sequence[Measurement]]


@contextmanager
def sets(*, seed: int) -> Generator[list[_Set]]:
    """A simulated batch, and the recorded set where it is at hand."""
    with simulated(_EPISODES, seed=seed, pixels=False) as sim, recorded() as real:
        yield [_set(name, data) for name, data in (("simulated", sim), ("real", real)) if data]


def _set(name: str, recordings: Sequence[RecordedEpisode]) -> _Set:
    made = []
    for recording in recordings:
        episode = recording.episode
        noisy = replace(episode, state=_noisy(episode.state, recording.index))
        made.append(_seen(Replaced(recording), noisy))
    return _Set(name=name, recordings=made, facts=[OutOfSupport().measure_safely(recording) for recording in made])


def _noisy(state: NDArray[np.float64], index: int) -> NDArray[np.float64]:
    return state + _NOISE * generator(index, "quality/readings").normal(size=state.shape)


def _sided(recording: Replaced, source: Source) -> RecordedEpisode:
    return Replaced(recording, source=source)


def _split(count: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    order = rng.permutation(count)
    return sorted(order[: 2 * count // 3].tolist()), sorted(order[2 * count // 3 :].tolist())


def _scores(
    check: MeasuringCheck, data: _Set, real: Sequence[int], sim: Sequence[int], planted: dict[int, Replaced]
) -> list[CheckScore]:
    recordings = [_sided(data.recordings[place], "real") for place in real]
    measured = [data.facts[place] for place in real]
    for place in sim:
        recordings.append(_sided(planted.get(place, data.recordings[place]), "sim"))
        measured.append(check.measure_safely(planted[place]) if place in planted else data.facts[place])
    return list(check.judge(recordings, measured))


def shift_tallies(data: _Set, shift: Shift, *, repetitions: int, seed: int) -> Iterator[Tally]:
    """A shift at each of its severities, ``repetitions`` splits of the set each."""
    check = shift.check()
    for severity, words in shift.severities:
        planted = found = false = good = 0
        for repetition in range(repetitions):
            rng = generator(seed, f"quality/{shift.name}/{words}/{data.name}", repetition)
            real, sim = _split(len(data.recordings), rng)
            chosen = rng.choice(sim, size=round(_SHARE * len(sim)), replace=False).tolist()
            changed = {place: shift.plant(data.recordings[place], severity) for place in chosen}
            called = wrong(_scores(check, data, real, sim, changed))
            names = {recording.episode_id for recording in changed.values()}
            judged = {data.recordings[place].episode_id for place in sim if place not in changed}
            planted, found = planted + len(names), found + len(names & called)
            false, good = false + len(called & judged), good + len(judged)
        yield Tally(
            name=shift.name, severity=words, base=data.name, checks=(check.name,),
            planted=planted, found=found, false=false, good=good,
        )  # fmt: skip


def shifts_study(repetitions: int, seed: int) -> StudyTable:
    """Every shift at every severity."""
    found: list[Tally] = []
    with sets(seed=seed) as all_:
        for data in all_:
            for shift in SHIFTS:
                found += shift_tallies(data, shift, repetitions=repetitions, seed=seed)
    order = [shift.name for shift in SHIFTS]
    found.sort(key=lambda tally: order.index(tally.name))
    return tally_table("Shifts of simulated episodes", found, _NOTE)


def alike_study(repetitions: int, seed: int) -> StudyTable:
    """How often episodes are flagged where both sides are drawn from one set."""
    rows, figures = [], []
    with sets(seed=seed) as all_:
        for data in all_:
            for check in (SimulatedLookingEpisodes(), OutOfSupport()):
                counts: dict[str, int] = {"flagged": 0, "splits": 0}
                total = 0
                for repetition in range(repetitions):
                    rng = generator(seed, f"quality/alike/{data.name}", repetition)
                    real, sim = _split(len(data.recordings), rng)
                    judged = {data.recordings[place].episode_id for place in sim}
                    scores = [s for s in _scores(check, data, real, sim, {}) if s.episode_id in judged]
                    flagged = wrong(scores)
                    counts["flagged"] += len(flagged)
                    counts["splits"] += bool(flagged)
                    total += len(judged)
                rows.append(_alike_row(check.name, data.name, counts, total, repetitions))
                figures.append({"check": check.name, "base": data.name, "judged": total, **counts})
    head = ("check", "set", "judged", "flagged [95 %]", "splits with any flagged [95 %]")
    return StudyTable(
        title="Good simulated episodes and the learned discriminators",
        head=head,
        rows=tuple(rows),
        note=_ALIKE,
        figures=tuple(figures),
    )


def _alike_row(check: str, name: str, counts: dict[str, int], total: int, repetitions: int) -> tuple[str, ...]:
    shares: list[Any] = [(counts["flagged"], total), (counts["splits"], repetitions)]
    return (check, name, str(total), *(rate(count, of) for count, of in shares))


TABLES = (
    Study(name="learned", page="evidence/curation.md", repetitions=2, run=shifts_study),
    Study(name="learned_alike", page="evidence/curation.md", repetitions=10, run=alike_study),
)
