"""What alignment did to the features: how far apart real and simulated ones are, and whether a probe tells them.

"Aligned yet discernible" is what helps (arXiv 2604.13645): the distributions come near, and what distinguishes a real
sample is still there. Where a probe is at chance and the real error has grown, features have collapsed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.policies.policy import Policy
from twinloop.stats.classifier import classifier_test
from twinloop.stats.mmd import mmd
from twinloop.train.data import Data, Ints
from twinloop.train.holdout import SourceError
from twinloop.train.prepared import Prepared
from twinloop.train.samples import Samples

Floats = NDArray[np.float64]
_PER_EPISODE = 40  # frames: neighbours in time tell little that is new
_MOST_EPISODES = 100  # of a kind
_AT_ONCE = 256
_PAIR = 2
_WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
_RESAMPLES = 500


class Diagnosis:
    """Called before the first step and after the last; the second time it returns ``{"alignment": …}``.

    ``before`` and ``after`` hold MMD² of held-out features and the area under the curve of a linear probe, with
    intervals over episodes, the CORAL distance as a share of the covariances, and the held-out real error.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._data, self._seed = prepared.data, prepared.config.seed
        real = np.array([prepared.data.episodes[place].real for place in prepared.held_out], dtype=bool)
        self._real, self._sim = (prepared.held_out[mine][:_MOST_EPISODES] for mine in (real, ~real))
        self._before: dict[str, Any] | None = None

    def __call__(self, policy: Policy, samples: Samples, errors: Sequence[SourceError]) -> Mapping[str, Any]:
        """See the class."""
        if min(len(self._real), len(self._sim)) < _PAIR:
            why = (
                f"not known: {len(self._real)} real and {len(self._sim)} simulated episodes are held out, and two of "
                "each are the least that can be compared"
            )
            return {"alignment": {"case": "unknown", "verdict": why}}
        now = self._measured(policy, samples)
        scaled = [error.scaled for error in errors if error.real]
        now["real_error"] = float(np.mean(scaled)) if scaled else None
        if self._before is None:
            self._before = now
            return {}
        return {"alignment": {"before": self._before, "after": now, **verdict(self._before, now)}}

    def _measured(self, policy: Policy, samples: Samples) -> dict[str, Any]:
        real, real_of = _features(policy, samples, self._data, self._real)
        sim, sim_of = _features(policy, samples, self._data, self._sim)
        given = {"real_clusters": real_of, "sim_clusters": sim_of, "seed": self._seed, "resamples": _RESAMPLES}
        found: dict[str, Any] = {
            "coral": coral_share(real, sim),
            "episodes": {"real": len(self._real), "sim": len(self._sim)},
        }
        try:
            found["mmd"] = mmd(real, sim, multiples=_WIDTHS, draws=0, **given).distance.to_json()
            found["probe_auc"] = classifier_test(real, sim, quadratic=False, draws=0, **given).auc.to_json()
        except InputError as error:
            raise InputError(f"The features of held-out episodes cannot be compared. {error}") from error
        return found


def verdict(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, str]:
    """Which case it is, ``case`` and ``verdict``, of two measurements.

    ``collapsed``: the probe is at chance, and the held-out real error has grown. ``discernible``: the distance fell
    and the probe still tells. ``aligned``: it fell, the probe does not tell, and the error has not grown. ``apart``:
    the distance did not fall. At chance means that the interval of the area reaches one half.
    """
    chance = after["probe_auc"]["low"] <= 1 / 2
    fell = after["mmd"]["estimate"] < before["mmd"]["estimate"]
    errors = before["real_error"], after["real_error"]
    grew = None not in errors and errors[1] > errors[0]
    figures = (
        f"MMD² {before['mmd']['estimate']:.3g} before and {after['mmd']['estimate']:.3g} after; a linear probe tells "
        f"held-out real from simulated features with an area of {after['probe_auc']['estimate']:.3g} "
        f"[{after['probe_auc']['low']:.3g}, {after['probe_auc']['high']:.3g}]"
    )
    if chance and grew:
        return {
            "case": "collapsed",
            "verdict": f"collapsed: the probe is at chance and the real error grew ({figures})",
        }
    if not fell:
        return {"case": "apart", "verdict": f"not aligned: the distance did not fall ({figures})"}
    if chance:
        return {
            "case": "aligned",
            "verdict": f"aligned, and the probe does not tell; the real error did not grow ({figures})",
        }
    return {"case": "discernible", "verdict": f"aligned yet discernible ({figures})"}


def coral_share(real: Floats, sim: Floats) -> float:
    """‖C_real - C_sim‖ / (‖C_real‖ + ‖C_sim‖), 0 to 1: the distance of CORAL without the features' scale."""
    one, other = (np.atleast_2d(np.cov(rows, rowvar=False)) for rows in (real, sim))
    whole = np.linalg.norm(one) + np.linalg.norm(other)
    return float(np.linalg.norm(one - other) / whole) if whole > 0 else 0.0


def _features(policy: Policy, samples: Samples, data: Data, episodes: Ints) -> tuple[Floats, Ints]:
    """Features of frames spread over episodes ``(n, d)``, and whose each is ``(n,)``."""
    spread = [np.linspace(data.first[e], data.last[e], _PER_EPISODE).round().astype(np.int64) for e in episodes]
    frames = np.concatenate([np.unique(mine) for mine in spread])
    policy.eval()
    with torch.inference_mode():
        parts = [policy(samples.batch(frames[at : at + _AT_ONCE]))[1] for at in range(0, len(frames), _AT_ONCE)]
    return torch.cat(parts).double().cpu().numpy(), data.episode_of(frames)
