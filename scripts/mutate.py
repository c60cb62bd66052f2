"""Print the mutation score: change one line of the package at a time, and count the changes that make a test fail.

::

    python scripts/mutate.py --count 100                     # drawn with HEAD's hash as seed
    python scripts/mutate.py --from scripts/mutants.json     # a list of mutants in a file

A line of ``src/twinloop`` is drawn, then one of its mutants (`OPERATORS`). A copy of HEAD is changed, never the working
tree. The fast tests run once under coverage, which records the lines that each test runs. A mutant is tested by the
tests that run its statement, the quickest first, up to a time limit. A statement that runs on import is tested by the
tests of the lines that use it. A mutant is killed by a failing test, or by a time limit that the unchanged code keeps.
Every test that killed a mutant is run on the unchanged code at the end; if it fails there too, the mutants are run
again without it. A surviving mutant is tested by the slow tests of the files nearest to its own. Tests marked gpu,
network or bench do not run.

Not mutated: docstrings, strings and messages (f-strings, arguments of raise, print, log and warn calls), annotations
and type aliases, ``__repr__`` and ``__str__``, protocols, ``if TYPE_CHECKING``, ``__all__``.
"""

# ruff: noqa: S603, S607, T201 - a script that runs git and pytest, and prints

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from itertools import accumulate, count
from pathlib import Path
from typing import Any

import pytest
from coverage import CoverageData
from coverage.exceptions import CoverageException
from scipy.stats import beta

_MEMORY = 8 << 30  # bytes of data that a mutant's tests may take
_IDLE = 20  # factor on the time limit for the wall-clock time of a mutant's tests
_IMPORTING_FOLDERS = ("src/twinloop", "tests", "benchmarks")
_NEAR = 6  # files of slow tests for a mutant at most
_ANY = ("-m", "not gpu and not network and not bench")
_SLOW = ("-m", "slow and not gpu and not network and not bench")
_QUIET = ("-W", "ignore::coverage.exceptions.CoverageWarning")
_LIBRARIES = ("scipy.stats", "mujoco", "pyarrow.dataset", "duckdb", "pydantic", "tyro", "rich", "av")
ROOT = Path(__file__).resolve().parent.parent
_MESSAGE_CALLS = {"print", "debug", "info", "warning", "error", "warn", "log", "cast", "TypeVar", "Literal"}
_SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "type_comment"}
_SWAPS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
OPERATORS = (
    "operator: of comparison, arithmetic or logic, exchanged",
    "number: doubled or 1 more",
    "truth: True for False",
    "sign: not or minus left out",
    "condition: its contrary",
    "return: None instead",
    "statement: a call, raise, break or continue left out",
    "arguments: the first two exchanged",
    "keyword: left out, so that its default holds",
    "selection: a subscript by a variable or slice, or a comprehension's if, left out",
)


def variants(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:  # noqa: C901 - a case an operator
    """Yield the mutants of one node, each as a word of `OPERATORS` and a new node that replaces it."""

    def changed(**fields: Any) -> ast.AST:
        new = deepcopy(node)
        for name, value in fields.items():
            setattr(new, name, value)
        return new

    match node:
        case ast.Compare(ops=[op]):
            yield from (("operator", changed(ops=[other()])) for other in _SWAPS[type(op)])
        case ast.BinOp(left=left, op=op, right=right) if not (_is_text(left) or _is_text(right)):
            yield from (("operator", changed(op=other())) for other in _SWAPS.get(type(op), ()))
        case ast.AugAssign(op=op, value=value) if not _is_text(value):
            yield from (("operator", changed(op=other())) for other in _SWAPS.get(type(op), ()))
        case ast.BoolOp(op=op):
            yield "operator", changed(op=_SWAPS[type(op)][0]())
        case ast.Constant(value=bool(value)):
            yield "truth", changed(value=not value)
        case ast.Constant(value=int(value) | float(value)):
            yield from (("number", changed(value=other)) for other in {2 * value or 2, value + 1})
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield "sign", operand
        case ast.IfExp(test=test):
            yield "condition", changed(test=ast.UnaryOp(op=ast.Not(), operand=test))
        case ast.Return(value=value) if value is not None and not _is_none(value):
            yield "return", changed(value=ast.Constant(value=None))
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Break() | ast.Continue():
            yield "statement", ast.Pass()
        case ast.Call(args=[first, second, *rest], keywords=keywords):
            if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
                yield "arguments", changed(args=[second, first, *rest])
            yield from (("keyword", changed(keywords=[k for k in keywords if k is not one])) for one in keywords)
        case ast.Call(keywords=keywords):
            yield from (("keyword", changed(keywords=[k for k in keywords if k is not one])) for one in keywords)
        case ast.Subscript(value=value, slice=ast.Slice() | ast.Name(), ctx=ast.Load()):
            yield "selection", value
        case ast.ListComp(generators=[part]) | ast.GeneratorExp(generators=[part]) if part.ifs:
            bare = ast.comprehension(target=part.target, iter=part.iter, ifs=[], is_async=0)
            yield "selection", changed(generators=[bare])


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _called_name(node: ast.AST) -> str:
    """Return the last part of the name of a called function; "" if ``node`` is not a call."""
    node = node.value if isinstance(node, ast.Expr) else node
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "attr", getattr(function, "id", ""))


