"""A stored episode again, from its provenance and recorded commands; and an attempt that was set aside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from twinloop.core.errors import InputError
from twinloop.core.records import SimEpisode
from twinloop.dataset.aside import SetAside, read_aside
from twinloop.dataset.reader import DatasetReader
from twinloop.generate.config import GenerateConfig, load_plan
from twinloop.rollout import Replay, initial_from_state
from twinloop.rollout import replay_episode as replay_again
from twinloop.rollout.replay import recorded_params
from twinloop.simulate import Backend, open_backend, rollout
from twinloop.twin import Twin


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """How a replay compares with what was recorded; ``difference`` is the largest over all state components.

    ``lost`` says, of an attempt that was set aside, why its world was lost this time; empty where it held.
    """

    dataset: str
    episode: int
    number: int
    frames: int
    equal: bool
    difference: float
    recorded_with: str
    replayed_with: str
    lost: str = ""

    def line(self) -> str:
        """One line for people."""
        name = (
            f"Attempt {self.number}, set aside"
            if self.episode < 0
            else f"Episode {self.episode} (attempt {self.number})"
        )
        if self.equal:
            again = f", and the world is lost again: {self.lost}" if self.episode < 0 else ""
            return f"{name}: {self.frames} frames equal bit for bit{again}."
        return (
            f"{name}: states differ by up to {self.difference:.3g}; "
            f"recorded with MuJoCo {self.recorded_with}, replayed with {self.replayed_with}. "
            "Equality holds for the same MuJoCo on the same type of processor."
        )

    def to_json(self) -> dict[str, Any]:
        """A plain form for results."""
        return {"schema": 1, "verb": "replay", **self.__dict__}


def replay_episode(dataset: Path, episode: int) -> ReplayResult:
    """Simulate one stored episode again, by the backend that made it, and compare its states.

    Raises:
        InputError: no such episode, no states stored, or the twin is not the one it was made with.
    """
    reader, twin, backend = _opened(dataset)
    provenance = reader.provenance(episode)
    record = SimEpisode(
        number=int(reader.numbers[episode]),
        commands=reader.commands(episode),
        states=reader.states(episode),
        action=np.empty(0),
        observation=np.empty(0),
        next_success=np.empty(0, dtype=bool),
        provenance=provenance,
    )
    replayed = replay_again(twin, record, backend=backend)
    return ReplayResult(
        dataset=str(dataset),
        episode=episode,
        number=record.number,
        frames=len(record),
        equal=replayed.identical,
        difference=replayed.difference,
        recorded_with=provenance.versions.get("mujoco", "unknown"),
        replayed_with=mujoco.__version__,
    )


def replay_aside(dataset: Path, number: int) -> ReplayResult:
    """Simulate an attempt that was set aside again, to its last trusted state and through the step that lost it.

    It is equal where every trusted state agrees bit for bit and the same step loses the world for the same reason.

    Raises:
        InputError: that attempt was not set aside, or the twin is not the one it was made with.
    """
    _, twin, backend = _opened(dataset)
    item = read_aside(dataset, number)
    if item.provenance.twin_hash != twin.hash:
        raise InputError(
            f"Attempt {number} was made with {item.provenance.twin} {item.provenance.twin_hash[:12]}, this is "
            f"{twin.name} {twin.hash[:12]}. Replay with the version of the twin that made it."
        )
    states, lost = _lose_again(twin, item, backend)
    replayed = Replay(states=states, recorded=item.states)
    return ReplayResult(
        dataset=str(dataset),
        episode=-1,
        number=number,
        frames=item.step,
        equal=replayed.identical and lost == item.reason,
        difference=replayed.difference,
        recorded_with=item.provenance.versions.get("mujoco", "unknown"),
        replayed_with=mujoco.__version__,
        lost=lost,
    )


def _lose_again(twin: Twin, item: SetAside, backend: Backend) -> tuple[np.ndarray, str]:
    """The states up to the last trusted one, and why the world was lost in the step after it."""
    initial = initial_from_state(twin, item.states[0], item.provenance.extra["initial_command"])
    params = recorded_params(twin, item.provenance)
    again = rollout(backend, twin, params, initial, item.commands[None], len(item.commands))
    lost = again.reason[0] if again.invalid_step[0] == item.step else ""
    return again.states[0, : item.step + 1], lost


def _opened(dataset: Path) -> tuple[DatasetReader, Twin, Backend]:
    """The dataset, the twin it was made with, and a backend like the one that made it."""
    reader = DatasetReader(dataset)
    if not reader.ours or "generate" not in root_config(reader):
        raise InputError(f"{dataset} was not generated by a simulation, so there is nothing to replay.")
    config = GenerateConfig.model_validate(root_config(reader)["generate"])
    return reader, load_plan(config).twin, open_backend(config.file.rollout.backend, nthread=1)


def root_config(reader: DatasetReader) -> dict[str, Any]:
    """The configuration of the run that simulated a dataset, also where it was rendered since."""
    config: Any = dict(reader.spec.config)
    while "parent" in config:
        config = config["parent"]
    return config
