"""Check for cameras that freeze, are covered, are blurred, or are exchanged."""

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
_GONE = 0.1  # share of its range that the fastest joint moves meanwhile; less may be invisible to the camera
_MOMENT = 5  # frames: a sixth of a second at 30 Hz
_NO_CAMERA = (Measurement(value=None, said="The recording has no camera."),)


class FrozenCamera(KnownLimitCheck):
    """A camera image that does not change while the robot moves."""

    name = "recording/frozen_camera"
    meaning = "a camera image does not change for a while in which the robot moves"
    unit = "s"
    limit, bad = 0.2, 0.5
    source = "a stall of a USB camera is shorter; a person's reaction time is this long"

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the longest time that each camera repeats an image while the robot moves, in s."""
        return [self._measure_camera(recording, camera) for camera in recording.cameras] or _NO_CAMERA

    def _measure_camera(self, recording: RecordedEpisode, camera: str) -> Measurement:
        motion = compute_motion(recording)
        same, moving = cut_to_common_length(find_repeated_images(recording, camera), motion.fast_mask)
        if not moving.any():
            return Measurement(value=None, channel=camera, said="Nothing moves, so a frozen image cannot be detected.")
        first, stop = find_longest_run(same)
        frames, gone = int(moving[first:stop].sum()), float(motion.speed[first:stop].sum())
        if frames < 2 or gone < _GONE:
            return Measurement(value=0.0, channel=camera, said=f"{camera} follows the robot.")
        return Measurement(
            value=frames * motion.dt,
            channel=camera,
            said=f"{camera} repeats the image of frame {first} until frame {stop} while the robot moves.",
            first_frame=first,
            last_frame=stop,
        )


class BlackCamera(KnownLimitCheck):
    """Images that are black, white or of one colour."""

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
            dark, white = looks.level < _DARK, looks.level > _WHITE
            blind = np.flatnonzero((dark | white) & (looks.contrast < _PLAIN) | (looks.contrast < 1.0))
            if not len(blind):
                made.append(Measurement(value=0.0, channel=camera, said=f"{camera} has no empty image."))
                continue
            how = "black" if dark[blind[0]] else "white" if white[blind[0]] else "of one colour"
            made.append(
                Measurement(
                    value=len(blind) / len(looks.level),
                    channel=camera,
                    said=f"{len(blind)} of {len(looks.level)} images of {camera} are {how}, first frame {blind[0]}.",
                    first_frame=int(blind[0]),
                    last_frame=int(blind[-1]),
                )
            )
        return made or _NO_CAMERA


class Blur(UsualLimitCheck):
    """Images less sharp than the camera's other images, in the whole episode or for a moment.

    Sharpness is the size of brightness steps between neighbouring pixels relative to steps over four pixels. The value
    is the factor by which it is below the camera's usual best, so that light, contrast and texture have little effect.
    """

    name = "recording/blur"
    meaning = "a camera is less sharp than usual: out of focus, smeared or shaken"
    unit = "times"
    floor, spread = 1.5, 0.05

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the blur of each camera: in the whole episode, and in its five most blurred frames."""
        return [row for camera in recording.cameras for row in self._measure_camera(recording, camera)] or _NO_CAMERA

    def _measure_camera(self, recording: RecordedEpisode, camera: str) -> Iterator[Measurement]:
        sharp = compute_image_statistics(recording, camera).sharpness
        middle = float(np.median(sharp))
        yield Measurement(
            value=float(np.exp(-middle)), channel=camera, said=f"{camera} is {np.exp(-middle):.2f} times as blurred."
        )
        if len(sharp) < 2 * _MOMENT:
            return
        smooth = np.convolve(sharp, np.ones(_MOMENT) / _MOMENT, mode="valid")
        at = int(np.argmin(smooth))
        softer = float(np.exp(middle - smooth[at]))
        yield Measurement(
            value=softer,
            channel=f"{camera}/moment",
            said=f"From frame {at} to {at + _MOMENT - 1} {camera} is {softer:.2f} times as blurred as in the rest.",
            first_frame=at,
            last_frame=at + _MOMENT - 1,
        )


class SwappedCameras(MeasuringCheck):
    """Two cameras whose images match each other's images in the other episodes."""

    name = "recording/swapped_cameras"
    meaning = "two cameras are exchanged, compared with the other episodes"
    unit = "times"
    ratio = 1.3  # distance from the own usual images, divided by that from the exchanged ones

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the normalized mean image of each camera, in the facts of one measurement."""
        if len(recording.cameras) < 2:
            return [Measurement(value=None, said="The recording has fewer than two cameras.")]
        thumbs = {
            camera: _standardize_image(compute_image_statistics(recording, camera).thumb)
            for camera in recording.cameras
        }
        return [Measurement(value=0.0, facts={"thumbs": thumbs})]

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Compare each pair of cameras with the usual mean images of both."""
        groups: dict[tuple[str, ...], list[dict[str, PixelArray]]] = defaultdict(list)
        for recording, (row, *_) in zip(recordings, measured, strict=True):
            if row.value is not None:
                groups[recording.group].append(row.facts["thumbs"])
        for recording, (row, *_) in zip(recordings, measured, strict=True):
            others = groups.get(recording.group, [])
            if row.value is None or len(others) < LEAST:
                said = row.said or f"Only {len(others)} episodes are comparable; a comparison needs at least {LEAST}."
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
                f"The images of {one} and {other} are {ratio:.2f} times as far from those of the other episodes as "
                "after an exchange."
            )
            yield self.make_score(
                recording, row, "bad" if ratio > self.ratio else "good", limit=self.ratio, reason=said
            )


def _standardize_image(thumb: PixelArray) -> PixelArray:
    """Normalize a mean image to zero mean and unit deviation."""
    return (thumb - thumb.mean()) / max(float(thumb.std()), 1e-6)


def _compute_image_distance(one: PixelArray, other: PixelArray) -> float:
    return float(np.sqrt(np.mean((one - other) ** 2)))
