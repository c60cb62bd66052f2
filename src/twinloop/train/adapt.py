"""Fine-tune a policy: choose the weights to train, and make the additions of ``adapt``, ``align`` and ``pixels``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]
from torch.nn.utils import parametrize  # pyright: ignore[reportMissingImports]

from twinloop.core.seeds import stream_key
from twinloop.policies.policy import DOMAIN, Policy
from twinloop.train.additions import SOURCE, Batch, TrainingAdditions
from twinloop.train.align import AlignmentDiagnosis, AlignmentTerm, make_alignment_term
from twinloop.train.holdout import SourceError
from twinloop.train.pixels import make_pixel_transform
from twinloop.train.preparation import TrainingSetup
from twinloop.train.samples import SampleBatches


class LowRank(nn.Module):
    """Low-rank change W + up · down of a frozen matrix W ``(out, in)``; ``up`` is ``(out, r)``, ``down`` ``(r, in)``.

    Hu et al., "LoRA: low-rank adaptation of large language models", ICLR 2022: ``up`` starts at zero, so the policy is
    unchanged at the start. The product is not scaled further (their α equals r).
    """

    def __init__(self, weight: Tensor, rank: int, chance: torch.Generator) -> None:
        super().__init__()
        out, into = weight.shape
        rank = min(rank, out, into)
        drawn = torch.randn(rank, into, generator=chance) / math.sqrt(into)
        self.down = nn.Parameter(drawn.to(weight))
        self.up = nn.Parameter(weight.new_zeros(out, rank))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the changed matrix."""
        return weight + self.up @ self.down


class L2Start(nn.Module):
    """Loss term ½ · ``weight`` · ‖w - w₀‖² of the trained weights w; w₀ are their values at the start.

    L2-SP of Li, Grandvalet & Davoine, ICML 2018. For a matrix with a low-rank change, only the change counts.
    Checkpoints do not need w₀, because a resumed run starts from the same policy.
    """

    def __init__(self, policy: Policy, weight: float) -> None:
        super().__init__()
        self.weight = weight
        self._start = {name: p.detach().clone() for name, p in policy.named_parameters() if p.requires_grad}

    def forward(self, policy: Policy, batch: Batch) -> Tensor:
        """Return the term; the batch is not used."""
        del batch
        changes = [module.up @ module.down for module in policy.modules() if isinstance(module, LowRank)]
        if not changes:
            changes = [p - self._start[name] for name, p in policy.named_parameters() if name in self._start]
        return 0.5 * self.weight * torch.stack([change.square().sum() for change in changes]).sum()


def select_trained_weights(policy: Policy, method: str, rank: int, seed: int) -> list[nn.Parameter]:
    """Enable gradients only for the weights that a method trains, and return them.

    ``low_rank`` adds its products to the policy.
    """
    policy.requires_grad_(False)
    if method == "low_rank":
        return _add_low_rank(policy, rank, seed)
    moving = policy.network.head if method == "head" else policy
    moving.requires_grad_(True)
    return list(moving.parameters())


def merge_low_rank(policy: Policy) -> Policy:
    """Add the low-rank changes to the policy's matrices, so that it has the usual structure again."""
    for module in list(policy.modules()):
        if isinstance(module, nn.Linear) and parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
    return policy.requires_grad_(True)


def _add_low_rank(policy: Policy, rank: int, seed: int) -> list[nn.Parameter]:
    low, high = stream_key(seed, "train/low_rank")
    chance = torch.Generator().manual_seed(low | (high << 31))
    moving: list[nn.Parameter] = []
    for module in [m for m in policy.network.modules() if isinstance(m, nn.Linear)]:
        change = LowRank(module.weight, rank, chance)
        parametrize.register_parametrization(module, "weight", change)
        moving += change.parameters()
    return moving


