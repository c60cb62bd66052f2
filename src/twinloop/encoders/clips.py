"""Encode clips of episodes as feature vectors, behind one protocol: motion, images, or both.

The features of a clip do not depend on the other clips, so that rows computed at different times are comparable under
the same hash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.extension import describe_error
from twinloop.core.files import sha256_json
from twinloop.core.registry import Registry
from twinloop.core.seeds import generator
from twinloop.dataset.media.images import Pictures
from twinloop.encoders.images import ImageEncoder, open_encoder
from twinloop.encoders.trajectory import ClipArrays, clip_features

Array = NDArray[np.float64]
CLIP_KINDS = (
    "trajectory",
    "waypoints",
    "convolutions",
    "classical",
    "onnx:FILE",
    "torch:FILE",
    "policy:FOLDER",
    "pictures:my_file.py:Encoder",
    "my_file.py:ClipEncoder",
)
_PICTURES = ("classical", "onnx", "torch", "policy")
FRAMES = 4  # images per clip, evenly spaced: two per second in clips of 2 s (our choice)


@dataclass(frozen=True, kw_only=True)
class ClipBatch:
    """Clips of one episode: ``motion`` in SI or the log's unit, and their frames in the episode.

    ``first`` and ``last`` ``(nclip,)`` are frame numbers of the recorded episode. ``pictures`` reads the images
    ``(n, h, w, 3)`` of given frames from the episode's camera; None without a camera.
    """

    motion: ClipArrays
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    pictures: Callable[[Sequence[int]], Pictures] | None = None

    def __len__(self) -> int:
        return len(self.first)


class ClipEncoder(Protocol):
    """Protocol of encoders from clips to feature vectors."""

    @property
    def name(self) -> str:
        """Name in messages and reports."""
        ...

    @property
    def hash(self) -> str:
        """Hash that changes if the features change."""
        ...

    @property
    def needs(self) -> Literal["motion", "pictures"]:
        """Required input: joint positions and commands, or images."""
        ...

    def encode(self, clips: ClipBatch, /) -> Array:
        """Return features ``(nclip, d)``, the same ``d`` for clips with the same channels and length."""
        ...


@dataclass(frozen=True)
class ImageClipEncoder:
    """A clip encoder from any image encoder: mean and standard deviation over the frames of a clip.

    It uses ``FRAMES`` evenly spaced images; the row is the mean followed by the standard deviation.
    """

    encoder: ImageEncoder

    @property
    def name(self) -> str:
        """Name of the image encoder, after ``pictures:``."""
        return f"pictures:{self.encoder.name}"

    @property
    def needs(self) -> Literal["motion", "pictures"]:
        """Required input: images."""
        return "pictures"

    @property
    def hash(self) -> str:
        """Hash of the image encoder and of the summary over frames."""
        return sha256_json({"pictures": self.encoder.hash, "frames": FRAMES, "put together": "mean and sd"})

    def encode(self, clips: ClipBatch) -> Array:
        """Return means, then standard deviations, of the image features over each clip, ``(nclip, 2 · dimension)``.

        Raises:
            InputError: the clips have no images.
        """
        if clips.pictures is None:
            raise InputError(
                f"The encoder {self.name} needs images, but an episode has none. Use --embedding trajectory."
            )
        chosen = [
            np.linspace(a, b, FRAMES).round().astype(int).tolist() for a, b in zip(clips.first, clips.last, strict=True)
        ]
        frames = sorted({frame for row in chosen for frame in row})
        place = {frame: i for i, frame in enumerate(frames)}
        numbers = self.encoder.encode(clips.pictures(frames))
        rows = np.stack([numbers[[place[frame] for frame in row]] for row in chosen])
        return np.concatenate([rows.mean(axis=1), rows.std(axis=1)], axis=1)


CLIP_ENCODERS: Registry[Callable[[], ClipEncoder]] = Registry(
    "clip encoder",
    {
        "trajectory": "twinloop.encoders.clips:TrajectoryEncoder",
        "waypoints": "twinloop.encoders.clips:WaypointEncoder",
        "convolutions": "twinloop.encoders.clips:ConvolutionEncoder",
    },
    group="twinloop.clip_encoders",
    files=True,
    shown=lambda: CLIP_KINDS,
    where="--embedding",
)


def open_clip_encoder(reference: str) -> ClipEncoder:
    """Open a clip encoder by its name or file.

    Args:
        reference: ``trajectory`` (documented features), ``waypoints`` (joint positions along the clip),
            ``convolutions`` (random kernels); ``classical``, ``onnx:FILE``, ``torch:FILE``, ``policy:FOLDER`` or
            ``pictures:FILE.py:CLASS`` for images (`open_encoder`); ``FILE.py:CLASS``, a `ClipEncoder` class without
            constructor arguments.

    Raises:
        UnknownNameError: the name is unknown.
        InputError: the class lacks an attribute; a file is missing.
        MissingDependencyError: the package that runs the encoder is not installed.
    """
    kind, _, rest = reference.partition(":")
    if kind in _PICTURES and (rest or kind == "classical"):
        return ImageClipEncoder(open_encoder(reference))
    if kind == "pictures" and rest:
        return ImageClipEncoder(open_encoder(rest))
    made = CLIP_ENCODERS[reference]()
    return made if reference in CLIP_ENCODERS.builtin else _check_encoder(made, reference)


@dataclass(frozen=True)
class _UserEncoder:
    """A user's clip encoder whose features are checked."""

    made: Any
    reference: str

    @property
    def name(self) -> str:
        return str(self.made.name)

    @property
    def hash(self) -> str:
        return str(self.made.hash)

    @property
    def needs(self) -> Literal["motion", "pictures"]:
        return self.made.needs

    def encode(self, clips: ClipBatch) -> Array:
        try:
            rows = np.asarray(self.made.encode(clips), dtype=np.float64)
        except Exception as error:  # any error of a user's class is a fault of that class
            raise InputError(f"{self.reference} fails on {len(clips)} clips: {describe_error(error)}.") from error
        if rows.ndim != 2 or len(rows) != len(clips) or not np.isfinite(rows).all():
            raise InputError(
                f"{self.reference} gives {rows.shape} for {len(clips)} clips; expected ({len(clips)}, d), all finite."
            )
        return rows


