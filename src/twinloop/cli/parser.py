"""Parse command lines with tyro, with default commands, repeated flags, former names, and error messages as JSON."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import tyro

from twinloop.cli.commands import Command, Group, build_request_union
from twinloop.core.console import escape_control
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.files import dumps
from twinloop.core.redaction import redact_words

_STYLE = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
_FRAME = re.compile(r"[╭╮╰╯│─]|(?<!\S)-{3,}(?!\S)")  # frames that the parser draws around messages
_FLAG_IN_HELP = re.compile(r"(?m)^\W*(--[a-z][\w-]*)")
_HELP = ("-h", "--help")
_GENERAL = (
    "  -h, --help   show this help",
    "  --version    show the version",
    "  --tyro-print-completion {bash,zsh}   print a script that completes commands and options in this shell",
)
_NUMBERS = {int: "whole number", float: "number"}
_REGISTRY = tyro.constructors.ConstructorRegistry()


@_REGISTRY.primitive_rule
def _number(kind: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec | None:
    """Return how tyro parses a number, with an error message that names the word and the expected kind of number."""
    number: Any = kind.type
    if number not in _NUMBERS:
        return None

    def parse(words: list[str]) -> Any:
        try:
            return number(words[0])
        except ValueError:
            raise ValueError(f"{words[0]!r} is not a {_NUMBERS[number]}.") from None

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=number.__name__.upper(),
        instance_from_str=parse,
        is_instance=lambda value: isinstance(value, (int, number)) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


@_REGISTRY.primitive_rule
def _optional_value(kind: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec | None:
    """Return how tyro parses and prints an optional flag, so that the help has ``STR`` in place of ``{None}|STR``.

    Args:
        kind: Type of the flag.

    Returns:
        The specification; None if the type is not one type or None, so that tyro's own rule applies.
    """
    types = get_args(kind.type)
    given = [one for one in types if one is not NoneType]
    if kind.type_origin not in (Union, UnionType) or len(given) != 1 or len(types) != 2:
        return None
    spec = _REGISTRY.get_primitive_spec(tyro.constructors.PrimitiveTypeInfo.make(given[0], kind.markers))
    if isinstance(spec, tyro.constructors.UnsupportedTypeAnnotationError):
        return None
    return replace(
        spec,
        instance_from_str=lambda words: None if words == ["None"] else spec.instance_from_str(words),
        is_instance=lambda value: value is None or spec.is_instance(value),
        str_from_instance=lambda value: ["None"] if value is None else spec.str_from_instance(value),
    )


def summary(command: Command | Group) -> str:
    """Return the first paragraph of a command's help as one line."""
    return " ".join(command.description.partition("\n\n")[0].split())


