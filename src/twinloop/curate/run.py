"""Run many checks on many recordings in several processes; each recording is read only once for all checks."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from twinloop.catalog.schema import SCORES
from twinloop.core.errors import InputError, MissingDependencyError, TwinloopError
from twinloop.core.extension import describe_error
from twinloop.core.pool import WorkEngine
from twinloop.curate.check import READABLE, VERDICTS, CheckScore, EpisodeCheck, Measurement, MeasuringCheck
from twinloop.curate.recording import RecordedEpisode


def scores_table(scores: Iterable[CheckScore], checks: Sequence[EpisodeCheck], run_id: str) -> pa.Table:
    """Return scores as rows of the catalog's table ``scores``.

    Args:
        scores: the scores.
        checks: the checks that gave the scores; each row contains the hash of its check.
        run_id: id of the run that computed the scores.
    """
    hashes = {check.name: check.hash for check in checks}
    rows = [{**score.to_json(), "check_hash": hashes[score.check], "run_id": run_id} for score in scores]
    return pa.Table.from_pylist(rows, schema=SCORES.schema)


_CHUNK = 8  # recordings that a process gets at a time


@dataclass(frozen=True, kw_only=True)
class _WorkItem:
    """Recordings and the checks to measure on them; input of a worker process."""

    recordings: tuple[RecordedEpisode, ...]
    checks: tuple[MeasuringCheck, ...]


def score_all(
    recordings: Sequence[RecordedEpisode],
    checks: Sequence[EpisodeCheck],
    engine: WorkEngine,
    *,
    done: Callable[[int], None] = lambda _count: None,
) -> list[CheckScore]:
    """Run checks on recordings, and return all scores, grouped by check in the given order.

    Measurements of single recordings run in the engine's processes. Arrays are freed as soon as a recording is
    measured. The verdicts that compare episodes follow in this process, as do checks that are not a `MeasuringCheck`.
    An episode that cannot be read, or on which a check raises an error, gets the verdict ``unreadable`` from every
    check. It does not affect the limits that are estimated from the other episodes.

    Args:
        recordings: recordings of any datasets; only those of one batch, robot and source are compared.
        checks: the checks to run.
        engine: engine that distributes the measurements to processes.
        done: function called after each group of recordings, with the number of recordings in the group.

    Raises:
        InputError: If a check raises an error when it judges all episodes, or returns invalid scores.
    """
    measuring = tuple(check for check in checks if isinstance(check, MeasuringCheck))
    rows: list[list[Sequence[Measurement]]] = [[] for _ in measuring]
    for work, measured in engine.map(_measure_recordings, _split_work(recordings, measuring)):
        for place, part in enumerate(measured):
            rows[place] += part
        done(len(work.recordings))
    # The reason of the check `READABLE` names the file, so it comes before those of other checks.
    first = sorted(range(len(measuring)), key=lambda place: measuring[place].name != READABLE)
    reasons = _find_unreadable_reasons(recordings, [rows[place] for place in first])
    found: dict[int, list[CheckScore]] = {}
    for check in (check for check in checks if not isinstance(check, MeasuringCheck)):
        found[id(check)] = _score_recordings(check, recordings, reasons)
    readable = [recording.episode_id not in reasons for recording in recordings]
    left = list(itertools.compress(recordings, readable))
    for check, part in zip(measuring, rows, strict=True):
        found[id(check)] = _judge_measurements(check, left, list(itertools.compress(part, readable)))
    scores = list[CheckScore]()
    for check in checks:
        scores += [score for score in found[id(check)] if score.episode_id not in reasons]
        scores += _make_unreadable_scores(check, recordings, reasons)
        for recording in recordings:
            recording.free_arrays()
    return scores


def _find_unreadable_reasons(
    recordings: Sequence[RecordedEpisode], rows: Sequence[Sequence[Sequence[Measurement]]]
) -> dict[str, str]:
    """Return the first reason why an episode cannot be read, for each unreadable episode by id.

    Args:
        recordings: the episodes.
        rows: measurements by check, then by recording; the reason of the earliest check is returned.
    """
    reasons: dict[str, str] = {}
    for measured in rows:
        for recording, part in zip(recordings, measured, strict=True):
            for row in part:
                if row.unreadable:
                    reasons.setdefault(recording.episode_id, row.text)
    return reasons


def _make_unreadable_scores(
    check: EpisodeCheck, recordings: Sequence[RecordedEpisode], reasons: Mapping[str, str]
) -> list[CheckScore]:
    """Return a check's scores of the unreadable episodes: the verdict ``unreadable`` with the reason, one per episode.

    Args:
        check: the check.
        recordings: all episodes.
        reasons: reason for each unreadable episode, by id.
    """
    ids = dict.fromkeys(recording.episode_id for recording in recordings)
    return [
        CheckScore(episode_id=name, check=check.name, verdict="unreadable", reason=reasons[name])
        for name in ids
        if name in reasons
    ]


def _judge_measurements(
    check: MeasuringCheck, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
) -> list[CheckScore]:
    with _add_check_name(check):
        return _validate_scores(check, recordings, check.judge(recordings, measured)) if recordings else []


def _score_recordings(
    check: EpisodeCheck, recordings: Sequence[RecordedEpisode], reasons: dict[str, str]
) -> list[CheckScore]:
    """Return the scores of a check that is not a `MeasuringCheck`.

    An episode on which the check raises an error is added to ``reasons`` and gets no score here.

    Args:
        check: the check.
        recordings: all episodes; those in ``reasons`` are excluded.
        reasons: reason for each unreadable episode, by id; changed in place.
    """
    left = [recording for recording in recordings if recording.episode_id not in reasons]
    try:
        return _validate_scores(check, left, check.score(left))
    except MissingDependencyError:
        raise
    except Exception:  # noqa: BLE001 - the next line finds the episode
        raised_on = {
            recording.episode_id: reason for recording in left if (reason := _describe_raised_error(check, recording))
        }
    reasons |= raised_on
    left = [recording for recording in left if recording.episode_id not in raised_on]
    with _add_check_name(check):
        return _validate_scores(check, left, check.score(left)) if left else []


def _describe_raised_error(check: EpisodeCheck, recording: RecordedEpisode) -> str:
    """Run a check on one episode alone, and return a description of the error that it raises; "" if it raises none."""
    try:
        list(check.score([recording]))
    except Exception as error:  # noqa: BLE001 - any error means that the episode was not checked
        return f"{check.name} raised {describe_error(error)}."
    return ""


@contextlib.contextmanager
def _add_check_name(check: EpisodeCheck | MeasuringCheck) -> Iterator[None]:
    """Context manager that converts an error of a check into an `InputError` with the name of the check.

    Raises:
        InputError: If the block raises an error that is not a `TwinloopError`.
    """
    try:
        yield
    except TwinloopError:
        raise
    except Exception as error:
        raise InputError(
            f"The check {check.name} raised {describe_error(error)} when it judged all episodes. Correct the check, or "
            "select other checks with --checks. No episode was scored."
        ) from error


def _validate_scores(
    check: EpisodeCheck | MeasuringCheck, recordings: Sequence[RecordedEpisode], scores: Iterable[CheckScore]
) -> list[CheckScore]:
    """Validate a check's scores of these episodes; add the verdict ``unknown`` for episodes that got no score.

    Raises:
        InputError: If a verdict does not exist, or a score belongs to another episode.
    """
    made, ids = list(scores), dict.fromkeys(recording.episode_id for recording in recordings)
    for score in made:
        if score.verdict not in VERDICTS or score.episode_id not in ids:
            raise InputError(
                f"The check {check.name} gave the verdict {score.verdict!r} for the episode {score.episode_id!r}. A "
                f"verdict must be one of {', '.join(VERDICTS)}, for one of the given episodes."
            )
    missing = ids.keys() - {score.episode_id for score in made}
    silent = [CheckScore(episode_id=name, check=check.name, verdict="unknown", reason="The check gave no score.")
              for name in ids if name in missing]  # fmt: skip
    return made + silent


def _split_work(recordings: Sequence[RecordedEpisode], checks: tuple[MeasuringCheck, ...]) -> Iterator[_WorkItem]:
    for begin in range(0, len(recordings) if checks else 0, _CHUNK):
        yield _WorkItem(recordings=tuple(recordings[begin : begin + _CHUNK]), checks=checks)


def _measure_recordings(work: _WorkItem) -> list[list[Sequence[Measurement]]]:
    """Run the work item's checks on its recordings, and return the measurements by check, then by recording."""
    rows: list[list[Sequence[Measurement]]] = [[] for _ in work.checks]
    for recording in work.recordings:
        for place, check in enumerate(work.checks):
            rows[place].append(check.measure_safely(recording))
        recording.free_arrays()
    return rows
