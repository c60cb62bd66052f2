"""Train LeRobot policies (ACT, diffusion, SmolVLA, π0 and others) with ``lerobot-train``.

The episodes of all sources are written to one LeRobot v3.0 folder, repeated so that each source has its share.
``lerobot-train`` (0.4.4, the last version for Python 3.11) trains on that folder, in this Python environment or another
one. The result is a policy folder like any other, which LeRobot runs (`train.lerobot_policy`). Data and checkpoints are
kept next to the policy's folder, in ``FOLDER.lerobot``.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from twinloop import __version__
from twinloop.core.contract import ENVIRONMENT, IMAGES, STATE
from twinloop.core.documents import read_json
from twinloop.core.errors import CheckFailedError, InputError
from twinloop.core.files import sha256_json, write_json
from twinloop.core.progress import show_progress
from twinloop.dataset.edit.source import EditSource as Opened
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.policies.folder import PolicyCard
from twinloop.train.common_features import OBJECT_INPUT, CommonFeatures, find_common_features
from twinloop.train.config import TrainConfig
from twinloop.train.lerobot_mixture import MaterializedDataset, materialize
from twinloop.train.lerobot_policy import SIDE, require_lerobot, save_lerobot
from twinloop.train.sources import TrainingSource, open_sources

PREFIX = "lerobot:"
DATASET, RUN = "dataset", "run"
STEPS = 100_000  # default of lerobot-train
_CHECKPOINTS = 5  # as lerobot-train with its default steps and save_freq
_POINTS = 100  # points of the loss curve

# lerobot-train logs "step:1K smpl:8K ep:3 epch:0.12 loss:2.345 grdn:…" every log_freq steps, large numbers shortened.
_LINE = re.compile(r"step:\S+ .*?loss:([-+.\deE]+|nan|inf)")

# Fields of a configuration that lerobot-train does not support.
_NOT_THERE = ("curriculum", "domain_token", "adapt", "align", "pixels", "ema", "lr", "patience")


def training_arguments(config: TrainConfig, kind: str, output: Path) -> list[str]:
    """Return the command-line arguments of ``lerobot-train`` for a new run.

    Args:
        config: the training configuration.
        kind: LeRobot's name of the policy type, such as ``act``.
        output: folder of the new policy.
    """
    settings = {"device": config.device, "push_to_hub": False, **config.settings}
    path = settings.pop("path", None)
    steps, work = config.steps or STEPS, lerobot_run_folder(output)
    words = {
        "dataset.repo_id": f"local/{output.name or 'mixture'}",
        "dataset.root": str((work / DATASET).resolve()),
        **({"policy.type": kind} if path is None else {"policy.path": path}),
        **{f"policy.{name}": value for name, value in settings.items()},
        "output_dir": str((work / RUN).resolve()),
        "job_name": output.name or "twinloop",
        "steps": steps,
        **({"batch_size": config.batch} if config.batch else {}),
        "seed": config.seed,
        **({"num_workers": config.threads} if config.threads else {}),
        "save_freq": max(1, steps // _CHECKPOINTS),
        "log_freq": log_interval(config),
        "wandb.enable": False,
    }
    return [f"--{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in words.items()]


def resume_arguments(work: Path, config: TrainConfig) -> list[str]:
    """Return the arguments of ``lerobot-train`` to resume from the last checkpoint, which holds the other settings.

    Args:
        work: folder of data and checkpoints, see `lerobot_run_folder`.
        config: the training configuration; only its number of steps is used.

    Raises:
        InputError: If there is no checkpoint.
    """
    file = work / RUN / "checkpoints" / "last" / "pretrained_model" / "train_config.json"
    if not file.is_file():
        raise InputError(f"{work} holds no checkpoint of LeRobot to resume: {file} is missing. Train without --resume.")
    return [f"--config_path={file.resolve()}", "--resume=true", f"--steps={config.steps or STEPS}"]


def parse_loss(line: str) -> float | None:
    """Return the loss in a log line of ``lerobot-train``, or None if the line has no loss."""
    found = _LINE.search(line)
    return None if found is None else float(found[1])


def require_supported_kind(config: TrainConfig) -> str:
    """Return LeRobot's name of the policy type of a configuration.

    Raises:
        InputError: If the name is malformed, or the configuration has settings that ``lerobot-train`` lacks.
    """
    kind = config.policy.removeprefix(PREFIX)
    if not re.fullmatch(r"[a-z0-9_]+", kind):
        raise InputError(f"--policy {config.policy}: write lerobot:TYPE with LeRobot's name, such as lerobot:act.")
    plain = TrainConfig(sources=config.sources)
    unsupported = [name for name in _NOT_THERE if getattr(config, name) != getattr(plain, name)]
    if unsupported:
        extra = " Set the rate with --set optimizer_lr=…" if "lr" in unsupported else ""
        raise InputError(
            f"lerobot-train does not support {', '.join(unsupported)}. Leave it out, or train mlp, act or flow.{extra}"
        )
    return kind


def log_interval(config: TrainConfig) -> int:
    """Return the number of training steps between two log lines of ``lerobot-train``."""
    return max(1, (config.steps or STEPS) // _POINTS)


def lerobot_run_folder(output: Path) -> Path:
    """Return the folder that holds the written dataset and LeRobot's checkpoints of the policy folder ``output``."""
    return output.with_name(f"{output.name}.lerobot")


