"""A stored failure in the studio: its parameters as sliders, and the outcomes that flip with a change."""

from __future__ import annotations

import shutil

import pytest

from support.studio import Server
from support.studio_browser import opened_page, visit, wait_until
from twinloop.catalog import Workspace
from twinloop.core.errors import UnknownNameError
from twinloop.core.params import SeedPath
from twinloop.rollout import run_batch
from twinloop.rollout.scenario import Scenario
from twinloop.rollout.scenario_files import write_scenario
from twinloop.simulate import open_backend
from twinloop.tasks import open_task
from twinloop.twin import load_twin

pytest.importorskip("starlette")

from twinloop.studio import scenarios
from twinloop.studio.data import StudioData

SLIP = "object/cube/friction/slide"


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    """A workspace with an episode, a world in which the cube slips out of the expert's hand, and a damaged scenario."""
    folder = tmp_path_factory.mktemp("scenarios") / "cell"
    Workspace.create(folder).close()
    twin = load_twin("so101_tabletop")
    task = open_task("pick_and_place", twin)
    table = twin.table(1, {SLIP: 0.05}).with_seeds(SeedPath.of(3, [0]))
    made = run_batch(twin, task, table, run_seed=3, episodes=[0], backend=open_backend(nthread=1))
    assert not made.success[0]
    scenario = Scenario.of_episode(made.episode(0), twin, task, name="slippery", meaning="<b>it slips</b>")
    write_scenario(scenario, folder / "scenarios" / "slippery")
    shutil.copytree(folder / "scenarios" / "slippery", folder / "scenarios" / "cut")
    (folder / "scenarios" / "cut" / "scenario.yaml").write_text("schema: 1\nname: [")
    return folder


def test_a_slider_reaches_from_below_to_above_the_own_value(cell):
    with Workspace.open(cell) as workspace:
        data = StudioData(workspace, "tester", cell)
        listed = {one["scenario"]: one for one in scenarios.describe_scenarios(data)}
        assert "error" in listed["cut"]
        found = scenarios.describe_scenario(data, "slippery")
        with pytest.raises(UnknownNameError, match="slippery"):
            scenarios.describe_scenario(data, "slipery")
    param = load_twin("so101_tabletop").params[SLIP]
    first = found["world"][0]
    assert (first["name"], first["value"], first["own"]) == (SLIP, 0.05, True)
    assert first["low"] == param.low  # its physical bound
    assert first["high"] == 1.1  # the default range's end
    for row in found["world"]:
        assert row["low"] <= row["value"] <= row["high"], row
    assert [row["name"] for row in found["world"] if row["own"]] == [SLIP]
    assert len(found["world"]) == len(load_twin("so101_tabletop").params)


@pytest.mark.slow
def test_more_friction_turns_the_failure_into_a_success(browser, cell):
    with Server(cell) as server, opened_page(browser, server, expect=".empty") as page:
        visit(page, "/scenarios")
        page.get_by_text("<b>it slips</b>").wait_for()
        page.locator(".problem").wait_for()  # the damaged one
        page.get_by_role("link", name="slippery").click()
        page.get_by_label(SLIP, exact=True).wait_for()
        page.get_by_role("button", name="Try").click()
        page.get_by_text("Move a slider first.").wait_for()
        page.get_by_label("Policy").fill("expert")
        page.get_by_label("Worlds").select_option("4")
        page.get_by_label(SLIP, exact=True).fill("1")
        assert page.locator(".command code").text_content() == (
            f"twinloop scenario counterfactual slippery --change {SLIP}=1 --tries 4 --policy expert"
        )
        page.get_by_role("button", name="Try").click()
        page.locator(".worlds").first.wait_for(timeout=120_000)
        assert page.locator("tbody tr").nth(0).locator(".worlds .lost").count() == 4
        changed = page.locator("tbody tr").nth(1)
        assert changed.locator(".worlds .won").count() == changed.locator(".worlds .flipped").count() == 4
        page.get_by_label("Policy").fill("policies/none")
        page.get_by_role("button", name="Try").click()
        page.get_by_role("alert").filter(has_text="policies/none").wait_for(timeout=120_000)
        wait_until(page, "document.querySelectorAll('.worlds').length === 0")
