"""The studio's pages in a real browser (Debian's chromium)."""

from __future__ import annotations

import re

import pytest

from support.exports import generated_dataset
from support.studio import Server, studio_workspace
from support.studio_browser import opened_page, visit, wait_until
from twinloop.catalog import Workspace
from twinloop.catalog.label_checks import Label

pytest.importorskip("starlette")

LOADED = """(() => {
    const all = [...document.querySelectorAll("video")];
    return all.length === 2 && all.every((one) => one.readyState > 2);
})()"""
DRAWN = """(() => {
    const { width, height } = document.querySelector("canvas");
    return document.querySelector("canvas").getContext("2d").getImageData(0, 0, width, height).data.some(Boolean);
})()"""
TWICE = """(() => {
    const field = document.getElementById("sql");
    for (const least of [3, 2]) {
        field.value = `SELECT episode_id FROM episodes WHERE episode_index > ${least} -- twice`;
        field.form.requestSubmit();
    }
})()"""
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = studio_workspace(tmp_path_factory.mktemp("studio") / "cell")
    with Workspace.open(folder) as ws:
        (row,) = ws.query("SELECT episode_id FROM episodes WHERE episode_index = 5").to_pylist()
        ws.label([Label(episode_id=row["episode_id"], kind="tag", value=HOSTILE, source="rule", author="<b>rule</b>")])
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with Server(folder) as made:
        yield made


@pytest.fixture
def page(browser, server):
    with opened_page(browser, server) as opened:
        yield opened


def test_the_list_filters_and_shows_its_sql(page):
    assert page.locator(".episode").count() == 6
    page.get_by_role("link", name="failure 2").click()
    wait_until(page, "document.querySelectorAll('.episode').length === 2")
    assert "outcome=no" in page.url
    assert "'no'" in page.locator("#sql").input_value()
    page.evaluate(TWICE)  # the answer to the first question must not replace that to the second
    wait_until(page, "document.getElementById('total').textContent === '3 episodes'")
    wait_until(page, "document.getElementById('sql').value.endsWith('twice')")
    page.locator("#sql").fill("SELECT nonsense FROM episodes")
    page.get_by_role("button", name="Run").click()
    page.get_by_role("alert").filter(has_text="nonsense").wait_for()
    page.go_back()
    wait_until(page, "document.querySelectorAll('.episode').length === 3")


def test_an_episode_plays_and_its_cursor_follows(page):
    page.locator(".episode").first.click()
    page.wait_for_selector(".plots canvas")
    wait_until(page, LOADED)
    assert page.locator("video").count() == 2
    assert page.evaluate(DRAWN)
    assert page.locator(".clock").text_content().startswith("0 / ")
    page.keyboard.press("Shift+ArrowRight")
    assert page.locator(".clock").text_content().startswith("10 / ")
    reading = page.locator(".reading").first.text_content()
    page.keyboard.press("Space")
    wait_until(page, "Number(document.querySelector('.clock').textContent.split(' ')[0]) > 14")
    page.keyboard.press("Space")
    assert page.locator(".reading").first.text_content() != reading
    box = page.locator(".plot canvas").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] - 8, box["y"] + 50)
    last = page.locator(".clock").text_content().split()
    assert last[0] == last[2]


def test_the_frame_shown_is_that_of_the_clock(page, folder):
    page.locator(".episode").nth(2).click()
    wait_until(page, LOADED)
    for _ in range(7):
        page.keyboard.press("ArrowRight")
    with Workspace.open(folder) as ws:
        reader = ws.reader("first")
        _, start = reader.video_location(2, "front")
    shown = page.evaluate("document.querySelector('video').currentTime")
    assert int((shown - start) * reader.fps) == 7


def test_a_label_survives_a_reload_and_is_undone(page):
    page.locator(".episode").nth(3).click()
    page.wait_for_selector(".plots canvas")
    page.keyboard.press("f")
    page.get_by_label("Class of the failure").fill("dropped")
    page.get_by_role("button", name="Save").click()
    page.locator(".labels li", has_text="dropped").wait_for()
    page.keyboard.press("[")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("]")
    page.get_by_label("Subtask of frames 0 to 10").fill("reach")
    page.get_by_role("button", name="Save").click()
    page.locator(".labels li", has_text="reach").wait_for()
    page.reload()
    page.locator(".labels li", has_text="dropped").wait_for()
    assert page.locator(".title .chip.bad").text_content() == "failure"
    for left in (2, 0):
        page.keyboard.press("z")
        wait_until(page, f"document.querySelectorAll('.labels li').length === {left}")


