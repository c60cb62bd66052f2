"""The page and the words of a coverage of reality: covered regions, the holes, and the parameter space."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from support.pages import KeptReport, ends, interval
from twinloop.core.errors import InputError
from twinloop.curate.cells import CellBox, ParameterCell, ParameterPairCell
from twinloop.curate.coverage import ClipRows, CoverageHole, RealCoverage
from twinloop.stats.neighbours import NeighbourMetrics
from twinloop.workflows.coverage import page as pages_coverage
from twinloop.workflows.coverage.axes import ParameterSpace
from twinloop.workflows.coverage.measured import CoverageResult
from twinloop.workflows.coverage.page import coverage_sections
from twinloop.workflows.coverage.requests import ComparedSides
from twinloop.workflows.coverage.result_text import (
    findings,
    format_box,
    format_failure_rate,
    result_to_json,
    text_lines,
)
from twinloop.workflows.coverage.sides import ClipSettings

NS: Any = SimpleNamespace
NAN = float("nan")
HOLES = (
    CoverageHole(clips=np.array([2, 1]), mass=0.25, episodes=2, distance=2.5, judged=4, failure=0.25, weight=0.5),
    CoverageHole(clips=np.array([4]), mass=0.125, episodes=3, distance=3.5, judged=0, failure=NAN, weight=0.2),
    CoverageHole(clips=np.array([1]), mass=0.0625, episodes=2, distance=1.5, judged=0, failure=NAN, weight=0.1),
)


def shares(coverage_floor=0.97):
    return NeighbourMetrics(
        precision=interval(0.4, 0.3, 0.55),
        recall=interval(0.5, 0.35, 0.6),
        density=interval(0.7, 0.6, 0.85),
        coverage=interval(0.625, 0.45, 0.9),
        k=3,
        floor={"precision": 0.91, "recall": 0.92, "density": NAN, "coverage": coverage_floor},
        p_value={},
    )


def side(label, count, prefix, success, recordings=None):
    members = [
        NS(title=f"{prefix} {i}", episode_id=f"{prefix}{i}", recording=recordings and recordings[i])
        for i in range(count)
    ]
    return NS(label=label, members=members, success=np.array(success, dtype=float))


def measured(*, coverage_floor=0.97, recordings=(None, None), **changed):
    made = {
        "options": ComparedSides(clip=1.5),
        "real": side("log", 4, "real", [1, 0, 1, NAN], recordings[0]),
        "sim": side("sims", 3, "sim", [1, 0, NAN], recordings[1]),
        "real_rows": ClipRows(
            rows=np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 6.0], [8.0, 9.0], [10.0, 12.0]]),
            episode=np.array([0, 0, 1, 2, 3]),
            first=np.array([0, 10, 20, 5, 7]),
            success=np.array([1.0, 0.0, 1.0, NAN]),
        ),
        "sim_rows": ClipRows(
            rows=np.array([[0.5, 0.75], [1.5, 1.25], [2.5, 3.75]]),
            episode=np.array([0, 1, 2]),
            first=np.array([0, 3, 6]),
            success=np.array([1.0, 0.0, NAN]),
        ),
        "coverage": RealCoverage(
            metrics=shares(coverage_floor),
            nearest=np.array([0.5, 3.0, 5.0, 1.0, 7.0]),
            nearest_sim=np.array([0, 1, 2, 0, 2]),
            own_distance=np.array([1.0, 2.0, 2.0, 1.0, 2.0]),
            k=3,
        ),
        "holes": HOLES,
        "whitening": NS(axes=np.zeros((9, 2)), share=0.875, fitted="both sides", to_json=lambda: {"w": 1}),
        "settings": ClipSettings(
            clip_s=1.5, rate_hz=2.0, channels=("elbow", "wrist"), units=("rad", "rad"), command="", si=True
        ),
        "encoder": {"name": "waypoints", "hash": "0123456789abcdef", "known": 2, "rate_hz": 2.0},
        "generated": None,
        "space": None,
        "notes": ("a note",),
    }
    return CoverageResult(**(made | changed))


def axis(name, low, high, unit):
    return NS(name=name, unit=unit, to_si=lambda places: low + (high - low) * np.asarray(places))


def box(axes, low, high, cases, controls, p_value):
    return CellBox(axes=axes, low=low, high=high, cases=cases, controls=controls, ratio=1.0, p_value=p_value)


def cell(name, low, high, real, sim, rate):
    judged = 0 if np.isnan(rate) else 10
    ends_of = (NAN, NAN) if np.isnan(rate) else (rate - 0.1, rate + 0.15)
    return ParameterCell(
        name=name, unit="kg" if name == "mass" else "", low=low, high=high, real=real, sim=sim, judged=judged,
        successes=0, rate=rate, rate_low=ends_of[0], rate_high=ends_of[1],
    )  # fmt: skip


def pair(real, sim, rate):
    judged = 0 if np.isnan(rate) else 4
    return ParameterPairCell(
        names=("mass", "friction"), units=("kg", ""), low=(1.0, 0.1), high=(1.5, 0.2), real=real, sim=sim,
        judged=judged, successes=0, rate=rate, rate_low=rate - 0.1, rate_high=rate + 0.2,
    )  # fmt: skip


def space(**changed):
    made = {
        "axes": (axis("mass", 1.0, 3.0, "kg"), axis("friction", 0.0, 1.0, "")),
        "real": np.zeros((4, 2)),
        "sim": np.zeros((3, 2)),
        "known": (1, 0),
        "cells": (
            cell("mass", 1.0, 2.0, 3, 1, 0.25),
            cell("mass", 2.0, 3.0, 1, 2, NAN),
            cell("friction", 0.0, 0.5, 2, 0, 0.5),
            cell("friction", 0.5, 1.0, 2, 3, 0.55),
        ),
        "pairs": (pair(2, 0, NAN), pair(1, 5, 0.5)),
        "holes": (box((0,), (0,), (4,), 3, 1, 0.0123),),
        "failures": (box((0, 1), (3, 6), (7, 10), 2, 5, 0.0456),),
        "source": "measured",
    }
    return ParameterSpace(**(made | changed))


def wilson(successes, trials, digits=0):
    found = binomtest(successes, trials).proportion_ci(0.95, method="wilson")
    rate, low, high = (f"{value:.{digits}%}" for value in (successes / trials, found.low, found.high))
    return f"{rate} [{low}, {high}]"


@pytest.fixture
def page(monkeypatch):
    """The page of some measurement, whose clips are read from here: of episode e position 100 e + first frame."""

    def clips_of(member, settings):
        number = int(member.episode_id[-1]) + (50 if member.episode_id.startswith("sim") else 0)
        first = np.array([0, 3, 5, 6, 7, 10, 20])
        position = 100.0 * number + first[:, None, None] + np.array([[0.0, 0.25], [0.5, 0.75]])
        return NS(first=first, motion=NS(position=position))

    monkeypatch.setattr(pages_coverage, "cut_episode_clips", clips_of)

    def made(**changed):
        kept = KeptReport()
        coverage_sections(kept, measured(**changed))
        return kept

    return made


def test_findings_tell_every_share_with_its_interval_and_what_it_is_without_a_gap():
    assert findings(measured()) == [
        (
            "Simulation covers 62.5% [45.0%, 90.0%] of reality: this share of real clips has a simulated clip within "
            "the distance of its real neighbour number 3 (97% without a gap)."
        ),
        (
            "Recall of reality 50.0% [35.0%, 60.0%] (92% without a gap); precision of simulation "
            "40.0% [30.0%, 55.0%] (91% without a gap); density 0.70 [0.60, 0.85]."
        ),
        (
            "3 of 5 real clips are uncovered, in 3 holes; 1 of them have clips of 3 episodes or more. The largest is "
            "25.0% of reality, 2.5 times as far from simulation as from real neighbours."
        ),
    ]
    whole = findings(measured(holes=(), coverage_floor=NAN))
    assert whole[0].endswith("neighbour number 3.")
    assert whole[2] == "There is no hole: every real clip has a simulated clip nearby."


def test_the_terminal_lists_holes_and_what_more_there_are():
    lines = text_lines(measured())
    assert lines[:4] == [
        "log: 4 episodes, 5 clips of 1.5 s (real)",
        "sims: 3 episodes, 3 clips of 1.5 s (simulated)",
        (
            "Compared by waypoints (0123456789ab, 2 episodes of them already known) in 2 whitened components, 88% of "
            "the variance of both sides"
        ),
        "a note",
    ]
    assert lines[-3].split("  ")[0] == "1"
    assert " ".join(lines[-3].split()) == f"1 25.0% 2 2.50 {wilson(1, 4)} real 1, from frame 20"
    assert " ".join(lines[-2].split()) == "2 12.5% 3 3.50 – real 3, from frame 7"
    many = text_lines(measured(holes=HOLES + HOLES))
    assert many[-1] == "1 more, of 6.2% of reality together."
    assert "more, of" not in text_lines(measured(holes=HOLES + HOLES[:2]))[-1]
    plain = measured(encoder={"name": "w", "hash": "0" * 16, "known": 0, "rate_hz": 2.0})
    assert "already known" not in text_lines(plain)[2]
    assert text_lines(measured(holes=()))[-1].startswith("There is no hole")


def test_the_parameter_space_is_told_in_sentences():
    lines = text_lines(measured(space=space()))
    worst = "The rate is lowest with mass from 1 to 2 kg: 25% [15%, 40%], one of 4 cells."
    assert lines[-4:] == [
        "Of 4 real episodes 3 and of 3 simulated ones 1 have mass below 1.8 kg (p = 0.012).",
        "1 of 4 cells of single parameters and 1 of 2 cells of two have no simulated episode.",
        f"Of 2 simulated episodes {wilson(1, 2, 1)} succeed. {worst}",
        "They fail more often where mass from 1.6 to 2.4 kg and friction above 0.6: 2 of 7 (p = 0.046).",
    ]
    drawn = text_lines(measured(space=space(real=np.zeros((9, 2)), holes=())))
    assert drawn[-4] == "No box of parameters has significantly more real than simulated episodes."
    drawn = text_lines(measured(space=space(real=np.zeros((9, 2)))))
    assert drawn[-4].startswith("Of 9 draws of the identified distribution 3 and of 3")
    unknown = text_lines(measured(space=space(known=(), holes=())))
    assert unknown[-4].startswith("The parameters of the real episodes are not known (--real-params)")
    unjudged = measured(space=space(), sim=side("sims", 3, "sim", [NAN] * 3))
    assert text_lines(unjudged)[-1].startswith("1 of 4 cells")
    unsure = space(cells=(cell("mass", 1.0, 2.0, 3, 1, 0.45),), failures=())  # its interval holds the rate of all
    assert text_lines(measured(space=unsure))[-1].endswith("succeed.")


def test_boxes_end_where_their_axis_does():
    axes = space().axes
    assert format_box(axes, box((0,), (0,), (10,), 0, 0, 1.0)) == "mass below 3 kg"
    assert format_box(axes, box((1,), (9,), (10,), 0, 0, 1.0)) == "friction above 0.9"
    assert format_box(axes, box((1,), (2,), (9,), 0, 0, 1.0)) == "friction from 0.2 to 0.9"
    assert format_failure_rate(0.26, 8) == wilson(2, 8)
    assert format_failure_rate(NAN, 0) == "–"


def test_the_plain_form_lists_uncovered_clips_the_furthest_first_and_boxes_in_si():
    found = result_to_json(measured(space=space()))
    assert found["real"] == {"label": "log", "episodes": 4, "clips": 5}
    assert found["sim"] == {"label": "sims", "episodes": 3, "clips": 3}
    assert found["whitening"] == {"w": 1}
    assert found["uncovered"] == [
        {"episode": "real3", "first_frame": 7, "distance": 3.5},
        {"episode": "real1", "first_frame": 20, "distance": 2.5},
        {"episode": "real0", "first_frame": 10, "distance": 1.5},
    ]
    assert [hole["middle"] for hole in found["holes"]] == [
        "real 1, from frame 20",
        "real 3, from frame 7",
        "real 0, from frame 10",
    ]
    parameters = found["parameters"]
    assert (parameters["axes"], parameters["known"]) == (["mass", "friction"], ["friction", "mass"])
    assert parameters["holes"] == [
        {"box": {"mass": pytest.approx([1.0, 1.8])}, "inside": 3, "others_inside": 1, "p_value": 0.0123}
    ]
    assert parameters["failures"][0]["box"] == {
        "mass": pytest.approx([1.6, 2.4]),
        "friction": pytest.approx([0.6, 1.0]),
    }
    assert len(parameters["cells"]) == 4
    assert result_to_json(measured())["parameters"] is None
    drawn = measured(real=side("log", 1, "real", [1]), holes=())
    assert [row["episode"] for row in result_to_json(drawn)["uncovered"]] == ["4", "2", "real0"]


def test_the_answer_comes_first_in_metrics(page):
    kept = page()
    assert kept.shown_metrics == [
        ("of reality covered", 62.5, "45.0 to 90.0 %, over episodes"),
        ("recall of reality", 50.0, "35.0 to 60.0 %, over episodes"),
        ("precision of simulation", 40.0, "30.0 to 55.0 %, over episodes"),
        ("holes", 3, "3 real clips"),
    ]
    assert kept.words[1] == "log: 4 episodes, 5 clips of 1.5 s (real)."
    assert kept.words[4] == "a note"


def test_the_map_shows_both_sides_with_clips_in_their_holes(page):
    kept = page(holes=HOLES[:1])
    metric, _ = kept.plots[0]
    sim, covered, others, hole = metric.data
    assert {tuple(row) for row in zip(sim.x, sim.y, strict=True)} == {(0.5, 0.75), (1.5, 1.25), (2.5, 3.75)}
    assert (covered.name, list(covered.x), list(covered.y)) == ("real, covered", [0.0, 8.0], [1.0, 9.0])
    assert (others.name, list(others.x)) == ("real, other holes", [10.0])
    assert (hole.name, list(hole.x)) == ("hole 1", [4.0, 2.0])
    assert hole.text[0] == "real 1, frame 20<br>2.50 × the distance to its real neighbours"
    assert kept.tables[0] == {
        "hole": [1],
        "% of reality": [25.0],
        "episodes": [2],
        "distance": [2.5],
        "failing": [wilson(1, 4)],
        "clip in its middle": ["real 1, from frame 20"],
    }


def test_the_largest_hole_and_those_of_several_episodes_are_shown_with_their_clips(page):
    kept = page()
    assert kept.heads[2:] == ["Hole 1", "Hole 2"]  # the third holds clips of two episodes alone
    first, second = kept.words[-2:]
    assert first == (
        "25.0% of reality, 2 clips of 2 episodes, 2.5 times as far from the nearest simulated clip as from real "
        f"neighbours. Of its 4 judged episodes {wilson(1, 4)} failed. In its middle: real 1, from frame 20."
    )
    assert "judged" not in second
    metric, _ = kept.plots[1]
    elbow = [trace for trace in metric.data if trace.xaxis == "x"]
    assert [(trace.name, list(trace.x), list(trace.y)) for trace in elbow] == [
        ("nearest simulated", [0.0, 0.5], [5206.0, 5206.5]),  # of clip 2, simulated episode 2 from frame 6
        ("nearest simulated", [0.0, 0.5], [5103.0, 5103.5]),
        ("real, in the hole", [0.0, 0.5], [120.0, 120.5]),
        ("real, in the hole", [0.0, 0.5], [10.0, 10.5]),
    ]
    assert list(metric.data[-1].y) == [10.25, 10.75]
    assert [one.text for one in metric.layout.annotations] == ["elbow", "wrist"]
    assert metric.layout.yaxis.title.text == "rad"
    mixed = ClipSettings(clip_s=1.5, rate_hz=2.0, channels=("a", "b"), units=("rad", "m"), command="", si=True)
    assert page(settings=mixed).plots[1][0].layout.yaxis.title.text == "unit of the channel"


class Recording:
    """Images whose brightness is the camera's number and the frame."""

    def __init__(self, cameras=("front", "wrist"), frames=22, gone=False):
        self.cameras, self.frame_count, self.gone = cameras, frames, gone

    def read_images(self, camera, frames):
        if self.gone:
            raise InputError("gone")
        level = 100 * self.cameras.index(camera) + np.array(frames)
        return np.broadcast_to(level[:, None, None, None], (len(frames), 4, 6, 3)).astype(np.uint8)


