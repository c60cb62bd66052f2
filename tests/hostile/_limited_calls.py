"""What the attacks call with several arguments, with one path instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twinloop.core.arrays import read_arrays


def read_npz(path: Path) -> dict[str, Any]:
    """Read an npz file of at most 64 MiB."""
    return read_arrays(path, most=1 << 26, where=str(path))
