"""Open robot logs and public data sets by path or name, check them for defects, and import them as datasets.

All commands that read logs use `open_log`, so that they accept the same formats and print the same origin.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
from rich.console import Console

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.files import sha256_bytes, sha256_file, sha256_json, sha256_tree
from twinloop.core.records import Episode
from twinloop.dataset.logs.checks.repairs import LogRepairs
from twinloop.dataset.logs.conversion import write_log_dataset
from twinloop.dataset.logs.formats import read_raw
from twinloop.dataset.logs.importers.csv import list_tables
from twinloop.dataset.logs.importers.protocol import RawEpisode
from twinloop.dataset.logs.sets import registry
from twinloop.dataset.signals import find_shared_signals
from twinloop.dataset.spec import ReadingSpec
from twinloop.simulate.inverse_dynamics import InverseDynamics
from twinloop.twin import Twin, load_twin
from twinloop.workflows.data.requests import ImportRequest, LogCorrections, LogReading
from twinloop.workflows.run.results import Outcome

if TYPE_CHECKING:
    from twinloop.dataset.logs.checks.finding import JointExpectations, LogReport

_SAME_RATE = 0.02  # largest relative difference of rates that count as equal, as for a replay


@dataclass(frozen=True, kw_only=True)
class LogEpisodes:
    """Checked episodes of a log, with their origin.

    Attributes:
        name: name of the file, folder or public set.
        label: sentence on the origin, printed with every metric that is computed from the episodes.
        hash: SHA-256 of the files.
        episodes: the episodes.
        licence: licence of the data, or "".
        notes: choices that were made while the log was read, such as a default unit.
    """

    name: str
    label: str
    hash: str
    episodes: tuple[Episode, ...]
    licence: str = ""
    notes: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary for results."""
        return {
            "name": self.name,
            "label": self.label,
            "hash": self.hash,
            "episodes": len(self.episodes),
            "source": self.episodes[0].source,
            "origin": self.episodes[0].origin,
        }


@dataclass(frozen=True, kw_only=True)
class RawLog:
    """Log with unchecked episodes, which still have the defects of the files.

    Attributes:
        name: name of the file, folder or public set.
        label: sentence on the origin, printed with every metric that is computed from the episodes.
        hash: SHA-256 of the files.
        episodes: the unchecked episodes.
        licence: licence of the data, or "".
    """

    name: str
    label: str
    hash: str
    episodes: tuple[RawEpisode, ...]
    licence: str = ""

    def validate_episodes(self, repairs: LogRepairs | None = None) -> LogEpisodes:
        """Repair the episodes if requested, check them, and return the valid log.

        Args:
            repairs: the repairs; None for no repair.

        Raises:
            LogError: If an episode is invalid.
        """
        episodes = (repairs or LogRepairs()).repair_episodes(self.episodes)
        notes = tuple(dict.fromkeys(note for episode in self.episodes for note in episode.notes))
        return LogEpisodes(
            name=self.name,
            label=self.label,
            hash=self.hash,
            episodes=tuple(episodes),
            licence=self.licence,
            notes=notes,
        )


def open_log(reference: str, reading: LogReading | None = None, *, task: str = "") -> LogEpisodes:
    """Open a log, and check its episodes.

    Args:
        reference: path of the log, or name of a public set if there is no such path.
        reading: facts that the files do not contain, such as units.
        task: task sentence for episodes of the log.

    Raises:
        UnknownNameError: If there is neither such a path nor such a public set.
        LogError: If an episode is invalid.
        UnitsError: If the units of the joints are unknown.
        DatasetError: If a dataset folder cannot be read.
    """
    return open_raw(reference, reading, task=task).validate_episodes()


