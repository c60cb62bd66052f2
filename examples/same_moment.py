"""Show one frame of a stored episode in four ways: clean, as the twin's camera delivers it, path-traced, and annotated.

    twinloop generate examples/clutter.yaml --output data --episodes 8
    twinloop render data --episodes 1 --size 640x480 --annotations instance,boxes,poses --output annotated
    python examples/same_moment.py annotated --frame 75 --output same_moment.png

The path-traced quarter needs `pip install 'twinloop[path]'`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from numpy.typing import NDArray

from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.generate.pixels import StoredEpisode, load_source_plan, read_stored_episode
from twinloop.render import Fields, SceneStates, contact_sheet, open_renderer, write_png
from twinloop.render.annotate import draw_annotations
from twinloop.rollout.camera import camera_sensors
from twinloop.rollout.camera_captures import CameraCaptures

STILL = {"shadow_map": 2048, "samples": 4}  # better quality than for a dataset, because this is one image
FOLLOWED = 20  # frames before the shown one, for the camera's automatic exposure


@dataclass(frozen=True)
class Moment:
    """One frame of an annotated dataset.

    Attributes:
        dataset: Folder of a dataset with annotations.
        episode: Index of the episode.
        frame: Number of the frame.
        camera: Name of one of the dataset's cameras; the twin must have its sensor.
        samples: Paths per pixel of the path-traced image.
        output: PNG file to write.
    """

    dataset: tyro.conf.Positional[Path]
    episode: int = 0
    frame: int = 75
    camera: str = "front"
    samples: int = 64
    output: Path = Path("same_moment.png")


def four_ways(moment: Moment) -> dict[str, NDArray[np.uint8]]:
    """Return the four images by label."""
    reader, plan = DatasetReader(moment.dataset), load_source_plan(moment.dataset)
    model = plan.twin.visual_model(plan.scenery)
    episode = read_stored_episode(reader, moment.episode, plan.twin, model)
    annotations = reader.annotations(moment.episode, moment.camera)
    pinhole = annotations.intrinsics[moment.frame]
    state, fields = episode.states.take([moment.frame]), episode.fields([moment.frame])
    images = {}
    for label, renderer, quality in (
        ("clean: gl", "gl", STILL),
        ("path-traced", "mitsuba", {"samples": moment.samples}),
    ):
        with open_renderer(
            renderer, model, height=pinhole.height, width=pinhole.width, cameras=[moment.camera], quality=quality
        ) as opened:
            images[label] = opened.render(state, fields)[moment.camera][0]
    sensor = camera_sensors(plan.twin)[moment.camera]
    return {
        "clean: gl": images["clean: gl"],
        f"as the {plan.twin.devices[sensor].name} delivers it": _delivered(episode, moment, sensor, reader),
        f"path-traced: {moment.samples} samples a pixel, denoised": images["path-traced"],
        "annotations": draw_annotations(images["clean: gl"], annotations, moment.frame, scale=1),
    }


def _delivered(episode: StoredEpisode, moment: Moment, sensor: str, reader: DatasetReader) -> NDArray[np.uint8]:
    """Return the image that the robot's camera had delivered by then: delayed, blurred, distorted, noisy."""
    size = next(camera for camera in reader.spec.cameras if camera.name == moment.camera)
    camera = episode.camera(sensor, size)
    view = {"height": camera.view.height, "width": camera.view.width, "cameras": [camera.camera]}
    with open_renderer("gl", episode.model, **view, quality=STILL) as renderer:

        def draw(states: SceneStates, fields: Fields) -> NDArray[np.float32]:
            return renderer.observe(states, fields, channels=("linear",))[camera.camera]["linear"]

        shots = CameraCaptures(camera, episode.world, draw)
        return shots.take_images(range(max(0, moment.frame - FOLLOWED), moment.frame + 1))[-1]


if __name__ == "__main__":
    moment = tyro.cli(Moment)
    images = four_ways(moment)
    write_png(moment.output, contact_sheet(list(images.values()), list(images), columns=2))
