"""Does a dataset hold: the public validators accept it, and random episodes replay bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from twinloop.core.errors import MissingDependencyError
from twinloop.core.seeds import generator
from twinloop.dataset.reader import DatasetReader
from twinloop.dataset.validate import Verdict, validate
from twinloop.generate import ReplayResult, replay_episode

_REPLAYS = 3


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Verdicts by dataset, replays, and what could not be asked."""

    verdicts: tuple[tuple[str, Verdict], ...]
    replays: tuple[ReplayResult, ...]
    missing: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """No validator refused, every replay was equal; a validator that is not installed is not a refusal."""
        return all(verdict.accepted for _, verdict in self.verdicts) and all(replay.equal for replay in self.replays)

    def rows(self) -> list[tuple[str, str]]:
        """What was asked, and the answer."""
        rows = [(f"{verdict.validator} on {name}", str(verdict)) for name, verdict in self.verdicts]
        rows += [(f"replay of {Path(r.dataset).name}", r.line()) for r in self.replays]
        return rows + [("validator", text) for text in self.missing]

    def text(self) -> str:
        """Lines for people."""
        return "\n".join(f"{what}: {answer}" for what, answer in self.rows())

    def to_json(self) -> dict[str, Any]:
        """A plain form for results."""
        return {
            "passed": self.passed,
            "verdicts": [{"dataset": name, **verdict.to_json()} for name, verdict in self.verdicts],
            "replays": [replay.to_json() for replay in self.replays],
            "missing": list(self.missing),
        }


def verify(datasets: Sequence[Path], *, seed: int) -> Verification:
    """Ask both validators about every dataset, and replay three random episodes of the first."""
    verdicts: list[tuple[str, Verdict]] = []
    missing: list[str] = []
    for dataset in datasets:
        try:
            verdicts += [(dataset.name, verdict) for verdict in validate(dataset)]
        except MissingDependencyError as error:
            missing.append(str(error))
    count = len(DatasetReader(datasets[0]))
    chosen = np.sort(generator(seed, "verify").choice(count, min(_REPLAYS, count), replace=False))
    replays = tuple(replay_episode(datasets[0], int(episode)) for episode in chosen)
    return Verification(verdicts=tuple(verdicts), replays=replays, missing=tuple(dict.fromkeys(missing)))
