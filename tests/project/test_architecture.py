"""What the package may not know of."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "twinloop"


def named(tree: ast.AST) -> Iterator[str]:
    """Modules that a file imports, and strings that could name one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_the_package_never_imports_benchmarks():
    texts = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    found = {
        str(path.relative_to(PACKAGE))
        for path, text in texts.items()
        if "benchmarks" in text
        and any(name == "benchmarks" or name.startswith("benchmarks.") for name in named(ast.parse(text)))
    }
    assert found == set()


# Groups of small files that will be one file each, which ends their cycles.
TO_BE_MERGED = [
    ["twinloop.gap.report", "twinloop.gap.report_headline", "twinloop.gap.report_text"],
    ["twinloop.tasks.pick_and_place", "twinloop.tasks.pick_and_place_expert"],
]


def test_no_files_import_each_other_in_a_circle():
    """Imports within functions and under TYPE_CHECKING count; factories are above what they make."""
    path = PACKAGE.parents[1] / "scripts" / "shape.py"
    spec = importlib.util.spec_from_file_location("shape", path)
    shape = sys.modules.setdefault("shape", importlib.util.module_from_spec(spec))
    spec.loader.exec_module(shape)
    found = shape.cycles(shape.import_graph(shape.modules(PACKAGE.parent, PACKAGE)))
    assert [group for group in found if group not in TO_BE_MERGED] == []