@dataclass(frozen=True, kw_only=True)
class Program:
    """A command-line program: a set of commands with help, and the parser of its command line.

    Attributes:
        name: Name of the program on the command line.
        description: First paragraph of the help.
        stages: Commands by the heading under which the help lists them.
        recorded: Whether workspaces record the runs of the commands.
    """

    name: str
    description: str
    stages: Mapping[str, Sequence[Command | Group]]
    recorded: bool = False

    @property
    def commands(self) -> tuple[Command | Group, ...]:
        """All commands, in the order of the help."""
        return tuple(chain.from_iterable(self.stages.values()))

    def help(self) -> str:
        """Return the help of the whole program: all commands under their headings, and the general options."""
        width = max(len(one.name) for one in self.commands)
        lines = [f"usage: {self.name} COMMAND [OPTIONS]", "", self.description, ""]
        for stage, commands in self.stages.items():
            lines += [stage, *(f"  {one.name:<{width}}  {summary(one)}" for one in commands), ""]
        return "\n".join(
            [*lines, "Options", *_GENERAL, "", f"Options and an example of a command: {self.name} COMMAND --help"]
        )

    def check_names(self, words: Sequence[str]) -> None:
        """Check that the first words of a command line are the names of a command, or of a group and its command.

        Raises:
            UnknownNameError: If no command has this name. The message lists the most similar names.
        """
        if not words or words[0].startswith("-"):
            return
        group = next((one for one in self.commands if one.name == words[0]), None)
        if group is None:
            raise UnknownNameError("command", words[0], [one.name for one in self.commands], where=self.name)
        if isinstance(group, Group) and not group.any_word and words[1:] and not words[1].startswith("-"):
            names = [one.name for one in group.commands]
            if words[1] not in names:
                raise UnknownNameError("command", words[1], names, where=f"{self.name} {group.name}")

    def parse(self, words: Sequence[str]) -> tuple[Command, Any]:
        """Parse a command line, and return the command and its request (the parsed flags).

        Error messages are printed to standard error without credentials; with ``--json``, also to standard output as
        JSON.

        Raises:
            SystemExit: If help was requested, or the words are invalid.
        """
        words = self._replace_former_names(words)
        safe, for_programs = redact_words(words), "--json" in words
        try:
            self.check_names(safe)
        except UnknownNameError as error:
            sys.stderr.write(escape_control(f"{self.name}: {error}\n"))
            if for_programs:
                print(escape_control(dumps({"error": "UsageError", "message": str(error)})))
            raise SystemExit(InputError.exit_code) from None
        captured = io.StringIO()
        try:
            with contextlib.redirect_stderr(captured):
                return self._parse_words(words)
        except SystemExit as end:
            text = captured.getvalue() if safe == words else self._capture_error_message(safe)
            if end.code:
                text = self._unknown_flag(safe) or text
            sys.stderr.write(escape_control(text))
            if end.code and for_programs:
                message = " ".join(_FRAME.sub(" ", text).split())
                print(escape_control(dumps({"error": "UsageError", "message": message})))
            raise

    def join_repeated_flags(self, words: Sequence[str]) -> list[str]:
        """Return the words with repeated flags joined: ``--data A --data B`` becomes ``--data A B``.

        Without this step, the parser would keep only the last values of a repeated flag.
        """
        made = list(words)
        flags = [_normalize_flag(word) for word in made if word.startswith("--")]
        twice = sorted({flag for flag in flags if flags.count(flag) > 1})
        several = _find_multi_value_flags(made, self.commands) if twice else ()
        for flag in twice:
            made = _group_flag_values(made, flag) if flag in several else made
        return made

    def _replace_former_names(self, words: Sequence[str]) -> list[str]:
        """Replace former names of the command and its flags by the present names; report each one on standard error."""
        made = list(words)
        group = next((one for one in self.commands if isinstance(one, Group) and made[:1] == [one.name]), None)
        for one in group.commands if group else ():
            if made[1:2] and one.former.get(made[1]) == one.name:
                made[1] = self._report_former(made[1], one.name)
        command, _ = self._command(insert_default_command(made, self.commands))
        for place, word in enumerate(made):
            flag, equals, value = word.partition("=")
            present = command.former.get(_normalize_flag(flag)) if command and flag.startswith("--") else None
            if present:
                made[place] = self._report_former(_normalize_flag(flag), present) + equals + value
        return made

    def _report_former(self, former: str, present: str) -> str:
        sys.stderr.write(f"{self.name}: {former} is now {present}; the former name is not read after this version.\n")
        return present

    def _parse_words(self, words: Sequence[str]) -> tuple[Command, Any]:
        given = self.join_repeated_flags(insert_default_command(words, self.commands))
        command, names = self._command(given)
        if command is not None:  # parsed alone, so that its help and messages list only its own flags
            prog = " ".join([self.name, *given[:names]])
            text = command.description
            return command, tyro.cli(
                command.request, prog=prog, args=given[names:], description=text, config=_STYLE, registry=_REGISTRY
            )
        made: Any = tyro.cli(
            build_request_union(self.commands),
            prog=self.name,
            args=given,
            description=self.description,
            config=_STYLE,
            registry=_REGISTRY,
        )
        request = getattr(made, "action", made)
        every = (one for named in self.commands for one in (named.commands if isinstance(named, Group) else (named,)))
        return next(one for one in every if one.request is type(request)), request

    def _command(self, words: Sequence[str]) -> tuple[Command | None, int]:
        """Return the command that the first words name, and the number of words in its name.

        The command is None if the words name a group or no command.
        """
        named = next((one for one in self.commands if words[:1] == [one.name]), None)
        if not isinstance(named, Group):
            return named, 1
        return next((one for one in named.commands if words[1:2] == [one.name]), None), 2

    def _unknown_flag(self, words: Sequence[str]) -> str:
        """Return an error message on the first unknown flag in the words; "" if the command has all of the flags."""
        given = insert_default_command(words, self.commands)
        command, names = self._command(given)
        if command is None:
            return ""
        help_text, where = io.StringIO(), " ".join([self.name, *given[:names]])
        with contextlib.redirect_stdout(help_text), contextlib.suppress(SystemExit):
            self._parse_words([*given[:names], "--help"])
        existing = {*_HELP, *_FLAG_IN_HELP.findall(help_text.getvalue())}
        unknown = next(
            (f for f in map(_normalize_flag, given) if f.startswith("--") and f[2:] and f not in existing), None
        )
        if unknown is None:
            return ""
        alone = unknown[2:].replace("-", "_")
        if alone in {one.name for one in fields(command.request)}:
            text = f"{alone.upper()} is a positional argument of {where}: give its value without {unknown}."
        else:
            text = f"{UnknownNameError('option', unknown, existing, where=where)}"
        return f"{self.name}: {text} See `{where} --help`.\n"

    def _capture_error_message(self, words: Sequence[str]) -> str:
        """Parse the words of a wrong command line again, without credentials, and return the parser's error message.

        Credentials cannot be removed from the first message, because the parser inserts line breaks within words.

        Args:
            words: Words of the command line, in which credentials are already replaced, as in ``--token=***``.
        """
        captured = io.StringIO()
        with contextlib.redirect_stderr(captured), contextlib.suppress(SystemExit):
            self._parse_words(words)
        return captured.getvalue() or f"The arguments are not understood. See `{self.name} --help`.\n"


