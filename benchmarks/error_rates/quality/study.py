"""Provide good episodes, plant defects into some of them, and count detections, for all studies of episode checks."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from rich.console import Console

from benchmarks.error_rates.quality.planted.defect import Defect
from benchmarks.error_rates.quality.planted.edited import Edited
from benchmarks.studies import StudyTable
from twinloop.core.errors import TwinloopError
from twinloop.core.seeds import generator
from twinloop.curate.check import CheckScore, Measurement, MeasuringCheck
from twinloop.curate.recording import RecordedEpisode, open_recordings
from twinloop.curate.registry import open_checks
from twinloop.dataset.logs.conversion import write_log_dataset
from twinloop.dataset.logs.sets.registry import load_raw
from twinloop.stats import wilson
from twinloop.workflows.curate.scores import CatalogTwins
from twinloop.workflows.generate.generate import run_generate
from twinloop.workflows.generate.requests import GenerateRequest

TWIN, REAL = "so101_tabletop", "so101_pick_place_tape"
_WRONG = ("suspect", "bad")


@contextmanager
def simulated(episodes: int, *, seed: int, pixels: bool) -> Generator[list[RecordedEpisode]]:
    """Yield good simulated episodes: SO-101 pick and place by the expert, every parameter drawn from its range.

    Args:
        episodes: Number of attempts; only successful ones are kept.
        seed: Run seed.
        pixels: Whether to render images of 96×128 from both cameras.
    """
    section: dict[str, object] = {
        "scene": {"robot": "so101", "task": "pick_and_place"},
        "randomization": {"default": True},
        "rollout": {"parallel_envs": episodes, "episodes_per_env": 1},
        "seed": seed,
    }
    if pixels:
        section["render"] = {"cameras": ["front", "wrist"], "height": 96, "width": 128}
    with tempfile.TemporaryDirectory() as folder:
        file, output = Path(folder) / "generate.yaml", Path(folder) / "batch"
        file.write_text(yaml.safe_dump(section))
        with (Path(folder) / "output.txt").open("w") as output_file:
            run_generate(GenerateRequest(file=file, output=str(output), workers=1), Console(file=output_file))
        yield open_recordings(output.with_name("batch-images") if pixels else output)


@contextmanager
def recorded() -> Generator[list[RecordedEpisode]]:
    """Yield real data: 40 teleoperated episodes of an SO-101; an empty list if they cannot be loaded."""
    try:
        raw, _ = load_raw(REAL)
    except TwinloopError:
        yield []
        return
    with tempfile.TemporaryDirectory() as folder:
        yield open_recordings(write_log_dataset([episode.to_episode() for episode in raw], Path(folder) / "real"))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Counts for one defect, planted at one size into some episodes of one source.

    Attributes:
        planted: Number of episodes with the defect.
        found: Number of these that a check for this defect newly flags (verdict suspect or bad).
        noticed: Number of these that any check of the family newly flags.
        by: Number of these that each check newly flags.
        untouched: Number of unchanged episodes.
        wrongly: Number of unchanged episodes that are newly flagged.
    """

    source: str
    defect: str
    size: float
    planted: int
    found: int
    noticed: int
    by: Mapping[str, int]
    untouched: int
    wrongly: int


