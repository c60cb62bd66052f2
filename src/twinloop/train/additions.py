"""Additions of a fine-tuning method to the loop: trained weights, a batch transform and extra loss terms.

The loop uses these three extension points and no details of the methods. ``train/adapt.py`` (fine-tuning: full, head,
low-rank, L2 to the start), ``train/align.py`` (feature alignment) and ``train/pixels.py`` (pixel statistics) make a
`TrainingAdditions`; an adversarial or a progressive method fits in the same way.
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

SOURCE = "source"  # key of a batch: the number of each sample's source (n,)

Batch = Mapping[str, "torch.Tensor"]


@dataclass(frozen=True, kw_only=True)
class TrainingAdditions:
    """Steps of a run in addition to plain behaviour cloning.

    Attributes:
        parameters: returns the optimizer's parameter groups, as torch takes them; by default all parameters of the
            policy.
        transform: changes a batch in the dataset's units, with ``source`` ``(n,)``, before the policy gets it.
        terms: loss terms by name, each a number with gradients, called after the policy's own loss. Give a term's own
            trained parameters (a discriminator) to ``parameters``; checkpoints save a term that is a module.
        before_saving: makes a policy that `open_policy` can open, for example by merging low-rank weights.
        watch: called with the policy and its held-out errors before the first step and after the last; the result of
            the last call is added to ``facts``.
        facts: entries for result.json.
    """

    parameters: Callable[[Policy], Sequence[Any]] | None = None
    transform: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] | None = None
    terms: Mapping[str, Callable[[Policy, Batch], torch.Tensor]] = field(default_factory=dict)
    before_saving: Callable[[Policy], Policy] | None = None
    watch: Callable[[Policy, SampleBatches, Sequence[SourceError]], Mapping[str, Any]] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
