"""The command line: parse, run, print, and turn errors into one clear line and an exit code."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Annotated, Any

import tyro
from rich.markup import escape

from twinloop import __version__
from twinloop.cli.approve import Approve
from twinloop.cli.arguments import check_local_paths, check_numbers, joined
from twinloop.cli.commands import Command, Demo, Doctor, Fetch, Generate, Replay, Twin
from twinloop.cli.compare import Compare
from twinloop.cli.coverage import Coverage
from twinloop.cli.curate import Curate
from twinloop.cli.datasets import Datasets
from twinloop.cli.edit import Edit
from twinloop.cli.evaluate import Evaluate
from twinloop.cli.evidence import Evidence
from twinloop.cli.exporting import Export
from twinloop.cli.fsck import Fsck
from twinloop.cli.gap import Gap, said
from twinloop.cli.gate import Gate
from twinloop.cli.hub import Pull, Push
from twinloop.cli.identify import Identify
from twinloop.cli.importing import Import
from twinloop.cli.label import Label, labelled
from twinloop.cli.monitor import Monitor
from twinloop.cli.plan import Plan
from twinloop.cli.policies import Policies, Promote, Rollback
from twinloop.cli.query import Query
from twinloop.cli.recording import Record
from twinloop.cli.render import Render
from twinloop.cli.run import Run
from twinloop.cli.scenario import Scenario
from twinloop.cli.sensors import Sensors
from twinloop.cli.serve import Serve
from twinloop.cli.train import Train
from twinloop.cli.workspace import Add, Init
from twinloop.core.approval import name_on_command_line
from twinloop.core.console import SafeConsole, visible
from twinloop.core.errors import InputError, TwinloopError, refused
from twinloop.core.files import dumps
from twinloop.core.redaction import note_secrets, redacted, redacted_values, redacted_words
from twinloop.workflows.run.results import finite

_INTERRUPTED = 130
_UNHEARD = 141  # as a program that SIGPIPE ends
_MOVED = "`twinloop bench` has moved: run `python -m benchmarks NAME` in a checkout of the repository."
_STYLE = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
_FRAME = re.compile(r"[╭╮╰╯│─]|(?<!\S)-{3,}(?!\S)")  # drawn around what the parser says
_RESUME = " What was finished is whole; the same command with --resume goes on from there."
_ANEW = " There is no checkpoint yet: the same command begins anew."
_Commands = (
    Annotated[Demo, tyro.conf.subcommand("demo", prefix_name=False)]
    | Annotated[Init, tyro.conf.subcommand("init", prefix_name=False)]
    | Annotated[Add, tyro.conf.subcommand("add", prefix_name=False)]
    | Annotated[Generate, tyro.conf.subcommand("generate", prefix_name=False)]
    | Annotated[Render, tyro.conf.subcommand("render", prefix_name=False)]
    | Annotated[Fetch, tyro.conf.subcommand("fetch", prefix_name=False)]
    | Annotated[Replay, tyro.conf.subcommand("replay", prefix_name=False)]
    | Annotated[Fsck, tyro.conf.subcommand("fsck", prefix_name=False)]
    | Annotated[Query, tyro.conf.subcommand("query", prefix_name=False)]
    | Annotated[Coverage, tyro.conf.subcommand("coverage", prefix_name=False)]
    | Annotated[Plan, tyro.conf.subcommand("plan", prefix_name=False)]
    | Annotated[Curate, tyro.conf.subcommand("curate", prefix_name=False)]
    | Annotated[Import, tyro.conf.subcommand("import", prefix_name=False)]
    | Annotated[Edit, tyro.conf.subcommand("edit", prefix_name=False)]
    | Annotated[Export, tyro.conf.subcommand("export", prefix_name=False)]
    | Annotated[Push, tyro.conf.subcommand("push", prefix_name=False)]
    | Annotated[Pull, tyro.conf.subcommand("pull", prefix_name=False)]
    | Annotated[Datasets, tyro.conf.subcommand("datasets", prefix_name=False)]
    | Annotated[Label, tyro.conf.subcommand("label", prefix_name=False)]
    | Annotated[Identify, tyro.conf.subcommand("identify", prefix_name=False)]
    | Annotated[Record, tyro.conf.subcommand("record", prefix_name=False)]
    | Annotated[Run, tyro.conf.subcommand("run", prefix_name=False)]
    | Annotated[Serve, tyro.conf.subcommand("serve", prefix_name=False)]
    | Annotated[Monitor, tyro.conf.subcommand("monitor", prefix_name=False)]
    | Annotated[Gap, tyro.conf.subcommand("gap", prefix_name=False)]
    | Annotated[Train, tyro.conf.subcommand("train", prefix_name=False)]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate", prefix_name=False)]
    | Annotated[Compare, tyro.conf.subcommand("compare", prefix_name=False)]
    | Annotated[Gate, tyro.conf.subcommand("gate", prefix_name=False)]
    | Annotated[Promote, tyro.conf.subcommand("promote", prefix_name=False)]
    | Annotated[Rollback, tyro.conf.subcommand("rollback", prefix_name=False)]
    | Annotated[Policies, tyro.conf.subcommand("policies", prefix_name=False)]
    | Annotated[Twin, tyro.conf.subcommand("twin", prefix_name=False)]
    | Annotated[Sensors, tyro.conf.subcommand("sensors", prefix_name=False)]
    | Annotated[Scenario, tyro.conf.subcommand("scenario", prefix_name=False)]
    | Annotated[Evidence, tyro.conf.subcommand("evidence", prefix_name=False)]
    | Annotated[Approve, tyro.conf.subcommand("approve", prefix_name=False)]
    | Annotated[Doctor, tyro.conf.subcommand("doctor", prefix_name=False)]
)


@dataclass(frozen=True, kw_only=True)
class Program:
    """A set of commands under one name.

    Attributes:
        name: what is typed before a command.
        description: heads the help.
        commands: the union of commands, each annotated with its name.
        prepare: rewrites the words of a command line before they are parsed.
        recorded: whether workspaces keep a record of runs.
    """

    name: str
    description: str
    commands: Any
    prepare: Callable[[Sequence[str]], Sequence[str]] = list
    recorded: bool = False


TWINLOOP = Program(
    name="twinloop",
    description="Closes the loop between robots and their simulations: identify, randomize, simulate, verify.",
    commands=_Commands,
    prepare=lambda words: labelled(said(words)),
    recorded=True,
)


def main(arguments: Sequence[str] | None = None, program: Program = TWINLOOP) -> int:
    """Run one command.

    Args:
        arguments: words of the command line without the program's name; by default those of this process.
        program: the commands to choose from.

    Returns:
        The exit code: 0 done, 1 a check said no, 2 the input was wrong, 3 the environment lacks something.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words == ["--version"]:
        print(f"twinloop {__version__}")
        return 0
    # Python puts the working folder on the path of the processes that are started; files of a dataset are no modules.
    os.environ["PYTHONSAFEPATH"] = "1"
    name_on_command_line(words)
    note_secrets(words)
    if program is TWINLOOP and words[:1] == ["bench"]:
        return _refused(InputError(_MOVED), json="--json" in words)
    command = _understood(words, program)
    started = datetime.now(UTC)
    try:
        check_numbers(command)
        check_local_paths(command)
        figures, code = command.run()
        if program.recorded:
            _remember(words, figures, code, started)
    except BrokenPipeError:
        raise
    except (TwinloopError, OSError) as caught:
        error = caught if isinstance(caught, TwinloopError) else refused(caught, what="read or written")
        return _refused(error, json=command.json)
    except KeyboardInterrupt:
        _say("[bold]twinloop:[/] stopped." + _how_to_go_on(command))
        return _INTERRUPTED
    if command.json:
        print(visible(dumps(redacted_values(finite(figures)))))
    return code