def open_logs(references: Sequence[str], reading: LogReading | None = None) -> LogEpisodes:
    """Open several logs as one log, for example of normal operation and of an excitation.

    The episodes are numbered from 0 over all logs, and a note of the result lists the numbers of each log.

    Args:
        references: path or public name of each log.
        reading: facts that the files do not contain, the same for all logs.

    Raises:
        InputError: If no log is named.
        UnknownNameError, LogError, UnitsError, DatasetError: If `open_log` raises them for one of the logs.
    """
    if not references:
        raise InputError("No log was given. Name a log or dataset, or a public set.")
    logs = [open_log(reference, reading) for reference in references]
    if len(logs) == 1:
        return logs[0]
    episodes = [episode for log in logs for episode in log.episodes]
    ends = itertools.accumulate(len(log.episodes) for log in logs)
    counted = [
        f"Episodes {end - len(log.episodes)} to {end - 1} are from {log.name}."
        for log, end in zip(logs, ends, strict=True)
    ]
    return LogEpisodes(
        name=" and ".join(log.name for log in logs),
        label="; ".join(log.label for log in logs),
        hash=sha256_bytes(*(log.hash.encode() for log in logs)),
        episodes=tuple(replace(episode, index=number) for number, episode in enumerate(episodes)),
        licence="; ".join(dict.fromkeys(log.licence for log in logs if log.licence)),
        notes=(*counted, *dict.fromkeys(note for log in logs for note in log.notes)),
    )


def open_raw(
    reference: str, reading: LogReading | None = None, *, task: str = "", numbered: Sequence[str] = ()
) -> RawLog:
    """Open a log as `open_log` does, but without checks, so that its defects can be reported or repaired.

    Args:
        reference: path or public name of the log.
        reading: facts that the log does not contain.
        task: task sentence for the episodes, or "".
        numbered: names for joints of which a table has only the numbers, see `guess_description`.

    Raises:
        InputError: If the path does not exist, or an option does not apply to this log.
        UnknownNameError: If there is neither such a path nor such a public set.
        UnitsError: If the units of the joints are unknown.
        DatasetError: If a dataset folder cannot be read.
    """
    path, words = Path(reference), reading or LogReading()
    given = [f"--{name}" for name, value in vars(words).items() if value]
    if path.exists() or list_tables(path):
        return (
            _open_path(path, words, task, numbered)
            if words.layout is None
            else _open_with_layout(words.layout, path, task, given)
        )
    if "/" in reference or path.suffix:
        raise InputError(f"{reference} does not exist. Check the path, or name one of: {', '.join(registry.SETS)}.")
    if reference not in registry.SETS:
        raise UnknownNameError("log", reference, registry.SETS, where="the public sets, and no file has this name")
    if given:
        raise InputError(f"{reference} is a public set, which needs no options. Leave out {', '.join(given)}.")
    return _set_task(_open_public_raw(reference), task)


def open_public(name: str) -> LogEpisodes:
    """Open a public data set by name; it is downloaded at first use.

    Raises:
        UnknownNameError: If there is no such set.
        RealDataUnavailableError: If the set is not in the data folder and cannot be downloaded.
    """
    return _open_public_raw(name).validate_episodes()


def _open_public_raw(name: str) -> RawLog:
    episodes, located = registry.load_raw(name)
    checked = "SHA-256 verified" if located.verified else "hash recorded, not verified"
    return RawLog(
        name=name,
        label=f"real log {name}, {located.origin} ({checked})",
        hash=located.hash,
        episodes=tuple(episodes),
        licence=located.entry.licence,
    )


def _set_task(log: RawLog, task: str) -> RawLog:
    return log if not task else replace(log, episodes=tuple(replace(episode, task=task) for episode in log.episodes))


def _open_with_layout(layout: str, path: Path, task: str, given: list[str]) -> RawLog:
    """Open a folder that has the same file layout as a public set.

    Args:
        layout: name of the public set.
        path: the folder.
        task: task sentence for the episodes, or "".
        given: flags that the user gave, for the error message.

    Raises:
        InputError: If any flag besides ``--layout`` is given.
    """
    if others := [word for word in given if word != "--layout"]:
        raise InputError(f"With --layout {layout} the log needs no other options. Leave out {', '.join(others)}.")
    episodes = registry.read_set(layout, path, label=f"{layout} ({path.name})")
    label = f"real log {path}, laid out like {layout}"
    return _set_task(RawLog(name=path.name, label=label, hash=sha256_tree(path), episodes=tuple(episodes)), task)