_LAST_LINES = 12  # of the program's output, in a message


@dataclass(frozen=True, kw_only=True)
class LeRobotTrainingResult:
    """Result of a training by LeRobot.

    Attributes:
        folder: the policy folder.
        checkpoint: folder of LeRobot's last checkpoint.
        metrics: metrics, the content of ``result.json``.
        folders: folder of the dataset that contains each episode, by episode id.
    """

    folder: Path
    checkpoint: Path
    metrics: dict[str, Any]
    folders: Mapping[str, Path]


def train_lerobot(
    config: TrainConfig,
    output: Path | str,
    *,
    python: Path | None = None,
    workspace: Path | None = None,
    resume: bool = False,
) -> LeRobotTrainingResult:
    """Write the training data as one dataset, run ``lerobot-train`` on it, and save its last checkpoint as a policy.

    The dataset is written to ``OUTPUT.lerobot/dataset`` and LeRobot's run to ``OUTPUT.lerobot/run``. Once the policy is
    saved, both are needed only to resume.

    Args:
        config: ``policy`` is ``lerobot:TYPE``; ``settings`` are LeRobot's settings of that policy (``path`` is a
            pretrained policy to start from). Steps, batch size, seed and device are passed to LeRobot if given; nothing
            is held out.
        output: folder of the new policy.
        python: interpreter of the environment that has LeRobot; see `lerobot_policy.require_lerobot`.
        workspace: workspace to search for dataset versions and SQL queries.
        resume: continue from LeRobot's last checkpoint in ``OUTPUT.lerobot``.

    Raises:
        MissingDependencyError: If LeRobot is not installed.
        InputError: If ``lerobot-train`` does not support a setting, or the sources cannot be combined.
        CheckFailedError: If ``lerobot-train`` failed. The message ends with its last lines of output.
    """
    output = Path(output).absolute()
    interpreter, version = require_lerobot(python)
    kind, work = require_supported_kind(config), lerobot_run_folder(output)
    sources = open_sources(config.sources, workspace=workspace, keep_failures=config.keep_failures)
    features = _find_features(sources, config)
    contract = features.contract
    if resume:
        mixture = MaterializedDataset.read(work)
    else:
        mixture = materialize(
            sources,
            work / DATASET,
            sim_fraction=config.sim_fraction,
            seed=config.seed,
            observed=[
                *([STATE] if contract.state is not None else []),
                *([ENVIRONMENT] if contract.environment else []),
                *(IMAGES + name for name in contract.cameras),
            ],
        )
        mixture.write(work)
    words = resume_arguments(work, config) if resume else training_arguments(config, kind, output)
    began = time.perf_counter()
    losses = _run_or_clean_up(interpreter, words, config, work, resume=resume)
    checkpoint = _find_last_checkpoint(work)
    metrics = {
        "schema": 1,
        "verb": "train",
        "policy": config.policy,
        "checkpoint": checkpoint.relative_to(output.parent).as_posix(),
        "command": shlex.join(["lerobot-train", *words]),
        "config": config.model_dump(mode="json"),
        "config_hash": config.hash,
        "data_hash": sha256_json([mixture.rows, mixture.episodes]),
        "seed": config.seed,
        "steps": config.steps or STEPS,
        "seconds": time.perf_counter() - began,
        "losses": losses,
        "sources": list(mixture.rows),
        "versions": {"twinloop": __version__, "lerobot": version},
        "notes": [
            "no episodes are held out: lerobot-train 0.4.4 measures no held-out error",
            *mixture.notes,
        ],
    }
    texts = list(Opened(work / DATASET).tasks.values())
    if len(texts) > 1:
        metrics["notes"].append(f"the data have {len(texts)} task texts, so the policy gets no task text at inference")
    instruction = texts[0] if len(texts) == 1 else ""
    card = replace(_make_card(output.name, metrics, version), assignment=features.assignment, sources=features.sources)
    metrics["hash"] = save_lerobot(checkpoint, output, contract, instruction=instruction, card=card)
    write_json(output / "result.json", metrics)
    folders = {episode.episode_id: episode.folder for source in sources for episode in source.episodes}
    return LeRobotTrainingResult(folder=output, checkpoint=checkpoint, metrics=metrics, folders=folders)


