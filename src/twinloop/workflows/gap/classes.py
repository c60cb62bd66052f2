"""Diagnose why a policy fails on the robot (`twinloop gap classes`): run every check that the given data allow.

A failure class is a cause, such as drift since the calibration or conditions that training never covered. A check
tests one class on one subject, for example on a joint or an environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from twinloop.core.distribution import ParamDistribution
from twinloop.core.documents import read_json
from twinloop.core.errors import InputError
from twinloop.core.headline import HeadlineMetric, read_headlines
from twinloop.core.records import Episode
from twinloop.core.trials import Trials
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.trials import read_trials
from twinloop.gap.policies.classes import (
    EpisodeErrors,
    check_conditions,
    check_drift,
    check_gap_limits,
    check_other_environment,
    check_simulation_easier,
    check_weak_policies,
    compute_relative_errors,
)
from twinloop.gap.policies.classes_coverage import (
    TrainingSupport,
    check_axis_coverage,
    check_combination_coverage,
    visited_axes,
)
from twinloop.gap.policies.classes_result import ALPHA, MEANINGS, ClassCheck, FailureDiagnosis, Kind, adjust_checks
from twinloop.randomize import read_identified
from twinloop.report import ReportPage
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.twin import Twin, load_twin
from twinloop.workflows.data.logs import LogEpisodes, open_log
from twinloop.workflows.gap.requests import GapClassesRequest
from twinloop.workflows.run.results import MeasuredRun, Outcome


def classes_section(page: ReportPage, found: FailureDiagnosis) -> None:
    """Add to a report the failure classes that apply, with evidence and remedies, all checks, and skipped classes."""
    page.section(
        "Failure classes",
        f"{len(found.classes)} failure classes apply, by {len(found.checks)} checks. A class applies only if the "
        f"evidence of a check is significant at {ALPHA:.0%} after Holm's correction over all checks.",
    )
    if found.fired_checks:
        page.table(
            ["class", "subject", "evidence", "what to do"],
            [[MEANINGS[c.kind], c.subject, c.evidence, "; ".join(c.remedy)] for c in found.fired_checks],
        )
    if found.checks:
        page.table(
            ["class", "subject", "applies", "p (Holm)", "evidence", "missing data"],
            [
                [
                    MEANINGS[c.kind],
                    c.subject,
                    "yes" if c.fired else "no",
                    _format_p_value(c),
                    c.evidence,
                    c.needed or "–",
                ]
                for c in found.checks
            ],
            caption="Every check that the data allowed.",
        )
    for kind, why in found.skipped.items():
        page.text(f"Not checked, {MEANINGS[kind]}: {why}.")


def _format_p_value(check: ClassCheck) -> str:
    return "–" if np.isnan(check.p_value) else f"{check.p_value:.2g}"


_DRAWN = "provenance/rand."
_MEASURED = ("dynamics", "why")  # kinds of runs that measure the size of a gap


def _check_request(request: GapClassesRequest) -> None:
    """Raise `InputError` if a request has no data for any check, or a threshold that is not between 0 and 1."""
    training = request.training and request.data
    if not any((training, request.trials, request.gap, request.other, request.calibrated)):
        raise InputError(
            "Nothing to diagnose. Give one of: --data and --training (coverage); --data, --twin and --calibrated "
            "(drift); --data and --other (environments); --gap RUN of `twinloop gap`; --trials FILE with scored trials."
        )
    for flag in ("min_skill", "max_unexplained", "min_success"):
        value = getattr(request, flag)
        if not 0.0 <= value <= 1.0:
            raise InputError(f"--{flag.replace('_', '-')} {value:g}: give a share, such as 0.5 for 50 %.")
    for flag in ("other", "calibrated"):
        if getattr(request, flag) and not (request.data and request.twin):
            raise InputError(f"--{flag} compares the errors of a twin on a log. Give --twin and --data as well.")


def run_gap_classes(request: GapClassesRequest, console: Console) -> Outcome:
    """Check every failure class that the data allow; print and store the classes that apply, with their remedies.

    A failure class is a kind of cause of policy failures on the robot, such as drift since the calibration.

    Raises:
        InputError: If the options allow no check, contradict each other, or are invalid.
    """
    _check_request(request)
    log = None if request.data is None else open_log(request.data, request.reading)
    run = MeasuredRun.begin("gap", "classes", request.output, request.fail_if, console)
    found = diagnose(request, log)
    for sentence in found.sentences():
        console.print(f"- {sentence}", soft_wrap=True)
    return run.end(
        found.to_json(),
        classes_headline(found),
        title="Failure classes",
        subtitle=log.label if log is not None else "scored trials",
        fill=lambda page: classes_section(page, found),
    )


def classes_headline(found: FailureDiagnosis) -> list[HeadlineMetric]:
    """Return the number of failure classes that apply, and for each checked class 1 if it applies, else 0."""
    why = "a count of tests that are significant after Holm has no interval"
    rows = [
        HeadlineMetric(
            name="classes", estimate=float(len(found.classes)), method=why, meaning="failure classes that apply"
        )
    ]
    checked = {check.kind for check in found.checks}
    return rows + [
        HeadlineMetric(name=f"class/{kind}", estimate=float(kind in found.classes), method=why, meaning=MEANINGS[kind])
        for kind in MEANINGS
        if kind in checked
    ]


def diagnose(request: GapClassesRequest, log: LogEpisodes | None) -> FailureDiagnosis:
    """Run every check for a class of failure cause that the options and data of a request allow.

    Args:
        request: the options, with the paths of trials, runs and other logs.
        log: the real episodes of ``request.data``; None if it is not given.

    Returns:
        The checks with p-values adjusted by Holm's method, and for each class that was not checked the missing data.

    Raises:
        InputError: If no check is possible.
    """
    checks: list[ClassCheck] = []
    skipped: dict[Kind, str] = {}
    _check_coverage(request, log, checks, skipped)
    _check_gap_width(request, checks, skipped)
    _check_twin_errors(request, log, checks, skipped)
    _check_trials(request, checks, skipped)
    if not checks:
        why = "; ".join(f"{kind.replace('_', ' ')}: {words}" for kind, words in skipped.items())
        raise InputError(f"Nothing could be checked. {why[:1].upper()}{why[1:]}.")
    return adjust_checks(checks, skipped)


def _check_coverage(
    request: GapClassesRequest, log: LogEpisodes | None, checks: list[ClassCheck], skipped: dict[Kind, str]
) -> None:
    if request.training is None or log is None:
        skipped["never_covered"] = "give --data and --training (a dataset, or the folder of an identify run)"
        return
    names, rows = visited_axes(log.episodes)
    support = load_training_support(request.training)
    name = request.twin or "TWIN"
    remedy = (
        f"twinloop identify --twin {name} --data {request.data} --output run",
        "twinloop generate FILE --randomize-from run --output wider",
    )
    checks += check_axis_coverage(support, names, rows, remedy=remedy)
    together = check_combination_coverage(support, names, rows, remedy=remedy)
    checks += [] if together is None else [together]


def load_training_support(training: str) -> TrainingSupport:
    """Return the conditions and states that occurred in training, to compare real episodes with them.

    Args:
        training: a dataset or log with the training episodes, or the folder of an identify run, whose parameter ranges
            are used.

    Raises:
        InputError, DatasetError: If ``training`` is neither a readable dataset or log nor an identify run.
    """
    path = Path(training)
    run = path / "result.json"
    if run.is_file() and "distribution" in read_json(run):
        found = ParamDistribution.from_json(read_identified(path)["distribution"])
        return TrainingSupport.of_distribution(found, origin=str(path))
    names, rows = visited_axes(open_log(training).episodes)
    drawn = _drawn_parameters(path)
    both = np.concatenate([rows, np.stack(list(drawn.values()), axis=-1)], axis=1) if drawn else rows
    return TrainingSupport(names=(*names, *drawn), values=both, origin=str(training))


def _drawn_parameters(path: Path) -> dict[str, NDArray[np.float64]]:
    """Return the randomized parameters of a generated dataset by name, with one value per episode, ``(nepisode,)``.

    A value is NaN if an episode does not record it. The result is empty for other datasets.
    """
    if not (path / layout.INFO).is_file():
        return {}
    reader = DatasetReader(path)
    rows = [reader.row(index) for index in range(len(reader))]
    keys = [key for key in (rows[0] if rows else {}) if key.startswith(_DRAWN)]
    return {
        key.removeprefix(_DRAWN).replace(".", "/"): np.array([np.nan if r[key] is None else r[key] for r in rows])
        for key in keys
    }


def _check_gap_width(request: GapClassesRequest, checks: list[ClassCheck], skipped: dict[Kind, str]) -> None:
    if request.gap is None:
        skipped["gap_too_wide"] = "give --gap with the folder of a run of `twinloop gap`"
        return
    file = request.gap / "result.json" if request.gap.is_dir() else request.gap
    if not file.is_file():
        raise InputError(f"{file} does not exist. Give --gap the folder that `twinloop gap dynamics --output` wrote.")
    result = read_json(file)
    if result.get("kind") not in _MEASURED:
        made = f"gap {result['kind']}" if "kind" in result else str(result.get("verb", "something else"))
        raise InputError(f"{request.gap} is a run of `{made}`. Give --gap one of `gap dynamics` or `gap why`.")
    metrics = list(read_headlines(result).values())
    limits = {"skill": request.min_skill, "unexplained": request.max_unexplained}
    words = f"twinloop identify --twin {request.twin or 'TWIN'} --data {request.data or 'LOG'}"
    remedy = (f"{words} --holdout last:10 --output run", f"{words} --compare --output hypotheses")
    episodes = result.get("episodes", 1)
    found = check_gap_limits(
        metrics, limits, episodes=len(episodes) if isinstance(episodes, list) else int(episodes), remedy=remedy
    )
    if not found:
        names = ", ".join(metric.name for metric in metrics) or "none"
        skipped["gap_too_wide"] = f"{request.gap} has no metric skill/… or unexplained/…, it has {names}"
    checks += found


def _check_twin_errors(
    request: GapClassesRequest, log: LogEpisodes | None, checks: list[ClassCheck], skipped: dict[Kind, str]
) -> None:
    if request.calibrated is None:
        skipped["drift"] = "give --calibrated (the first episode's number after it, or its date), --twin and --data"
    if request.other is None and not request.trials:
        skipped["other_environment"] = "give --other with a log from there, or --trials with named conditions"
    if log is None or request.twin is None or not (request.calibrated or request.other):
        return
    twin = load_twin(request.twin)
    here = compute_twin_errors(twin, log.episodes, request.params)
    words = f"twinloop identify --twin {request.twin} --data"
    if request.calibrated is not None:
        first = _first_episode_after(log.episodes, request.calibrated)
        remedy = (
            f"{words} {request.data} --drift 3 --output drift",
            f"{words} LATER_EPISODES --output recalibrated",
        )
        checks += check_drift(here, first, remedy=remedy)
    if request.other is not None:
        there = compute_twin_errors(twin, open_log(request.other).episodes, request.params)
        remedy = (
            f"{words} {request.other} --output there",
            "twinloop generate FILE --randomize-from there --output there-dataset",
        )
        checks += check_other_environment(here, there, name=request.other, remedy=remedy)


def compute_twin_errors(twin: Twin, episodes: Sequence[Episode], params: Path | None) -> EpisodeErrors:
    """Return a twin's replay errors per episode and joint, divided by those of a baseline.

    The baseline predicts that each joint keeps its first position.

    Args:
        twin: the twin.
        episodes: real episodes, which are replayed with their recorded commands.
        params: folder of an identify run, whose estimates replace the nominal values; None for nominal values.

    Raises:
        InputError: If the twin diverges in an episode.
    """
    logs = prepare_replay(twin, episodes)
    values = {} if params is None else ParamDistribution.from_json(read_identified(params)["distribution"]).estimate
    known = {name: value for name, value in values.items() if name in logs.twin.params}
    readings = replay(open_backend(), logs, logs.twin.table(1, known))[0]
    if np.isinf(readings).any():
        lost = logs.episode_numbers[int(np.argwhere(np.isinf(readings))[0, 0])]
        raise InputError(f"The twin {twin.name} diverges in episode {lost}. Give other parameters, or leave it out.")
    names = [channel.name.removeprefix("position/") for channel in logs.channels]
    return compute_relative_errors(
        names, logs.episode_errors(readings), logs.episode_errors(logs.hold_baseline), logs.episodes
    )


def _first_episode_after(episodes: Sequence[Episode], calibrated: str) -> int:
    """Return the 0-based position in ``episodes`` of the first episode after a calibration.

    Args:
        episodes: the episodes in order of time.
        calibrated: `Episode.index` of the first episode after the calibration, or date and time of the calibration
            (ISO 8601).

    Raises:
        InputError: If ``calibrated`` is neither a number nor a date.
    """
    if calibrated.isdigit():
        return sum(episode.index < int(calibrated) for episode in episodes)
    try:
        moment = datetime.fromisoformat(calibrated).timestamp()
    except ValueError as error:
        raise InputError(
            f"--calibrated {calibrated}: give the number of the first episode after the calibration, or a date such as "
            "2026-03-01T08:00."
        ) from error
    return sum(float(episode.time[0]) < moment for episode in episodes)


def _check_trials(request: GapClassesRequest, checks: list[ClassCheck], skipped: dict[Kind, str]) -> None:
    if not request.trials:
        why = "give --trials with real and simulated scored trials"
        skipped["weak_in_simulation"] = skipped["beyond_what_is_modelled"] = why
        return
    trials = Trials.concatenate_trials(read_trials(path) for path in request.trials)
    named = [name for name in trials.real.conditions if name]
    if len(named) > 1:
        data = request.other or "LOG_FROM_THERE"
        again = (
            f"twinloop identify --twin {request.twin or 'TWIN'} --data {data} --output there",
            "twinloop generate FILE --randomize-from there --output there-dataset",
        )
        checks += check_conditions(trials, remedy=dict.fromkeys(named, again))
    elif request.other is None:
        skipped["other_environment"] = f"the real trials name {len(named)} conditions, two are needed"
    if not len(trials.sim):
        skipped["weak_in_simulation"] = skipped["beyond_what_is_modelled"] = "there are no simulated trials"
        return
    checks += check_weak_policies(
        trials, request.min_success, remedy=("twinloop generate FILE --episodes 10000 --output more",)
    )
    if len(trials.real):
        pixels = ("twinloop gap sensors --real LOG --sim DATASET", "twinloop gap vision --real LOG --sim DATASET")
        checks += check_simulation_easier(trials, remedy=pixels)
