"""Clutter placed by physics: drawn beside each other, dropped, and taken as it lies, or drawn again."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np

from twinloop.core.params import ParamTable
from twinloop.simulate import InitialState
from twinloop.tasks.drop import Drop, Keep
from twinloop.twin import Twin

TRIALS = 30  # draws of a world's clutter before its scene counts as impossible


def place_clutter(
    twin: Twin,
    params: ParamTable,
    initial: InitialState,
    *,
    run_seed: int,
    episodes: Sequence[int],
    attempt: int = 0,
    keep: Keep | None = None,
) -> InitialState:
    """Worlds with the clutter of their scene lying still where it fell; others as they are.

    A draw is refused for the reasons that `Drop` knows, and drawn again up to ``TRIALS`` times. A world is a function
    of its parameters, the run seed, its episode number and the attempt. The notes ``scene/trials`` and
    ``scene/visible/<object>`` of the result say how many draws it took and which part of an object is seen.

    A world whose clutter could not be placed is ``refused``, with the reason that was the most frequent.

    Args:
        keep: what clutter keeps away from; where it is not given, from all other free bodies and all mocap bodies.
    """
    scene = twin.scene
    if scene is None or not scene.spec.clutter:
        return initial
    keep = keep or Keep.of(twin, initial)
    numbers = np.asarray(episodes)
    waiting = np.flatnonzero(scene.present(params)[:, scene.clutter].any(axis=1))
    qpos, notes = initial.qpos.copy(), {"scene/trials": np.zeros(initial.nworld)}
    notes |= {f"scene/visible/{name}": np.ones(initial.nworld) for name in scene.occluded}
    reasons = [Counter[str]() for _ in range(initial.nworld)]
    for trial in range(TRIALS):
        if not len(waiting):
            break
        drop = Drop(twin, params.take(waiting), initial.take(waiting), keep.take(waiting))
        drop.fall(run_seed=run_seed, episodes=numbers[waiting], attempt=attempt, trial=trial)
        qpos[waiting] = drop.qpos
        notes["scene/trials"][waiting] += 1
        for name, fraction in drop.visible.items():
            notes[f"scene/visible/{name}"][waiting] = fraction
        for world, reason in zip(waiting, drop.reasons, strict=True):
            reasons[world].update([reason] if reason else [])
        waiting = waiting[[bool(reason) for reason in drop.reasons]]
    refused = [""] * initial.nworld
    for world in waiting:
        ((reason, _),) = reasons[world].most_common(1)
        refused[world] = f"clutter could not be placed: {reason}"
    return dataclasses.replace(
        initial, qpos=qpos, notes={**initial.notes, **notes}, refused=tuple(refused) if len(waiting) else ()
    )
