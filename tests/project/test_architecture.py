"""Import rules and forbidden dependencies of the package."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType

import pytest

from twinloop.twin.quantities import QUANTITIES

PACKAGE = Path(__file__).parents[2] / "src" / "twinloop"


@functools.cache
def load_shape() -> ModuleType:
    """Import ``scripts/shape.py``, which is no module of a package."""
    spec = importlib.util.spec_from_file_location("shape", PACKAGE.parents[1] / "scripts" / "shape.py")
    shape = sys.modules.setdefault("shape", importlib.util.module_from_spec(spec))
    spec.loader.exec_module(shape)
    return shape


@functools.cache
def modules_of_the_package():
    return load_shape().modules(PACKAGE.parent, PACKAGE)


def nodes_by_file() -> dict[str, list[ast.AST]]:
    return {module.path.as_posix(): module.nodes for module in modules_of_the_package().values()}


def named(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Modules that a file imports, and strings that could name one."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_the_package_never_imports_benchmarks():
    found = {
        where
        for where, nodes in nodes_by_file().items()
        if any(name == "benchmarks" or name.startswith("benchmarks.") for name in named(nodes))
    }
    assert found == set()


# Names that only the library of twins, the tasks and the demo may use.
ROBOT_OR_TASK = re.compile(
    r"pick_?and_?place|reach_moving|\bso-?101|so101_|franka|panda(?!s)|\bcrazyflie|(?<!unit_)\bcube_toss|\bobject/cube"
    r"|shoulder_(pan|lift)|elbow_flex|wrist_(flex|roll)|xl330|double_pendulum|simple_pendulum|planar_square",
    re.IGNORECASE,
)
LIBRARY = ("tasks/", "twin/robot_names.py", "workflows/demo/")


def names_of_robots_and_tasks() -> set[str]:
    """Return ``FILE: NAME`` of every identifier or string of code, except docstrings, that names a robot or a task."""
    found = set()
    for where, nodes in nodes_by_file().items():
        if where.startswith(LIBRARY):
            continue
        bare = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
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
    "workflows/scenario/interventions.py": "shows an example in an error",
}


def test_robots_and_tasks_are_named_only_by_the_library_of_twins_and_tasks():
    assert {line.partition(":")[0] for line in names_of_robots_and_tasks()} == set(NAMED)


def test_no_files_import_each_other_in_a_circle():
    """Imports within functions and under TYPE_CHECKING count; factories are above the classes that they create."""
    shape = load_shape()
    assert shape.cycles(shape.import_graph(modules_of_the_package())) == []


# Maximal number of code lines of each package. Docstrings do not count, so that an explanation costs nothing. A commit
# that raises a ceiling justifies the lines; a commit that gets SLACK lines below it lowers the ceiling.
CEILINGS = {
    "catalog": 5810,
    "checks": 1200,
    "cli": 1620,
    "core": 3750,
    "curate": 5390,
    "dataset": 17920,
    "encoders": 970,
    "envs": 790,
    "evaluate": 1670,
    "gap": 8090,
    "generate": 2400,
    "hardware": 3530,
    "identify": 6785,
    "label": 860,
    "policies": 2860,
    "randomize": 2550,
    "release": 7380,
    "render": 5890,
    "report": 2260,
    "rollout": 3020,
    "scenario": 1440,
    "sensors": 3670,
    "simulate": 3780,
    "stats": 5840,
    "studio": 1990,
    "tasks": 6080,
    "train": 5935,
    "twin": 8215,
    "workflows": 17900,
}
SLACK = 150


def test_no_package_grows_without_an_argument():
    lines: Counter[str] = Counter()
    for module in modules_of_the_package().values():
        if len(module.path.parts) > 1:
            lines[module.path.parts[0]] += module.code_lines
    assert set(lines) == set(CEILINGS)
    assert {name: count for name, count in lines.items() if count > CEILINGS[name]} == {}
    assert {name: count for name, count in lines.items() if count < CEILINGS[name] - SLACK} == {}


# Where quantities are declared, and what declares robots and tasks of them.
DECLARING = ("twin/quantities/", "twin/builtin/", "tasks/")
# A stage that computes what a quantity does may name it, by its whole path or in its own list.
COMPUTING = (
    "simulate/",
    "sensors/",
    "render/",
    "rollout/readings.py",
    "rollout/sensing.py",
    "hardware/hidden",  # a virtual robot has effects that its twin need not declare
    "gap/vision/camera_tone.py",  # it develops images again, by the camera's own formulas
)


def _strings(nodes: list[ast.expr]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _ends(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the strings that the end of another one is held against."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "endswith":
            yield from _strings(
                [one for arg in node.args for one in (arg.elts if isinstance(arg, ast.Tuple) else [arg])]
            )


def suffixes_of_paths(nodes: Iterable[ast.AST]) -> list[str]:
    """Return the quantities that a file recognizes by the end of a path."""
    ends = {f"/{kind.last_name}" for kind in QUANTITIES if kind.quantity}
    return [text for text in _ends(nodes) if text in ends]


def _listed(node: ast.AST) -> list[str]:
    """The strings of one table."""
    if isinstance(node, ast.Dict):
        return _strings([key for key in node.keys if key is not None])
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return _strings(node.elts)
    return []


def tables_of_quantities(nodes: Iterable[ast.AST]) -> list[str]:
    """Return the paths that a file compares with or lists, and its lists of quantities."""
    paths = [kind.path("thing") for kind in QUANTITIES if kind.quantity]
    words = {kind.quantity for kind in QUANTITIES if len(kind.quantity) > 1}
    found: list[str] = []
    for node in nodes:
        listed = _listed(node)
        compared = _strings([node.left, *node.comparators]) if isinstance(node, ast.Compare) else []
        found += [
            text
            for text in (*compared, *listed)
            if text.count("/") >= 2 and any(fnmatchcase(path, text) for path in paths)
        ]
        if len(listed) > 2 and words.issuperset(listed):
            found.append(", ".join(listed))
    return found


def test_no_other_file_keeps_a_table_of_quantities():
    suffixes: dict[str, list[str]] = {}
    tables: dict[str, list[str]] = {}
    for name, nodes in nodes_by_file().items():
        if not name.startswith(DECLARING):
            suffixes[name] = suffixes_of_paths(nodes)
            tables[name] = [] if name.startswith(COMPUTING) else tables_of_quantities(nodes)
    place = "Make it a field of the quantity's declaration, in twinloop/twin/quantities."
    assert {name: found for name, found in tables.items() if found} == {}, place
    # The columns of LeRobot's statistics end in `/count`, and so do the numbers of things in a scene.
    assert {name: found for name, found in suffixes.items() if found} == {"dataset/lerobot/tables.py": ["/count"]}, (
        place
    )


def test_the_rule_finds_what_it_forbids():
    for text in ('name.endswith("/delay")', 'name.endswith(("/kp", "/bias"))'):
        assert suffixes_of_paths(ast.walk(ast.parse(text))), text
    for text in (
        'PRIORS = {"joint/*/damping": 1.0}',
        'FIRST = ("kp", "damping", "delay")',
        'name == "timing/readings/delay"',
        'name in {"sensor/*/offset"}',
    ):
        assert tables_of_quantities(ast.walk(ast.parse(text))), text
    assert not tables_of_quantities(ast.walk(ast.parse('twin.params[f"actuator/{name}/delay"]')))


def named_files(text: str, pattern: str) -> list[str]:
    """Return what a page puts in backticks outside its blocks of code, where it has the form of the pattern."""
    return re.findall(rf"`({pattern})(?::\w+)?`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


@pytest.mark.parametrize("page", ["docs/project/architecture.md", "CONTRIBUTING.md", "README.md"])
def test_source_files_that_a_page_names_exist(page):
    root = PACKAGE.parents[1]
    named = named_files((root / page).read_text(), r"[a-z_][\w./*-]*/[\w*]+\.(?:py|yaml)")
    names = {name for name in named if not name.startswith("path/") and not re.search("[A-Z]{4}", name)}
    missing = [name for name in names if not any(True for at in (PACKAGE.parent, PACKAGE, root) for _ in at.glob(name))]
    assert missing == []
    assert page == "CONTRIBUTING.md" or names


@pytest.mark.parametrize(
    ("package", "first", "after"), [("identify", "| `config` |", "**Gap**"), ("gap", "| `dynamics`", "**Errors.**")]
)
def test_the_tables_of_large_packages_name_their_modules(package, first, after):
    text = (PACKAGE.parents[1] / "docs" / "project" / "architecture.md").read_text()
    table = text[text.index(first) : text.index(after)]
    rows = [row.split("|") for row in table.splitlines() if row.startswith("|")]
    part, named = package, set()
    for _, *cells in rows:
        if len(cells) > 3:  # the first column is the sub-package, empty if it is that of the row above
            part = f"{package}/{cells[0].strip().strip('`')}" if cells[0].strip() else part
        named |= {f"{part}/{name}" for name in named_files(cells[-3], r"[\w*]+")}
    modules = {path.relative_to(PACKAGE).with_suffix("").as_posix() for path in (PACKAGE / package).rglob("*.py")}
    found = {name: {module for module in modules if fnmatchcase(module, name)} for name in named}
    assert {name for name, matches in found.items() if not matches} == set()
    written = set().union(*found.values())
    assert {module for module in modules - written if not module.endswith("__init__")} == set()