def test_an_excluded_episode_is_found_and_included_again(page):
    page.locator(".episode").nth(4).click()
    page.wait_for_selector(".plots canvas")
    page.keyboard.press("x")
    page.get_by_label("Why is it excluded?").fill("blurry")
    page.get_by_role("button", name="Save").click()
    page.locator(".title .chip", has_text="excluded").wait_for()
    visit(page, "/episodes?excluded=yes")
    page.wait_for_selector(".episode")
    assert page.locator(".episode").count() == 1
    page.locator(".episode").first.click()
    page.wait_for_selector(".plots canvas")
    page.keyboard.press("x")
    page.locator(".title .chip", has_text="excluded").wait_for(state="detached")


def test_hostile_names_are_shown_as_text(page):
    page.locator(".episode").nth(5).click()
    page.wait_for_selector(".labels li")
    assert HOSTILE in page.locator(".labels").text_content()
    assert "<b>rule</b>" in page.locator(".labels").text_content()
    visit(page, "/episodes?" + "task=" + HOSTILE)
    page.wait_for_selector(".empty")


def test_keys_move_in_the_list(page):
    page.wait_for_selector("aside .filter")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector(".plots canvas")
    assert "episode 1 ·" in page.locator(".title").text_content()
    page.keyboard.press("n")
    page.get_by_text("episode 2 ·").wait_for()
    page.keyboard.press("?")
    assert page.locator("dialog").is_visible()


def test_a_run_shows_its_report_and_its_command(page):
    page.get_by_role("link", name="Runs").click()
    page.wait_for_selector(".run")
    assert page.locator(".run").count() == 3
    page.locator(".run", has_text="gate").get_by_text("a check said no").wait_for()
    page.get_by_role("link", name="gap 1").click()
    wait_until(page, "document.querySelectorAll('.run').length === 1")
    page.locator(".run").click()
    page.frame_locator("iframe.report").get_by_text("All is well.").wait_for()
    assert page.locator(".command code").text_content() == "twinloop gap --data 'data/it'\\''s here'"
    assert "0.25 [0.13, 0.50]" in page.locator(".tree").text_content()


def test_versions_policies_and_releases_have_pages(page):
    bar = page.locator("#bar")
    bar.get_by_role("link", name="Datasets").click()
    page.get_by_text("added 1 · removed 0").wait_for()
    page.get_by_label("Later version").select_option("good@1")
    page.get_by_text("added 0 · removed 0").wait_for()
    page.get_by_role("link", name="good@1").click()
    wait_until(page, "document.querySelectorAll('.episode').length === 4")
    bar.get_by_role("link", name="Quality").click()
    page.get_by_role("row", name="tag").first.wait_for()
    bar.get_by_role("link", name="Policies").click()
    page.get_by_text("first is better than 222222222222").wait_for()
    assert page.locator(".rate").count() == 4
    bar.get_by_role("link", name="Releases").click()
    page.get_by_text("entries is intact").wait_for()
    page.locator(".decision").first.click()
    page.locator(".decision td", has_text="planted").first.wait_for()


def test_an_unknown_page_says_so(page):
    visit(page, "/nothing")
    page.get_by_text("No such page").wait_for()
    visit(page, "/episodes/" + "0" * 64)
    page.get_by_text("cannot be shown").wait_for()


def test_a_form_shows_its_command_line_and_starts_it(page):
    page.locator("#bar").get_by_role("link", name="Live").click()
    page.get_by_label("Command to start").select_option("query")
    page.get_by_label("SQL").fill("SELECT max(frames) AS longest FROM episodes")
    page.get_by_text("More options").click()
    page.get_by_label("--format").select_option("csv")
    assert page.locator(".command code").text_content() == (
        "twinloop query 'SELECT max(frames) AS longest FROM episodes' --format csv"
    )
    page.get_by_role("button", name="Start").click()
    page.locator(".chip", has_text="done").wait_for()
    page.get_by_label("Log").filter(has_text="longest").wait_for()
    page.get_by_role("link", name="‹ live").click()
    page.locator(".job", has_text="longest").wait_for()


