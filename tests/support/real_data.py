"""Optional recordings of real robots for tests."""

import os
from pathlib import Path

import pytest


def real_set(name: str) -> Path:
    """Return the folder of a public set; skip the test where ``TWINLOOP_DATA`` has none of that name."""
    folder = Path(os.environ.get("TWINLOOP_DATA", "")) / name
    if "TWINLOOP_DATA" not in os.environ or not folder.exists():
        pytest.skip(f"{name} is not in TWINLOOP_DATA")
    return folder
