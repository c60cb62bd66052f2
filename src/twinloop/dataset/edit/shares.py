"""How many episodes each part gets, and which: by share, exactly, and the same for the same seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator

_STREAM = "edit/shares"
_WHOLE = 1e-9  # how far shares may sum beyond 1: their rounding as floats


def largest_remainder(count: int, shares: Sequence[float]) -> list[int]:
    """Whole numbers nearest to ``count · share`` that sum to ``count · sum(shares)``, rounded (Hamilton's method)."""
    exact = [count * share for share in shares]
    result = [math.floor(value + _WHOLE) for value in exact]
    left = round(sum(exact)) - sum(result)
    order = sorted(range(len(shares)), key=lambda i: (result[i] - exact[i], i))
    for i in order[:left]:
        result[i] += 1
    return result


def checked_shares(shares: Mapping[str, float]) -> dict[str, float]:
    """Shares as they are.

    Raises:
        InputError: one is not between 0 and 1, or they sum to more than 1.
    """
    wrong = [name for name, share in shares.items() if not 0 < share <= 1]
    if wrong:
        raise InputError(f"The share of {wrong[0]} is {shares[wrong[0]]}; shares lie between 0 and 1.")
    if sum(shares.values()) > 1 + _WHOLE:
        raise InputError(f"The shares {_listed(shares)} sum to {sum(shares.values()):g}, which is more than 1.")
    return dict(shares)


def parted(groups: Sequence[str], shares: Mapping[str, float], *, seed: int) -> dict[str, list[int]]:
    """Episodes into parts, so that the sizes are right altogether and, within one episode or two, in every group.

    Args:
        groups: what each episode is; one and the same for all where nothing is to be balanced.
        shares: of each part.
        seed: which episodes go where follows from it.

    Returns:
        The episodes of each part, ascending.
    """
    names = list(shares)
    totals = np.array(largest_remainder(len(groups), list(shares.values())))
    members = {group: [i for i, one in enumerate(groups) if one == group] for group in dict.fromkeys(groups)}
    exact = np.array([[len(rows) * shares[name] for name in names] for rows in members.values()])
    quota = np.floor(exact + _WHOLE).astype(int)
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


def balanced(groups: Sequence[str], shares: Mapping[str, float] | None, *, seed: int, repeat: bool) -> list[int]:
    """How often each episode is in a balanced result: 0 or 1, and more where ``repeat`` allows it.

    Args:
        groups: what each episode is.
        shares: of each group in the result; equal ones where none are given.
        seed: which episodes are left out or repeated follows from it.
        repeat: keep all episodes of the group that there is most of for its share, and repeat those of the others;
            else as many as the scarcest group allows, and none twice.

    Raises:
        InputError: shares for groups that are not there, or that do not sum to 1.
    """
    members = {group: [i for i, one in enumerate(groups) if one == group] for group in dict.fromkeys(groups)}
    wanted = _of_groups(members, shares)
    sizes = {group: len(rows) / wanted[group] for group, rows in members.items() if group in wanted}
    total = max(sizes.values()) if repeat else min(sizes.values())
    result = [0] * len(groups)
    quotas = largest_remainder(math.floor(total + _WHOLE), list(wanted.values()))
    for row, (group, quota) in enumerate(zip(wanted, quotas, strict=True)):
        rows = members[group]
        count = quota if repeat else min(quota, len(rows))
        for place in generator(seed, _STREAM, row).permutation(rows).tolist()[: count % len(rows)]:
            result[place] += 1
        for place in rows:
            result[place] += count // len(rows)
    if not any(result):
        raise InputError(f"The shares {_listed(wanted)} leave no episode. Give larger ones, or say --repeat.")
    return result


def _of_groups(members: Mapping[str, Sequence[int]], shares: Mapping[str, float] | None) -> dict[str, float]:
    if shares is None:
        return dict.fromkeys(members, 1 / len(members))
    unknown = [group for group in shares if group not in members]
    if unknown:
        raise InputError(f"No episode is {unknown[0]!r}. There are: {', '.join(map(repr, members))}.")
    found = checked_shares(shares)
    if abs(sum(found.values()) - 1) > _WHOLE:
        raise InputError(f"The shares {_listed(found)} sum to {sum(found.values()):g}; give some that sum to 1.")
    return found


def _listed(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={share:g}" for name, share in shares.items())