COLOURS = """(() => {
    const view = document.querySelector(".view3d"), gl = view.getContext("webgl2");
    const pixels = new Uint8Array(4 * view.width * view.height);
    gl.readPixels(0, 0, view.width, view.height, gl.RGBA, gl.UNSIGNED_BYTE, pixels);
    return Array.from({ length: 400 }, (_, i) => pixels[4 * Math.floor((i / 400) * view.width * view.height)]);
})()"""


def test_a_simulated_episode_is_shown_in_three_dimensions(browser, tmp_path):
    with Workspace.create(tmp_path / "cell") as ws:
        ws.add(generated_dataset(tmp_path / "mast"))
    with Server(tmp_path / "cell") as server, opened_page(browser, server) as page:
        page.locator(".episode").first.click()
        page.locator(".view3d").wait_for()
        page.get_by_text("3-D, states of the simulation").wait_for()
        wait_until(page, f"new Set({COLOURS}).size > 8")
        before = page.evaluate(COLOURS)
        for _ in range(3):
            page.keyboard.press("Shift+ArrowRight")
        assert page.evaluate(COLOURS) != before
        box = page.locator(".view3d").bounding_box()
        now = page.evaluate(COLOURS)
        page.mouse.move(box["x"] + 50, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + 120, box["y"] + 90)
        page.mouse.up()
        assert page.evaluate(COLOURS) != now


def test_an_episode_without_a_twin_says_why_there_is_no_view(page):
    page.locator(".episode").first.click()
    page.get_by_text("The workspace names no twin.").wait_for()


def test_a_list_becomes_a_dataset_version_and_an_episode_a_scenario(page):
    sql = "SELECT episode_id FROM episodes -- a comment ends with its line\nWHERE success"
    page.locator("#sql").fill(sql)
    page.get_by_role("button", name="Run").click()
    wait_until(page, "document.querySelectorAll('.episode').length === 4")
    page.get_by_role("link", name="freeze").click()
    assert page.get_by_label("--sql").input_value() == sql
    page.get_by_label("NAME").fill("chosen")
    page.get_by_role("button", name="Start").click()
    page.locator(".chip", has_text="done").wait_for()
    page.locator("#bar").get_by_role("link", name="Datasets").click()
    page.get_by_role("link", name="chosen@1").click()
    wait_until(page, "document.getElementById('total')?.textContent === '4 episodes'")
    page.locator("#bar").get_by_role("link", name="Scenarios").click()
    page.get_by_text("No scenario yet").wait_for()
    visit(page, "/episodes")
    page.locator(".episode").nth(1).click()
    page.get_by_role("link", name="make a scenario").click()
    page.get_by_label("EPISODE").wait_for()
    assert page.get_by_label("EPISODE").input_value() == "first:1"


def compared(page) -> list[dict]:
    """What the server says of both episodes of a comparison."""
    ids = re.findall(r"[0-9a-f]{64}", page.url)
    return [page.evaluate(f"fetch('/api/episodes/{one}').then((answer) => answer.json())") for one in ids]


def test_two_episodes_are_compared_on_one_transport(page):
    page.locator(".episode").nth(1).click()
    page.wait_for_selector(".plots canvas")
    page.keyboard.press("c")
    page.get_by_text("marked for comparison").wait_for()
    page.keyboard.press("n")
    page.get_by_role("link", name="compare with the marked one").click()
    page.get_by_text("A is drawn first").wait_for()
    wait_until(page, "document.querySelectorAll('video').length === 4")
    wait_until(page, "[...document.querySelectorAll('video')].every((one) => one.readyState > 1)")
    page.locator(".transport input[type=range]").fill("30")
    starts = [camera["start_s"] for one in compared(page) for camera in one["cameras"]]
    times = page.evaluate("[...document.querySelectorAll('video')].map((one) => one.currentTime)")
    assert [time - start for time, start in zip(times, starts, strict=True)] == pytest.approx([30.5 / 30] * 4, abs=0.01)
    readings = page.locator(".reading").first.text_content().split("·")
    assert len(readings) == 2
    assert readings[0].strip() != readings[1].strip()
    with page.expect_download() as download:
        page.locator(".plot .save").first.click(force=True)
    assert download.value.path().read_bytes()[:4] == b"\x89PNG"
