"""Print the size and shape of the code: lines, statements, docstrings, import cycles, small modules, tests.

``python scripts/shape.py [ROOT] [--json]``; ROOT is a checkout, by default the one of this file.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

PACKAGE = "twinloop"
SMALL = 100  # lines


@dataclass(frozen=True, kw_only=True)
class Module:
    """One Python file: its place, its syntax tree and its number of lines."""

    path: Path
    tree: ast.Module
    lines: int

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the syntax tree."""
        return list(ast.walk(self.tree))

    @property
    def statements(self) -> int:
        """Return the number of statements, docstrings included."""
        return sum(isinstance(node, ast.stmt) for node in self.nodes)

    @property
    def code_lines(self) -> int:
        """Return the number of lines without those of docstrings and of the texts that explain fields."""
        return self.lines - sum(
            (node.end_lineno or node.lineno) - node.lineno + 1
            for node in self.nodes
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )

    @property
    def docwords(self) -> int:
        """Return the number of words in all docstrings."""
        owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        return sum(len((ast.get_docstring(node) or "").split()) for node in self.nodes if isinstance(node, owners))


def modules(base: Path, folder: Path) -> dict[str, Module]:
    """Read every file below ``folder``; names are relative to ``base``."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        name = ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")
        text = path.read_text()
        found[name] = Module(path=path.relative_to(folder), tree=ast.parse(text), lines=text.count("\n"))
    return found


def imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield module and name of each import, wherever it is in the file; the name is empty for ``import X``."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def import_graph(known: Mapping[str, Module]) -> dict[str, set[str]]:
    """Return which files each file imports, lazy and type-only imports included."""
    graph = {}
    for name, module in known.items():
        targets = {f"{of}.{what}" if f"{of}.{what}" in known else of for of, what in imports(module.nodes)}
        graph[name] = {target for target in targets if target in known and target != name}
    return graph


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of files that all import each other, directly or through others (Tarjan's algorithm)."""
    index, low, stack, found = dict[str, int](), dict[str, int](), list[str](), list[list[str]]()
    for root in graph:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        path = [(root, iter(sorted(graph[root])))]
        while path:
            name, rest = path[-1]
            target = next(rest, None)
            if target is None:
                path.pop()
                for parent, _ in path[-1:]:
                    low[parent] = min(low[parent], low[name])
                if low[name] == index[name]:
                    group = stack[stack.index(name) :]
                    del stack[-len(group) :]
                    found += [sorted(group)] * (len(group) > 1)
            elif target not in index:
                index[target] = low[target] = len(index)
                stack.append(target)
                path.append((target, iter(sorted(graph[target]))))
            elif target in stack:
                low[name] = min(low[name], index[target])
    return sorted(found)


def shape(root: Path) -> dict[str, Any]:
    """Measure a checkout."""
    known = modules(root / "src", root / "src" / PACKAGE)
    benchmarks = modules(root, root / "benchmarks")
    tests = modules(root / "tests", root / "tests")
    graph = import_graph(known)
    importers = Counter(target for targets in graph.values() for target in targets)
    single = [module.lines for name, module in known.items() if importers[name] == 1]
    by_package = defaultdict[str, Counter[str]](Counter)
    for name, module in known.items():
        sums = {
            "files": 1,
            "lines": module.lines,
            "code lines": module.code_lines,
            "statements": module.statements,
            "docstring words": module.docwords,
        }
        by_package[".".join(name.split(".")[1:2]) or name].update(sums)
    return {
        "packages": {name: dict(by_package[name]) for name in sorted(by_package)},
        "total": dict(sum(by_package.values(), Counter[str]())),
        "import cycles": cycles(graph),
        "modules with one importer": len(single),
        f"of these under {SMALL} lines": sum(lines < SMALL for lines in single),
        "lines in benchmarks": sum(module.lines for module in benchmarks.values()),
        "flat test files": sum(name.startswith("test_") and "." not in name for name in tests),
        "imports from other test modules": sum(
            of.rpartition(".")[2].startswith("test_")
            for module in tests.values()
            for of, _ in set(imports(module.nodes))
        ),
    }


def text(found: dict[str, Any]) -> str:
    """Return the table for a terminal."""
    columns = ("files", "lines", "code lines", "statements", "docstring words")
    rows = [f"{'src/' + PACKAGE:24}" + "".join(f"{column:>17}" for column in columns)]
    for name, sums in [*found["packages"].items(), ("total", found["total"])]:
        rows.append(f"{name:24}" + "".join(f"{sums[column]:>17,}" for column in columns))
    groups = found["import cycles"]
    rows += ["", f"import cycles: {len(groups)}", *(f"  {', '.join(group)}" for group in groups)]
    return "\n".join([*rows, *(f"{key}: {found[key]}" for key in list(found)[3:])])


def main() -> None:
    """Print the table or, with ``--json``, the metrics."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, nargs="?", default=Path(__file__).parent.parent)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = shape(arguments.root)
    sys.stdout.write((json.dumps(found, indent=1) if arguments.json else text(found)) + "\n")


if __name__ == "__main__":
    main()
