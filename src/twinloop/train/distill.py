"""Teach a policy on-policy: it acts in randomized worlds, and an expert labels every state that it visits.

DAgger (Ross, Gordon & Bagnell, "A reduction of imitation learning and structured prediction to no-regret online
learning", AISTATS 2011). In the first round the expert acts, in later rounds the policy, so that it learns what to do
in the states to which its own errors lead. All rounds stay in the training data. The expert sees what the policy sees,
and knows what the policy can learn (`tasks.protocol.LabellingTask`): the median of each parameter over the worlds, and
the true value of those that a policy with a memory estimates.
"""

from __future__ import annotations

import copy
import fnmatch
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor  # pyright: ignore[reportMissingImports]

from twinloop import __version__
from twinloop.core.assignment import Assignment
from twinloop.core.contract import ACTION, ENVIRONMENT, IMAGES, STATE, Contract
from twinloop.core.documents import read_json
from twinloop.core.errors import CheckFailedError, InputError, UnknownNameError
from twinloop.core.files import sha256_json, write_bytes, write_json
from twinloop.core.metrics import log_metrics
from twinloop.core.params import ParamTable
from twinloop.core.progress import announce, show_progress
from twinloop.core.seeds import generator
from twinloop.dataset.storage.snapshot import hold_folder_lock
from twinloop.hardware.limits import command_limits
from twinloop.policies.factory import new_policy
from twinloop.policies.folder import PolicyCard
from twinloop.policies.localizer import Localizer
from twinloop.policies.policy import IS_PAD, Policy
from twinloop.policies.settings import AdaptiveSettings, CommandLimits, LocalizerSettings, MlpSettings, read_settings
from twinloop.policies.statistics import LAST_COMMAND, PARAMETERS, Statistics, relative_actions
from twinloop.randomize import Plan
from twinloop.rollout.episodes import run_batch
from twinloop.rollout.labelling import LabellingActor, require_labels
from twinloop.rollout.observing import TrackerNoise, offered_contract
from twinloop.rollout.policy_actor import HashedPolicy
from twinloop.simulate import open_backend
from twinloop.tasks.protocol import Task
from twinloop.train.config import CHECKPOINT, RESULT
from twinloop.train.images import ImageConfig, augment_images, choose_cameras, open_cameras
from twinloop.train.loop import (
    TrainingCheckpoint,
    WeightAverage,
    collect_optimizer_tensors,
    learning_rate,
    load_optimizer_tensors,
    read_checkpoint,
    write_checkpoint,
)
from twinloop.train.run import use_torch_settings
from twinloop.train.worlds import describe_worlds
from twinloop.twin import Twin

TaughtKind = Literal["mlp", "adaptive"]
Arrays = Mapping[str, NDArray[Any]]
ROUNDS = "rounds"  # folder of the data of a run, until it is finished
_MEDIAN_OF = 1001  # worlds; the standard error of a median is then 4 % of the standard deviation of a normal parameter
_KEYS = {"state": STATE, "environment": ENVIRONMENT, "held": LAST_COMMAND, "label": ACTION, PARAMETERS: PARAMETERS}
# What a servo does between a command and a reading. The zeros of encoders are not among them: commands and readings
# share them, so a history shows nothing of them.
_ESTIMATES = ("joint/*", "actuator/*")
_ESTIMATED_AT = 16  # steps of each episode at which the error of the estimates is measured
_LOG_EVERY = 20  # steps between two losses that trackers get
_WEAK = 0.8  # success rate of the expert below which people are told: our choice
_SETTINGS = {"chunk_size": 1, "n_action_steps": 1, "last_command": True, "action_space": "delta_to_command"}
# A policy from images looks ten times per second at 30 Hz.
_IMAGE_SETTINGS = {
    "chunk_size": 3,
    "n_action_steps": 3,
    "images": {"channels": [16, 32, 32, 32], "halvings": 2, "per_camera": True},
}


