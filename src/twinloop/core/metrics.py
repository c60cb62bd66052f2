"""Report figures of a running computation, such as the loss of a training, to programs that plot them meanwhile.

`log_metrics` is called by trainings and fits; it does nothing unless a tracker is open. A program that starts a command
can also name a file in the environment variable ``TWINLOOP_METRICS``, to which a line of JSON per call is appended.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Generator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.core.files import dumps

VARIABLE = "TWINLOOP_METRICS"
_file = os.environ.pop(VARIABLE, "")  # worker processes must not write it too


class Tracker(Protocol):
    """Program that stores or shows figures over the steps of a computation."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Store the figures of a step."""

    def close(self) -> None:
        """End the run."""


_open = list[Tracker]()


def log_metrics(step: int, values: Mapping[str, float]) -> None:
    """Report figures of a step by name to all open trackers."""
    plain = {name: float(value) for name, value in values.items()}
    if _file:
        line = dumps({"step": step, "at": datetime.now(UTC).isoformat(), **plain})
        with contextlib.suppress(OSError), Path(_file).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    for tracker in _open:
        tracker.log(step, plain)


def is_reported() -> bool:
    """Return whether anything receives the figures of `log_metrics`."""
    return bool(_file or _open)


@contextlib.contextmanager
def open_trackers(names: Sequence[str], *, verb: str, output: Path | None) -> Generator[None]:
    """Report figures to some trackers while the ``with`` block runs.

    Args:
        names: of `TRACKERS`.
        verb: name of the command.
        output: folder of its results; TensorBoard's files are written to ``tensorboard`` in it. Its name is that of the
            run.

    Raises:
        UnknownNameError: If there is no such tracker.
        InputError: If TensorBoard is named without a folder.
        MissingDependencyError: If the package of a tracker is not installed.
    """
    with contextlib.ExitStack() as stack:
        for name in dict.fromkeys(names):
            if name not in TRACKERS:
                raise UnknownNameError("tracker", name, TRACKERS, where="the flag --track")
            tracker = TRACKERS[name](verb, output)
            _open.append(tracker)
            stack.callback(tracker.close)
            stack.callback(_open.remove, tracker)
        yield


class _TensorBoard:
    """Event files in ``OUTPUT/tensorboard``: ``tensorboard --logdir OUTPUT``."""

    def __init__(self, verb: str, output: Path | None) -> None:
        if output is None:
            raise InputError(f"--track tensorboard writes to the --output folder; give one to twinloop {verb}.")
        self._summary, self._folder = _import("tensorboard.summary", "tensorboard"), output / "tensorboard"
        self._writer: Any = None  # made with the first figure: commands refuse folders that are not empty

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self._writer is None:
            self._writer = self._summary.Writer(str(self._folder))
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _Trackio:
    """Run of the project ``twinloop``: ``trackio show``."""

    def __init__(self, verb: str, output: Path | None) -> None:
        self._trackio = _import("trackio", "trackio")
        self._trackio.init(project="twinloop", name=verb if output is None else output.name, config={"command": verb})

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._trackio.log(dict(values), step=step)

    def close(self) -> None:
        self._trackio.finish()


class _MLflow:
    """Run of MLflow, in its default folder or on the server that MLFLOW_TRACKING_URI names."""

    def __init__(self, verb: str, output: Path | None) -> None:
        self._mlflow = _import("mlflow", "mlflow")
        self._mlflow.start_run(run_name=verb if output is None else output.name, tags={"command": verb})

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._mlflow.log_metrics({name.replace(":", "/"): value for name, value in values.items()}, step=step)

    def close(self) -> None:
        self._mlflow.end_run()


class _Rerun:
    """Viewer of Rerun, which is started if none is open."""

    def __init__(self, verb: str, output: Path | None) -> None:
        self._rerun = _import("rerun", "rerun-sdk")
        self._rerun.init(f"twinloop {verb}", recording_id=None if output is None else str(output), spawn=True)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._rerun.set_time("step", sequence=step)
        for name, value in values.items():
            self._rerun.log(name.split("/"), self._rerun.Scalars(value))  # a list may have spaces

    def close(self) -> None:
        self._rerun.disconnect()


TRACKERS = {"mlflow": _MLflow, "rerun": _Rerun, "tensorboard": _TensorBoard, "trackio": _Trackio}
"""Trackers by name."""


def _import(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"The package {package} is not installed.", remedy=f"pip install {package}"
        ) from error
