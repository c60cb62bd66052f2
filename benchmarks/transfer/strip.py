"""Write a film strip of a policy from images on a virtual robot: ``python -m benchmarks.transfer.strip POLICY FILE``.

The policy sees path-traced images of its own size, in a room and by a camera that differ from those of its training
(look ``traced`` of the study). The strip shows the first successful trial, larger: the front camera above, the wrist
camera below.
"""

from __future__ import annotations

import argparse
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.transfer.pixel_settings import CAMERAS, LOOKS
from benchmarks.transfer.pixels import open_camera, run_on_hidden
from benchmarks.transfer.settings import PLACES
from twinloop.core.errors import CheckFailedError
from twinloop.core.files import write_bytes
from twinloop.policies import open_policy
from twinloop.render import contact_sheet
from twinloop.rollout import EpisodeStart

_TRIALS, _SHOWN, _SIZE = 8, 7, (240, 320)
_LOOK = replace(LOOKS["traced"], quality={"samples": 32})  # of the strip; the policy sees that of the study


def make_strip(policy: Path, robot: int) -> NDArray[np.uint8]:
    """Return the strip of the first successful trial of a policy on a robot with hidden parameters.

    Raises:
        CheckFailedError: If no trial succeeds.
    """
    for number in range(_TRIALS):
        twin, batch = run_on_hidden(open_policy(policy), robot, [number], LOOKS["traced"])
        if batch.success[0]:
            break
    else:
        raise CheckFailedError(f"None of {_TRIALS} trials on robot {robot} succeeded. Choose another --robot.")
    states = batch.trajectories.states[:, :-1]
    steps = np.linspace(0, states.shape[1] - 1, _SHOWN).astype(int)
    camera = open_camera(twin, _LOOK, _SIZE)
    start = EpisodeStart(numbers=np.array([number]), params=batch.params, initial=batch.initial, run_seed=PLACES)
    camera.begin_worlds(start, states.shape[1])
    taken = list[dict[str, NDArray[np.uint8]]]()
    for step in range(states.shape[1]):
        camera.watch(states[:, step])
        if step in steps:
            taken.append(camera.take(np.array([0]), step))
    camera.close()
    images = [images[name][0] for name in CAMERAS for images in taken]
    labels = [f"{name}, {step / twin.control_hz:.1f} s" for name in CAMERAS for step in steps]
    return contact_sheet(images, labels, columns=_SHOWN)


def main() -> None:
    """Write the strip to the file that is named on the command line."""
    from PIL import Image

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("policy", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--robot", type=int, default=0)
    given = parser.parse_args()
    buffer = io.BytesIO()
    Image.fromarray(make_strip(given.policy, given.robot)).save(buffer, "JPEG", quality=85)
    write_bytes(given.file, buffer.getvalue())


if __name__ == "__main__":
    main()
