"""Measure the detection of planted recording defects, in simulated and real episodes."""

from __future__ import annotations

from benchmarks.error_rates.quality.planted.recording import RECORDING
from benchmarks.error_rates.quality.study import Bench, Trial, alarms_table, defects_table, recorded, simulated
from benchmarks.studies import Study, StudyTable

_EPISODES = 24  # of simulated data, with images
_NOTE = (
    "Recall: share of planted episodes in which a check for this defect finds it, with Wilson's 95 % interval. "
    "Noticed: share found by any check of the recording. Precision: share of episodes with the defect among all "
    "episodes that are newly called suspect or bad. Data as above. The simulated episodes have images of 96×128 from "
    "two cameras, with light, textures and poses drawn for each episode; the real ones have no images."
)


def recording_study(repetitions: int, seed: int) -> StudyTable:
    """Measure every defect at every size, in ``repetitions`` episodes each."""
    trials: list[Trial] = []
    with simulated(_EPISODES, seed=seed, pixels=True) as sim, recorded() as real:
        for source, recordings in (("simulated", sim), ("real", real)):
            if recordings:
                bench = Bench(source, recordings, "recording")
                trials += [bench.trial(d, size, repetitions, seed) for d in RECORDING.values() for size in d.sizes]
    trials.sort(key=lambda trial: list(RECORDING).index(trial.defect))
    return defects_table("Planted defects of the recording", trials, RECORDING, _NOTE)


def alarms_study(repetitions: int, seed: int) -> StudyTable:
    """Count false alarms of the recording checks on good data."""
    with simulated(repetitions, seed=seed + 1, pixels=True) as sim, recorded() as real:
        sources = [(name, data) for name, data in (("simulated", sim), ("real", real)) if data]
        benches = [Bench(name, data, "recording") for name, data in sources]
        return alarms_table("Good episodes and the checks of the recording", benches)


TABLES = (
    Study(name="recording", page="evidence/curation.md", repetitions=4, run=recording_study),
    Study(name="recording_alarms", page="evidence/curation.md", repetitions=24, run=alarms_study),
)