class DistillConfig(ImageConfig):
    """Configuration of on-policy teaching; `images.ImageConfig` describes the images of a policy with ``cameras``.

    Attributes:
        inputs: names of the bodies whose tracked values the policy reads, or patterns of names; by default all but the
            tool, which few robots have a tracker for, and none if the policy has cameras.
        policy: ``mlp``; or ``adaptive`` for a policy with a memory, which estimates parameters of the robot.
        settings: settings of the policy. The commands of a chunk are all executed; their labels are those of the states
            to which they lead. ``estimates`` of an ``adaptive`` policy may have patterns, such as
            ``actuator/*/kp``, of names of drawn parameters, whose true values the expert knows; by default all
            of joints and actuators.
        worlds: worlds of each round.
        rounds: number of rounds; in the first one the expert acts.
        steps: steps of the optimizer after each round but the last.
        final_steps: steps after the last round, in which the learning rate falls to zero along a cosine.
        tracker_noise: standard deviation of each tracked value per step, in m (in rad for headings). A tag half a metre
            from a camera is measured to 0.5 to 1 mm.
        tracker_offset: largest constant error of tracked positions in an episode, in m, per axis. Hand-eye calibration
            with a printed board is off by 1 to 3 mm.
        tracker_wander: largest standard deviation of slowly varying errors of tracked positions, in m: those of a
            localizer, see `rollout.observing.TrackerNoise`.
        tracker_turn: the same for headings, in rad.
        other_share: share of the worlds from the other distribution, if two are given.
        expert_share: share of the worlds of later rounds in which the expert acts.
        batch: samples per step.
        lr: learning rate.
        weight_decay: weight decay of the optimizer.
        clip: largest norm of the gradient.
        ema: decay per step of the exponential moving average of the weights, which acts in the worlds and is the
            result; 0 for the weights themselves.
        seed: run seed.
    """

    inputs: tuple[str, ...] = ()
    policy: TaughtKind = "mlp"
    settings: dict[str, Any] = Field(default_factory=dict)
    worlds: int = Field(default=256, ge=1)
    rounds: int = Field(default=8, ge=1)
    steps: int = Field(default=3000, ge=1)
    final_steps: int = Field(default=9000, ge=1)
    tracker_noise: float = Field(default=0.0, ge=0, le=0.1)
    tracker_offset: float = Field(default=0.0, ge=0, le=0.1)
    tracker_wander: float = Field(default=0.0, ge=0, le=0.1)
    tracker_turn: float = Field(default=0.0, ge=0, le=1.0)
    other_share: float = Field(default=0.5, ge=0, le=1)
    expert_share: float = Field(default=0.0, ge=0, le=1)
    batch: int = Field(default=128, ge=1)
    lr: float = Field(default=3e-3, gt=0)
    weight_decay: float = Field(default=1e-4, ge=0)
    clip: float = Field(default=1.0, gt=0)
    ema: float = Field(default=0.998, ge=0, lt=1)
    seed: int = Field(default=0, ge=0, lt=2**63)


