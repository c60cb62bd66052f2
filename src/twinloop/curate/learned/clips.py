"""Describe clips (sections of 2 s) of an episode by named features of motion and of camera images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, LogError, TwinloopError
from twinloop.curate.check import Measurement
from twinloop.curate.demonstration.movement import Movement, infer_units
from twinloop.curate.recording import RecordedEpisode
from twinloop.curate.registry import EpisodeTwins
from twinloop.encoders.trajectory import MIN_FRAMES, ClipArrays, ClipFeature, clip_features

Array = NDArray[np.float64]
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # ITU-R BT.601
_KINDS = (
    ("tone", "brightness", "mean brightness, of 255"),
    ("tone", "contrast", "standard deviation of brightness"),
    ("colour", "saturation", "mean difference of the strongest and the weakest colour"),
    ("colour", "warmth", "mean of red − blue"),
    ("noise", "grain", "noise within an image (Immerkær)"),
    ("noise", "flicker", "median change of a pixel from one image to the next"),
    ("noise", "unchanged", "share of pixels that are exactly the same in the next image"),
    ("sharpness", "edges", "mean brightness step between neighbouring pixels"),
)


def compute_image_features(recording: RecordedEpisode, frames: Sequence[int]) -> tuple[tuple[ClipFeature, ...], Array]:
    """Compute features of the images of every camera at the given frames, and of their flicker.

    The flicker is the change from each given frame to the next frame. A camera whose images cannot be read has no
    features.

    Returns:
        Names of the d features, and their values ``(len(frames), d)``.
    """
    features: list[ClipFeature] = []
    columns = [np.empty((len(frames), 0))]
    needed = sorted({frame for one in frames for frame in (one, min(one + 1, recording.frame_count - 1))})
    for camera in recording.cameras:
        try:
            images = recording.read_images(camera, needed)
        except TwinloopError:
            continue
        place = {frame: i for i, frame in enumerate(needed)}
        pairs = [(place[one], place[min(one + 1, recording.frame_count - 1)]) for one in frames]
        columns.append(np.array([_compute_pair_features(images[a], images[b]) for a, b in pairs]))
        features += [
            ClipFeature(channel=camera, family=family, kind=kind, unit="1", meaning=meaning)
            for family, kind, meaning in _KINDS
        ]
    return tuple(features), np.concatenate(columns, axis=1)


def _compute_pair_features(image: NDArray[np.uint8], next_image: NDArray[np.uint8]) -> list[float]:
    """Compute eight features of an image ``(h, w, 3)``, partly by comparison with the next image.

    They are brightness, contrast, saturation, warmth, noise, flicker, unchanged pixels and edges, in the order of
    ``_KINDS``.

    Args:
        image: the image.
        next_image: the next image, which gives flicker and unchanged pixels.
    """
    grey = image.astype(np.float32) @ _LUMA
    colour = image.astype(np.int16)
    change = np.abs(colour - next_image.astype(np.int16))
    # Immerkær, "Fast noise variance estimation", Comput. Vis. Image Underst. 64, 1996: the difference of two
    # Laplacians, which is zero for constants, slopes and edges along an axis.
    rows = grey[:-2] - 2 * grey[1:-1] + grey[2:]
    left = rows[:, :-2] - 2 * rows[:, 1:-1] + rows[:, 2:]
    return [
        float(grey.mean()),
        float(grey.std()),
        float((colour.max(axis=2) - colour.min(axis=2)).mean()),
        float((colour[..., 0] - colour[..., 2]).mean()),
        float(np.sqrt(np.pi / 2) * np.abs(left).mean() / 6),
        float(np.median(change)),
        float((change == 0).all(axis=2).mean()),
        float(np.abs(np.diff(grey, axis=1)).mean()),
    ]


CLIP_S = 2.0  # one or two movements of an arm, as for clips of the gap
_MOST = 8  # clips per episode, evenly spaced: images are read for each
_REAL = ("real", "human-in-the-loop")


@dataclass(frozen=True, kw_only=True)
class ClipFeatures:
    """Features of n clips of several episodes.

    Attributes:
        features: names, meanings and units of the d features.
        rows: values of the features ``(n, d)``.
        episode: index of each clip's episode ``(n,)``.
        first: first frame of each clip ``(n,)``.
    """

    features: tuple[ClipFeature, ...]
    rows: Array
    episode: NDArray[np.int64]
    first: NDArray[np.int64]

    def select_clips(self, places: Sequence[int]) -> ClipFeatures:
        """Return the clips of the episodes with the given indices."""
        chosen = np.isin(self.episode, places)
        return ClipFeatures(
            features=self.features, rows=self.rows[chosen], episode=self.episode[chosen], first=self.first[chosen]
        )


def is_real(recording: RecordedEpisode) -> bool:
    """Return whether an episode was recorded (source ``real`` or ``human-in-the-loop``), not simulated."""
    return recording.source in _REAL


def compute_clip_facts(recording: RecordedEpisode, twins: EpisodeTwins | None) -> Mapping[str, Any]:
    """Compute the features of at most eight evenly spaced clips of an episode.

    Args:
        recording: the episode.
        twins: function that returns the twin of an episode, whose joint ranges replace a missing calibration.

    Returns:
        A dictionary with the names of the features, their values, the first frame of each clip, the frame rate, and
            whether positions are in SI units.

    Raises:
        LogError: If the episode is shorter than a clip, or has invalid values.
    """
    motion = _compute_movement(recording, twins)
    nframe = round(CLIP_S * motion.rate_hz)
    if len(motion) < nframe or nframe < MIN_FRAMES:
        raise LogError(f"It lasts {len(motion) / motion.rate_hz:.1f} s; a clip needs {CLIP_S:g} s.")
    count = min(_MOST, len(motion) // nframe)
    first = np.linspace(0, len(motion) - nframe, count).round().astype(np.int64)
    cut = first[:, None] + np.arange(nframe)
    position = motion.position[cut]
    clips = ClipArrays(
        position=position,
        action=position if motion.command is None else motion.command[cut],
        clusters=np.zeros(count, dtype=np.int64),
        rate_hz=motion.rate_hz,
        channels=motion.joints,
        units=("rad" if motion.si else "u",) * len(motion.joints),
        command="none" if motion.command is None else "position",
    )
    features, rows = clip_features(clips)
    repeats = (np.diff(position, axis=1) == 0.0).mean(axis=1)
    features += tuple(_make_repeat_feature(joint) for joint in motion.joints)
    image_features, image_rows = compute_image_features(recording, motion.frames[first + nframe // 2].tolist())
    return {
        "features": features + image_features,
        "rows": np.concatenate([rows, repeats, image_rows], axis=1).astype(np.float32),
        "first": motion.frames[first],
        "rate_hz": motion.rate_hz,
        "si": motion.si,
    }


def group_comparable(
    recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
) -> list[tuple[list[int], ClipFeatures | str]]:
    """Group readable episodes by robot type, and collect the clips (sections of 2 s) of each group.

    Tasks are not separated, because similar real data may come from any task.

    Args:
        recordings: all episodes.
        measured: for each episode, one measurement with the result of `compute_clip_facts` in its ``facts``.

    Returns:
        For each group, the indices of its episodes and its clips, or the reason why the episodes cannot be compared.
    """
    groups: dict[str, list[int]] = {}
    for place, (recording, found) in enumerate(zip(recordings, measured, strict=True)):
        if "rows" in found[0].facts:
            groups.setdefault(recording.robot_type, []).append(place)
    return [
        (places, _stack_features([measured[place][0].facts for place in places], places)) for places in groups.values()
    ]


def describe_feature(feature: ClipFeature) -> str:
    """Return the channel and the meaning of a feature as text for the user."""
    return f"{feature.channel}: {feature.meaning}"


def _compute_movement(recording: RecordedEpisode, twins: EpisodeTwins | None) -> Movement:
    """Return the joint movement of an episode, in SI units if the log or its twin gives the conversion."""
    episode = recording.episode
    if episode.units.known or twins is None:
        return Movement.of(episode)
    try:
        units = infer_units(episode, twins(recording))
    except InputError:
        units = None
    return Movement.of(episode, units)


def _make_repeat_feature(joint: str) -> ClipFeature:
    meaning = "share of readings equal to the one before"
    return ClipFeature(channel=joint, family="noise", kind="repeated", unit="1", meaning=meaning)


def _stack_features(facts: Sequence[Mapping[str, Any]], places: Sequence[int]) -> ClipFeatures | str:
    if len({bool(fact["si"]) for fact in facts}) > 1:
        return (
            "some positions are in rad and others in units of unknown size; give the calibration, or a twin with "
            "joint ranges"
        )
    rates = np.array([fact["rate_hz"] for fact in facts])
    if rates.max() > 1.02 * rates.min():
        return f"rates differ ({rates.min():.3g} to {rates.max():.3g} Hz), which changes noise and jerk; resample one"
    common = [f for f in facts[0]["features"] if all(f in fact["features"] for fact in facts[1:])]
    columns = [[list(fact["features"]).index(feature) for feature in common] for fact in facts]
    if not common:
        return "the episodes have no joint or camera in common"
    return ClipFeatures(
        features=tuple(common),
        rows=np.concatenate([fact["rows"][:, column] for fact, column in zip(facts, columns, strict=True)]).astype(
            np.float64
        ),
        episode=np.repeat(np.array(places, dtype=np.int64), [len(fact["rows"]) for fact in facts]),
        first=np.concatenate([fact["first"] for fact in facts]).astype(np.int64),
    )
