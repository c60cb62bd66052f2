"""Write labels of episodes by hand, from a file or by rule; show and export labels, and measure their agreement."""

from __future__ import annotations

import functools
import getpass
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from twinloop.catalog import Workspace
from twinloop.catalog.episode_lookup import resolve_episodes, select_episodes
from twinloop.catalog.label_checks import SUBTASKS, Label, Source, Vocabulary
from twinloop.catalog.labels import LabelWriteResult, ReviewRecord, retract_labels
from twinloop.core.errors import InputError, TwinloopError
from twinloop.core.extension import describe_error
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.generate.replay import read_root_config
from twinloop.label.agreement import (
    BoundaryPair,
    LabelAgreement,
    ObserverPair,
    measure_agreement,
    measure_boundary_agreement,
)
from twinloop.label.exchange import read_labels, write_labels
from twinloop.label.rule import UNKNOWN, LabelRule, RuleEpisode, RuleFinding
from twinloop.label.rules import RULES, SqlRule, open_rule
from twinloop.stats import Interval
from twinloop.tasks import Task, open_task
from twinloop.twin import load_twin
from twinloop.workflows.data.datasets import in_workspace
from twinloop.workflows.data.label_requests import (
    LabelAddRequest,
    LabelAgreementRequest,
    LabelExportRequest,
    LabelListRequest,
    LabelRulesRequest,
    LabelShowRequest,
)


def open_episode_task(reader: DatasetReader, index: int) -> tuple[Task | None, str]:
    """Return the task of a simulated episode on the twin that simulated it.

    Args:
        reader: reader of the dataset.
        index: index of the episode in the dataset.

    Returns:
        The task and ""; or None and the reason why the task is not available, for example because the twin has changed.
    """
    if not reader.written_by_twinloop or reader.is_appended(index) or reader.has_log(index):
        return None, "it was not simulated by twinloop"
    try:
        config = read_root_config(reader).get("generate")
        if not isinstance(config, dict) or "twin" not in config or "task" not in config:
            return None, "its dataset does not name its twin and task"
        record = reader.provenance(index)
        task, made = _open_task(str(config["twin"]), str(config["task"]))
    except TwinloopError as error:
        return None, f"its twin or task cannot be opened: {error}"
    if record.twin_hash != made:
        return None, f"it was simulated with {record.twin} {record.twin_hash[:12]}, and the twin is now {made[:12]}"
    return task, ""


@functools.lru_cache(maxsize=4)
def _open_task(twin: str, task: str) -> tuple[Task, str]:
    loaded = load_twin(twin)
    return open_task(task, loaded), loaded.hash


def list_rules(request: LabelRulesRequest, console: Console) -> dict[str, Any]:
    """Print the labelling rules with their meanings, the failure classes, and the subtasks that rules write.

    The file labels.yaml of a workspace can add failure classes and define other subtasks.
    """
    root = Workspace.find(Path.cwd())
    if request.workspace is not None:
        with Workspace.open(request.workspace) as opened:
            root = opened.root
    words = Vocabulary() if root is None else Vocabulary.of(root)
    rules = {name: open_rule(name).meaning for name in RULES}
    subtasks = words.subtasks or SUBTASKS
    for title, rows in (("rule", rules), ("failure class", words.failures), ("subtask", subtasks)):
        table = Table(title, "", box=None, header_style="bold", pad_edge=False)
        for name, meaning in rows.items():
            table.add_row(name, meaning)
        console.print(table)
    return {
        "schema": 1,
        "verb": "label rules",
        "rules": rules,
        "failures": dict(words.failures),
        "subtasks": dict(subtasks),
        "tags": None if words.tags is None else dict(words.tags),
    }


_ROWS = 10


@in_workspace
def run_agreement(request: LabelAgreementRequest, ws: Workspace, console: Console) -> dict[str, Any]:
    """Measure and print how well the authors of one kind of label agree.

    Raises:
        InputError: If fewer than two authors label this kind, or no two of them label the same episodes, or the
            tolerance is negative.
        UnknownNameError: If agreement is not measured for this kind.
    """
    if request.tolerance < 0:
        raise InputError(f"--tolerance {request.tolerance:g} is negative. Give seconds, such as 0.2.")
    rows = ws.query(
        "SELECT l.*, e.fps FROM labels l JOIN episodes e ON e.episode_id = l.episode_id WHERE l.kind = ? ORDER BY seq",
        [request.kind],
    ).to_pylist()
    if request.where is not None:
        chosen = set(select_episodes(ws, request.where))
        rows = [row for row in rows if row["episode_id"] in chosen]
    if request.kind == "subtask":
        fps = {row["episode_id"]: row["fps"] for row in rows}
        pairs, worst = measure_boundary_agreement(rows, fps, tolerance_s=request.tolerance)
        _print_boundaries(pairs, worst, console)
        result: dict[str, Any] = {"pairs": [pair.to_json() for pair in pairs], "disagreements": worst}
    else:
        found = measure_agreement(rows, request.kind)
        _print_agreement(found, console)
        result = found.to_json()
    return {"schema": 1, "verb": "label agreement", **result, "kind": request.kind}


