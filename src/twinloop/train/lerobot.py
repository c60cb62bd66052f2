"""LeRobot's own policies (ACT, diffusion, SmolVLA, π0 and the rest), trained by LeRobot's own program.

The mixture is written as one LeRobot v3.0 folder, and ``lerobot-train`` (0.4.4, the last for Python 3.11) runs on it,
in this environment or in another one. What comes of it is LeRobot's checkpoint, not one of our policies.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from twinloop import __version__
from twinloop.core.errors import CheckFailedError, InputError, MissingDependencyError
from twinloop.core.files import read_json, sha256_json, sha256_tree, write_json
from twinloop.core.progress import counted
from twinloop.train.config import TrainConfig
from twinloop.train.lerobot_mixture import Materialized, materialize
from twinloop.train.sources import open_sources

PREFIX = "lerobot:"
_STEPS = 100_000  # lerobot-train's own
_CHECKPOINTS = 5  # as lerobot-train has with its own steps and save_freq
_POINTS = 100  # of the loss curve
_LAST_LINES = 12  # of the program's output, in a message
_NOT_OURS = "this is LeRobot's policy: its own programs run it, `twinloop run` and `twinloop evaluate` do not open it"
_DATASET, _RUN = "dataset", "lerobot"

# A torchvision built for CUDA asks for operators that torch for the CPU lacks; their declarations let it be imported.
_START = """
import sys, torch
try:
    import torchvision
except RuntimeError:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from lerobot.scripts.lerobot_train import main
main()
"""

# lerobot-train logs "step:1K smpl:8K ep:3 epch:0.12 loss:2.345 grdn:…" every log_freq steps, large numbers shortened.
_LINE = re.compile(r"step:\S+ .*?loss:([-+.\deE]+|nan|inf)")

# What of a configuration lerobot-train has no place for.
_NOT_THERE = ("curriculum", "domain_token", "adapt", "align", "pixels", "ema", "inputs", "lr", "patience")


@dataclass(frozen=True, kw_only=True)
class LeRobotTrained:
    """LeRobot's checkpoint in a run's folder, the figures of ``result.json``, and where each episode lies, by id."""

    folder: Path
    checkpoint: Path
    figures: dict[str, Any]
    folders: Mapping[str, Path]


def train_lerobot(
    config: TrainConfig,
    output: Path | str,
    *,
    python: Path | None = None,
    workspace: Path | None = None,
    resume: bool = False,
) -> LeRobotTrained:
    """Write the mixture into ``output/dataset`` and run ``lerobot-train`` on it into ``output/lerobot``.

    Args:
        config: ``policy`` is ``lerobot:TYPE``; ``settings`` are LeRobot's of that policy (``path`` is a pretrained one
            to go on from). Steps, batch, seed and device go to LeRobot where they are said; nothing is held out.
        output: the run's folder.
        python: interpreter of the environment that has LeRobot; by default this one.
        workspace: where frozen datasets and statements are looked up.
        resume: go on from LeRobot's last checkpoint in ``output``.

    Raises:
        MissingDependencyError: LeRobot is not there.
        InputError: the configuration asks for what ``lerobot-train`` does not do, or the data make no mixture.
        CheckFailedError: the program failed; the message ends with its last lines.
    """
    output = Path(output)
    interpreter, version = require_lerobot(python)
    kind = _checked(config)
    sources = open_sources(config.sources, workspace=workspace, keep_failures=config.keep_failures)
    if resume:
        mixture = Materialized.read(output)
    else:
        mixture = materialize(sources, output / _DATASET, sim_fraction=config.sim_fraction, seed=config.seed)
        mixture.write(output)
    words = resume_words(output, config) if resume else train_words(config, kind, output)
    began = time.perf_counter()
    losses = _run(interpreter, words, config.steps or _STEPS, _pace(output, config, resume=resume))
    checkpoint = _checkpoint(output)
    figures = {
        "schema": 1,
        "verb": "train",
        "policy": config.policy,
        "hash": sha256_tree(checkpoint),
        "checkpoint": checkpoint.relative_to(output).as_posix(),
        "command": shlex.join(["lerobot-train", *words]),
        "config": config.model_dump(mode="json"),
        "config_hash": config.hash,
        "data_hash": sha256_json([mixture.rows, mixture.episodes]),
        "seed": config.seed,
        "steps": config.steps or _STEPS,
        "seconds": time.perf_counter() - began,
        "losses": losses,
        "sources": list(mixture.rows),
        "versions": {"twinloop": __version__, "lerobot": version},
        "notes": [
            _NOT_OURS,
            "nothing is held out: lerobot-train 0.4.4 measures no error on episodes of its own",
            *mixture.notes,
        ],
    }
    write_json(output / "result.json", figures)
    folders = {episode.episode_id: episode.folder for source in sources for episode in source.episodes}
    return LeRobotTrained(folder=output, checkpoint=checkpoint, figures=figures, folders=folders)


def require_lerobot(python: Path | None = None) -> tuple[str, str]:
    """The interpreter that has LeRobot, and LeRobot's version.

    Raises:
        MissingDependencyError: it has none; says both ways to get it.
    """
    remedy = "pip install lerobot, or sh scripts/lerobot_env.sh DIR and then --lerobot-python DIR/bin/python"
    if python is None and find_spec("lerobot") is None:
        raise MissingDependencyError("LeRobot's policies need LeRobot, which is not installed here.", remedy=remedy)
    interpreter = sys.executable if python is None else str(python)
    ask = "import importlib.metadata as m; print(m.version('lerobot'))"
    try:
        done = subprocess.run([interpreter, "-c", ask], capture_output=True, text=True, timeout=120, check=False)  # noqa: S603 - an interpreter that the user names
    except OSError as error:
        raise MissingDependencyError(f"{interpreter} does not start ({error.strerror}).", remedy=remedy) from error
    if done.returncode != 0:
        raise MissingDependencyError(f"{interpreter} has no LeRobot.", remedy=remedy)
    return interpreter, done.stdout.strip()


def train_words(config: TrainConfig, kind: str, output: Path) -> list[str]:
    """The arguments of ``lerobot-train`` for a new run."""
    settings = {"device": config.device, "push_to_hub": False, **config.settings}
    path = settings.pop("path", None)
    steps = config.steps or _STEPS
    words = {
        "dataset.repo_id": f"local/{output.name or 'mixture'}",
        "dataset.root": str((output / _DATASET).resolve()),
        **({"policy.type": kind} if path is None else {"policy.path": path}),
        **{f"policy.{name}": value for name, value in settings.items()},
        "output_dir": str((output / _RUN).resolve()),
        "job_name": output.name or "twinloop",
        "steps": steps,
        **({"batch_size": config.batch} if config.batch else {}),
        "seed": config.seed,
        **({"num_workers": config.threads} if config.threads else {}),
        "save_freq": max(1, steps // _CHECKPOINTS),
        "log_freq": _every(config),
        "wandb.enable": False,
    }
    return [f"--{name}={_plain(value)}" for name, value in words.items()]


def resume_words(output: Path, config: TrainConfig) -> list[str]:
    """The arguments of ``lerobot-train`` that go on from the last checkpoint; the rest stands in its own file.

    Raises:
        InputError: there is none.
    """
    file = output / _RUN / "checkpoints" / "last" / "pretrained_model" / "train_config.json"
    if not file.is_file():
        raise InputError(
            f"{output} holds no checkpoint of LeRobot to resume: {file} is missing. Train without --resume."
        )
    return [f"--config_path={file.resolve()}", "--resume=true", f"--steps={config.steps or _STEPS}"]


def parsed(line: str) -> float | None:
    """The loss of a line that ``lerobot-train`` logs, None of any other."""
    found = _LINE.search(line)
    return None if found is None else float(found[1])


def _checked(config: TrainConfig) -> str:
    """The policy's type as LeRobot calls it."""
    kind = config.policy.removeprefix(PREFIX)
    if not re.fullmatch(r"[a-z0-9_]+", kind):
        raise InputError(f"--policy {config.policy}: write lerobot:TYPE with LeRobot's name, such as lerobot:act.")
    plain = TrainConfig(sources=config.sources)
    said = [name for name in _NOT_THERE if getattr(config, name) != getattr(plain, name)]
    if said:
        extra = " Say the rate with --set optimizer_lr=…" if "lr" in said else ""
        raise InputError(f"lerobot-train has no {', '.join(said)}. Leave it out, or train mlp, act or flow.{extra}")
    return kind


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _pace(output: Path, config: TrainConfig, *, resume: bool) -> tuple[int, int]:
    """The step that a run begins at, and how many lie between two lines of its log."""
    last = output / _RUN / "checkpoints" / "last"
    if not resume:
        return 0, _every(config)
    begun = read_json(last / "training_state" / "training_step.json")["step"]
    return int(begun), int(read_json(last / "pretrained_model" / "train_config.json").get("log_freq", 200))