def _is_skipped(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef) and node.name in ("__repr__", "__str__"):
        return True
    if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases):
        return True
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return True
    alias = isinstance(node, ast.Assign) and "__all__" in ast.unparse(node.targets[0])
    return alias or isinstance(node, ast.JoinedStr) or _called_name(node) in _MESSAGE_CALLS


def _mutable_nodes(node: ast.AST, *, inside: bool = False) -> Iterator[ast.AST]:
    """Yield nodes that may be mutated; at module level ``X | Y`` is a type alias and is skipped."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or name in _SKIPPED_FIELDS or _is_skipped(child):
                continue
            if inside or not (isinstance(child, ast.BinOp) and isinstance(child.op, ast.BitOr)):
                yield child
            if not isinstance(child, ast.Raise):
                yield from _mutable_nodes(child, inside=inside or isinstance(child, ast.FunctionDef))


def mutants(path: Path, name: str) -> Iterator[dict[str, Any]]:
    """Yield all mutants of a file; ``nth`` is the offset at which the old text begins."""
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    starts = [0, *accumulate(map(len, lines))]

    def at(row: int, byte: int) -> int:
        return starts[row - 1] + len(lines[row - 1].encode()[:byte].decode())

    for node in _mutable_nodes(ast.parse(text)):
        found = [(node, *one) for one in variants(node)]
        if isinstance(node, ast.If | ast.While):
            found = [(node.test, "condition", ast.UnaryOp(op=ast.Not(), operand=node.test))]
        for was, operator, new in found:
            code = ast.unparse(ast.fix_missing_locations(new))
            code = f"({code})" if isinstance(new, ast.expr) and not isinstance(new, ast.Constant | ast.Name) else code
            row = was.end_lineno or was.lineno
            first, last = starts[was.lineno - 1], starts[row]
            begin, end = at(was.lineno, was.col_offset), at(row, was.end_col_offset or 0)
            yield {
                "file": name,
                "line": was.lineno,
                "operator": operator,
                "old": text[first:last],
                "new": text[first:begin] + code + text[end:last],
                "nth": first,
            }


def draw(tree: Path, seed: str, number: int) -> list[dict[str, Any]]:
    """Draw ``number`` different lines, and one mutant of each; ``nth`` counts equal texts before it from 0."""
    files = sorted((tree / "src" / "twinloop").rglob("*.py"))
    rows: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for path in files:
        for one in mutants(path, str(path.relative_to(tree))):
            rows.setdefault((one["file"], one["line"]), []).append(one)
    chance = random.Random(seed)  # noqa: S311 - a seeded draw
    drawn = [chance.choice(rows[key]) for key in chance.sample(sorted(rows), number)]
    return [one | {"nth": (tree / one["file"]).read_text()[: one["nth"]].count(one["old"])} for one in drawn]


def apply_mutant(text: str, one: dict[str, Any]) -> str:
    """Return the text of a file with the mutant in it."""
    parts = text.split(one["old"])
    if len(parts) < one["nth"] + 2:
        raise SystemExit(
            f"{one['file']} does not contain this text any more. Draw new mutants or correct the list:\n{one['old']}"
        )
    before, after = (one["old"].join(part) for part in (parts[: one["nth"] + 1], parts[one["nth"] + 1 :]))
    return before + one["new"] + after


class Reach:
    """Coverage of some files by the fast tests: the tests that run each line, and the duration of each test."""

    def __init__(self, tree: Path, files: list[str]) -> None:
        self.tree = tree
        settings, data = tree / "reach.ini", tree / "reach.coverage"
        settings.write_text(
            "[run]\n"
            f"data_file = {data}\n"
            "context = ${PYTEST_CURRENT_TEST-}\n"  # context of a child process of a test
            "core = ctrace\nparallel = true\nsigterm = true\n"
            "concurrency = thread,multiprocessing\npatch = subprocess,_exit,fork\n"
            "include =\n" + "".join(f"    {tree / name}\n" for name in files)
        )
        words = ["-q", "-n", "auto", "-vv", "--durations=0", "--durations-min=0", "-p", "no:cacheprovider", *_QUIET]
        words += ["--cov", f"--cov-config={settings}", "--cov-report=", "--cov-context=test"]
        pytest_output = subprocess.run(
            [sys.executable, "-m", "pytest", *words], cwd=tree, capture_output=True, text=True
        ).stdout
        self.seconds: dict[str, float] = {}
        for duration, test in re.findall(r"^(\d+\.\d+)s (?:setup|call|teardown) +(.+)$", pytest_output, re.MULTILINE):
            self.seconds[test] = self.seconds.get(test, 0.0) + float(duration)
        if not self.seconds:
            raise SystemExit(f"The fast tests did not run under coverage:\n{pytest_output[-2000:]}")
        coverage_data = CoverageData(str(data))
        coverage_data.read()
        for part in tree.glob("reach.coverage.*"):  # processes that ended after pytest had combined the data
            with contextlib.suppress(CoverageException):
                late = CoverageData(str(part))
                late.read()
                coverage_data.update(late)
        self.lines = {name: coverage_data.contexts_by_lineno(str(tree / name)) for name in files}

    def tests(self, text: str, one: dict[str, Any], limit_s: float) -> list[str]:
        """Return the tests that run the mutant's statement, by file, the quickest file first, up to ``limit_s`` s."""
        lines, files = self.lines[one["file"]], dict[str, list[str]]()
        rows = _rows(text, one["line"])
        found = {_test_of_context(context) for row in rows for context in lines.get(row, ())}
        near = [] if rows else importing(self.tree, one["file"])[:_NEAR]
        for test in sorted(test for test in self.seconds if test in found or test.split("::")[0] in near):
            files.setdefault(test.split("::")[0], []).append(test)
        chosen, left = list[str](), limit_s
        for tests in sorted(files.values(), key=lambda tests: sum(map(self.seconds.__getitem__, tests))):
            for test in sorted(tests, key=self.seconds.__getitem__):
                if left > 0:
                    chosen.append(test)
                    left -= self.seconds[test]
        return chosen


