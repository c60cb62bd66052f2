"""Define how a fine-tuning method extends the training loop: trained weights, a batch transform and extra loss terms.

The training loop uses these three extension points and no details of the methods. ``train/adapt.py`` (fine-tuning of
all weights, of the output layers or by low-rank changes, and a penalty on the distance to the initial weights),
``train/align.py`` (feature alignment) and ``train/pixels.py`` (pixel statistics) make a `TrainingAdditions`. Other
methods, such as adversarial alignment or progressive networks, can use the same extension points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch  # pyright: ignore[reportMissingImports]

    from twinloop.policies.policy import Policy
    from twinloop.train.holdout import SourceError
    from twinloop.train.samples import SampleBatches

SOURCE = "source"  # key of a batch: index of each sample's source, (n,)

Batch = Mapping[str, "torch.Tensor"]


@dataclass(frozen=True, kw_only=True)
class TrainingAdditions:
    """Extensions of the training loop beyond plain behaviour cloning.

    Attributes:
        parameters: function that returns the optimizer's parameter groups, as torch takes them; None to train all
            parameters of the policy.
        transform: function that changes a batch before the policy gets it. Values are in the dataset's units; the batch
            also has ``source`` ``(n,)``, the index of each sample's source.
        terms: loss terms by name. Each returns a scalar with gradients and is called after the policy's own loss. If a
            term has trained parameters (a discriminator), ``parameters`` must return them too. Checkpoints save terms
            that are torch modules.
        before_saving: function that makes a policy that `open_policy` can open, for example by merging low-rank
            weights.
        watch: function called with the policy, the samples and the held-out errors, once before the first step and once
            after the last step. The result of the last call is added to ``facts``.
        facts: entries for result.json.
    """

    parameters: Callable[[Policy], Sequence[Any]] | None = None
    transform: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] | None = None
    terms: Mapping[str, Callable[[Policy, Batch], torch.Tensor]] = field(default_factory=dict)
    before_saving: Callable[[Policy], Policy] | None = None
    watch: Callable[[Policy, SampleBatches, Sequence[SourceError]], Mapping[str, Any]] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
