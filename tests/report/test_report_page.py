"""The page: whole, self-contained, escaped, and with every figure in it."""

from __future__ import annotations

import base64
import io
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.report import KeyMetric, ReportPage
from twinloop.report.page import format_cell
from twinloop.report.plots import plot_error_by_joint

VOID = {"meta", "img", "br", "hr", "link"}
FETCHING = {"src", "href", "srcset", "data", "action", "poster", "xlink:href", "background"}


class Page(HTMLParser):
    """Checks that tags nest and keeps what a reader sees and what a browser would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.seen: dict[str, list[str]] = {}
        self.images: list[dict[str, str | None]] = []
        self.feed(text)
        self.close()
        assert self.open == [], "every tag is closed"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        if tag == "img":
            self.images.append(dict(attributes))
        assert tag not in {"link", "iframe", "object", "embed", "base"}
        self.fetched += [value or "" for name, value in attributes if name in FETCHING]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.seen.setdefault(self.open[-1], []).append(data.strip())


def small_figure():
    return plot_error_by_joint(["pan", "lift"], {"nominal": [1.0, 2.0], "identified": [0.5, 0.7]}, unit="±100")


def full_report() -> ReportPage:
    image = np.full((8, 12, 3), 90, dtype=np.uint8)
    return (
        ReportPage("SO-101 & friends <1>", "real log, 50 episodes")
        .key_metrics([KeyMetric(label="Yield", value=0.875, unit="1", source="229 attempts", tone="good")])
        .section("Gap", "One.\n\nTwo < three.")
        .table(["joint", "error"], [["pan", 0.25], ["lift", 1.5]], caption="MAE", tones={(1, 1): "bad"})
        .plot(small_figure(), "Held-out error.")
        .image(image, "Front camera.")
    )


def test_the_page_is_whole_and_holds_every_block() -> None:
    page = Page(full_report().html())
    assert page.seen["h1"] == ["SO-101 & friends <1>"]
    assert page.seen["title"] == ["SO-101 & friends <1>"]
    assert page.seen["h2"] == ["Gap"]
    assert page.seen["p"] == ["real log, 50 episodes", "One.", "Two < three."]
    assert page.seen["dt"] == ["Yield"]
    assert page.seen["dd"] == ["0.875", "229 attempts"]
    assert page.seen["td"] == ["pan", "0.25", "lift", "1.50"]
    assert page.seen["caption"] == ["MAE"]
    assert page.seen["figcaption"] == ["Held-out error.", "Front camera."]


def test_nothing_is_fetched_from_anywhere() -> None:
    text = full_report().html()
    assert all(address.startswith("data:") for address in Page(text).fetched)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style
    assert not re.search(r"url\(|@import|//", style[1])


def test_the_library_comes_once_and_only_where_there_are_plots() -> None:
    without = ReportPage("Plain").text("No plots.").html()
    assert len(without) < 10_000
    assert "<script" not in without
    two = ReportPage("Two").plot(small_figure()).plot(small_figure()).html()
    assert two.count("plotly.js v") == 1
    assert len(two.encode()) < 6_000_000


def test_a_plot_arrives_with_its_data() -> None:
    text = full_report().html()
    (spec,) = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    traces = {trace["name"]: trace for trace in json.loads(spec)["data"]}
    values = traces["identified"]["x"]
    decoded = np.frombuffer(base64.b64decode(values["bdata"]), dtype=values["dtype"])
    np.testing.assert_array_equal(decoded, [0.5, 0.7])


def test_text_that_looks_like_markup_stays_text() -> None:
    evil = "</script><script>alert(1)</script>"
    figure = plot_error_by_joint([evil], {evil: [1.0]})
    report = ReportPage(evil, evil).section(evil, evil).table([evil], [[evil]], caption=evil).plot(figure, evil)
    report.key_metrics([KeyMetric(label=evil, value=evil, unit=evil, source=evil)]).image(
        np.zeros((2, 2, 3), np.uint8), evil
    )
    text = report.html()
    Page(text)
    assert "<script>alert" not in text


def test_images_come_as_they_are_or_as_jpeg(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (6, 5, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    page = Page(ReportPage("P").image(tmp_path / "a.png", alt="noise").image(np.full((6, 5, 3), 80, np.uint8)).html())
    decoded = []
    for image, kind in zip(page.images, ("png", "jpeg"), strict=True):
        source = image["src"] or ""
        assert source.startswith(f"data:image/{kind};base64,")
        decoded.append(np.asarray(Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2])))))
    assert page.images[0]["alt"] == "noise"
    np.testing.assert_array_equal(decoded[0], noise)
    assert np.abs(decoded[1].astype(int) - 80).max() <= 2


def test_what_is_not_a_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(InputError, match=r"a\.txt is not an image\. A report takes PNG, JPEG or GIF"):
        ReportPage("P").image(tmp_path / "a.txt")
    with pytest.raises(InputError, match=r"none\.png does not exist\. Check the path"):
        ReportPage("P").image(tmp_path / "none.png")


def test_a_row_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(InputError, match="Row 1 of the table has 1 cells for 2 columns"):
        ReportPage("P").table(["a", "b"], [[1, 2], [1]])


def test_write_is_atomic_and_returns_the_path(tmp_path: Path) -> None:
    path = full_report().write(tmp_path / "runs" / "report.html")
    assert path.read_text(encoding="utf-8") == full_report().html()
    assert [item.name for item in path.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.58, "0.58"),
        (0.5804, "0.58"),
        (12.44, "12.4"),
        (126.3, "126"),
        (-0.0525, "−0.0525"),
        (204_800, "204\u2009800"),
        (191_234.5, "191\u2009234"),
        (1.5e-7, "1.50·10⁻⁷"),
        (-2.5e7, "−2.50·10⁷"),
        (0.0, "0"),
        (100.0, "100"),
        (float("nan"), "–"),
        (None, "–"),
        (float("-inf"), "−∞"),
        (True, "yes"),
        (np.float64(0.25), "0.25"),
        (np.int64(-1200), "−1\u2009200"),
        ("text", "text"),
    ],
)
def test_numbers_are_set_to_three_significant_digits(value, text: str) -> None:
    assert format_cell(value) == text


def test_without_plotly_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    monkeypatch.delitem(sys.modules, "plotly", raising=False)
    with pytest.raises(MissingDependencyError, match=r"To add it: pip install 'twinloop\[report\]'"):
        small_figure()