def importing(tree: Path, name: str) -> list[str]:
    """Return the test files that import a file of the package, lazily or through other files.

    Files whose names share most words with it come first, among them those with the fewest imports in between.
    """
    wanted = _imports(tree)
    level, ways = {name}, {name: 0}
    while level:
        modules = {re.sub(r"/__init__$", "", one[:-3]).removeprefix("src/").replace("/", ".") for one in level}
        level = {one for one, names in wanted.items() if one not in ways and names & modules}
        ways |= dict.fromkeys(level, 1 + max(ways.values()))
    own = set(re.findall(r"[a-z0-9]+", name)) - {"src", "twinloop", "py"}
    tests = [one for one in ways if one.split("/")[-1].startswith("test_")]
    return sorted(tests, key=lambda one: (-len(own & set(re.findall(r"[a-z0-9]+", one))), ways[one], one))


@cache
def _imports(tree: Path) -> dict[str, set[str]]:
    """Return for each file the names of modules, and of their members, that it may import."""
    found: dict[str, set[str]] = {}
    for path in (path for part in _IMPORTING_FOLDERS for path in (tree / part).rglob("*.py")):
        names = found.setdefault(str(path.relative_to(tree)), set())
        for home, offers in re.findall(r"from ([\w.]+) import (\([^)]*|[^\n(]*)", text := path.read_text()):
            names |= {home, *(f"{home}.{one}" for one in re.findall(r"\w+", offers))}
        names |= set(re.findall(r"import ([\w.]+)", text))
    return found


