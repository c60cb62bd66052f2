"""The error tree: every message names the wrong thing, what exists, and the next step."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from twinloop.core.redaction import redacted


class TwinloopError(Exception):
    """Base of every error raised on purpose; ``exit_code`` is what the command line returns.

    Its message holds no credentials: they are removed from texts that libraries and addresses bring in.
    """

    exit_code = 2

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(redacted(one) if isinstance(one, str) else one for one in arguments))


class InputError(TwinloopError):
    """What the user gave is wrong: a file, a name, a value, a unit."""


class UnknownNameError(InputError):
    """A name that does not exist; the message lists the nearest existing ones.

    Args:
        kind: what was looked up, in the singular (``"parameter"``).
        name: the name that was asked for.
        existing: the names that exist.
        where: the file, key or object in which it was looked up.
    """

    def __init__(self, kind: str, name: str, existing: Iterable[str], *, where: str = "") -> None:
        names = sorted(existing)
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
        place = f" in {where}" if where else ""
        if near:
            hint = "Nearest existing: " + ", ".join(near) + "."
        elif names:
            hint = "Existing: " + ", ".join(names[:12]) + (", …" if len(names) > 12 else "") + "."
        else:
            hint = "None exist here."
        super().__init__(f"Unknown {kind} {name!r}{place}. {hint}")
        self.name, self.near = name, near

    def __reduce__(self) -> tuple[object, ...]:
        """Cross a process border as the message it became."""
        return _again, (type(self), self.args, self.__dict__)


class BoundsError(InputError):
    """A value or a range lies outside the physical bounds of its parameter."""


class UnitsError(InputError):
    """A quantity without a unit, or with one that does not fit; the message asks the question to answer."""


class LogError(InputError):
    """A robot log that cannot be used as it is: empty, NaN, time going backwards, a missing joint."""


class DatasetError(InputError):
    """A dataset folder that cannot be read or written as it is."""


class DatasetLockedError(DatasetError):
    """Another process writes to the same folder."""


class CheckFailedError(TwinloopError):
    """A gate or a check said no; the input was fine."""

    exit_code = 1


class MissingDependencyError(TwinloopError):
    """The environment lacks something; ``remedy`` is the command that provides it."""

    exit_code = 3

    def __init__(self, what: str, *, remedy: str) -> None:
        super().__init__(f"{what} To add it: {remedy}")
        self.remedy = remedy

    def __reduce__(self) -> tuple[object, ...]:
        """Cross a process border as the message it became."""
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[TwinloopError], arguments: tuple[object, ...], state: dict[str, object]) -> TwinloopError:
    error = kind.__new__(kind)
    error.args, error.__dict__ = arguments, state
    return error
