"""Measure how well images of several looks pass for those of a real camera.

``python -m benchmarks.transfer.realism [REAL] [--write docs]``. REAL is a LeRobot dataset or a folder with one folder
of images per episode, of an SO-101 seen by a camera such as the twin's ``front``. Without it, the virtual robot that
looks least like the training images takes its place: the maker's CAD meshes, path traced, in rooms that no training
image has, seen by another camera.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console

from benchmarks.studies import StudyTable, around, printed, write_between
from benchmarks.transfer.looks import CAD, HEIGHT, WIDTH, ImageLook, take_images
from twinloop.dataset.media.image_sources import open_images
from twinloop.encoders.images import open_encoder
from twinloop.gap.vision.image_summary import ImageSide, summarize_images
from twinloop.gap.vision.measure import measure_vision
from twinloop.stats import Interval

PAGE, MARK = "evidence/pixels.md", "benchmarks transfer realism"
LOOKS = (
    ImageLook(label="the twin as it is, rasterizer", rooms=None),
    ImageLook(label="random rooms, rasterizer"),
    ImageLook(label="random rooms, Filament", renderer="filament"),
    ImageLook(label="random rooms, path tracer", renderer="mitsuba"),
    ImageLook(label="random rooms, CAD meshes, rasterizer", twin=CAD),
    ImageLook(label="random rooms, CAD meshes, path tracer", renderer="mitsuba", twin=CAD),
)
VIRTUAL = ImageLook(label="virtual robot", renderer="mitsuba", rooms=(100_001, 200_000), twin=CAD, device="d435_color")
_EPISODES, _STEPS = 40, (20, 60)  # per look
_SEED = 9100


def realism_table(real: ImageSide, label: str, *, episodes: int = _EPISODES) -> StudyTable:
    """Return the table of all looks against the images of a camera.

    Args:
        real: the images of the camera.
        label: what they show.
        episodes: number of episodes per look.
    """
    rows = list[tuple[str, ...]]()
    for number, look in enumerate(LOOKS):
        gap = measure_vision(real, summarize(look, _SEED + number, episodes), open_encoder("classical"))
        rows.append((look.label, _format(gap.classifier.auc), _format(gap.kid.distance, 3)))
    note = (
        f"Against {label}. {episodes} episodes with {len(_STEPS)} images of the front camera each, {WIDTH}×{HEIGHT}, "
        "through the model of the camera; classical image statistics as embedding. AUC: of a classifier on held-out "
        "images, 0.5 if they cannot be told apart. KID: kernel inception distance. 95 % intervals over episodes."
    )
    return StudyTable(title="Realism of images", head=("look", "AUC", "KID"), rows=tuple(rows), note=note)


def summarize(look: ImageLook, seed: int, episodes: int) -> ImageSide:
    """Return the summary of images of a look, for `measure_vision`."""
    with TemporaryDirectory() as folder:
        for number, images in enumerate(take_images(look, seed=seed, episodes=episodes, steps=_STEPS)):
            np.save(Path(folder) / f"{number:03d}.npy", images)
        return _summarize_folder(folder, None)


def _summarize_folder(folder: str, camera: str | None) -> ImageSide:
    encoder = open_encoder("classical")
    return summarize_images(open_images(folder, camera), encoder, frames=len(_STEPS), size=(HEIGHT, WIDTH))


def _format(interval: Interval, digits: int = 2) -> str:
    estimate, low, high = (f"{float(value):.{digits}f}" for value in (interval.estimate, interval.low, interval.high))
    return f"{estimate} [{low}, {high}]"


def main() -> None:
    """Print the table; with ``--write DOCS`` also replace it in that folder's page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("real", nargs="?")
    parser.add_argument("--camera")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    if given.write is not None:
        around(given.write / PAGE, MARK)
    if given.real is None:
        real, label = summarize(VIRTUAL, _SEED - 1, _EPISODES), "a virtual robot with CAD meshes, path traced, in "
        label += "other rooms, seen by another camera; no frames of a real SO-101 were at hand"
    else:
        real, label = _summarize_folder(given.real, given.camera), f"the frames in {Path(given.real).name}"
    table, console = realism_table(real, label), Console()
    console.print(printed(table))
    console.print(table.note, soft_wrap=True)
    if given.write is not None:
        write_between(given.write / PAGE, MARK, table.markdown())


if __name__ == "__main__":
    main()
