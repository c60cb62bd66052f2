"""What was measured of a twin, in the studio: the history of the gap, its parameters, and the map of coverage."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from support.exports import generated_dataset
from support.quality import write_dataset
from support.studio import Server
from support.studio_browser import opened_page, visit, wait_until
from support.studio_measurements import BEGAN, CAUSES, ESTIMATES, measured, plant_clips, record
from twinloop.catalog import Workspace
from twinloop.catalog.label_checks import Label
from twinloop.core.errors import UnknownNameError

pytest.importorskip("starlette")

from twinloop.studio import coverage, decisions, gap
from twinloop.studio.data import StudioData


@pytest.fixture
def workspace(tmp_path):
    """Six real episodes, of which number 1 failed, and simulated ones; each has clips at planted places."""
    with Workspace.create(tmp_path / "cell") as ws:
        real = write_dataset(tmp_path / "cell" / "data" / "first", episodes=6, failed=(1,))
        ws.add(real)
        ws.add(generated_dataset(tmp_path / "made"))
        yield ws


@pytest.fixture
def data(workspace):
    return StudioData(workspace, "tester", workspace.root)


def test_the_history_is_in_order_and_its_worst_clips_are_episodes(workspace, data):
    record(workspace, "gap", "before", {"made": measured(0.4, 1)["made"]}, file=measured(0.4, 1), hours=1)
    record(workspace, "gap", "after", measured(0.2, 2), hours=2)
    record(workspace, "gap", "why", {"verb": "gap", "kind": "why", "explanations": CAUSES}, hours=3)
    found = gap.describe_gap(data)
    (kind,) = found["kinds"]
    assert (kind["kind"], [run["run"] for run in kind["runs"]]) == ("dynamics", ["before", "after"])
    metric = kind["runs"][1]["metrics"]["nrmse"]
    assert (metric["estimate"], metric["low"], metric["better"]) == (0.2, pytest.approx(0.19), "lower")
    assert kind["runs"][0]["data_hash"] == "b" * 64
    (clip,) = found["worst"]  # episode 77 is not in the workspace
    assert (clip["episode_index"], clip["batch"], clip["error"]) == (2, "first", 0.2)
    assert (clip["first_frame"], clip["last_frame"]) == (30, 45)
    assert found["causes"]["explanations"] == CAUSES


def test_a_file_of_a_later_run_is_not_taken_for_an_earlier_one(workspace, data):
    record(workspace, "gap", "same", measured(0.4, 1))
    record(workspace, "gap", "same", measured(0.2, 2), file={}, hours=1)
    (kind,) = gap.describe_gap(data)["kinds"]
    assert [run["metrics"]["nrmse"]["estimate"] for run in kind["runs"]] == [0.4, 0.2]


def test_damaged_results_hide_no_others(workspace, data):
    record(workspace, "gap", "good", measured(0.4, 1))
    for name, text in {
        "list": "[1]",
        "cut": '{"verb": "gap", "head',
        "numbers": '{"verb": "gap", "headline": 3}',
        "headline": '{"verb": "gap", "kind": "dynamics", "headline": 3}',
        "worst": '{"verb": "gap", "worst": [{"episode": "x"}]}',
    }.items():
        record(workspace, "gap", name, {})
        (workspace.root / "runs" / name).mkdir(parents=True)
        (workspace.root / "runs" / name / "result.json").write_text(text)
    record(workspace, "identify", "fit", {"gap": {"twins": {"a": [], "b": []}, "channels": [{"name": "x"}]}})
    found = gap.describe_gap(data)
    assert [run["run"] for run in found["kinds"][0]["runs"]] == ["good"]
    damaged = {row["run_id"]: row["folder"] for row in data.rows("SELECT run_id, folder FROM runs")}
    assert sorted(damaged[name] for name in found["damaged"]) == ["runs/fit", "runs/headline", "runs/worst"]


def test_parameters_are_those_of_the_chosen_run(workspace, data):
    assert gap.describe_parameters(data, "") == {"runs": [], "parameters": []}
    given = {
        "twin": {"name": "arm"},
        "not_determined_directions": ["a + b"],
        "notes": ["n"],
        "evidence": {"level": 0.9},
    }
    record(workspace, "identify", "fit", {"estimates": ESTIMATES, **given}, hours=1)
    record(workspace, "identify", "later", {"estimates": ESTIMATES[:1], **given}, hours=2)
    newest = gap.describe_parameters(data, "")
    assert [row["name"] for row in newest["parameters"]] == ["joint/a/damping"]
    older = gap.describe_parameters(data, newest["runs"][1]["run_id"])
    assert older["parameters"] == ESTIMATES
    assert (older["level"], older["directions"], older["twin"]["name"]) == (0.9, ["a + b"], "arm")
    with pytest.raises(UnknownNameError, match="identify run"):
        gap.describe_parameters(data, "01NONE")


def try_policy(workspace, outcomes: dict[str, bool]) -> None:
    """Record one trial of a policy per episode."""
    trials = [
        {"policy": "1" * 64, "suite": "robot", "trial": name, "episode_id": name, "source": "real", "success": success}
        for name, success in outcomes.items()
    ]
    workspace.append("evaluations", pa.Table.from_pylist(trials), run_id="planted")


def test_failures_of_policies_are_those_that_people_say(workspace, data):
    rows = data.rows("SELECT episode_id, source FROM episodes ORDER BY source, episode_index")
    real = [row["episode_id"] for row in rows if row["source"] == "real"]
    assert decisions.list_policies(data)["failures"] == []  # the failed episode is not one of a policy
    try_policy(workspace, {real[1]: False, real[2]: False, real[3]: True})
    (failure,) = decisions.list_policies(data)["failures"]  # the task says that episode 2 succeeded
    assert (failure["episode_id"], failure["policy"], failure["cameras"]) == (real[1], "1" * 64, ["front", "wrist"])
    for name, outcome in ((real[1], "yes"), (real[3], "no")):
        workspace.label([Label(episode_id=name, kind="success", value=outcome, source="hand", author="tester")])
    assert [row["episode_id"] for row in decisions.list_policies(data)["failures"]] == [real[3]]


def read_map(data: StudioData) -> np.ndarray:
    return np.frombuffer(coverage.read_points(data, "e" * 64), dtype="<f4").reshape(-1, 3)


def test_the_map_separates_the_sides_and_knows_failures(workspace, data):
    assert coverage.describe_map(data, "") == {"encoders": [], "measured": None}
    sides = plant_clips(workspace)
    points = read_map(data)
    assert len(points) == 2 * (len(sides["real"]) + len(sides["sim"]))
    assert np.abs(points[:, :2]).max() <= 1.06
    real = points[:, 2] >= 2
    assert real.sum() == 2 * len(sides["real"])
    assert (points[:, 2] == 3).sum() == 2  # the clips of the episode that failed
    signs = np.sign(points[real, 0].mean()) * points[:, 0]
    assert signs[real].min() > signs[~real].max()
    found = coverage.describe_map(data, "")
    assert {row["kind"]: row["clips"] for row in found["kinds"]}["real, failed"] == 2
    workspace.label([Label(episode_id=sides["sim"][0], kind="success", value="no", source="hand", author="tester")])
    assert (read_map(data)[:, 2] == 1).sum() == 2  # a label changes the map
    with pytest.raises(UnknownNameError, match="encoder"):
        coverage.describe_map(data, "f" * 64)


def test_a_clip_has_its_episode_and_neighbours_of_others(workspace, data):
    sides = plant_clips(workspace)
    kinds = read_map(data)[:, 2]
    row = int(np.flatnonzero(kinds >= 2)[0])
    own, *near = coverage.describe_clip(data, "e" * 64, row)["clips"]
    assert own["episode_id"] in sides["real"]
    assert near
    assert [one["distance"] for one in near] == sorted(one["distance"] for one in near)
    assert own["episode_id"] not in {one["episode_id"] for one in near}
    with pytest.raises(UnknownNameError, match="clip"):
        coverage.describe_clip(data, "e" * 64, 10_000)


def test_the_clips_of_a_hole_are_found_on_the_map(workspace, data):
    sides = plant_clips(workspace)
    holes = [
        {
            "mass": 1.0,
            "places": [{"episode": sides["real"][0], "first_frame": 60}, {"episode": "gone", "first_frame": 0}],
        }
    ]
    record(workspace, "coverage", "coverage", {"verb": "coverage", "metrics": {}, "holes": holes})
    found = coverage.describe_map(data, "")
    ((row,),) = found["hole_rows"]
    own = coverage.describe_clip(data, "e" * 64, row)["clips"][0]
    assert (own["episode_id"], own["first_frame"]) == (sides["real"][0], 60)
    assert found["measured"]["holes"] == holes


def test_failures_are_shown_as_film_strips(browser, workspace, data):
    rows = data.rows("SELECT episode_id, source FROM episodes ORDER BY source, episode_index")
    real, sim = (next(row["episode_id"] for row in rows if row["source"] == source) for source in ("real", "sim"))
    try_policy(workspace, {real: False, sim: False})
    for name in (real, sim):
        workspace.label([Label(episode_id=name, kind="success", value="no", source="hand", author="tester")])
    with Server(workspace.root) as server, opened_page(browser, server) as page:
        visit(page, "/policies")
        for name in (real, sim):  # images of the camera, and drawings of the states
            strip = f"[...document.querySelectorAll('a[href*=\"{name}\"] .film img')]"
            wait_until(page, f"{strip}.length === 5 && {strip}.every((image) => image.naturalWidth > 0)")
        sources = page.evaluate(f"{strip}.map((image) => image.src)")
        assert len(set(sources)) > 1
        assert all(source.startswith("data:image/jpeg") for source in sources)


def test_the_pages_show_what_was_measured(browser, workspace):
    record(workspace, "gap", "before", measured(0.4, 1), hours=1)
    record(workspace, "gap", "after", measured(0.2, 2), hours=2)
    record(workspace, "identify", "fit", {"estimates": ESTIMATES, "twin": {"name": "arm"}}, hours=3)
    sides = plant_clips(workspace)
    holes = [{"mass": 0.5, "episodes": 1, "judged": 0, "failure": None, "distance": 3.0, "middle": "episode 0 of first",
              "places": [{"episode": sides["real"][0], "first_frame": 0}]}]  # fmt: skip
    coverage_metrics = {"coverage": {"estimate": 0.5, "low": 0.4, "high": 0.6}}
    record(
        workspace, "coverage", "coverage", {"verb": "coverage", "metrics": coverage_metrics, "holes": holes}, hours=4
    )
    with Server(workspace.root) as server, opened_page(browser, server) as page:
        page.locator("#bar").get_by_role("link", name="Gap").click()
        rows = page.locator("tbody tr")
        rows.first.wait_for()
        assert [row.split()[0] for row in rows.all_text_contents()] == ["after2026-01-02", "before2026-01-02"]
        assert "0.200 [0.190, 0.210]" in rows.first.text_content()
        with page.expect_download() as download:
            page.get_by_role("link", name="CSV").click()
        lines = download.value.path().read_text().splitlines()
        assert lines[1].startswith('"after",')
        assert '"0.200 [0.190, 0.210]"' in lines[1]
        page.locator(".clip").click()
        wait_until(page, "document.querySelector('.transport input[type=range]')?.value === '30'")
        page.locator("#bar").get_by_role("link", name="Parameters").click()
        page.get_by_text("1 of 2 parameters of arm are determined").wait_for()
        page.get_by_text("not determined: the motion is too slow").wait_for()
        page.get_by_role("link", name="plan the excitation").click()
        wait_until(page, "document.querySelector('.command code')?.textContent.includes('identify --twin arm')")
        assert "--plan --excitation excitation.yaml" in page.locator(".command code").text_content()
        page.locator("#bar").get_by_role("link", name="Coverage").click()
        page.get_by_text("50 [40, 60] % of reality covered").wait_for()
        page.get_by_role("link", name="its episode").wait_for()
        page.locator(".scatter").press("Enter")
        page.get_by_text("The nearest of other episodes").wait_for()
        assert "clip=" in page.url
        visit(page, page.url.partition(str(server.port))[2])
        page.get_by_text("The nearest of other episodes").wait_for()
        page.locator(".clip").first.click()
        page.locator(".episode-page").wait_for()


def test_quality_counts_episodes_by_check_and_finds_contradictions(workspace, data):
    ids = [row["episode_id"] for row in data.rows("SELECT episode_id FROM episodes ORDER BY batch, episode_index")]
    verdicts = ["bad", "bad", "suspect", "good", "unknown"]
    scores = [
        {"episode_id": name, "check": "physics/it's", "check_hash": "1", "channel": channel, "unit": "",
         "verdict": verdict, "reason": f"it is {verdict}"}
        for name, verdict in zip(ids, verdicts, strict=False)
        for channel in ("a", "b")  # an episode counts once
    ]  # fmt: skip
    run = workspace.record_run("curate", None, {}, BEGAN, BEGAN, [])
    workspace.append("scores", pa.Table.from_pylist(scores), run_id=run)
    said = [("yes", "tester"), ("no", "another")]
    workspace.label(
        [Label(episode_id=ids[0], kind="success", value=value, source="hand", author=who) for value, who in said]
    )
    found = decisions.describe_quality(data)
    (check,) = found["checks"]
    assert [check[name] for name in ("episodes", "bad", "suspect", "undecided")] == [5, 2, 1, 1]
    assert check["example"] in ("it is bad", "it is suspect")
    assert [(row["value"], row["episodes"], row["authors"]) for row in found["labels"]] == [("no", 1, 1), ("yes", 1, 1)]
    assert found["conflicts"] == [{"kind": "success", "episodes": 1}]
