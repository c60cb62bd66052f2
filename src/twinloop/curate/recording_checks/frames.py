"""Check for missing and repeated frames, and reduce camera images to a few numbers per frame for all camera checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.curate.check import Measurement
from twinloop.curate.judging import LIMIT, KnownLimitCheck, MetricLimit, UsualLimitCheck
from twinloop.curate.motion import NormalizedMotion, compute_motion
from twinloop.curate.recording import RecordedEpisode
from twinloop.dataset.logs.checks.timing import find_repeated_rows
from twinloop.encoders.images import block_means, sharpness

PixelArray = NDArray[np.floating[Any]]

_CHUNK = 64  # frames in memory at a time: 55 MB of 640 × 480
_BLOCKS = 24  # rows of the grid on which change is measured: blocks average out encoder and sensor noise
_THUMB = 8  # rows and columns of the mean image
_GREY = np.full(3, 1 / 3, dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class ImageStatistics:
    """Image statistics of one camera in one episode of T frames.

    Attributes:
        brightness: mean brightness of each image, 0 to 255 ``(T,)``.
        contrast: standard deviation of the brightness of each image, in the same unit ``(T,)``.
        change: change from one image to the next ``(T - 1,)``: the largest change of a square block's mean brightness,
            with 24 rows of blocks per image.
        sharpness: logarithm of the energy of brightness steps between neighbouring pixels, over that of steps over four
            pixels ``(T,)``. It does not depend on light and contrast.
        mean_image: mean of all images, reduced to ``(8, 8, 3)``.
    """

    brightness: PixelArray
    contrast: PixelArray
    change: PixelArray
    sharpness: PixelArray
    mean_image: PixelArray


def compute_image_statistics(recording: RecordedEpisode, camera: str) -> ImageStatistics:
    """Compute the image statistics of one camera; they are computed once per recording.

    Raises:
        TwinloopError: If the images cannot be read.
    """
    return recording.compute_once(f"looks/{camera}", lambda asked: _compute_image_statistics(asked, camera))


def _compute_image_statistics(recording: RecordedEpisode, camera: str) -> ImageStatistics:
    parts: list[tuple[PixelArray, ...]] = []
    before: PixelArray | None = None
    for begin in range(0, recording.frame_count, _CHUNK):
        images = recording.read_images(camera, range(begin, min(begin + _CHUNK, recording.frame_count)))
        grey = images.astype(np.float32) @ _GREY
        grid = block_means(grey, max(1, grey.shape[1] // _BLOCKS))
        joined = grid if before is None else np.concatenate([before, grid])
        change = np.abs(np.diff(joined, axis=0)).max(axis=(1, 2), initial=0.0)
        summed = images.sum(axis=0, dtype=np.uint32).astype(np.float64)
        parts.append((grey.mean(axis=(1, 2)), grey.std(axis=(1, 2)), change, sharpness(grey), summed))
        before = grid[-1:]
    level, contrast, change, sharp = (np.concatenate([part[i] for part in parts]).astype(float) for i in range(4))
    thumb = _shrink_image(np.sum([part[4] for part in parts], axis=0) / recording.frame_count)
    return ImageStatistics(brightness=level, contrast=contrast, change=change, sharpness=sharp, mean_image=thumb)


def _shrink_image(mean: PixelArray) -> PixelArray:
    """Reduce an image ``(h, w, 3)`` to at most 8 × 8 pixels by averaging blocks of pixels.

    Pixels at the edges that do not fill a block are dropped.
    """
    tall, wide = (max(1, size // _THUMB) for size in mean.shape[:2])
    rows, columns = min(_THUMB, mean.shape[0] // tall), min(_THUMB, mean.shape[1] // wide)
    cut = mean[: rows * tall, : columns * wide]
    return cut.reshape(rows, tall, columns, wide, 3).mean(axis=(1, 3))


Array = NDArray[np.float64]

SAME = 1.5  # grey levels of the largest block change: codecs change equal images less, a moving arm changes them more
_LONG = 1.7  # usual steps; a step this long counts as a missing frame
_STEADY = 0.5  # of the usual step: largest deviation of the neighbouring steps
_ALIKE = 0.97  # cosine between a step of all joints and the neighbouring steps: the same movement continues
_AROUND = 3  # steps on either side that define the usual step
_FEWEST_JOINTS = 2


class DroppedFrames(UsualLimitCheck):
    """Check for missing frames.

    A missing frame causes a long time step, or one step in which all joints move much further than usual.
    """

    reads = frozenset({"raw"})

    name = "recording/dropped_frames"
    meaning = "frames are missing: a time step, or the step of all joints, is several times the usual one"
    unit = "frames"
    floor, spread, linear = 0.9, 0.1, True

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return two numbers of missing frames: by long time steps, and by large steps that all joints make at once."""
        raw = recording.raw
        steps = np.diff(raw.time[np.isfinite(raw.time)])
        forward = steps[steps > 0]
        if not len(forward):
            return [Measurement(value=None, text="Time does not increase, so missing frames cannot be detected.")]
        usual = float(np.median(forward))
        lost = np.maximum(np.round(steps / usual) - 1, 0)
        rows = [_measure_lost_frames("clock", lost, usual, "by the clock")]
        if len(raw.state) > 1:
            rows.append(
                _measure_lost_frames(
                    "motion", _count_lost_frames(compute_motion(recording)), usual, "by the step size of all joints"
                )
            )
        return rows


