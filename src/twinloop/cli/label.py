"""The command ``twinloop label``: say something of episodes by hand, from a file or by rule, and look at it."""

from __future__ import annotations

import getpass
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from twinloop.cli.commands import Outcome, console
from twinloop.core.errors import InputError

if TYPE_CHECKING:
    from twinloop.catalog import Workspace

_ACTIONS = ("say", "show", "list", "export", "agreement", "rules")
_HELP = ("-h", "--help")
_SUBTASK = re.compile(r"(?P<word>.+):(?P<first>\d+)-(?P<last>\d+)")
_Texts = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]


@dataclass(frozen=True, kw_only=True)
class LabelSay:
    """Say something of episodes. What the same author said before stays in the history."""

    episodes: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="EPISODE")]] = ()
    """Beginnings of their ids, or BATCH:INDEX."""
    where: str | None = None
    """Also those that a condition on the view episodes holds for, or that a whole SELECT gives."""
    success: Literal["yes", "no", "unknown"] | None = None
    """Whether the task was done; unknown: you looked and cannot tell."""
    failure: str | None = None
    """Why not: a failure class, such as grasp_missed; labels.yaml in the workspace adds some."""
    language: str | None = None
    """What is done, in words."""
    subtask: _Texts = ()
    """WORD:FIRST-LAST, frames included, such as reach:0-45; again for each one. Together they replace your earlier."""
    tag: _Texts = ()
    """A word of your own; again for each one."""
    number: _Texts = ()
    """NAME=VALUE, such as quality=4."""
    reason: str | None = None
    """Why, in one sentence."""
    confidence: float | None = None
    """How sure, 0 to 1."""
    retract: _Texts = ()
    """Take back what you said: success, failure, subtask, language, tag=WORD or number/NAME."""
    add: bool = False
    """Keep your earlier subtasks and texts of these episodes beside the new ones."""
    file: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """Say what a .csv or .jsonl file says, all of it or nothing; see docs/labels.md for its columns."""
    rule: str | None = None
    """Say what a rule says: a name (`twinloop label rules`), FILE.py:Class or FILE.yaml. By default of all episodes."""
    author: str | None = None
    """Who says so; by default your user name. A line of a file must not say another."""
    source: Literal["hand", "model"] | None = None
    """Whether a person says so, which is the default, or a model. A line of a file must not say otherwise."""
    author_hash: str | None = None
    """Hash of the model."""
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Say it."""
        from twinloop.catalog import Workspace

        said = self._said()
        self._require_one_way(bool(said))
        with Workspace.open(self.workspace) as opened:
            return self._write(opened, said)

    def _write(self, opened: Workspace, said: list[dict[str, Any]]) -> Outcome:
        from twinloop.workflows.data import labels

        shown = console(json=self.json)
        if self.file is not None:
            given = {"source": self.source, "author": self.author, "author_hash": self.author_hash}
            return labels.read_file(opened, self.file, given, default=getpass.getuser(), console=shown), 0
        some = self.episodes or self.where is not None
        if self.rule is not None:
            chosen = labels.episodes_of(opened, self.episodes, self.where) if some else None
            return labels.run_rule(opened, self.rule, chosen, shown), 0
        chosen = labels.episodes_of(opened, self.episodes, self.where)
        author, source = self.author or getpass.getuser(), self.source or "hand"
        who: dict[str, Any] = {"author": author, "source": source, "console": shown}
        if self.retract:
            return labels.take_back(opened, chosen, dict(map(_taken_back, self.retract)), **who), 0
        return labels.say(opened, chosen, said, add=self.add, **who), 0

    def _require_one_way(self, said: bool) -> None:
        ways = [
            name
            for name, given in (
                ("labels", said),
                ("--retract", bool(self.retract)),
                ("--from", self.file is not None),
                ("--rule", self.rule is not None),
            )
            if given
        ]
        if len(ways) != 1:
            what = " and ".join(ways) if ways else "nothing"
            raise InputError(
                f"The command says {what}. Give labels (--success, --failure, --subtask, --language, --tag, --number), "
                "or one of --retract, --from and --rule."
            )
        if self.file is not None and (self.episodes or self.where is not None):
            raise InputError("--from names its episodes itself. Leave EPISODE and --where out.")

    def _said(self) -> list[dict[str, Any]]:
        more = {"reason": self.reason, "confidence": self.confidence, "author_hash": self.author_hash}
        pairs = [(kind, getattr(self, kind)) for kind in ("success", "failure", "language")]
        said = [{"kind": kind, "value": value} for kind, value in pairs if value is not None]
        said += [{"kind": "tag", "value": word} for word in self.tag]
        said += [_subtask(text) for text in self.subtask]
        said += [_number(text) for text in self.number]
        return [one | more for one in said]


@dataclass(frozen=True, kw_only=True)
class LabelShow:
    """Everything that is said of an episode, by whom, and what was said before."""

    episode: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="EPISODE")]]
    """The beginning of its id, or BATCH:INDEX."""
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Show."""
        from twinloop.catalog import Workspace
        from twinloop.workflows.data.labels import show

        with Workspace.open(self.workspace) as opened:
            return show(opened, self.episode, console(json=self.json)), 0


