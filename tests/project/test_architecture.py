"""What the package may not know of."""

from __future__ import annotations

import ast
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
