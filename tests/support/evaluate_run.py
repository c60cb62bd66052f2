"""What tests of several files share: evaluate run."""

from __future__ import annotations

TWO = {"name": "two", "slices": [{"name": "nominal"}, {"name": "heavy", "set": {"object/cube/mass": 0.08}}]}
