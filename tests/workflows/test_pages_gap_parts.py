"""Pages on why and where a twin errs, on images, sensors, horizons and failure classes, read number by number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.pages import KeptReport, ends, interval, lines_at
from twinloop.core.errors import InputError
from twinloop.gap.attribution.result import ChannelExplanation, ErrorCause
from twinloop.gap.dynamics.film_strips import FilmStrip
from twinloop.gap.dynamics.unexplained_events import EventClassError
from twinloop.gap.dynamics.unexplained_result import ErrorMoment, StateShare, UnexplainedResult
from twinloop.gap.dynamics.unexplained_rules import Hint, HintRule
from twinloop.gap.policies.classes_result import ClassCheck, FailureDiagnosis
from twinloop.gap.sensors.measure import BandDifference, SensorDifference, SensorGap
from twinloop.gap.vision.camera_remedy import CameraRemedy as CameraRemedy
from twinloop.gap.vision.difference import StatisticDifference
from twinloop.gap.vision.image_summary import RegionScores
from twinloop.report.figure import BLUE, GREY, ORANGE, VIOLET
from twinloop.stats import AllanCurve
from twinloop.stats.series import Spectrum
from twinloop.workflows.gap import dynamics as pages_gap_dynamics
from twinloop.workflows.gap.classes import classes_section
from twinloop.workflows.gap.dynamics import clips_section, horizon_section, open_recorded_camera
from twinloop.workflows.gap.sensors import remedy_text, sensors_section
from twinloop.workflows.gap.unexplained import NestedModel, NestedModels, nested_section, unexplained_section
from twinloop.workflows.gap.vision import difference_row, verdict, vision_section
from twinloop.workflows.gap.why import why_section

NS: Any = SimpleNamespace
NAN = float("nan")


# Failure classes


def test_classes_that_fire_are_told_first_then_every_check_and_what_was_not_looked_at():
    fires = ClassCheck(kind="drift", subject="wrist", fired=True, evidence="ratio 2", p_value=0.0123, remedy=("a", "b"))
    quiet = ClassCheck(kind="gap_too_wide", subject="elbow", fired=False, evidence="0.1 rad", needed="more episodes")
    page = KeptReport()
    skipped = {"weak_in_simulation": "no simulated trials"}
    classes_section(page, FailureDiagnosis(checks=(fires, quiet), skipped=skipped))
    assert page.words[0].startswith(
        "1 failure classes apply, by 2 checks. A class applies only if the evidence of a check is significant at 5%"
    )
    fired, every = page.tables
    assert fired == {
        "class": ["drift since calibration"],
        "subject": ["wrist"],
        "evidence": ["ratio 2"],
        "what to do": ["a; b"],
    }
    assert every == {
        "class": ["drift since calibration", "the gap is too wide"],
        "subject": ["wrist", "elbow"],
        "applies": ["yes", "no"],
        "p (Holm)": ["0.012", "–"],
        "evidence": ["ratio 2", "0.1 rad"],
        "missing data": ["–", "more episodes"],
    }
    assert page.words[-1] == "Not checked, the policy fails in simulation as well: no simulated trials."


def test_without_checks_there_is_no_table():
    page = KeptReport()
    classes_section(page, FailureDiagnosis(checks=(), skipped={}))
    assert page.tables == []


# Sensors


def reading(channel, quantity, p_value, real=1.5, sim=1.25, remedy=None):
    difference = interval(real - sim, real - sim - 0.1, real - sim + 0.3)
    return SensorDifference(
        channel=channel, quantity=quantity, unit="rad", real=real, sim=sim, difference=difference, p_value=p_value,
        remedy=remedy,
    )  # fmt: skip


def side(height, allan=None):
    frequency = np.array([1.0, 2.0, 4.0])
    spectra = [Spectrum(frequency=frequency, density=height * np.array([5.0, 3.0, 2.0])), None]
    return NS(spectra=spectra, allan=allan)


def at_rest(value):
    time = np.array([0.1, 1.0])
    deviation = interval([value, value / 3], [value / 2, value / 6], [value * 2, value])
    return AllanCurve(time=time, deviation=deviation, freedom=np.array([9.0, 3.0]))


def sensors(*rows, bands=()):
    page = KeptReport()
    gap = SensorGap(
        differences=rows,
        bands=bands,
        metrics={"elbow": (side(1.0), side(2.0)), "wrist": (side(3.0, at_rest(0.6)), side(4.0))},
        units={"elbow": "rad", "wrist": "rad/s"},
        episodes=(6, 5),
    )
    sensors_section(page, gap)
    return page


def test_readings_that_differ_are_told_with_their_remedy_and_plotted_first():
    remedy = NS(parameter="sensor/wrist/noise", value=0.01234, remark="white")
    page = sensors(
        reading("elbow", "noise", NAN),
        reading("elbow", "lag", 0.051),
        reading("wrist", "noise", 0.05, remedy=remedy),
        reading("wrist", "step", 0.3, sim=NAN),
        reading("elbow", "jitter", 0.04, real=0.5, sim=0.75),
        bands=(
            BandDifference(channel="wrist", low=2.0, high=4.0, level=interval(-3.0, -5.0, -1.0), p_value=0.05),
            BandDifference(channel="wrist", low=4.0, high=8.0, level=interval(1.0, -1.0, 2.0), p_value=0.06),
            BandDifference(channel="other", low=1.0, high=2.0, level=interval(9.0, 8.0, 10.0), p_value=0.01),
        ),
    )
    assert page.words[0].startswith("2 of 4 metrics differ significantly: 6 real and 5 simulated episodes")
    assert page.words[0].endswith("at 5%.")
    found, every = page.tables
    assert found == {
        "channel": ["elbow", "wrist"],
        "metric": ["jitter", "noise"],
        "real": ["0.5", "1.5"],
        "simulated": ["0.75", "1.25"],
        "unit": ["rad", "rad"],
        "real − simulated, 95 %": ["-0.25 [-0.35, 0.05]", "0.25 [0.15, 0.55]"],
        "p (Holm)": ["0.04", "0.05"],
        "recommended change": ["none: no parameter of a twin has this effect", "sensor/wrist/noise = 0.01234 (white)"],
    }
    assert every == {
        "channel": ["elbow", "wrist"],
        "unit": ["rad", "rad/s"],
        "noise": ["1.5 | 1.25", "1.5 | 1.25 *"],
        "lag": ["1.5 | 1.25", "–"],
        "jitter": ["0.5 | 0.75 *", "–"],
        "missing": ["–", "–"],
        "repeated": ["–", "–"],
        "step": ["–", "–"],
    }
    assert page.heads[1:] == ["Spectra", "Noise at rest", "All metrics"]
    (elbow, first), (wrist, second), (rest, third) = page.plots
    assert first == "elbow. No octave differs beyond chance."
    assert second == "wrist. The real spectrum is higher or lower at 2 to 4 Hz: -3.0 dB [-5.0, -1.0]."
    assert third == "wrist"
    lines = [trace for trace in (*elbow.data, *wrist.data) if trace.name]
    assert [(trace.name, list(trace.y)) for trace in lines] == [
        ("real", [5, 3, 2]),
        ("simulated", [10, 6, 4]),
        ("real", [15, 9, 6]),
        ("simulated", [20, 12, 8]),
    ]
    assert "rad/s" in rest.layout.yaxis.title.text
    assert [list(trace.y) for trace in rest.data if trace.name == "real"] == [pytest.approx([0.6, 0.2])]


def test_readings_that_agree_have_one_table_and_channels_in_their_own_order():
    page = sensors(reading("wrist", "noise", 0.2))
    assert len(page.tables) == 1
    assert [caption.partition(".")[0] for _, caption in page.plots] == ["elbow", "wrist", "wrist"]


def test_a_remedy_without_a_value_or_a_way_is_the_parameter_alone():
    plain = NS(parameter="sensor/a/lag", value=NAN, remark="")
    assert remedy_text(reading("a", "lag", 0.1, remedy=plain)) == "sensor/a/lag"
    assert remedy_text(reading("a", "lag", 0.1)) == ""


# Images


def images(level):
    """Six images of which each is of one brightness, so that one sees which were chosen."""
    return tuple(np.full((1, 12, 16, 3), level + number, dtype=np.uint8) for number in range(6))


def regions(level):
    grid = level + np.arange(6.0).reshape(2, 3) / 10
    by = (("a", "b", "c"), ("d", "e", "f"))
    return RegionScores(auc=grid, low=grid - 0.1, high=grid + 0.05, p_value=grid - 0.5, separation=3 * grid, by=by)


def camera_remedy(**changed):
    made = {"parameter": "sensor/cam/gain", "now": 1.0, "value": 1.5, "low": 1.25, "high": 1.875, "unit": "dB"}
    return CameraRemedy(**(made | changed))


class Embedded(list):
    """Numbers of the episodes that images are of."""

    clusters = property(np.array)


def has_images(**changed):
    names = ("r0", "r1"), ("s0", "s1")
    clusters = [4, 4, 7], [5, 9, 9, 9]
    real, sim = (
        NS(embedding=Embedded(rows), names=name, sampled_images=images(level))
        for rows, name, level in zip(clusters, names, (40, 140), strict=True)
    )
    made = {
        "encoder": "tiny",
        "encoder_hash": "0123456789abcdef",
        "dimension": 32,
        "real": real,
        "sim": sim,
        "mmd": NS(distance=interval(0.3, 0.1, 0.45), p_value=0.011, relabelled=np.array([0.0, 0.02, 0.05, -0.01])),
        "kid": NS(distance=interval(0.2, 0.05, 0.35), p_value=0.012),
        "neighbours": NS(
            precision=interval(0.41, 0.3, 0.5),
            recall=interval(0.52, 0.4, 0.6),
            density=interval(0.63, 0.5, 0.7),
            coverage=interval(0.74, 0.6, 0.8),
        ),
        "classifier": NS(
            auc=interval(0.9, 0.7, 0.95),
            accuracy=interval(0.8, 0.65, 0.85),
            p_value=0.05,
            scores=np.array([1.0, 3.0, NAN, -1.0, -2.0, NAN, -5.0]),
        ),
        "differences": (
            StatisticDifference(
                name="red",
                unit="1",
                real=0.5,
                sim=0.4,
                difference=interval(0.1, 0.05, 0.2),
                p_value=0.05,
                remedied=0.02,
            ),
            StatisticDifference(
                name="noise", unit="1", real=0.03, sim=0.01, difference=interval(0.02, NAN, NAN), p_value=0.06
            ),
        ),
        "remedies": (camera_remedy(closes=("red", "noise"), share=0.6),),
        "remaining": 0.25,
        "regions": regions(0.5),
        "regions_left": regions(0.375),
    }
    return NS(**(made | changed))


def vision(**changed):
    page = KeptReport()
    tones = {name: np.full((3, 13), level) for name, level in (("real", 0.4), ("sim", 0.2), ("remedied", 0.3))}
    vision_section(page, has_images(**changed), tones, images(200))
    return page


def test_images_are_counted_measured_and_shown_in_a_sheet_of_four_of_each_side():
    page = vision()
    assert page.words[0].startswith("3 images of 2 real episodes and 4 of 2 simulated ones, encoded by tiny")
    assert "(0123456789ab, 32 features per image)" in page.words[0]
    assert page.shown_metrics == [
        ("AUC, held out", 0.9, "95 %: 0.7 to 0.95"),
        ("MMD²", 0.3, "95 %: 0.1 to 0.45"),
        ("KID", 0.2, "95 %: 0.05 to 0.35"),
        ("statistics that differ", "1 of 2", ""),
        ("regions that differ", "1 of 6", ""),
    ]
    ((sheet, _),) = page.images
    levels, pixels = np.unique(sheet[..., 0], return_counts=True)
    shown = set(levels[pixels >= 12 * 16].tolist())
    assert shown & {*range(40, 46), *range(140, 146)} == {40, 41, 43, 45, 140, 141, 143, 145}


def test_remedies_and_statistics_stand_under_their_headings():
    page = vision()
    remedies, statistics, distances = page.tables
    assert remedies == {
        "parameter": ["sensor/cam/gain"],
        "unit": ["dB"],
        "now": ["1"],
        "value": ["1.5"],
        "95 %": ["1.25 to 1.875"],
        "of MMD² closed": ["60%"],
        "statistics that it closes": ["red, noise"],
    }
    assert "With all of them together 25% of MMD² remain, for images processed again." in page.words
    assert statistics == {
        "statistic": ["red", "noise"],
        "unit": ["1", "1"],
        "real": ["0.5", "0.03"],
        "simulated": ["0.4", "0.01"],
        "real − simulated, 95 %": ["0.1 [0.05, 0.2]", "0.02 [nan, nan]"],
        "p (Holm)": ["0.05", "0.06"],
        "left with remedies": ["+0.02", ""],
    }
    assert page.marks[1] == {(0, 5): "bad"}
    whole = ("MMD²", "KID", "AUC of the classifier", "accuracy of the classifier")
    said = ("0.3 [0.1, 0.45]", "0.2 [0.05, 0.35]", "0.9 [0.7, 0.95]", "0.8 [0.65, 0.85]")
    assert distances == {
        "metric": [*whole, *("precision", "recall", "density", "coverage")],
        "estimate, 95 %": [*said, "0.41 [0.3, 0.5]", "0.52 [0.4, 0.6]", "0.63 [0.5, 0.7]", "0.74 [0.6, 0.8]"],
        "p": pytest.approx([0.011, 0.012, 0.05, *[NAN] * 5], nan_ok=True),
    }
    tone = page.plots[0][0].data[1:3]
    assert [(one.x[0], one.y[0]) for one in tone] == [
        (pytest.approx(51), pytest.approx(102)),
        (pytest.approx(76.5), pytest.approx(102)),
    ]


def test_regions_are_shown_before_and_after_the_remedies_and_scores_by_episode():
    page = vision()
    _, (now, first), (left, second), (chance, third), (scores, _) = page.plots
    assert first.startswith("1 of 6 regions are significant (permuted")
    assert second.startswith("2 of 6 regions are significant once all remedies are applied (permuted")
    assert [one.text for one in now.layout.annotations] == ["real", "simulated"]
    assert [one.text for one in left.layout.annotations] == ["real", "simulated once all remedies are applied"]
    maps = [trace for trace in now.data if trace.type == "heatmap"]
    assert np.array(maps[0].z) == pytest.approx(3 * (0.5 + np.arange(6).reshape(2, 3) / 10))
    assert maps[0].text[1][0] == "AUC 0.80 [0.70, 0.85], 2.4 standard deviations apart, p 0.3; most by d"
    (_, dot) = chance.data
    assert list(dot.x) == [0.3]
    assert ends(dot) == (pytest.approx([0.1]), pytest.approx([0.45]))
    assert list(chance.data[0].x) == [0.0, 0.02, 0.05, -0.01]
    assert third == "p = 0.011."
    real, sim = scores.data
    assert (list(real.x), list(real.text)) == ([2.0, 0.0], ["r0", "r1"])  # of the last no fold held an image out
    assert (list(sim.x), list(sim.text)) == ([-1.0, -3.5], ["s0", "s1"])


def test_without_remedies_there_is_no_table_of_them_and_one_map():
    page = vision(remedies=(), regions_left=None, remaining=NAN)
    assert len(page.tables) == 2
    assert any(words.startswith("None: no parameter") for words in page.words)
    assert len(page.plots) == 4
    unknown = vision(remedies=(camera_remedy(),), remaining=NAN)
    assert (unknown.tables[0]["of MMD² closed"], unknown.tables[0]["statistics that it closes"]) == (["–"], ["–"])
    assert not any("of MMD² remain" in words for words in unknown.words)
    assert any("together 0% of MMD² remain" in words for words in vision(remaining=-0.2).words)


def test_the_verdict_names_the_first_remedy_only_where_a_gap_is_shown():
    opening = "A classifier separates held-out images with an AUC of 0.9 [0.7, 0.95] (½ is chance)"
    assert verdict(has_images()) == (
        f"{opening}, p = 0.05; first to change: sensor/cam/gain: 1 → 1.5 [1.25, 1.875] dB."
    )
    assert verdict(has_images(remedies=())) == f"{opening}, p = 0.05; no camera parameter closes it."
    unsure = NS(auc=interval(0.9, 0.7, 0.95), p_value=0.051)
    assert verdict(has_images(classifier=unsure)).startswith(f"{opening}, p = 0.051: no significant gap")
    untested = NS(auc=interval(0.9, 0.7, 0.95), p_value=NAN)
    assert verdict(has_images(classifier=untested)).startswith(f"{opening}, without a test; first to change")
    unknown = StatisticDifference(name="red", unit="1", real=1, sim=2, difference=interval(NAN, NAN, NAN), p_value=NAN)
    assert difference_row(unknown)[4] == "–"


# What no parameter explains

SHARES = {
    "rmse": interval([0.02, 0.04], [0.01, 0.03], [0.05, 0.07]),
    "explained": interval([0.6, -0.1], [0.5, -0.2], [0.7, 0.05]),
    "unexplained": interval([0.3, 0.9], [0.2, 0.7], [0.45, 0.95]),
    "noise": interval([0.1, 0.2], [0.05, 0.15], [0.12, 0.22]),
    "predicted": interval([0.25, 0.5], [0.15, 0.4], [0.35, 0.55]),
}


def place(event, *, ratio, share=0.1, p_value=0.01, channel="position/elbow"):
    return EventClassError(
        event=event,
        channel=channel,
        frames=0.2,
        share=None if share is None else interval(share, share - 0.02, share + 0.03),
        ratio=None if ratio is None else interval(ratio, ratio - 0.5, ratio + 0.7),
        p_value=p_value,
        episodes=6,
    )


def state(name, share, p_value=0.01, channel="position/wrist"):
    return StateShare(state=name, channel=channel, share=interval(share, share - 0.03, share + 0.02), p_value=p_value)


def unexplained(**changed):
    rule = HintRule(name="r", states=(), events=(), where="reversals", term="friction", structures=("stribeck",))
    hint = Hint(channel="position/elbow", rule=rule, share=0.42, evidence=("one", "two"), patterns=())
    made = {
        "channels": ("position/elbow", "speed"),
        "units": ("rad", "m/s"),
        "reference": "nominal",
        **SHARES,
        "noise_source": "repeats",
        "events": (
            place("still", ratio=3.0, share=None),
            place("fast", ratio=2.0, share=0.05, p_value=0.05),
            place("contact", ratio=None),
            place("reversal", ratio=2.5),
            place("effort", ratio=9.0, p_value=0.06),
            place("breakaway", ratio=8.0, share=0.04),
        ),
        "states": (state("load", 0.5, 0.06), state("speed", 0.05, 0.05), state("slow", 0.2), state("turn", 0.04)),
        "moments": (
            ErrorMoment(channel="position/elbow", episode=3, time=1.2345, error=0.5, events=("still", "fast")),
            ErrorMoment(channel="speed", episode=1, time=0.5, error=0.25, events=()),
        ),
        "hints": (hint,),
        "episodes": 6,
    }
    page = KeptReport()
    unexplained_section(page, UnexplainedResult(**(made | changed)))
    return page


def test_what_no_parameter_explains_is_shared_out_by_channel():
    page = unexplained()
    assert "of the nominal twin by channel" in page.words[0]
    assert page.words[0].endswith("noise (repeats), and the unexplained rest. Over 6 episodes.")
    assert page.words[1].startswith("90 % (70 to 95) of speed's nominal error")  # the largest unexplained share first
    bars = page.plots[0][0].data
    assert [(bar.name, list(bar.x), list(bar.y)) for bar in bars] == [
        ("explained by parameters", pytest.approx([60, 0]), ["elbow", "speed"]),
        ("not explained by the twin", pytest.approx([30, 90]), ["elbow", "speed"]),
        ("noise", pytest.approx([10, 20]), ["elbow", "speed"]),
    ]
    channels, tried, moments = page.tables
    assert channels == {
        "channel": ["elbow", "speed"],
        "remaining error (RMS)": ["0.02 (0.01 to 0.05)", "0.04 (0.03 to 0.07)"],
        "unit": ["rad", "m/s"],
        "explained": ["60 % (50 to 70)", "-10 % (-20 to 5)"],
        "unexplained": ["30 % (20 to 45)", "90 % (70 to 95)"],
        "noise": ["10 % (5 to 12)", "20 % (15 to 22)"],
        "predictable from states": ["25 % (15 to 35)", "50 % (40 to 55)"],
    }
    assert tried == {
        "channel": ["position/elbow"],
        "where": ["reversals"],
        "model term to try": ["friction"],
        "share": ["42%"],
        "evidence": ["one; two"],
        "command that tests it": [
            "twinloop identify --twin TWIN --data LOG --compare --structures stribeck --output hypotheses"
        ],
    }
    assert moments == {
        "channel": ["position/elbow", "speed"],
        "episode": [3, 1],
        "time / s": [1.23, 0.5],
        "new error": [0.5, 0.25],
        "unit": ["rad", "m/s"],
        "events": ["still, fast", "–"],
    }


def test_events_and_states_that_stand_out_come_first_and_are_coloured():
    page = unexplained()
    assert page.heads[1:] == ["Events at which it arises", "States on which it depends"]
    assert "6 events and channels and 4 states are tested together (Holm, 5%)" in page.words[-2]
    _, (events, _), (states, _) = page.plots
    names = ["elbow: reversal", "elbow: fast", "elbow: effort", "elbow: breakaway", "elbow: still"]
    assert list(events.layout.yaxis.ticktext) == names
    shown, quiet = events.data
    assert (shown.name, list(shown.x), list(shown.y)) == ("significant", [2.5, 2.0], [0, 1])
    assert ends(shown) == (pytest.approx([2.0, 1.5]), pytest.approx([3.2, 2.7]))
    assert (list(quiet.x), list(quiet.y)) == ([9.0, 8.0, 3.0], [2, 3, 4])
    assert shown.text[0] == (
        "it reverses its direction: 2.50 times (2.00 to 3.20) in 20% of the frames, holds 10 % (8 to 13) more of the "
        "error than its frames, p 0.01, 6 episodes"
    )
    assert quiet.text[2] == "it does not move: 3.00 times (2.50 to 3.70) in 20% of the frames, p 0.01, 6 episodes"
    assert lines_at(events, "x") == [1.0]
    assert list(states.layout.yaxis.ticktext) == ["wrist: slow", "wrist: speed", "wrist: load", "wrist: turn"]
    shown, quiet = states.data
    assert (list(shown.x), list(quiet.x)) == (pytest.approx([20, 5]), pytest.approx([50, 4]))
    assert ends(shown) == (pytest.approx([17, 2]), pytest.approx([22, 7]))
    assert shown.text[1] == "the square of speed: 5 % (2 to 7), p 0.05"
    assert lines_at(states, "x") == [0.0]


def test_what_was_not_tested_is_not_drawn():
    page = unexplained(events=(place("contact", ratio=None),), states=(), hints=())
    assert page.heads == ["Error that no parameter explains"]
    assert (len(page.plots), len(page.tables)) == (1, 2)


def test_nested_models_are_told_with_their_interval_and_the_others_with_their_reason():
    row = NestedModel(
        name="stribeck", meaning="sticks", improvement=0.42, low=0.3, high=0.51, p_value=0.0012, verdict="MISSING"
    )
    page = KeptReport()
    nested_section(page, NestedModels(twin="t", rows=(row,), skipped={"a": "no", "b": "never"}, source="run"))
    assert page.tables == [
        {
            "structure": ["stribeck"],
            "physics": ["sticks"],
            "removed error": ["+42.0% (+30.0% to +51.0%)"],
            "p (Holm)": ["0.0012"],
            "verdict": ["MISSING"],
        }
    ]
    assert page.captions == ["a was not compared: no; b was not compared: never"]
    assert page.words[0].startswith("Nested models: stribeck (sticks) removes 42%")


# Why it errs


def explanation(channel, *causes):
    rows = tuple(
        ErrorCause(
            groups=groups,
            share=interval(share, share - 0.1, share + 0.2),
            p_value=0.01,
            significant=significant,
            needed=False,
        )
        for groups, share, significant in causes
    )
    return ChannelExplanation(
        channel=channel,
        unit="rad",
        nominal=0.2,
        identified=0.1,
        causes=rows,
        remaining=interval(0.3, 0.25, 0.4),
        floor=NAN,
    )


def shares(level):
    estimate = level + np.array([[0.1, 0.2], [0.3, 0.4]])
    return NS(interval=interval(estimate, estimate - 0.05, estimate + 0.15))


def why(*, moved=None, ndraw=4, undetermined=("x", "y"), where=None):
    found = NS(
        episodes=(3, 5, 8),
        note="2 windows",
        explanations=lambda: (
            explanation(
                "position/elbow", (["gain", "damping"], 0.5, True), (["delay"], -0.2, True), (["bias"], 0.1, False)
            ),
            explanation("speed", (["gain"], 0.7, True)),
        ),
        columns=("position/elbow", "all"),
        names=("gain", "delay"),
        share=shares(0.0),
        join_first_gain=shares(0.4),
        join_last_gain=shares(-0.9),
        groups=(NS(name="gain", text=lambda: "gain: a, b: c"), NS(name="delay", text=lambda: "delay: d")),
        worlds=40,
        coalitions="all 4 coalitions",
        ndraw=ndraw,
        interactions=np.array([NAN, 0.07, 0.02]),
        undetermined=undetermined,
    )  # fmt: skip
    page = KeptReport()
    why_section(page, ["first", "second"], found, where, moved)
    return page


def test_causes_are_bars_with_what_is_left_last_and_coloured_by_what_may_be_said():
    page = why()
    assert "windows of 3 episodes (2 windows)" in page.words[0]
    assert page.words[1:3] == ["first", "second"]
    elbow, speed = page.plots[0][0].data
    assert list(elbow.y) == ["gain with damping", "delay", "bias", "not explained by the twin"]
    assert list(elbow.x) == pytest.approx([50, -20, 10, 30])
    assert ends(elbow) == (pytest.approx([40, -30, 0, 25]), pytest.approx([70, 0, 30, 40]))
    assert list(elbow.marker.color) == [BLUE, ORANGE, GREY, VIOLET]
    assert list(elbow.marker.opacity) == [0.9, 0.9, 0.5, 0.9]  # a bar without a permitted claim is faint
    assert (list(speed.y), list(speed.marker.color)) == (["gain", "not explained by the twin"], [BLUE, VIOLET])
    assert [one.text for one in page.plots[0][0].layout.annotations] == ["elbow", "speed"]


def test_exchanges_are_tables_by_group_and_channel():
    page = why()
    value, alone, back, groups = page.tables
    assert value == {"group": ["gain", "delay"], "elbow": ["10 % ± 10", "30 % ± 10"], "all": ["20 % ± 10", "40 % ± 10"]}
    assert alone["elbow"] == ["50 % ± 10", "70 % ± 10"]
    assert back["all"] == ["−70 % ± 10", "−50 % ± 10"]
    assert page.captions[0].startswith("Shapley value of each group")
    assert page.captions[1].startswith("Only this group identified")
    assert page.captions[2].startswith("Only this group nominal")
    assert groups == {"group": ["gain", "delay"], "parameters": ["a, b: c", "d"]}
    assert page.captions[3] == (
        "Parameters of each group. 40 worlds were replayed: all 4 coalitions, and 4 draws of the identified parameters."
        " Beyond pairs, groups interact by up to 7 % of a channel's error. Unidentifiable and fixed at their "
        "estimates: x, y."
    )
    plain = why(ndraw=0, undetermined=()).captions[3]
    assert "all 4 coalitions. Beyond" in plain
    assert plain.endswith("error.")


def sensitivity(**changed):
    def indices(level):
        estimate = level + np.array([[0.1, 0.2], [0.3, NAN]])
        return interval(estimate, estimate - 0.05, estimate + 0.15)

    made = {
        "over": "identified",
        "worlds": 64,
        "groups": (NS(name="gain"), NS(name="delay")),
        "channels": ("position/elbow", "speed"),
        "units": ("rad", "m/s"),
        "spread": np.array([0.01, 0.25]),
        "fixed": ("z",),
        "motion": NS(total=indices(0.0), first=indices(-0.06)),
        "error": NS(total=indices(0.4)),
    }
    return NS(**(made | changed))


def test_what_moves_predictions_is_a_map_and_a_table_of_both_indices():
    page = why(moved=sensitivity())
    assert "the identified distribution, group by group independently, in 64 worlds" in page.words[-1]
    assert page.heads == ["Causes of the twin's error", "Sensitivity of the predictions"]
    (cells,) = page.plots[1][0].data
    assert (list(cells.y), list(cells.x)) == (["gain", "delay"], ["elbow", "speed"])
    assert np.array(cells.z, dtype=float) == pytest.approx(np.array([[0.1, 0.2], [0.3, NAN]]), nan_ok=True)
    assert cells.customdata[1][0] == "total 0.30 (0.25 to 0.45), alone 0.24"
    assert page.tables[-1] == {
        "channel": ["elbow", "speed"],
        "spread (RMS)": ["0.01 rad", "0.25 m/s"],
        "gain": ["0.10 (0.05 to 0.25) / 0.50 (0.45 to 0.65)", "0.20 (0.15 to 0.35) / 0.60 (0.55 to 0.75)"],
        "delay": ["0.30 (0.25 to 0.45) / 0.70 (0.65 to 0.85)", "– / –"],
    }
    assert page.captions[-1].endswith("episodes. Not drawn: z.")
    plain = why(moved=sensitivity(over="ranges", fixed=()))
    assert "drawn from the twin's default ranges" in plain.words[-1]
    assert plain.captions[-1].endswith("and episodes.")
    assert why().heads == ["Causes of the twin's error"]


# The error over the horizon and the worst clips


def curve(level):
    estimate = level * np.array([[1.0, 2.0], [1.5, 3.0]])
    return interval(estimate, 0.5 * estimate, 1.25 * estimate)


def gap(**changed):
    made = {
        "channel_labels": ("elbow", "wrist"),
        "log_units": ("rad", "deg"),
        "edges": np.array([0.0, 0.5, 1.5]),
        "names": ("nominal", "identified"),
        "curves": {"hold": curve(4), "nominal": curve(2), "identified": curve(1)},
        "meanings": {"hold": "stays where it was"},
        "floor": NS(curve=curve(0.25)),
        "evaluated_twin": "identified",
        "worst": (),
    }
    return NS(**(made | changed))


def test_errors_over_the_horizon_show_twins_guesses_and_the_floor():
    page = KeptReport()
    horizon_section(page, gap())
    assert "noise floor" in page.words[0]
    ((plot, caption),) = page.plots
    assert caption == "hold: stays where it was"
    lines = {(one.name, one.xaxis): one for one in plot.data if one.name}
    assert {name for name, _ in lines} == {"twin, nominal", "twin, identified", "hold", "real against real"}
    for name, level in (("twin, nominal", 2), ("twin, identified", 1), ("hold", 4), ("real against real", 0.25)):
        elbow, wrist = lines[name, "x"], lines[name, "x2"]
        assert (list(elbow.x), list(elbow.y)) == ([0.5, 1.5], [level, 1.5 * level])
        assert list(wrist.y) == [2 * level, 3 * level]
        assert np.array(elbow.customdata) == pytest.approx(level * np.array([[0.5, 1.25], [0.75, 1.875]]))
    assert [one.text for one in plot.layout.annotations] == ["elbow / rad", "wrist / deg"]
    plain = KeptReport()
    horizon_section(plain, gap(floor=None))
    assert "noise floor" not in plain.words[0]
    assert "real against real" not in {one.name for one in plain.plots[0][0].data}


def strip():
    clip = NS(episode=3, begin=1.5, length=0.5, channel="elbow", error=0.1234, unit="rad")
    shown = (np.full((2, 12, 16, 3), level, dtype=np.uint8) for level in (60, 100))
    series = {"measured": np.array([1.0, 2.0, 4.0]), "simulated": np.array([1.0, 1.5, 1.75])}
    return FilmStrip(
        clip=clip, times=np.array([1.5, 1.75]), measured=next(shown), simulated=next(shown), series=series, hz=4.0
    )


def clips(monkeypatch, camera=None, params=None, error=None):
    """A page of one clip, and the recorded arguments of the strip drawing."""
    asked = {}

    def strips(twin, episodes, worst, **words):
        asked.update(words, twin=twin, episodes=episodes, worst=worst)
        if error:
            raise error
        return [strip()]

    monkeypatch.setattr(pages_gap_dynamics, "film_strips", strips)
    page = KeptReport()
    clips_section(page, gap(worst=("clip",)), "twin", ["episode"], params, options="options", camera=camera)
    return page, asked


def test_a_clip_is_a_strip_of_rows_and_its_worst_channel(monkeypatch):
    page, asked = clips(monkeypatch, params=NS(estimate={"a": 1.0}))
    assert (asked["values"], asked["worst"], asked["options"], asked["moments"]) == (
        {"a": 1.0},
        ("clip",),
        "options",
        6,
    )
    ((sheet, caption),) = page.images
    assert caption == "1. Episode 3, 1.50 to 2.00 s: elbow is off by 0.123 rad (RMS) in the identified twin."
    rows = [level for level in sheet[:, 12, 0] if level in (60, 80, 100)]
    assert list(dict.fromkeys(rows)) == [60, 100, 80]  # measured, simulated, both
    ((plot, _),) = page.plots
    measured, simulated = plot.data
    assert (list(measured.x), list(measured.y)) == ([1.5, 1.75, 2.0], [1, 2, 4])
    assert list(simulated.y) == [1, 1.5, 1.75]
    assert plot.layout.yaxis.title.text == "elbow / rad"
    assert clips(monkeypatch)[1]["values"] is None


def test_the_robots_own_images_stand_above_the_others_where_there_are_some(monkeypatch):
    told = []

    def camera(episode, times):
        told.append((episode, list(times)))
        return [np.full((12, 16, 3), 30, dtype=np.uint8)] * len(times)

    page, _ = clips(monkeypatch, camera)
    assert told == [(3, [1.5, 1.75])]
    rows = [level for level in page.images[0][0][:, 12, 0] if level in (30, 60, 80, 100)]
    assert list(dict.fromkeys(rows)) == [30, 60, 100, 80]


def test_a_twin_that_cannot_be_drawn_leaves_the_page_without_images(monkeypatch):
    page, _ = clips(monkeypatch, error=InputError("no camera"))
    assert page.words[-1] == "No images: no camera"
    assert (page.images, page.plots) == ([], [])


def test_the_recorded_image_nearest_in_time_is_taken_in_the_size_of_a_strip(monkeypatch, tmp_path):
    read = []

    def frames(rows):
        read.append(rows)
        return [np.full((12, 16, 3), 10 * row, dtype=np.uint8) for row in rows]

    there = NS(episodes=[NS(name="episode 3", read=frames)])
    monkeypatch.setattr(pages_gap_dynamics, "open_images", lambda folder: there if folder == tmp_path else None)
    time = np.array([0.0, 0.25, 0.5, 0.75])
    episodes: Any = [NS(index=index, origin=str(tmp_path), time=time) for index in (3, 4)]
    camera = open_recorded_camera(episodes, height=6, width=8)
    assert camera is not None
    shown = camera(3, np.array([0.6, 0.1, 0.55]))
    assert read == [[0, 2]]
    assert [image.shape for image in shown] == [(6, 8, 3)] * 3
    assert [int(image[0, 0, 0]) for image in shown] == [20, 0, 20]
    assert camera(4, np.array([0.1])) == []  # no images were kept of it
    other: Any = NS(index=5, origin=str(tmp_path / "other"), time=time)
    assert open_recorded_camera([*episodes, other]) is None
    assert open_recorded_camera([other]) is None


def test_a_folder_without_images_has_no_camera(monkeypatch, tmp_path):
    def none(folder):
        raise InputError("no pictures")

    monkeypatch.setattr(pages_gap_dynamics, "open_images", none)
    assert open_recorded_camera([NS(index=3, origin=str(tmp_path), time=np.zeros(2))]) is None
