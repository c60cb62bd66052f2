"""Read and write label files, as CSV or as JSON Lines.

The content of a file is text: it becomes the value of a label or is refused, and it is never executed.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from twinloop.catalog.label_checks import Label, Source
from twinloop.core.documents import MAX_LINES_BYTES, DocumentError, parse_json, read_text
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.files import write_text

COLUMNS: tuple[str, ...] = (
    "episode_id", "kind", "value", "first_frame", "last_frame", "source", "author", "author_hash", "confidence",
    "reason",
)  # fmt: skip
_MOST_ERRORS = 3


class LabelLine(BaseModel):
    """One line of a label file.

    In the file, the key ``episode`` is accepted in place of ``episode_id``. Its value is an episode id, the beginning
    of an id, or ``BATCH:INDEX`` (name of a generated dataset and number of the episode in it).

    Attributes:
        episode_id: Identifier of the episode.
        kind: Kind of the label, such as ``success`` or ``subtask``.
        value: Value of the label.
        first_frame: First labelled frame; None if the label is for the whole episode.
        last_frame: Last labelled frame, included.
        source: Kind of the author: ``hand`` (a person), ``rule`` or ``model``.
        author: Name of the author.
        author_hash: Hash of the rule or model that made the label.
        confidence: Confidence of the author, from 0 to 1.
        reason: Reason for the label.
    """

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=False)

    episode_id: str
    kind: str
    value: str | bool | int | float
    first_frame: int | None = None
    last_frame: int | None = None
    source: Source | None = None
    author: str | None = None
    author_hash: str | None = None
    confidence: float | None = None
    reason: str | None = None

    def to_label(self, *, source: Source, author: str, author_hash: str | None) -> Label:
        """Convert the line to a label; the arguments are used for fields that the line does not have.

        Args:
            source: Kind of the author: ``hand`` (a person), ``rule`` or ``model``.
            author: Name of the author.
            author_hash: Hash of the rule or model that made the label.
        """
        return Label(
            episode_id=self.episode_id,
            kind=self.kind,
            value={True: "yes", False: "no"}[self.value] if isinstance(self.value, bool) else str(self.value),
            source=self.source or source,
            author=self.author or author,
            first_frame=self.first_frame,
            last_frame=self.last_frame,
            author_hash=self.author_hash or author_hash,
            confidence=self.confidence,
            reason=self.reason,
        )


def read_labels(path: Path) -> list[LabelLine]:
    """Read the lines of a label file, ``.csv`` or ``.jsonl``.

    Raises:
        InputError: If the file is missing, too large, or has another format. The message lists the first invalid lines.
    """
    if path.suffix not in (".csv", ".jsonl"):
        raise InputError(f"{path} is neither a .csv nor a .jsonl file. docs/guides/labels.md describes both.")
    text = read_text(path, MAX_LINES_BYTES)
    rows = _read_csv_rows(path, text) if path.suffix == ".csv" else _read_json_rows(path, text)
    lines, wrong = list[LabelLine](), list[str]()
    for number, row in rows:
        try:
            lines.append(LabelLine.model_validate(row))
        except ValidationError as error:
            wrong.append(f"line {number}: {_format_first_error(error)}")
    if wrong:
        more = f" and {len(wrong) - _MOST_ERRORS} more lines" if len(wrong) > _MOST_ERRORS else ""
        raise InputError(f"{path}: {'; '.join(wrong[:_MOST_ERRORS])}{more}. Nothing was written.")
    if not lines:
        raise InputError(f"{path} contains no label. Nothing was written.")
    return lines


def write_labels(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write labels to a ``.csv`` or ``.jsonl`` file that `read_labels` can read.

    Args:
        path: File to write; its suffix selects the format.
        rows: Labels as mappings with the keys of `COLUMNS`; a missing key is a missing value, and other keys are
            ignored.

    Raises:
        InputError: If the suffix is neither ``.csv`` nor ``.jsonl``.
    """
    plain = [{name: row.get(name) for name in COLUMNS} for row in rows]
    if path.suffix == ".jsonl":
        lines = (json.dumps({key: item for key, item in row.items() if item is not None}) for row in plain)
        write_text(path, "".join(f"{line}\n" for line in lines))
    elif path.suffix == ".csv":
        sink = io.StringIO()
        writer = csv.DictWriter(sink, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(plain)
        write_text(path, sink.getvalue())
    else:
        raise InputError(f"{path} is neither a .csv nor a .jsonl file. Name one of these.")


def _read_csv_rows(path: Path, text: str) -> list[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text), strict=True)
    _require_columns(path, reader.fieldnames or ())
    rows = list[tuple[int, dict[str, Any]]]()
    try:
        for row in reader:
            if None in row:
                raise InputError(f"{path}: line {reader.line_num} has more fields than the header names.")
            given = {key: value for key, value in row.items() if value not in (None, "")}
            rows.append((reader.line_num, _rename_episode_key(given)))
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num} is not valid CSV ({error}).") from error
    return rows


def _require_columns(path: Path, names: Sequence[str]) -> None:
    for name in names:
        if name not in (*COLUMNS, "episode"):
            raise UnknownNameError("column", name, (*COLUMNS, "episode"), where=str(path))
    missing = [name for name in ("kind", "value") if name not in names]
    if "episode_id" not in names and "episode" not in names:
        missing.insert(0, "episode_id")
    if missing:
        raise InputError(f"{path} has no column {', '.join(missing)}. Its first line names the columns.")


def _read_json_rows(path: Path, text: str) -> list[tuple[int, dict[str, Any]]]:
    rows = list[tuple[int, dict[str, Any]]]()
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = parse_json(line, where=f"{path}: line {number}")
        except DocumentError as error:
            raise InputError(f"{error} Nothing was written.") from error
        if not isinstance(value, dict):
            raise InputError(f"{path}: line {number} is not a JSON object. Nothing was written.")
        rows.append((number, _rename_episode_key(value)))
    return rows


def _rename_episode_key(row: dict[str, Any]) -> dict[str, Any]:
    return {"episode_id" if key == "episode" else key: value for key, value in row.items()}


def _format_first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}"
