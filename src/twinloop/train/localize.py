"""Train a localizer: take images of randomized worlds, and learn the true tracked values.

The task's expert acts in the worlds, and a policy with a wrong tracker if there is one, so that the images also show
what an inaccurate localizer leads to. A tenth of the worlds is held out: it gives the errors in the result, and the
factor by which the network's standard deviations fit them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]

from twinloop import __version__
from twinloop.core.assignment import Assignment
from twinloop.core.contract import ACTION, ENVIRONMENT, IMAGES, STATE, Contract
from twinloop.core.errors import CheckFailedError, InputError
from twinloop.core.files import sha256_json, write_bytes, write_json
from twinloop.core.metrics import log_metrics
from twinloop.core.pool import LocalProcesses
from twinloop.core.progress import show_progress
from twinloop.core.seeds import generator
from twinloop.dataset.storage.snapshot import hold_folder_lock
from twinloop.policies.factory import new_policy
from twinloop.policies.folder import PolicyCard
from twinloop.policies.localizer import Localizer, attach_control, detach_control
from twinloop.policies.policy import Policy
from twinloop.policies.statistics import Statistics
from twinloop.randomize import Plan
from twinloop.rollout import ExpertActor, run_batch
from twinloop.rollout.actor import Actor, EpisodeStart
from twinloop.rollout.observing import TrackerNoise, offered_contract
from twinloop.rollout.policy_actor import PolicyActor
from twinloop.rollout.world_camera import WorldCamera
from twinloop.simulate import open_backend
from twinloop.stats import bootstrap
from twinloop.tasks.protocol import Task, has_expert, has_tracked_values
from twinloop.train.config import CHECKPOINT, RESULT
from twinloop.train.distill import ROUNDS, choose_inputs, finish, is_finished
from twinloop.train.images import ImageConfig, augment_images, choose_cameras, open_cameras, uses_devices
from twinloop.train.loop import (
    collect_optimizer_tensors,
    learning_rate,
    load_optimizer_tensors,
    read_checkpoint,
    write_checkpoint,
)
from twinloop.train.run import use_torch_settings
from twinloop.train.tool import ToolKinematics
from twinloop.train.worlds import describe_worlds
from twinloop.twin import Twin

OpenWorlds = Callable[[], tuple[Plan, Task]]
"""Picklable function that returns the distribution of the worlds and the task; called once in every process."""

_BATCH = 32  # worlds that are simulated together
_PART = 128  # worlds of one file of images
_AFTER = 15  # control steps after the first success in which images are still taken
_CHECKPOINTS = 20
_LOG_EVERY = 20  # steps between two losses that trackers get
_MOVED = 1e-4  # m: a smaller change per control step is rest
_WARMUP = 0.02  # share of the steps


class LocalizeConfig(ImageConfig):
    """Configuration of the training of a localizer, with that of its images (`images.ImageConfig`).

    Attributes:
        tracked: names of the bodies whose tracked values are estimated, or patterns of names; by default all but the
            tool.
        worlds: number of worlds.
        frames: images of each camera per world, at random control steps until soon after the task succeeds.
        tracker_offset: largest constant error, in m, of the tracker that the policy reads that acts in two thirds of
            the worlds; in half of them its errors also vary.
        tracker_wander: largest standard deviation of varying errors of positions, in m.
        tracker_turn: the same for headings, in rad.
        holdout: share of the worlds that are held out.
        settings: settings of the localizer, see `policies.settings.LocalizerSettings`.
        steps: steps of the optimizer.
        batch: samples per step.
        lr: highest learning rate.
        weight_decay: weight decay of the optimizer.
        clip: largest norm of the gradient.
        seed: run seed.
    """

    tracked: tuple[str, ...] = ()
    worlds: int = Field(default=4500, ge=10)
    frames: int = Field(default=10, ge=1)
    tracker_offset: float = Field(default=0.02, ge=0, le=0.2)
    tracker_wander: float = Field(default=0.006, ge=0, le=0.1)
    tracker_turn: float = Field(default=0.15, ge=0, le=1.0)
    holdout: float = Field(default=0.1, gt=0, lt=1)
    settings: dict[str, Any] = Field(default_factory=dict)
    steps: int = Field(default=10_000, ge=1)
    batch: int = Field(default=64, ge=1)
    lr: float = Field(default=2e-3, gt=0)
    weight_decay: float = Field(default=1e-4, ge=0)
    clip: float = Field(default=1.0, gt=0)
    seed: int = Field(default=0, ge=0, lt=2**63)


@dataclass(kw_only=True)
class ImageSamples:
    """Images of randomized worlds with joint readings and true tracked values; n samples.

    Attributes:
        images: images by camera, ``(n, height, width, 3)`` uint8 sRGB.
        state: joint readings, ``(n, k)`` in the dataset's units.
        truth: tracked values, ``(n, d)``; horizontally relative to the tool as the arm believes it (`_tool_errors`).
        world: number of each sample's world, ``(n,)``.
        drift: mean square change of each tracked value per control step in which it changes, ``(d,)``.
    """

    images: dict[str, NDArray[np.uint8]]
    state: NDArray[np.float32]
    truth: NDArray[np.float32]
    world: NDArray[np.int64]
    drift: NDArray[np.float64]

    @classmethod
    def join(cls, parts: Sequence[ImageSamples]) -> ImageSamples:
        """Return the samples of all parts."""
        return cls(
            images={name: np.concatenate([part.images[name] for part in parts]) for name in parts[0].images},
            drift=np.mean([part.drift for part in parts], axis=0),
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in ("state", "truth", "world")},  # pyright: ignore[reportArgumentType]
        )

    def save(self, path: Path) -> None:
        """Write the samples as one file of arrays."""
        plain = {name: value for name, value in vars(self).items() if name != "images"}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **plain, **{f"{IMAGES}{name}": rows for name, rows in self.images.items()})
        write_bytes(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> ImageSamples:
        """Read the samples of a file that `save` wrote."""
        with np.load(path, allow_pickle=False) as stored:
            arrays = dict(stored)
        names = [name for name in arrays if name.startswith(IMAGES)]
        images = {name.removeprefix(IMAGES): arrays.pop(name) for name in names}
        return cls(images=images, **arrays)

    def observe(self, rows: NDArray[np.intp]) -> dict[str, Tensor]:
        """Return the observations of some samples, as a localizer reads them."""
        frames = {f"{IMAGES}{name}": torch.from_numpy(values[rows][:, None]) for name, values in self.images.items()}
        return {STATE: torch.from_numpy(self.state[rows][:, None]), **frames}


@dataclass(frozen=True, kw_only=True)
class _ImageJob:
    """Worlds whose images one process takes, and the file for them."""

    worlds: range
    path: Path
    open_worlds: OpenWorlds
    config: LocalizeConfig
    acting: Policy | None


def localizer_contract(plan: Plan, task: Task, config: LocalizeConfig) -> tuple[Contract, tuple[str, ...]]:
    """Return the contract of a localizer, and the names of the values it estimates.

    Raises:
        UnknownNameError: If a camera or a tracked body does not exist.
        InputError: If the task has no tracked values, or the twin no camera.
    """
    if not has_tracked_values(task):
        raise InputError(f"The task {task.name} has no tracked values, so there is nothing to localize.")
    tracked = choose_inputs(offered_contract(plan.twin, task), config.tracked).environment
    offered = offered_contract(plan.twin, task, cameras=choose_cameras(plan.twin, config))
    return replace(offered, environment=()), tracked


def take_images(job: _ImageJob) -> None:
    """Simulate worlds, and write a file with images of them at random control steps, `ImageSamples`."""
    plan, task = job.open_worlds()
    config = job.config
    _, tracked = localizer_contract(plan, task, config)
    # Other surfaces in each file. A policy from images looks through cameras of its own.
    cameras, eyes = (open_cameras(plan, config, config.seed + job.worlds.start) for _ in range(2))
    parts = list[ImageSamples]()
    for first in range(job.worlds.start, job.worlds.stop, _BATCH):
        numbers = range(first, min(first + _BATCH, job.worlds.stop))
        actor = _choose_actor(job, plan, task, eyes, first // _BATCH)
        parts.append(_take_batch(job, plan, task, cameras, numbers, tracked, actor))
    cameras.close()
    eyes.close()
    ImageSamples.join(parts).save(job.path)


def _take_batch(
    job: _ImageJob,
    plan: Plan,
    task: Task,
    cameras: WorldCamera,
    numbers: range,
    tracked: Sequence[str],
    actor: Actor,
) -> ImageSamples:
    config, params = job.config, plan.draw(numbers)
    batch = run_batch(
        plan.twin, task, params, run_seed=config.seed, episodes=numbers, actor=actor, backend=open_backend()
    )
    states, readings, valid = batch.trajectories.states[:, :-1], batch.observation, batch.trajectories.valid
    if not valid.any():
        raise CheckFailedError(
            f"Worlds {numbers.start} to {numbers.stop - 1} all diverged or could not be reset: "
            f"{batch.trajectories.reason[0]}. Check the twin with `twinloop twin check`, or narrow its ranges."
        )
    columns = [task.environment_names.index(name) for name in tracked]  # pyright: ignore[reportAttributeAccessIssue]
    truth = task.environment(states)[..., columns]  # pyright: ignore[reportAttributeAccessIssue]
    nstep = states.shape[1]
    chance = generator(config.seed, "localize/frames", numbers.start)
    wanted = np.stack([_choose_steps(chance, done, config.frames) for done in task.success(states)]) & valid[:, None]
    cameras.begin_worlds(
        EpisodeStart(numbers=np.array(numbers), params=params, initial=batch.initial, run_seed=config.seed), nstep
    )
    frames = dict[str, list[NDArray[np.uint8]]]()
    for step in range(nstep):
        cameras.watch(states[:, step])
        rows = np.flatnonzero(wanted[:, step])
        for name, images in (cameras.take(rows, step) if len(rows) else {}).items():
            frames.setdefault(name, []).append(images)
    step, world = np.nonzero(wanted.T)  # in the order in which images were taken
    changes = np.diff(truth[valid], axis=1)
    moved = np.abs(changes) > _MOVED
    seen = truth[world, step] + _tool_errors(plan.twin, tracked, states[world, step], readings[world, step])
    return ImageSamples(
        images={name: np.concatenate(parts) for name, parts in frames.items()},
        state=readings[world, step].astype(np.float32),
        truth=seen.astype(np.float32),
        world=np.array(numbers)[world],
        drift=(changes**2).sum(axis=(0, 1), where=moved) / np.maximum(moved.sum(axis=(0, 1)), 1),
    )


def _choose_steps(chance: np.random.Generator, done: NDArray[np.bool_], count: int) -> NDArray[np.bool_]:
    """Return a mask of random control steps, until soon after the first success if there is one."""
    last = min(int(done.argmax()) + _AFTER, len(done)) if done.any() else len(done)
    chosen = np.zeros(len(done), dtype=bool)
    chosen[chance.permutation(last)[:count]] = True
    return chosen


def _tool_errors(
    twin: Twin, tracked: Sequence[str], states: NDArray[np.float64], readings: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the difference between believed and true positions of the tool, for each tracked value.

    A policy moves the tool by its joint readings, whose zeros may be wrong. What it needs is where a body is relative
    to the tool; close to the tool, images of the wrist show just this. So a body at the tool is where the readings and
    the nominal geometry place the tool. Heights stay those of the world: bodies that rest are at one height in all
    worlds but for millimetres, which shows a policy that they rest. Without a tool centre point, nothing is added.

    Args:
        twin: the nominal twin.
        tracked: names of the d values.
        states: true states, ``(n, nstate)``.
        readings: joint readings, ``(n, k)`` in the dataset's units.
    """
    added = np.zeros((len(states), len(tracked)))
    if twin.robot.tcp is None:
        return added
    true = ToolKinematics(twin).locate_in_states(states)
    believed = ToolKinematics(twin).locate(twin.units.to_si(readings))
    for column, name in enumerate(tracked):
        axis = name.rpartition(".")[2]
        if axis in ("x", "y"):
            added[:, column] = (believed - true)[:, "xy".index(axis)]
    return added


