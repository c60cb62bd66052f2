"""Encode clips (short sections) of episodes as feature vectors of their motion or of their images.

All encoders have the same protocol, `ClipEncoder`. The features of a clip do not depend on the other clips, so that
features computed at different times can be compared if the hashes of the encoders are equal.
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
from twinloop.dataset.media.images import Images
from twinloop.encoders.images import ImageEncoder, open_encoder
from twinloop.encoders.trajectory import ClipArrays, clip_features

Array = NDArray[np.float64]
CLIP_ENCODER_NAMES = (
    "trajectory",
    "waypoints",
    "convolutions",
    "classical",
    "onnx:FILE",
    "torch:FILE",
    "policy:FOLDER",
    "images:my_file.py:Encoder",
    "my_file.py:ClipEncoder",
)
_IMAGES = ("classical", "onnx", "torch", "policy")
FRAMES = 4  # images per clip, evenly spaced: two per second in clips of 2 s (our choice)


@dataclass(frozen=True, kw_only=True)
class ClipBatch:
    """Clips (short sections) of one episode.

    Attributes:
        motion: Joint positions and commands of the clips, in SI units or in the units of the log.
        first: First frame of each clip in the recorded episode, shape ``(nclip,)``.
        last: Last frame of each clip, included, shape ``(nclip,)``.
        images: Function from n frame numbers of the recorded episode to its camera images, shape ``(n, h, w, 3)``; None
            if the episode has no camera.
    """

    motion: ClipArrays
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    images: Callable[[Sequence[int]], Images] | None = None

    def __len__(self) -> int:
        return len(self.first)


class ClipEncoder(Protocol):
    """Protocol for classes that encode clips of episodes as feature vectors."""

    @property
    def name(self) -> str:
        """Name of the encoder in messages and reports."""
        ...

    @property
    def hash(self) -> str:
        """Hash of everything that determines the features; only features with equal hashes can be compared."""
        ...

    @property
    def needs(self) -> Literal["motion", "images"]:
        """Required input: ``motion`` (joint positions and commands) or ``images`` (images)."""
        ...

    def encode(self, clips: ClipBatch, /) -> Array:
        """Return the feature vectors of clips, shape ``(nclip, d)``.

        The number of features d is the same for all clips with the same channels and length.
        """
        ...


@dataclass(frozen=True)
class ImageClipEncoder:
    """Clip encoder that applies an image encoder to 4 evenly spaced images of each clip.

    The features of a clip are the mean and the standard deviation of the image features over these images.

    Attributes:
        encoder: Encoder of a single image.
    """

    encoder: ImageEncoder

    @property
    def name(self) -> str:
        """Name of the image encoder with the prefix ``images:``."""
        return f"images:{self.encoder.name}"

    @property
    def needs(self) -> Literal["motion", "images"]:
        """Required input: images."""
        return "images"

    @property
    def hash(self) -> str:
        """Hash of the image encoder, the number of images per clip, and the statistics that summarize them."""
        return sha256_json({"pictures": self.encoder.hash, "frames": FRAMES, "put together": "mean and sd"})

    def encode(self, clips: ClipBatch) -> Array:
        """Return means, then standard deviations, of the image features of each clip, shape ``(nclip, 2 · dimension)``.

        ``dimension`` is the number of features of the image encoder.

        Raises:
            InputError: If the clips have no images.
        """
        if clips.images is None:
            raise InputError(
                f"The encoder {self.name} needs images, but an episode has none. Use --embedding trajectory."
            )
        chosen = [
            np.linspace(a, b, FRAMES).round().astype(int).tolist() for a, b in zip(clips.first, clips.last, strict=True)
        ]
        frames = sorted({frame for row in chosen for frame in row})
        place = {frame: i for i, frame in enumerate(frames)}
        numbers = self.encoder.encode(clips.images(frames))
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
    listed_names=lambda: CLIP_ENCODER_NAMES,
    where="--embedding",
)


def open_clip_encoder(reference: str) -> ClipEncoder:
    """Open a clip encoder by its name or file.

    Args:
        reference: For motion: ``trajectory`` (named features), ``waypoints`` (joint positions along the clip) or
            ``convolutions`` (random convolution kernels). For images: ``classical``, ``onnx:FILE``, ``torch:FILE``,
            ``policy:FOLDER`` or ``images:FILE.py:CLASS`` (see `open_encoder`). ``FILE.py:CLASS`` is a user's own
            `ClipEncoder` class, whose constructor needs no arguments.

    Raises:
        UnknownNameError: If the name is unknown.
        InputError: If the class lacks an attribute, or a file is missing.
        MissingDependencyError: If the package that runs the encoder is not installed.
    """
    kind, _, rest = reference.partition(":")
    if kind in _IMAGES and (rest or kind == "classical"):
        return ImageClipEncoder(open_encoder(reference))
    if kind in ("images", "pictures") and rest:
        return ImageClipEncoder(open_encoder(rest))
    made = CLIP_ENCODERS[reference]()
    return made if reference in CLIP_ENCODERS.builtin else _check_encoder(made, reference)


@dataclass(frozen=True)
class _UserEncoder:
    """Wrapper of a user's own clip encoder that checks the computed features.

    Attributes:
        encoder: The user's encoder.
        reference: Reference to its class, for messages.
    """

    encoder: Any
    reference: str

    @property
    def name(self) -> str:
        return str(self.encoder.name)

    @property
    def hash(self) -> str:
        return str(self.encoder.hash)

    @property
    def needs(self) -> Literal["motion", "images"]:
        return "images" if self.encoder.needs == "pictures" else self.encoder.needs  # the former name

    def encode(self, clips: ClipBatch) -> Array:
        try:
            rows = np.asarray(self.encoder.encode(clips), dtype=np.float64)
        except Exception as error:  # any error of a user's class is a fault of that class
            raise InputError(f"{self.reference} fails on {len(clips)} clips: {describe_error(error)}.") from error
        if rows.ndim != 2 or len(rows) != len(clips) or not np.isfinite(rows).all():
            raise InputError(
                f"{self.reference} gives {rows.shape} for {len(clips)} clips; expected ({len(clips)}, d), all finite."
            )
        return rows


def _check_encoder(encoder: Any, reference: str) -> ClipEncoder:
    lacking = [name for name in ("name", "hash", "needs", "encode") if not hasattr(encoder, name)]
    if lacking or encoder.needs not in ("motion", "images", "pictures"):
        what = f"lacks {', '.join(lacking)}" if lacking else f"has needs = {encoder.needs!r}"
        raise InputError(
            f"{reference} {what}. An encoder of clips has name, hash (a text that changes if its features do), needs "
            '("motion" or "images") and encode(clips: ClipBatch) -> (nclip, d). An encoder of images is named '
            f"images:{reference}."
        )
    return _UserEncoder(encoder, reference)


def space_hash(encoder: ClipEncoder, settings: dict[str, Any]) -> str:
    """Return a hash of encoder and clip settings; only features with equal hashes can be compared.

    Args:
        encoder: Clip encoder.
        settings: Settings of the clips, such as length and frame rate.
    """
    return sha256_json({"encoder": encoder.hash, "clips": settings})


Needs = Literal["motion", "images"]
_SECTIONS = 8  # waypoints per clip: 4 Hz in clips of 2 s, above the bandwidth of an arm's servos (our choice)
# A joint that moves less counts as still: the gears of a hobby servo have a play of 1° or 1 of ±100 (our choice).
_NOISE_LEVELS = {"rad": 0.02, "m": 0.002, "u": 1.0}
_KERNELS = 256  # random kernels with two features each (our choice; the paper uses 10,000, for classifiers)
_LENGTHS = (7, 9, 11)  # taps of a kernel (Dempster et al., section 3.1)


class TrajectoryEncoder:
    """Clip encoder with interpretable motion features: positions, speeds, jerk, frequency bands and tracking errors.

    `clip_features` defines the features.
    """

    name = "trajectory"
    needs: Needs = "motion"
    hash = sha256_json({"kind": "trajectory", "version": 1})

    def encode(self, clips: ClipBatch) -> Array:
        """Return the motion features of the clips, shape ``(nclip, nfeature)``."""
        return clip_features(clips.motion)[1]


class WaypointEncoder:
    """Clip encoder with the mean joint positions in 8 equal sections of a clip, and the changes between the sections.

    Noise and quantization affect these features little, so that real and simulated clips of the same motion have
    similar features.
    """

    name = "waypoints"
    needs: Needs = "motion"
    hash = sha256_json({"kind": "waypoints", "version": 2, "sections": _SECTIONS})

    def encode(self, clips: ClipBatch) -> Array:
        """Return the features, shape ``(nclip, 9 · n)`` for n channels (joints).

        The first ``8 · n`` columns are mean positions per section. The last ``n`` columns are the root mean square of
        the changes from one section to the next.
        """
        parts = np.array_split(clips.motion.position, _SECTIONS, axis=1)
        means = np.stack([part.mean(axis=1) for part in parts], axis=1)
        steps = np.sqrt(np.mean(np.diff(means, axis=1) ** 2, axis=1))
        return np.concatenate([means.reshape(len(means), -1), steps], axis=1)

    def get_noise_levels(self, units: Sequence[str]) -> Array:
        """Return the standard deviation below which a feature counts as noise, shape ``(9 · n,)``.

        Whitening (division by the standard deviation, see `curate.projection.fit_whitening`) must not amplify such a
        feature.

        Args:
            units: Unit of each of the n channels: ``rad``, ``m``, or ``u`` for the log's own unit.
        """
        return np.tile([_NOISE_LEVELS[unit] for unit in units], _SECTIONS + 1)


@dataclass(frozen=True)
class ConvolutionEncoder:
    """Clip encoder with 256 random convolution kernels over time (ROCKET).

    Each kernel gives two features: its largest value over time, and the share of time in which it is above zero. After
    Dempster, Petitjean & Webb, "ROCKET", Data Mining and Knowledge Discovery 34 (2020): lengths 7, 9 or 11, normal
    weights minus their mean, biases uniform in (−1, 1), log-uniform dilations, padding for half of the kernels. Each
    kernel uses a random subset of the channels. Clips are not normalized, because the position of the arm is relevant.

    Attributes:
        seed: Seed of the random kernels.
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
        """Return the features of the clips' joint positions, shape ``(nclip, 512)``."""
        series = clips.motion.position
        columns = [self._apply_kernel(series, number) for number in range(_KERNELS)]
        return np.concatenate(columns, axis=1)

    def _apply_kernel(self, series: Array, number: int) -> Array:
        """Return the two features of one kernel, shape ``(nclip, 2)``: largest value and share of time above zero.

        Args:
            series: Joint positions, shape ``(nclip, nframe, nchannel)``.
            number: Number of the kernel, which seeds its random weights.
        """
        random = generator(self.seed, "encoders/convolutions", number)
        _, nframe, nchannel = series.shape
        length = int(random.choice([n for n in _LENGTHS if n <= nframe] or [nframe]))
        weights = random.normal(size=(length, nchannel))
        weights -= weights.mean(axis=0)
        channels = random.permutation(nchannel) < 2 ** random.uniform(0.0, np.log2(nchannel + 1))
        bias = random.uniform(-1.0, 1.0)
        dilation = int(2 ** random.uniform(0.0, np.log2(max(1.0, (nframe - 1) / max(1, length - 1)))))
        extent = (length - 1) * dilation
        if random.random() < 0.5:
            series = np.pad(series, ((0, 0), (extent // 2, extent // 2), (0, 0)), mode="edge")
        span = series.shape[1] - extent
        response = (
            sum(series[:, t * dilation : t * dilation + span] @ (weights[t] * channels) for t in range(length)) + bias
        )
        response = np.asarray(response)
        return np.stack([response.max(axis=1), (response > 0).mean(axis=1)], axis=1)
