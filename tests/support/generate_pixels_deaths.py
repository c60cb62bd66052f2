"""What tests of several files share: generate pixels deaths."""

from __future__ import annotations

from pathlib import Path

from twinloop.generate import RenderConfig

ROOT = Path(__file__).parents[2]


FRAGILE = f"{ROOT / 'tests/support/fragile.py'}:Fragile"


IMAGES = RenderConfig(renderer=FRAGILE, height=16, width=24)
