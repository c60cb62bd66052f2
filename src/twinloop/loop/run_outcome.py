"""Whether an episode succeeded: by a judge, by a file, or by whom one can ask."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

from twinloop.core.documents import MOST_LINES_BYTES, read_text
from twinloop.core.errors import InputError
from twinloop.loop.run_cell import RunRequest
from twinloop.release.running_steps import Ran

_WORDS = {"1": True, "true": True, "yes": True, "y": True, "0": False, "false": False, "no": False, "n": False}


def outcome_of(ran: Ran, request: RunRequest) -> bool | None:
    """What is known of an episode's outcome; None where nobody says.

    Raises:
        InputError: the file of outcomes is wrong.
    """
    if ran.success is not None:
        return ran.success
    if request.outcome is not None:
        return read_outcomes(request.outcome).get(ran.episode)
    if request.ask and sys.stdin.isatty():
        return _WORDS.get(input(f"Did episode {ran.episode} succeed? [y/n, Enter: not known] ").strip().lower())
    return None


def read_outcomes(path: Path) -> dict[int, bool]:
    """Outcomes by episode number from a CSV file with the columns ``episode`` and ``success``.

    Raises:
        InputError: the file is missing, or a row says something else; names the line.
    """
    try:
        table = csv.DictReader(io.StringIO(read_text(path, MOST_LINES_BYTES), newline=""))
        rows, header = list(table), [name.strip() for name in table.fieldnames or ()]
    except InputError as error:
        raise InputError(
            f"{path} cannot be read ({error}). Give a CSV file with the columns episode, success."
        ) from error
    lacking = [name for name in ("episode", "success") if name not in header]
    if lacking:
        raise InputError(
            f"{path} has no column {lacking[0]}; it has: {', '.join(header) or 'nothing'}. Give a CSV file whose first "
            "line is episode,success, with commas between."
        )
    found: dict[int, bool] = {}
    for line, row in enumerate(rows, start=2):
        number, word = (row.get("episode") or "").strip(), (row.get("success") or "").strip().lower()
        if not number.isdecimal() or word not in _WORDS:
            raise InputError(
                f"{path}, line {line}: episode {number!r} and success {word!r} are no outcome. Write a whole number, "
                f"and one of {', '.join(_WORDS)}."
            )
        found[int(number)] = _WORDS[word]
    return found