class _Learner:
    """Policy that is being taught, with its optimizer and the moving average of its weights.

    Attributes:
        policy: the policy that the optimizer changes.
        mean: the policy with the averaged weights, in evaluation mode.
        optimizer: the optimizer.
    """

    def __init__(self, policy: Policy, config: DistillConfig) -> None:
        self.policy = policy
        self.optimizer = torch.optim.AdamW(
            policy.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True
        )
        self._averaged = WeightAverage(policy, config.ema)
        self.mean = self._averaged.module
        self._weights, self._clip = list(policy.parameters()), config.clip

    def step(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Make one step of the optimizer, and return the terms of the loss."""
        loss, _, parts = self.policy.loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._weights, self._clip)
        self.optimizer.step()
        self._averaged.update()
        return parts

    def save(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Write the checkpoint of the folder, with facts."""
        groups = {
            "policy": self.policy.state_dict(),
            "average": self._averaged.state_dict(),
            "optimizer": collect_optimizer_tensors(self.optimizer),
        }
        write_checkpoint(folder, groups, facts)

    def restore(self, checkpoint: TrainingCheckpoint) -> None:
        """Load weights, their average and the optimizer's state from a checkpoint."""
        self.policy.load_state_dict(checkpoint.tensor_group("policy"))
        self._averaged.load_state_dict(checkpoint.tensor_group("average"))
        load_optimizer_tensors(self.optimizer, checkpoint.tensor_group("optimizer"))


@dataclass(kw_only=True)
class DistillRun:
    """One run of on-policy teaching; `run` does all rounds that are not done yet.

    Attributes:
        plan: distribution of the worlds.
        task: the task.
        config: the configuration.
        folder: folder of the policy, with the checkpoint during the run.
        other: distribution of the share ``other_share`` of the worlds; None if all come from ``plan``.
        teacher: trained policy that labels and acts as the expert; None for the task's expert.
        base: policy from whose weights the teaching continues, which acts from the first round on; None for new ones.
        eyes: localizer whose image encoders are the first ones of a new policy from images; None for random ones.
        rows: facts about each finished round.
    """

    plan: Plan
    task: Task
    config: DistillConfig
    folder: Path
    other: Plan | None = None
    teacher: HashedPolicy | None = None
    base: Policy | None = None
    eyes: Policy | None = None
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def __post_init__(self) -> None:
        if self.base is not None and self.base.contract.cameras:
            cameras = self.base.contract.cameras
            height, width = next(iter(cameras.values()))
            given = {"cameras": tuple(cameras), "height": height, "width": width}
            self.config = self.config.model_copy(update=given)
        self.labelled_by = require_labels(self.task, self.plan.twin, self.teacher)
        self.contract = self._choose_contract()
        drawn = self.plan.draw(range(_MEDIAN_OF))
        settings = self._choose_settings(drawn) if self.base is None else self._settings_of(self.base)
        assert isinstance(settings, MlpSettings | AdaptiveSettings | LocalizerSettings)  # noqa: S101 - of these kinds
        if settings.chunk_size != settings.n_action_steps or not settings.last_command:
            raise InputError(
                "On-policy teaching needs last_command: true, and n_action_steps equal to chunk_size, so that all "
                "commands of a chunk are executed."
            )
        self._cameras = open_cameras(self.plan, self.config, self.config.seed) if self.contract.cameras else None
        self.settings, self.data = settings, list[Arrays]()
        plans = [self.plan.hash, self.plan.twin.hash, None if self.other is None else self.other.hash]
        task = [self.task.name, self.task.version, self.labelled_by]
        parts = [self.config.model_dump(mode="json"), task, plans]
        parts += [] if self.base is None else [self.base.hash]
        parts += [] if self.eyes is None else [self.eyes.hash]
        self.estimates = settings.estimates if isinstance(settings, AdaptiveSettings) else ()
        self.believed = dict(zip(drawn.names, np.median(drawn.values, axis=0).tolist(), strict=True))
        self.facts = {"configuration": sha256_json(parts)}

    def _choose_contract(self) -> Contract:
        twin, config = self.plan.twin, self.config
        cameras = choose_cameras(twin, config) if config.cameras else {}
        offered = choose_inputs(offered_contract(twin, self.task, cameras=cameras), config.inputs)
        return replace(offered, environment=()) if cameras and not config.inputs else offered

    def _choose_settings(self, drawn: ParamTable) -> Any:
        """Return the settings of a new policy, from the configuration and worlds of the plan."""
        more = _IMAGE_SETTINGS if self.config.cameras else {}
        given = {**_SETTINGS, **more, **_limit_commands(self.plan.twin), **self.config.settings}
        if self.config.policy == "adaptive":
            given["estimates"] = choose_estimates(drawn, given.get("estimates", _ESTIMATES))
        return read_settings(self.config.policy, given)

    def _settings_of(self, base: Policy) -> Any:
        """Return the settings of the policy from which teaching continues.

        Raises:
            InputError: If its contract differs, its kind cannot be taught on-policy, or the configuration has others.
        """
        unlike = base.contract.find_differences(self.contract)
        if unlike:
            raise InputError("The policy to continue from does not fit these worlds. " + "; ".join(unlike) + ".")
        sees = isinstance(base.settings, LocalizerSettings) and base.settings.control is not None
        if (base.settings.kind not in get_args(TaughtKind) and not sees) or self.config.settings:
            raise InputError(
                f"Teaching continues from a policy of kind {', '.join(get_args(TaughtKind))} or a localizer with a "
                f"policy, with its own settings; this one is {base.settings.kind}, and {len(self.config.settings)} "
                "settings are given. Leave --set out, or teach a new policy."
            )
        return base.settings

    def run(self, *, resume: bool = False) -> tuple[Policy, list[dict[str, Any]]]:
        """Return the taught policy, and the facts about each round.

        Raises:
            InputError: If the checkpoint belongs to another configuration.
            CheckFailedError: If all worlds of a round are invalid, or the loss is not finite.
        """
        with use_torch_settings("cpu"):
            learner = self._restore() if resume else None if self.base is None else self._start()
            for number in range(len(self.rows), self.config.rounds):
                row = self._collect(number, None if learner is None else learner.mean)
                if weakness := describe_weak_expert(row):
                    announce(weakness)
                learner = learner or self._start()
                row["loss"] = self._train(learner, number)
                self.rows.append(row)
                learner.save(self.folder, {**self.facts, "rows": self.rows})
        if self._cameras is not None:
            self._cameras.close()
        assert learner is not None  # noqa: S101 - there is one round or more
        return learner.mean, self.rows

    def _start(self) -> _Learner:
        return _Learner(self._make_policy(), self.config)

    def _make_policy(self) -> Policy:
        if self.base is not None:
            made = copy.deepcopy(self.base)
            if isinstance(made, Localizer) and made.control is not None:
                made.control.requires_grad_(False)  # else it learns to hesitate where the estimates are uncertain
            return made
        made = new_policy(self.settings.kind, self.contract, self.settings, self._measure(), seed=self.config.seed)
        return made if self.eyes is None else copy_eyes(self.eyes, made)

    def _collect(self, number: int, policy: Policy | None) -> dict[str, Any]:
        """Simulate a round, add its labelled steps to the data, and return facts about it."""
        config = self.config
        episodes = range(number * config.worlds, (number + 1) * config.worlds)
        count = config.worlds if policy is None else round(config.expert_share * config.worlds)
        order = generator(config.seed, "distill/actors", number).permutation(config.worlds)
        params = self._draw(episodes)
        known = {name: params[name] for name in self.estimates}
        actor = LabellingActor(
            task=self.task,
            twin=self.plan.twin,
            contract=self.contract,
            settings=self.settings,
            policy=policy,
            by_expert=order < count,
            teacher=self.teacher,
            believed={**self.believed, **known},
            tracker=TrackerNoise(
                noise=config.tracker_noise,
                spread=config.tracker_offset,
                wander=config.tracker_wander,
                turn=config.tracker_turn,
            ),
            images=self._cameras,
        )
        batch = run_batch(
            self.plan.twin, self.task, params, run_seed=config.seed, episodes=episodes, actor=actor,
            backend=open_backend(),
        )  # fmt: skip
        valid = batch.trajectories.valid
        if not valid.any():
            raise CheckFailedError(
                f"All {config.worlds} worlds of round {number} diverged or could not be reset: "
                f"{batch.trajectories.reason[0]}. Check the twin with `twinloop twin check`, or narrow its ranges."
            )
        arrays = {name: values[valid] for name, values in actor.steps.stack().items()}
        if known:
            arrays[PARAMETERS] = np.stack(list(known.values()), axis=1)[valid].astype(np.float32)
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        write_bytes(self._file(number), buffer.getvalue())
        self.data.append(arrays)
        inferred = {} if policy is None or not known else {"estimates": self._score_estimates(policy)}
        return {
            "worlds": config.worlds,
            "by_expert": count,
            "by_policy": config.worlds - count,
            "invalid": int((~valid).sum()),
            "successes": int(batch.success.sum()),
            "labelled_by": self.labelled_by,
            "steps": int(arrays["label"].shape[0] * arrays["label"].shape[1]),
            **inferred,
        }

    def _draw(self, episodes: range) -> ParamTable:
        """Return the worlds of a round, of which exactly the share ``other_share`` is from the other plan."""
        table, share = self.plan.draw(episodes), self.config.other_share
        if self.other is None:
            return table
        edges = np.floor(share * np.arange(len(episodes) + 1) + 0.5)
        worlds = np.flatnonzero(np.diff(edges))
        return table.replace_worlds(worlds, self.other.draw([episodes[world] for world in worlds]))

    def describe_worlds(self) -> dict[str, Any]:
        """Return facts about the worlds of all rounds; see `worlds.describe_worlds`."""
        size = self.config.worlds
        rounds = [self._draw(range(number * size, (number + 1) * size)) for number in range(self.config.rounds)]
        return describe_worlds(self.plan.twin, rounds)

    def _train(self, learner: _Learner, number: int) -> float:
        config, last = self.config, number == self.config.rounds - 1
        steps = config.final_steps if last else config.steps
        random, columns = generator(config.seed, "distill/batches", number), self._columns()
        total = torch.zeros(())
        learner.policy.train()
        shown = show_progress(label=f"round {number + 1} of {config.rounds}", total=steps)
        with torch.random.fork_rng(devices=[]), shown as advance:
            torch.manual_seed(int(generator(config.seed, "distill/dropout", number).integers(2**63)))
            for step in range(steps):
                if last:
                    rate = learning_rate(step, steps=steps, peak=config.lr, warmup=0.0)
                    for group in learner.optimizer.param_groups:
                        group["lr"] = rate
                loss = next(iter(learner.step(self._batch(columns, random)).values()))
                total += loss
                advance(1)
                if (step + 1) % _LOG_EVERY == 0:
                    log_metrics(number * config.steps + step + 1, {"loss": float(loss)})
        mean = float(total) / steps
        if not np.isfinite(mean):
            raise CheckFailedError(f"The loss of round {number} is not finite. Lower lr, and resume the run.")
        return mean

    def _columns(self) -> dict[str, Tensor]:
        names = [name for name in self.data[0] if name in _KEYS]
        return {_KEYS[name]: torch.from_numpy(np.concatenate([part[name] for part in self.data])) for name in names}

    def _batch(self, columns: Mapping[str, Tensor], random: np.random.Generator) -> dict[str, Tensor]:
        (worlds, length), chunk = columns[ACTION].shape[:2], self.settings.chunk_size
        apart = self.settings.steps_between_images if self._cameras is not None else chunk
        world = torch.from_numpy(random.integers(0, worlds, self.config.batch))
        step = apart * torch.from_numpy(random.integers(0, -(-length // apart), self.config.batch))
        ahead = step[:, None] + torch.arange(chunk)
        label = columns[ACTION][world[:, None], ahead.clamp(max=length - 1)]
        made = {**self._observe(columns, world, step), ACTION: label, IS_PAD: ahead >= length}
        if self._cameras is not None:
            made |= self._show(world.numpy(), (step // apart).numpy(), random)
        return {**made, PARAMETERS: columns[PARAMETERS][world]} if self.estimates else made

    def _show(
        self, world: NDArray[np.int64], look: NDArray[np.int64], random: np.random.Generator
    ) -> dict[str, Tensor]:
        """Return varied images of some worlds ``(n,)`` at the given images of each, ``(n,)``; rounds are not joined."""
        first = np.cumsum([0, *(len(part["label"]) for part in self.data)])
        part = np.searchsorted(first, world, side="right") - 1
        chance = torch.Generator().manual_seed(int(random.integers(2**63)))
        made = dict[str, Tensor]()
        for name in self.contract.cameras:
            key = f"{IMAGES}{name}"
            rows = [self.data[p][key][w - first[p], k] for p, w, k in zip(part, world, look, strict=True)]
            made[key] = augment_images(torch.from_numpy(np.stack(rows))[:, None], chance)
        return made

    def _observe(self, columns: Mapping[str, Tensor], world: Tensor, step: Tensor) -> dict[str, Tensor]:
        """Return what the policy remembers in some worlds ``(n,)`` at some steps ``(n,)``."""
        past = (step[:, None] + torch.arange(1 - self.settings.n_obs_steps, 1)).clamp(min=0)
        made = {
            key: values[world[:, None], past[:, -self.settings.count_steps(key) :]]
            for key, values in columns.items()
            if key not in (ACTION, PARAMETERS) and not key.startswith(IMAGES)
        }
        return made if self.settings.command_history else {**made, LAST_COMMAND: columns[LAST_COMMAND][world, step]}

    def _score_estimates(self, policy: Policy) -> dict[str, float]:
        """Return the share of each parameter's variance over new worlds that the policy's estimates explain (R²).

        The worlds are those of the last round, on which the policy was not trained yet. A memory that holds less than a
        whole episode explains less at some steps than at others; the mean is over steps that divide the episode evenly.
        """
        columns = {_KEYS[name]: torch.from_numpy(rows) for name, rows in self.data[-1].items() if name in _KEYS}
        true, (worlds, length) = columns[PARAMETERS].numpy(), columns[ACTION].shape[:2]
        steps = np.linspace(length / _ESTIMATED_AT, length, _ESTIMATED_AT).astype(int) - 1
        rows = [self._observe(columns, torch.arange(worlds), torch.full((worlds,), step)) for step in steps]
        error = np.mean([(policy.estimate(row).numpy() - true) ** 2 for row in rows], axis=(0, 1))
        share = 1.0 - error / np.maximum(true.var(axis=0), 1e-30)
        return dict(zip(self.estimates, share.tolist(), strict=True))

    def _measure(self) -> Statistics:
        samples: dict[str, NDArray[Any]] = {_KEYS[name]: rows for name, rows in self.data[0].items() if name in _KEYS}
        base = {"delta_to_command": LAST_COMMAND, "delta_to_state": STATE}.get(self.settings.action_space)
        if base is not None:
            samples[ACTION] = relative_actions(samples[ACTION][..., None, :], samples[base])[..., 0, :]
        return Statistics.measure(samples, source=f"{len(self.data[0]['label'])} worlds of the expert")

    def _file(self, number: int) -> Path:
        folder = self.folder / ROUNDS
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{number:03d}.npz"

    def _restore(self) -> _Learner:
        checkpoint = read_checkpoint(self.folder)
        if checkpoint.facts.get("configuration") != self.facts["configuration"]:
            raise InputError(
                f"{self.folder / CHECKPOINT} belongs to a run with another configuration, twin, task or randomization. "
                "Resume with the same settings and file, or teach into another --output."
            )
        self.rows = list(checkpoint.facts["rows"])
        for number in range(len(self.rows)):
            with np.load(self._file(number), allow_pickle=False) as stored:
                self.data.append(dict(stored))
        learner = self._start()
        learner.restore(checkpoint)
        return learner


def distill(
    plan: Plan,
    task: Task,
    config: DistillConfig,
    output: Path | str,
    *,
    other: Plan | None = None,
    assignment: tuple[Assignment, Mapping[str, Path]] | None = None,
    resume: bool = False,
    teacher: HashedPolicy | None = None,
    base: Policy | None = None,
    eyes: Policy | None = None,
) -> dict[str, Any]:
    """Teach a policy on-policy, and write it with ``result.json`` into a folder; return the content of this file.

    The same configuration and plan give the same weights on one machine, also after an interruption.

    Args:
        plan: distribution of the worlds, with the twin.
        task: the task, for the twin of the plan.
        config: the configuration.
        other: distribution of a share of the worlds (`DistillConfig.other_share`), for the same twin; None for none.
        output: the folder. It holds a checkpoint and the labelled steps during the run.
        assignment: twin and task that the policy keeps, with their files; see `tasks.assignment.assign`.
        resume: continue from the checkpoint in ``output``.
        teacher: trained policy that labels and acts as the expert; None for the task's expert.
        base: policy from which the teaching continues with its settings and normalization; it is not changed, and acts
            from the first round on. None to teach a new policy.
        eyes: localizer with the same cameras, whose image encoders a new policy from images begins with.

    Raises:
        InputError: If the task has no expert that labels states, teacher or base have another contract, or the folder
            is in use for something else.
        CheckFailedError: If all worlds of a round are invalid, or the loss is not finite.
    """
    require_labels(task, plan.twin, teacher)
    output = Path(output)
    run = DistillRun(
        plan=plan, task=task, config=config, folder=output, other=other, teacher=teacher, base=base, eyes=eyes
    )
    if is_finished(output, resume=resume):
        return finish(output, run.facts)
    with hold_folder_lock(output, "training"):
        policy, rows = run.run(resume=resume)
        metrics = {**_make_metrics(run, policy, rows), **run.facts}
        policy.save(output, replace(_make_card(output.name, metrics), **_keep(assignment)))
        write_json(output / RESULT, metrics)
    return finish(output, run.facts)


def describe_weak_expert(row: Mapping[str, Any]) -> str:
    """Return a warning for people if an expert that acts in all worlds of a round often fails; else an empty text.

    Args:
        row: facts about the round.
    """
    if row["by_policy"] or row["successes"] >= _WEAK * row["worlds"]:
        return ""
    return (
        f"The expert itself succeeds in only {row['successes']} of {row['worlds']} worlds ({row['invalid']} of them "
        "invalid), and a policy does not become better than it. Worlds may be drawn from wrong or too wide ranges: "
        "compare them with the twin's own (`twinloop twin show`), or identify the robot from a longer log."
    )


def is_finished(output: Path, *, resume: bool) -> bool:
    """Return whether a run that is to be resumed is already finished.

    Raises:
        InputError: If the folder holds a run that is not to be resumed.
    """
    finished = (output / RESULT).exists()
    if not resume and (finished or (output / CHECKPOINT).exists()):
        raise InputError(f"{output} holds another run. Continue it with --resume, or choose another --output.")
    return finished


def finish(output: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Delete the checkpoint and the labelled steps of a finished run, and return its result.

    Args:
        output: folder of the policy.
        facts: ``configuration``, the hash of everything that determines the weights.

    Raises:
        InputError: If the run had another configuration.
    """
    metrics = read_json(output / RESULT)
    if not isinstance(metrics, dict) or metrics.get("configuration") != facts["configuration"]:
        raise InputError(
            f"{output} holds a finished run with another configuration, twin, task, randomization or teacher. Choose "
            "another --output."
        )
    (output / CHECKPOINT).unlink(missing_ok=True)
    if (output / ROUNDS).is_dir():
        for file in (output / ROUNDS).glob("*.npz"):
            file.unlink()
        (output / ROUNDS).rmdir()
    return metrics


def copy_eyes(localizer: Policy, policy: Policy) -> Policy:
    """Copy the image encoders of a localizer to a policy in place, and return the policy.

    Raises:
        InputError: If cameras, sizes of images or settings of the encoders differ.
    """
    if localizer.settings.images != policy.settings.images or localizer.contract.cameras != policy.contract.cameras:
        raise InputError(
            f"The localizer sees {dict(localizer.contract.cameras)} with {localizer.settings.images}, the policy "
            f"{dict(policy.contract.cameras)} with {policy.settings.images}. Give both the same cameras and settings."
        )
    found = {name: values for name, values in localizer.state_dict().items() if name.startswith(_EYES)}
    policy.load_state_dict({**policy.state_dict(), **found})
    return policy


_EYES = "network.encoder.by_camera."


def choose_inputs(offered: Contract, patterns: tuple[str, ...]) -> Contract:
    """Return a contract with the tracked values of the bodies that match a pattern; by default of all but the tool.

    Raises:
        UnknownNameError: If a pattern matches no body of the task.
    """
    bodies = list(dict.fromkeys(name.partition(".")[0] for name in offered.environment))
    wanted = _match(bodies, patterns, "tracked body", f"the task {offered.task}") or set(bodies) - {"tool"}
    kept = tuple(name for name in offered.environment if name.partition(".")[0] in wanted)
    return replace(offered, environment=kept)


def choose_estimates(drawn: ParamTable, patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the parameters that a policy estimates: those that match a pattern and differ between worlds.

    Args:
        drawn: parameters of many worlds.
        patterns: patterns of names.

    Raises:
        UnknownNameError: If no parameter of the worlds matches a pattern.
    """
    varied = [name for name, spread in zip(drawn.names, np.ptp(drawn.values, axis=0), strict=True) if spread > 0]
    matching = _match(drawn.names, patterns, "parameter", "the twin")
    return tuple(name for name in varied if name in matching)


def _match(names: Sequence[str], patterns: Sequence[str], what: str, where: str) -> set[str]:
    """Return the names that match a pattern; raise `UnknownNameError` for a pattern that matches none."""
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise UnknownNameError(what, pattern, names, where=where)
    return {name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}


def _limit_commands(twin: Twin) -> dict[str, Any]:
    """Return the setting of command limits for a robot that takes positions, as its safety envelope has them."""
    if twin.robot.control != "position":
        return {}
    return {"command_limits": CommandLimits.from_joints(command_limits(twin, twin.control_hz))}


def _make_metrics(run: DistillRun, policy: Policy, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "schema": 1,
        "verb": "distill",
        "policy": policy.kind,
        "hash": policy.hash,
        "parameters": policy.parameter_count,
        "config": run.config.model_dump(mode="json"),
        "twin": run.plan.twin.name,
        "twin_hash": run.plan.twin.hash,
        "task": run.task.name,
        "seed": run.config.seed,
        "base": None if run.base is None else run.base.hash,
        "worlds": run.describe_worlds(),
        "rounds": rows,
        "versions": {"twinloop": __version__, "torch": torch.__version__, "numpy": np.__version__},
    }


def _make_card(name: str, metrics: Mapping[str, Any]) -> PolicyCard:
    data = tuple(
        {"name": f"round {number + 1}", "episodes": row["worlds"], "real": False, "frames": row["steps"]}
        for number, row in enumerate(metrics["rounds"])
    )
    provenance = {
        "code": f"twinloop {__version__}",
        "twins": f"{metrics['twin']} {metrics['twin_hash'][:16]}",
        "labelled_by": metrics["rounds"][0]["labelled_by"],
        "acted": ", ".join(f"{row['by_expert']} expert + {row['by_policy']} policy" for row in metrics["rounds"]),
        "seed": metrics["seed"],
    }
    return PolicyCard(name=name, data=data, provenance=provenance)


def _keep(assignment: tuple[Assignment, Mapping[str, Path]] | None) -> dict[str, Any]:
    return {} if assignment is None else {"assignment": assignment[0], "sources": assignment[1]}
