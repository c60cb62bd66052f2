"""Fine-tune a policy: choose the weights to train, and make the `TrainingAdditions` that a configuration requires.

The sections ``adapt``, ``align`` and ``pixels`` of a training configuration decide how the training loop is extended.
"""

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
    """Low-rank change of a frozen weight matrix W: the layer uses W + up · down (LoRA).

    W has shape ``(out, in)``, ``up`` ``(out, r)`` and ``down`` ``(r, in)``. As in Hu et al., "LoRA: low-rank adaptation
    of large language models", ICLR 2022, ``up`` starts at zero, so the policy is unchanged at the start. The product is
    not scaled further (their α equals r).

    Args:
        weight: the matrix W.
        rank: upper limit of r.
        chance: random generator of the initial values of ``down``.
    """

    def __init__(self, weight: Tensor, rank: int, chance: torch.Generator) -> None:
        super().__init__()
        out, into = weight.shape
        rank = min(rank, out, into)
        drawn = torch.randn(rank, into, generator=chance) / math.sqrt(into)
        self.down = nn.Parameter(drawn.to(weight))
        self.up = nn.Parameter(weight.new_zeros(out, rank))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the changed matrix W + up · down, shape ``(out, in)``."""
        return weight + self.up @ self.down


class L2Start(nn.Module):
    """Loss term ½ · ``weight`` · ‖w - w₀‖², where w are the trained weights and w₀ their values at the start.

    This is L2-SP (Li, Grandvalet & Davoine, ICML 2018). If low-rank changes are trained, the term is the squared norm
    of the low-rank changes alone. Checkpoints do not need w₀, because a resumed run starts from the same policy.
    """

    def __init__(self, policy: Policy, weight: float) -> None:
        super().__init__()
        self.weight = weight
        self._start = {name: p.detach().clone() for name, p in policy.named_parameters() if p.requires_grad}

    def forward(self, policy: Policy, batch: Batch) -> Tensor:
        """Return the penalty on the distance of the weights from their start values, a scalar; ``batch`` is unused."""
        del batch
        changes = [module.up @ module.down for module in policy.modules() if isinstance(module, LowRank)]
        if not changes:
            changes = [p - self._start[name] for name, p in policy.named_parameters() if name in self._start]
        return 0.5 * self.weight * torch.stack([change.square().sum() for change in changes]).sum()


def select_trained_weights(policy: Policy, method: str, rank: int, seed: int) -> list[nn.Parameter]:
    """Enable gradients only for the weights that a fine-tuning method trains, and return these weights.

    Args:
        policy: the policy, changed in place.
        method: ``full`` (all weights), ``head`` (output layers) or ``low_rank`` (adds a low-rank change to every
            matrix).
        rank: rank of the changes of ``low_rank``.
        seed: seed of their initial values.
    """
    policy.requires_grad_(False)
    if method == "low_rank":
        return _add_low_rank(policy, rank, seed)
    moving = policy.network.head if method == "head" else policy
    moving.requires_grad_(True)
    return list(moving.parameters())


def merge_low_rank(policy: Policy) -> Policy:
    """Add the low-rank changes to the policy's matrices in place, and return the policy with its usual structure."""
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
    """Return what a configuration adds to the training loop, such as extra loss terms or changes of images.

    The additions are fine-tuning (``adapt``), a loss that makes features of real and simulated samples similar
    (``align``), and a transformation that makes simulated images resemble real ones (``pixels``). This also prepares
    ``policy`` for fine-tuning in place: it disables gradients of weights that are not trained, and adds low-rank
    changes of weights (LoRA) if the configuration has them.

    Raises:
        InputError: If ``align`` lacks real or simulated samples, or ``pixels`` lacks images.
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
        watch=_AdaptationRecord(diagnosis, report_errors_before=config.adapt is not None),
        facts=facts,
    )


def _parameter_groups(
    trained: Sequence[nn.Parameter], terms: Mapping[str, Any], *, decays: bool
) -> list[dict[str, Any]]:
    """Return the optimizer's parameter groups: trained weights of the policy, then parameters of alignment terms.

    Args:
        trained: trained weights of the policy.
        terms: extra loss terms by name, of which only alignment terms have parameters.
        decays: whether the policy's weights have weight decay; false in fine-tuning.
    """
    groups: list[dict[str, Any]] = [{"params": list(trained), **({} if decays else {"weight_decay": 0.0})}]
    own = [p for term in terms.values() if isinstance(term, AlignmentTerm) for p in term.parameters()]
    return [*groups, {"params": own}] if own else groups


def _chain_transforms(transforms: Sequence[Transform]) -> Transform:
    def run(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        for transform in transforms:
            batch = transform(batch)
        return batch

    return run


def _domain_token_transform(policy: Policy, prepared: TrainingSetup) -> Transform:
    """Return a batch transform that adds each sample's domain token, which gives the policy the sample's source.

    A source that the base policy was trained on has its own token. Another real source gets the policy's default token,
    and another simulated source the token "unknown".
    """
    settings = policy.settings
    names = [source.name if source.name in settings.domains else None if source.real else ""
             for source in prepared.data.sources]  # fmt: skip
    index = torch.tensor([settings.domain_index(name) for name in names])

    def run(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**batch, DOMAIN: index.to(batch[SOURCE].device)[batch[SOURCE]]}

    return run


class _AdaptationRecord:
    """Callback for `TrainingAdditions.watch` that compares held-out errors and alignment before and after training.

    The first call stores the held-out errors before training and returns nothing to report. The second call returns the
    comparison.

    Args:
        diagnosis: measurement of the alignment; None if there is no alignment term.
        report_errors_before: whether the comparison includes the held-out errors before training.
    """

    def __init__(self, diagnosis: AlignmentDiagnosis | None, *, report_errors_before: bool) -> None:
        self._diagnosis, self._report_errors_before = diagnosis, report_errors_before
        self._before: list[dict[str, Any]] | None = None

    def __call__(self, policy: Policy, samples: SampleBatches, errors: Sequence[SourceError]) -> Mapping[str, Any]:
        facts: dict[str, Any] = {}
        if self._diagnosis is not None:
            facts |= self._diagnosis(policy, samples, errors)
        if self._before is None:
            self._before = [error.to_json() for error in errors]
            return {}
        return facts | (
            {"held_out_before": self._before, "notes": self._list_increased_errors(errors)}
            if self._report_errors_before
            else {}
        )

    def _list_increased_errors(self, errors: Sequence[SourceError]) -> list[str]:
        """Return one sentence for each real source whose held-out error is larger than before training."""
        before = {row["source"]: row["scaled"] for row in self._before or ()}
        return [
            f"the held-out error on {error.source} grew from {before[error.source]:.3g} to {error.scaled:.3g} "
            "standard deviations of its commands: the base policy may be better"
            for error in errors
            if error.real and error.scaled > before[error.source]
        ]
