"""What turns clips of episodes into numbers, behind one protocol: motion, pictures over time, a user's own.

An encoder sees one clip at a time as far as its numbers go: they do not depend on which other clips there are, so that
rows made today can be compared with rows made tomorrow under the same hash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.extension import raised
from twinloop.core.files import sha256_json
from twinloop.core.registry import Registry
from twinloop.dataset.media.pictures import Pictures
from twinloop.encoders.pictures import Encoder, open_encoder
from twinloop.encoders.trajectory import Clips

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
FRAMES = 4  # pictures of a clip that are looked at, evenly apart: two a second in clips of 2 s (our choice)


@dataclass(frozen=True, kw_only=True)
class ClipBatch:
    """Clips of one episode: ``motion`` in SI or the log's unit, and where its frames lie in the episode.

    ``first`` and ``last`` ``(nclip,)`` are frames of the episode as it was recorded. ``pictures`` reads frames of the
    episode's camera ``(n, h, w, 3)``; None where there is no camera.
    """

    motion: Clips
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    pictures: Callable[[Sequence[int]], Pictures] | None = None

    def __len__(self) -> int:
        return len(self.first)


class ClipEncoder(Protocol):
    """Clips to numbers. ``needs`` says what must be there: joint positions and commands, or pictures."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    @property
    def hash(self) -> str:
        """A text that changes with the numbers."""
        ...

    @property
    def needs(self) -> Literal["motion", "pictures"]:
        """What a clip must have."""
        ...

    def encode(self, clips: ClipBatch, /) -> Array:
        """Numbers ``(nclip, d)``, the same ``d`` for clips of the same channels and length."""
        ...


@dataclass(frozen=True)
class PictureClips:
    """Any encoder of pictures, of the frames of a clip: their mean, and how far they lie apart.

    ``FRAMES`` pictures evenly apart; mean and standard deviation over them, in a row.
    """

    encoder: Encoder

    @property
    def name(self) -> str:
        """The encoder's."""
        return f"pictures:{self.encoder.name}"

    @property
    def needs(self) -> Literal["motion", "pictures"]:
        """Pictures."""
        return "pictures"

    @property
    def hash(self) -> str:
        """Of the encoder and of how frames are put together."""
        return sha256_json({"pictures": self.encoder.hash, "frames": FRAMES, "put together": "mean and sd"})

    def encode(self, clips: ClipBatch) -> Array:
        """See `ClipEncoder`.

        Raises:
            InputError: the clips have no pictures.
        """
        if clips.pictures is None:
            raise InputError(
                f"The encoder {self.name} needs pictures, and an episode has none. Take --embedding trajectory."
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
        "trajectory": "twinloop.encoders.motion:TrajectoryEncoder",
        "waypoints": "twinloop.encoders.motion:WaypointEncoder",
        "convolutions": "twinloop.encoders.motion:ConvolutionEncoder",
    },
    group="twinloop.clip_encoders",
    files=True,
    shown=lambda: CLIP_KINDS,
    where="--embedding",
)


def open_clip_encoder(reference: str) -> ClipEncoder:
    """An encoder of clips by what the user writes.

    Args:
        reference: ``trajectory`` (documented features), ``waypoints`` (where the joints are along the clip),
            ``convolutions`` (random kernels); ``classical``, ``onnx:FILE``, ``torch:FILE``, ``policy:FOLDER`` or
            ``pictures:FILE.py:CLASS`` of pictures (`open_encoder`); ``FILE.py:CLASS``, a class without arguments that
            is a `ClipEncoder`.

    Raises:
        UnknownNameError: none of these.
        InputError: the class lacks a part; the file is missing.
        MissingDependencyError: what runs it is not installed.
    """
    kind, _, rest = reference.partition(":")
    if kind in _PICTURES and (rest or kind == "classical"):
        return PictureClips(open_encoder(reference))
    if kind == "pictures" and rest:
        return PictureClips(open_encoder(rest))
    made = CLIP_ENCODERS[reference]()
    return made if reference in CLIP_ENCODERS.builtin else _checked(made, reference)


@dataclass(frozen=True)
class _Own:
    """A user's class, whose numbers are looked at before they are believed."""

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
        except Exception as error:  # whatever a user's class raises, it is the class that is wrong
            raise InputError(f"{self.reference} fails on {len(clips)} clips: {raised(error)}.") from error
        if rows.ndim != 2 or len(rows) != len(clips) or not np.isfinite(rows).all():
            raise InputError(
                f"{self.reference} gives {rows.shape} for {len(clips)} clips; expected ({len(clips)}, d), all finite."
            )
        return rows


def _checked(made: Any, reference: str) -> ClipEncoder:
    lacking = [name for name in ("name", "hash", "needs", "encode") if not hasattr(made, name)]
    if lacking or made.needs not in ("motion", "pictures"):
        what = f"lacks {', '.join(lacking)}" if lacking else f"says that it needs {made.needs!r}"
        raise InputError(
            f"{reference} {what}. An encoder of clips has name, hash (a text that changes with its numbers), needs "
            '("motion" or "pictures") and encode(clips: ClipBatch) -> (nclip, d). One of pictures is named '
            f"pictures:{reference}."
        )
    return _Own(made, reference)


def space_hash(encoder: ClipEncoder, settings: dict[str, Any]) -> str:
    """Names the space that rows lie in: the encoder and what its clips are (length, rate, channels, units, camera)."""
    return sha256_json({"encoder": encoder.hash, "clips": settings})
