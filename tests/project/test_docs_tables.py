"""Every table of measured figures in README and pages names the command that makes it, and that command exists.

A table is one of figures if 3 in 10 of its cells begin with a number. It names its command in the marks between which a
command writes it, or in the two blocks of text before or after it.
"""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from benchmarks.commands import PROGRAM

ROOT = Path(__file__).parents[2]
GENERATED = "docs/reference/parameters.md"  # a reference, written and tested by tests/twin/test_docs_parameters.py
# Tables of settings: stated numbers that are not measured. A page and the first cell of the table's head.
SETTINGS = {
    ("docs/concepts/actuators.md", "preset"),
    ("docs/guides/annotations.md", "column"),
    ("docs/guides/catalog.md", "limit"),
    ("docs/guides/deployment.md", "the server waits for"),
    ("docs/guides/evaluation.md", "suite"),
    ("docs/guides/curation.md", "check"),
}
# Commands that act and print no metrics, and one that no longer exists.
ACTS = "add|bench|datasets|edit|export|init|label|policies|promote|pull|push|record|render|rollback|run|serve"
COMMAND = re.compile(
    rf"(twinloop (?!(?:{ACTS})\b)[a-z]+|(?:^|<!-- )benchmarks [a-z]+|python -m (?:benchmarks|pytest)|make [a-z]+"
    r"|tests/\w+\.py|examples/\w+\.py)",
    flags=re.MULTILINE,
)
SHOWN = re.compile(
    r"`(?:TWINLOOP_DATA=\S+ )?python -m\s+benchmarks ([^`]+)`"
    r"|^(?:TWINLOOP_DATA=\S+ )?python -m benchmarks (\w+(?: \S+)*)",
    flags=re.MULTILINE,
)
NUMBER = re.compile(r"[^\w`]*\d[\d.,·]*(?![\w-])")


def blocks(text):
    """Paragraphs, tables and fenced code, in order; opening and closing marks are separate blocks."""
    found, fenced = [[]], False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if fenced or line.strip():
            found[-1].append(line)
        else:
            found.append([])
    return ["\n".join(block) for block in found if block]


def is_table_of_metrics(block):
    lines = [line for line in block.splitlines() if line.startswith("|")]
    cells = [cell.strip(" *") for line in lines[2:] for cell in re.split(r"(?<!\\)\|", line)[2:-1]]
    return bool(cells) and sum(bool(NUMBER.match(cell)) for cell in cells) >= 0.3 * len(cells)


def tables(page, text):
    """The head of each table of figures, and the text that is to name its command."""
    found = blocks(text)
    for number, block in enumerate(found):
        head = next((line for line in block.splitlines() if line.startswith("|")), "|")
        if is_table_of_metrics(block) and (page, head.split("|")[1].strip()) not in SETTINGS:
            before = "\n".join(found[: number + 1])
            begun = re.findall(r"<!-- (.+): begin -->", before)
            inside = begun[-1:] if before.count(": begin -->") > before.count(": end -->") else []
            yield head, "\n".join([*inside, *found[max(number - 2, 0) : number + 3]])


def nameless(page, text):
    return [f"{page}: {head}" for head, near in tables(page, text) if not COMMAND.search(near)]


def pages():
    names = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
    return [name for name in names if name != GENERATED]


@pytest.mark.parametrize("page", pages())
def test_every_table_of_metrics_names_its_command(page):
    assert nameless(page, (ROOT / page).read_text()) == []


def test_a_table_without_a_command_is_found():
    table = "| robot | success |\n|---|---|\n| 1 | 83 % |\n| 2 | 4 |"
    far = "\n\nA.\n\nB.\n\n"
    assert nameless("p", f"# P\n\n{table}\n") == ["p: | robot | success |"]
    assert nameless("p", f"`python -m benchmarks transfer`{far}{table}{far}`make bench`") == ["p: | robot | success |"]
    assert nameless("p", f"`python -m benchmarks transfer`\n\n{table}") == []
    assert nameless("p", f"`twinloop bench transfer`\n\n{table}") == ["p: | robot | success |"]
    assert nameless("p", f"`twinloop serve --policy champion`\n\n{table}") == ["p: | robot | success |"]
    begin, end = "<!-- benchmarks gap x: begin -->", "<!-- benchmarks gap x: end -->"
    assert nameless("p", f"{begin}{far}{table}{far}{end}") == []
    closed = f"{begin}\n{end}"
    assert nameless("p", f"{closed}{far}{table}") == ["p: | robot | success |"]
    assert nameless("p", "| a | b |\n|---|---|\n| x | `7` |\n| y | no |") == []


def test_every_file_that_is_named_beside_a_metric_exists():
    for page in pages():
        for _, near in tables(page, (ROOT / page).read_text()):
            for path in re.findall(r"(?:tests|examples|scripts)/\w+\.(?:py|sh)", near):
                assert (ROOT / path).is_file(), f"{page} names {path}"
            for name in re.findall(r"python -m (benchmarks\.[\w.]*\w)", near):
                assert "__main__" in (ROOT / f"{name.replace('.', '/')}.py").read_text(), f"{page} names {name}"


def shown_benchmarks():
    for page in pages():
        for one in SHOWN.findall((ROOT / page).read_text()):
            words = shlex.split("".join(one).replace("\n", " "))
            if not {"…", "NAME"} & set(words):
                yield pytest.param(words, id=f"{page} {' '.join(words)}")


@pytest.mark.parametrize("words", list(shown_benchmarks()))
def test_every_benchmark_that_is_shown_is_understood(words):
    with contextlib.redirect_stderr(io.StringIO()) as heard:
        try:
            PROGRAM.parse(words)
        except SystemExit:
            pytest.fail(heard.getvalue())
