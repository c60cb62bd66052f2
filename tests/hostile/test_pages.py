"""Text from data stays text: in cards, in pages of reports, on the console."""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.table import Table

from support.dataset_writer import SPEC, write_all
from twinloop.catalog import Workspace
from twinloop.cli.main import main
from twinloop.core.console import (
    MarkdownCode,
    SafeConsole,
    escape_control,
    markdown_block,
    markdown_cell,
    markdown_code,
    markdown_text,
)
from twinloop.core.contract import Contract
from twinloop.core.documents import read_json
from twinloop.core.files import dumps, write_json
from twinloop.core.units import JointUnit, UnitMap
from twinloop.dataset.folder_card import folder_card
from twinloop.dataset.lerobot.metadata import format_card
from twinloop.policies.folder import PolicyCard, render_card
from twinloop.report import KeyMetric, ReportPage

SECRET = "Zq7-Vx9.Kd3"
EVIL = {
    "a script": "<script>alert(1)</script>",
    "a picture with a handler": '<img src=x onerror="alert(1)">',
    "an SVG with a handler": "<svg/onload=alert(1)>",
    "a link to a script": "[click](javascript:alert(1))",
    "a picture from elsewhere": "![x](http://evil.example/track.png)",
    "a link by reference": "[x]: http://evil.example",
    "an address in angle brackets": "<javascript:alert(1)>",
    "HTML entities": "&lt;script&gt;&#106;avascript:",
    "another column": "a | b | c",
    "a column behind a backslash": "a \\| b",
    "a comment that hides the rest": "<!-- hidden",
    "the end of a details element": "</details></div><iframe src=//evil.example>",
    "a heading": "# A heading of its own",
    "a rule and a heading below": "x\n---\n# Heading",
    "front matter": "x\n---\nlicense: mit\n---\n",
    "a numbered list": "1. first",
    "code": "`code` and ```",
    "a fence": "```\n<script>alert(1)</script>\n```",
    "emphasis": "**bold** _under_ ~~gone~~",
    "mathematics": "$\\href{javascript:alert(1)}{x}$",
    "a carriage return": "a\r<script>alert(1)</script>",
    "control characters": "\x1b[2J\x07\x9b31m",
    "text written backwards": "\u202etxet",
    "half a character": "\udc80",
}


def kinds(place: str) -> list:
    """One attack for each kind of text, in one place that shows it."""
    return [
        pytest.param(
            text,
            marks=pytest.mark.attack(f"{place} shows data that hold {what}", expected="shown as text, without effect"),
            id=what,
        )
        for what, text in EVIL.items()
    ]