def _open_path(path: Path, words: LogReading, task: str, numbered: Sequence[str]) -> RawLog:
    units, joints = words.units, words.joints
    episodes = read_raw(
        path,
        units=units.split(",") if units and "," in units else units,
        joints=joints.split(",") if joints else None,
        numbered=numbered,
        calibration=words.calibration,
        topics=_parse_topics(words.topics or ""),
        description=words.describe,
        guess=words.guess,
        task=task,
    )
    digest = sha256_tree(path) if path.exists() else sha256_json([sha256_file(file) for file in list_tables(path)])
    kind = {"real": "real log", "sim": "simulated log"}.get(episodes[0].source, f"{episodes[0].source} log")
    return RawLog(name=path.stem, label=f"{kind} {path}", hash=digest, episodes=tuple(episodes))


def _parse_topics(words: str) -> dict[str, str]:
    """Parse words ``ROLE=TOPIC,…``, and return the ROS topics by role, such as ``command``.

    Raises:
        InputError: If a word has another form.
    """
    pairs = [word.partition("=") for word in words.split(",") if word]
    for role, sign, topic in pairs:
        if not (role and sign and topic):
            raise InputError(f"--topics {role}{sign}{topic}: write ROLE=TOPIC, such as command=/arm/commands.")
    return {role: topic for role, _, topic in pairs}


