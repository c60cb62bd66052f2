"""Work that ends its process is tried again by another; order, progress and errors are those of one process."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from twinloop.core.errors import TwinloopError, UnknownNameError
from twinloop.core.pool import CrashedItem, map_crash_tolerant


@dataclass(frozen=True)
class Dies:
    """Ends its process with a signal at ``item``, at most ``times``; counts in files, which outlive processes."""

    folder: Path
    item: int
    times: int
    signal: int = signal.SIGSEGV

    def __call__(self, number, report):
        report(("began", number))
        if number == self.item and len(list(self.folder.iterdir())) < self.times:
            (self.folder / f"{os.getpid()}").touch()
            os.kill(os.getpid(), self.signal)
        return number * 10, os.getpid()


@dataclass(frozen=True)
class Waits:
    """The first waits for the last."""

    folder: Path

    def __call__(self, number, report):
        report(number)
        if number == 5:
            (self.folder / "last").touch()
        deadline = time.monotonic() + 60.0
        while number == 0 and not (self.folder / "last").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return os.getpid()


def refuse(number, report):
    if number == 2:
        raise UnknownNameError("camera", "frnt", ["front"])
    return number


@pytest.mark.parametrize("workers", [1, 2])
def test_a_death_is_worked_off_by_a_new_process(tmp_path, workers):
    said = []
    results = list(map_crash_tolerant(Dies(tmp_path, 2, 1), range(5), workers=workers, progress=said.append))
    assert [item for item, _ in results] == list(range(5))
    assert [outcome[0] for _, outcome in results] == [0, 10, 20, 30, 40]
    (dead,) = (int(file.name) for file in tmp_path.iterdir())
    assert dead not in {outcome[1] for _, outcome in results if outcome[0] >= 20}
    assert said.count(("began", 2)) == 2


@pytest.mark.parametrize(
    ("number", "text"),
    [(signal.SIGSEGV, "was ended by signal 11 (SIGSEGV)"), (signal.SIGKILL, "signal 9 (SIGKILL; the system does this")],
)
def test_what_ends_two_processes_is_given_up_and_the_rest_is_done(tmp_path, number, text):
    results = dict(map_crash_tolerant(Dies(tmp_path, 1, 9, signal=number), range(4), workers=2))
    lost = results.pop(1)
    assert isinstance(lost, CrashedItem)
    assert text in lost.crash
    assert lost.reported == ("began", 1)
    assert {item: outcome[0] for item, outcome in results.items()} == {0: 0, 2: 20, 3: 30}
    assert len(list(tmp_path.iterdir())) == 2


def test_the_slow_first_keeps_its_place_and_holds_nobody_up(tmp_path):
    results = list(map_crash_tolerant(Waits(tmp_path), range(6), workers=2))
    assert [item for item, _ in results] == list(range(6))
    first, *others = (process for _, process in results)
    assert set(others) == {others[0]} != {first}


def test_an_error_is_raised_at_its_turn_with_its_kind():
    results = map_crash_tolerant(refuse, range(4), workers=2)
    assert [next(results), next(results)] == [(0, 0), (1, 1)]
    with pytest.raises(UnknownNameError, match="Nearest existing: front"):
        next(results)


def test_without_workers_it_happens_here(tmp_path):
    assert [process for _, process in map_crash_tolerant(Waits(tmp_path), [1, 2], workers=0)] == [os.getpid()] * 2


def unpicklable(number, report):
    return lambda: number


def test_a_result_that_cannot_cross_says_so():
    with pytest.raises(TwinloopError, match="cannot be sent back"):
        list(map_crash_tolerant(unpicklable, [1], workers=1))