Transform = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def make_additions(policy: Policy, prepared: TrainingSetup) -> TrainingAdditions:
    """Return the additions of a configuration, and prepare the initial policy for fine-tuning.

    Raises:
        InputError: real or simulated samples for alignment are missing, or there are no images to match.
    """
    config = prepared.config
    if config.adapt is None and config.align is None and config.pixels is None:
        return TrainingAdditions()
    terms: dict[str, Callable[[Policy, Batch], Tensor]] = {}
    facts: dict[str, Any] = {}
    moving = list[nn.Parameter](policy.parameters())
    if config.adapt is not None:
        facts |= {**config.adapt.model_dump(mode="json"), "base_hash": policy.hash}
        moving = select_trained_weights(policy, config.adapt.method, config.adapt.rank, config.seed)
        facts["moving"] = sum(parameter.numel() for parameter in moving)
        if config.adapt.l2_start:
            terms["l2_start"] = L2Start(policy, config.adapt.l2_start)
    diagnosis = None
    if config.align is not None:
        terms["align"] = make_alignment_term(policy, prepared, config.align)
        diagnosis = AlignmentDiagnosis(prepared)
        facts["align"] = config.align.model_dump(mode="json")
    transforms = list[Transform]()
    if policy.settings.domains and config.adapt is not None:
        transforms.append(_domain_token_transform(policy, prepared))
    if config.pixels is not None:
        transforms.append(make_pixel_transform(prepared, config.pixels))
        facts["pixels"] = config.pixels.model_dump(mode="json")
    return TrainingAdditions(
        parameters=lambda _: _parameter_groups(moving, terms, decays=config.adapt is None),
        transform=_chain_transforms(transforms) if transforms else None,
        terms=terms,
        before_saving=merge_low_rank,
        watch=_AdaptationRecord(diagnosis, beginning=config.adapt is not None),
        facts=facts,
    )


def _parameter_groups(
    moving: Sequence[nn.Parameter], terms: Mapping[str, Any], *, decays: bool
) -> list[dict[str, Any]]:
    """Return the optimizer's parameter groups; fine-tuned weights have no weight decay."""
    groups: list[dict[str, Any]] = [{"params": list(moving), **({} if decays else {"weight_decay": 0.0})}]
    own = [p for term in terms.values() if isinstance(term, AlignmentTerm) for p in term.parameters()]
    return [*groups, {"params": own}] if own else groups


def _chain_transforms(transforms: Sequence[Transform]) -> Transform:
    def run(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        for transform in transforms:
            batch = transform(batch)
        return batch

    return run


def _domain_token_transform(policy: Policy, prepared: TrainingSetup) -> Transform:
    """Add each sample's domain token: its source's token if the base has it, else the default if real, else unknown."""
    settings = policy.settings
    names = [source.name if source.name in settings.domains else None if source.real else ""
             for source in prepared.data.sources]  # fmt: skip
    index = torch.tensor([settings.domain_index(name) for name in names])

    def run(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**batch, DOMAIN: index.to(batch[SOURCE].device)[batch[SOURCE]]}

    return run


class _AdaptationRecord:
    """Record of held-out errors and alignment before and after training."""

    def __init__(self, diagnosis: AlignmentDiagnosis | None, *, beginning: bool) -> None:
        self._diagnosis, self._beginning = diagnosis, beginning
        self._before: list[dict[str, Any]] | None = None

    def __call__(self, policy: Policy, samples: SampleBatches, errors: Sequence[SourceError]) -> Mapping[str, Any]:
        facts: dict[str, Any] = {}
        if self._diagnosis is not None:
            facts |= self._diagnosis(policy, samples, errors)
        if self._before is None:
            self._before = [error.to_json() for error in errors]
            return {}
        return facts | (
            {"held_out_before": self._before, "notes": self._list_increased_errors(errors)} if self._beginning else {}
        )

    def _list_increased_errors(self, errors: Sequence[SourceError]) -> list[str]:
        """Return one sentence for each real source on which the base policy was better."""
        before = {row["source"]: row["scaled"] for row in self._before or ()}
        return [
            f"the held-out error on {error.source} grew from {before[error.source]:.3g} to {error.scaled:.3g} "
            "standard deviations of its commands: the base policy may be better"
            for error in errors
            if error.real and error.scaled > before[error.source]
        ]