def _test_of_context(context: str) -> str:
    """Return the test of a coverage context: ``STATIC|TEST|run`` in its process, ``TEST (call)`` in a child process."""
    parts = [part for part in context.split("|") if "::" in part]
    return re.sub(r" \((?:setup|call|teardown)\)$", "", parts[0]) if parts else ""


def _rows(text: str, row: int) -> list[int]:
    """Return the lines whose execution shows that a test uses the statement in line ``row``.

    In a function these are the lines of the statement itself. For a function's header they are the function's body. For
    a statement that runs on import they are the lines in functions that use its name, or all lines in functions if it
    has no name. A file without functions has none.
    """
    tree = ast.parse(text)
    functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    bodies = [(one.body[0].lineno, one.end_lineno or 0) for one in functions]
    inside = [begin for begin, end in bodies if begin <= row <= end]
    around = [one for one in ast.walk(tree) if isinstance(one, ast.stmt) and one.lineno <= row <= (one.end_lineno or 0)]
    statement = max(around, key=lambda one: one.lineno)
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return list(range(statement.body[0].lineno, (statement.end_lineno or 0) + 1))
    if inside:
        body = getattr(statement, "body", None)
        last = body[0].lineno - 1 if isinstance(body, list) else statement.end_lineno or 0
        return list(range(statement.lineno, max(last, statement.lineno) + 1))
    run = {line for begin, end in bodies for line in range(begin, end + 1)}
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    names = {one.id for one in targets if isinstance(one, ast.Name)}
    named = {one.lineno for one in ast.walk(tree) if isinstance(one, ast.Name) and one.id in names}
    named |= {one.lineno for one in ast.walk(tree) if isinstance(one, ast.Attribute) and one.attr in names}
    return sorted(run & named or run)


