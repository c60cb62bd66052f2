"""Measure how often the learned discriminators detect planted differences, and their false alarms on equal data."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy  # its submodules are imported on first use
from numpy.typing import NDArray

from benchmarks.error_rates.quality.demonstration import Tally, flagged_ids, rate, tally_table
from benchmarks.error_rates.quality.replaced import Replaced
from benchmarks.error_rates.quality.study import recorded, simulated
from benchmarks.studies import Study, StudyTable
from twinloop.core.records import Episode, Source
from twinloop.core.seeds import generator
from twinloop.curate.check import CheckScore, Measurement, MeasuringCheck
from twinloop.curate.learned.realism import LooksSimulated, OutOfSupport
from twinloop.curate.recording import RecordedEpisode

Images = NDArray[np.uint8]
_EPISODES = 120  # of simulated data
_SHARE = 0.25  # share of the judged episodes with a planted difference
_CAMERA = "front"
_PIXEL_NOISE = 2.0  # of 255, as of a webcam in a lit room
_NOISE = 0.05  # deg, noise of the readings on both sides: half a step of an encoder with 4096 counts a turn
_SIZE = (48, 64)
_NOTE = (
    "Two thirds of one set of episodes are called real, the others simulated. A quarter of the simulated ones is "
    "planted. Nothing else distinguishes the sides. Recall: share of planted episodes called suspect. Precision: "
    "share of planted episodes among all called suspect. False alarms: share of other episodes called suspect. All "
    "have Wilson's 95 % intervals. Simulated: 120 episodes of SO-101 pick and place, parameters over their default "
    "ranges. Real: so101_pick_place_tape. Images are synthetic (a constant background, an object that moves with the "
    "joints, light that differs by episode, noise)."
)
_EQUAL_DATA_NOTE = (
    "Nothing is planted. One set is repeatedly split at random into two thirds called real and one third called "
    "simulated. *Flagged* are episodes that are called suspect: either certainly different from the real ones, which "
    "may happen to any of them in at most one of twenty splits, or beyond the limit from the real episodes' own "
    "scores."
)


@dataclass(frozen=True, kw_only=True)
class Shift:
    """A difference that is planted into simulated episodes.

    Attributes:
        name: Name, as printed.
        severities: Sizes of the difference, each with its text.
        check: Check that should detect it.
        plant: Function from an episode and a size to the changed episode.
        seed_name: Name of the random stream; "" for ``name``. It keeps the numbers if ``name`` is changed.
    """

    name: str
    severities: tuple[tuple[float, str], ...]
    check: type[MeasuringCheck]
    plant: Callable[[Replaced, float], Replaced]
    seed_name: str = ""


def _workspace(recording: Replaced, severity: float) -> Replaced:
    """Turn the first joint by ``severity`` degrees in the whole episode, to another part of the table."""
    episode = recording.episode
    turn = np.zeros(len(episode.joints))
    turn[0] = (
        severity if "deg" in episode.units.joints[0].unit else severity / 1.8
    )  # the range ±100 is about half a turn
    moved = replace(episode, state=episode.state + turn, action=episode.action + turn)
    return _with_readings(recording, moved)


def _lag(recording: Replaced, severity: float) -> Replaced:
    """Low-pass the joint positions with time constant ``severity`` in s (first order), as with more damping."""
    episode = recording.episode
    keep = float(np.exp(-np.median(np.diff(episode.time)) / severity))
    begin = episode.state[:1] * keep
    state = scipy.signal.lfilter([1 - keep], [1, -keep], episode.state, axis=0, zi=begin)[0]
    return _with_readings(recording, replace(episode, state=_noisy(state, recording.index)))


def _noiseless(recording: Replaced, severity: float) -> Replaced:
    """Return the episode with readings without noise, unlike the real episodes."""
    del severity
    return _with_readings(recording, recording.of.episode)


def _colour(recording: Replaced, severity: float) -> Replaced:
    """Make red stronger and blue weaker in the images, by the share ``severity``."""
    return _with_images(recording, recording.episode, warmth=severity, name=_planted_name(recording))


def _reduce_pixel_noise(recording: Replaced, severity: float) -> Replaced:
    """Reduce the pixel noise of the images to the share ``severity``."""
    return _with_images(recording, recording.episode, noise=_PIXEL_NOISE * severity, name=_planted_name(recording))


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
        name="colour-shifted images",
        severities=((0.05, "5 %"), (0.15, "15 %"), (0.3, "30 %")),
        check=OutOfSupport,
        plant=_colour,
        seed_name="colour-shifted pictures",
    ),
    Shift(name="readings without noise", severities=((1.0, "none"),), check=LooksSimulated, plant=_noiseless),
    Shift(
        name="images without noise",
        severities=((0.8, "80 % of the noise"), (0.4, "40 %"), (0.0, "none")),
        check=LooksSimulated,
        plant=_reduce_pixel_noise,
        seed_name="pictures without noise",
    ),
)


def _planted_name(recording: RecordedEpisode) -> str:
    return f"planted {recording.index}"


def _with_readings(recording: Replaced, episode: Episode) -> Replaced:
    """Replace positions and commands, with images from the same camera as before."""
    return _with_images(recording, episode, name=_planted_name(recording))


def _with_images(
    recording: Replaced, episode: Episode, *, noise: float = _PIXEL_NOISE, warmth: float = 0.0, name: str = ""
) -> Replaced:
    """Replace the episode and add synthetic images, computed from the true joint positions.

    Args:
        recording: The recording that is changed.
        episode: Its new content.
        noise: Standard deviation of the pixel noise, of 255.
        warmth: Share by which red is increased and blue decreased.
        name: New episode id; "" keeps the old one.
    """
    state, index = recording.of.episode.state, recording.index

    def images(frames: Sequence[int]) -> Images:
        return np.stack([_image(state, index, frame, noise, warmth) for frame in frames])

    return Replaced(recording.of, name=name, episode=episode, cameras={_CAMERA: images})


def _image(state: NDArray[np.float64], index: int, frame: int, noise: float, warmth: float) -> Images:
    rng = generator(index, "quality/pictures", frame)
    rows, columns = np.mgrid[: _SIZE[0], : _SIZE[1]] / 8.0
    scene = 110 + 40 * np.sin(rows)[..., None] * np.cos(columns[..., None] + np.array([0.0, 0.5, 1.0]))
    scene = scene * (1.0 + 0.08 * np.sin(7.0 * index))  # brightness varies by episode
    spread = np.ptp(state, axis=0) + 1e-9
    place = (state[frame] - state.min(axis=0)) / spread
    away = (rows * 8 - place[1] * _SIZE[0]) ** 2 + (columns * 8 - place[0] * _SIZE[1]) ** 2
    scene += 60 * np.exp(-away / 60.0)[..., None]
    scene *= 1.0 + warmth * np.array([1.0, 0.0, -1.0])
    return np.clip(scene + noise * rng.normal(size=scene.shape), 0, 255).round().astype(np.uint8)


@dataclass(frozen=True, kw_only=True)
class _Set:
    """One set of episodes with noise and synthetic images, and the measurements that both checks share."""

    name: str
    recordings: list[Replaced]
    facts: list[Sequence[Measurement]]


@contextmanager
def open_sets(*, seed: int) -> Generator[list[_Set]]:
    """Yield a simulated batch, and the recorded data set if it can be loaded."""
    with simulated(_EPISODES, seed=seed, pixels=False) as sim, recorded() as real:
        yield [_set(name, data) for name, data in (("simulated", sim), ("real", real)) if data]


def _set(name: str, recordings: Sequence[RecordedEpisode]) -> _Set:
    made = []
    for recording in recordings:
        episode = recording.episode
        noisy = replace(episode, state=_noisy(episode.state, recording.index))
        made.append(_with_images(Replaced(recording), noisy))
    return _Set(name=name, recordings=made, facts=[OutOfSupport().measure_safely(recording) for recording in made])


def _noisy(state: NDArray[np.float64], index: int) -> NDArray[np.float64]:
    return state + _NOISE * generator(index, "quality/readings").normal(size=state.shape)


def _with_source(recording: Replaced, source: Source) -> RecordedEpisode:
    return Replaced(recording, source=source)


def _split(count: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    order = rng.permutation(count)
    return sorted(order[: 2 * count // 3].tolist()), sorted(order[2 * count // 3 :].tolist())


def _scores(
    check: MeasuringCheck, data: _Set, real: Sequence[int], sim: Sequence[int], planted: dict[int, Replaced]
) -> list[CheckScore]:
    recordings = [_with_source(data.recordings[place], "real") for place in real]
    measured = [data.facts[place] for place in real]
    for place in sim:
        recordings.append(_with_source(planted.get(place, data.recordings[place]), "sim"))
        measured.append(check.measure_safely(planted[place]) if place in planted else data.facts[place])
    return list(check.judge(recordings, measured))


def shift_tallies(data: _Set, shift: Shift, *, repetitions: int, seed: int) -> Iterator[Tally]:
    """Plant a shift at each of its severities, in ``repetitions`` random splits of the set, and count detections."""
    check = shift.check()
    for severity, words in shift.severities:
        planted = found = false = good = 0
        for repetition in range(repetitions):
            rng = generator(seed, f"quality/{shift.seed_name or shift.name}/{words}/{data.name}", repetition)
            real, sim = _split(len(data.recordings), rng)
            chosen = rng.choice(sim, size=round(_SHARE * len(sim)), replace=False).tolist()
            changed = {place: shift.plant(data.recordings[place], severity) for place in chosen}
            called = flagged_ids(_scores(check, data, real, sim, changed))
            names = {recording.episode_id for recording in changed.values()}
            judged = {data.recordings[place].episode_id for place in sim if place not in changed}
            planted, found = planted + len(names), found + len(names & called)
            false, good = false + len(called & judged), good + len(judged)
        yield Tally(
            name=shift.name, severity=words, base=data.name, checks=(check.name,),
            planted=planted, found=found, false=false, good=good,
        )  # fmt: skip


def shifts_study(repetitions: int, seed: int) -> StudyTable:
    """Measure every shift at every severity."""
    found: list[Tally] = []
    with open_sets(seed=seed) as all_:
        for data in all_:
            for shift in SHIFTS:
                found += shift_tallies(data, shift, repetitions=repetitions, seed=seed)
    order = [shift.name for shift in SHIFTS]
    found.sort(key=lambda tally: order.index(tally.name))
    return tally_table("Shifts of simulated episodes", found, _NOTE)


def equal_data_study(repetitions: int, seed: int) -> StudyTable:
    """Count episodes that are flagged although both sides are drawn from one set."""
    rows, metrics = [], []
    with open_sets(seed=seed) as all_:
        for data in all_:
            for check in (LooksSimulated(), OutOfSupport()):
                counts: dict[str, int] = {"flagged": 0, "splits": 0}
                total = 0
                for repetition in range(repetitions):
                    rng = generator(seed, f"quality/alike/{data.name}", repetition)
                    real, sim = _split(len(data.recordings), rng)
                    judged = {data.recordings[place].episode_id for place in sim}
                    scores = [s for s in _scores(check, data, real, sim, {}) if s.episode_id in judged]
                    flagged = flagged_ids(scores)
                    counts["flagged"] += len(flagged)
                    counts["splits"] += bool(flagged)
                    total += len(judged)
                rows.append(_flag_row(check.name, data.name, counts, total, repetitions))
                metrics.append({"check": check.name, "base": data.name, "judged": total, **counts})
    head = ("check", "set", "judged", "flagged [95 %]", "splits with any flagged [95 %]")
    return StudyTable(
        title="Good simulated episodes and the learned discriminators",
        head=head,
        rows=tuple(rows),
        note=_EQUAL_DATA_NOTE,
        metrics=tuple(metrics),
    )


def _flag_row(check: str, name: str, counts: dict[str, int], total: int, repetitions: int) -> tuple[str, ...]:
    shares: list[Any] = [(counts["flagged"], total), (counts["splits"], repetitions)]
    return (check, name, str(total), *(rate(count, of) for count, of in shares))


TABLES = (
    Study(name="learned", page="evidence/curation.md", repetitions=2, run=shifts_study),
    Study(name="learned_alike", page="evidence/curation.md", repetitions=10, run=equal_data_study),
)
