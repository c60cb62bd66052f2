"""Terms that are zero where features of real and simulated samples are alike: CORAL, MMD, or one of your own."""

from __future__ import annotations

from collections.abc import Callable

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]

from twinloop.core.contract import IMAGES
from twinloop.core.errors import InputError
from twinloop.core.extension import raised
from twinloop.core.registry import Registry
from twinloop.policies.policy import DOMAIN, Policy
from twinloop.policies.statistics import LAST_COMMAND, vector_sizes
from twinloop.train.additions import SOURCE, Batch
from twinloop.train.config import AlignConfig
from twinloop.train.prepared import Prepared

_FEWEST = 2  # samples of a kind in a batch: one has no covariance and no pair
_WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the median distance: powers of two as in Long et al., ICML 2015


class Coral(nn.Module):
    """‖C_real - C_sim‖² / (4 d²) of the covariances of features ``(n, d)``; Sun & Saenko, "Deep CORAL", ECCV 2016."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, features: Tensor, real: Tensor) -> Tensor:
        """The term for features ``(n, d)``, of which those where ``real`` ``(n,)`` is true are real."""
        return (_covariance(features[real]) - _covariance(features[~real])).square().sum() / (4 * self.size**2)


class Mmd(nn.Module):
    """The unbiased MMD² (Gretton et al., JMLR 13, 2012, Lemma 6), mean over Gaussian kernels of several widths.

    The widths are a quarter to four times the median distance of the batch's features, through which no gradient goes.
    About zero, and below it as often as above, where there is no difference.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, features: Tensor, real: Tensor) -> Tensor:
        """As `Coral.forward`."""
        squares = _squares(features)
        apart = ~torch.eye(len(features), dtype=torch.bool, device=features.device)
        middle = squares.detach()[apart].median().clamp(min=torch.finfo(features.dtype).tiny)
        kernel = torch.stack([torch.exp(-squares / (2 * width**2 * middle)) for width in _WIDTHS]).mean(dim=0)
        one, other = real.to(features), (~real).to(features)
        within = [side @ (kernel * apart) @ side / (side.sum() * (side.sum() - 1)) for side in (one, other)]
        return within[0] + within[1] - 2 * (one @ kernel @ other) / (one.sum() * other.sum())


class Aligned(nn.Module):
    """A term of the loss that grows in: ``weight`` · min(1, step / warm-up) · method(features, real).

    ``method`` is a module ``(features (n, d), real (n,) bool) -> number``; what it learns itself is trained with the
    policy. The step is counted here, and checkpoints hold it.
    """

    real: Tensor
    step: Tensor

    def __init__(self, method: nn.Module, real: Tensor, *, weight: float, warmup: int) -> None:
        super().__init__()
        self.method, self.weight, self.warmup = method, weight, warmup
        self.register_buffer("real", real, persistent=False)
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self, policy: Policy, batch: Batch) -> Tensor:
        """The term; the policy sees the batch a second time, as it would when acting."""
        features = policy(batch, domain=batch.get(DOMAIN))[1]
        self.step += 1
        share = min(1.0, float(self.step) / self.warmup) if self.warmup else 1.0
        return self.weight * share * self.method(features, self.real[batch[SOURCE]])


METHODS: Registry[Callable[[int], nn.Module]] = Registry("alignment", {"coral": Coral, "mmd": Mmd}, files=True)


def aligned(policy: Policy, prepared: Prepared, config: AlignConfig) -> Aligned:
    """The term that a configuration asks for; weights of its own are drawn by the run's seed.

    Raises:
        InputError: batches hold less than two real or simulated samples, or a class of the user cannot be made.
        UnknownNameError: no such method or file.
    """
    data, batch = prepared.data, prepared.config.batch
    real = torch.tensor([source.real for source in data.sources])
    for number, source in enumerate(data.sources):
        kinds = {data.episodes[place].real for place in (data.source_of == number).nonzero()[0]}
        if len(kinds) > 1:
            raise InputError(
                f"align needs to know which samples are real, and {source.name} holds both kinds. Split it."
            )
    for name, mine in (("real", real.numpy()), ("simulated", ~real.numpy())):
        if int(batch * prepared.share[mine].sum()) < _FEWEST:
            raise InputError(
                f"align compares real with simulated samples of a batch, and a batch of {batch} holds "
                f"{batch * prepared.share[mine].sum():.3g} {name} ones. Give both kinds of data, and each two samples "
                "at least, with --sim-fraction or --batch."
            )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(prepared.config.seed)
        method = _method(config.method, _feature_size(policy))
    made = Aligned(method, real, weight=config.weight, warmup=round(config.warmup * prepared.config.steps))
    return made.to(next(policy.parameters()).device)


def _method(name: str, size: int) -> nn.Module:
    found = METHODS[name]
    try:
        made = found(size)
    except Exception as error:  # whatever the user's class raises
        raise InputError(f"{name}({size}) cannot be made: {raised(error)}") from error
    if not isinstance(made, nn.Module):
        raise InputError(
            f"{name} is no torch.nn.Module. It is called with features (n, d) and real (n,), see docs/adaptation.md."
        )
    return made


def _feature_size(policy: Policy) -> int:
    contract, steps = policy.contract, policy.n_obs_steps
    sizes = vector_sizes(contract, last_command=policy.settings.last_command)
    device = next(policy.parameters()).device
    rows = {
        key: torch.zeros((1, size) if key == LAST_COMMAND else (1, steps, size), device=device)
        for key, size in sizes.items()
    }
    pictures = {
        IMAGES + name: torch.zeros((1, steps, *size, 3), dtype=torch.uint8, device=device)
        for name, size in contract.cameras.items()
    }
    with torch.no_grad():
        return int(policy({**rows, **pictures})[1].shape[-1])


def _covariance(rows: Tensor) -> Tensor:
    centred = rows - rows.mean(dim=0)
    return centred.T @ centred / (len(rows) - 1)


def _squares(rows: Tensor) -> Tensor:
    """Squared distances ``(n, n)``; torch's own have no gradient at zero."""
    norms = rows.square().sum(dim=1)
    return (norms[:, None] + norms - 2 * rows @ rows.T).clamp(min=0)