def _refused(error: TwinloopError, *, json: bool) -> int:
    """Print an error for people and, where asked for, as JSON; return its exit code."""
    _say(f"[bold red]twinloop:[/] {escape(str(error))}")
    if json:
        print(visible(dumps(redacted_values({"error": type(error).__name__, "message": str(error)}))))
    return error.exit_code


def _parsed(words: Sequence[str], program: Program = TWINLOOP) -> Command:
    given = joined(program.prepare(words), program.commands)
    return tyro.cli(  # pyright: ignore[reportCallIssue, reportArgumentType]
        program.commands, prog=program.name, args=given, description=program.description, config=_STYLE
    )


def _understood(words: Sequence[str], program: Program) -> Command:
    """Parse the arguments; where they are wrong, the parser's message holds no credentials and follows as JSON too."""
    safe, for_programs = redacted_words(words), "--json" in words
    if safe == words and not for_programs:
        return _parsed(words, program)
    heard = io.StringIO()
    try:
        with contextlib.redirect_stderr(heard):
            return _parsed(words, program)
    except SystemExit as end:
        text = heard.getvalue() if safe == words else _complaint(safe, program)
        sys.stderr.write(text)
        if end.code and for_programs:
            message = " ".join(_FRAME.sub(" ", text).split())
            print(visible(dumps({"error": "UsageError", "message": message})))
        raise


def _complaint(words: Sequence[str], program: Program) -> str:
    """Return what the parser says of arguments: its lines break within words, where no credential would be found."""
    heard = io.StringIO()
    with contextlib.redirect_stderr(heard), contextlib.suppress(SystemExit):
        _parsed(words, program)
    return heard.getvalue() or f"The arguments are not understood. See `{program.name} --help`.\n"


def _how_to_go_on(command: Command) -> str:
    """What to say to whoever stopped a command with Ctrl-C."""
    if isinstance(command, Train):
        return _RESUME if command.begun else _ANEW
    return _RESUME if isinstance(command, Generate | Render) else ""


def _remember(words: Sequence[str], figures: Mapping[str, Any], code: int, started: datetime) -> None:
    """Tell the workspace that the command ran in, if there is one."""
    from twinloop.workflows.run.remember import remember

    line = remember(words, figures, code, started=started, ended=datetime.now(UTC))
    if line:
        _say(f"[dim]{escape(line)}[/]")


def _say(text: str) -> None:
    SafeConsole(stderr=True, highlight=False, emoji=False).print(text, soft_wrap=True)


def _show_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback without credentials: a library's exception may hold the whole address."""
    sys.stderr.write(redacted("".join(traceback.format_exception(kind, error, trace))))


class _SafeFormatter(logging.Formatter):
    """Format lines of libraries' logs without credentials."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(redacted(super().format(record)))


def run(program: Program = TWINLOOP) -> None:
    """Run a program from its command line, as the entry point of ``twinloop`` does."""
    sys.excepthook = _show_crash
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_SafeFormatter())
    try:
        try:
            sys.exit(main(program=program))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_UNHEARD)