def insert_default_command(words: Sequence[str], commands: Sequence[Command | Group]) -> list[str]:
    """Insert the default command of a group: ``gap --flag`` becomes ``gap dynamics --flag``.

    Args:
        words: Words of the command line.
        commands: All commands and groups of the program.
    """
    given = list(words)
    group = next((one for one in commands if isinstance(one, Group) and one.default and given[:1] == [one.name]), None)
    if group is None or len(given) < 2 or given[1] in (*_HELP, *(one.name for one in group.commands)):
        return given
    if group.any_word or given[1].startswith("-"):
        given.insert(1, group.default)
    return given


def _normalize_flag(word: str) -> str:
    return word.split("=", 1)[0].replace("_", "-")


def _find_multi_value_flags(words: Sequence[str], commands: Sequence[Command | Group]) -> set[str]:
    """Return the flags that accept several values, of the command that the words name."""
    named = next((one for one in commands if words and one.name == words[0]), None)
    if named is None:
        return set()
    if isinstance(named, Group):
        return _find_multi_value_flags(words[1:], named.commands)
    hints = get_type_hints(named.request, include_extras=True)
    return {f"--{name.replace('_', '-')}" for name, hint in hints.items() if _accepts_multiple_values(hint)}


def _accepts_multiple_values(hint: Any) -> bool:
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    kind = get_args(hint)[0] if marks else hint
    return get_origin(kind) is tuple and get_args(kind)[-1] is ... and tyro.conf.UseAppendAction not in marks


def _group_flag_values(words: Sequence[str], flag: str) -> list[str]:
    """Move all values of a repeated flag behind its first occurrence, and return the words."""
    rest, values = list[str](), list[str]()
    place, inside = None, False
    for word in words:
        if word.startswith("--"):
            inside = _normalize_flag(word) == flag
            if inside and place is None:
                place = len(rest)
            if inside:
                values += word.split("=", 1)[1:]
                continue
        (values if inside else rest).append(word)
    return [*rest[:place], flag, *values, *rest[place:]]
