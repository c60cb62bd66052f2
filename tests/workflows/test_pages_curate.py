"""The page on the quality of episodes, its wording, and an evaluation in a terminal."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from support.pages import KeptReport
from twinloop.catalog.label_checks import FAILURES, SUBTASKS
from twinloop.core.errors import InputError
from twinloop.core.evaluation import Evaluation
from twinloop.curate.check import CheckScore
from twinloop.evaluate.summary import EvaluationSummary
from twinloop.label.rules import RULES, open_rule
from twinloop.stats import clopper_pearson
from twinloop.workflows.curate.report import curate_section
from twinloop.workflows.curate.scores import CurateResult
from twinloop.workflows.data.label_requests import LabelRulesRequest
from twinloop.workflows.data.labels import list_rules
from twinloop.workflows.evaluate.evaluate import format_invalid, print_summary

NS: Any = SimpleNamespace
CHECKS: Any = [NS(name="physics/speed", meaning="too fast"), NS(name="recording/still", meaning="frozen pictures")]


class Recording:
    """An episode whose images are as bright as their frames."""

    def __init__(self, name, *, cameras=(), frames=40, gone=False):
        self.episode_id, self.where, self.cameras, self.frame_count, self.gone = (
            name,
            f"log {name}",
            cameras,
            frames,
            gone,
        )
        self.asked, self.forgotten = [], False

    def read_images(self, camera, rows):
        if self.gone:
            raise InputError("no file")
        self.asked.append((camera, list(rows)))
        return np.stack([np.full((320, 480, 3), row, dtype=np.uint8) for row in rows])

    def free_arrays(self):
        self.forgotten = True


def score(episode, verdict, check="physics/speed", **more):
    return CheckScore(
        episode_id=episode, check=check, verdict=verdict, reason=f"{check} of {episode} is {verdict}", **more
    )


def curated(recordings, *scores):
    page = KeptReport()
    curate_section(page, CurateResult(label="log", recordings=recordings, checks=CHECKS, scores=scores))
    return page


def table_after(page, head):
    """The first column's table of a section, by its name."""
    return next(table for table in page.tables if head in table)


def test_what_was_found_is_counted_by_check_and_episodes_come_worst_first():
    recordings = [Recording(name) for name in "abcd"]
    page = curated(
        recordings,
        score("a", "good", value=1.0, unit="m/s", limit=4.0, channel="elbow"),
        score("b", "suspect", value=5.0, unit="m/s", limit=4.0, channel="wrist", first_frame=3, last_frame=9),
        score("c", "bad", value=9.0, unit="m/s", limit=4.0, channel="elbow", first_frame=7, last_frame=7),
        score("c", "suspect", check="recording/still", channel="front"),
        score("d", "unknown", value=3.0),
        score("a", "unknown", check="recording/still", limit=2.0),
        score("b", "good", check="recording/still"),
    )
    assert [metric[:2] for metric in page.shown_metrics] == [("bad", 1), ("suspect", 1), ("good", 1), ("unknown", 1)]
    assert page.tones_of_metrics == {"bad": "bad", "suspect": None, "good": None, "unknown": None}
    found, episodes, checks, unknown = page.tables
    assert found == {
        "check": ["physics/speed", "recording/still"],
        "bad": [1, 0],
        "suspect": [1, 1],
        "worst finding": ["physics/speed of c is bad", "recording/still of c is suspect"],
    }
    assert episodes == {
        "episode": ["log c", "log b"],
        "verdict": ["bad", "suspect"],
        "check": ["physics/speed", "physics/speed"],
        "channel": ["elbow", "wrist"],
        "frames": ["7", "3–9"],
        "reason": ["physics/speed of c is bad", "physics/speed of b is suspect"],
        "other checks": ["recording/still", ""],
    }
    assert checks == {
        "check": ["physics/speed", "recording/still"],
        "bad": [1, 0],
        "suspect": [1, 1],
        "good": [1, 1],
        "unknown": [1, 1],
        "detects": ["too fast", "frozen pictures"],
    }
    assert unknown == {
        "check": ["physics/speed", "recording/still"],
        "reason for unknown": ["physics/speed of d is unknown", "recording/still of a is unknown"],
    }
    ((plot, _),) = page.plots
    points = {trace.name: (list(trace.x), list(trace.text)) for trace in plot.data}
    assert points == {
        "good": ([0.25], ["a elbow: 1 m/s, limit 4"]),
        "suspect": ([1.25], ["b wrist: 5 m/s, limit 4"]),
        "bad": ([2.25], ["c elbow: 9 m/s, limit 4"]),
    }


