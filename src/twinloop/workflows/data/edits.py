"""Run the commands of ``twinloop edit``: write an edited copy of a dataset to a new folder, and print the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console

from twinloop.core.errors import InputError
from twinloop.dataset.edit import operations
from twinloop.dataset.edit.videos import PixelEdits
from twinloop.dataset.edit.writing import EditResult, EditSettings
from twinloop.dataset.media.video_copy import Encoding
from twinloop.workflows.data.edit_requests import (
    EditDeleteRequest,
    EditMergeRequest,
    EditOutput,
    EditRebalanceRequest,
    EditReencodeRequest,
    EditRetaskRequest,
    EditSelectRequest,
    EditSplitRequest,
)


def run_select(request: EditSelectRequest, console: Console) -> dict[str, Any]:
    """Write the requested episodes of a dataset, in the requested order, to a new folder."""
    return _run_edit(
        console,
        "select",
        lambda: operations.select(request.dataset, request.output, request.episodes, settings=_settings(request)),
    )


def run_delete(request: EditDeleteRequest, console: Console) -> dict[str, Any]:
    """Write all episodes of a dataset, excluding the requested ones, to a new folder."""
    return _run_edit(
        console,
        "delete",
        lambda: operations.delete(request.dataset, request.output, request.episodes, settings=_settings(request)),
    )


def run_split(request: EditSplitRequest, console: Console) -> dict[str, Any]:
    """Split a dataset, for example into training and validation data, into several folders below the output."""
    sizes = _parse_sizes(parse_pairs("--parts", request.parts))
    return _run_edit(
        console,
        "split",
        lambda: operations.split(
            request.dataset, request.output, **sizes, by=request.by, seed=request.seed, settings=_settings(request)
        ),
    )


def run_merge(request: EditMergeRequest, console: Console) -> dict[str, Any]:
    """Write all episodes of several datasets to one new dataset."""
    encoding = None if request.codec is None else Encoding(codec=request.codec)
    settings = _settings(
        request,
        encoding=encoding,
        same_units=request.same_units,
        common_features_only=request.common,
        duplicates=request.twice,
    )
    return _run_edit(console, "merge", lambda: operations.merge(request.datasets, request.output, settings=settings))


def run_retask(request: EditRetaskRequest, console: Console) -> dict[str, Any]:
    """Write all episodes of a dataset to a new folder, and replace the task text of the requested episodes."""
    rename = parse_pairs("--rename", request.rename) if request.rename else None
    return _run_edit(
        console,
        "retask",
        lambda: operations.retask(
            request.dataset,
            request.output,
            task=request.task,
            episodes=request.episodes,
            rename=rename,
            settings=_settings(request),
        ),
    )


def run_reencode(request: EditReencodeRequest, console: Console) -> dict[str, Any]:
    """Write all episodes of a dataset to a new folder, with videos in the requested codec and image size."""
    height, width = _parse_image_size(request.size) if request.size is not None else (None, None)
    encoding = Encoding(codec=request.codec, gop=request.gop, crf=request.crf, height=height, width=width)
    return _run_edit(
        console,
        "reencode",
        lambda: operations.reencode(request.dataset, request.output, encoding, settings=_settings(request)),
    )


def run_rebalance(request: EditRebalanceRequest, console: Console) -> dict[str, Any]:
    """Write a dataset in which groups of episodes, for example successes and failures, have the requested shares.

    Returns:
        The result as a JSON-compatible dictionary: schema, verb, duration in s, and the fields of `EditResult`.
    """
    shares = {
        k: _parse_number(v, f"--shares {k}={v}") for k, v in parse_pairs("--shares", request.shares).items()
    } or None
    settings = _settings(request, same_units=request.same_units)
    return _run_edit(
        console,
        "rebalance",
        lambda: operations.rebalance(
            request.datasets,
            request.output,
            request.by,
            shares=shares,
            seed=request.seed,
            repeat=request.repeat,
            settings=settings,
        ),
    )


def _settings(request: EditOutput, *, encoding: Encoding | None = None, **more: Any) -> EditSettings:
    return EditSettings(
        pixels=PixelEdits(encoding=encoding, link=not request.copy), leave_out=request.leave_out, **more
    )


def _run_edit(console: Console, verb: str, work: Callable[[], EditResult | dict[str, EditResult]]) -> dict[str, Any]:
    """Run an edit, print its result, and return it as a JSON-compatible dictionary.

    Args:
        console: console for the result.
        verb: name of the edit, for the returned dictionary.
        work: function that writes the new folder or, for a split, several folders by name.

    Raises:
        TwinloopError: If the edit is not possible; see `dataset.edit.operations`.
    """
    start = time.perf_counter()
    made = work()
    seconds = time.perf_counter() - start
    result: dict[str, Any] = {"schema": 1, "verb": f"edit {verb}", "seconds": seconds}
    if isinstance(made, EditResult):
        _print_edit(made, console)
        return {**result, **made.to_json()}
    for part in made.values():
        _print_edit(part, console)
    return {**result, "parts": {name: part.to_json() for name, part in made.items()}}


def _print_edit(made: EditResult, console: Console) -> None:
    console.print(f"{made.output}: {made.episodes} episodes, {made.frames} frames.")
    for key, row in made.videos.items():
        ways = [f"{count} {way}" for way, count in row.items() if count]
        console.print(f"  {key}: {', '.join(ways)}")
    for kind, row in _groups(made.details):
        console.print(f"  {kind}: {row['before']} before, {row['after']} now")
    left = made.details.get("left_out") or ()
    if left:
        console.print(f"  left out: {len(left)} episodes, listed by --json")
    for note in made.notes:
        console.print(f"  {note}", style="dim")


def _groups(details: Mapping[str, Any]) -> list[tuple[str, Mapping[str, int]]]:
    return list(details.get("groups", {}).items())


def parse_pairs(option: str, words: Sequence[str]) -> dict[str, str]:
    """Parse words of the form ``NAME=VALUE``, and return the values by name.

    Args:
        option: flag to which the words belong, for error messages.
        words: the words.

    Raises:
        InputError: If a word has another form, or a name occurs twice.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or name in found:
            raise InputError(f"{option} {word}: give each name once, as NAME=VALUE.")
        found[name] = value
    return found


def _parse_sizes(parts: Mapping[str, str]) -> dict[str, Any]:
    """Return the keyword argument of `operations.split` that describes the sizes of the parts.

    Args:
        parts: size by name of the part. If all sizes are whole numbers, they are numbers of episodes (``counts``). If
            all sizes have a decimal point, they are shares of the episodes (``shares``). Otherwise they are lists of
            episodes (``lists``), such as 0:40; the list of episode 7 alone is written 7:8.

    Raises:
        InputError: If no part is given, or a share is not a number.
    """
    if not parts:
        raise InputError("Name the parts, as in --parts train=0.8 val=0.2.")
    if all(text.isdigit() for text in parts.values()):
        return {"counts": {name: int(text) for name, text in parts.items()}}
    if all("." in text for text in parts.values()):
        return {"shares": {name: _parse_number(text, f"--parts {name}={text}") for name, text in parts.items()}}
    return {"lists": dict(parts)}


def _parse_number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"{where}: {text!r} is not a number. Separate several entries by spaces.") from error


def _parse_image_size(text: str) -> tuple[int, int]:
    height, _, width = text.partition("x")
    if not (height.isdigit() and width.isdigit()):
        raise InputError(f"--size {text}: give HEIGHTxWIDTH in pixels, such as 240x320.")
    return int(height), int(width)
