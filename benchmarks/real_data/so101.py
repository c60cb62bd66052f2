"""Fit SO-101 teleoperation: the follower arm is replayed open loop over whole episodes from the leader's commands."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.real_data.case import (
    SHIPPED,
    Candidate,
    Errors,
    Fitted,
    Fold,
    RealCase,
    grouped,
    leave_one_out,
    mean_errors,
)
from benchmarks.real_data.second_order import SecondOrder
from twinloop.core.records import Episode
from twinloop.identify import identify
from twinloop.simulate import Backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.twin import Twin, load_twin

LAW = "delay, second order and bias"
# Impedance of the joints' dry friction (``solimpfriction``): the twin's, with little creep, and MuJoCo's default.
IMPEDANCES = {"stiff friction": None, "MuJoCo's default friction": (0.9, 0.95, 0.001)}
_BLOCK = 10  # successive episodes that are held out together


class So101(RealCase):
    """Open-loop replay of every joint's position over whole episodes, with `identify`'s default free parameters."""

    name, twin = "so101_pick_place_tape", "so101_tabletop"
    rule = "each block of ten episodes is held out"
    candidates = tuple(Candidate(name=name, structure=name, prediction=name) for name in IMPEDANCES)

    def folds(self, episodes: Sequence[Episode]) -> list[Fold]:
        """See `RealCase`."""
        blocks = [episode.index // _BLOCK * _BLOCK for episode in episodes]
        return leave_one_out(grouped(episodes, [f"{block} to {block + _BLOCK - 1}" for block in blocks]))

    def fit(self, training: Sequence[Episode], structure: str, backend: Backend) -> Fitted:
        """See `RealCase`."""
        result = identify(self._twin(structure), training, backend=backend)
        return Fitted(values=result.values, result=result)

    def references(self, training: Sequence[Episode]) -> Mapping[str, Fitted]:
        """See `RealCase`; a second-order response without physics is also fitted to the training episodes."""
        logs = prepare_replay(load_twin(self.twin), training)
        return {SHIPPED: Fitted(), LAW: Fitted(prediction=LAW, extra={"law": SecondOrder.fit(logs)})}

    def errors(self, fitted: Fitted, test: Sequence[Episode], backend: Backend) -> Errors:
        """Return the mean absolute error of each joint over all test frames, in the log's units."""
        logs = prepare_replay(self._twin(fitted.prediction), test)
        if fitted.prediction == LAW:
            readings = fitted.extra["law"].readings(logs)
        else:
            readings = replay(backend, logs, logs.twin.table(1, fitted.values))[0]
        units = [channel.unit for channel in logs.channels]
        return mean_errors(logs.episode_errors(readings), logs.joints, units, weights=logs.episode_lengths)

    def _twin(self, friction: str) -> Twin:
        """Return the twin with an impedance of `IMPEDANCES` for the dry friction of all joints."""
        twin, impedance = load_twin(self.twin), IMPEDANCES.get(friction)
        if impedance is None:
            return twin
        model = copy.copy(twin.model)
        model.dof_solimp[:, :3] = impedance
        return replace(twin, model=model)


CASE = So101()
