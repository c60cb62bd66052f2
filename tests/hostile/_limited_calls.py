"""What the attacks call with several arguments, with one path instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twinloop.core.documents import read_arrays
from twinloop.dataset.lerobot.parquet import read_table
from twinloop.dataset.media.images import decode_image
from twinloop.dataset.media.video import decode


def read_npz(path: Path) -> dict[str, Any]:
    """Read an npz file of at most 64 MiB."""
    return read_arrays(path, max_bytes=1 << 26, where=str(path))


def read_image(path: Path) -> Any:
    """Decode an image."""
    return decode_image(path, where=str(path)).shape


def read_video(path: Path) -> Any:
    """Decode the first frame of a video."""
    return decode(path, [0.0]).shape


def read_parquet(path: Path) -> Any:
    """Read a table."""
    return read_table(path).num_rows
