"""The demo's second half, small and from a folder that is named as seen from here, as ``make demo`` names it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from rich.console import Console

from twinloop.loop.transfer_study.settings import TransferSettings

pytest.importorskip("torch")
from twinloop.loop import demo_circle

SMALL = TransferSettings(robots=1, seeds=1, episodes=6, demos=32, steps=60, log=1, conditions=(1, 4))


@pytest.mark.slow
def test_the_circle_closes_from_a_relative_folder(tmp_path, monkeypatch):
    from twinloop.loop.demo_circle_page import circle_section, transfer_figure
    from twinloop.report import Report

    monkeypatch.chdir(tmp_path)
    for name, value in {"SETTINGS": SMALL, "_TRIES": 4, "_TARGETED": 8, "_TRIALS": 8, "_STEPS": 20}.items():
        monkeypatch.setattr(demo_circle, name, value)
    half = demo_circle.second_half(
        Path("out/circle"), workers=1, console=Console(quiet=True), step=lambda _: nullcontext()
    )
    assert list(half.success) == ["nominal", "posterior", "after"]
    assert {len(won) for won in half.success.values()} == {SMALL.episodes}
    rules = {rule["rule"]: rule["verdict"] for rule in half.gate["rules"]}
    assert rules["evidence"] == "yes"
    assert rules["success"] in ("yes", "no")
    assert half.champion == f"pick-and-place@{1 + half.gate['passed']}"
    page = Report("demo")
    page.figures([figure for figure in [transfer_figure(half)] if figure is not None])
    circle_section(page, half, None)
    html = page.write(Path("out/page.html")).read_text()
    assert "what became of it" in html
    assert half.scenario["scenario"] in html