def _choose_actor(job: _ImageJob, plan: Plan, task: Task, eyes: WorldCamera, batch: int) -> Actor:
    """Return who acts in a batch of worlds: the expert in every third if there is a policy, else in all."""
    if job.acting is None or batch % 3 == 0:
        return ExpertActor(task=task)
    if job.acting.contract.cameras:
        return PolicyActor(policy=job.acting, task=task, twin=plan.twin, images=eyes)
    varies = batch % 3 == 2
    tracker = TrackerNoise(
        spread=job.config.tracker_offset,
        wander=job.config.tracker_wander if varies else 0.0,
        turn=job.config.tracker_turn if varies else 0.0,
    )
    return PolicyActor(policy=job.acting, task=task, twin=plan.twin, tracker=tracker)


def train_network(
    localizer: Localizer,
    samples: ImageSamples,
    config: LocalizeConfig,
    *,
    folder: Path | None = None,
    facts: Mapping[str, Any] | None = None,
    resume: bool = False,
) -> float:
    """Train a localizer on the samples of worlds that are not held out, in place; return the mean loss at the end.

    Args:
        localizer: the localizer.
        samples: samples of all worlds.
        config: the configuration.
        folder: folder for checkpoints; None for none.
        facts: values to store in checkpoints; a run is resumed only with the same ones.
        resume: continue from the checkpoint of the folder.

    Raises:
        CheckFailedError: If the loss is not finite.
    """
    rows = np.flatnonzero(~held_out(samples.world, config))
    weights = list(localizer.network.parameters())
    optimizer = torch.optim.AdamW(weights, lr=config.lr, weight_decay=config.weight_decay)
    begin, interval, recent = 0, max(1, config.steps // _CHECKPOINTS), torch.zeros(())
    if resume and folder is not None:
        checkpoint = read_checkpoint(folder)
        if {name: checkpoint.facts.get(name) for name in facts or {}} != dict(facts or {}):
            raise InputError(f"The checkpoint in {folder} is of a run with other settings. Choose another --output.")
        localizer.load_state_dict(checkpoint.tensor_group("policy"))
        load_optimizer_tensors(optimizer, checkpoint.tensor_group("optimizer"))
        begin, recent = int(checkpoint.facts["step"]), torch.tensor(checkpoint.facts["loss"], dtype=torch.float32)
    localizer.train()
    with show_progress(label="training", total=config.steps, done=begin) as advance:
        for step in range(begin, config.steps):
            chance = generator(config.seed, "localize/batches", step)
            torch_chance = torch.Generator().manual_seed(int(chance.integers(2**63)))
            index = rows[chance.integers(0, len(rows), config.batch)]
            seen = samples.observe(index)
            for name in samples.images:
                seen[f"{IMAGES}{name}"] = augment_images(seen[f"{IMAGES}{name}"], torch_chance)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, steps=config.steps, peak=config.lr, warmup=_WARMUP)
            loss = localizer.measure_loss(seen, torch.from_numpy(samples.truth[index]))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(weights, config.clip)
            optimizer.step()
            recent = loss.detach() if step == 0 else 0.99 * recent + 0.01 * loss.detach()
            advance(1)
            if (step + 1) % _LOG_EVERY == 0:
                log_metrics(step + 1, {"loss": float(recent)})
            if (step + 1) % interval == 0:
                if not torch.isfinite(recent):
                    raise CheckFailedError(f"The loss is not finite at step {step + 1}. Lower lr, and start again.")
                if folder is not None:
                    groups = {"policy": localizer.state_dict(), "optimizer": collect_optimizer_tensors(optimizer)}
                    write_checkpoint(folder, groups, {**(facts or {}), "step": step + 1, "loss": float(recent)})
    localizer.eval()
    return float(recent)


