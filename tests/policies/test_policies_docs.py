"""What `docs/reference/policies.md` shows runs, and it leaves no kind and no setting of all kinds out."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from twinloop.policies import KINDS
from twinloop.policies.settings import CommonSettings, ImageEncoderSettings

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "policies.md").read_text()


@pytest.mark.slow
def test_the_python_example_prints_what_the_page_says():
    pytest.importorskip("torch")
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    shown = re.findall(r"```\n(\[.*?)```", TEXT, flags=re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "policies.md", "exec"), {})
    assert [printed.getvalue()] == shown


def test_every_kind_and_every_setting_is_named():
    assert all(f"| `{kind}` |" in TEXT for kind in KINDS)
    cells = " ".join(re.findall(r"^\| (`.*?) \|", TEXT, flags=re.MULTILINE))
    named = set(re.findall(r"`([\w.]+)`", cells))
    wanted = {*CommonSettings.model_fields} - {"images"}
    assert wanted | {f"images.{name}" for name in ImageEncoderSettings.model_fields} <= named
