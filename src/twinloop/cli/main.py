"""Run the command line of ``twinloop``: parse words, run one command, print its result, and set the exit code.

Errors in user input become one clear line. A traceback is printed only after an error in twinloop itself.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from rich.markup import escape

from twinloop import __version__
from twinloop.cli.approve import APPROVE
from twinloop.cli.arguments import check_local_paths, check_numbers
from twinloop.cli.commands import Command, Group, make_console
from twinloop.cli.compare import COMPARE
from twinloop.cli.coverage import COVERAGE
from twinloop.cli.curate import CURATE
from twinloop.cli.datasets import DATASETS
from twinloop.cli.demo import DEMO, DOCTOR
from twinloop.cli.distill import DISTILL
from twinloop.cli.edit import EDIT
from twinloop.cli.evaluate import EVALUATE
from twinloop.cli.evidence import EVIDENCE
from twinloop.cli.exporting import EXPORT
from twinloop.cli.fsck import FSCK
from twinloop.cli.gap import GAP
from twinloop.cli.gate import GATE
from twinloop.cli.generate import GENERATE
from twinloop.cli.hub import FETCH, PULL, PUSH
from twinloop.cli.identify import IDENTIFY
from twinloop.cli.importing import IMPORT
from twinloop.cli.label import LABEL
from twinloop.cli.localize import LOCALIZE
from twinloop.cli.monitor import MONITOR
from twinloop.cli.output import SafeFormatter, directed_output
from twinloop.cli.parser import Program
from twinloop.cli.plan import PLAN
from twinloop.cli.policies import POLICIES, PROMOTE, ROLLBACK
from twinloop.cli.query import QUERY
from twinloop.cli.recording import RECORD
from twinloop.cli.reinforce import REINFORCE
from twinloop.cli.render import RENDER, REPLAY
from twinloop.cli.robot import ROBOT
from twinloop.cli.run import RUN
from twinloop.cli.scenario import SCENARIO
from twinloop.cli.sensors import SENSORS
from twinloop.cli.serve import SERVE
from twinloop.cli.studio import STUDIO
from twinloop.cli.tasks import TASKS
from twinloop.cli.train import TRAIN
from twinloop.cli.twin import TWIN
from twinloop.cli.workspace import ADD, INIT
from twinloop.core.console import SafeConsole, escape_control
from twinloop.core.errors import InputError, TwinloopError, convert_os_error
from twinloop.core.extension import record_command_line
from twinloop.core.files import dumps
from twinloop.core.redaction import note_secrets, redact_text, redact_values
from twinloop.workflows.run.results import record_request, replace_nonfinite

_INTERRUPTED = 130
_BROKEN_PIPE = 141  # exit code of a program that was ended by SIGPIPE
_MOVED = "`twinloop bench` has moved: run `python -m benchmarks NAME` in a checkout of the repository."
_RESUME = " Finished parts are complete; the same command with --resume continues from there."
_NO_CHECKPOINT = " There is no checkpoint yet: the same command starts from the beginning."
STAGES: Mapping[str, tuple[Command | Group, ...]] = {
    "Start": (DEMO, DOCTOR, APPROVE, INIT, STUDIO),
    "Real logs": (IMPORT, RECORD),
    "Twin": (TWIN, ROBOT, TASKS, SENSORS, IDENTIFY),
    "Sim-to-real gap": (GAP, COVERAGE, PLAN),
    "Simulation": (GENERATE, RENDER, REPLAY),
    "Data": (ADD, QUERY, CURATE, LABEL, EDIT, DATASETS, EXPORT, PUSH, PULL, FETCH, FSCK),
    "Policies": (TRAIN, DISTILL, REINFORCE, LOCALIZE, EVALUATE, COMPARE, EVIDENCE),
    "Release": (GATE, PROMOTE, ROLLBACK, POLICIES, RUN, SERVE, MONITOR),
    "Failures": (SCENARIO,),
}
TWINLOOP = Program(
    name="twinloop",
    description="Closes the loop between robots and their simulations: identify, randomize, simulate, verify.",
    stages=STAGES,
    recorded=True,
)


def main(arguments: Sequence[str] | None = None, program: Program = TWINLOOP) -> int:
    """Run one command, and print its result or its error.

    Args:
        arguments: Words of the command line after the program's name; by default those of this process.
        program: Program with the available commands.

    Returns:
        The exit code: 0 for success, 1 if a check failed, 2 for invalid input, 3 if a package or program is missing,
        130 after Ctrl-C.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words == ["--version"]:
        print(f"twinloop {__version__}")
        return 0
    # Without this, Python would import modules from the working folder in new processes, for example from a dataset.
    os.environ["PYTHONSAFEPATH"] = "1"
    record_command_line(words)
    note_secrets(words)
    if program is TWINLOOP and words[:1] == ["bench"]:
        return _print_error(InputError(_MOVED), json="--json" in words)
    if words in ([], ["-h"], ["--help"]):
        SafeConsole(highlight=False, emoji=False).print(escape(program.help()), soft_wrap=True)
        return 0 if words else 2
    command, request = program.parse(words)
    try:
        with directed_output(words[0], request):
            return _run_command(command, request, words, recorded=program.recorded)
    except TwinloopError as error:  # of the log file or a tracker: the command's own errors are printed, and in the log
        return _print_error(error, json=request.json)