def held_out(world: NDArray[np.int64], config: LocalizeConfig) -> NDArray[np.bool_]:
    """Return a mask of the samples of held-out worlds, by the numbers of their worlds ``(n,)``."""
    drawn = generator(config.seed, "localize/holdout").random(config.worlds) < config.holdout
    drawn[0] = True  # at least one
    return drawn[world]


def fit_uncertainty(localizer: Localizer, samples: ImageSamples, config: LocalizeConfig) -> dict[str, Any]:
    """Set drift and spread of a trained localizer, and return its errors in held-out worlds; see `measure_errors`."""
    rows = np.flatnonzero(held_out(samples.world, config))
    found, deviation = localizer.estimate_tracked(samples.observe(rows))
    truth = localizer.match_turns(torch.from_numpy(found), torch.from_numpy(samples.truth[rows]).double()).numpy()
    ratio, world, names = (found - truth) / deviation, samples.world[rows], localizer.settings.tracked
    even = np.isin(world, np.unique(world)[::2])  # worlds for the factor; the others show whether it holds
    factor = np.quantile(np.abs(ratio[even]), 0.95, axis=0) / _TWO_SIDED
    # A moving body keeps its direction from one image to the next, so its displacement is that of one step times their
    # number, and the variance their number squared; the filter adds the drift once per step.
    localizer.drift.copy_(torch.from_numpy(samples.drift * localizer.settings.look_every))
    localizer.spread.copy_(torch.from_numpy(factor))
    others = ratio[~even] if (~even).any() else ratio
    within = np.mean(np.abs(others) <= _TWO_SIDED * factor, axis=0)
    return {
        "bodies": measure_errors(names, found, truth, world, seed=config.seed),
        "inside_95": dict(zip(names, within.tolist(), strict=True)),
        "worlds": len(np.unique(world)),
    }