@dataclass(frozen=True, kw_only=True)
class LabelList:
    """How often each author says what."""

    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """List."""
        from twinloop.catalog import Workspace
        from twinloop.workflows.data.labels import overview

        with Workspace.open(self.workspace) as opened:
            return overview(opened, console(json=self.json)), 0


@dataclass(frozen=True, kw_only=True)
class LabelExport:
    """Write the labels that hold to a file, which `twinloop label --from` reads again."""

    file: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE")]]
    """A .csv or .jsonl file."""
    where: str | None = None
    """Only of episodes that a condition holds for."""
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Export."""
        from twinloop.catalog import Workspace
        from twinloop.workflows.data.labels import export

        with Workspace.open(self.workspace) as opened:
            return export(opened, self.file, self.where, console(json=self.json)), 0


@dataclass(frozen=True, kw_only=True)
class LabelAgreement:
    """How far people, rules and models agree: kappa, alpha, boundaries, and the episodes to look at again."""

    kind: str = "success"
    """success, failure, subtask or number/NAME."""
    where: str | None = None
    """Only of episodes that a condition holds for."""
    tolerance: float = 0.2
    """How far two beginnings of a subtask may lie apart to be the same, in s."""
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Measure."""
        from twinloop.catalog import Workspace
        from twinloop.workflows.data.labels import run_agreement

        if self.tolerance < 0:
            raise InputError(f"--tolerance {self.tolerance:g} is negative. Give seconds, such as 0.2.")
        shown = console(json=self.json)
        with Workspace.open(self.workspace) as opened:
            return run_agreement(opened, self.kind, where=self.where, tolerance_s=self.tolerance, console=shown), 0


@dataclass(frozen=True, kw_only=True)
class LabelRules:
    """The rules that exist, and the words of failure classes."""

    workspace: Path | None = None
    """Folder of the workspace whose words count; by default the nearest one upwards, if there is one."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """List."""
        from twinloop.workflows.data.labels import list_words

        return list_words(self.workspace, console(json=self.json)), 0


@dataclass(frozen=True, kw_only=True)
class Label:
    """Say what happens in episodes: success, failure class, subtasks, language, tags; by hand, by rule, by a model."""

    action: (
        Annotated[LabelSay, tyro.conf.subcommand("say", prefix_name=False)]
        | Annotated[LabelShow, tyro.conf.subcommand("show", prefix_name=False)]
        | Annotated[LabelList, tyro.conf.subcommand("list", prefix_name=False)]
        | Annotated[LabelExport, tyro.conf.subcommand("export", prefix_name=False)]
        | Annotated[LabelAgreement, tyro.conf.subcommand("agreement", prefix_name=False)]
        | Annotated[LabelRules, tyro.conf.subcommand("rules", prefix_name=False)]
    ) = field(default_factory=LabelSay)

    @property
    def json(self) -> bool:
        """See the action."""
        return self.action.json

    def run(self) -> Outcome:
        """Run the action."""
        return self.action.run()


def labelled(words: Sequence[str]) -> list[str]:
    """The words of a command line in which ``label EPISODE`` says ``label say EPISODE``."""
    given = list(words)
    if given[:1] == ["label"] and len(given) > 1 and given[1] not in (*_ACTIONS, *_HELP):
        given.insert(1, "say")
    return given


def _subtask(text: str) -> dict[str, Any]:
    found = _SUBTASK.fullmatch(text)
    if found is None and text != "unknown":
        raise InputError(f"--subtask {text} is not WORD:FIRST-LAST. Write frames as in reach:0-45.")
    if found is None:
        return {"kind": "subtask", "value": text}
    frames = {"first_frame": int(found["first"]), "last_frame": int(found["last"])}
    return {"kind": "subtask", "value": found["word"], **frames}


def _number(text: str) -> dict[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise InputError(f"--number {text} is not NAME=VALUE. Write it as in quality=4.")
    return {"kind": f"number/{name}", "value": value}


def _taken_back(text: str) -> tuple[str, str | None]:
    kind, _, value = text.partition("=")
    return kind, value or None
