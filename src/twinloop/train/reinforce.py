"""Train a policy by reinforcement: PPO in the randomized worlds of a plan, whose adaptive ranges grow with success.

One iteration runs one episode in every world. Ranges that are adaptive (`randomize.adaptive`) are a curriculum: they
begin narrow, and change after a fixed number of episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray
from pydantic import Field

from twinloop import __version__
from twinloop.core.assignment import Assignment
from twinloop.core.errors import CheckFailedError, InputError
from twinloop.core.files import sha256_json, write_json
from twinloop.core.metrics import log_metrics
from twinloop.core.progress import show_progress
from twinloop.core.seeds import MAX_EPISODES, stream_key
from twinloop.dataset.storage.snapshot import hold_folder_lock
from twinloop.policies.factory import new_policy
from twinloop.policies.folder import PolicyCard
from twinloop.policies.policy import Policy
from twinloop.policies.settings import read_settings
from twinloop.policies.statistics import ColumnStatistics, Statistics
from twinloop.randomize import Plan, run_rounds
from twinloop.randomize.adaptive import Counts, count_at_boundaries, describe_rounds
from twinloop.rollout.observing import offered_contract
from twinloop.simulate import open_backend
from twinloop.tasks.protocol import Task, has_tracked_values
from twinloop.tasks.rewards import read_reward
from twinloop.train.config import CHECKPOINT, RESULT, StrictConfig
from twinloop.train.distill import choose_inputs, finish, is_finished
from twinloop.train.loop import (
    collect_optimizer_tensors,
    learning_rate,
    load_optimizer_tensors,
    read_checkpoint,
    write_checkpoint,
)
from twinloop.train.ppo import EpisodeSums, PolicyWorlds, PpoTrainer, TrainingEnv
from twinloop.train.reward_report import make_actors, make_report, measure_statistics, run_actors
from twinloop.train.run import use_torch_settings
from twinloop.train.worlds import describe_worlds

_REWARD = {"progress": 1.0, "holding": 1.0, "effort": 0.05, "smoothness": 0.05, "limits": 1.0}
_SETTINGS = {"chunk_size": 1, "n_action_steps": 1, "last_command": True, "width": 128, "depth": 2}


class ReinforceConfig(StrictConfig):
    """Configuration of training by reinforcement.

    Attributes:
        inputs: names or patterns of the bodies whose tracked values the policy reads; by default all but the tool.
        settings: settings of the policy, of kind ``mlp``.
        reward: weight of each reward term, see `tasks.rewards`.
        worlds: number of worlds.
        iterations: number of iterations; each runs one episode in every world.
        delta: change of a command per control step for a normalized command of 1, as a fraction of its range.
        init_std: initial standard deviation of normalized commands.
        passes: passes over the samples of an iteration.
        batch: samples per step of the optimizer.
        lr: learning rate of the first iteration; it falls to zero along a cosine.
        gamma: discount factor per control step.
        gae_lambda: decay of the generalized advantage estimate.
        clip: clipping of the probability ratio.
        entropy: weight of the entropy in the loss.
        target_kl: divergence of the new from the old policy beyond which an iteration's update ends.
        report_episodes: episodes of the reward report.
        seed: run seed of the weights and of the exploration.
    """

    inputs: tuple[str, ...] = ()
    settings: dict[str, Any] = Field(default_factory=dict)
    reward: dict[str, float] = Field(default_factory=lambda: dict(_REWARD))
    worlds: int = Field(default=32, ge=1)
    iterations: int = Field(default=100, ge=1)
    delta: float = Field(default=0.01, gt=0, le=1)
    init_std: float = Field(default=0.6, gt=0)
    passes: int = Field(default=10, ge=1)
    batch: int = Field(default=512, ge=2)
    lr: float = Field(default=1e-3, gt=0)
    gamma: float = Field(default=0.98, gt=0, le=1)
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    clip: float = Field(default=0.2, gt=0)
    entropy: float = Field(default=0.0, ge=0)
    target_kl: float = Field(default=0.03, gt=0)
    report_episodes: int = Field(default=64, ge=2)
    seed: int = Field(default=0, ge=0, lt=2**63)


class PlannedEnv(TrainingEnv, Protocol):
    """Training environment whose plan can be replaced between episodes."""

    def set_plan(self, plan: Plan) -> None:
        """Set the plan of the next episodes."""
        ...


MakeEnv = Callable[[Plan, Mapping[str, float], int], PlannedEnv]
"""Function that makes the environment, from the plan, the weights of the reward terms, and the number of worlds."""


@dataclass(kw_only=True)
class ReinforceRun:
    """One run of training by reinforcement; `run` does all iterations that are not done yet.

    Attributes:
        plan: distribution of the worlds.
        task: the task.
        task_name: name with which the task was opened.
        config: the configuration.
        folder: folder of the policy, with the checkpoint during the run.
        make_env: function that makes the environment.
        rows: facts about each finished iteration.
        outcomes: attempts and successes at the ends of the adaptive ranges, in each finished round.
        report: the reward report.
    """

    plan: Plan
    task: Task
    task_name: str
    config: ReinforceConfig
    folder: Path
    make_env: MakeEnv
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    outcomes: list[Counts] = field(default_factory=list[Counts])
    report: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not has_tracked_values(self.task):
            raise InputError(
                f"The task {self.task.name} has no tracked values, which training by reinforcement needs. Give it "
                "environment_names and a method environment (see twinloop.tasks.protocol.TrackedTask)."
            )
        offered = offered_contract(self.plan.twin, self.task)
        self.contract = choose_inputs(offered, self.config.inputs)
        self.columns = [offered.environment.index(name) for name in self.contract.environment]
        space = "delta_to_command" if self.plan.twin.robot.control == "position" else "absolute"
        self.settings = read_settings("mlp", {**_SETTINGS, "action_space": space, **self.config.settings})
        if self.settings.chunk_size != 1 or self.settings.domains or self.settings.action_space == "delta_to_state":
            raise InputError(
                "Training by reinforcement needs chunk_size 1, no domains, and action_space absolute or "
                "delta_to_command. Leave these settings out."
            )
        self.weights = read_reward(self.config.reward, where="The reward")
        self._check_sizes()
        world = self.plan.draw(range(1)).row(0)  # differs if the distribution of the worlds or its seed does
        task = [self.task.name, self.task.version, self.task.success_version]
        parts = [self.config.model_dump(mode="json"), self.plan.twin.hash, task, dict(world)]
        self.facts = {"configuration": sha256_json(parts)}

    def _check_sizes(self) -> None:
        config, draw = self.config, self.plan.adaptive
        if config.worlds * (config.iterations + 1) >= MAX_EPISODES:
            raise InputError(f"A run has at most {MAX_EPISODES} episodes. Give fewer worlds or iterations.")
        if config.batch > config.worlds * self.task.nstep:
            raise InputError(
                f"batch {config.batch} is more than the {config.worlds * self.task.nstep} samples of an iteration. "
                "Give a smaller batch, or more worlds."
            )
        if draw is not None and draw.every % config.worlds:
            raise InputError(
                f"randomization.adaptive.every is {draw.every}, but one iteration has {config.worlds} episodes. Choose "
                f"a multiple of --worlds, so that ranges change between iterations."
            )

    @property
    def history(self) -> dict[str, Any] | None:
        """History of the adaptive ranges; None if no ranges are adaptive."""
        draw = self.plan.adaptive
        return None if draw is None else describe_rounds(draw, self.plan.twin, *run_rounds(draw, self.outcomes))

    def measure(self) -> Statistics:
        """Make the reward report; return the statistics of the policy's inputs and commands."""
        action = self._action_statistics()
        actors = make_actors(
            self.plan, self.task, action, is_relative=self.settings.action_space != "absolute", std=self.config.init_std
        )
        episodes = self.config.report_episodes
        if self.plan.adaptive is not None:
            episodes = min(episodes, self.plan.adaptive.every)
        made = run_actors(self.plan, self.task, actors, episodes=episodes, backend=open_backend())
        found = make_report(made, self.task_name, self.weights)
        self.report = {"rows": found.rows, "warnings": found.warnings}
        return measure_statistics(made, self.columns, action)

    def run(self, statistics: Statistics | None) -> Policy:
        """Return the trained policy.

        Args:
            statistics: statistics of a new run; None to continue from the checkpoint.

        Raises:
            InputError: If the checkpoint belongs to another configuration.
            CheckFailedError: If all worlds of an iteration are invalid, or a weight is not finite.
        """
        config, nstep = self.config, self.task.nstep
        checkpoint = read_checkpoint(self.folder) if statistics is None else None
        if checkpoint is not None:
            self._check_configuration(checkpoint.facts)
            statistics = Statistics.from_json(checkpoint.facts["statistics"])
        assert statistics is not None  # noqa: S101 - of the checkpoint
        with use_torch_settings("cpu"):
            policy = new_policy("mlp", self.contract, self.settings, statistics, seed=config.seed)
            env = self.make_env(self.plan, self.weights, config.worlds)
            worlds = PolicyWorlds(env, policy, columns=self.columns, nstep=nstep, start=self._starter(env))
            trainer = PpoTrainer(
                policy,
                worlds,
                nstep=nstep,
                seed=config.seed % 2**32,
                init_std=config.init_std,
                options=_options(config),
            )
            if checkpoint is not None:
                self.rows, self.report = list(checkpoint.facts["rows"]), checkpoint.facts["report"]
                self.outcomes = [tuple((a, s) for a, s in counts) for counts in checkpoint.facts["outcomes"]]
                self._pending = np.array(checkpoint.facts["pending"], dtype=np.int64)
                trainer.modules.load_state_dict(checkpoint.tensor_group("modules"))
                load_optimizer_tensors(trainer.optimizer, checkpoint.tensor_group("optimizer"))
            self._iterate(trainer, statistics)
        return policy

    def _iterate(self, trainer: PpoTrainer, statistics: Statistics) -> None:
        config = self.config
        done, samples = len(self.rows), config.worlds * self.task.nstep
        with show_progress(label="reinforce", total=config.iterations * samples, done=done * samples) as advance:
            for number in range(done, config.iterations):
                rate = learning_rate(number, steps=config.iterations, peak=config.lr, warmup=0.0)
                seed = stream_key(config.seed, f"reinforce/iteration/{number}")[0] % 2**32
                facts = trainer.run_iteration(rate=rate, seed=seed)
                if not np.isfinite(list(facts.values())).all():
                    raise CheckFailedError(f"The update of iteration {number} is not finite. Lower lr.")
                self.rows[-1].update(facts)
                row = self.rows[-1]
                log_metrics(number + 1, {"success": row["successes"] / row["worlds"], "return": row["return"], **facts})
                self._save(trainer, statistics)
                advance(samples)

    def _starter(self, env: PlannedEnv) -> Callable[[EpisodeSums | None], tuple[int, NDArray[np.int64]]]:
        """Return the function that ends an iteration and starts the next one."""
        worlds = self.config.worlds
        self._pending = np.zeros((0, 2), dtype=np.int64)

        def start(sums: EpisodeSums | None) -> tuple[int, NDArray[np.int64]]:
            if sums is not None:
                self._end_iteration(sums)
            first = len(self.rows) * worlds
            if self.plan.adaptive is not None:
                env.set_plan(self._current_plan())
            return self.plan.run_seed, np.arange(first, first + worlds)

        return start

    def _current_plan(self) -> Plan:
        """Return the plan with the ranges of all rounds so far."""
        if self.plan.adaptive is None:
            return self.plan
        rounds, ranges = run_rounds(self.plan.adaptive, self.outcomes)
        return self.plan.with_rounds({**{one.number: one.ranges for one in rounds}, len(rounds): ranges})

    def describe_worlds(self) -> dict[str, Any]:
        """Return facts about the worlds of all iterations; see `worlds.describe_worlds`."""
        plan = self._current_plan()
        return describe_worlds(plan.twin, [plan.draw(range(sum(row["worlds"] for row in self.rows)))])

    def _end_iteration(self, sums: EpisodeSums) -> None:
        if not sums.valid.any():
            raise CheckFailedError(
                f"All {len(sums.valid)} worlds of iteration {len(self.rows)} became invalid. Check the twin with "
                "`twinloop twin check`, or narrow its ranges."
            )
        first = len(self.rows) * len(sums.valid)
        numbers, draw = np.arange(first, first + len(sums.valid)), self.plan.adaptive
        self.rows.append(
            {
                "worlds": len(sums.valid),
                "invalid": int((~sums.valid).sum()),
                "successes": int(sums.success.sum()),
                "return": float(sums.returns.mean()),
                "terms": {name: float(self.weights[name] * values.mean()) for name, values in sums.terms.items()},
            }
        )
        if draw is None:
            return
        counts = np.array(count_at_boundaries(draw, self.plan.run_seed, numbers, sums.success))
        self._pending = counts + (self._pending if len(self._pending) else 0)
        if (first + len(sums.valid)) % draw.every == 0:
            self.outcomes.append(tuple((int(a), int(s)) for a, s in self._pending))
            self._pending = np.zeros((0, 2), dtype=np.int64)

    def _action_statistics(self) -> ColumnStatistics:
        """Return statistics that make a normalized command of 1 a change by ``delta`` of its range.

        If commands are absolute, -1 and 1 are the ends of the range.
        """
        ends = self.plan.twin.command_units.from_si(np.stack(self.plan.twin.find_command_ranges()))
        size, centre = np.abs(ends[1] - ends[0]), ends.mean(axis=0)
        relative = self.settings.action_space != "absolute"
        scale, mean = (self.config.delta * size, 0.0 * size) if relative else (size / 2, centre)
        low, high = mean - scale, mean + scale
        return ColumnStatistics(mean=mean, std=scale, min=low, max=high, q01=low, q99=high)

    def _save(self, trainer: PpoTrainer, statistics: Statistics) -> None:
        groups = {"modules": trainer.modules.state_dict(), "optimizer": collect_optimizer_tensors(trainer.optimizer)}
        facts = {"rows": self.rows, "outcomes": self.outcomes, "pending": self._pending.tolist(), "report": self.report}
        write_checkpoint(self.folder, groups, {**self.facts, **facts, "statistics": statistics.to_json()})

    def _check_configuration(self, facts: Mapping[str, Any]) -> None:
        if facts.get("configuration") != self.facts["configuration"]:
            raise InputError(
                f"{self.folder / CHECKPOINT} belongs to a run with another configuration, twin, task or randomization. "
                "Resume with the same settings and file, or train into another --output."
            )


