"""What is written of a training run: its figures and the policy's card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray

from twinloop import __version__
from twinloop.catalog.frozen import list_hash
from twinloop.core.files import sha256_json
from twinloop.policies.card import Card
from twinloop.policies.policy import Policy
from twinloop.train.additions import Additions
from twinloop.train.data import Data
from twinloop.train.holdout import SourceError
from twinloop.train.loop import Loop
from twinloop.train.prepared import Prepared

_NO_SCORE = "nothing is held out, so no error is known and nothing can stop early"


def figures_of(
    prepared: Prepared, policy: Policy, loop: Loop, errors: Sequence[SourceError], additions: Additions
) -> dict[str, Any]:
    """What ``result.json`` holds.

    Args:
        prepared: what the run was made of.
        policy: as it is kept.
        loop: as it ended.
        errors: of the kept policy on what was held out.
        additions: what adaptation added.
    """
    config, data, progress = prepared.config, prepared.data, loop.progress
    notes = [*data.notes, *([progress.stopped] if progress.stopped else []), *additions.facts.get("notes", ())]
    if loop.holdout is None:
        notes.append(_NO_SCORE)
    elif not any(error.real for error in errors):
        notes.append(f"no real episode is held out: the error that decides is that of {', '.join(loop.holdout.judges)}")
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
        "sources": _sources(prepared, loop.mixture.drawn),
        "data_hash": data_hash(data),
        "twins": sorted({f"{e.twin} {e.twin_hash[:16]}" for e in data.episodes if e.twin}),
        "normalization": policy.statistics.source,
        "losses": progress.losses,
        "evaluations": progress.evaluations,
        "held_out": [error.to_json() for error in errors],
        "judges": list(loop.holdout.judges) if loop.holdout is not None else [],
        "versions": {"twinloop": __version__, "torch": torch.__version__, "numpy": np.__version__},
        "adaptation": dict(additions.facts),
        "notes": notes,
    }


def _sources(prepared: Prepared, drawn: NDArray[np.int64]) -> list[dict[str, Any]]:
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
                "hash": list_hash(names),
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


def card_of(name: str, figures: Mapping[str, Any]) -> Card:
    """The model card of a policy, from the figures of its run."""
    columns = ("name", "hash", "episodes", "held_out", "frames", "real", "share_realized")
    metrics = {
        f"held-out action error, {row['source']}": ", ".join(
            said_error(unit, one) for unit, one in row["by_unit"].items()
        )
        for row in figures["held_out"]
    }
    provenance = {
        "code": f"twinloop {__version__}",
        "config_hash": figures["config_hash"],
        "data_hash": figures["data_hash"],
        "twins": ", ".join(figures["twins"]),
        "seed": figures["seed"],
        "steps": figures["kept_step"],
        "seconds": figures["seconds"],
    }
    if figures["adaptation"].get("base_hash"):
        provenance["base_hash"] = figures["adaptation"]["base_hash"]
    rows = tuple({key: row[key] for key in columns} for row in figures["sources"])
    return Card(name=name, data=rows, provenance=provenance, metrics=metrics, notes=tuple(figures["notes"]))


def said_error(unit: str, row: Mapping[str, Any]) -> str:
    """An error with its interval and unit, in words."""
    between = f" [{row['low']:.3g}, {row['high']:.3g}]" if "low" in row else ""
    return f"{row['estimate']:.3g}{between} {unit}"


def data_hash(data: Data) -> str:
    """Names what is trained on: episodes by source, and the columns that are read of them."""
    names = [(data.sources[int(s)].name, e.episode_id) for s, e in zip(data.source_of, data.episodes, strict=True)]
    return sha256_json([names, sorted(data.columns), data.frames])
