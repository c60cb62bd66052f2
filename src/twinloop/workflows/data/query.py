"""Run a SQL query on the workspace, and print the result or write it to a file in one of several formats."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from twinloop.catalog import Workspace
from twinloop.catalog.querying import convert_to_json
from twinloop.catalog.reference import EXAMPLE_QUERIES
from twinloop.catalog.workspace import FILE
from twinloop.core.console import SafeConsole, escape_control
from twinloop.core.documents import DocumentError
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.files import atomic_open, dumps
from twinloop.core.yaml_documents import parse_yaml
from twinloop.workflows.data.requests import QueryRequest
from twinloop.workflows.run.results import replace_nonfinite

Format = Literal["table", "json", "parquet", "arrow", "csv"]

_BY_SUFFIX: Mapping[str, Format] = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".json": "json",
    ".jsonl": "json",
    ".csv": "csv",
}
_KEPT = ("catalog", "data", "twins")  # folders of a workspace in which only its own commands write files

_SHOWN = 50  # rows of a table for people; files hold all
_WIDTH = 40  # characters of a cell for people
_PAGE = 200  # columns of a table that goes to a file
_MOST_IN_LINE = 64_000_000  # bytes of an answer that --json holds as objects and as one line


def run_query(request: QueryRequest, console: Console) -> dict[str, Any]:
    """Run a SQL query on the workspace, and print the result or write it to a file.

    Raises:
        UnknownNameError: If there is no such table, column or predefined query.
        InputError: If the statement cannot be run, a binary format has no output file, the result is too large for
            ``--json``, or the output would overwrite files of the workspace.
    """
    format = request.format or (_BY_SUFFIX.get(request.output.suffix, "table") if request.output else "table")  # noqa: A001
    if format in ("parquet", "arrow") and request.output is None and (request.json or sys.stdout.isatty()):
        raise InputError(
            f"--format {format} writes binary data, which cannot be printed here. Name a file with --output."
        )
    with Workspace.open(request.workspace) as opened:
        _refuse_internal_path(request.output, opened.root)
        answer = opened.query(resolve_statement(request.sql), parse_parameters(request.params))
    result = {"schema": 1, "verb": "query", "rows": len(answer), "columns": answer.column_names}
    if request.output is not None:
        with atomic_open(request.output) as file:
            write_table(answer, format, file)
        console.print(f"{len(answer)} rows: {request.output}")
        return {**result, "output": str(request.output)}
    if request.json:
        if answer.nbytes > _MOST_IN_LINE:
            raise InputError(
                f"The result has {answer.nbytes / 1e6:,.0f} MB, and --json prints at most {_MOST_IN_LINE / 1e6:.0f} "
                "MB. Write it to a file: --output FILE."
            )
        return {**result, "answer": replace_nonfinite(convert_to_json(answer.to_pylist()))}
    if format == "table":
        console.print(_table(answer))
        more = f" (the first {_SHOWN} are shown; --format json or parquet gives all)" if len(answer) > _SHOWN else ""
        console.print(f"{len(answer)} rows{more}")
    elif sys.stdout.isatty():  # a terminal would execute control characters in the data
        text = io.BytesIO()
        write_table(answer, format, text)
        sys.stdout.write(escape_control(text.getvalue().decode()))
    else:
        write_table(answer, format, sys.stdout.buffer)
    return result


def resolve_statement(text: str) -> str:
    """Return the SQL statement for a text, which is a statement or the name of a predefined query.

    Raises:
        UnknownNameError: If the text is one word, and no predefined query has this name.
    """
    word = text.strip()
    if not word or any(letter.isspace() for letter in word):
        return text
    named = {question.name: question.sql for question in EXAMPLE_QUERIES}
    if word not in named:
        raise UnknownNameError(
            "query", word, named, where="the predefined queries; or give a SELECT statement in quotes"
        )
    return named[word]


def parse_parameters(params: Sequence[str]) -> dict[str, Any]:
    """Parse words of the form ``NAME=VALUE``, and return the values of the query's parameters by name.

    A value is read as YAML, so that ``low=0.2`` gives a number. A value that is not valid YAML remains a text.

    Raises:
        InputError: If a word has another form.
    """
    values: dict[str, Any] = {}
    for text in params:
        name, sign, value = text.partition("=")
        if not sign or not name.isidentifier():
            raise InputError(f"--params {text}: write NAME=VALUE for $NAME in the statement, such as low=0.2.")
        try:
            values[name] = parse_yaml(value, where=f"--params {name}") if value else ""
        except DocumentError:
            values[name] = value
    return values


def _refuse_internal_path(output: Path | None, root: Path) -> None:
    """Refuse an output path in the folders that only the workspace's own commands write.

    Raises:
        InputError: If ``output`` is the workspace's configuration file, or in such a folder.
    """
    if output is None:
        return
    place = output.resolve()
    for kept in (root / FILE, *(root / name for name in _KEPT)):
        if place.is_relative_to(kept.resolve()):
            raise InputError(f"{output} is in {kept}, where only the workspace itself writes. Choose a file elsewhere.")


def write_table(answer: pa.Table, format: Format, file: BinaryIO) -> None:  # noqa: A002 - as the option is called
    """Write the rows of an answer to a file in a format."""
    if format == "parquet":
        pq.write_table(answer, file, compression="zstd")
    elif format == "arrow":
        with pa.ipc.new_stream(file, answer.schema) as writer:
            writer.write_table(answer)
    elif format == "json":
        for batch in answer.to_batches():
            file.writelines(
                (escape_control(dumps(replace_nonfinite(convert_to_json(row)))) + "\n").encode()
                for row in batch.to_pylist()
            )
    elif format == "csv":
        pc.write_csv(_flatten_nested(answer), file)
    else:
        text = io.StringIO()
        SafeConsole(file=text, width=_PAGE, markup=False, highlight=False, emoji=False).print(_table(answer))
        file.write(text.getvalue().encode())


def _flatten_nested(answer: pa.Table) -> pa.Table:
    """Return the table with lists, structs and maps converted to JSON text, for formats such as CSV."""
    for at, field in enumerate(answer.schema):
        if pa.types.is_nested(field.type):
            pieces = [_json_texts(chunk) for chunk in answer.column(at).chunks]
            answer = answer.set_column(at, field.name, pa.chunked_array(pieces, pa.string()))
    return answer


def _json_texts(values: pa.Array) -> pa.Array:
    return pa.array(
        [None if value is None else dumps(replace_nonfinite(convert_to_json(value))) for value in values.to_pylist()],
        pa.string(),
    )


def _table(answer: pa.Table) -> Table:
    table = Table(*answer.column_names)
    for row in answer.slice(0, _SHOWN).to_pylist():
        table.add_row(*(_format_cell(value) for value in row.values()))
    return table


def _format_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