def test_an_episode_that_is_wrong_as_a_whole_says_so():
    page = curated([Recording("a"), Recording("b")], score("a", "bad"), score("b", "bad", first_frame=4))
    assert table_after(page, "frames")["frames"] == ["all", "4"]
    assert page.plots == []


def test_where_nothing_is_wrong_the_page_says_so_and_shows_the_metrics():
    page = curated([Recording("a")], score("a", "good", value=0.0, limit=2.0))
    assert "No episode is suspect or bad." in page.words
    assert page.heads == ["Metrics relative to their limits", "Checks"]
    assert len(page.plots) == 1


@pytest.mark.parametrize(("count", "more"), [(20, None), (23, "3 more episodes are in result.json.")])
def test_long_lists_are_cut_and_say_so(count, more):
    names = [f"e{number}" for number in range(count)]
    page = curated([Recording(name) for name in names], *(score(name, "unreadable") for name in names))
    assert page.heads[0] == "Unreadable episodes"
    assert page.tables[0]["episode"] == [f"log {name}" for name in names[:20]]
    assert page.tables[0]["reason"][1] == "physics/speed of e1 is unreadable"
    assert page.tones_of_metrics == {"unreadable": "bad"}
    assert (more in page.words) if more else not any("more episodes" in words for words in page.words)
    page = curated([Recording(name) for name in names], *(score(name, "bad") for name in names))
    assert len(table_after(page, "frames")["episode"]) == 20
    assert (more in page.words) if more else not any("more episodes" in words for words in page.words)


def has_images(*scores, **given):
    recording = Recording("a", cameras=("front", "wrist"), **given)
    return curated([recording], *scores), recording


@pytest.mark.parametrize(
    ("first", "last", "frames"),
    [
        (10, 20, [7, 11, 15, 19, 23]),  # three frames around, as a quarter of ten is less
        (10, 30, [5, 12, 20, 27, 35]),
        (1, 2, [0, 1, 2, 3, 5]),
        (38, None, [35, 36, 37, 38, 39]),
        (None, None, [0, 9, 19, 29, 39]),
    ],
)
def test_frames_are_shown_around_what_is_concerned(first, last, frames):
    page, recording = has_images(score("a", "bad", channel="wrist/depth", first_frame=first, last_frame=last))
    assert recording.asked == [("wrist", frames)]
    ((strip, caption),) = page.images
    assert strip.shape == (160, 5 * 240 + 4 * 4, 3)
    assert strip[80, [120 + 244 * number for number in range(5)], 0].tolist() == frames
    assert (strip[80, 240:244] == 255).all()
    assert caption.startswith(f"log a, wrist, frames {', '.join(map(str, frames))}. physics/speed: ")
    assert recording.forgotten


def test_a_camera_is_chosen_by_what_is_wrong_with_it_else_the_first():
    _, recording = has_images(score("a", "bad", channel="elbow"), score("a", "suspect", channel="wrist"))
    assert recording.asked[0][0] == "wrist"
    _, recording = has_images(score("a", "bad", channel="elbow"))
    assert recording.asked[0][0] == "front"


def test_images_that_are_gone_are_told():
    page, _ = has_images(score("a", "bad"), gone=True)
    assert "log a: no file" in page.words
    assert page.images == []
    assert "Images" not in curated([Recording("a")], score("a", "bad")).heads


# Words


def listed(workspace, folder, monkeypatch):
    monkeypatch.chdir(folder)
    output = io.StringIO()
    return list_rules(
        LabelRulesRequest(workspace=workspace), console=Console(file=output, width=300)
    ), output.getvalue()