def strips(page, real, sim, **changed):
    return page(recordings=([real] * 4, [sim] * 3), holes=HOLES[:1], **changed)


def test_holes_are_shown_in_images_where_the_robot_has_a_camera(page):
    kept = strips(page, Recording(), Recording())
    (real, _), (sim, _) = kept.images
    # Half a clip of 1.5 s at 2 Hz, rounded, is 2 frames after the first one: 22 is beyond the last.
    assert real[0, ::6, 0].tolist() == [21, 12]
    assert sim[0, ::6, 0].tolist() == [8, 5]
    assert len(kept.plots) == 1
    wrist = strips(page, Recording(), Recording(), options=ComparedSides(clip=1.5, camera="wrist"))
    assert wrist.images[0][0][0, ::6, 0].tolist() == [121, 112]


@pytest.mark.parametrize("bad", [Recording(cameras=()), Recording(gone=True)])
def test_without_images_of_a_side_the_page_shows_what_there_is(page, bad):
    assert len(strips(page, Recording(), bad).images) == 1
    kept = strips(page, bad, Recording())
    assert kept.images == []
    assert len(kept.plots) == 2


def test_the_parameter_space_has_boxes_pairs_and_cells_by_how_much_they_tell(page):
    kept = page(space=space(), holes=())
    assert kept.heads[-1] == "The parameter space"
    _, boxes, pairs = kept.tables
    assert boxes == {
        "kind": ["real, not simulated", "failures"],
        "box": ["mass below 1.8 kg", "mass from 1.6 to 2.4 kg and friction above 0.6"],
        "inside": [3, 2],
        "others inside": [1, 5],
        "p": [0.0123, 0.0456],
    }
    assert pairs == {
        "one parameter": ["mass 1 to 1.5 kg"] * 2,
        "the other": ["friction 0.1 to 0.2"] * 2,
        "real": [2, 1],
        "simulated": [0, 5],
        "% succeeding": [None, 50.0],
        "95 % interval": ["–", "40 to 70"],
    }
    assert kept.captions[-1].startswith("The emptiest of 2 cells of two parameters, 4 × 4 per pair")
    (friction, _), (mass, _) = kept.plots[-2:]  # both are in boxes; friction parts the sides more: 1.0 + 0.05 to 0.83
    assert friction.layout.xaxis.title.text == "friction"
    assert mass.layout.xaxis.title.text == "mass / kg"
    bars = {trace.name: list(trace.y) for trace in mass.data if trace.type == "bar"}
    assert bars == {
        "share of simulated episodes": pytest.approx([1 / 3, 2 / 3]),
        "share of real episodes": [0.75, 0.25],
    }
    rates = mass.data[-1]
    assert (list(rates.x), list(rates.y)) == ([1.5], [0.25])
    assert ends(rates, "y") == (pytest.approx([0.15]), pytest.approx([0.4]))


