"""The views and their columns as Markdown, from where they are declared: ``python -m twinloop.catalog.reference``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from twinloop.catalog.questions import QUESTIONS
from twinloop.catalog.schema import TABLES, CatalogTable
from twinloop.catalog.state_schema import STATE_TABLES
from twinloop.core.files import write_text

_TYPES = {"string": "text", "double": "number", "int64": "integer", "bool": "flag"}


def reference() -> str:
    """A table of columns for each declared table."""
    return "\n".join(_table(table) for table in (*TABLES.values(), *STATE_TABLES.values())).rstrip() + "\n"


def questions() -> str:
    """The written questions with their SQL."""
    return "\n".join(f"**{q.name}**: {q.question}\n\n```sql\n{q.sql.strip()}\n```\n" for q in QUESTIONS).rstrip() + "\n"


def filled(page: str) -> str:
    """A page with what stands between its markers made anew."""
    for name, text in (("columns", reference()), ("questions", questions())):
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        page = re.sub(pattern, lambda found, text=text: f"{found[1]}\n{text}\n{found[2]}", page, flags=re.DOTALL)
    return page


def _table(table: CatalogTable) -> str:
    rows = [
        f"| `{c.name}` | {_type(str(c.type))} | {c.meaning}{' (may be empty)' if c.optional else ''} |"
        for c in table.columns
    ]
    head = [
        f"### {table.name}",
        "",
        f"{table.meaning[0].upper()}{table.meaning[1:]}.",
        "",
        "| column | type | meaning |",
    ]
    return "\n".join([*head, "|---|---|---|", *rows, ""])


def _type(name: str) -> str:
    inner = re.fullmatch(r"list<.*?: (\w+)>", name)
    return f"list of {'numbers' if inner[1] == 'float' else 'texts'}" if inner else _TYPES.get(name, name)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    write_text(path, filled(path.read_text()))