def _print_agreement(found: LabelAgreement, console: Console) -> None:
    console.print(
        f"{found.kind}: {len(found.observers)} observers, {found.episodes} episodes with two or more. "
        f"Krippendorff's alpha {_format_interval(found.alpha)}"
        + ("" if math.isnan(found.alpha.estimate) else f", {found.alpha.method}")
    )
    table = Table("first", "second", "episodes", "same", "kappa", box=None, header_style="bold", pad_edge=False)
    for pair in found.pairs:
        beyond = "" if pair.kappa is None else _format_interval(pair.kappa)
        beyond = f"median difference {pair.median_difference:+.3g}" if pair.median_difference is not None else beyond
        table.add_row(pair.first, pair.second, str(pair.episodes), _format_interval(pair.raw, share=True), beyond)
    console.print(table)
    for pair in found.pairs:
        if pair.confusion:
            console.print(_confusion_table(pair))
    for row in found.disagreements[:_ROWS]:
        said = ", ".join(f"{who}={value}" for who, value in row["labels"].items())
        console.print(f"  {row['episode_id'][:12]}  {said}")
    if len(found.disagreements) > _ROWS:
        console.print(f"  … {len(found.disagreements) - _ROWS} more episodes with different labels")


def _confusion_table(pair: ObserverPair) -> Table:
    words = sorted({word for key in pair.confusion for word in key})
    table = Table(f"{pair.first} \\ {pair.second}", *words, box=None, header_style="bold", pad_edge=False)
    for one in words:
        table.add_row(one, *(str(pair.confusion.get((one, other), 0)) for other in words))
    return table


def _print_boundaries(pairs: Sequence[BoundaryPair], worst: Sequence[dict[str, Any]], console: Console) -> None:
    table = Table(
        "first", "second", "episodes", f"F1 within {pairs[0].tolerance_s:g} s", "delay of second", "equal frames",
        box=None, header_style="bold", pad_edge=False,
    )  # fmt: skip
    for pair in pairs:
        table.add_row(
            pair.first,
            pair.second,
            str(pair.episodes),
            _format_interval(pair.f1),
            f"{pair.offset_s:+.3f} s",
            _format_interval(pair.frame_agreement, share=True),
        )
    console.print(table)
    for row in worst[:_ROWS]:
        console.print(f"  {row['episode_id'][:12]}  F1 {row['f1']:.2f} between {' and '.join(row['between'])}")


def _format_interval(interval: Interval, *, share: bool = False) -> str:
    ends = [float(part) for part in (interval.estimate, interval.low, interval.high)]
    if math.isnan(ends[0]):
        return f"undefined: {interval.method}"
    if share:
        return "{:.0%} ({:.0%} to {:.0%})".format(*ends)
    return "{:.2f} ({:.2f} to {:.2f})".format(*ends)


_SHOWN = 20
_SUBTASK = re.compile(r"(?P<word>.+):(?P<first>\d+)-(?P<last>\d+)")
_MOST_REASONS = 5
MOST_FINDINGS = 2_000_000  # rows of a rule in SQL: each becomes an object of some 700 bytes


def run_add(request: LabelAddRequest, console: Console) -> dict[str, Any]:
    """Label episodes by hand, from a file or by rule.

    Raises:
        InputError: If no label is given, or labels are given in more than one way.
    """
    labels = _parse_labels(request)
    _require_single_source(request, has_labels=bool(labels))
    with Workspace.open(request.workspace) as ws:
        if request.file is not None:
            return import_labels(ws, request.file, request, console)
        if request.rule is not None:
            some = request.episodes or request.where is not None
            chosen = select_labelled_episodes(ws, request.episodes, request.where) if some else None
            return run_rule(ws, request.rule, chosen, console)
        chosen = select_labelled_episodes(ws, request.episodes, request.where)
        who: dict[str, Any] = {"author": request.author or getpass.getuser(), "source": request.source or "hand"}
        if request.retract:
            return retract_and_print(ws, chosen, dict(map(_parse_retraction, request.retract)), **who, console=console)
        return label_episodes(ws, chosen, labels, add=request.add, **who, console=console)


