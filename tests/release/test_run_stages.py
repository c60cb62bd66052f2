"""Candidates on a running robot: one that only looks on, one that acts in a share, and the way back after a trip."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.catalog import Workspace
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.side_tables import open_side_table
from twinloop.release.plan import ShadowPlan, StagePlan
from twinloop.release.promotion import promote
from twinloop.release.registry import PolicyRegistry
from twinloop.release.running_policy import LocalDecider
from twinloop.release.running_record import SCORES
from twinloop.release.stages import StageTracker
from twinloop.workflows.deploy.requests import RunRequest
from twinloop.workflows.deploy.run import run_policy

pytest.importorskip("torch")

from support.releases import yes
from support.running import ROBOT, said, saved_policy  # needs torch


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A workspace to work in, whose registry has a champion, and another version."""
    Workspace.create(tmp_path / "cell").close()
    monkeypatch.chdir(tmp_path / "cell")
    with Workspace.open(tmp_path / "cell") as workspace:
        found = PolicyRegistry(workspace)
        for number, name in enumerate(("first", "second")):
            found.add(saved_policy(tmp_path / name, spread=0.3 + 0.1 * number), name=name)
        promote(found, "first", to="champion", force=True, reason="the first one")
        yield found


def requested(tmp_path, **changes) -> RunRequest:
    given = {"robot": ROBOT, "policy": "champion", "output": tmp_path / "out", "seconds": 0.3}
    return RunRequest(**{**given, **changes})


@pytest.mark.slow
def test_a_policy_in_shadow_looks_on_and_its_divergence_is_told(registry, tmp_path):
    yes(registry, "second@1", StagePlan(shadow=ShadowPlan(limit=50.0), canary=None))
    promote(registry, "second", to="shadow")
    metrics, code = run_policy(requested(tmp_path, episodes=2), console=said()[0])
    assert (code, metrics["policy"]) == (0, "first@1")
    rows = registry.workspace.state.rows("SELECT episode, arm, stage, shadow FROM release_episodes ORDER BY episode")
    assert [(row["episode"], row["arm"], row["stage"]) for row in rows] == [
        (0, "champion", "shadow"),
        (1, "champion", "shadow"),
    ]
    scores = open_side_table(tmp_path / "out", SCORES).to_table().to_pylist()
    assert len(scores) == metrics["frames"]
    assert {row["name"] for row in scores} == {"shadow"}
    assert all(row["value"] > 0.0 for row in scores)
    row = DatasetReader(tmp_path / "out").provenance(0)
    assert (row.actor, row.extra["stage"]) == ("policy:first@1", "shadow")


@pytest.mark.slow
def test_a_canary_acts_in_the_episodes_that_are_its(registry, tmp_path):
    promote(registry, "second", to="canary", force=True, reason="a try")
    stages = StageTracker(registry)
    arms = [stages.assign_arm(number) for number in range(30)]
    first = next(
        number for number in range(30) if arms[number : number + 2] in (["canary", "champion"], ["champion", "canary"])
    )
    run_policy(requested(tmp_path, episodes=2, first=first), console=said()[0])
    reader = DatasetReader(tmp_path / "out")
    named = {"canary": "policy:second@1", "champion": "policy:first@1"}
    assert [reader.provenance(i).actor for i in range(2)] == [named[arm] for arm in arms[first : first + 2]]
    assert [reader.provenance(i).extra["arm"] for i in range(2)] == arms[first : first + 2]


@pytest.mark.slow
def test_a_trip_rolls_back_where_that_is_asked_for(registry, tmp_path, monkeypatch):
    promote(registry, "second", to="champion", force=True, reason="the second one")
    monkeypatch.setattr(LocalDecider, "act", lambda self, observation: np.full(6, np.nan))
    settings = tmp_path / "envelope.yaml"
    settings.write_text("stop_after_s: 0.2\n")
    console, text = said()
    request = requested(tmp_path, seconds=2.0, episodes=2, envelope=settings, on_trip="rollback")
    metrics, code = run_policy(request, console=console)
    assert code == 1
    assert metrics["trips"] == [
        {"episode": 0, "kind": "stopped", "reason": "the command of shoulder_pan is not a number, for 0.2 s"}
    ]
    assert registry.aliases()["champion"] == "first@1"
    assert "tripped: the command of shoulder_pan" in registry.audit()[-1].details["reason"]
    assert "Rolled back" in text.getvalue()
