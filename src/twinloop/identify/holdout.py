"""Which episodes a fit must not see."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from twinloop.core.errors import InputError

_FORMS = "Write last:K, every:K or a list of episode numbers such as 3,7,9."


@dataclass(frozen=True, kw_only=True)
class HoldoutSpec:
    """The held-out part of a log: its ``last`` K episodes, one in K (``every``), or a ``list`` of episode numbers.

    ``option`` names it in messages.
    """

    kind: Literal["none", "last", "every", "list"]
    count: int = 0
    numbers: tuple[int, ...] = ()
    option: str = "--holdout"

    @classmethod
    def parse(cls, text: str | None, *, option: str = "--holdout") -> HoldoutSpec:
        """``last:K``, ``every:K`` or ``3,7,9``; None holds nothing out.

        Raises:
            InputError: the text is none of these; says which forms exist.
        """
        if text is None:
            return cls(kind="none", option=option)
        stripped = text.strip()
        if not stripped:
            raise InputError(f"{option} is empty. {_FORMS} Leave it away to hold out nothing.")
        if match := re.fullmatch(r"(last|every):(\d+)", stripped):
            kind, count = match.group(1), int(match.group(2))
            least = 1 if kind == "last" else 2
            if count < least:
                raise InputError(
                    f"{option} {stripped} would hold out {'nothing' if kind == 'last' else 'all'}. {_FORMS}"
                )
            return cls(kind="last" if kind == "last" else "every", count=count, option=option)
        if re.fullmatch(r"\d+(\s*,\s*\d+)*", stripped):
            return cls(kind="list", numbers=tuple(int(part) for part in stripped.split(",")), option=option)
        raise InputError(f"{option} {stripped!r} is not understood. {_FORMS}")

    def split(self, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
        """Positions of the training and of the held-out episodes among ``numbers``, both in order.

        Raises:
            InputError: an episode that does not exist, nothing held out though it was asked for, or nothing left to
                train on.
        """
        held = self._held(list(numbers))
        if not held and self.kind != "none":
            raise InputError(
                f"{self.option} {self} holds out none of {len(numbers)} episodes. Choose a smaller number."
            )
        training = [i for i in range(len(numbers)) if i not in held]
        if not training:
            raise InputError(f"{self.option} {self} of {len(numbers)} episodes leaves none to train on. {_FORMS}")
        return training, sorted(held)

    def _held(self, numbers: list[int]) -> set[int]:
        if self.kind == "last":
            return set(range(max(0, len(numbers) - self.count), len(numbers)))
        if self.kind == "every":
            return set(range(self.count - 1, len(numbers), self.count))
        missing = sorted(set(self.numbers) - set(numbers))
        if missing:
            raise InputError(
                f"{self.option} {self}: there is no episode {', '.join(map(str, missing))} to hold out; "
                f"there are {len(numbers)}, numbered {min(numbers)} to {max(numbers)}."
            )
        return {numbers.index(number) for number in self.numbers}

    def __str__(self) -> str:
        if self.kind == "list":
            return ",".join(map(str, self.numbers))
        return "none" if self.kind == "none" else f"{self.kind}:{self.count}"