def _run_command(command: Command, request: Any, words: Sequence[str], *, recorded: bool) -> int:
    """Run a command, print its result or its error, and return the exit code.

    Args:
        command: The command.
        request: Its parsed flags.
        words: Words of the command line.
        recorded: Whether workspaces record the run.
    """
    started = datetime.now(UTC)
    quiet = getattr(request, "quiet", False)  # benchmarks have no such flag
    try:
        check_numbers(request)
        check_local_paths(request)
        with record_request(words, request) if recorded and command.record else nullcontext():
            result, code = command.run(request, make_console(json=request.json, quiet=quiet))
        if recorded:
            _record_run(command, words, result, code, started, quiet=quiet)
    except BrokenPipeError:
        raise
    except (TwinloopError, OSError) as caught:
        error = caught if isinstance(caught, TwinloopError) else convert_os_error(caught, what="read or written")
        return _print_error(error, json=request.json)
    except KeyboardInterrupt:
        _print_message("[bold]twinloop:[/] stopped." + _format_resume_hint(command, request))
        return _INTERRUPTED
    if request.json:
        print(escape_control(dumps(redact_values(replace_nonfinite(result)))))
    return code


def _print_error(error: TwinloopError, *, json: bool) -> int:
    """Print an error as text and, if ``json`` is true, also as JSON; return its exit code."""
    _print_message(f"[bold red]twinloop:[/] {escape(str(error))}")
    if json:
        print(escape_control(dumps(redact_values({"error": type(error).__name__, "message": str(error)}))))
    return error.exit_code


def _format_resume_hint(command: Command, request: Any) -> str:
    """Return a sentence on how to continue the command after Ctrl-C; "" if the command cannot be resumed."""
    if command.resumable is None:
        return ""
    return _RESUME if command.resumable(request) else _NO_CHECKPOINT


def _record_run(
    command: Command, words: Sequence[str], result: Mapping[str, Any], code: int, started: datetime, *, quiet: bool
) -> None:
    """Record the run in the workspace that contains the working folder, if there is one.

    Args:
        command: Command that ran.
        words: Words of the command line.
        result: Metrics that the command returned, by name.
        code: Exit code.
        started: Time at which the command started.
        quiet: Whether nothing is printed.
    """
    from twinloop.workflows.run.record_command import record_command

    line = record_command(command.record, words, result, code, started=started, ended=datetime.now(UTC))
    if line and not quiet:
        _print_message(f"[dim]{escape(line)}[/]")


def _print_message(text: str) -> None:
    SafeConsole(stderr=True, highlight=False, emoji=False).print(text, soft_wrap=True)


def _show_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of an unexpected error after removing credentials, such as those in URLs."""
    sys.stderr.write(redact_text("".join(traceback.format_exception(kind, error, trace))))


_shown_warnings = set[str]()


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a Python warning as one line without the place in the code, once per text; for ``warnings.showwarning``."""
    text = " ".join(str(message).split())
    if text not in _shown_warnings:
        _shown_warnings.add(text)
        _print_message(f"[bold]Warning:[/] {escape(redact_text(text))}")


def run(program: Program = TWINLOOP) -> None:
    """Run a program with the words of its command line, then exit; the entry point of the command ``twinloop``."""
    sys.excepthook = _show_crash
    warnings.showwarning = _show_warning
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(SafeFormatter())
    try:
        try:
            sys.exit(main(program=program))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of the pipe has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_BROKEN_PIPE)
