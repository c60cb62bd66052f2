"""Check for camera images that freeze, are black or blurred, and for exchanged cameras."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from twinloop.curate.check import CheckScore, Measurement, MeasuringCheck
from twinloop.curate.judging import LEAST, KnownLimitCheck, UsualLimitCheck, select_reported_scores
from twinloop.curate.motion import compute_motion, find_longest_run
from twinloop.curate.recording import RecordedEpisode
from twinloop.curate.recording_checks.frames import (
    PixelArray,
    compute_image_statistics,
    cut_to_common_length,
    find_repeated_images,
)

_DARK, _WHITE, _PLAIN = 10.0, 245.0, 6.0  # mean level of dark and white images, and contrast of empty ones
_GONE = 0.1  # share of its range that the fastest joint moves while the image is constant; less may be invisible
_MOMENT = 5  # frames: a sixth of a second at 30 Hz
_NO_CAMERA = (Measurement(value=None, text="The recording has no camera."),)


class FrozenCamera(KnownLimitCheck):
    """Check for a camera image that does not change while the robot moves."""

    name = "recording/frozen_camera"
    meaning = "a camera image does not change for a while in which the robot moves"
    unit = "s"
    limit, bad = 0.2, 0.5
    source = "a stall of a USB camera is shorter; a person's reaction time is this long"

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return, for each camera, the longest time in s for which its image is constant while the robot moves."""
        return [self._measure_camera(recording, camera) for camera in recording.cameras] or _NO_CAMERA

    def _measure_camera(self, recording: RecordedEpisode, camera: str) -> Measurement:
        motion = compute_motion(recording)
        same, moving = cut_to_common_length(find_repeated_images(recording, camera), motion.fast_mask)
        if not moving.any():
            return Measurement(value=None, channel=camera, text="Nothing moves, so a frozen image cannot be detected.")
        first, stop = find_longest_run(same)
        frames, gone = int(moving[first:stop].sum()), float(motion.speed[first:stop].sum())
        if frames < 2 or gone < _GONE:
            return Measurement(value=0.0, channel=camera, text=f"The images of {camera} change while the robot moves.")
        return Measurement(
            value=frames * motion.dt,
            channel=camera,
            text=f"{camera} repeats the image of frame {first} until frame {stop} while the robot moves.",
            first_frame=first,
            last_frame=stop,
        )


class BlackCamera(KnownLimitCheck):
    """Check for images that are black, white or of one colour."""

    name = "recording/black_camera"
    meaning = "a camera's images are black, white or of one colour"
    unit = "of frames"
    limit, bad = 0.0, 0.05
    source = "no image should be empty"

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the share of each camera's images that are black, white or of one colour."""
        made = []
        for camera in recording.cameras:
            looks = compute_image_statistics(recording, camera)
            dark, white = looks.brightness < _DARK, looks.brightness > _WHITE
            blind = np.flatnonzero((dark | white) & (looks.contrast < _PLAIN) | (looks.contrast < 1.0))
            if not len(blind):
                made.append(Measurement(value=0.0, channel=camera, text=f"{camera} has no empty image."))
                continue
            how = "black" if dark[blind[0]] else "white" if white[blind[0]] else "of one colour"
            made.append(
                Measurement(
                    value=len(blind) / len(looks.brightness),
                    channel=camera,
                    text=f"{len(blind)} of {len(looks.brightness)} images of {camera} are {how}, "
                    f"first frame {blind[0]}.",
                    first_frame=int(blind[0]),
                    last_frame=int(blind[-1]),
                )
            )
        return made or _NO_CAMERA


