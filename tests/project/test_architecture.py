"""What the package may not know of."""

from __future__ import annotations

import ast
import importlib.util
import re
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


# Names that only the library of twins, the tasks and the demo may know.
ROBOT_OR_TASK = re.compile(
    r"pick_?and_?place|reach_moving|\bso-?101|so101_|franka|panda(?!s)|\bcrazyflie|(?<!unit_)\bcube_toss|\bobject/cube"
    r"|shoulder_(pan|lift)|elbow_flex|wrist_(flex|roll)|xl330|double_pendulum|simple_pendulum|planar_square",
    re.IGNORECASE,
)
LIBRARY = ("tasks/", "twin/library.py", "workflows/demo/")


def names_of_robots_and_tasks() -> set[str]:
    """Return ``FILE: NAME`` of every identifier or string of code, docstrings apart, that names a robot or a task."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        where = path.relative_to(PACKAGE).as_posix()
        if where.startswith(LIBRARY):
            continue
        tree = ast.parse(path.read_text())
        bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            words = [getattr(node, key, None) for key in ("id", "attr", "name", "arg", "module")]
            if isinstance(node, ast.Constant) and id(node) not in bare:
                words.append(node.value)
            found |= {f"{where}: {word}" for word in words if isinstance(word, str) and ROBOT_OR_TASK.search(word)}
    return found


# Files that may name robots, each with its reason.
NAMED = {
    "dataset/logs/importers/crazyflie.py": "reads the log format of that drone's firmware",
    "dataset/logs/formats.py": "lists that format",
    "dataset/logs/sets/public_sets.py": "describes public recordings of named robots, and their joints as recorded",
    "dataset/logs/sets/pendulums.py": "reads public sets of a named servo and of named built-in twins",
    "dataset/logs/sets/impacts.py": "names the built-in twins of public sets",
    "hardware/lerobot.py": "drives robots under LeRobot's names of them and of their joints",
    "randomize/boxes.py": "shows an example in an error",
    "randomize/options.py": "shows an example in an error",
    "workflows/scenario/ask.py": "shows an example in an error",
}


def test_robots_and_tasks_are_named_only_by_the_library_of_twins_and_tasks():
    assert {line.partition(":")[0] for line in names_of_robots_and_tasks()} == set(NAMED)


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