def _check_encoder(made: Any, reference: str) -> ClipEncoder:
    lacking = [name for name in ("name", "hash", "needs", "encode") if not hasattr(made, name)]
    if lacking or made.needs not in ("motion", "pictures"):
        what = f"lacks {', '.join(lacking)}" if lacking else f"has needs = {made.needs!r}"
        raise InputError(
            f"{reference} {what}. An encoder of clips has name, hash (a text that changes if its features do), needs "
            '("motion" or "pictures") and encode(clips: ClipBatch) -> (nclip, d). An encoder of images is named '
            f"pictures:{reference}."
        )
    return _UserEncoder(made, reference)


def space_hash(encoder: ClipEncoder, settings: dict[str, Any]) -> str:
    """Return a hash of the feature space: the encoder and the settings of its clips, such as length and rate."""
    return sha256_json({"encoder": encoder.hash, "clips": settings})


Needs = Literal["motion", "pictures"]
_SECTIONS = 8  # waypoints per clip: 4 Hz in clips of 2 s, above the bandwidth of an arm's servos (our choice)
# A joint that moves less counts as still: the gears of a hobby servo have a play of 1° or 1 of ±100 (our choice).
_RESOLUTION = {"rad": 0.02, "m": 0.002, "u": 1.0}
_KERNELS = 256  # random kernels with two features each (our choice; the paper uses 10,000, for classifiers)
_LENGTHS = (7, 9, 11)  # taps of a kernel (Dempster et al., section 3.1)


