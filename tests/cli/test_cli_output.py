"""The flags that direct what a command prints: --quiet, --verbose and --log-file."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys

import pytest

from support.labelled import workspace
from twinloop.cli.main import main

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00 (.*)")


@pytest.fixture(name="cell")
def inside_workspace(tmp_path, monkeypatch):
    made, _ = workspace(tmp_path / "cell")
    made.close()
    monkeypatch.chdir(tmp_path / "cell")


def test_quiet_prints_only_errors_and_json(cell, capsys):
    assert main(["label", "--where", "episode_index = 0", "--tag", "a", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["label", "--where", "episode_index = 1", "--tag", "a", "--quiet", "--json"]) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out)["labels"], err) == (1, "")
    assert main(["label", "--where", "nothing = 1", "--tag", "a", "--quiet"]) == 2
    assert "nothing" in capsys.readouterr().err


def test_a_log_file_has_what_was_printed_with_times_and_errors(cell, tmp_path, capsys):
    file = tmp_path / "log.txt"
    assert main(["label", "--where", "episode_index = 0", "--tag", "a", "--log-file", str(file)]) == 0
    assert main(["label", "--where", "nothing = 1", "--tag", "a", "--log-file", str(file)]) == 2
    printed = "".join(capsys.readouterr()).splitlines()
    logged = [LINE.fullmatch(line)[1] for line in file.read_text().splitlines()]  # type: ignore[index]
    assert sorted(logged) == sorted(printed)
    assert "nothing" in logged[-1] + logged[-2]
    assert sys.stdout.write.__self__.__class__.__name__ != "_Both"


def test_a_log_file_that_cannot_be_written_is_named(cell, tmp_path, capsys):
    assert main(["label", "--where", "true", "--tag", "a", "--log-file", str(tmp_path / "no" / "log.txt")]) == 2
    assert "log.txt cannot be written" in " ".join(capsys.readouterr().err.split())


def test_colours_and_bars_leave_no_control_characters_in_the_log(tmp_path):
    program = (
        "import sys; from types import SimpleNamespace as N; from pathlib import Path\n"
        "from twinloop.cli.output import directed_output\n"
        "with directed_output('query', N(log_file=Path(sys.argv[1]))):\n"
        "    sys.stderr.write('\\x1b[2K10 %\\r\\x1b[2K20 %\\r\\x1b[1mdone\\x1b[0m\\n')\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "log.txt")], check=True, capture_output=True)
    assert LINE.fullmatch((tmp_path / "log.txt").read_text().strip())[1] == "done"  # type: ignore[index]


def test_verbose_prints_log_messages_without_secrets(cell, monkeypatch, capsys):
    def query(*_: object) -> dict[str, object]:
        logging.getLogger("some.library").info("opened https://me:hunter2@host/")
        return {"rows": 0}

    monkeypatch.setattr("twinloop.workflows.data.query.run_query", query)
    assert main(["query", "SELECT 1"]) == 0
    assert "some.library" not in capsys.readouterr().err
    assert main(["query", "SELECT 1", "--verbose"]) == 0
    printed = capsys.readouterr().err
    assert "some.library: opened" in printed
    assert "hunter2" not in printed
    assert logging.getLogger().level != logging.INFO
