"""The suites that have a name, and everybody's own from a file."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from twinloop.core.errors import UnknownNameError
from twinloop.core.yaml_documents import load_yaml
from twinloop.evaluate.suite import SuiteSpec, parse_suite, read_suite

_FILE = Path(__file__).with_name("suites.yaml")


@cache
def builtin_suites() -> dict[str, SuiteSpec]:
    """The suites that come with twinloop, by name."""
    rows = load_yaml(_FILE)
    return {
        name: parse_suite({"name": name, "lenient": True, **row}, where=f"{_FILE.name}: {name}")
        for name, row in rows.items()
    }


def open_suite(name: str) -> SuiteSpec:
    """The suite of that name, or the one in the YAML file of that path.

    Raises:
        UnknownNameError: neither.
        InputError: the file is no suite; names the key.
    """
    if name in builtin_suites():
        return builtin_suites()[name]
    if Path(name).suffix in (".yaml", ".yml"):
        return read_suite(Path(name))
    raise UnknownNameError("suite", name, builtin_suites(), where="the suites, and no YAML file")
