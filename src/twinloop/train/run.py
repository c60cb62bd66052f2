"""Train a policy from a configuration; write the policy folder, the run's metrics and the policy's model card."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray

from twinloop import __version__
from twinloop.catalog.dataset_versions import hash_episode_list
from twinloop.core.assignment import list_sources
from twinloop.core.contract import ACTION
from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.core.files import sha256_json, write_json
from twinloop.dataset.storage.snapshot import hold_folder_lock
from twinloop.policies.factory import new_policy, open_policy
from twinloop.policies.folder import PolicyCard, read_card
from twinloop.policies.policy import Policy
from twinloop.policies.settings import read_settings
from twinloop.train.adapt import make_additions
from twinloop.train.additions import TrainingAdditions
from twinloop.train.config import CHECKPOINT, RESULT, TrainConfig
from twinloop.train.data import TrainingFrames, measure_statistics
from twinloop.train.holdout import Holdout, SourceError
from twinloop.train.loop import TrainingLoop, read_checkpoint
from twinloop.train.mixture import FrameMixture, randomization_strengths
from twinloop.train.preparation import TrainingSetup, prepare, resolve_config
from twinloop.train.samples import SampleBatches, open_caches

_NO_SCORE = "no episodes are held out, so there is no held-out error and no early stopping"


def make_metrics(
    prepared: TrainingSetup,
    policy: Policy,
    loop: TrainingLoop,
    errors: Sequence[SourceError],
    additions: TrainingAdditions,
) -> dict[str, Any]:
    """Return the content of ``result.json``: metrics, configuration, data and versions of a finished training.

    Args:
        prepared: data and configuration of the run.
        policy: the trained policy.
        loop: the finished loop.
        errors: held-out errors of the trained policy.
        additions: additions of a fine-tuning method.
    """
    config, data, progress = prepared.config, prepared.data, loop.progress
    notes = [*data.notes, *([progress.stopped] if progress.stopped else []), *additions.facts.get("notes", ())]
    if loop.holdout is None:
        notes.append(_NO_SCORE)
    elif not any(error.real for error in errors):
        notes.append(
            f"no real episode is held out: the deciding error is that of {', '.join(loop.holdout.deciding_sources)}"
        )
    return {
        "schema": 1,
        "verb": "train",
        "policy": config.policy,
        "hash": policy.hash,
        "parameters": policy.parameter_count,
        "config": config.model_dump(mode="json"),
        "config_hash": config.hash,
        "seed": config.seed,
        "steps": progress.step,
        "best_step": progress.best_step,
        "kept_step": progress.best_step
        if (config.keep == "best" or progress.stopped) and progress.best_step
        else progress.step,
        "seconds": progress.seconds,
        "samples_per_second": progress.step * config.batch / max(progress.seconds, 1e-9),
        "sources": _source_rows(prepared, loop.mixture.drawn),
        "data_hash": data_hash(data),
        "twins": sorted({f"{e.twin} {e.twin_hash[:16]}" for e in data.episodes if e.twin}),
        "normalization": policy.statistics.source,
        "losses": progress.losses,
        "evaluations": progress.evaluations,
        "held_out": [error.to_json() for error in errors],
        "judges": list(loop.holdout.deciding_sources) if loop.holdout is not None else [],
        "versions": {"twinloop": __version__, "torch": torch.__version__, "numpy": np.__version__},
        "adaptation": dict(additions.facts),
        "notes": notes,
    }


def _source_rows(prepared: TrainingSetup, drawn: NDArray[np.int64]) -> list[dict[str, Any]]:
    data, rows = prepared.data, []
    lengths = data.last - data.first + 1
    for number, source in enumerate(data.sources):
        mine = prepared.training[data.source_of[prepared.training] == number]
        held = prepared.held_out[data.source_of[prepared.held_out] == number]
        names = [data.episodes[place].episode_id for place in np.flatnonzero(data.source_of == number)]
        rows.append(
            {
                "name": source.name,
                "data": source.config.data,
                "hash": hash_episode_list(names),
                "real": source.real,
                "episodes": len(mine),
                "held_out": len(held),
                "frames": int(lengths[mine].sum()),
                "share": float(prepared.share[number]),
                "samples": int(drawn[number]),
                "share_realized": float(drawn[number] / max(1, drawn.sum())),
            }
        )
    return rows


def make_card(name: str, result: Mapping[str, Any]) -> PolicyCard:
    """Return the model card of the policy ``name``, from the content of its ``result.json`` (``metrics``)."""
    columns = ("name", "hash", "episodes", "held_out", "frames", "real", "share_realized")
    metrics = {
        f"held-out action error, {row['source']}": ", ".join(
            format_error(unit, one) for unit, one in row["by_unit"].items()
        )
        for row in result["held_out"]
    }
    provenance = {
        "code": f"twinloop {__version__}",
        "config_hash": result["config_hash"],
        "data_hash": result["data_hash"],
        "twins": ", ".join(result["twins"]),
        "seed": result["seed"],
        "steps": result["kept_step"],
        "seconds": result["seconds"],
    }
    if result["adaptation"].get("base_hash"):
        provenance["base_hash"] = result["adaptation"]["base_hash"]
    rows = tuple({key: row[key] for key in columns} for row in result["sources"])
    return PolicyCard(name=name, data=rows, provenance=provenance, metrics=metrics, notes=tuple(result["notes"]))


def format_error(unit: str, row: Mapping[str, Any]) -> str:
    """Return an error as text with its interval and unit, such as ``1.2 [1, 1.5] deg``.

    ``row`` has ``estimate`` and, if there is an interval, ``low`` and ``high``.
    """
    between = f" [{row['low']:.3g}, {row['high']:.3g}]" if "low" in row else ""
    return f"{row['estimate']:.3g}{between} {unit}"


def data_hash(data: TrainingFrames) -> str:
    """Return a SHA-256 that identifies training data.

    It is computed from source name and id of each episode, the names of the columns, and the total number of frames.
    """
    names = [(data.sources[int(s)].name, e.episode_id) for s, e in zip(data.source_of, data.episodes, strict=True)]
    return sha256_json([names, sorted(data.columns), data.frames])


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """Result of a training.

    Attributes:
        policy: the trained policy.
        folder: its folder.
        metrics: metrics, the content of ``result.json``.
    """

    policy: Policy
    folder: Path
    metrics: dict[str, Any]


def train(
    config: TrainConfig,
    output: Path | str,
    *,
    workspace: Path | None = None,
    resume: bool = False,
    prepared: TrainingSetup | None = None,
    base: Policy | None = None,
    additions: Callable[[Policy, TrainingSetup], TrainingAdditions] | None = None,
) -> TrainingResult:
    """Train a policy and write it, with ``result.json``, into a folder.

    Args:
        config: data, policy and training settings.
        output: the folder. It holds a checkpoint during the run.
        workspace: workspace for dataset versions and queries; by default the nearest one above the current folder.
        resume: continue from the checkpoint in ``output``; the result equals that of an uninterrupted run.
        prepared: result of `prepare` for this configuration, if it was computed already.
        base: policy to start from, which is not changed; its settings and normalization are kept. By default the policy
            of the configuration's ``adapt``, or a new one.
        additions: function that makes the additions to the loop from policy and data; by default those of ``adapt``,
            ``align`` and ``pixels`` in the configuration.

    Raises:
        InputError: If the configuration or data cannot be used. The message gives the reason.
        UnitsError: If the sources' units differ and cannot be converted.
        CheckFailedError: If a loss is not finite. The previous checkpoint is kept.
        MissingDependencyError: If torch or the device is not available.
        DatasetLockedError: If another process trains into the folder.
    """
    output = Path(output)
    _check_output(output, resume=resume)
    with hold_folder_lock(output, "training"):
        _check_output(output, resume=resume)  # another process may have finished in between
        config = resolve_config(config)
        base = open_policy(config.adapt.base) if base is None and config.adapt is not None else base
        with use_torch_settings(config.device, config.threads):
            prepared = prepared or prepare(config, workspace)
            policy = _make_policy(prepared, base).to(config.device)
            made = (additions or make_additions)(policy, prepared)
            loop = _make_loop(prepared, policy, made, output, base)
            if made.watch is not None:
                made.watch(policy, loop.samples, loop.compute_errors())
            if resume:
                loop.restore(read_checkpoint(output))
            loop.run()
            errors = loop.compute_errors()
            if made.watch is not None:
                made = replace(made, facts={**made.facts, **made.watch(policy, loop.samples, errors)})
        policy = policy.to("cpu")
        if made.before_saving is not None:
            policy = made.before_saving(policy)
        metrics = make_metrics(prepared, policy, loop, errors, made)
        policy.save(output, replace(make_card(output.name, metrics), **_find_assignment(prepared)))
        write_json(output / RESULT, metrics)
        (output / CHECKPOINT).unlink(missing_ok=True)
        return TrainingResult(policy=policy, folder=output, metrics=metrics)


def _find_assignment(prepared: TrainingSetup) -> dict[str, Any]:
    """Return twin and task of the data, or else of the policy to start from, and their files, for the model card."""
    data, adapt = prepared.data, prepared.config.adapt
    if data.assignment is not None or adapt is None:
        return {"assignment": data.assignment, "sources": data.twin_and_task}
    folder = Path(adapt.base)
    return {"assignment": read_card(folder).assignment, "sources": list_sources(folder)}


def _make_policy(prepared: TrainingSetup, base: Policy | None) -> Policy:
    config, data = prepared.config, prepared.data
    if base is not None:
        unlike = base.contract.find_differences(data.contract)
        if unlike:
            raise InputError("The policy to start from does not match the data. " + "; ".join(unlike) + ".")
        return copy.deepcopy(base)
    given = dict(config.settings)
    if config.domain_token is not None:
        real = [source.name for source in data.sources if source.real]
        given["domains"] = [source.name for source in data.sources]
        given["default_domain"] = given.get("default_domain") or (real[0] if real else "")
    settings = read_settings(config.policy, given)
    statistics = measure_statistics(data, prepared.training, prepared.share, settings, whose=config.normalization)
    return new_policy(config.policy, data.contract, settings, statistics, seed=config.seed)


def _make_loop(
    prepared: TrainingSetup, policy: Policy, additions: TrainingAdditions, folder: Path, base: Policy | None
) -> TrainingLoop:
    config, data = prepared.config, prepared.data
    samples = SampleBatches(
        data,
        settings=policy.settings,
        images=open_caches(data),
        device=config.device,
    )
    mixture = FrameMixture(
        data,
        prepared.share,
        config.batch,
        seed=config.seed,
        episodes=prepared.training,
        strength=randomization_strengths(data.episodes) if config.curriculum is not None else None,
        curriculum=config.curriculum,
        steps=config.steps,
    )
    scale = data.columns[ACTION][data.frames_of(prepared.training)].std(axis=0, dtype=np.float64)
    holdout = Holdout(data, prepared.held_out, scale) if len(prepared.held_out) else None
    facts = {"configuration": config.hash, "data": data_hash(data)} | ({"base": base.hash} if base is not None else {})
    return TrainingLoop(
        policy, data=data, samples=samples, mixture=mixture, holdout=holdout, config=config, folder=folder,
        facts=facts, additions=additions,
    )  # fmt: skip


def _check_output(output: Path, *, resume: bool) -> None:
    if (output / RESULT).exists():
        raise InputError(f"{output} holds a finished run. Choose another --output, or move this folder.")
    if (output / CHECKPOINT).exists() and not resume:
        raise InputError(f"{output} holds an interrupted run. Continue it with --resume, or choose another --output.")
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file. Name a folder with --output.")


@contextmanager
def use_torch_settings(device: str, threads: int = 0) -> Iterator[None]:
    """Return a context manager that sets torch's number of threads and deterministic algorithms, and restores both.

    Args:
        device: torch device of the training.
        threads: number of threads; 0 for 1.
    """
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise InputError(f"--device {device}: give cpu, cuda, or cuda:NUMBER.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise MissingDependencyError(
            f"Torch finds no CUDA device ({device}). Use --device cpu instead.",
            remedy="a GPU with its driver and a torch built for it",
        )
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS needs it for deterministic results
    before, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(threads or 1)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(strict)
        torch.set_num_threads(before)