def _options(config: ReinforceConfig) -> dict[str, Any]:
    return {
        "batch_size": config.batch,
        "n_epochs": config.passes,
        "gamma": config.gamma,
        "gae_lambda": config.gae_lambda,
        "clip_range": config.clip,
        "ent_coef": config.entropy,
        "target_kl": config.target_kl,
    }


def reinforce(
    run: ReinforceRun,
    *,
    assignment: tuple[Assignment, Mapping[str, Path]] | None = None,
    resume: bool = False,
    show_report: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Train a policy, and write it with ``result.json`` into the folder of the run; return the content of this file.

    The same configuration and plan give the same weights on one machine, also after an interruption.

    Args:
        run: the run.
        assignment: twin and task that the policy keeps, with their files; see `tasks.assignment.assign`.
        resume: continue from the checkpoint in the folder.
        show_report: function that shows the reward report before training.

    Raises:
        InputError: If the folder is in use for something else.
        CheckFailedError: If all worlds of an iteration are invalid, or an update is not finite.
    """
    output = run.folder
    if is_finished(output, resume=resume):
        return finish(output, run.facts)
    with hold_folder_lock(output, "training"):
        statistics = None
        if not resume:
            statistics = run.measure()
            show_report(run.report)
        policy = run.run(statistics)
        metrics = {**_make_metrics(run, policy), **run.facts}
        kept = {} if assignment is None else {"assignment": assignment[0], "sources": assignment[1]}
        policy.save(output, replace(_make_card(output.name, metrics), **kept))
        write_json(output / RESULT, metrics)
    return finish(output, run.facts)


def _make_metrics(run: ReinforceRun, policy: Policy) -> dict[str, Any]:
    return {
        "schema": 1,
        "verb": "reinforce",
        "policy": "mlp",
        "hash": policy.hash,
        "parameters": policy.parameter_count,
        "config": run.config.model_dump(mode="json"),
        "twin": run.plan.twin.name,
        "twin_hash": run.plan.twin.hash,
        "task": run.task.name,
        "seed": run.config.seed,
        "steps": sum(row["worlds"] for row in run.rows) * run.task.nstep,
        "reward_report": run.report,
        "worlds": run.describe_worlds(),
        "iterations": run.rows,
        "ranges": run.history,
        "versions": {"twinloop": __version__, "torch": torch.__version__, "numpy": np.__version__},
    }


def _make_card(name: str, metrics: Mapping[str, Any]) -> PolicyCard:
    episodes = sum(row["worlds"] for row in metrics["iterations"])
    data = ({"name": "PPO", "episodes": episodes, "real": False, "frames": metrics["steps"]},)
    reward = " + ".join(f"{weight:g} {term}" for term, weight in metrics["config"]["reward"].items())
    provenance = {
        "code": f"twinloop {__version__}",
        "twins": f"{metrics['twin']} {metrics['twin_hash'][:16]}",
        "acted": f"the policy itself, in {episodes} episodes",
        "reward": reward,
        "seed": metrics["seed"],
    }
    return PolicyCard(name=name, data=data, provenance=provenance)
