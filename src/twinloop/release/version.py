"""A version of a policy in the registry, and how people call it."""

from __future__ import annotations

import getpass
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from twinloop.catalog.state import State
from twinloop.core.errors import InputError, UnknownNameError

Alias = Literal["champion", "candidate", "previous", "shadow", "canary"]
ALIASES: tuple[Alias, ...] = get_args(Alias)
MAIN = "main"  # the deployment where none is named
# Names can be typed without quotes; "@" divides name and version, "/" a deployment and its alias.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LEAST_PREFIX = 6  # digits of a hash


@dataclass(frozen=True, kw_only=True)
class Version:
    """One immutable version. ``hash`` is of its files, ``policy`` of its weights and settings.

    ``record`` says what it is made of: ``files`` with their hashes, ``contract``, ``normalization``, ``datasets``,
    ``twins``, ``code``, ``evaluations``.
    """

    name: str
    version: int
    hash: str
    policy: str | None
    record: Mapping[str, Any]
    added: str
    added_by: str

    @property
    def reference(self) -> str:
        """NAME@VERSION, which no later version can be meant by."""
        return f"{self.name}@{self.version}"

    def to_json(self) -> dict[str, Any]:
        """A plain form."""
        return {**vars(self), "record": dict(self.record), "reference": self.reference}


def versions(state: State) -> list[Version]:
    """Every version, oldest first."""
    rows = state.rows("SELECT * FROM policy_versions ORDER BY rowid")
    return [Version(**{**row, "record": json.loads(row["record"])}) for row in rows]


def aliases(state: State, deployment: str) -> dict[str, str]:
    """What each alias of a deployment stands for."""
    rows = state.rows("SELECT alias, policy FROM policy_aliases WHERE deployment = ?", (deployment,))
    return {row["alias"]: row["policy"] for row in rows}


def _place(state: State, deployment: str, held: Mapping[str, str]) -> str:
    """Where an alias was looked for, and why there may be none."""
    place = f"the deployment {deployment}"
    if held:
        return place
    others = [row["deployment"] for row in state.rows("SELECT DISTINCT deployment FROM policy_aliases ORDER BY 1", ())]
    if others:
        return f"{place}, which has none; aliases exist in {', '.join(others)}"
    return f"{place}, where nothing was promoted yet by `twinloop promote`"


def resolve(state: State, reference: str, deployment: str = MAIN) -> Version:
    """The version that is meant by an alias, ``DEPLOYMENT/ALIAS``, ``NAME@VERSION``, ``NAME@HASH``, ``NAME`` or a hash.

    Raises:
        UnknownNameError: nothing is called that; names the nearest.
    """
    where, _, word = reference.rpartition("/")
    if word in ALIASES:
        held = aliases(state, where or deployment)
        if word not in held:
            raise UnknownNameError("alias", word, held, where=_place(state, where or deployment, held))
        reference = held[word]
    known = versions(state)
    name, _, tail = reference.partition("@")
    found = [one for one in known if one.name == name and tail in ("", str(one.version))]
    if not found:
        found = [one for one in known if _meant(one, name, tail)]
    if not found:
        names = [one.reference for one in known]
        raise UnknownNameError("policy", reference, names, where="the registry")
    return found[-1]


def check_name(name: str) -> str:
    """The name, refused where it could not be typed or would be taken for something else.

    Raises:
        InputError: it is such a name.
    """
    if not _NAME.fullmatch(name) or name in ALIASES:
        raise InputError(
            f"{name!r} is no name for a policy: letters, digits, '.', '_' and '-', at most 63, and none of "
            f"{', '.join(ALIASES)}."
        )
    return name


def person() -> str:
    """Who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _meant(version: Version, name: str, tail: str) -> bool:
    """Whether a beginning of a hash names this version."""
    prefix = tail if tail and version.name == name else name if not tail else ""
    hashes = (version.hash, version.policy or "")
    return len(prefix) >= _LEAST_PREFIX and any(digest.startswith(prefix) for digest in hashes)
