"""Measure the detection of planted physics defects, in simulated and real episodes."""

from __future__ import annotations

from benchmarks.error_rates.quality.planted.physics import PHYSICS
from benchmarks.error_rates.quality.study import Bench, Trial, alarms_table, defects_table, recorded, simulated
from benchmarks.studies import Study, StudyTable

_EPISODES = 24  # of simulated data
_NOTE = (
    "Recall: share of planted episodes in which a check for this defect finds it, with Wilson's 95 % interval. "
    "Noticed: share found by any check of physics. Precision: share of episodes with the defect among all episodes "
    "that are newly called suspect or bad. Simulated: SO-101 pick and place by the expert, parameters drawn over "
    "their default ranges. Real: the 40 episodes of so101_pick_place_tape, whose calibration is unknown, against the "
    "nominal so101_tabletop."
)


def physics_study(repetitions: int, seed: int) -> StudyTable:
    """Measure every defect at every size, in ``repetitions`` episodes each."""
    trials: list[Trial] = []
    with simulated(_EPISODES, seed=seed, pixels=False) as sim, recorded() as real:
        for source, recordings in (("simulated", sim), ("real", real)):
            if recordings:
                bench = Bench(source, recordings, "physics")
                trials += [bench.trial(d, size, repetitions, seed) for d in PHYSICS.values() for size in d.sizes]
    trials.sort(key=lambda trial: list(PHYSICS).index(trial.defect))
    return defects_table("Planted defects of physics", trials, PHYSICS, _NOTE)


def alarms_study(repetitions: int, seed: int) -> StudyTable:
    """Count false alarms of the physics checks on good data."""
    with simulated(repetitions, seed=seed + 1, pixels=False) as sim, recorded() as real:
        sources = [(name, data) for name, data in (("simulated", sim), ("real", real)) if data]
        return alarms_table("Good episodes and the checks of physics", [Bench(n, d, "physics") for n, d in sources])


TABLES = (
    Study(name="physics", page="evidence/curation.md", repetitions=6, run=physics_study),
    Study(name="physics_alarms", page="evidence/curation.md", repetitions=64, run=alarms_study),
)
