"""The page on rendering runs unchanged, and names every word of the command and of the section."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from support.docs_sections import section
from twinloop.generate import RenderConfig
from twinloop.render import probe_renderer
from twinloop.workflows.generate.requests import RenderRequest
from twinloop.workflows.run.request import Request

PAGE = section("guides/rendering.md", "Renderers")
WORDS = [line.split("|")[1:3] for line in PAGE.split("| word | YAML | meaning |")[1].split("\n\n")[0].splitlines()[2:]]
# Of files and processes, not of images:
HANDLING = {"dataset", "output", "workers", "resume"} | {field.name for field in dataclasses.fields(Request)}


def test_what_is_drawn_in_the_example_is_a_image_with_its_truth():
    if not probe_renderer("gl").available:
        pytest.skip("the gl renderer does not work here")
    code = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[0]
    names = {}
    exec(code, names)
    seen = names["seen"]["front"]
    assert {name: (array.shape, array.dtype.name) for name, array in seen.items()} == {
        "rgb": ((1, 480, 640, 3), "uint8"),
        "depth": ((1, 480, 640), "float32"),
        "geom": ((1, 480, 640), "int32"),
        "normal": ((1, 480, 640, 3), "float32"),
    }
    np.testing.assert_array_equal(np.isinf(seen["depth"]), seen["geom"] == -1)
    assert len(np.unique(seen["geom"])) > 10


def test_every_word_of_the_command_and_of_the_section_stands_in_the_table():
    words = {name for cell, _ in WORDS for name in re.findall(r"--(\w+)", cell)}
    assert words == {field.name for field in dataclasses.fields(RenderRequest)} - HANDLING
    keys = {name for _, cell in WORDS for name in re.findall(r"`(\w+)(?::[^`]*)?`", cell)}
    assert keys == set(RenderConfig.model_fields)
