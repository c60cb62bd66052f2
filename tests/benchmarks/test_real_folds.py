"""No episode of a real set is fitted and scored in one fold, in no case, outer or inner."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.real_data.bam_servo import GAIN
from benchmarks.real_data.run import CASES, open_case
from twinloop.core.records import Episode
from twinloop.core.units import UnitMap

GAINS = (100.0, 200.0, 400.0)
UNITS = UnitMap(joints=(), source="a test")


def episodes(number: int) -> list[Episode]:
    """Runs whose set, controller and gain are read off what the cases read them off."""
    nothing = np.empty((8, 0))
    return [
        Episode(
            index=i,
            time=np.arange(8.0),
            action=nothing,
            state=nothing,
            units=UNITS,
            command="none",
            task="pd/system_identification" if i % 2 else "other",
            origin=f"sets/run {i % 5}",
            conditions={GAIN: GAINS[i % 3]},
        )
        for i in range(number)
    ]


def moments(part: Sequence[Episode]) -> list[tuple[int, float]]:
    """Every frame of a part: a run may be cut in two."""
    return [(episode.index, time) for episode in part for time in episode.time.tolist()]


@pytest.mark.parametrize("name", [name for name in CASES if name != "crazyflie_sysid"])  # its pieces: test_real_arms
def test_folds_part_all_episodes_and_leak_none(name):
    case, given = open_case(name), episodes(40)
    outer = case.folds(given)
    assert outer
    for fold in outer:
        training, test = moments(fold.training), moments(fold.test)
        assert training
        assert test
        assert sorted(training + test) == sorted(moments(given))  # each once: in one part, or in the other
        for inner in case.inner_folds(fold.training):
            parts = moments([*inner.training, *inner.test])
            assert set(parts) <= set(training)  # nothing that is left out chooses
            assert len(set(parts)) == len(parts)
    tested = [moment for fold in outer for moment in moments(fold.test)]
    assert len(set(tested)) == len(tested)