class Bench:
    """Good episodes of one source with the measurements of every check; only changed episodes are measured again.

    Args:
        source: Name of the data.
        recordings: Good episodes.
        words: Families or names of checks.
    """

    def __init__(self, source: str, recordings: Sequence[RecordedEpisode], *words: str) -> None:
        self.source, self.recordings = source, list(recordings)
        opened = open_checks(words, CatalogTwins(named=TWIN))
        self.checks = [check for check in opened if isinstance(check, MeasuringCheck)]
        self.measured_good = [
            [check.measure_safely(recording) for recording in self.recordings] for check in self.checks
        ]
        self.before = self._judge(self.recordings, self.measured_good)

    def false_alarms(self) -> dict[str, list[CheckScore]]:
        """Return the scores with verdict suspect or bad of unchanged episodes, by check."""
        found: dict[str, list[CheckScore]] = {}
        for score in self.before:
            if score.verdict in _WRONG:
                found.setdefault(score.check, []).append(score)
        return found

    def trial(self, defect: Defect, size: float, episodes: int, seed: int) -> Trial:
        """Plant a defect of the given size into at most ``episodes`` random episodes, and judge all episodes."""
        random = generator(seed, f"quality/{self.source}/{defect.name}/{size}")
        changed: dict[int, Edited] = {}
        for place in random.permutation(len(self.recordings)).tolist():
            made = defect.plant(self.recordings[place], size, random) if len(changed) < episodes else None
            if made is not None:
                changed[place] = made
        recordings = [changed.get(place, recording) for place, recording in enumerate(self.recordings)]
        measured = [
            [
                self._measure(check, changed[place], good) if place in changed else good
                for place, good in enumerate(rows)
            ]
            for check, rows in zip(self.checks, self.measured_good, strict=True)
        ]
        scores = self._judge(recordings, measured)
        return self._summarize(defect, size, {made.episode_id for made in changed.values()}, scores)

    def _summarize(self, defect: Defect, size: float, planted: set[str], scores: Sequence[CheckScore]) -> Trial:
        wrong = [score for score in scores if score.verdict in _WRONG]
        old = {(score.episode_id, score.check) for score in self.before if score.verdict in _WRONG}
        new = [score for score in wrong if (score.episode_id, score.check) not in old]
        named = {score.episode_id for score in new if score.check in defect.finds}
        by = Counter(check for check, _ in {(s.check, s.episode_id) for s in new if s.episode_id in planted})
        return Trial(
            source=self.source,
            defect=defect.name,
            size=size,
            planted=len(planted),
            found=len(planted & named),
            noticed=len(planted & {score.episode_id for score in new}),
            by=dict(sorted(by.items(), key=lambda row: (-row[1], row[0]))),
            untouched=len(self.recordings) - len(planted),
            wrongly=len({score.episode_id for score in new} - planted),
        )

    @staticmethod
    def _measure(check: MeasuringCheck, made: Edited, good: Sequence[Measurement]) -> Sequence[Measurement]:
        return check.measure_safely(made) if made.touched & check.reads else good

    def _judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Sequence[Measurement]]]
    ) -> list[CheckScore]:
        return [s for check, rows in zip(self.checks, measured, strict=True) for s in check.judge(recordings, rows)]


def defects_table(title: str, trials: Sequence[Trial], defects: Mapping[str, Defect], note: str) -> StudyTable:
    """Make a table with one row for each defect, size and source into which it could be planted."""
    rows, metrics = [], []
    for trial in trials:
        if not trial.planted:
            continue
        defect = defects[trial.defect]
        recall = wilson(trial.found, trial.planted)
        ends = f"{100 * float(recall.low):.0f}, {100 * float(recall.high):.0f}"
        flagged = trial.noticed + trial.wrongly
        by = ", ".join(f"{name.partition('/')[2]} {count}" for name, count in list(trial.by.items())[:3])
        rows.append((
            trial.defect, f"{trial.size:.3g} {defect.unit}", trial.source, str(trial.planted),
            f"{_percent(trial.found, trial.planted)} [{ends}]",
            _percent(trial.noticed, trial.planted), _percent(trial.noticed, flagged) if flagged else "–", by or "–",
        ))  # fmt: skip
        metrics.append(dict(trial.__dict__))
    head = ("planted", "size", "data", "n", "recall, % [95 %]", "noticed, %", "precision, %", "found by")
    return StudyTable(title=title, head=head, rows=tuple(rows), note=note, metrics=tuple(metrics))


def alarms_table(title: str, benches: Sequence[Bench]) -> StudyTable:
    """Make a table of false alarms on unchanged episodes."""
    rows, metrics = [], []
    for bench in benches:
        found = bench.false_alarms()
        episodes = {score.episode_id for scores in found.values() for score in scores}
        measured_count = sum(any(r.value is not None for r in row) for rows_ in bench.measured_good for row in rows_)
        by = "; ".join(f"{name} {len({s.episode_id for s in scores})}" for name, scores in found.items())
        count, total = len(episodes), len(bench.recordings)
        interval = wilson(count, total)
        rows.append((
            bench.source, str(total), str(len(bench.checks)), str(measured_count), str(sum(map(len, found.values()))),
            f"{count} of {total} [{100 * float(interval.low):.1f}, {100 * float(interval.high):.1f} %]", by or "–",
        ))  # fmt: skip
        metrics.append({"source": bench.source, "episodes": total, "flagged": count, "by": by})
    head = ("good data", "episodes", "checks", "measured", "alarms", "episodes called suspect or bad [95 %]", "by")
    return StudyTable(title=title, head=head, rows=tuple(rows), metrics=tuple(metrics))


def _percent(count: int, total: int) -> str:
    return f"{100 * count / total:.0f}"