def test_parameters_in_boxes_come_before_those_that_tell_more(page):
    named = space(failures=(), holes=(box((0,), (0,), (4,), 3, 1, 0.01),))
    mass, friction = (metric.layout.xaxis.title.text for metric, _ in page(space=named, holes=()).plots[-2:])
    assert (mass, friction) == ("mass / kg", "friction")


def test_an_unknown_reality_has_no_share_of_its_own(page):
    kept = page(space=space(known=(), holes=(), failures=(), pairs=space().pairs[:1]), holes=())
    assert kept.tables[-1]["real"] == [None]
    assert len(kept.tables) == 2
    assert [trace.name for trace in kept.plots[-1][0].data if trace.type == "bar"] == ["share of simulated episodes"]


def test_what_was_compared_by_parameters_has_holes_in_words_alone(page):
    encoder = {"axes": ["friction", "mass"], "source": "measured"}
    made = {"whitening": None, "settings": None, "encoder": encoder, "space": space()}
    made |= {"options": ComparedSides(embedding="parameters"), "holes": HOLES[:1]}
    assert text_lines(measured(**made))[:3] == [
        "log: 4 episodes, 5 episodes (real)",
        "sims: 3 episodes, 3 episodes (simulated)",
        "Compared in the randomized parameters friction, mass; source of the real values: measured",
    ]
    kept = page(**made)
    assert kept.tables[0]["clip in its middle"] == ["friction 4, mass 13"]  # 4 of 0 to 1, 6 of 1 to 3
    metric, _ = kept.plots[0]
    assert (metric.layout.xaxis.title.text, metric.layout.yaxis.title.text) == ("friction", "mass")
    assert len(kept.plots) == 3
