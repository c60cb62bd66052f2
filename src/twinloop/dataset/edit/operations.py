"""Edit datasets and write the result to a new folder: select, delete, split, merge, retask, reencode and rebalance."""

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
    """Write the selected episodes to a new dataset, in the given order.

    Args:
        source: The dataset.
        output: A missing or empty folder.
        episodes: Episodes by index, range or id, such as ``0:10,15``; see `selection.choose_episodes`.
        settings: Settings for videos, side tables and duplicates.

    Raises:
        InputError: If an episode does not exist or is given twice, or if no episode is selected.
        DatasetError: If the source is damaged, if the output exists or is inside a dataset, or if the disk is full.
    """
    opened = EditSource(source)
    items = _source_episodes(opened, choose_episodes(opened, episodes))
    return write_items(
        items, output, settings, EditOperation(name="select", parameters={"episodes": _choice_to_json(episodes)})
    )


def delete(source: Folder, output: Folder, episodes: Choice, *, settings: EditSettings = _AS_IS) -> EditResult:
    """Write all episodes except ``episodes`` to a new dataset. The source is not changed.

    Args:
        source: The dataset.
        output: A missing or empty folder.
        episodes: Episodes to leave out, by index, range or id, such as ``0:10,15``; see `selection.choose_episodes`.
        settings: Settings for videos, side tables and duplicates.

    Raises:
        InputError: If ``episodes`` is empty or names all episodes, or if one of them does not exist.
        DatasetError: If the source is damaged, if the output exists or is inside a dataset, or if the disk is full.
    """
    opened = EditSource(source)
    excluded = set(choose_episodes(opened, episodes))
    if not excluded:
        raise InputError(f"No episode of {opened} is given to delete. Give at least one.")
    items = _source_episodes(opened, [index for index in range(len(opened)) if index not in excluded])
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
    """Split a dataset into several datasets in folders ``output/NAME``. If an error occurs, no folder is created.

    Give exactly one of ``shares``, ``counts`` and ``lists``; their keys are the names of the parts.

    Args:
        source: The dataset.
        output: A missing or empty folder.
        shares: Share of the episodes in each part, between 0 and 1; episodes are selected at random.
        counts: Number of episodes in each part; episodes are selected at random.
        lists: Episodes of each part, in the format of `selection.choose_episodes`.
        by: Property with the same distribution in all parts (stratified split): ``task``, ``success`` or any column of
            the episode table, see `selection.group_episodes`. Not used with ``lists``.
        seed: Seed of the random selection.
        settings: Settings for videos, side tables and duplicates.

    Returns:
        The result of each part, by name. Its ``details`` list under ``from`` the indices of its episodes in the source,
        and under ``left_out`` the indices of the episodes that are in no part.

    Raises:
        InputError: If not exactly one of shares, counts and lists is given, if shares sum to more than 1, if there are
            not enough episodes, if a part is empty, or if an episode is in two parts.
        DatasetError: If the source is damaged, if the output exists or is inside a dataset, or if the disk is full.
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
        raise InputError(
            f"The part {empty[0]} of {opened} gets no episode of {len(opened)}. Give it more episodes, or omit it."
        )
    given_values: dict[str, Any] = {"shares": shares, "counts": counts, "by": by, "seed": seed}
    given_values["lists"] = None if lists is None else {name: _choice_to_json(choice) for name, choice in lists.items()}
    operation = EditOperation(
        name="split", parameters={key: value for key, value in given_values.items() if value is not None}
    )
    made = write_parts(
        {name: _source_episodes(opened, rows) for name, rows in parts.items()}, output, settings, operation
    )
    left = sorted(set(range(len(opened))) - {row for rows in parts.values() for row in rows})
    return {
        name: replace(one, details={**one.details, "from": parts[name], "left_out": left}) for name, one in made.items()
    }


def merge(sources: Sequence[Folder], output: Folder, *, settings: EditSettings = _AS_IS) -> EditResult:
    """Write all episodes of several folders into one dataset, in the order of the folders.

    Args:
        sources: The datasets.
        output: A missing or empty folder.
        settings: Settings for videos, side tables, differing features and units, and duplicates.

    Raises:
        InputError: If features, frame rates or codecs differ, or if an episode is in two folders and
            ``settings.duplicates`` is ``refuse``.
        UnitsError: If joint units differ, or only some folders declare them.
        DatasetError: If a source is damaged, if the output exists or is inside a dataset, or if the disk is full.
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
    options = {"codec": codec, "same_units": settings.same_units, "common": settings.common_features_only}
    parameters = {key: value for key, value in options.items() if value}
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
    """Write all episodes with new task texts.

    An episode with a changed text gets a new id, and the original episode is recorded as its parent.

    Args:
        source: The dataset.
        output: A missing or empty folder.
        task: New task text of the selected episodes. Give either ``task`` or ``rename``.
        episodes: Episodes to change, in the format of `selection.choose_episodes`; all by default.
        rename: New task text for each old text.
        settings: Settings for videos, side tables and duplicates.

    Returns:
        The result; ``details`` has the number of changed episodes.

    Raises:
        InputError: If not exactly one of ``task`` and ``rename`` is given, if no episode has an old text, if a new text
            is empty, or if no text would change.
        DatasetError: If the source is damaged, if the output exists or is inside a dataset, or if the disk is full.
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
    """Write all episodes with re-encoded videos.

    Each episode gets a new id, and the original episode is recorded as its parent.

    Args:
        source: The dataset.
        output: A missing or empty folder.
        encoding: Codec settings of the new videos.
        settings: Settings for hard links, side tables and duplicates; codec settings are replaced by ``encoding``.

    Raises:
        InputError: If the dataset has no videos, or their images are not 8-bit colour.
        DatasetError: If the source is damaged, if the output exists or is inside a dataset, or if the disk is full.
    """
    opened = EditSource(source)
    if not opened.feature_keys("video"):
        raise InputError(f"{opened} has no videos to encode. Its features: {', '.join(opened.features)}.")
    pixels = PixelEdits(encoding=encoding, reencode_all=True, link=settings.pixels.link)
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
    """Write episodes so that groups of episodes have equal or given shares; surplus episodes are left out.

    Args:
        sources: One or several datasets.
        output: A missing or empty folder.
        by: Property that defines the groups: ``task``, ``success``, ``source`` or any column of the episode table, see
            `selection.group_episodes`.
        shares: Share of each group in the result, by its value of ``by``; equal shares by default. A group without a
            share is left out.
        seed: Seed of the random selection of the episodes that are left out or repeated.
        repeat: Instead of leaving episodes out, repeat episodes of the groups that are too small. Each repetition gets
            a new id and the original episode as its parent.
        settings: Settings for videos, side tables, differing features and units, and duplicates.

    Returns:
        The result; ``details`` has the counts of each group before and after, the episodes that are left out, and the
        number of repetitions.

    Raises:
        InputError: If the column does not exist, a share belongs to no group, or the shares do not sum to 1.
        DatasetError: If a source is damaged, if the output exists or is inside a dataset, or if the disk is full.
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
    parameters = {"by": by, "shares": None if shares is None else dict(shares), "seed": seed, "repeat": repeat}
    made = write_items(kept, output, settings, EditOperation(name="rebalance", parameters=parameters))
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
        listed = ", ".join(f"{name}={count}" for name, count in counts.items())
        raise InputError(
            f"The parts {listed} need {wanted} episodes, at least one each, but {source} has {len(source)}."
        )
    return {name: count / len(source) for name, count in counts.items()}


def _require_disjoint(source: EditSource, parts: Mapping[str, Sequence[int]]) -> None:
    owner: dict[int, str] = {}
    for name, rows in parts.items():
        for row in rows:
            if row in owner:
                raise InputError(f"Episode {row} of {source} is in {owner[row]} and in {name}. Name it in one part.")
            owner[row] = name


def _new_texts(item: SourceEpisode, task: str | None, rename: Mapping[str, str] | None) -> dict[str, str]:
    """Return the task texts of an episode that change, as a dictionary from old to new text.

    Raises:
        InputError: If a new text is empty.
    """
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
