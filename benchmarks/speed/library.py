"""Compare the backend ``threads`` with the bare engine in the worlds of every twin of the library.

Both step the same worlds (default randomization) under the same commands on one thread: the product by `rollout`, and
the bare engine by ``mujoco.batch.Batch.step``. The commands are those of the task's expert, or random ones if it has
none; a twin without a task holds its home pose. Times are CPU times of rounds in turns,
because other programs change them little. ``python -m benchmarks.speed.library --write docs`` writes the table.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed.page import main
from benchmarks.studies import markdown_table
from twinloop.checks.task import RandomActor, draw_worlds
from twinloop.core.errors import MissingDependencyError
from twinloop.rollout.actor import EpisodeStart, ExpertActor
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.simulate.threads import make_batch
from twinloop.tasks import open_task
from twinloop.tasks.protocol import has_expert
from twinloop.twin import load_twin
from twinloop.twin.load import library_names

MARK = "python -m benchmarks.speed.library"
WORLDS, SECONDS, ROUNDS, SEED = 8, 4.0, 3, 0
TARGET, TARGET_SOFT = 0.8, 0.7


@dataclass(frozen=True, kw_only=True)
class LibrarySpeed:
    """Speed in the worlds of one twin.

    Attributes:
        twin: name of the twin.
        nv: degrees of freedom.
        soft: whether there is a soft body.
        rate: physics steps per second of CPU time of the bare engine, the median of the rounds.
        real_time: simulated seconds per second of CPU time of the product.
        ratios: speed of the product over that of the bare engine, by round.
    """

    twin: str
    nv: int
    soft: bool
    rate: float
    real_time: float
    ratios: NDArray[np.float64]

    @property
    def target(self) -> float:
        """Smallest ratio that we accept."""
        return TARGET_SOFT if self.soft else TARGET


def run(*, worlds: int = WORLDS, seconds: float = SECONDS, rounds: int = ROUNDS) -> list[LibrarySpeed]:
    """Measure every twin of the library whose packages are installed."""
    found = list[LibrarySpeed]()
    for name in library_names():
        try:
            found.append(measure(name, worlds=worlds, seconds=seconds, rounds=rounds))
        except MissingDependencyError as error:
            print(error)
    return found


def measure(name: str, *, worlds: int, seconds: float, rounds: int) -> LibrarySpeed:
    """Measure the worlds of one twin."""
    twin, numbers = load_twin(name), range(worlds)
    params, nstep = draw_worlds(twin, "default", numbers, SEED), round(seconds * twin.control_hz)
    backend = open_backend("threads", nthread=1)
    if twin.spec.task:
        task = open_task(next(iter(twin.spec.task)), twin)
        initial = task.reset(params, run_seed=SEED, episodes=list(numbers))
        begun = EpisodeStart(numbers=np.arange(worlds), params=params, initial=initial, run_seed=SEED)
        actor = ExpertActor(task=task) if has_expert(task) else RandomActor(twin=twin)
        commands = rollout(backend, twin, params, initial, actor.begin(begun), nstep).commands
    else:
        initial = InitialState.home(twin, worlds)
        commands = np.repeat(initial.command[:, None], nstep, axis=1)
    product = partial(rollout, backend, twin, params, initial, commands, nstep)

    def bare() -> float:
        engine = make_batch(twin, params, initial, 1)
        control = engine.bind("ctrl")
        began = time.process_time()
        for command in np.ascontiguousarray(commands.swapaxes(0, 1)):
            control[:] = command
            engine.step(nstep=twin.substeps)
        return time.process_time() - began

    def own() -> float:
        began = time.process_time()
        product()
        return time.process_time() - began

    times = np.array([(bare(), own()) for _ in range(rounds)])
    steps = worlds * nstep * twin.substeps
    return LibrarySpeed(
        twin=name,
        nv=twin.model.nv,
        soft=twin.model.nflex > 0,
        rate=steps / float(np.median(times[:, 0])),
        real_time=steps * twin.dt / float(np.median(times[:, 1])),
        ratios=times[:, 0] / times[:, 1],
    )


def table(found: list[LibrarySpeed]) -> str:
    """Return the Markdown table for the page."""
    rows = [
        [
            f"`{one.twin}`{' (soft)' if one.soft else ''}",
            str(one.nv),
            f"{one.rate:,.0f}",
            f"{one.real_time:.1f}",
            f"{np.median(one.ratios):.2f}",
            f"{one.ratios.min():.2f}–{one.ratios.max():.2f}",
            f"{one.target:.1f}" + ("" if np.median(one.ratios) >= one.target else ", missed"),
        ]
        for one in found
    ]
    head = ["twin", "degrees of freedom", "bare steps/s", "× real time", "`threads` / bare", "spread", "target"]
    return markdown_table(head, rows)


if __name__ == "__main__":
    main(__doc__, "evidence/performance.md", MARK, lambda: table(run()))
