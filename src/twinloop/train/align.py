"""Align features of real and simulated samples by extra loss terms, and measure the alignment.

"Aligned yet discernible" features help (arXiv 2604.13645): the distributions move closer, but a real sample can still
be distinguished. A probe is a linear classifier of real and simulated features. If it is no better than guessing and
the held-out error on real data has grown, the features have collapsed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]

from twinloop.core.errors import InputError
from twinloop.core.extension import describe_error
from twinloop.core.registry import Registry
from twinloop.policies.policy import DOMAIN, Policy
from twinloop.stats.classifier import classifier_test
from twinloop.stats.distances import mmd
from twinloop.train.additions import SOURCE, Batch
from twinloop.train.config import AlignConfig
from twinloop.train.data import Ints, TrainingFrames
from twinloop.train.holdout import SourceError
from twinloop.train.preparation import TrainingSetup
from twinloop.train.samples import SampleBatches

_FEWEST = 2  # least real and simulated samples in a batch: one sample has no covariance
_WIDTHS = (
    0.25,
    0.5,
    1.0,
    2.0,
    4.0,
)  # kernel widths over the median distance: powers of two as in Long et al., ICML 2015


class Coral(nn.Module):
    """CORAL loss ‖C_real - C_sim‖² / (4 d²), where C are covariance matrices of features with d columns.

    Sun & Saenko, "Deep CORAL", ECCV 2016. ``size`` is d.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, features: Tensor, real: Tensor) -> Tensor:
        """Return the CORAL loss, a scalar: the squared distance of the covariances of real and simulated features.

        ``features`` has shape ``(n, d)``; ``real`` ``(n,)`` is true for real samples.
        """
        return (_covariance(features[real]) - _covariance(features[~real])).square().sum() / (4 * self.size**2)


