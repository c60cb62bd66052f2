"""The profile accounts for all of the time, wherever it was spent, and changes nothing that is written."""

from __future__ import annotations

import json
import time

import pytest
import yaml

from twinloop.cli.main import main
from twinloop.core.files import sha256_tree
from twinloop.core.profile import Profile, record_spans, span


def test_a_span_is_counted_without_the_spans_inside_it():
    profile = Profile()
    with record_spans(profile), span("outer"):
        time.sleep(0.05)
        for _ in range(2):
            with span("inner"):
                time.sleep(0.05)
        time.sleep(0.05)
    assert profile.seconds["inner"] == pytest.approx(0.1, abs=0.03)
    assert profile.seconds["outer"] == pytest.approx(0.1, abs=0.03)


def test_an_error_closes_its_spans_and_nothing_is_counted_afterwards():
    profile = Profile()
    with pytest.raises(ZeroDivisionError), record_spans(profile), span("a"), span("b"):
        raise ZeroDivisionError
    counted = dict(profile.seconds)
    with span("a"):
        time.sleep(0.01)
    assert profile.seconds == counted


def test_spans_cost_next_to_nothing_when_nobody_profiles():
    """A control step of a batch takes a millisecond and opens five spans."""
    began = time.perf_counter()
    for _ in range(10_000):
        with span("x"):
            pass
    assert (time.perf_counter() - began) / 10_000 < 5e-6


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_shares_of_a_run_add_up_to_its_time(tmp_path, capsys, workers):
    file = tmp_path / "g.yaml"
    file.write_text(yaml.safe_dump({"scene": {"robot": "so101", "task": "pick_and_place"}}))
    arguments = ["generate", str(file), "--episodes", "8", "--workers", str(workers)]
    assert main([*arguments, "--output", str(tmp_path / "plain")]) == 0
    assert main([*arguments, "--output", str(tmp_path / "profiled"), "--profile", "--json"]) == 0
    assert sha256_tree(tmp_path / "plain") == sha256_tree(tmp_path / "profiled")
    captured = capsys.readouterr()
    metrics = json.loads(captured.out.splitlines()[-1])
    found = metrics["profile"]
    steps = {row["step"]: row for row in found["steps"]}
    assert {"draw", "expert", "command path", "physics", "encode parquet", "commit", "provenance"} <= set(steps)
    assert sum(row["share"] for row in found["steps"]) == pytest.approx(1.0)
    written = sum(row["writer_s"] for row in found["steps"])
    assert written == pytest.approx(found["seconds"], rel=0.05)
    assert steps["physics"]["ms_per_episode"] > steps["draw"]["ms_per_episode"]
    assert "ms per episode" in captured.err