def _find_features(sources: Sequence[TrainingSource], config: TrainConfig) -> CommonFeatures:
    """Return the features common to all sources, with the policy's contract.

    `find_common_features` also makes the contract of twinloop's built-in policy kinds.

    Raises:
        InputError: If an input is an object, because LeRobot reads all values of a feature.
    """
    objects = [name for name in config.inputs or () if name.startswith(OBJECT_INPUT)]
    if objects:
        raise InputError(f"LeRobot reads all tracked values, and not only {objects[0]}. Give `environment` instead.")
    folders = dict.fromkeys(episode.folder for source in sources for episode in source.episodes)
    readers = {folder: DatasetReader(folder) for folder in folders}
    return find_common_features(sources, readers, inputs=config.inputs, task=config.task)


def _run_or_clean_up(
    interpreter: str, words: Sequence[str], config: TrainConfig, work: Path, *, resume: bool
) -> list[tuple[int, float]]:
    """Run ``lerobot-train`` and return its loss curve, pairs (step, loss).

    If it fails before the first checkpoint, the work folder is deleted, so that the training can be repeated.
    """
    try:
        return _run(interpreter, words, config.steps or STEPS, _find_log_schedule(work, config, resume=resume))
    except CheckFailedError:
        if not _list_checkpoints(work):
            shutil.rmtree(work)
        raise


def _make_card(name: str, metrics: Mapping[str, Any], version: str) -> PolicyCard:
    columns = ("name", "episodes", "written", "frames", "real", "share_realized")
    provenance = {key: metrics[key] for key in ("config_hash", "data_hash", "seed", "steps", "seconds", "command")}
    return PolicyCard(
        name=name,
        data=tuple({key: row[key] for key in columns} for row in metrics["sources"]),
        provenance={"lerobot": version, **provenance},
        notes=tuple(metrics["notes"]),
    )


def _find_log_schedule(work: Path, config: TrainConfig, *, resume: bool) -> tuple[int, int]:
    """Return the first step of a run and the number of steps between two log lines of ``lerobot-train``."""
    last = work / RUN / "checkpoints" / "last"
    if not resume:
        return 0, log_interval(config)
    first_step = read_json(last / "training_state" / "training_step.json")["step"]
    return int(first_step), int(read_json(last / "pretrained_model" / "train_config.json").get("log_freq", 200))


def _run(interpreter: str, words: Sequence[str], steps: int, pace: tuple[int, int]) -> list[tuple[int, float]]:
    """Run ``lerobot-train``, show its progress, and return its loss curve, pairs (step, loss).

    Args:
        interpreter: Python interpreter that has LeRobot.
        words: arguments of ``lerobot-train``.
        steps: last step of the run.
        pace: first step of the run, and steps between two log lines.
    """
    first_step, every = pace
    losses: list[tuple[int, float]] = []
    last: deque[str] = deque(maxlen=_LAST_LINES)
    command = [interpreter, *SIDE, "train", *words]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as run,  # noqa: S603 - see above
        show_progress(label="lerobot-train", total=steps, done=first_step) as advance,
    ):
        try:
            for line in run.stdout or ():
                last.append(line.rstrip())
                loss = parse_loss(line)
                if loss is not None:
                    advance(every)
                    losses.append((first_step + every * (1 + len(losses)), loss))
        except BaseException:
            run.terminate()
            raise
    if run.returncode != 0:
        output = "\n".join(last)
        raise CheckFailedError(f"lerobot-train ended with code {run.returncode}. Its last lines:\n{output}")
    return losses


def _find_last_checkpoint(work: Path) -> Path:
    """Return the folder ``pretrained_model`` of the last checkpoint.

    Raises:
        CheckFailedError: If ``lerobot-train`` saved no checkpoint.
    """
    found = _list_checkpoints(work)
    if not found:
        raise CheckFailedError(f"lerobot-train ended without a checkpoint in {work / RUN / 'checkpoints'}.")
    return found[-1]


def _list_checkpoints(work: Path) -> list[Path]:
    found = (work / RUN / "checkpoints").glob("[0-9]*/pretrained_model")
    return sorted(found, key=lambda one: int(one.parent.name))


def report_rows(metrics: Mapping[str, Any]) -> list[str]:
    """Return the summary lines of a run for the terminal, from the content of its ``result.json`` (``metrics``)."""
    rows = [
        f"{row['name']}: {row['episodes']} episodes as {row['written']}, {row['share_realized']:.4g} of the frames "
        f"(requested {row['share']:.4g}), {row['share_episodes']:.4g} of the episodes"
        for row in metrics["sources"]
    ]
    last = f", loss {metrics['losses'][-1][1]:.4g}" if metrics["losses"] else ""
    return [*rows, f"{metrics['steps']} steps in {metrics['seconds']:.1f} s{last}; checkpoint {metrics['checkpoint']}"]
