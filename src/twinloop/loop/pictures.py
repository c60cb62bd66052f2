"""A contact sheet and a short video of a rendered dataset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinloop.dataset.reader import DatasetReader
from twinloop.render import contact_sheet, write_png, write_video

_EPISODES, _MOMENTS = 4, 6


def write_pictures(dataset: Path, output: Path) -> Path:
    """Write ``contact_sheet.png`` and ``episodes.mp4`` to a folder; returns the sheet's path."""
    reader = DatasetReader(dataset)
    episodes = range(min(_EPISODES, len(reader)))
    pictures, labels = [], []
    for episode in episodes:
        for camera in reader.cameras:
            moments = np.linspace(0, reader.lengths[episode] - 1, _MOMENTS).astype(int)
            pictures += list(reader.images(episode, camera, [int(moment) for moment in moments]))
            labels += [f"episode {episode} {camera} {moment / reader.fps:.1f} s" for moment in moments]
    sheet = output / "contact_sheet.png"
    write_png(sheet, contact_sheet(pictures, labels, columns=_MOMENTS))
    write_video(output / "episodes.mp4", _side_by_side(reader, episodes), fps=round(reader.fps))
    return sheet


def _side_by_side(reader: DatasetReader, episodes: range) -> Iterator[NDArray[np.uint8]]:
    for episode in episodes:
        views = [reader.images(episode, camera) for camera in reader.cameras]
        yield from np.concatenate(views, axis=2)
