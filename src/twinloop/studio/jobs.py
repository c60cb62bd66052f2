"""Start commands in the workspace, watch and stop them. They go on if the studio ends, and are found again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from twinloop.catalog.parts import ulid
from twinloop.cli.main import STAGES, TWINLOOP
from twinloop.core import metrics, progress
from twinloop.core.documents import read_json
from twinloop.core.errors import InputError, TwinloopError, UnknownNameError
from twinloop.core.files import write_json
from twinloop.studio.forms import describe_commands

FOLDER = "runs/.studio"
_JOB, _LOG, _PROGRESS, _ENDED, _METRICS = "job.json", "log.txt", "progress.json", "ended.json", "metrics.jsonl"
_TAIL = 64 << 10  # bytes of a log that a page shows
_MOST_WORDS, _LONGEST_WORD = 400, 10_000
_LISTED = 50


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """Commands that were started from the studio of a workspace.

    Attributes:
        root: folder of the workspace, in which the commands run.
        own: ids of the jobs that this process started, whose ends it sees.
    """

    root: Path
    own: set[str] = field(default_factory=set[str])

    def start(self, given: Any) -> dict[str, Any]:
        """Start a command, and return its job.

        Args:
            given: words of the command line, without the name of the program.

        Raises:
            InputError: If these are no words, or name no command that a form can start.
        """
        words = _check_words(given)
        name = ulid()
        folder = self.root / FOLDER / name
        folder.mkdir(parents=True)
        files = {progress.VARIABLE: str(folder / _PROGRESS), metrics.VARIABLE: str(folder / _METRICS)}
        environment = {**os.environ, **files, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
        with (folder / _LOG).open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own program, with words that an admitted person chose
                [sys.executable, "-m", "twinloop", *words],
                cwd=self.root, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the studio's terminal must not stop it
            )  # fmt: skip
        started = {"words": words, "pid": process.pid, "born": _read_birth(process.pid),
                   "started": datetime.now(UTC).isoformat(timespec="seconds")}  # fmt: skip
        self.own.add(name)
        write_json(folder / _JOB, started)
        threading.Thread(target=_wait, args=(process, folder), daemon=True).start()
        return self.describe(name)

    def list_jobs(self) -> list[dict[str, Any]]:
        """Return the newest jobs, newest first, without their logs."""
        jobs = list[dict[str, Any]]()
        for name in self._list_names()[:_LISTED]:
            with contextlib.suppress(TwinloopError, KeyError):  # a job that is just being started, or was damaged
                jobs.append(self._read(name))
        return jobs

    def describe(self, name: str) -> dict[str, Any]:
        """Return a job with the end of its log, and the figures that it has reported, see `metrics.log_metrics`.

        Raises:
            UnknownNameError: If there is no such job.
        """
        self._require(name)
        log = self.root / FOLDER / name / _LOG
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            text = file.read().decode(errors="replace")
        return {**self._read(name), "log": text, "figures": read_figures(self.root / FOLDER / name / _METRICS)}

    def read_joints(self, name: str) -> list[dict[str, float]]:
        """Return the joint positions (rad or m) that a job reported last: those measured, and those commanded.

        Raises:
            UnknownNameError: If there is no such job.
        """
        self._require(name)
        figures = read_figures(self.root / FOLDER / name / _METRICS, most=1)
        kinds = ("measured/", "commanded/")
        return [
            {key.removeprefix(kind): curve["values"][-1] for key, curve in figures.items() if key.startswith(kind)}
            for kind in kinds
        ]

    def stop(self, name: str) -> dict[str, Any]:
        """Stop a job as Ctrl-C does, so that finished parts are kept.

        Raises:
            UnknownNameError: If there is no such job.
        """
        self._require(name)
        job = self._read(name)
        if job["state"] == "running":
            with contextlib.suppress(ProcessLookupError):
                os.kill(job["pid"], signal.SIGINT)
        return job

    def _require(self, name: str) -> None:
        known = self._list_names()
        if name not in known:
            raise UnknownNameError("job", name, known[:_LISTED], where=str(self.root / FOLDER))

    def _list_names(self) -> list[str]:
        folder = self.root / FOLDER
        return sorted((path.name for path in folder.iterdir()), reverse=True) if folder.is_dir() else []

    def _read(self, name: str) -> dict[str, Any]:
        folder = self.root / FOLDER / name
        job = read_json(folder / _JOB)
        found = {"id": name, **{key: job[key] for key in ("words", "pid", "started")}, "progress": None, "exit": None}
        with contextlib.suppress(TwinloopError):
            ended = read_json(folder / _ENDED)
            return {**found, "state": "ended", "exit": ended["exit"], "ended": ended["ended"]}
        if name not in self.own and (not job["born"] or _read_birth(job["pid"]) != job["born"]):
            return {**found, "state": "ended"}  # while no studio was running
        with contextlib.suppress(TwinloopError):
            found["progress"] = read_json(folder / _PROGRESS)
        return {**found, "state": "running"}


def _check_words(given: Any) -> list[str]:
    if not isinstance(given, list) or not given or not all(isinstance(word, str) for word in given):
        raise InputError("Give the words of a command line as a list of texts.")
    words: Sequence[str] = given
    if len(words) > _MOST_WORDS or any(len(word) > _LONGEST_WORD for word in words):
        raise InputError(f"A command line has at most {_MOST_WORDS} words of {_LONGEST_WORD} characters.")
    TWINLOOP.check_names(words)
    known = [one["name"].split() for one in describe_commands(STAGES)]
    if not any(words[: len(names)] == names for names in known):
        raise InputError(f"`twinloop {' '.join(words[:2])}` cannot be started here. Run it in a terminal.")
    return list(words)


def _wait(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Write the exit code of a job when it ends."""
    code = process.wait()
    ended = {"exit": code, "ended": datetime.now(UTC).isoformat(timespec="seconds")}
    with contextlib.suppress(TwinloopError, OSError):
        write_json(folder / _ENDED, ended)


def _read_birth(pid: int) -> str:
    """Return when a process was born, in the system's own unit, so that another with its number is not mistaken for it.

    Returns:
        A text; empty if there is no such process, or it has ended and only waits to be read.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


_NEWEST = 8 << 20  # bytes of the figures of a job that are read


def read_figures(file: Path, *, most: int = 500) -> dict[str, dict[str, list[float]]]:
    """Return the figures of `metrics.log_metrics` in a file: by name, their steps and values.

    Of a longer curve, at most ``most`` points are returned, evenly chosen, the last one included. Only the newest 8 MiB
    of the file are read. A missing file, and lines that are incomplete, count as empty.
    """
    curves = dict[str, dict[str, list[float]]]()
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - _NEWEST))
            lines = opened.read().decode(errors="replace").splitlines()
    except OSError:
        return {}
    for line in lines:
        try:
            row = json.loads(line)
            step = row.pop("step")
        except (ValueError, KeyError, AttributeError):
            continue
        for name, value in row.items():
            if isinstance(value, float | int):
                curve = curves.setdefault(name, {"steps": [], "values": []})
                curve["steps"].append(step)
                curve["values"].append(value)
    for curve in curves.values():
        every = -(-len(curve["steps"]) // most)
        for name, values in curve.items():
            curve[name] = values[::-1][::every][::-1]
    return curves