class Mmd(nn.Module):
    """Unbiased squared maximum mean discrepancy (MMD²) of real and simulated features, with Gaussian kernels.

    It is Gretton et al., JMLR 13, 2012, Lemma 6, averaged over kernel widths from a quarter to four times the median
    distance of the batch's features. No gradient flows through this median. If the distributions are equal, the value
    scatters around zero and is negative about half of the time.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, features: Tensor, real: Tensor) -> Tensor:
        """Return the MMD² loss, a scalar: the squared distance of the distributions of real and simulated features.

        ``features`` has shape ``(n, d)``; ``real`` ``(n,)`` is true for real samples.
        """
        squares = _squared_distances(features)
        apart = ~torch.eye(len(features), dtype=torch.bool, device=features.device)
        middle = squares.detach()[apart].median().clamp(min=torch.finfo(features.dtype).tiny)
        kernel = torch.stack([torch.exp(-squares / (2 * width**2 * middle)) for width in _WIDTHS]).mean(dim=0)
        one, other = real.to(features), (~real).to(features)
        within = [side @ (kernel * apart) @ side / (side.sum() * (side.sum() - 1)) for side in (one, other)]
        return within[0] + within[1] - 2 * (one @ kernel @ other) / (one.sum() * other.sum())


class AlignmentTerm(nn.Module):
    """Loss term ``weight`` · min(1, s / ``warmup``) · method(features, mask), which grows during a warm-up.

    s is the number of calls so far. It is stored in the buffer ``step`` and saved in checkpoints.

    Args:
        method: torch module that computes a scalar from features ``(n, d)`` of n samples and the mask ``(n,)`` of the
            real samples. Its own parameters are trained with the policy.
        real: mask of the real sources, ``(S,)`` for S sources; the mask of the samples is computed from it.
        weight: weight of the term after the warm-up.
        warmup: steps of the warm-up.
    """

    real: Tensor
    step: Tensor

    def __init__(self, method: nn.Module, real: Tensor, *, weight: float, warmup: int) -> None:
        super().__init__()
        self.method, self.weight, self.warmup = method, weight, warmup
        self.register_buffer("real", real, persistent=False)
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self, policy: Policy, batch: Batch) -> Tensor:
        """Return the loss term that makes features of real and simulated samples similar, a scalar.

        It runs the policy a second time on the batch, as at inference.
        """
        features = policy(batch, domain=batch.get(DOMAIN))[1]
        self.step += 1
        share = min(1.0, float(self.step) / self.warmup) if self.warmup else 1.0
        return self.weight * share * self.method(features, self.real[batch[SOURCE]])


METHODS: Registry[Callable[[int], nn.Module]] = Registry("alignment", {"coral": Coral, "mmd": Mmd}, files=True)


def make_alignment_term(policy: Policy, prepared: TrainingSetup, config: AlignConfig) -> AlignmentTerm:
    """Return the loss term of a configuration that makes features of real and simulated samples similar.

    ``config.method`` is ``coral``, ``mmd`` or ``FILE.py:CLASS`` with a user's torch module. The run's seed determines
    its initial weights.

    Raises:
        InputError: If batches hold fewer than two real or two simulated samples, or a source has both kinds of
            episodes, or the user's class cannot be created.
        UnknownNameError: If the method, the user's file or its class does not exist.
    """
    data, batch = prepared.data, prepared.config.batch
    real = torch.tensor([source.real for source in data.sources])
    for number, source in enumerate(data.sources):
        kinds = {data.episodes[place].real for place in (data.source_of == number).nonzero()[0]}
        if len(kinds) > 1:
            raise InputError(
                f"Alignment needs sources that are either real or simulated, but {source.name} has episodes of both "
                "kinds. Give them as two sources."
            )
    for name, mine in (("real", real.numpy()), ("simulated", ~real.numpy())):
        if int(batch * prepared.share[mine].sum()) < _FEWEST:
            raise InputError(
                f"align compares real and simulated samples of a batch, but a batch of {batch} has "
                f"{batch * prepared.share[mine].sum():.3g} {name} samples. Give both kinds of data, and set "
                "--sim-fraction or --batch so that each kind has at least two samples."
            )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(prepared.config.seed)
        method = _make_method(config.method, _feature_size(policy))
    made = AlignmentTerm(method, real, weight=config.weight, warmup=round(config.warmup * prepared.config.steps))
    return made.to(next(policy.parameters()).device)


def _make_method(name: str, size: int) -> nn.Module:
    found = METHODS[name]
    try:
        made = found(size)
    except Exception as error:  # any exception of the user's class
        raise InputError(f"{name}({size}) cannot be created: {describe_error(error)}") from error
    if not isinstance(made, nn.Module):
        raise InputError(
            f"{name} is not a torch.nn.Module. Its inputs are features (n, d) and real (n,): docs/guides/training.md."
        )
    return made


def _feature_size(policy: Policy) -> int:
    layout, device = policy.layout, next(policy.parameters()).device
    rows = {
        key: torch.zeros((1, *layout.shape(key)), dtype=None if key in layout.sizes else torch.uint8, device=device)
        for key in layout.keys
    }
    with torch.no_grad():
        return int(policy(rows)[1].shape[-1])


def _covariance(rows: Tensor) -> Tensor:
    centred = rows - rows.mean(dim=0)
    return centred.T @ centred / (len(rows) - 1)


def _squared_distances(rows: Tensor) -> Tensor:
    """Return the squared distances ``(n, n)`` of all pairs of rows; `torch.cdist` has no gradient at zero."""
    norms = rows.square().sum(dim=1)
    return (norms[:, None] + norms - 2 * rows @ rows.T).clamp(min=0)


Floats = NDArray[np.float64]
_PER_EPISODE = 40  # frames: neighbouring frames add little information
_MOST_EPISODES = 100  # real episodes, and as many simulated ones
_AT_ONCE = 256
_PAIR = 2
_RESAMPLES = 500


class AlignmentDiagnosis:
    """Callback that compares real with simulated held-out features, before and after training.

    Call it once before training and once after. The first call measures the features and returns an empty dictionary.
    The second call returns ``{"alignment": …}`` with ``before``, ``after`` and the result of `classify_alignment`. Each
    measurement holds MMD² and the area under the ROC curve of a linear probe (a classifier of real against simulated
    features), both with intervals over episodes, `relative_coral_distance`, and the held-out error on real sources.
    """

    def __init__(self, prepared: TrainingSetup) -> None:
        self._data, self._seed = prepared.data, prepared.config.seed
        real = np.array([prepared.data.episodes[place].real for place in prepared.held_out], dtype=bool)
        self._real, self._sim = (prepared.held_out[mine][:_MOST_EPISODES] for mine in (real, ~real))
        self._before: dict[str, Any] | None = None

    def __call__(self, policy: Policy, samples: SampleBatches, errors: Sequence[SourceError]) -> Mapping[str, Any]:
        """Measure how similar the features of real and simulated samples are; call it before and after training.

        The first call returns an empty dictionary, the second call the comparison of both measurements. If fewer than
        two real or two simulated episodes are held out, each call returns ``{"alignment": …}`` with the ``case``
        ``unknown`` and the reason as ``verdict``.

        Args:
            policy: the policy.
            samples: batches of samples from frame indices.
            errors: held-out action errors of the sources; the mean of the real ones is part of the measurement.
        """
        if min(len(self._real), len(self._sim)) < _PAIR:
            why = (
                f"unknown: {len(self._real)} real and {len(self._sim)} simulated episodes are held out; a comparison "
                "needs at least two of each"
            )
            return {"alignment": {"case": "unknown", "verdict": why}}
        now = self._measure_features(policy, samples)
        scaled = [error.scaled for error in errors if error.real]
        now["real_error"] = float(np.mean(scaled)) if scaled else None
        if self._before is None:
            self._before = now
            return {}
        return {"alignment": {"before": self._before, "after": now, **classify_alignment(self._before, now)}}

    def _measure_features(self, policy: Policy, samples: SampleBatches) -> dict[str, Any]:
        real, real_of = _compute_features(policy, samples, self._data, self._real)
        sim, sim_of = _compute_features(policy, samples, self._data, self._sim)
        given = {"real_clusters": real_of, "sim_clusters": sim_of, "seed": self._seed, "resamples": _RESAMPLES}
        found: dict[str, Any] = {
            "coral": relative_coral_distance(real, sim),
            "episodes": {"real": len(self._real), "sim": len(self._sim)},
        }
        try:
            found["mmd"] = mmd(real, sim, multiples=_WIDTHS, draws=0, **given).distance.to_json()
            found["probe_auc"] = classifier_test(real, sim, quadratic=False, draws=0, **given).auc.to_json()
        except InputError as error:
            raise InputError(f"The features of held-out episodes cannot be compared. {error}") from error
        return found


def classify_alignment(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, str]:
    """Compare how similar real and simulated features are before and after training; return ``case`` and ``verdict``.

    The verdict is a sentence for the user. MMD² (maximum mean discrepancy) is a distance of the two distributions of
    features. The probe is a linear classifier that separates real from simulated features. The cases are:

    - ``collapsed``: the probe is at chance, and the held-out real error has grown.
    - ``discernible``: MMD² decreased, and the probe still separates real from simulated features.
    - ``aligned``: MMD² decreased, the probe is at chance, and the real error has not grown.
    - ``apart``: MMD² did not decrease.

    "At chance" means that the interval of the area under the ROC curve includes one half.

    Args:
        before: measurement before training, as in `AlignmentDiagnosis`.
        after: measurement after training.
    """
    chance = after["probe_auc"]["low"] <= 1 / 2
    fell = after["mmd"]["estimate"] < before["mmd"]["estimate"]
    errors = before["real_error"], after["real_error"]
    grew = None not in errors and errors[1] > errors[0]
    metrics = (
        f"MMD² {before['mmd']['estimate']:.3g} before and {after['mmd']['estimate']:.3g} after; a linear probe "
        f"separates held-out real and simulated features with an area of {after['probe_auc']['estimate']:.3g} "
        f"[{after['probe_auc']['low']:.3g}, {after['probe_auc']['high']:.3g}]"
    )
    if chance and grew:
        case, text = "collapsed", "collapsed: the probe is at chance and the real error grew"
    elif not fell:
        case, text = "apart", "not aligned: the distance did not fall"
    elif chance:
        case, text = "aligned", "aligned, the probe is at chance, and the real error did not grow"
    else:
        case, text = "discernible", "aligned yet discernible"
    return {"case": case, "verdict": f"{text} ({metrics})"}


def relative_coral_distance(real: Floats, sim: Floats) -> float:
    """Return ‖C_real - C_sim‖ / (‖C_real‖ + ‖C_sim‖), from 0 to 1, of the covariances C of features ``(n, d)``.

    It is the CORAL distance made independent of the scale of the features.
    """
    one, other = (np.atleast_2d(np.cov(rows, rowvar=False)) for rows in (real, sim))
    whole = np.linalg.norm(one) + np.linalg.norm(other)
    return float(np.linalg.norm(one - other) / whole) if whole > 0 else 0.0


def _compute_features(
    policy: Policy, samples: SampleBatches, data: TrainingFrames, episodes: Ints
) -> tuple[Floats, Ints]:
    """Return features ``(n, d)`` of frames spread over the given episodes, and each frame's episode index ``(n,)``.

    The features are those that the policy's ``forward`` returns with the command chunks.
    """
    spread = [np.linspace(data.first[e], data.last[e], _PER_EPISODE).round().astype(np.int64) for e in episodes]
    frames = np.concatenate([np.unique(mine) for mine in spread])
    policy.eval()
    with torch.inference_mode():
        parts = [policy(samples.batch(frames[at : at + _AT_ONCE]))[1] for at in range(0, len(frames), _AT_ONCE)]
    return torch.cat(parts).double().cpu().numpy(), data.episode_of(frames)