def _every(config: TrainConfig) -> int:
    return max(1, (config.steps or _STEPS) // _POINTS)


def _run(interpreter: str, words: Sequence[str], steps: int, pace: tuple[int, int]) -> list[tuple[int, float]]:
    """Run the program, show how far it is, and return its loss curve."""
    begun, every = pace
    losses: list[tuple[int, float]] = []
    last: deque[str] = deque(maxlen=_LAST_LINES)
    command = [interpreter, "-c", _START, *words]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as run,  # noqa: S603 - see above
        counted(label="lerobot-train", total=steps) as advance,
    ):
        advance(begun)
        try:
            for line in run.stdout or ():
                last.append(line.rstrip())
                loss = parsed(line)
                if loss is not None:
                    advance(every)
                    losses.append((begun + every * (1 + len(losses)), loss))
        except BaseException:
            run.terminate()
            raise
    if run.returncode != 0:
        said = "\n".join(last)
        raise CheckFailedError(f"lerobot-train ended with code {run.returncode}. Its last lines:\n{said}")
    return losses


def _checkpoint(output: Path) -> Path:
    """The folder of the last checkpoint's policy.

    Raises:
        CheckFailedError: the program left none.
    """
    found = sorted(
        (output / _RUN / "checkpoints").glob("[0-9]*/pretrained_model"), key=lambda one: int(one.parent.name)
    )
    if not found:
        raise CheckFailedError(f"lerobot-train ended and left no checkpoint in {output / _RUN / 'checkpoints'}.")
    return found[-1]


def report_rows(figures: Mapping[str, Any]) -> list[str]:
    """What came of a run, for people."""
    rows = [
        f"{row['name']}: {row['episodes']} episodes as {row['written']}, {row['share_realized']:.4g} of the frames "
        f"(asked for {row['share']:.4g}), {row['share_episodes']:.4g} of the episodes"
        for row in figures["sources"]
    ]
    last = f", loss {figures['losses'][-1][1]:.4g}" if figures["losses"] else ""
    return [*rows, f"{figures['steps']} steps in {figures['seconds']:.1f} s{last}; checkpoint {figures['checkpoint']}"]