class Blur(UsualLimitCheck):
    """Check for images that are less sharp than usual for the camera, in the whole episode or in a few frames.

    Sharpness is the mean squared brightness difference of adjacent pixels, divided by that of adjacent blocks of 4 × 4
    pixels. Light, contrast and texture therefore have little effect on it. Two values are compared with those of
    comparable episodes: the blur of the whole episode, and the blur of its five most blurred successive frames relative
    to the whole episode.
    """

    name = "recording/blur"
    meaning = "a camera is less sharp than usual: out of focus, smeared or shaken"
    unit = "times"
    floor, spread = 1.5, 0.05

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return two blur values per camera: one for the whole episode, one for its five most blurred frames.

        Blur is the reciprocal of sharpness. The second value is relative to the median of the episode.
        """
        return [row for camera in recording.cameras for row in self._measure_camera(recording, camera)] or _NO_CAMERA

    def _measure_camera(self, recording: RecordedEpisode, camera: str) -> Iterator[Measurement]:
        sharp = compute_image_statistics(recording, camera).sharpness
        middle = float(np.median(sharp))
        yield Measurement(
            value=float(np.exp(-middle)), channel=camera, text=f"The blur of {camera} is {np.exp(-middle):.2f}."
        )
        if len(sharp) < 2 * _MOMENT:
            return
        smooth = np.convolve(sharp, np.ones(_MOMENT) / _MOMENT, mode="valid")
        at = int(np.argmin(smooth))
        softer = float(np.exp(middle - smooth[at]))
        yield Measurement(
            value=softer,
            channel=f"{camera}/moment",
            text=f"From frame {at} to {at + _MOMENT - 1}, {camera} is {softer:.2f} times as blurred as in the other "
            "frames.",
            first_frame=at,
            last_frame=at + _MOMENT - 1,
        )


class SwappedCameras(MeasuringCheck):
    """Check for two swapped cameras, by comparison of their mean images with those in other episodes."""

    name = "recording/swapped_cameras"
    meaning = "two cameras are exchanged, compared with the other episodes"
    unit = "times"
    ratio = 1.3  # distance from the usual images of both cameras, divided by the distance after an exchange

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return one measurement, whose ``facts`` hold the normalized mean image of each camera."""
        if len(recording.cameras) < 2:
            return [Measurement(value=None, text="The recording has fewer than two cameras.")]
        thumbs = {
            camera: _standardize_image(compute_image_statistics(recording, camera).mean_image)
            for camera in recording.cameras
        }
        return [Measurement(value=0.0, facts={"thumbs": thumbs})]

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Compare each pair of cameras with the median images of both cameras in comparable episodes.

        The value is the distance of the two cameras' mean images from these median images, divided by the distance if
        the two cameras are swapped.
        """
        groups: dict[tuple[str, ...], list[dict[str, PixelArray]]] = defaultdict(list)
        for recording, (row, *_) in zip(recordings, measured, strict=True):
            if row.value is not None:
                groups[recording.group].append(row.facts["thumbs"])
        for recording, (row, *_) in zip(recordings, measured, strict=True):
            others = groups.get(recording.group, [])
            if row.value is None or len(others) < LEAST:
                said = row.text or f"Only {len(others)} episodes are comparable; a comparison needs at least {LEAST}."
                yield self.make_score(recording, row, "unknown", reason=said)
            else:
                yield from select_reported_scores(list(self._compare_pairs(recording, row.facts["thumbs"], others)))

    def _compare_pairs(
        self, recording: RecordedEpisode, own: dict[str, PixelArray], others: list[dict[str, PixelArray]]
    ) -> Iterator[CheckScore]:
        usual = {camera: np.median([thumbs[camera] for thumbs in others], axis=0) for camera in own}
        for one, other in itertools.combinations(own, 2):
            kept = _compute_image_distance(own[one], usual[one]) + _compute_image_distance(own[other], usual[other])
            changed = _compute_image_distance(own[one], usual[other]) + _compute_image_distance(own[other], usual[one])
            ratio = kept / max(changed, 1e-9)
            row = Measurement(value=ratio, channel=f"{one}/{other}")
            said = (
                f"The images of {one} and {other} differ {ratio:.2f} times as much from those of the other episodes "
                "as they would after an exchange."
            )
            yield self.make_score(
                recording, row, "bad" if ratio > self.ratio else "good", limit=self.ratio, reason=said
            )


def _standardize_image(thumb: PixelArray) -> PixelArray:
    """Normalize an image to zero mean and unit standard deviation."""
    return (thumb - thumb.mean()) / max(float(thumb.std()), 1e-6)


def _compute_image_distance(one: PixelArray, other: PixelArray) -> float:
    return float(np.sqrt(np.mean((one - other) ** 2)))