class Tags(HTMLParser):
    """Collects the tags and attributes of HTML, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.names, self.words = list[str](), set[str](), list[str]()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.names |= {name for name, _ in attributes}

    def handle_data(self, data):
        self.words.append(data)


def rendered(text: str) -> Tags:
    """A card as a page, made by a reader of Markdown that lets HTML through."""
    markdown = pytest.importorskip("markdown_it")
    return Tags(markdown.MarkdownIt("commonmark").enable("table").render(body(text)))


def body(text: str) -> str:
    assert text.startswith("---\n")
    front, rest = text[4:].split("\n---\n", 1)
    assert isinstance(yaml.safe_load(front), dict)
    return rest


def assert_harmless(text: str, like: str) -> None:
    """A card has exactly the elements and attributes that it has with harmless text, and its front matter too."""
    one, other = rendered(text), rendered(like)
    assert one.tags == other.tags
    assert one.names == other.names
    front = [yaml.safe_load(item[4:].split("\n---\n", 1)[0]) for item in (text, like)]
    assert front[0].keys() == front[1].keys()
    assert front[0].get("license") == front[1].get("license")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", text)


def harmless(text: str) -> str:
    """A text without markup of as many lines, one or several: a licence of several is shown as a block."""
    return "x\ny" if "\n" in text.strip() else "x"


def writers_card(text: str) -> str:
    units = replace(SPEC.units, source=text)
    spec = replace(SPEC, name=text, robot_type=text, licence=text, ranges=(text,), units=units, config={text: text})
    return format_card(
        spec, episodes=1, frames=2, tasks=[text, text], recorded=False, tables=[text], video_codings={text: text}
    )


@pytest.mark.parametrize("text", kinds("the card that a dataset is written with"))
def test_cards_of_datasets(text, observed):
    made = writers_card(text)
    observed(made.split("## Time")[0].split("## Tasks")[1])
    assert_harmless(made, writers_card(harmless(text)))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """A v3.0 folder that another program wrote, and where its texts can be changed."""
    return write_all(tmp_path_factory.mktemp("pages") / "set")


def foreign_card(folder, text: str) -> str:
    info = read_json(folder / "meta/info.json")
    changed = {**info, "robot_type": text.encode(errors="replace").decode()}  # a file holds whole characters
    write_json(folder / "meta/info.json", changed)
    try:
        rows = [{"check": text, text: 1, "verdict": text}]
        return folder_card(folder, repo_id=text, name=text, licence=text, tables={"Quality": rows})
    finally:
        write_json(folder / "meta/info.json", info)


@pytest.mark.parametrize(
    "text",
    kinds("the card of a folder"),
)
def test_cards_of_folders(foreign, text):
    assert_harmless(foreign_card(foreign, text), foreign_card(foreign, harmless(text)))


def policy_card(text: str) -> str:
    units = UnitMap(joints=(JointUnit(joint=text, unit="rad", scale=1.0, offset=0.0),), source="x")
    contract = Contract(
        robot_type=text,
        control_hz=30.0,
        state=units,
        environment=(text,),
        cameras={text: (2, 3)},
        action=units,
        task=text,
    )
    config = {
        "contract": contract.to_json(), "kind": text, "parameters": 3, "hash": text, "versions": {text: text},
        "settings": {"action_space": text, "n_obs_steps": 1, "chunk_size": 1, "n_action_steps": 1,
                     "normalization": text, "type": text},
        "statistics": {"source": text},
    }  # fmt: skip
    made = PolicyCard(
        name=text, data=({text: text, "n": 1},), provenance={text: text}, metrics={text: 1.5}, notes=(text,)
    )
    return render_card(made, config)


@pytest.mark.parametrize("text", kinds("the card of a policy"))
def test_cards_of_policies(text):
    assert_harmless(policy_card(text), policy_card("x"))


@functools.cache
def page(text: str) -> str:
    from twinloop.report import plots

    metric = plots.plot_error_by_joint([text], {text: [1.0]}, unit=text)
    metric.update_layout(title=text)
    report = ReportPage(text, text).section(text, text).table([text], [[text]], caption=text).plot(metric, text)
    report.key_metrics([KeyMetric(label=text, value=text, unit=text, source=text)])
    return report.image(np.zeros((2, 2, 3), np.uint8), text, alt=text).html()


@pytest.mark.parametrize("text", kinds("the page of a report"))
def test_pages_of_reports(text, observed):
    pytest.importorskip("plotly")
    made = page(text)
    one, other = Tags(made), Tags(page("x"))
    observed(f"{len(one.tags)} elements, as with harmless text")
    assert one.tags == other.tags
    assert one.names == other.names
    made.encode()
    (spec,) = re.findall(r'<script type="application/json">(.*?)</script>', made, re.DOTALL)
    assert "<" not in spec
    texts = [str(item) for item in re.findall(r'"((?:[^"\\]|\\.)*)"', dumps(json.loads(spec)))]
    assert not [one for one in texts if re.search(r"<(?!/?(?:b|i|br|sub|sup|extra)>)", one)]


@pytest.mark.attack(
    "a script is put into a page of a report by a way that nobody thought of",
    expected="the page's policy lets a browser run our scripts only, and fetch nothing",
)
@pytest.mark.parametrize("plots", [True, False])
def test_the_policy_of_a_page(plots):
    pytest.importorskip("plotly")
    made = page("x") if plots else ReportPage("x").text("y").html()
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', made)
    assert policy.startswith("default-src 'none'; script-src ")
    assert "'unsafe-inline'; img-src" in policy
    scripts = policy.split("script-src ")[1].split(";")[0]
    assert "unsafe-inline" not in scripts
    hashes = {
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in re.findall(r"<script>(.*?)</script>", made, re.DOTALL)
    }
    assert hashes == set(scripts.split()) - {"'unsafe-eval'", "'none'"}
    assert made.index("Content-Security-Policy") < made.index("<title>")


@pytest.mark.attack("credentials reach a page of a report as its subtitle", expected="the page does not hold them")
def test_credentials_in_a_page():
    made = ReportPage("x", f"s3://u:{SECRET}@b").text(f"--token={SECRET}").table(["a"], [[f"//u:{SECRET}@b"]]).html()
    assert SECRET not in made


@pytest.mark.attack(
    "any text in a card: a line, a cell of a table, code, a block of code",
    expected="it makes no element, no column and no line of its own",
)
@settings(max_examples=150, deadline=None)
@given(
    st.text(st.characters(exclude_categories=()), max_size=30) | st.text("<>[]()`|\\*_#-+!&;:=~$ 1.\nx", max_size=20)
)
def test_any_text_in_a_card(text):
    markdown = pytest.importorskip("markdown_it")
    reader = markdown.MarkdownIt("commonmark").enable("table")
    line, cell, code = markdown_text(text), markdown_cell(text), markdown_cell(MarkdownCode(text))
    assert "\n" not in line + cell + code + markdown_code(text)
    made = Tags(
        reader.render(
            f"- {line}\n- y\n\n| a | b |\n|---|---|\n| {cell} | {code} |\n\n{markdown_block(escape_control(text))}\n"
        )
    )
    assert made.tags == [
        "ul",
        "li",
        "li",
        "table",
        "thead",
        "tr",
        "th",
        "th",
        "tbody",
        "tr",
        "td",
        "td",
        "code",
        "pre",
        "code",
    ]
    shown = " ".join(" ".join(made.words).split())
    wanted = " ".join(escape_control(" ".join(text.split())).split())
    assert wanted in shown


CONTROL = {
    "clears the screen": "\x1b[2J\x1b[H",
    "writes to the clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "makes a link": "\x1b]8;;http://evil.example\x1b\\text\x1b]8;;\x1b\\",
    "sets the title of the window": "\x1b]0;evil\x07",
    "uses a control sequence of one byte": "\x9b2J",
    "goes back over what was printed": "bad\rgood\x08\x08",
    "asks the terminal to answer": "\x1b[6n\x05",
    "is written backwards": "\u202egnp.exe",
    "cannot be encoded": "\udc9b\ud800",
}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            text,
            marks=pytest.mark.attack(
                f"a name that is printed on the console {what}", expected="written out, not obeyed"
            ),
            id=what,
        )
        for what, text in CONTROL.items()
    ],
)
def test_what_the_console_prints(text, observed):
    sink = io.StringIO()
    out = SafeConsole(file=sink, force_terminal=True, color_system=None, width=200, highlight=False, markup=False)
    table = Table(text, title=text, caption=text)
    table.add_row(text)
    out.print(text)
    out.print(table)
    out.print(f"name {text}", style="bold")
    made = re.sub(r"\x1b\[[0-9;]*m", "", sink.getvalue())  # rich's own styles
    observed(made.splitlines()[0])
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", made)
    made.encode()
    assert json.loads(escape_control(dumps({"a": text}))) == {"a": text}


@pytest.mark.attack(
    "names hold rich's own markup: [red], [link=…], [/], :boom:", expected="printed as they are, without an error"
)
@pytest.mark.parametrize(
    "text", ["[red]x[/red]", "[link=http://evil.example]x[/link]", "[/]", "[bold", ":boom:", "[@click=x]"]
)
def test_markup_of_the_console(tmp_path, capfd, monkeypatch, text):
    from twinloop.cli.commands import make_console

    make_console(json=False).print(text)
    assert capfd.readouterr().out == text + "\n"
    assert main(["fetch", text, str(tmp_path / "x")]) == 2
    assert text in capfd.readouterr().err


@pytest.mark.attack(
    "a dataset's batch, task and verdict with control characters are queried",
    expected="on the console and as JSON nothing is obeyed; a program reads the same text",
)
def test_what_a_query_prints(tmp_path, capfd):
    text = CONTROL["writes to the clipboard"] + CONTROL["uses a control sequence of one byte"]
    with Workspace.create(tmp_path / "cell"):
        sql = f"SELECT chr(27) || ']52;c;ZXZpbA==' || chr(7) || chr(155) || '2J' AS \"{text[:3]}\""
        for extra in ([], ["--json"], ["--format", "json"], ["--format", "csv"]):
            assert main(["query", sql, "--workspace", str(tmp_path / "cell"), *extra]) == 0
            said = capfd.readouterr()
            if "csv" not in extra:
                assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", said.out + said.err)
            if extra == ["--json"]:
                assert list(json.loads(said.out.splitlines()[-1])["answer"][0].values()) == [text]


@pytest.mark.attack("an error names a file whose name clears the screen", expected="written out")
def test_errors_with_control_characters(tmp_path, capfd):
    assert main(["import", f"{tmp_path}/\x1b[2J\x1b]0;x\x07.csv", "--output", str(tmp_path / "x")]) == 2
    assert "\x1b" not in capfd.readouterr().err