def _require_single_source(request: LabelAddRequest, *, has_labels: bool) -> None:
    ways = [
        name
        for name, given in (
            ("labels", has_labels),
            ("--retract", bool(request.retract)),
            ("--from", request.file is not None),
            ("--rule", request.rule is not None),
        )
        if given
    ]
    if len(ways) != 1:
        problem = f"{' and '.join(ways)} are given together." if ways else "No label is given."
        raise InputError(
            f"{problem} Give labels (--success, --failure, --subtask, --language, --tag, --number), or exactly one of "
            "--retract, --from and --rule."
        )
    if request.file is not None and (request.episodes or request.where is not None):
        raise InputError("The file of --from names its episodes. Leave out EPISODE and --where.")


def _parse_labels(request: LabelAddRequest) -> list[dict[str, Any]]:
    more = {"reason": request.reason, "confidence": request.confidence, "author_hash": request.author_hash}
    pairs = [(kind, getattr(request, kind)) for kind in ("success", "failure", "language")]
    labels = [{"kind": kind, "value": value} for kind, value in pairs if value is not None]
    labels += [{"kind": "tag", "value": word} for word in request.tag]
    labels += [_parse_subtask(text) for text in request.subtask]
    labels += [_parse_number(text) for text in request.number]
    return [one | more for one in labels]


def _parse_subtask(text: str) -> dict[str, Any]:
    found = _SUBTASK.fullmatch(text)
    if found is None and text != "unknown":
        raise InputError(f"--subtask {text} is not WORD:FIRST-LAST. Write frames as in reach:0-45.")
    if found is None:
        return {"kind": "subtask", "value": text}
    frames = {"first_frame": int(found["first"]), "last_frame": int(found["last"])}
    return {"kind": "subtask", "value": found["word"], **frames}


