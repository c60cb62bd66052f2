"""Read sections of the documentation, for tests that run their examples."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def section(page: str, heading: str = "") -> str:
    """Return a page below ``docs/``, or its section of that heading with all its subsections."""
    text = (DOCS / page).read_text()
    if not heading:
        return text
    plain = re.sub(r"(?s)```.*?```", lambda code: " " * len(code[0]), text)  # a comment in code is no heading
    begin = re.search(rf"^(#+) {re.escape(heading)}$", plain, flags=re.MULTILINE)
    assert begin, f"docs/{page} has no section {heading!r}"
    end = re.compile(rf"^#{{1,{len(begin[1])}}} ", flags=re.MULTILINE).search(plain, begin.end())
    return text[begin.end() : end.start() if end else None]