_TWO_SIDED = 1.96  # standard deviations that contain 95 % of a normal distribution


def position_columns(names: Sequence[str], body: str) -> NDArray[np.intp]:
    """Return the columns of a body's position among tracked values of these names."""
    return np.array([i for i, name in enumerate(names) if name in (f"{body}.x", f"{body}.y", f"{body}.z")], np.intp)


def measure_distances(names: Sequence[str], found: NDArray, truth: NDArray, body: str) -> NDArray[np.float64]:
    """Return the distances of a body's estimates from its true positions ``(n,)`` in m, NaN where these are unknown.

    Where only the true height is unknown, the distance is horizontal; see `measure_errors` for the arguments.
    """
    columns = position_columns(names, body)
    difference = (found - truth)[:, columns]
    height = [names[column].endswith(".z") for column in columns]
    difference[:, height] = np.where(np.isnan(truth[:, columns[height]]), 0.0, difference[:, height])
    return np.linalg.norm(difference, axis=1)


def measure_errors(
    names: Sequence[str], found: NDArray, truth: NDArray, cluster: NDArray, *, seed: int = 0
) -> dict[str, dict[str, Any]]:
    """Return the errors of estimates by body: median and 90 % quantile in m or rad, with an interval of the median.

    The error of a position is the distance; of a heading, the angle. The interval is a bootstrap over clusters.

    Args:
        names: names of the d values, such as ``cube.x`` and ``cube.heading.cos``.
        found: estimates, ``(n, d)``.
        truth: true values, ``(n, d)``; NaN where they are unknown.
        cluster: number of each row's world or photo, ``(n,)``.
        seed: seed of the bootstrap.
    """
    errors = dict[str, NDArray]()
    for body in dict.fromkeys(name.partition(".")[0] for name in names):
        turn = [i for i, name in enumerate(names) if name in (f"{body}.heading.cos", f"{body}.heading.sin")]
        if len(position_columns(names, body)):
            errors[f"{body}, m"] = measure_distances(names, found, truth, body)
        if len(turn) == 2:
            angle = [np.arctan2(values[:, turn[1]], values[:, turn[0]]) for values in (found, truth)]
            errors[f"{body} heading, rad"] = np.abs(np.angle(np.exp(1j * (angle[0] - angle[1]))))
    made = dict[str, dict[str, Any]]()
    for name, values in errors.items():
        known = np.isfinite(values)
        if not known.any():
            continue
        made[name] = {**_summarize(values[known], cluster[known], seed), "n": int(known.sum())}
    return made


