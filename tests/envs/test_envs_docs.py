"""What `docs/guides/environments.md` shows runs, and it leaves no id and no option out."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re

from support.docs_sections import section
from twinloop.envs import IDS, EnvOptions

TEXT = section("guides/environments.md", "Environments")


def test_the_python_example_prints_shapes_and_numbers():
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "environments.md", "exec"), {})
    assert printed.getvalue().strip() == "(256, 40) (256,) [0 1 2 3]"


def test_every_id_and_every_option_is_named():
    for name in IDS:
        assert f"| `{name}` |" in TEXT
    first = {cell for row in re.findall(r"^\| (`.*?) \|", TEXT, flags=re.MULTILINE) for cell in row.split(", ")}
    shown = {cell.strip("`") for cell in first}
    assert {field.name for field in dataclasses.fields(EnvOptions)} - shown == {"twin", "goal"}
