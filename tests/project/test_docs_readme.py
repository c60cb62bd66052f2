"""Commands and code in the README and in the tutorial of commands run unchanged."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from twinloop.generate import read_config
from twinloop.generate.config import load_plan

ROOT = Path(__file__).parents[2]
EXAMPLES = "".join((ROOT / page).read_text() for page in ("README.md", "docs/start/commands.md"))


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", EXAMPLES, flags=re.DOTALL)


def block(language: str) -> str:
    (text,) = blocks(language)
    return text


@pytest.mark.parametrize("code", blocks("python"))
def test_the_python_examples_print_what_they_say(code):
    said = re.search(r"print\(.*\)  # (\([^)]*\)[^:\n]*)", code).group(1)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "example", "exec"), {})
    assert printed.getvalue().strip() == said.strip()


def test_the_yaml_example_is_a_plan(tmp_path):
    (tmp_path / "generate.yaml").write_text(block("yaml"))
    config = read_config(tmp_path / "generate.yaml")
    plan = load_plan(config)
    assert config.episodes == 1024
    assert plan.texture_pool == 200
    assert config.render is not None


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    heads = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head).lower().replace(" ", "-") for head in heads}


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    wrong = []
    for link in re.findall(r"(?<!\\)\]\(([^)\s]+)\)", text):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if "://" not in link and not (target.exists() and (not anchor or anchor in anchors(target))):
            wrong.append(link)
    assert wrong == []


def test_every_command_shown_exists():
    from twinloop.cli.main import TWINLOOP

    shown = set(re.findall(r"^twinloop (\w+)", EXAMPLES, flags=re.MULTILINE))
    known = {command.name for command in TWINLOOP.commands}
    assert shown
    assert shown <= known
