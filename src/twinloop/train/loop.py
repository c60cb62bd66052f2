"""Run the training loop: batches, losses, learning rate, steps, evaluations and checkpoints.

Results are deterministic on one device. A checkpoint is one file, replaced atomically. It holds the weights, the
optimizer's state, the best weights so far, and the progress.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors  # pyright: ignore[reportMissingImports]
import safetensors.torch  # pyright: ignore[reportMissingImports]
import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor  # pyright: ignore[reportMissingImports]
from torch.optim.swa_utils import get_ema_multi_avg_fn  # pyright: ignore[reportMissingImports]

from twinloop.core.documents import parse_json, require_regular
from twinloop.core.errors import CheckFailedError, InputError
from twinloop.core.files import dumps, write_bytes
from twinloop.core.metrics import log_metrics
from twinloop.core.progress import show_progress
from twinloop.core.seeds import generator, stream_key
from twinloop.policies.policy import DOMAIN, Policy
from twinloop.train.additions import SOURCE, TrainingAdditions
from twinloop.train.config import CHECKPOINT, RESULT, TrainConfig
from twinloop.train.data import Ints, TrainingFrames
from twinloop.train.holdout import Holdout, SourceError
from twinloop.train.mixture import FrameMixture
from twinloop.train.samples import SampleBatches

_SCHEMA = 2
_KEY = "twinloop"


@dataclass(frozen=True, kw_only=True)
class TrainingCheckpoint:
    """Content of a checkpoint.

    Attributes:
        tensors: weights and optimizer state by name, as ``GROUP/NAME``.
        facts: hashes of configuration and data, progress, and the result of `FrameMixture.state`, as plain values.
    """

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]

    def tensor_group(self, name: str) -> dict[str, Tensor]:
        """Return the tensors whose names begin with ``name/``, by the rest of their names."""
        prefix = f"{name}/"
        return {key.removeprefix(prefix): value for key, value in self.tensors.items() if key.startswith(prefix)}


def write_checkpoint(folder: Path, groups: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]) -> None:
    """Write the checkpoint of a folder, replacing the previous one.

    Args:
        folder: folder of the policy that is trained.
        groups: tensors by group and name.
        facts: plain values to store with the tensors.

    Raises:
        DatasetError: If the disk is full. The previous checkpoint is kept.
    """
    tensors = {
        f"{group}/{name}": value.detach().to("cpu").contiguous()
        for group, values in groups.items()
        for name, value in values.items()
    }
    metadata = {_KEY: dumps({"schema": _SCHEMA, **facts})}
    write_bytes(folder / CHECKPOINT, safetensors.torch.save(tensors, metadata=metadata))


def read_checkpoint(folder: Path) -> TrainingCheckpoint:
    """Read the checkpoint of the folder of an interrupted training.

    Raises:
        InputError: If there is no checkpoint, the training is already finished, or the file is damaged or from a newer
            version.
    """
    path = folder / CHECKPOINT
    if (folder / RESULT).is_file():
        raise InputError(
            f"{folder} holds a finished run, which cannot be resumed. `--adapt {folder}` with another --output "
            "continues training from its weights."
        )
    if not path.is_file():
        raise InputError(f"{folder} holds no run to resume: {CHECKPOINT} is missing. Train without --resume.")
    require_regular(path)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            facts = parse_json((file.metadata() or {})[_KEY], where=str(path))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a mapping
    except (safetensors.SafetensorError, OSError, KeyError, ValueError) as error:
        raise InputError(
            f"{path} ({path.stat().st_size} bytes) is not a complete checkpoint ({error}). Restore a copy of it, "
            "or train again."
        ) from error
    if facts.get("schema") != _SCHEMA:
        raise InputError(
            f"{path} has schema {facts.get('schema')}, this version reads {_SCHEMA}. Resume with the version "
            "of twinloop that began the run, or train again."
        )
    return TrainingCheckpoint(tensors=tensors, facts=facts)


def collect_optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the state of an optimizer for a checkpoint, as ``PARAMETER/NAME``."""
    slots = optimizer.state_dict()["state"]
    return {f"{i}/{name}": value for i, slot in slots.items() for name, value in slot.items()}


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore the state of an optimizer from the result of `collect_optimizer_tensors`."""
    slots: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        place, _, what = name.partition("/")
        slots.setdefault(int(place), {})[what] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": slots})


class WeightAverage(torch.nn.Module):
    """Exponential moving average of a policy's weights.

    In the first steps it forgets faster, like Tensorflow's ExponentialMovingAverage. It has the values and the state of
    torch's ``AveragedModel``, which collects all parameters anew at every step: a sixth of the time of a step.

    Attributes:
        module: the policy with the averaged weights, in evaluation mode.
    """

    n_averaged: Tensor

    def __init__(self, policy: Policy, decay: float) -> None:
        """Copy a policy; ``decay`` per step, with 0 the copy has the weights themselves."""
        super().__init__()
        self.module = copy.deepcopy(policy).eval()
        self._decay, self._pair = decay, (list[Tensor](self.module.parameters()), list[Tensor](policy.parameters()))
        self.register_buffer("n_averaged", torch.zeros((), dtype=torch.int64))

    def update(self) -> None:
        """Move the average after a step of the optimizer."""
        done = int(self.n_averaged)
        decay = min(self._decay, (1 + done) / (10 + done)) if done else 0.0
        get_ema_multi_avg_fn(decay)(*self._pair, done)
        self.n_averaged += 1


def learning_rate(step: int, *, steps: int, peak: float, warmup: float) -> float:
    """Return the learning rate of one step: a linear rise to ``peak``, then half a cosine down to zero.

    Loshchilov & Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017, equation 5 without restarts.

    Args:
        step: the step, from 0.
        steps: number of steps of the training.
        peak: highest learning rate.
        warmup: share of the steps during which the rate rises.
    """
    rising = round(warmup * steps)
    if step < rising:
        return peak * (step + 1) / rising
    return peak * 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


_EVERY_S = 60.0  # a checkpoint at least this often, which bounds the loss by a crash
_LOGGED = 500  # losses that trackers get in a whole training
_NAMED = 5  # frames that an error message lists


@dataclass
class TrainingProgress:
    """Progress of a training as plain values, saved in every checkpoint.

    Attributes:
        step: number of steps done.
        losses: loss curve: pairs of a step and the mean loss since the previous pair.
        evaluations: results of the evaluations on held-out episodes.
        best: lowest held-out error so far, see `Holdout.selection_metric`.
        best_step: step of this error.
        waited: number of evaluations since then.
        seconds: duration so far.
        stopped: why training stopped early, or "".
        summed: sum of the losses since the last pair of the loss curve.
        count: number of these losses.
    """

    step: int = 0
    losses: list[tuple[int, float]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    best: float = float("inf")
    best_step: int = 0
    waited: int = 0
    seconds: float = 0.0
    stopped: str = ""
    summed: float = 0.0  # losses since the curve's last point
    count: int = 0


class TrainingLoop:
    """Training of one policy, from its current step to its end.

    Args:
        policy: policy to train, in place, on the device of ``samples``.
        data: all frames.
        samples: source of the batches' tensors.
        mixture: chooses the frames of each batch.
        holdout: held-out episodes, or None.
        config: training settings.
        folder: folder of the checkpoint.
        facts: hashes of configuration and data, which must match when a checkpoint is resumed.
        additions: extra loss terms, changes of batches and choice of trained weights, for fine-tuning; None for none.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        data: TrainingFrames,
        samples: SampleBatches,
        mixture: FrameMixture,
        holdout: Holdout | None,
        config: TrainConfig,
        folder: Path,
        facts: dict[str, Any],
        additions: TrainingAdditions | None = None,
    ) -> None:
        self.policy, self.config, self.mixture, self.holdout = policy, config, mixture, holdout
        self.progress = TrainingProgress()
        self.samples, self._data, self._folder, self._facts = samples, data, folder, facts
        self._additions = additions or TrainingAdditions()
        self._learning: dict[str, Any] = {
            n: term for n, term in self._additions.terms.items() if isinstance(term, torch.nn.Module)
        }
        groups = policy.parameters() if self._additions.parameters is None else self._additions.parameters(policy)
        self._optimizer = torch.optim.AdamW(groups, lr=config.lr, weight_decay=config.weight_decay, fused=True)
        self._rates = [group["lr"] / config.lr for group in self._optimizer.param_groups]
        self._moving = [p for group in self._optimizer.param_groups for p in group["params"]]
        self._mean = None if config.ema is None else WeightAverage(policy, config.ema)
        self._best: dict[str, Tensor] = {}
        self._every = max(1, config.steps // config.evaluations)
        self._log_every = max(1, config.steps // _LOGGED)

    def run(self) -> None:
        """Train to the end; afterwards the policy has the weights that `TrainConfig.keep` selects.

        Raises:
            CheckFailedError: If a loss or a gradient is not finite. The message describes the worst samples. The
                previous checkpoint is kept.
        """
        began, before = time.perf_counter(), self.progress.seconds
        saved = began
        if not self.progress.step:
            self.save()
        shown = show_progress(label="training", total=self.config.steps, done=self.progress.step)
        with torch.random.fork_rng(), shown as advance:
            while self.progress.step < self.config.steps and not self.progress.stopped:
                self._step()
                advance(1)
                evaluate = self.progress.step % self._every == 0 or self.progress.step == self.config.steps
                if evaluate:
                    self._evaluate()
                self.progress.seconds = before + time.perf_counter() - began
                if evaluate or time.perf_counter() - saved > _EVERY_S:
                    self.save()
                    saved = time.perf_counter()
        self._load_kept_weights()

    def save(self) -> None:
        """Write a checkpoint of the present weights, optimizer state and progress."""
        groups = {
            "policy": self.policy.state_dict(),
            "mean": {} if self._mean is None else self._mean.state_dict(),
            "best": self._best,
            "optimizer": collect_optimizer_tensors(self._optimizer),
            **{f"terms/{name}": term.state_dict() for name, term in self._learning.items()},
        }
        facts = {**self._facts, "progress": vars(self.progress), "mixture": self.mixture.state()}
        write_checkpoint(self._folder, groups, facts)

    def restore(self, checkpoint: TrainingCheckpoint) -> None:
        """Continue from a checkpoint: restore weights, optimizer, progress and mixture.

        Raises:
            InputError: If the checkpoint belongs to another configuration, other data or another base policy. The
                message states which.
        """
        for name, value in self._facts.items():
            if checkpoint.facts.get(name) != value:
                raise InputError(
                    f"{self._folder / CHECKPOINT} belongs to a run with another {name}. Resume with the same settings "
                    "and data, or train into another --output."
                )
        self.policy.load_state_dict(checkpoint.tensor_group("policy"))
        self._best = checkpoint.tensor_group("best")
        if self._mean is not None:
            self._mean.load_state_dict(checkpoint.tensor_group("mean"))
        for name, term in self._learning.items():
            term.load_state_dict(checkpoint.tensor_group(f"terms/{name}"))
        load_optimizer_tensors(self._optimizer, checkpoint.tensor_group("optimizer"))
        progress = checkpoint.facts["progress"]
        self.progress = TrainingProgress(**{**progress, "losses": [tuple(row) for row in progress["losses"]]})
        self.mixture.restore(checkpoint.facts["mixture"])

    def compute_errors(self) -> list[SourceError]:
        """Return the held-out action error on each source for the current weights; empty if no episodes are held out.

        It is the mean absolute error of the predicted commands in the dataset's units, see `SourceError`.
        """
        return [] if self.holdout is None else self.holdout.compute_errors(self.policy, self.samples)

    def _step(self) -> None:
        step, config = self.progress.step, self.config
        rate = learning_rate(step, steps=config.steps, peak=config.lr, warmup=config.warmup)
        for group, factor in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        frames = self.mixture.next()
        chance = _seed_generator(self.samples.device, _step_seed(config.seed, step))
        self.policy.train()
        batch = self._batch(frames, step)
        loss, each, _ = self.policy.loss(batch, chance)
        for term in self._additions.terms.values():
            loss = loss + term(self.policy, batch)
        if not torch.isfinite(loss):
            raise self._make_nonfinite_error("loss", frames, each)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._moving, config.clip)
        if not torch.isfinite(norm):
            raise self._make_nonfinite_error("gradient", frames, each)
        self._optimizer.step()
        if self._mean is not None:
            self._mean.update()
        value = float(loss.detach())
        self.progress.summed += value
        self.progress.count += 1
        self.progress.step += 1
        if self.progress.step % self._log_every == 0:
            log_metrics(self.progress.step, {"loss": value, "learning_rate": rate})

    def _batch(self, frames: Ints, step: int) -> dict[str, Tensor]:
        batch = self.samples.batch(frames)
        source = self._data.source_of[self._data.episode_of(frames)]
        batch[SOURCE] = torch.from_numpy(source).to(self.samples.device)
        token = self.config.domain_token
        if token is not None:
            drops = generator(self.config.seed, "train/domain", step).random(len(frames)) < token.dropout
            batch[DOMAIN] = torch.from_numpy(np.where(drops, 0, source + 1)).to(self.samples.device)
        return batch if self._additions.transform is None else self._additions.transform(batch)

    def _evaluate(self) -> None:
        progress = self.progress
        progress.losses.append((progress.step, progress.summed / progress.count))
        progress.summed, progress.count = 0.0, 0
        now: dict[str, Any] = {"step": progress.step}
        if self.holdout is not None:
            with self._use_mean_weights():
                errors = self.holdout.compute_errors(self.policy, self.samples)
            metric = self.holdout.selection_metric(errors)
            now |= {
                "metric": metric,
                "sources": {error.source: {"scaled": error.scaled, "by_unit": error.means()} for error in errors},
            }
            self._update_best(metric)
            log_metrics(progress.step, {"held-out error": metric})
        progress.evaluations.append(now)

    def _update_best(self, metric: float) -> None:
        progress = self.progress
        if metric < progress.best:
            progress.best, progress.best_step, progress.waited = metric, progress.step, 0
            with self._use_mean_weights():
                self._best = _copy_weights(self.policy)
            return
        progress.waited += 1
        if self.config.patience and progress.waited >= self.config.patience:
            progress.stopped = (
                f"stopped early at step {progress.step}: {progress.waited} evaluations without a better held-out error"
            )

    def _load_kept_weights(self) -> None:
        """Load the weights that `TrainConfig.keep` selects into the policy, and set the policy to evaluation mode."""
        if self._mean is not None:
            self.policy.load_state_dict(self._mean.module.state_dict())
        if self._best and (self.config.keep == "best" or self.progress.stopped):
            self.policy.load_state_dict(self._best)
        self.policy.eval()

    @contextmanager
    def _use_mean_weights(self) -> Iterator[None]:
        """Return a context manager in which the policy has the moving average of its weights, if one is computed."""
        if self._mean is None:
            yield
            return
        own = _copy_weights(self.policy)
        self.policy.load_state_dict(self._mean.module.state_dict())
        try:
            yield
        finally:
            self.policy.load_state_dict(own)

    def _make_nonfinite_error(self, what: str, frames: Ints, each: Tensor) -> CheckFailedError:
        """Return the error for a batch with a non-finite loss or gradient, with a description of the worst samples.

        Args:
            what: ``loss`` or ``gradient``.
            frames: frames of the batch, ``(n,)``.
            each: loss of each sample, ``(n,)``.
        """
        values = each.detach().cpu().numpy()
        bad = np.flatnonzero(~np.isfinite(values))
        worst = bad if len(bad) else np.argsort(-values)[:_NAMED]
        named = "; ".join(self._data.describe_frame(int(frames[place])) for place in worst[:_NAMED])
        more = f" and {len(worst) - _NAMED} more" if len(worst) > _NAMED else ""
        who = "Not finite" if len(bad) else "The largest losses"
        step = self.progress.evaluations[-1]["step"] if self.progress.evaluations else 0
        kept = f"The checkpoint of step {step} is kept: {self._folder / CHECKPOINT}. " if step else ""
        return CheckFailedError(
            f"The {what} of batch {self.progress.step} is not finite, so training stopped. {who}: {named}{more}. {kept}"
            "Look at these frames (`twinloop curate`), leave the episodes out, or lower --lr."
        )


def _copy_weights(policy: Policy) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in policy.state_dict().items()}


def _step_seed(run_seed: int, step: int) -> int:
    """Return the random seed of one step. It depends only on run and step, so checkpoints need no generator state."""
    low, high = stream_key(run_seed, f"train/step/{step}")
    return low | (high << 31)


def _seed_generator(device: str, seed: int) -> torch.Generator:
    """Seed the device's default generator, which dropout uses too, and return it."""
    own = torch.default_generator.manual_seed(seed)
    if device == "cpu":
        return own
    torch.cuda.manual_seed(seed)
    return torch.cuda.default_generators[torch.device(device).index or 0]
