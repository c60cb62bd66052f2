"""Clips of joint motion as numbers: documented features, waypoints, random convolutions.

Every number is of one clip alone; see `encoders.clips`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.files import sha256_json
from twinloop.core.seeds import generator
from twinloop.encoders.clips import ClipBatch
from twinloop.encoders.trajectory import clip_features

Array = NDArray[np.float64]
Needs = Literal["motion", "pictures"]
_SECTIONS = 8  # waypoints of a clip: four a second in clips of 2 s, above what an arm's servos pass (our choice)
# A joint that moves less is held: a degree is the play of a hobby servo's gears, 1 of ±100 likewise (our choice).
_RESOLUTION = {"rad": 0.02, "m": 0.002, "u": 1.0}
_KERNELS = 256  # random kernels, two numbers each (our choice: 10,000 in the paper, for classifiers)
_LENGTHS = (7, 9, 11)  # taps of a kernel (Dempster et al., section 3.1)


class TrajectoryEncoder:
    """The features of `encoders.trajectory` that a clip has by itself: levels, speeds, jerk, bands, tracking."""

    name = "trajectory"
    needs: Needs = "motion"
    hash = sha256_json({"kind": "trajectory", "version": 1})

    def encode(self, clips: ClipBatch) -> Array:
        """See `ClipEncoder`."""
        return clip_features(clips.motion)[1]


class WaypointEncoder:
    """Where the joints are along the clip: mean positions in 8 equal sections, and the steps from one to the next.

    Noise and quantization hardly move it, so real and simulated clips of the same motion lie close together.
    """

    name = "waypoints"
    needs: Needs = "motion"
    hash = sha256_json({"kind": "waypoints", "version": 2, "sections": _SECTIONS})

    def encode(self, clips: ClipBatch) -> Array:
        """See `ClipEncoder`: ``(nclip, 9 n)`` for ``n`` channels; the last ``n`` are root mean squares of steps."""
        parts = np.array_split(clips.motion.position, _SECTIONS, axis=1)
        means = np.stack([part.mean(axis=1) for part in parts], axis=1)
        steps = np.sqrt(np.mean(np.diff(means, axis=1) ** 2, axis=1))
        return np.concatenate([means.reshape(len(means), -1), steps], axis=1)

    def resolution(self, units: Sequence[str]) -> Array:
        """What is no motion yet, a number per column: `fit_whitening` does not blow it up."""
        return np.tile([_RESOLUTION[unit] for unit in units], _SECTIONS + 1)


@dataclass(frozen=True)
class ConvolutionEncoder:
    """Random convolutions: of each kernel the largest value over time and the share of time above zero.

    After Dempster, Petitjean & Webb, "ROCKET", Data Mining and Knowledge Discovery 34 (2020): lengths 7, 9 or 11,
    normal weights without their mean, biases uniform in (−1, 1), dilations log-uniform, padding by chance; each kernel
    sees a random subset of the channels. Clips are not normalized, because where an arm is matters here.
    """

    seed: int = 0

    name = "convolutions"

    @property
    def needs(self) -> Needs:
        """Joint positions."""
        return "motion"

    @property
    def hash(self) -> str:
        """Of number, kind and seed of the kernels."""
        return sha256_json({"kind": "convolutions", "version": 1, "kernels": _KERNELS, "seed": self.seed})

    def encode(self, clips: ClipBatch) -> Array:
        """See `ClipEncoder`: ``(nclip, 512)``."""
        series = clips.motion.position
        columns = [self._kernel(series, number) for number in range(_KERNELS)]
        return np.concatenate(columns, axis=1)

    def _kernel(self, series: Array, number: int) -> Array:
        """Largest value and share above zero of one kernel, ``(nclip, 2)``."""
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