def _parse_number(text: str) -> dict[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise InputError(f"--number {text} is not NAME=VALUE. Write it as in quality=4.")
    return {"kind": f"number/{name}", "value": value}


def _parse_retraction(text: str) -> tuple[str, str | None]:
    kind, _, value = text.partition("=")
    return kind, value or None


def select_labelled_episodes(ws: Workspace, words: Sequence[str], where: str | None) -> list[str]:
    """Return the ids of the episodes that a command names and of those that meet a condition, each once.

    Args:
        ws: the workspace.
        words: references of episodes: beginnings of ids, or BATCH:INDEX.
        where: SQL condition on the view ``episodes``, or a complete SELECT; None for no condition.

    Raises:
        InputError: If no episode is named, and no episode meets the condition.
    """
    named = resolve_episodes(ws, words)
    if where is not None:
        found = select_episodes(ws, where)
        if not found and not named:
            raise InputError(f"--where {where} selects no episode. No label was written.")
        named += found
    if not named:
        raise InputError("No episode is named. Give ids, BATCH:INDEX, or --where SQL.")
    return list(dict.fromkeys(named))


def label_episodes(
    ws: Workspace,
    episodes: Sequence[str],
    labels: Sequence[Mapping[str, Any]],
    *,
    author: str,
    source: Source,
    add: bool,
    console: Console,
) -> dict[str, Any]:
    """Write the same labels for every episode, and print how many were written.

    Args:
        ws: the workspace.
        episodes: ids of the episodes.
        labels: the labels: fields of `Label`, without the episode, the source and the author.
        author: author of the labels.
        source: kind of the author: ``hand`` (a person), ``rule`` or ``model``.
        add: whether to keep the author's earlier subtasks and texts, which are replaced otherwise.
        console: console for the result.
    """
    rows = [Label(episode_id=name, source=source, author=author, **fields) for name in episodes for fields in labels]
    return _print_written(ws.label(rows, add=add), len(episodes), f"{source}:{author}", console)


def retract_and_print(
    ws: Workspace,
    episodes: Sequence[str],
    kinds: Mapping[str, str | None],
    *,
    author: str,
    source: Source,
    console: Console,
) -> dict[str, Any]:
    """Retract labels of an author; the history keeps them.

    Args:
        ws: the workspace.
        episodes: ids of the episodes.
        kinds: value to retract by kind of label; None for all values of the kind.
        author: author of the labels.
        source: kind of the author.
        console: console for the result.

    Raises:
        InputError: If no kind is given.
    """
    if not kinds:
        raise InputError("--retract needs a kind: success, failure, subtask, language, tag=WORD or number/NAME.")
    taken = sum(
        retract_labels(ws, episodes, kind, source=source, author=author, value=value) for kind, value in kinds.items()
    )
    console.print(f"{taken} labels of {source}:{author} retracted; the history keeps them.")
    return {"schema": 1, "verb": "label", "retracted": taken}


def import_labels(ws: Workspace, path: Path, request: LabelAddRequest, console: Console) -> dict[str, Any]:
    """Write all labels in a file or, after an error, none of them.

    A line whose source, author or author hash (hash of the rule or model) differs from the command's flag is an error.
    A model's file therefore cannot write labels in the name of a person.

    Raises:
        InputError: If the file cannot be read, or a line has another source, author or hash than the flags.
    """
    lines = read_labels(path)
    for number, line in enumerate(lines, start=1):
        for name in ("source", "author", "author_hash"):
            value = getattr(request, name)
            if value is not None and getattr(line, name) not in (None, value):
                raise InputError(
                    f"{path}: label {number} has the {name} {getattr(line, name)!r}, and the command has {value!r}. "
                    "Nothing was written."
                )
    names = list(dict.fromkeys(line.episode_id for line in lines))
    known = dict(zip(names, resolve_episodes(ws, names), strict=True))
    source, author, author_hash = request.source or "hand", request.author or getpass.getuser(), request.author_hash
    labels = [
        replace(line.to_label(source=source, author=author, author_hash=author_hash), episode_id=known[line.episode_id])
        for line in lines
    ]
    return _print_written(ws.label(labels), len(names), f"{path}", console)


def run_rule(ws: Workspace, word: str, episodes: Sequence[str] | None, console: Console) -> dict[str, Any]:
    """Apply a labelling rule to episodes, and write its labels.

    Args:
        ws: the workspace.
        word: name of a built-in rule, FILE.py:Class or FILE.yaml.
        episodes: ids of the episodes; None for all of the workspace.
        console: console for the result.

    Raises:
        InputError: If the rule cannot be opened, or raises an exception.
    """
    rule = open_rule(word)
    pairs = list(_apply_sql_rule(ws, rule, episodes) if isinstance(rule, SqlRule) else _apply_rule(ws, rule, episodes))
    looked_at = episodes if episodes is not None else ws.query("SELECT episode_id FROM episodes")[0].to_pylist()
    survey = ReviewRecord(source="rule", author=rule.name, episode_ids=frozenset(looked_at))
    unknown = Counter(finding.reason for _, finding in pairs if finding.value == UNKNOWN)
    labels = [_build_label(name, finding, rule) for name, finding in pairs]
    written = ws.label(labels, review=survey)
    result = _print_written(written, len({name for name, _ in pairs}), f"rule:{rule.name}", console)
    for reason, count in unknown.most_common(_MOST_REASONS):
        console.print(f"  undecided in {count} cases: {reason}")
    values = Counter(f"{finding.kind}={finding.value}" for _, finding in pairs)
    return result | {
        "rule": rule.name,
        "hash": rule.hash,
        "values": dict(sorted(values.items())),
        "unknown": dict(unknown),
    }


@in_workspace
def show(request: LabelShowRequest, ws: Workspace, console: Console) -> dict[str, Any]:
    """Print the current labels of an episode and the consensus of their authors.

    Returns:
        The current labels, the consensus and all earlier labels.
    """
    episode = resolve_episodes(ws, [request.episode])[0]
    held = ws.query("SELECT * FROM labels WHERE episode_id = ? ORDER BY kind, first_frame, source, author", [episode])
    history = ws.query("SELECT * FROM label_history WHERE episode_id = ? ORDER BY seq", [episode])
    consensus = ws.query("SELECT * FROM consensus WHERE episode_id = ? ORDER BY kind", [episode])
    names = ("kind", "value", "first_frame", "last_frame", "source", "author", "confidence", "said_at", "reason")
    console.print(f"Episode {episode}")
    console.print(_table([row | {"said_at": row["said_at"][:16]} for row in held.to_pylist()], names, most=len(held)))
    for row in consensus.to_pylist():
        conflict = f"; {row['conflict']}" if row["conflict"] else ""
        console.print(f"{row['kind']}: {row['value']} ({row['decided']} of {row['source']}{conflict})")
    console.print(f"{len(history) - len(held)} more entries are in the view label_history.")
    return {
        "schema": 1,
        "verb": "label show",
        "episode_id": episode,
        "labels": held.to_pylist(),
        "consensus": consensus.to_pylist(),
        "history": history.to_pylist(),
    }


@in_workspace
def overview(_: LabelListRequest, ws: Workspace, console: Console) -> dict[str, Any]:
    """Print the number of labels by kind, source, author and value."""
    rows = ws.query(
        "SELECT kind, source, author, CASE WHEN kind IN ('language') OR number IS NOT NULL THEN '' ELSE value END AS "
        "value, count(*) AS labels, count(DISTINCT episode_id) AS episodes FROM labels "
        "GROUP BY ALL ORDER BY kind, source, author, labels DESC"
    ).to_pylist()
    console.print(_table(rows, ("kind", "source", "author", "value", "labels", "episodes")) if rows else "No labels.")
    return {"schema": 1, "verb": "label list", "labels": rows}


@in_workspace
def export(request: LabelExportRequest, ws: Workspace, console: Console) -> dict[str, Any]:
    """Write the current labels to a CSV or JSON Lines file that `import_labels` can read."""
    chosen = None if request.where is None else set(select_episodes(ws, request.where))
    rows = ws.query("SELECT * FROM labels ORDER BY seq").to_pylist()
    kept = [row for row in rows if chosen is None or row["episode_id"] in chosen]
    write_labels(request.file, kept)
    console.print(f"{len(kept)} labels: {request.file}")
    return {"schema": 1, "verb": "label export", "labels": len(kept), "file": str(request.file)}


def _apply_sql_rule(ws: Workspace, rule: SqlRule, episodes: Sequence[str] | None) -> list[tuple[str, RuleFinding]]:
    found = rule.read_findings(ws.query(rule.sql, max_rows=MOST_FINDINGS))
    if episodes is None:
        return found
    chosen = set(episodes)
    return [(name, finding) for name, finding in found if name in chosen]


def _apply_rule(ws: Workspace, rule: LabelRule, episodes: Sequence[str] | None) -> Iterator[tuple[str, RuleFinding]]:
    for episode in iterate_rule_episodes(ws, episodes):
        try:
            found = list(rule.label(episode))
        except TwinloopError:
            raise
        except Exception as error:  # any exception of a user's rule is an error of this rule
            which = f"The rule {rule.name} fails for episode {episode.episode_id[:12]}"
            raise InputError(f"{which}: {describe_error(error)}. Nothing was written.") from error
        yield from ((episode.episode_id, finding) for finding in found)


def iterate_rule_episodes(ws: Workspace, episodes: Iterable[str] | None = None) -> Iterator[RuleEpisode]:
    """Yield episodes as the input of labelling rules, sorted by dataset folder.

    Args:
        ws: the workspace.
        episodes: ids of the episodes; None for all that are not excluded.
    """
    table = ws.query("SELECT episode_id, batch, episode_index FROM episodes ORDER BY batch, episode_index")
    chosen = None if episodes is None else set(episodes)
    reader = functools.lru_cache(maxsize=4)(ws.reader)
    for row in table.to_pylist():
        if chosen is None or row["episode_id"] in chosen:
            opened: DatasetReader = reader(row["batch"])
            task, reason = open_episode_task(opened, row["episode_index"])
            yield RuleEpisode(
                episode_id=row["episode_id"],
                reader=opened,
                index=row["episode_index"],
                task=task,
                missing_reason=reason,
            )


def _build_label(episode: str, finding: RuleFinding, rule: LabelRule | SqlRule) -> Label:
    return Label(
        episode_id=episode,
        kind=finding.kind,
        value=finding.value,
        source="rule",
        author=rule.name,
        author_hash=rule.hash,
        first_frame=finding.first_frame,
        last_frame=finding.last_frame,
        confidence=finding.confidence,
        reason=finding.reason,
    )


def _print_written(written: LabelWriteResult, episodes: int, who: str, console: Console) -> dict[str, Any]:
    replaced = f", replacing {written.replaced}" if written.replaced else ""
    unchanged = f"; {written.unchanged} statements unchanged" if written.unchanged else ""
    retracted = f"; {written.retracted} earlier ones retracted" if written.retracted else ""
    console.print(f"{written.labels} labels of {episodes} episodes by {who}{replaced}{unchanged}{retracted}")
    return {"schema": 1, "verb": "label", "episodes": episodes, "author": who, **written.to_json()}


def _table(rows: Sequence[Mapping[str, Any]], names: Sequence[str], *, most: int = _SHOWN) -> Table:
    table = Table(*names, box=None, header_style="bold", pad_edge=False)
    for row in rows[:most]:
        table.add_row(*("" if row[name] is None else str(row[name]) for name in names))
    if len(rows) > most:
        table.add_row(f"… {len(rows) - most} more")
    return table
