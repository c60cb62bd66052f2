"""What adaptation adds to the loop: which weights move, what happens to a batch, further terms of the loss.

The loop knows these three places and nothing of methods. ``train/adapt.py`` (fine-tuning: full, head, low-rank,
L2 to the start), ``train/align.py`` (feature alignment) and ``train/pixels.py`` (pixel statistics) make an
`TrainingAdditions`; an adversarial or a progressive method needs no other place.
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
    """What a run does besides plain behaviour cloning.

    Attributes:
        parameters: the groups for the optimizer, as torch takes them; all of the policy's by default.
        transform: a batch in the dataset's units, with ``source`` ``(n,)``, before the policy sees it.
        terms: by name, what is added to the loss of a batch, a number each, with gradients; called after the policy's
            own loss. What a term learns itself (a discriminator) is given to ``parameters``; where the term is a
            module, checkpoints hold it.
        before_saving: makes the policy one that `open_policy` can open, such as by merging low-rank weights.
        watch: looks at the policy, with its held-out errors, before the first step and after the last; what it returns
            then is added to ``facts``.
        facts: what is written into result.json.
    """

    parameters: Callable[[Policy], Sequence[Any]] | None = None
    transform: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] | None = None
    terms: Mapping[str, Callable[[Policy, Batch], torch.Tensor]] = field(default_factory=dict)
    before_saving: Callable[[Policy], Policy] | None = None
    watch: Callable[[Policy, SampleBatches, Sequence[SourceError]], Mapping[str, Any]] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