def import_episodes(log: LogEpisodes, output: Path) -> dict[str, Any]:
    """Write the episodes of a log as a LeRobot v3.0 dataset, and return the metrics of the import."""
    write_log_dataset(log.episodes, output, data_hash=log.hash, licence=log.licence)
    first, shared = log.episodes[0], find_shared_signals(log.episodes)
    rates = sorted((len(e) - 1) / (e.time[-1] - e.time[0]) for e in log.episodes if len(e) > 1)
    return {
        "schema": 1,
        "verb": "import",
        "data": log.describe(),
        "output": str(output),
        "episodes": len(log.episodes),
        "frames": sum(map(len, log.episodes)),
        "fps": round(rates[len(rates) // 2], 3) if rates else None,
        "joints": list(first.joints),
        "units": ", ".join(f"{unit} ×{n}" for unit, n in Counter(u.unit for u in first.units.joints).items()),
        "radians_known": first.units.known,
        "command": first.command,
        "features": [spec.key for spec in shared.values()],
        "notes": [*log.notes, *_describe_hidden_content(log.episodes, shared), *_describe_rate_spread(rates)],
    }


def _describe_hidden_content(episodes: Sequence[Episode], shared: Mapping[str, ReadingSpec]) -> list[str]:
    """Return notes on content of the episodes that programs which read only LeRobot's standard features do not see.

    Args:
        episodes: the episodes.
        shared: signals that all episodes have and that are therefore features of the dataset.
    """
    actions = {
        "velocity": ["the actions are velocities in the joints' units per second"],
        "torque": ["the actions are torques in N·m"],
        "none": ["the log has no commands: actions are 0"],
    }
    notes = actions.get(episodes[0].command, [])
    if alone := sorted({name for episode in episodes for name in episode.signals} - set(shared)):
        notes.append(f"signals that are not in every episode are stored in side tables only: {', '.join(alone)}")
    if any(episode.conditions for episode in episodes):
        notes.append("the episodes' conditions are stored in the provenance")
    return notes


def _describe_rate_spread(rates: Sequence[float]) -> list[str]:
    """Return a note if episodes have different frame rates, because the dataset states only one.

    Args:
        rates: frame rate of each episode in Hz, sorted.
    """
    if not rates or rates[-1] / rates[0] - 1.0 < _SAME_RATE:
        return []
    span = f"{rates[0]:.4g} to {rates[-1]:.4g} Hz"
    return [
        f"episodes at {span} share one nominal rate; twinloop/log has their real times, --resample HZ gives one rate"
    ]


_TONES = {"error": "bold red", "warning": "yellow", "note": "dim"}


def build_joint_expectations(twin: Twin) -> JointExpectations:
    """Return the joints, position limits and inverse dynamics of a twin, with which a log of its robot is compared.

    Raises:
        InputError: If the twin has no robot.
    """
    joints = [twin.model.joint(name) for name in twin.robot.joints]
    limited = np.array([bool(joint.limited[0]) for joint in joints])
    from twinloop.dataset.logs.checks.finding import JointExpectations

    return JointExpectations(
        name=twin.name,
        joints=tuple(twin.robot.joints),
        ranges=np.where(limited[:, None], twin.joint_ranges, [-np.inf, np.inf]),
        slides=np.array([joint.type[0] == mujoco.mjtJoint.mjJNT_SLIDE for joint in joints]),
        control=twin.robot.control,
        inverse_dynamics=None if twin.robot.gears is not None else InverseDynamics(twin),
    )


def run_import(request: ImportRequest, console: Console) -> Outcome:
    """Check a log for defects, import it as a dataset, or both; requested repairs are applied first.

    Returns:
        The metrics, and exit code 1 if the check found errors, else 0. A log with errors is not imported.

    Raises:
        InputError: If neither a check nor an output is requested.
    """
    output, repairs = request.output, build_repairs(request.mend)
    if not request.check and output is None:
        raise InputError("Nothing to do: give --output DIR to import the log, --check to look for defects, or both.")
    twin, code = None if request.twin is None else load_twin(request.twin), 0
    numbered = () if twin is None or twin.spec.robot is None else twin.spec.robot.joints
    log = open_raw(request.log, request.reading, task=request.task, numbered=numbered)
    if request.reading.guess and not request.reading.joints and log.episodes[0].joints == tuple(numbered):
        console.print(f"The joints are named as in the twin, in order: {', '.join(numbered)}.", soft_wrap=True)
    result: dict[str, Any] = {}
    if request.check:
        from twinloop.dataset.logs.checks.check import check_log  # loads scipy.signal, which takes a second

        expectations = None if twin is None else build_joint_expectations(twin)
        report = check_log([repairs.repair_episode(episode) for episode in log.episodes], expectations)
        console.print(f"Data: {log.label}")
        print_report(report, console)
        result = {"schema": 1, "verb": "import", "check": report.to_json(), "twin": request.twin, "log": log.label}
        code = 0 if result["check"]["passed"] else 1
        output = None if report.errors else output
    if output is not None:
        result |= import_episodes(log.validate_episodes(repairs), output)
        console.print(
            f"{result['episodes']} episodes, {result['frames']} frames at {result['fps']} Hz "
            f"in {result['units']}: {output}"
        )
        for note in result["notes"]:
            console.print(f"  {note}", style="dim")
    return result, code


def build_repairs(corrections: LogCorrections) -> LogRepairs:
    """Convert the flags for corrections of a log to `LogRepairs`.

    Raises:
        InputError: If a flag has an invalid value.
    """
    if corrections.quaternions not in ("wxyz", "xyzw"):
        raise InputError(f"--quaternions {corrections.quaternions}: give wxyz or xyzw.")
    return LogRepairs(
        time_scale=corrections.time_scale,
        scale=_parse_named_numbers("--scale", corrections.scale),
        quaternions_xyzw=corrections.quaternions == "xyzw",
        flip=corrections.flip,
        shift=_parse_named_numbers("--shift", corrections.shift, alone=True),
        clock_rate=corrections.clock_rate,
        unwrap=corrections.unwrap,
        drop_missing=corrections.drop_missing,
        drop_duplicates=corrections.drop_duplicates,
        resample_hz=corrections.resample,
    )


def _parse_named_numbers(flag: str, words: tuple[str, ...], *, alone: bool = False) -> dict[str, float]:
    """Parse words ``NAME=NUMBER``, and return the numbers by name.

    Args:
        flag: flag to which the words belong, for error messages.
        words: the words.
        alone: whether a number without a name is allowed; it gets the name "".

    Raises:
        InputError: If a word has another form.
    """
    found: dict[str, float] = {}
    for word in words:
        name, _, number = word.rpartition("=")
        try:
            found[name] = float(number)
        except ValueError:
            raise InputError(
                f"{flag} {word}: give NAME=NUMBER{', or a number for all joints' if alone else ''}."
            ) from None
        if not name and not alone:
            raise InputError(f"{flag} {word}: name what the number is for, as NAME={word}.")
    return found


def print_report(report: LogReport, console: Console) -> None:
    """Print the report of a log check: errors in red, warnings in yellow, notes dimmed."""
    for line in report.format_text().splitlines():
        console.print(line, style=_TONES.get(line.partition(":")[0]), soft_wrap=True)