def _summarize(values: NDArray, cluster: NDArray, seed: int) -> dict[str, Any]:
    groups = [values[cluster == number] for number in np.unique(cluster)]
    summary = {"median": float(np.median(values)), "q90": float(np.quantile(values, 0.9))}
    if len(groups) < 2:
        return {**summary, "low": float("nan"), "high": float("nan")}

    def median(index: NDArray[np.intp]) -> NDArray[np.float64]:
        return np.array([np.median(np.concatenate([groups[i] for i in row])) for row in index])

    interval = bootstrap(median, len(groups), method="percentile", draws=500, seed=seed)
    return {**summary, "low": float(interval.low), "high": float(interval.high)}


@dataclass(kw_only=True)
class LocalizeRun:
    """One training of a localizer.

    Attributes:
        open_worlds: function that returns plan and task in every process.
        config: the configuration.
        folder: folder of the localizer, with images and checkpoint during the run.
        control: policy that reads the estimates, and acts in most of the worlds; None for a localizer alone.
        base: policy from images whose localizer is trained on; it acts in most of the worlds.
        workers: number of processes that take images.
    """

    open_worlds: OpenWorlds
    config: LocalizeConfig
    folder: Path
    control: Policy | None = None
    base: Localizer | None = None
    workers: int = 1
    facts: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.plan, self.task = self.open_worlds()
        if self.base is not None:
            self.config = self._continue(self.base)
        self.contract, self.tracked = localizer_contract(self.plan, self.task, self.config)
        if self.base is not None and (unlike := self.base.contract.find_differences(self.contract)):
            raise InputError("The localizer to train on does not fit these worlds. " + "; ".join(unlike) + ".")
        if self.control is None and not (has_expert(self.task) and self.task.expert_version):
            raise InputError(f"The task {self.task.name} has no expert. Give a policy that acts with --control.")
        joints = () if self.contract.state is None else self.contract.state.names
        untrained = self._make_untrained(np.eye(2, len(joints)), np.eye(2, len(self.tracked)))
        if self.control is not None:
            attach_control(untrained, self.control)  # raises the errors before the images
        parts = [self.config.model_dump(mode="json"), self.task.name, self.task.version, self.plan.hash,
                 self.plan.twin.hash, None if self.control is None else self.control.hash,
                 *([] if self.base is None else [self.base.hash])]  # fmt: skip
        self.facts = {"configuration": sha256_json(parts)}

    def _continue(self, base: Localizer) -> LocalizeConfig:
        """Return the configuration with the cameras and bodies of a localizer, whose policy becomes ``control``."""
        if base.control is None:
            raise InputError("The localizer to train on has no policy that could act. Add one with `localize attach`.")
        if self.control is not None or self.config.settings:
            raise InputError("A localizer is trained on with its own policy and settings. Leave the others out.")
        self.control = base.control
        cameras, names = base.contract.cameras, base.settings.tracked
        height, width = next(iter(cameras.values()))
        bodies = tuple(dict.fromkeys(name.partition(".")[0] for name in names))
        same = {"cameras": tuple(cameras), "height": height, "width": width, "tracked": bodies}
        return self.config.model_copy(update=same)

    def collect(self) -> ImageSamples:
        """Take the images that do not exist yet, in several processes, and return all samples."""
        folder = self.folder / ROUNDS
        folder.mkdir(parents=True, exist_ok=True)
        jobs = [
            _ImageJob(
                worlds=range(first, min(first + _PART, self.config.worlds)),
                path=folder / f"{first // _PART:03d}.npz",
                open_worlds=self.open_worlds,
                config=self.config,
                acting=self.base or self.control,
            )
            for first in range(0, self.config.worlds, _PART)
        ]
        missing = [job for job in jobs if not job.path.exists()]
        done = self.config.worlds - sum(len(job.worlds) for job in missing)
        with (
            LocalProcesses(min(self.workers, len(missing))) as engine,
            show_progress(label="images of worlds", total=self.config.worlds, done=done) as advance,
        ):
            for job, _ in engine.map(take_images, missing):
                advance(len(job.worlds))
        return ImageSamples.join([ImageSamples.load(job.path) for job in jobs])

    def make_localizer(self, samples: ImageSamples) -> Localizer:
        """Return an untrained localizer, normalized with the samples; or that of the base."""
        if self.base is not None:
            return detach_control(self.base)
        return self._make_untrained(samples.state, samples.truth)

    def _make_untrained(self, state: NDArray, truth: NDArray) -> Localizer:
        """Return a localizer normalized with joint readings ``(n, k)`` and true values ``(n, d)``."""
        columns = {STATE: state, ACTION: state, ENVIRONMENT: truth}
        statistics = Statistics.measure(columns, source=f"{self.config.worlds} worlds")
        turns = getattr(self.task, "equal_turns", {})
        settings = {"tracked": self.tracked, "equal_turns": dict(turns), **self.config.settings}
        made = new_policy("localizer", self.contract, settings, statistics, seed=self.config.seed)
        assert isinstance(made, Localizer)  # noqa: S101 - of this kind
        return made