class Runner:
    """Runs tests on a copy of the tree with one mutant at a time, each in a fork that has the libraries loaded."""

    def __init__(self, tree: Path, *, limit_s: float) -> None:
        self.tree, self.limit_s = tree, limit_s
        self.broken, self._clock = set[str](), count(int(time.time()) - 10_000_000)
        sys.path.insert(0, str(tree / "src"))
        os.environ["PYTHONPATH"] = str(tree / "src")
        for name in _LIBRARIES:
            importlib.import_module(name)

    def run(self, one: dict[str, Any]) -> None:
        """Run the mutant's ``tests`` and set its ``status`` (killed, timeout, lived), the killing test and the seconds.

        If it survives, the slow tests of the files nearest to it by imports also run.
        """
        path, tests, began = self.tree / one["file"], one["tests"], time.monotonic()
        text = path.read_text()
        self._write(path, apply_mutant(text, one))
        try:
            code, pytest_output = self.run_pytest(["-x", *tests]) if tests else (5, "")
            if code in (0, 5):
                code, pytest_output = self.run_pytest(["-x", *_SLOW, *importing(self.tree, one["file"])[:_NEAR]])
                code = 0 if code is None else code  # too slow: counted as survived
        finally:
            self._write(path, text)
        found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", pytest_output, re.MULTILINE)
        one |= {"status": "lived" if code in (0, 5) else "killed", "by": found[1] if found else ""}
        if code is None:
            one["status"] = "lived" if self.run_pytest(tests)[0] is None else "timeout"
        one["seconds"] = round(time.monotonic() - began, 1)

    def run_pytest(self, words: list[str]) -> tuple[int | None, str]:
        """Return exit code and output of pytest; the code is None if the time limit was reached."""
        words = ["-q", "-p", "no:cacheprovider", *_QUIET, *words]
        words += [f"--{'deselect' if '::' in name else 'ignore'}={name}" for name in self.broken]
        output, late = self.tree / "pytest.log", time.monotonic() + _IDLE * self.limit_s
        child = os.fork()
        if child == 0:
            os.setsid()
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
            os.dup2(1, 2)
            os.chdir(self.tree)
            resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
            resource.setrlimit(resource.RLIMIT_CPU, (3 * round(self.limit_s),) * 2)
            try:
                os._exit(pytest.main(words))
            except BaseException:  # noqa: BLE001 - a fork must never continue as its parent
                traceback.print_exc()
            finally:
                os._exit(pytest.ExitCode.INTERNAL_ERROR)
        status = None
        while status is None and time.monotonic() < late:
            time.sleep(0.05)
            ended, code = os.waitpid(child, os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if ended else None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # and its child processes
        if status is None:
            os.waitpid(child, 0)
        stopped = status in (None, -signal.SIGXCPU, -signal.SIGKILL)
        return None if stopped else status, output.read_text(errors="replace")

    def killed_by_broken_tests(self, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return mutants that were killed by a test that also fails on the unchanged code."""
        names = sorted({one["by"] for one in found if one.get("status") == "killed"} - self.broken - {""})
        pytest_output = self.run_pytest([*_ANY, *names])[1] if names else ""
        self.broken |= {
            name for name in names if re.search(rf"^(?:FAILED|ERROR) {re.escape(name)}", pytest_output, re.MULTILINE)
        }
        return [one for one in found if one.get("by") in self.broken]

    def _write(self, path: Path, text: str) -> None:
        """Write a file with a modification time that no other version has, so that stale bytecode is not used."""
        path.write_text(text)
        os.utime(path, (stamp := next(self._clock), stamp))


def report(found: list[dict[str, Any]], heading: str) -> str:
    """Format the score with its 95 % interval."""
    done = [one for one in found if "status" in one]
    killed = sum(one["status"] != "lived" for one in done)
    low = beta.ppf(0.025, killed, len(done) - killed + 1) if killed else 0.0  # Clopper and Pearson, 1934
    high = beta.ppf(0.975, killed + 1, len(done) - killed) if killed < len(done) else 1.0
    ends = f"95 % interval {100 * low:.0f} to {100 * high:.0f} %"
    late = sum(one["status"] == "timeout" for one in done)
    return f"{heading}: {killed} of {len(done)} killed ({100 * killed / len(done):.0f} %, {ends}), {late} by time limit"


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="number of mutants to draw")
    parser.add_argument("--seed", help="seed of the draw; default: the hash of HEAD")
    parser.add_argument("--from", dest="listed", type=Path, help="a list of mutants to run instead of a draw")
    parser.add_argument(
        "--output", type=Path, default=Path("mutants-run.json"), help="results, written after each mutant and resumed"
    )
    parser.add_argument("--limit-s", type=float, default=60.0, help="seconds that a mutant's tests may take")
    given = parser.parse_args()
    old = json.loads(given.output.read_text()) if given.output.is_file() else {}
    commit = old.get("commit") or _git("rev-parse", "HEAD").decode().strip()
    seed = str(given.listed) if given.listed else given.seed or commit
    if old and old["seed"] != seed:
        parser.error(
            f"{given.output} contains a run with another seed, {old['seed']}. Give another file with --output."
        )
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        tree = Path(folder)
        subprocess.run(["tar", "-x", "-C", folder], input=_git("archive", commit), check=True)
        made = old.get("mutants") or (
            json.loads(given.listed.read_text()) if given.listed else draw(tree, seed, given.count)
        )
        head = {"commit": commit, "seed": seed}
        runner = Runner(tree, limit_s=given.limit_s)
        code, pytest_output = runner.run_pytest(["tests/core/test_core_seeds.py"])
        if code != 0:
            parser.exit(1, f"The tests of the unchanged code cannot be run:\n{pytest_output}")
        if "tests" not in made[0]:
            reach = Reach(tree, sorted({one["file"] for one in made}))
            for one in made:
                one["tests"] = reach.tests((tree / one["file"]).read_text(), one, given.limit_s)
            given.output.write_text(json.dumps({**head, "mutants": made}, indent=1) + "\n")
        left = [one for one in made if "status" not in one]
        while left:
            for one in left:
                runner.run(one)
                given.output.write_text(json.dumps({**head, "mutants": made}, indent=1) + "\n")
                where = f"{one['file']}:{one['line']}"
                print(
                    f"{one['status']:8}{one['seconds']:6.1f} s  {one['operator']:10} {where}  {one['by']}", flush=True
                )
            left = runner.killed_by_broken_tests(made)
    for one in (one for one in made if one["status"] == "lived"):
        print(f"lived: {one['file']}:{one['line']}\n- {one['old'].rstrip()}\n+ {one['new'].rstrip()}")
    print(report(made, f"commit {commit[:12]}, seed {head['seed'][:12]}"))


def _git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True).stdout


if __name__ == "__main__":
    main()