_BY_CLOCK = MetricLimit(value=0.5, bad=2.5, source="the logged clock counts them")


def _measure_lost_frames(channel: str, lost: Array, dt: float, how: str) -> Measurement:
    at, facts = np.flatnonzero(lost), {LIMIT: _BY_CLOCK} if channel == "clock" else {}
    total = float(lost.sum())
    if not len(at):
        return Measurement(value=0.0, channel=channel, text=f"No frame is missing {how}.", facts=facts)
    return Measurement(
        value=total,
        channel=channel,
        text=f"{total:.0f} frames are missing {how}, at {len(at)} places, first after frame {at[0]} "
        f"({lost[at[0]] * dt:.2f} s).",
        first_frame=int(at[0]),
        last_frame=int(at[-1] + 1),
        facts=facts,
    )


def _count_lost_frames(motion: NormalizedMotion) -> Array:
    """Return the number of missing frames after each frame, ``(T - 1,)``, from unusually large joint movements.

    A movement between two frames counts only if it is more than 1.7 times as large as in the three frame intervals
    before and after it, and if all joints continue in the same direction.
    """
    steps = motion.steps
    lost = np.zeros(len(steps))
    if steps.shape[1] < _FEWEST_JOINTS or len(steps) < 2 * _AROUND + 1:
        return lost
    size = np.linalg.norm(steps, axis=1)
    brisk = float(np.median(size[motion.moving])) if motion.moving.any() else np.inf
    for row in range(_AROUND, len(steps) - _AROUND):
        around = np.concatenate([steps[row - _AROUND : row], steps[row + 1 : row + 1 + _AROUND]])
        usual = around.mean(axis=0)
        expected = float(np.linalg.norm(usual))
        along = float(steps[row] @ usual) / max(expected, 1e-12)
        # Neighbouring steps must have one direction and speed; otherwise this may be a start, a stop or a late frame.
        steady = np.linalg.norm(around - usual, axis=1).max() < _STEADY * expected
        if expected > brisk / 2 and steady and along > _LONG * expected and along > _ALIKE * size[row]:
            lost[row] = round(along / expected) - 1
    return lost


class DuplicateFrames(KnownLimitCheck):
    """Check for frames that repeat the previous one while the robot moves, in joint readings and in each camera."""

    name = "recording/duplicate_frames"
    meaning = "frames repeat the previous one while the robot moves: the recorder was faster than the robot or a camera"
    unit = "of frames in motion"
    limit, bad = 0.02, 0.2
    source = "one frame in fifty; a camera at half the rate repeats every second one"

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the share of repeated frames among the frames in motion, for joint readings and each camera."""
        rows, moving = find_repeated_rows(recording.raw)
        made = [_measure_repeats("", rows, moving)]
        for camera in recording.cameras:
            still, moves = cut_to_common_length(
                find_repeated_images(recording, camera), compute_motion(recording).fast_mask
            )
            made.append(_measure_repeats(camera, np.flatnonzero(still & moves) + 1, int(moves.sum())))
        return made


def find_repeated_images(recording: RecordedEpisode, camera: str) -> NDArray[np.bool_]:
    """Return the mask ``(T - 1,)`` of the steps between frames in which a camera's image does not change."""
    return compute_image_statistics(recording, camera).change < SAME


def cut_to_common_length(
    one: NDArray[np.bool_], other: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Cut two masks to their common length, because a video may have more or fewer frames than the table."""
    common = min(len(one), len(other))
    return one[:common], other[:common]


def _measure_repeats(channel: str, rows: NDArray[np.intp], moving: int) -> Measurement:
    if not moving:
        return Measurement(value=None, channel=channel, text="Nothing moves, so repeated frames cannot be detected.")
    if not len(rows):
        return Measurement(value=0.0, channel=channel, text=f"No frame of {moving} in motion repeats the previous one.")
    what = f"images of {channel}" if channel else "readings"
    return Measurement(
        value=len(rows) / moving,
        channel=channel,
        text=f"{len(rows)} {what} of {moving} in motion repeat the previous one, first at frame {rows[0]}.",
        first_frame=int(rows[0]),
        last_frame=int(rows[-1]),
    )
