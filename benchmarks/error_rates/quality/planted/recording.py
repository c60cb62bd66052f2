"""Plant recording defects: clocks, frames, images, units, swapped columns, and wrong endings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.ndimage import gaussian_filter

from benchmarks.error_rates.quality.planted.defect import Defect, defect, moving_frame, moving_joint, reach
from benchmarks.error_rates.quality.planted.edited import Edited
from twinloop.curate.recording import Array, Images, RecordedEpisode
from twinloop.dataset.logs.importers.protocol import RawEpisode

RECORDING: dict[str, Defect] = {}


@defect(RECORDING, "frames lost, clock kept", (1.0, 3.0, 10.0), "frames", "recording/dropped_frames",
        "recording/clock_jump")  # fmt: skip
def _lost(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    at = int(random.integers(10, recording.frame_count - 20))

    def change(raw: RawEpisode) -> RawEpisode:
        keep = np.delete(np.arange(len(raw)), np.arange(at, at + int(size)))
        return replace(raw, time=raw.time[keep], state=raw.state[keep], action=raw.action[keep])

    return Edited(recording, raw=change)


@defect(RECORDING, "frames lost, clock made even", (1.0, 3.0, 10.0), "frames in motion", "recording/dropped_frames",
        "recording/spikes", "recording/clock_drift")  # fmt: skip
def _lost_evenly(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    at = moving_frame(recording, random, frames=int(size))
    if at is None:
        return None
    return Edited(recording, rows=np.delete(np.arange(recording.frame_count), np.arange(at, at + int(size))))


@defect(RECORDING, "frames repeated", (0.03, 0.1, 0.5), "of the frames", "recording/duplicate_frames")
def _repeated(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    rows = np.arange(recording.frame_count)
    again = np.sort(random.choice(rows[1:], size=round(size * len(rows)), replace=False))
    rows[again] = rows[again - 1]
    return Edited(recording, rows=rows)


@defect(RECORDING, "clock jumps ahead", (0.05, 0.2, 1.0), "s", "recording/clock_jump", "recording/dropped_frames")
def _ahead(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    at = int(random.integers(10, recording.frame_count - 10))

    def change(raw: RawEpisode) -> RawEpisode:
        raw.time[at:] += size
        return raw

    return Edited(recording, raw=change)


@defect(RECORDING, "clock jumps back", (0.05, 0.2, 1.0), "s", "recording/clock_jump")
def _back(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    at = int(random.integers(10, recording.frame_count - 10))

    def change(raw: RawEpisode) -> RawEpisode:
        raw.time[at:] -= size
        return raw

    return Edited(recording, raw=change)


def _camera(recording: RecordedEpisode, random: np.random.Generator) -> str | None:
    return str(random.choice(recording.cameras)) if recording.cameras else None


@defect(RECORDING, "camera frozen while the robot moves", (0.2, 0.5, 1.5), "s", "recording/frozen_camera",
        "recording/duplicate_frames")  # fmt: skip
def _frozen(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    chosen, frames = _camera(recording, random), round(size * recording.fps)
    at = None if chosen is None else moving_frame(recording, random, frames=frames)
    if at is None:
        return None

    def change(camera: str, images: Images) -> Images:
        if camera == chosen:
            noise = random.integers(
                -1, 2, size=images[at : at + frames + 1].shape
            )  # noise of a codec on constant images
            images[at : at + frames + 1] = np.clip(images[at].astype(int) + noise, 0, 255)
        return images

    return Edited(recording, images=change)


@defect(RECORDING, "camera black", (1.0, 5.0, 1000.0), "frames at most", "recording/black_camera")
def _black(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    chosen = _camera(recording, random)
    if chosen is None:
        return None
    at = 0 if size > recording.frame_count else int(random.integers(recording.frame_count - int(size)))

    def change(camera: str, images: Images) -> Images:
        if camera == chosen:
            part = images[at : at + int(size)]
            part[:] = random.integers(0, 6, size=part.shape)
        return images

    return Edited(recording, images=change)


@defect(RECORDING, "camera out of focus throughout", (0.5, 1.0, 2.0), "px", "recording/blur")
def _blurred(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    chosen = _camera(recording, random)
    if chosen is None:
        return None

    def change(camera: str, images: Images) -> Images:
        if camera == chosen:
            images[:] = gaussian_filter(images, sigma=(0, size, size, 0))
        return images

    return Edited(recording, images=change)


@defect(RECORDING, "camera smeared for a third of a second", (0.5, 1.0, 2.0), "px", "recording/blur")
def _smeared(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    chosen = _camera(recording, random)
    if chosen is None:
        return None
    at = int(random.integers(0, recording.frame_count - 10))

    def change(camera: str, images: Images) -> Images:
        if camera == chosen:
            images[at : at + 10] = gaussian_filter(images[at : at + 10], sigma=(0, size, size, 0))
        return images

    return Edited(recording, images=change)


@defect(RECORDING, "cameras exchanged", (2.0,), "cameras", "recording/swapped_cameras")
def _cameras(recording: RecordedEpisode, _size: float, random: np.random.Generator) -> Edited | None:
    if len(recording.cameras) < 2:
        return None
    one, other = (str(name) for name in random.choice(recording.cameras, size=2, replace=False))
    return Edited(recording, cameras={one: other, other: one})


@defect(RECORDING, "another unit throughout", (np.pi / 180, 0.5, 180 / np.pi), "times", "recording/units")
def _unit(recording: RecordedEpisode, size: float, _random: np.random.Generator) -> Edited | None:
    def change(raw: RawEpisode) -> RawEpisode:
        return replace(raw, state=raw.state * size, action=raw.action * size)

    return Edited(recording, raw=change)


@defect(RECORDING, "one joint measured in another unit", (np.pi / 180, 0.5, 180 / np.pi), "times", "recording/units")
def _one_unit(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    joint = moving_joint(recording, random)
    if joint is None:
        return None

    def change(raw: RawEpisode) -> RawEpisode:
        raw.state[:, joint] *= size
        return raw

    return Edited(recording, raw=change)


def _two(recording: RecordedEpisode, random: np.random.Generator) -> tuple[int, int] | None:
    span = reach(recording)
    moving = np.flatnonzero(span > 0.2 * span.max())
    if len(moving) < 2:
        return None
    one, other = random.choice(moving, size=2, replace=False)
    return int(one), int(other)


@defect(RECORDING, "two joints exchanged, measured and commanded", (2.0,), "joints", "recording/swapped")
def _exchanged(recording: RecordedEpisode, _size: float, random: np.random.Generator) -> Edited | None:
    pair = _two(recording, random)
    if pair is None:
        return None

    def change(raw: RawEpisode) -> RawEpisode:
        for values in (raw.state, raw.action):
            values[:, list(pair)] = values[:, list(pair[::-1])]
        return raw

    return Edited(recording, raw=change)


@defect(RECORDING, "two joints exchanged, measured only", (2.0,), "joints", "recording/swapped")
def _crossed(recording: RecordedEpisode, _size: float, random: np.random.Generator) -> Edited | None:
    pair = _two(recording, random)
    if pair is None:
        return None

    def change(raw: RawEpisode) -> RawEpisode:
        raw.state[:, list(pair)] = raw.state[:, list(pair[::-1])]
        return raw

    return Edited(recording, raw=change)


@defect(RECORDING, "joint of the wrong sign", (1.0,), "joint", "recording/sign", "recording/swapped")
def _flipped(recording: RecordedEpisode, _size: float, random: np.random.Generator) -> Edited | None:
    joint = moving_joint(recording, random)
    if joint is None:
        return None

    def change(raw: RawEpisode) -> RawEpisode:
        raw.state[:, joint] *= -1
        return raw

    return Edited(recording, raw=change)


@defect(RECORDING, "recorder left running", (1.0, 3.0, 10.0), "s", "recording/static_tail")
def _tail(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    rows = np.append(np.arange(recording.frame_count), np.full(round(size * recording.fps), recording.frame_count - 1))

    def change(raw: RawEpisode) -> RawEpisode:
        tail = raw.state[recording.frame_count :]
        tail += 1e-4 * reach(recording) * random.standard_normal(tail.shape)  # noise of one encoder step
        return raw

    return Edited(recording, rows=rows.astype(np.intp), raw=change)


@defect(RECORDING, "recording broken off", (0.85, 0.6, 0.3), "of its length", "recording/truncated")
def _broken(recording: RecordedEpisode, size: float, _random: np.random.Generator) -> Edited | None:
    return Edited(recording, rows=np.arange(round(size * recording.frame_count)))


@defect(RECORDING, "values that are no numbers", (1.0, 10.0), "values", "recording/not_finite")
def _nan(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    at, joint = (int(random.integers(n)) for n in (recording.frame_count - int(size), len(recording.raw.joints)))

    def change(raw: RawEpisode) -> RawEpisode:
        raw.state[at : at + int(size), joint] = np.nan
        return raw

    return Edited(recording, raw=change)


@defect(RECORDING, "lost packets", (0.1, 0.3, 0.8), "of the range", "recording/spikes")
def _spike(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    joint = moving_joint(recording, random)
    if joint is None:
        return None
    at = int(random.integers(5, recording.frame_count - 5))

    def change(raw: RawEpisode) -> RawEpisode:
        raw.state[at, joint] += size * reach(recording)[joint]
        return raw

    return Edited(recording, raw=change)


@defect(RECORDING, "joint's reading stands still", (0.5, 1.0, 100.0), "s at most", "recording/frozen_joint",
        "recording/dead_channel", "recording/spikes")  # fmt: skip
def _stuck(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    joint, frames = moving_joint(recording, random), round(size * recording.fps)
    if joint is None:
        return None
    gone = (
        np.abs(recording.raw.state[frames:, joint] - recording.raw.state[:-frames, joint])
        if (frames < recording.frame_count)
        else np.empty(0)
    )
    found = np.flatnonzero(gone > 0.3 * reach(recording)[joint])  # frames in which the joint moves
    at = int(random.choice(found)) if len(found) else 0

    def change(raw: RawEpisode) -> RawEpisode:
        raw.state[at : at + frames, joint] = raw.state[at, joint]
        return raw

    return Edited(recording, raw=change) if len(found) or not len(gone) else None


@defect(RECORDING, "command stands still", (1.0,), "joint", "recording/dead_channel", "recording/saturation")
def _mute(recording: RecordedEpisode, _size: float, random: np.random.Generator) -> Edited | None:
    joint = moving_joint(recording, random)
    if joint is None:
        return None

    def change(raw: RawEpisode) -> RawEpisode:
        raw.action[:, joint] = raw.action[0, joint]
        return raw

    return Edited(recording, raw=change)


@defect(RECORDING, "joint held short of its command", (0.15, 0.3, 0.6), "of its range", "recording/saturation")
def _saturated(recording: RecordedEpisode, size: float, random: np.random.Generator) -> Edited | None:
    joint = moving_joint(recording, random)
    if joint is None:
        return None

    def change(raw: RawEpisode) -> RawEpisode:
        action: Array = raw.action[:, joint]
        middle = np.median(action)
        action += size * reach(recording)[joint] * np.where(action > middle, 1.0, -1.0)
        return raw

    return Edited(recording, raw=change)
