"""The table that compares the speed of all renderers."""

from __future__ import annotations

import pytest

from benchmarks.speed.render import compare_renderers, renderers_table
from twinloop.render import RENDERERS, probe_renderer


def test_a_renderer_has_one_line_with_its_sizes_beside_each_other():
    rows = [
        {"renderer": "gl", "height": 240, "width": 320, "wall_s": 0.005, "processor_s": 0.0062},
        {"renderer": "gl", "height": 96, "width": 96, "wall_s": 0.05, "processor_s": 0.1},
        {"renderer": "mitsuba", "height": 240, "width": 320, "wall_s": 4.0, "processor_s": 7.8012},
        {"renderer": "mitsuba", "height": 96, "width": 96, "wall_s": 0.6, "processor_s": 0.7},
    ]
    head, _, *lines = renderers_table(rows).splitlines()
    assert "| 240×320, frames/s | 240×320, CPU ms per frame | 96×96, frames/s |" in head
    assert lines == ["| `gl` | 200 | 6.2 | 20 | 100 |", "| `mitsuba` | 0.25 | 7,801 | 1.7 | 700 |"]


@pytest.mark.slow
def test_every_renderer_that_works_is_timed():
    rows = compare_renderers(1, sizes=((24, 32),))
    assert [row["renderer"] for row in rows] == [name for name in RENDERERS if probe_renderer(name).available]
    assert all(row["wall_s"] > 0.0 for row in rows)