def test_without_a_workspace_the_built_in_words_are_listed(tmp_path, monkeypatch):
    words, printed = listed(None, tmp_path, monkeypatch)
    assert words == {
        "schema": 1,
        "verb": "label rules",
        "rules": {name: open_rule(name).meaning for name in RULES},
        "failures": dict(FAILURES),
        "subtasks": dict(SUBTASKS),
        "tags": None,
    }
    heads = [line.strip() for line in printed.splitlines() if line.strip() in ("rule", "failure class", "subtask")]
    assert heads == ["rule", "failure class", "subtask"]
    for name, meaning in (*words["rules"].items(), *FAILURES.items(), *SUBTASKS.items()):
        assert any(line.split()[:1] == [name] and meaning in line for line in printed.splitlines())


def test_a_workspace_adds_its_own_words_whether_it_is_named_or_around(tmp_path, monkeypatch):
    from twinloop.catalog import Workspace

    root = tmp_path / "space"
    Workspace.create(root).close()
    (root / "labels.yaml").write_text("failures: {slipped: it turned}\ntags: {night: dark}\nsubtasks: {reach: go}\n")
    around, _ = listed(None, root, monkeypatch)
    named, printed = listed(root, tmp_path, monkeypatch)
    assert around == named
    assert named["failures"] == {**FAILURES, "slipped": "it turned"}
    assert named["tags"] == {"night": "dark"}
    assert named["subtasks"]["reach"] == "go"
    assert "slipped" in printed


# An evaluation in a terminal


def evaluation(slices=2, **changed):
    rows = {
        "slice": [f"s{number:02}" for number in range(slices) for _ in range(2)],
        "trial": [f"{number}" for number in range(2 * slices)],
        "success": [True, False] + [True] * (2 * slices - 2),
        "progress": [1.0, 0.5] + [1.0] * (2 * slices - 2),
        "time_s": [2.5, None] + [3.0] * (2 * slices - 2),
        "smoothness": [-2.0, None] + [-4.25] * (2 * slices - 2),
        "peak_force_n": [7.5, None] + [None] * (2 * slices - 2),
        "violations": [0, 1] + [0] * (2 * slices - 2),
        "latency_s": [0.001] * (2 * slices),
        "valid": [True, False] + [True] * (2 * slices - 2),
        "reason": [None, "diverged"] + [None] * (2 * slices - 2),
    }
    return Evaluation(policy="act", suite="picks", trials=pa.table(rows), **changed)


def printed(made):
    output = io.StringIO()
    print_summary(Console(file=output, width=200), made, EvaluationSummary.of(made))
    return output.getvalue()


def test_a_summary_prints_slices_their_metrics_and_the_worst():
    text = printed(evaluation(twin="arm", extra={"left_out": ["trial 7"], "episodes_per_minute": 41.6, "backend": "t"}))
    assert "act in picks on arm" in text
    half, whole, overall = clopper_pearson(1, 2), clopper_pearson(2, 2), clopper_pearson(3, 4)
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if "│" in line]
    assert rows == [
        ["s00", "1 / 2", f"[{half.low:.2f}, {half.high:.2f}]", "0.50", "2.50", "-2.00", "7.5", "0.50"],
        ["s01", "2 / 2", f"[{whole.low:.2f}, {whole.high:.2f}]", "1.00", "3.00", "-4.25", "–", "0.00"],
    ]
    assert (
        f"success 0.750 [{overall.low:.3f}, {overall.high:.3f}] of 4; worst slice s00 0.500, lowest true rate" in text
    )
    assert "over 2 slices" in text
    assert "1 worlds were invalid and count as failures: diverged." in text
    assert "Left out: trial 7" in text
    assert "42 episodes per minute on t." in text


def test_real_trials_and_a_single_slice_are_told_as_such():
    made = evaluation(1, domain="real", extra={})
    text = printed(made)
    assert "act in picks (real)" in text
    assert "worst slice" not in text
    assert "per minute" not in text
    assert "1 trials are invalid" in text
    assert "left out (diverged)" in text
    nameless = NS(invalid=3, slices=[NS(reasons=())])
    assert "left out (no reason given)" in format_invalid(made, nameless)


def test_a_terminal_shows_the_thirty_worst_slices():
    text = printed(evaluation(33))
    assert "3 more slices have higher success than these." in text
    assert ("s29" in text, "s30" in text) == (True, False)
    assert "more slices" not in printed(evaluation(30))
