"""The loops on tasks of the library: their logs, and a small run of all steps."""

import dataclasses
import json

import numpy as np
import pytest

from benchmarks.loops import loop as module
from benchmarks.loops.logs import record_task_log
from benchmarks.loops.settings import LOOPS
from twinloop.core.console import SafeConsole
from twinloop.hardware import make_hidden_cell
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayOptions, prepare_replay
from twinloop.twin import load_twin


def test_a_replay_of_the_pressing_log_with_the_true_parameters_shows_the_forces_on_the_scale():
    """What the twin lacks and the tracker's errors remain; with a tissue of a third of the stiffness it is worse."""
    said = LOOPS["press"]
    cell = make_hidden_cell(load_twin(said.twin), 3)
    log = record_task_log(cell, said.task, [0, 1], run_seed=1, seconds=3.0, shake=0.0, extra=said.signals)
    logs = prepare_replay(load_twin(said.twin), log, ReplayOptions(compare=("joint/scale",), contacts=True))
    known = {k: v for k, v in cell.values.items() if k in logs.twin.params and not k.startswith("timing/")}
    young = known["soft/tissue/young"]
    table = logs.twin.table(2, {**known, "soft/tissue/young": np.array([young, young / 3.0])})
    error = np.nanmean(np.abs(replay(open_backend("threads"), logs, table) - logs.measured), axis=(1, 2, 3))
    assert np.nanmax(logs.measured) > 0.0005  # pressed by at least 1 N
    assert error[0] < 1e-4
    assert error[0] < 0.8 * error[1]


@pytest.mark.slow
def test_a_small_loop_runs_every_step(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    from benchmarks.loops.run import run_bench_loop

    sizes = {
        "HELD": 1, "FREE_EPISODES": 2, "FREE_SECONDS": 3.0, "TRIALS": 4,
        "ARM_FIT": {"iterations": 1, "polish": 0, "rescale": 0, "search": "multistart", "starts": 1},
        "TEACHING": {"rounds": 2, "steps": 20, "final-steps": 20, "worlds": 8},
        "SEARCH": {"worlds": 16, "rounds": 1, "draws": 16, "illuminate": 0, "simplify": 0},
        "RETRAINING": {"episodes": 4, "steps": 20, "tries": 4, "trials": 4},
    }  # fmt: skip
    for name, value in sizes.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setitem(LOOPS, "press", dataclasses.replace(LOOPS["press"], episodes=3, seconds=2.0))
    console = SafeConsole(width=200)
    told = {"name": "press", "robots": 1, "first": 3, "output": tmp_path, "docs": None}
    made = run_bench_loop(console, **told)
    identified, policies, slices, failures = made["tables"]
    assert identified["rows"][0][0] == failures["rows"][0][0] == "3"
    assert [row[0] for row in slices["rows"]] == ["all", "soft", "stiff", "near", "far"]
    assert len(policies["rows"]) == 6  # four policies and two differences
    result = json.loads((tmp_path / "press" / "result.json").read_text())
    assert run_bench_loop(console, **told)["tables"] == result["tables"]  # and nothing is repeated
