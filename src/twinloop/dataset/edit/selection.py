"""Select episodes by index, range or id, group them, and select random subsets with exact shares."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
from twinloop.dataset.edit.source import EditSource

Choice = str | Sequence[int | str]
_SPAN = re.compile(r"(\d*):(\d*)")
_CLOSED = re.compile(r"(\d+)-(\d+)")
_ID = re.compile(r"[0-9a-f]{8,64}")


def choose_episodes(source: EditSource, choice: Choice) -> list[int]:
    """Return the ``episode_index`` of each selected episode, in the given order.

    Args:
        choice: A list, or a text with commas. Each item is an ``episode_index``, a range or an episode id. The range
            ``0:10`` excludes episode 10, ``0-9`` includes episode 9, and ``40:`` extends to the last episode. Of an
            id, the first eight characters are sufficient.

    Raises:
        InputError: If an episode does not exist, if an id matches several episodes, or if an item has another format.
    """
    parts = choice.split(",") if isinstance(choice, str) else choice
    found: list[int] = []
    for part in parts:
        text = str(part).strip()
        if text:
            found += _parse_part(source, text, choice)
    return found


def _parse_part(source: EditSource, text: str, choice: Choice) -> list[int]:
    count = len(source)
    if span := _SPAN.fullmatch(text):
        start, stop = int(span[1] or 0), int(span[2] or count)
    elif span := _CLOSED.fullmatch(text):
        start, stop = int(span[1]), int(span[2]) + 1
    elif text.isdigit() and len(text) < 8:
        start, stop = int(text), int(text) + 1
    elif _ID.fullmatch(text):
        return [_find_by_id(source, text)]
    else:
        raise InputError(
            f"The episodes {choice!r} are not understood at {text!r}. Give numbers (3,5,8), ranges (0:30, 40:) or "
            "episode ids, separated by commas."
        )
    if stop > count or start >= stop:
        raise InputError(f"{source} has no episode {text}. It has {count} episodes, numbered 0 to {count - 1}.")
    return list(range(start, stop))


def _find_by_id(source: EditSource, text: str) -> int:
    matches = [index for index, name in enumerate(source.ids) if name.startswith(text)]
    if len(matches) != 1:
        how = f"{len(matches)} episodes" if matches else "No episode"
        has = "Give more of the id." if matches else f"`twinloop query` shows the ids; {source} has {len(source)}."
        raise InputError(f"{how} of {source} {'have' if matches else 'has'} an id that begins with {text}. {has}")
    return matches[0]


def group_episodes(source: EditSource, by: str) -> list[str]:
    """Return the group of each episode: the value of one of its properties as text.

    Args:
        by: Property that defines the groups: ``task``, ``success``, ``source`` or any other column of the episode table
            (the prefix ``provenance/`` may be omitted).

    Raises:
        InputError: If the dataset does not have that property.
    """
    if by == "task":
        return ["; ".join(texts or ()) for texts in source.column("tasks")]
    name = by if by in source.columns.names else f"provenance/{by}"
    if name not in source.columns.names:
        plain = [n.removeprefix("provenance/") for n in source.columns.names if n.startswith("provenance/")]
        has = ", ".join(["task", *plain[:20]])
        raise InputError(f"The episodes of {source} have no property {by!r}. They have: {has}.")
    return [_format_value(value) for value in source.column(name)]


def _format_value(value: Any) -> str:
    return "not said" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


_STREAM = "edit/shares"
_TOLERANCE = 1e-9  # tolerance for rounding errors in sums of shares


def largest_remainder(count: int, shares: Sequence[float]) -> list[int]:
    """Round each ``count * share`` to an integer and keep the sum (largest remainder method, also Hamilton's method).

    The sum of the result is ``count * sum(shares)``, rounded.
    """
    exact = [count * share for share in shares]
    result = [math.floor(value + _TOLERANCE) for value in exact]
    left = round(sum(exact)) - sum(result)
    order = sorted(range(len(shares)), key=lambda i: (result[i] - exact[i], i))
    for i in order[:left]:
        result[i] += 1
    return result


def check_shares(shares: Mapping[str, float]) -> dict[str, float]:
    """Check that shares are valid, and return a copy of them.

    Raises:
        InputError: If a share is not above 0 and at most 1, or if the shares sum to more than 1.
    """
    wrong = [name for name, share in shares.items() if not 0 < share <= 1]
    if wrong:
        raise InputError(f"The share of {wrong[0]} is {shares[wrong[0]]}; shares must be between 0 and 1.")
    if sum(shares.values()) > 1 + _TOLERANCE:
        raise InputError(f"The shares {_format_shares(shares)} sum to {sum(shares.values()):g}, which is more than 1.")
    return dict(shares)


def split_episodes(groups: Sequence[str], shares: Mapping[str, float], *, seed: int) -> dict[str, list[int]]:
    """Split episodes at random into parts of exact size, stratified by group.

    In each group, the number of episodes in a part is the exact share rounded down or up. In rare cases it is one
    higher, because each part must also have its exact total size.

    Args:
        groups: Group of each episode; the same value for all episodes if no stratification is needed.
        shares: Share of each part.
        seed: Seed of the random selection.

    Returns:
        Indices of the episodes in each part, ascending.
    """
    names = list(shares)
    totals = np.array(largest_remainder(len(groups), list(shares.values())))
    members = {group: [i for i, one in enumerate(groups) if one == group] for group in dict.fromkeys(groups)}
    exact = np.array([[len(rows) * shares[name] for name in names] for rows in members.values()])
    quota = np.floor(exact + _TOLERANCE).astype(int)
    room = np.array([len(rows) for rows in members.values()]) - quota.sum(axis=1)
    missing = totals - quota.sum(axis=0)
    order = np.argsort((quota - exact).ravel(), kind="stable")
    while (missing > 0).any():
        for place in order:
            group, part = divmod(int(place), len(names))
            if room[group] > 0 and missing[part] > 0:
                quota[group, part] += 1
                room[group], missing[part] = room[group] - 1, missing[part] - 1
    result: dict[str, list[int]] = {name: [] for name in names}
    for row, rows in enumerate(members.values()):
        shuffled = generator(seed, _STREAM, row).permutation(rows).tolist()
        for name, count in zip(names, quota[row].tolist(), strict=True):
            result[name] += shuffled[:count]
            shuffled = shuffled[count:]
    return {name: sorted(rows) for name, rows in result.items()}


def balance_episodes(
    groups: Sequence[str], shares: Mapping[str, float] | None, *, seed: int, repeat: bool
) -> list[int]:
    """Return how often each episode occurs in a balanced dataset: 0 or 1, or more if ``repeat`` is true.

    Args:
        groups: Group of each episode.
        shares: Share of each group in the result; equal shares by default. A group without a share is left out.
        seed: Seed of the random selection of the episodes that are left out or repeated.
        repeat: If true, all episodes of the group that is largest relative to its share are kept, and episodes of other
            groups are repeated. If false, the group that is smallest relative to its share limits the size, and no
            episode is repeated.

    Raises:
        InputError: If a share belongs to no group, if the shares do not sum to 1, or if no episode remains.
    """
    members = {group: [i for i, one in enumerate(groups) if one == group] for group in dict.fromkeys(groups)}
    wanted = _resolve_shares(members, shares)
    sizes = {group: len(rows) / wanted[group] for group, rows in members.items() if group in wanted}
    total = max(sizes.values()) if repeat else min(sizes.values())
    result = [0] * len(groups)
    quotas = largest_remainder(math.floor(total + _TOLERANCE), list(wanted.values()))
    for row, (group, quota) in enumerate(zip(wanted, quotas, strict=True)):
        rows = members[group]
        count = quota if repeat else min(quota, len(rows))
        for place in generator(seed, _STREAM, row).permutation(rows).tolist()[: count % len(rows)]:
            result[place] += 1
        for place in rows:
            result[place] += count // len(rows)
    if not any(result):
        raise InputError(f"The shares {_format_shares(wanted)} leave no episode. Give larger shares, or add --repeat.")
    return result


def _resolve_shares(members: Mapping[str, Sequence[int]], shares: Mapping[str, float] | None) -> dict[str, float]:
    if shares is None:
        return dict.fromkeys(members, 1 / len(members))
    unknown = [group for group in shares if group not in members]
    if unknown:
        raise InputError(f"No episode is in the group {unknown[0]!r}. The groups are: {', '.join(map(repr, members))}.")
    found = check_shares(shares)
    if abs(sum(found.values()) - 1) > _TOLERANCE:
        raise InputError(f"The shares {_format_shares(found)} sum to {sum(found.values()):g}; they must sum to 1.")
    return found


def _format_shares(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={share:g}" for name, share in shares.items())