class TrajectoryEncoder:
    """Clip encoder with levels, speeds, jerk, frequency bands and tracking errors, see `clip_features`."""

    name = "trajectory"
    needs: Needs = "motion"
    hash = sha256_json({"kind": "trajectory", "version": 1})

    def encode(self, clips: ClipBatch) -> Array:
        """Return the features of the clips' motion, ``(nclip, nfeature)``."""
        return clip_features(clips.motion)[1]


class WaypointEncoder:
    """Clip encoder with mean joint positions in 8 equal sections of a clip, and the steps between sections.

    Noise and quantization change the features little, so that real and simulated clips of one motion have similar ones.
    """

    name = "waypoints"
    needs: Needs = "motion"
    hash = sha256_json({"kind": "waypoints", "version": 2, "sections": _SECTIONS})

    def encode(self, clips: ClipBatch) -> Array:
        """Return features ``(nclip, 9 n)`` of ``n`` channels; the last ``n`` are root mean squares of steps."""
        parts = np.array_split(clips.motion.position, _SECTIONS, axis=1)
        means = np.stack([part.mean(axis=1) for part in parts], axis=1)
        steps = np.sqrt(np.mean(np.diff(means, axis=1) ** 2, axis=1))
        return np.concatenate([means.reshape(len(means), -1), steps], axis=1)

    def resolution(self, units: Sequence[str]) -> Array:
        """Return the spread of each column ``(9 n,)`` that counts as noise, which `fit_whitening` does not scale up."""
        return np.tile([_RESOLUTION[unit] for unit in units], _SECTIONS + 1)


@dataclass(frozen=True)
class ConvolutionEncoder:
    """Clip encoder with random convolutions: per kernel the largest value over time and the share of time above zero.

    After Dempster, Petitjean & Webb, "ROCKET", Data Mining and Knowledge Discovery 34 (2020): lengths 7, 9 or 11,
    normal weights minus their mean, biases uniform in (−1, 1), log-uniform dilations, padding of half of the kernels;
    each kernel uses a random subset of the channels. Clips are not normalized, because the arm's position matters.
    """

    seed: int = 0

    name = "convolutions"

    @property
    def needs(self) -> Needs:
        """Required input: joint positions."""
        return "motion"

    @property
    def hash(self) -> str:
        """Hash of the number, kind and seed of the kernels."""
        return sha256_json({"kind": "convolutions", "version": 1, "kernels": _KERNELS, "seed": self.seed})

    def encode(self, clips: ClipBatch) -> Array:
        """Return features ``(nclip, 512)`` of the clips' joint positions."""
        series = clips.motion.position
        columns = [self._apply_kernel(series, number) for number in range(_KERNELS)]
        return np.concatenate(columns, axis=1)

    def _apply_kernel(self, series: Array, number: int) -> Array:
        """Return the largest value and the share above zero of one kernel, ``(nclip, 2)``."""
        chance = generator(self.seed, "encoders/convolutions", number)
        _, nframe, nchannel = series.shape
        length = int(chance.choice([n for n in _LENGTHS if n <= nframe] or [nframe]))
        weights = chance.normal(size=(length, nchannel))
        weights -= weights.mean(axis=0)
        seen = chance.permutation(nchannel) < 2 ** chance.uniform(0.0, np.log2(nchannel + 1))
        bias = chance.uniform(-1.0, 1.0)
        dilation = int(2 ** chance.uniform(0.0, np.log2(max(1.0, (nframe - 1) / max(1, length - 1)))))
        reach = (length - 1) * dilation
        if chance.random() < 0.5:
            series = np.pad(series, ((0, 0), (reach // 2, reach // 2), (0, 0)), mode="edge")
        span = series.shape[1] - reach
        found = sum(series[:, t * dilation : t * dilation + span] @ (weights[t] * seen) for t in range(length)) + bias
        found = np.asarray(found)
        return np.stack([found.max(axis=1), (found > 0).mean(axis=1)], axis=1)