def train_localizer(
    open_worlds: OpenWorlds,
    config: LocalizeConfig,
    output: Path,
    *,
    control: Policy | None = None,
    base: Localizer | None = None,
    assignment: tuple[Assignment, Mapping[str, Path]] | None = None,
    workers: int = 1,
    resume: bool = False,
) -> dict[str, Any]:
    """Train a localizer and write it with ``result.json`` into a folder; return the content of this file.

    Args:
        open_worlds: picklable function that returns the distribution of the worlds, and the task.
        config: the configuration.
        output: the folder.
        control: policy that reads a tracker, to which the localizer is attached; None for a localizer alone.
        base: policy from images whose localizer is trained on, with images of worlds in which it acts itself.
        assignment: twin and task that the localizer keeps, with their files; see `tasks.assignment.assign`.
        workers: number of processes that take images; the result does not depend on it.
        resume: continue an interrupted run.

    Raises:
        InputError: If task, cameras and control do not fit, or the folder is in use for something else.
        CheckFailedError: If all worlds of a batch are invalid, or the loss is not finite.
    """
    run = LocalizeRun(
        open_worlds=open_worlds, config=config, folder=output, control=control, base=base, workers=workers
    )
    config, control = run.config, run.control
    if is_finished(output, resume=resume):
        return finish(output, run.facts)
    output.mkdir(parents=True, exist_ok=True)
    with hold_folder_lock(output, "training"), use_torch_settings("cpu"):
        samples = run.collect()
        localizer = run.make_localizer(samples)
        going_on = resume and (output / CHECKPOINT).exists()
        loss = train_network(localizer, samples, config, folder=output, facts=run.facts, resume=going_on)
        errors = fit_uncertainty(localizer, samples, config)
        made = localizer if control is None else attach_control(localizer, control)
        metrics = {
            "schema": 1,
            "verb": "localize",
            "hash": made.hash,
            "parameters": made.parameter_count,
            "config": config.model_dump(mode="json"),
            "twin": run.plan.twin.name,
            "twin_hash": run.plan.twin.hash,
            "task": run.task.name,
            "seed": config.seed,
            "images": "device" if uses_devices(run.plan.twin, config) else "clean",
            "control": None if control is None else control.hash,
            "samples": len(samples.world),
            "loss": loss,
            "held_out": errors,
            "worlds": describe_worlds(run.plan.twin, [run.plan.draw(range(config.worlds))]),
            "versions": {"twinloop": __version__, "torch": torch.__version__, "numpy": np.__version__},
            **run.facts,
        }
        kept = {} if assignment is None else {"assignment": assignment[0], "sources": assignment[1]}
        row = {"name": "images", "episodes": config.worlds, "real": False, "frames": len(samples.world)}
        card = PolicyCard(name=output.name, data=(row,), provenance={"code": f"twinloop {__version__}"}, **kept)
        made.save(output, card)
        write_json(output / RESULT, metrics)
    return finish(output, run.facts)
