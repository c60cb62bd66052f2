"""Choose held-out episodes, and measure a policy's action error on them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import ACTION
from twinloop.core.errors import InputError
from twinloop.stats import bootstrap_mean
from twinloop.train.data import Ints, TrainingFrames

if TYPE_CHECKING:
    from twinloop.policies.policy import Policy
    from twinloop.train.samples import SampleBatches

_FEW = 5  # episodes that a source needs for one of them to be held out
_MOST_FRAMES = 2000  # scored frames per source: neighbouring frames add little information
_AT_ONCE = 256
_RESAMPLES, _LEVEL = 2000, 0.95  # bootstrap resamples and confidence level of intervals
_PAIR = 2


def split(data: TrainingFrames, holdout: float, seed: int) -> tuple[Ints, Ints]:
    """Return the indices of the training episodes and of the held-out episodes.

    Of the n episodes of a source, max(round(``holdout`` · n), min(2, ⌊n / 5⌋)) are held out; none if ``holdout`` is 0.
    Two episodes are the minimum for an interval. The choice depends only on the seed and the episode ids, so an episode
    that two sources contain is in the same set for both.

    Raises:
        InputError: If a source has no episode left for training.
    """
    names = [episode.episode_id for episode in data.episodes]
    rank = np.array([int.from_bytes(hashlib.blake2b(f"{seed}/{n}".encode(), digest_size=6).digest()) for n in names])
    held = set[str]()
    for number in range(len(data.sources)):
        mine = np.flatnonzero(data.source_of == number)
        count = 0 if holdout == 0 else max(round(holdout * len(mine)), min(_PAIR, len(mine) // _FEW))
        held.update(names[place] for place in mine[np.argsort(rank[mine], kind="stable")][:count])
    out = np.array([name in held for name in names])
    for number, source in enumerate(data.sources):
        if out[data.source_of == number].all():
            raise InputError(
                f"Holding out {holdout:.0%} leaves no episode of {source.name} to train on. Lower --holdout, or give "
                "more episodes."
            )
    return np.flatnonzero(~out), np.flatnonzero(out)


@dataclass(frozen=True, kw_only=True)
class SourceError:
    """Action error of a policy on one source's held-out episodes.

    Attributes:
        source: name of the source.
        real: whether the source is real.
        joints: names of the k joints.
        units: unit of each joint.
        errors: mean absolute error per episode and joint, ``(episodes, k)``, in the dataset's units. Only the first
            ``n_action_steps`` commands of each predicted chunk count, because a rollout executes only these.
        frames: number of evaluated frames per episode.
        scaled: mean error after each joint was divided by the standard deviation of its commands, so that joints with
            different units can be combined.
    """

    source: str
    real: bool
    joints: tuple[str, ...]
    units: tuple[str, ...]
    errors: NDArray[np.float64]
    frames: NDArray[np.int64]
    scaled: float

    def means(self) -> dict[str, float]:
        """Return the mean error over the joints of each unit, by unit, such as ``{"deg": 1.2}``."""
        return {unit: float(np.average(values, weights=self.frames)) for unit, values in self._by_unit().items()}

    def by_unit(self) -> dict[str, dict[str, Any]]:
        """Return the mean action error over the joints of each unit, by unit, with a bootstrap interval over episodes.

        Each entry has ``estimate`` (mean absolute error in the unit) and ``joints`` (number of joints), and from two
        episodes on also ``low``, ``high``, ``level`` and ``method`` of the interval.
        """
        found = {}
        for unit, values in self._by_unit().items():
            entry: dict[str, Any] = {"estimate": self.means()[unit], "joints": self.units.count(unit)}
            if len(values) >= _PAIR:
                interval = bootstrap_mean(values, weights=self.frames, level=_LEVEL, draws=_RESAMPLES)
                entry |= {"low": float(interval.low), "high": float(interval.high), "level": _LEVEL}
                entry["method"] = interval.method
            found[unit] = entry
        return found

    def _by_unit(self) -> dict[str, NDArray[np.float64]]:
        """Return the mean error of each episode over the joints of a unit, ``(episodes,)``, by unit."""
        columns = np.array(self.units)
        return {unit: self.errors[:, columns == unit].mean(axis=1) for unit in dict.fromkeys(self.units)}

    def to_json(self) -> dict[str, Any]:
        """Return the errors as a JSON-compatible dictionary."""
        joints = np.average(self.errors, axis=0, weights=self.frames).tolist()
        return {
            "source": self.source,
            "real": self.real,
            "episodes": len(self.errors),
            "frames": int(self.frames.sum()),
            "scaled": self.scaled,
            "by_unit": self.by_unit(),
            "by_joint": dict(zip(self.joints, joints, strict=True)),
        }


class Holdout:
    """Held-out episodes of a run, and the evaluation of a policy on them.

    Args:
        data: all frames.
        episodes: indices of the held-out episodes.
        scale: standard deviation of each joint's commands ``(k,)`` in the training data.
    """

    def __init__(self, data: TrainingFrames, episodes: Ints, scale: NDArray[np.float64]) -> None:
        self._data, self._scale = data, np.where(scale > 0, scale, 1.0)
        self._frames = {
            number: _thin_frames(data.frames_of(episodes[data.source_of[episodes] == number]))
            for number in range(len(data.sources))
            if (data.source_of[episodes] == number).any()
        }

    @property
    def deciding_sources(self) -> tuple[str, ...]:
        """Names of the sources whose error decides early stopping and the saved weights.

        They are the real sources, or all sources if none is real.
        """
        sources = [self._data.sources[number] for number in self._frames]
        real = [source.name for source in sources if source.real]
        return tuple(real or [source.name for source in sources])

    def compute_errors(self, policy: Policy, samples: SampleBatches) -> list[SourceError]:
        """Return the mean absolute error of the predicted commands, for each source that has held-out episodes.

        Errors are in the dataset's units (`SourceError.units`), not normalized.
        """
        return [self._compute_source_error(policy, samples, number, frames) for number, frames in self._frames.items()]

    def selection_metric(self, errors: Sequence[SourceError]) -> float:
        """Return the metric to minimize: the mean of `SourceError.scaled` over the sources in `deciding_sources`.

        ``scaled`` is the mean error in units of each command's standard deviation.
        """
        return float(np.mean([error.scaled for error in errors if error.source in self.deciding_sources]))

    def _compute_source_error(self, policy: Policy, samples: SampleBatches, number: int, frames: Ints) -> SourceError:
        sums, counts = [], []
        for start in range(0, len(frames), _AT_ONCE):
            total, steps = _absolute_differences(policy, samples, frames[start : start + _AT_ONCE])
            sums.append(total)
            counts.append(steps)
        total, steps, episode = np.concatenate(sums), np.concatenate(counts), self._data.episode_of(frames)
        found = [
            (total[episode == one].sum(axis=0) / steps[episode == one].sum(), int(np.sum(episode == one)))
            for one in np.unique(episode)
        ]
        errors, kept = np.array([one for one, _ in found]), np.array([count for _, count in found])
        joints, source = self._data.contract.action.joints, self._data.sources[number]
        return SourceError(
            source=source.name,
            real=source.real,
            joints=tuple(unit.joint for unit in joints),
            units=tuple(unit.unit for unit in joints),
            errors=errors,
            frames=kept,
            scaled=float(np.mean(np.average(errors, axis=0, weights=kept) / self._scale)),
        )


def _absolute_differences(
    policy: Policy, samples: SampleBatches, frames: Ints
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return each frame's absolute errors ``(n, k)``, summed over the executed steps, and the number of these steps."""
    import torch  # pyright: ignore[reportMissingImports]

    from twinloop.policies.policy import IS_PAD

    batch, steps = samples.batch(frames), policy.n_action_steps
    training = policy.training
    policy.eval()
    with torch.inference_mode():
        chunk, _ = policy(batch)
    policy.train(training)
    kept = ~batch[IS_PAD][:, :steps]
    difference = (chunk[:, :steps] - batch[ACTION][:, :steps]).abs() * kept[..., None]
    return difference.sum(dim=1).double().cpu().numpy(), kept.sum(dim=1).cpu().numpy()


def _thin_frames(frames: Ints) -> Ints:
    return frames[:: -(-len(frames) // _MOST_FRAMES)]
