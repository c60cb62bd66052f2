"""Progress of long work: the time that is left, and lines on standard error."""

import os
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinloop.core import progress
from twinloop.core.progress import (
    ProgressCounter,
    announce_duration,
    format_duration,
    show_counter,
    show_progress,
    track,
)


@given(st.integers(1, 1000), st.integers(1, 1000), st.floats(0.01, 100.0), st.integers(0, 50))
def test_time_left_is_exact_for_work_of_constant_speed(done, more, seconds, resumed):
    now = [0.0]
    counter = ProgressCounter(resumed + done + more, done=resumed, clock=lambda: now[0])
    assert counter.seconds_left() is None
    now[0] = done * seconds
    counter.advance(done)
    assert counter.seconds_left() == pytest.approx(more * seconds)
    counter.advance(more)
    assert counter.seconds_left() == 0.0


def test_a_stage_has_its_own_speed_and_at_most_its_number_of_items():
    now = [100.0]
    counter = ProgressCounter(0, clock=lambda: now[0])
    counter.update("first", 0, 5)
    now[0] += 50.0
    counter.update("second", 0, 10)
    now[0] += 8.0
    counter.update("second", 4, 10)
    assert counter.seconds_left() == pytest.approx(12.0)
    assert str(counter) == "second, 4 of at most 10, 0:58 so far, at most 0:12 left in this stage"


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (725, "12:05"), (10_920, "3:02:00")])
def test_format_duration(seconds, text):
    assert format_duration(seconds) == text


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(progress, "FIRST_LINE_S", 0.03)
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.06)


def test_redirected_work_prints_lines_on_standard_error_even_while_no_item_ends(short, capsys):
    with show_progress(label="render\x1b[2J", total=4) as advance:
        advance(1)
        time.sleep(0.15)
        advance(3)
    found = capsys.readouterr()
    lines = found.err.splitlines()
    assert found.out == ""
    assert lines[0] == r"render\u001b[2J: 1 of 4, 0:00 so far, 0:00 left"
    assert lines[-1] == r"render\u001b[2J: 4 of 4, 0:00 so far, 0:00 left"
    assert 3 <= len(lines) <= 4


def test_short_work_prints_nothing(capsys):
    assert list(track(iter("ab"), label="x", total=2)) == ["a", "b"]
    with pytest.raises(ValueError, match="own"), show_counter("x", 2):
        raise ValueError("own")
    assert capsys.readouterr() == ("", "")


def test_long_work_is_announced_and_short_work_is_not(capsys):
    announce_duration("render", 59.0)
    announce_duration("render [0/0]", 725.0)
    assert capsys.readouterr().err == "render [0/0]: this takes about 12:05 (a first estimate)\n"


PROGRAM = """
import json, sys, time
from pathlib import Path
from twinloop.core.progress import show_counter, show_progress
file = Path(sys.argv[1])
def read(wanted, done=None):
    for _ in range(500):
        try:
            found = json.loads(file.read_text())
        except FileNotFoundError:
            found = None
        if (found and (found["label"], found["done"])) == (wanted and (wanted, done)):
            return found
        time.sleep(0.02)
    raise SystemExit(f"{wanted}: {found}")
with show_progress(label="outer", total=8, done=2) as advance:
    advance(2)
    found = read("outer", 4)
    assert (found["total"], found["stage"]) == (8, ""), found
    assert found["left_s"] >= 0, found
    with show_counter("inner", 3):
        read("inner", 0)
    read("outer", 4)
read(None)
"""


def test_a_file_contains_the_progress_of_the_innermost_work(tmp_path):
    environment = {**os.environ, "TWINLOOP_PROGRESS": str(tmp_path / "progress.json")}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "progress.json")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
