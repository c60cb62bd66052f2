"""Edit datasets into a new folder: select, delete, split, merge, retask, reencode and rebalance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from twinloop.core.errors import InputError
from twinloop.dataset.edit.documents import EditOperation
from twinloop.dataset.edit.rows import SourceEpisode, make_transform_entry
from twinloop.dataset.edit.selection import (
    Choice,
    balance_episodes,
    check_shares,
    choose_episodes,
    group_episodes,
    split_episodes,
)
from twinloop.dataset.edit.source import EditSource
from twinloop.dataset.edit.videos import PixelEdits
from twinloop.dataset.edit.writing import EditResult, EditSettings, write_items, write_parts
from twinloop.dataset.media.video_copy import Encoding

Folder = Path | str
_AS_IS = EditSettings()


def select(source: Folder, output: Folder, episodes: Choice, *, settings: EditSettings = _AS_IS) -> EditResult:
    """Write the selected episodes in the given order; see `selection.choose_episodes` for the formats of ``episodes``.

    Raises:
        InputError: an episode does not exist or is given twice, or there is none.
        DatasetError: see `writing.write_selection`.
    """
    opened = EditSource(source)
    items = _source_episodes(opened, choose_episodes(opened, episodes))
    return write_items(
        items, output, settings, EditOperation(name="select", parameters={"episodes": _choice_to_json(episodes)})
    )


def delete(source: Folder, output: Folder, episodes: Choice, *, settings: EditSettings = _AS_IS) -> EditResult:
    """Write all episodes except ``episodes``; raises the same errors as `select`."""
    opened = EditSource(source)
    gone = set(choose_episodes(opened, episodes))
    if not gone:
        raise InputError(f"No episode to leave out of {opened}. Name at least one.")
    items = _source_episodes(opened, [index for index in range(len(opened)) if index not in gone])
    return write_items(
        items, output, settings, EditOperation(name="delete", parameters={"episodes": _choice_to_json(episodes)})
    )


def split(
    source: Folder,
    output: Folder,
    *,
    shares: Mapping[str, float] | None = None,
    counts: Mapping[str, int] | None = None,
    lists: Mapping[str, Choice] | None = None,
    by: str | None = None,
    seed: int = 0,
    settings: EditSettings = _AS_IS,
) -> dict[str, EditResult]:
    """Split a dataset into folders ``output/NAME``; all appear at once or none.

    Args:
        source: the dataset.
        output: a missing or empty folder.
        shares: the share of each part, between 0 and 1; episodes are drawn at random.
        counts: instead, the number of episodes of each part; episodes are drawn at random.
        lists: instead, the episodes of each part, as in `select`.
        by: property with the same distribution in all parts: ``task``, ``success`` or any column, see
            `selection.group_episodes`.
        seed: seed of the draw.
        settings: how to write.

    Raises:
        InputError: not exactly one of shares, counts and lists; shares above 1, too many episodes, an empty part, or
            an episode in two parts.
        DatasetError: see `writing.write_selection`.
    """
    opened = EditSource(source)
    given = [way for way in (shares, counts, lists) if way]
    if len(given) != 1:
        raise InputError("Give one way to split: shares (train=0.8), counts (train=40) or lists (train=0:40).")
    names = list(given[0])
    for name in names:
        if not name or name != Path(name).name or name.startswith("."):
            raise InputError(f"A part cannot be named {name!r}: it becomes a folder. Use letters, digits, - and _.")
    if lists:
        parts = {name: choose_episodes(opened, choice) for name, choice in lists.items()}
        _require_disjoint(opened, parts)
    else:
        parts = split_episodes(_strata(opened, by), _fractions(opened, shares, counts), seed=seed)
    empty = [name for name, rows in parts.items() if not rows]
    if empty:
        raise InputError(f"The part {empty[0]} of {opened} gets no episode of {len(opened)}. Give it more, or drop it.")
    said: dict[str, Any] = {"shares": shares, "counts": counts, "by": by, "seed": seed}
    said["lists"] = None if lists is None else {name: _choice_to_json(choice) for name, choice in lists.items()}
    operation = EditOperation(name="split", parameters={key: value for key, value in said.items() if value is not None})
    made = write_parts(
        {name: _source_episodes(opened, rows) for name, rows in parts.items()}, output, settings, operation
    )
    left = sorted(set(range(len(opened))) - {row for rows in parts.values() for row in rows})
    return {
        name: replace(one, details={**one.details, "from": parts[name], "left_out": left}) for name, one in made.items()
    }


def merge(sources: Sequence[Folder], output: Folder, *, settings: EditSettings = _AS_IS) -> EditResult:
    """Write all episodes of several folders into one dataset, in the order of the folders.

    Raises:
        InputError: features, rates or codecs differ, or an episode is in two folders.
        UnitsError: units differ, or only some folders declare them.
        DatasetError: see `writing.write_selection`.
    """
    if not sources:
        raise InputError("There is no folder to merge. Name at least one.")
    paths = [Path(source).resolve() for source in sources]
    twice = [path for path in paths if paths.count(path) > 1]
    if twice:
        raise InputError(f"{twice[0]} is given twice. Name each folder once.")
    opened = [EditSource(source) for source in sources]
    items = [item for source in opened for item in _source_episodes(source, range(len(source)))]
    codec = settings.pixels.encoding.codec if settings.pixels.encoding else None
    said = {"codec": codec, "same_units": settings.same_units, "common": settings.common}
    parameters = {key: value for key, value in said.items() if value}
    return write_items(items, output, settings, EditOperation(name="merge", parameters=parameters))


def retask(
    source: Folder,
    output: Folder,
    *,
    task: str | None = None,
    episodes: Choice | None = None,
    rename: Mapping[str, str] | None = None,
    settings: EditSettings = _AS_IS,
) -> EditResult:
    """Write all episodes and replace task texts; a changed episode gets a new id and the original as its parent.

    Args:
        source: the dataset.
        output: an absent or empty folder.
        task: the new text of ``episodes`` (by default of all episodes).
        episodes: as in `select`.
        rename: instead of ``task``, maps old texts to new ones.
        settings: how to write.

    Raises:
        InputError: no new text, an old text that no episode has, or no text would change.
        DatasetError: see `writing.write_selection`.
    """
    if (task is None) == (rename is None):
        raise InputError("Give the new task text, or texts to rename (old=new), and not both.")
    opened = EditSource(source)
    wanted = set(range(len(opened)) if episodes is None else choose_episodes(opened, episodes))
    if rename is not None:
        _require_known_tasks(opened, rename)
    items, changed = [], 0
    for item in _source_episodes(opened, range(len(opened))):
        texts = _new_texts(item, task, rename) if item.index in wanted else {}
        changed += bool(texts)
        done = (make_transform_entry("retask", {"texts": texts}),) if texts else ()
        items.append(replace(item, texts=texts, transforms=done))
    if not changed:
        raise InputError(f"No task text of {opened} would change. Its texts are: {_list_tasks(opened)}.")
    parameters: dict[str, Any] = {"rename": dict(rename)} if rename is not None else {"task": task}
    parameters |= {} if episodes is None else {"episodes": _choice_to_json(episodes)}
    made = write_items(items, output, settings, EditOperation(name="retask", parameters=parameters))
    return replace(made, details={"changed": changed})


def reencode(source: Folder, output: Folder, encoding: Encoding, *, settings: EditSettings = _AS_IS) -> EditResult:
    """Write all episodes with re-encoded videos; each gets a new id and the original as its parent.

    Raises:
        InputError: the dataset has no videos, or their images are not 8-bit colour.
        DatasetError: see `writing.write_selection`.
    """
    opened = EditSource(source)
    if not opened.feature_keys("video"):
        raise InputError(f"{opened} has no videos to encode. Its features: {', '.join(opened.features)}.")
    pixels = PixelEdits(encoding=encoding, everything=True, link=settings.pixels.link)
    items = _source_episodes(opened, range(len(opened)))
    operation = EditOperation(name="reencode", parameters=encoding.to_json())
    return write_items(items, output, replace(settings, pixels=pixels), operation)


def rebalance(
    sources: Sequence[Folder],
    output: Folder,
    by: str,
    *,
    shares: Mapping[str, float] | None = None,
    seed: int = 0,
    repeat: bool = False,
    settings: EditSettings = _AS_IS,
) -> EditResult:
    """Write episodes so that groups have equal or given shares; the surplus is left out.

    Args:
        sources: one or several datasets.
        output: a missing or empty folder.
        by: definition of groups: ``task``, ``success``, ``source`` or any column, see `selection.group_episodes`.
        shares: of each group; equal by default. A group without a share is left out.
        seed: determines which episodes are left out.
        repeat: keep all episodes of the largest group and repeat episodes of the others. Each repetition gets its own
            id and the original as its parent.
        settings: how to write.

    Returns:
        The result; ``details`` has the counts of each group before and after, and the skipped episodes.

    Raises:
        InputError: a missing column, shares of missing groups, or shares that do not sum to 1.
        DatasetError: see `writing.write_selection`.
    """
    opened = [EditSource(source) for source in sources]
    items = [item for source in opened for item in _source_episodes(source, range(len(source)))]
    kinds = [kind for source in opened for kind in group_episodes(source, by)]
    times = balance_episodes(kinds, shares, seed=seed, repeat=repeat)
    kept = [_make_copy(item, copy) for item, often in zip(items, times, strict=True) for copy in range(often)]
    counts = {kind: {"before": 0, "after": 0} for kind in dict.fromkeys(kinds)}
    for kind, often in zip(kinds, times, strict=True):
        counts[kind]["before"] += 1
        counts[kind]["after"] += often
    left = [[str(item.source.path), item.index] for item, often in zip(items, times, strict=True) if not often]
    said = {"by": by, "shares": None if shares is None else dict(shares), "seed": seed, "repeat": repeat}
    made = write_items(kept, output, settings, EditOperation(name="rebalance", parameters=said))
    return replace(made, details={"groups": counts, "left_out": left, "repeated": len(kept) - sum(map(bool, times))})


def _source_episodes(source: EditSource, indices: Sequence[int] | range) -> list[SourceEpisode]:
    return [SourceEpisode(source=source, index=index) for index in indices]


def _make_copy(item: SourceEpisode, copy: int) -> SourceEpisode:
    return replace(item, transforms=(make_transform_entry("repeat", {"copy": copy}),)) if copy else item


def _strata(source: EditSource, by: str | None) -> list[str]:
    return [""] * len(source) if by is None else group_episodes(source, by)


def _fractions(
    source: EditSource, shares: Mapping[str, float] | None, counts: Mapping[str, int] | None
) -> dict[str, float]:
    if counts is None:
        return check_shares(shares or {})
    wanted = sum(counts.values())
    if wanted > len(source) or min(counts.values()) < 1:
        said = ", ".join(f"{name}={count}" for name, count in counts.items())
        raise InputError(f"The parts {said} want {wanted} episodes, each at least one; {source} has {len(source)}.")
    return {name: count / len(source) for name, count in counts.items()}


def _require_disjoint(source: EditSource, parts: Mapping[str, Sequence[int]]) -> None:
    owner: dict[int, str] = {}
    for name, rows in parts.items():
        for row in rows:
            if row in owner:
                raise InputError(f"Episode {row} of {source} is in {owner[row]} and in {name}. Name it in one part.")
            owner[row] = name


def _new_texts(item: SourceEpisode, task: str | None, rename: Mapping[str, str] | None) -> dict[str, str]:
    """Return the changed task texts of an episode, old to new."""
    old = item.tasks
    new = {text: task if task is not None else (rename or {}).get(text, text) for text in old}
    if any(not text.strip() for text in new.values()):
        raise InputError("A task text cannot be empty. Describe what the robot does.")
    return {before: after for before, after in new.items() if before != after}


def _require_known_tasks(source: EditSource, rename: Mapping[str, str]) -> None:
    texts = {text for row in source.column("tasks") for text in row or ()}
    unknown = [text for text in rename if text not in texts]
    if unknown:
        raise InputError(f"No episode of {source} has the task {unknown[0]!r}. Its texts are: {_list_tasks(source)}.")


def _list_tasks(source: EditSource) -> str:
    found = sorted({text for row in source.column("tasks") for text in row or ()})
    return ", ".join(map(repr, found[:8])) + (", …" if len(found) > 8 else "")


def _choice_to_json(choice: Choice) -> Any:
    return choice if isinstance(choice, str) else list(choice)
