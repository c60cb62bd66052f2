"""Pages of an identification: estimates, what the data leave open, ranges, structures and drift, number by number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.pages import KeptReport, ends, interval
from twinloop.core.distribution import ParamDistribution
from twinloop.identify.compare import StructureComparison, StructureResult
from twinloop.identify.config import FitConfig
from twinloop.identify.drift import Drift, DriftParam
from twinloop.identify.result import Estimate
from twinloop.identify.variants import ParameterProfile
from twinloop.workflows.identify import page as pages_identify
from twinloop.workflows.identify.page import drift_section, identify_section, ranges_section, structures_section

NS: Any = SimpleNamespace
NAN = float("nan")
HZ = 4.0

ESTIMATES = (
    Estimate(
        name="mass",
        unit="kg",
        nominal=1.0,
        value=1.25,
        low=1.125,
        high=1.5,
        prior_low=0.5,
        prior_high=2.0,
        prior_source="fit file",
    ),
    Estimate(name="delay", unit="s", nominal=0.02, value=0.05, low=0.01, high=0.06, side="at most"),
    Estimate(name="bias", unit="rad", nominal=0.5, value=0.75, low=None, high=None, reason="too little motion"),
)
COVARIANCE = np.array([[0.04, 0.003, 0.0], [0.003, 0.0009, 0.0], [0.0, 0.0, 0.25]])


def distribution(**changed):
    made = {
        "names": ("mass", "delay", "bias"),
        "transforms": ("identity",) * 3,
        "mean": np.array([1.25, 0.05, 0.75]),
        "covariance": COVARIANCE,
        "low": np.zeros(3),
        "high": np.full(3, 2.0),
        "determined": (True, True, False),
        "clusters": 6,
        "prior_mean": np.array([1.0, 0.02, 0.5]),
        "prior_sd": np.array([0.5, np.inf, 1.0]),
    }
    return ParamDistribution(**(made | changed))


class Told:
    """A replay result as the page reads it: two clips of which the second ends early."""

    def __init__(self, residual, lengths):
        self.residual, self.lengths = residual, np.array(lengths)
        self.asked = []

    def prepare(self, twin, episodes, replay):
        self.asked.append((twin, list(episodes), replay))
        return self.logs

    @property
    def logs(self):
        channels = [NS(name="elbow", unit="rad"), NS(name="wrist", unit="deg")]
        twin = NS(table=lambda count, values: ("table", count, dict(values)), control_hz=HZ)
        measured = np.arange(self.residual.size, dtype=float).reshape(self.residual.shape)
        return NS(twin=twin, lengths=self.lengths, measured=measured, channels=channels, units=None)

    def replay(self, backend, logs, table):
        self.asked.append(table)
        return [logs.measured + self.residual]


def told(frames=20, short=14):
    residual = np.random.default_rng(3).normal(size=(2, frames, 2)).cumsum(axis=1)
    residual[1, short:] = NAN
    return Told(residual, [frames, short])


def identified(monkeypatch, replayed=None, **changed):
    replayed = replayed or told()
    monkeypatch.setattr(pages_identify, "open_backend", lambda: "backend")
    monkeypatch.setattr(pages_identify, "prepare_replay", replayed.prepare)
    monkeypatch.setattr(pages_identify, "replay", replayed.replay)
    made = {
        "estimates": ESTIMATES,
        "training": (0, 1, 2, 3),
        "evidence": NS(level=0.9, text=lambda: "It rests on 6 clusters."),
        "notes": ("a note",),
        "distribution": distribution(),
        "condition": (30.0, 1234.5, 2.0),
        "directions": ("mass and delay together", "bias"),
        "profiles": (),
        "values": {"mass": 1.25, "delay": 0.05},
    }
    page = KeptReport()
    config = FitConfig(fixed={"damping": 3.0, "mass": 9.0})
    identify_section(page, NS(**(made | changed)), "twin", ["e0", "e1"], config)
    return page


def test_estimates_stand_beside_their_nominal_values_with_intervals_where_determined(monkeypatch):
    page = identified(monkeypatch)
    assert page.words[0].startswith("2 of 3 parameters are determined by 4 training episodes;")
    assert "It rests on 6 clusters. Residuals" in page.words[0]
    assert page.tables[0] == {
        "parameter": ["mass", "delay", "bias"],
        "unit": ["kg", "ms", "rad"],
        "nominal": ["1", "20", "0.5"],
        "95 % of the prior": ["[0.5, 2]*", "", ""],
        "identified": ["1.25", "50", "0.75"],
        "90% interval": ["[1.125, 1.5]", "at most 60 (on its bound)", "not determined: too little motion"],
    }
    assert page.words[1] == "a note"
    metric = page.plots[0][0]
    assert [one.text for one in metric.layout.annotations] == ["mass / kg", "delay / s", "bias / rad"]
    nominal = [list(trace.x) for trace in metric.data if trace.name == "nominal"]
    assert nominal == [[1.0], [0.02], [0.5]]
    mass, delay, bias = (trace for trace in metric.data if trace.name != "nominal")
    assert mass.name == delay.name != bias.name
    assert [list(trace.x) for trace in (mass, delay, bias)] == [[1.25], [0.05], [0.75]]
    assert ends(mass) == (pytest.approx([1.125]), pytest.approx([1.5]))
    assert ends(delay) == (pytest.approx([0.01]), pytest.approx([0.06]))
    assert not bias.error_x.visible


def test_priors_are_drawn_of_parameters_that_have_one(monkeypatch):
    page = identified(monkeypatch)
    assert page.words[2].startswith("Condition number of the scaled normal equations: 1.23e+03. Directions that")
    assert page.words[2].endswith("do not determine: 2.")
    assert page.tables[1] == {"not determined by these data": ["mass and delay together", "bias"]}
    metric = page.plots[1][0]
    assert list(metric.layout.yaxis.ticktext) == ["bias", "mass"]  # by class
    _, nominal, known, open_ = metric.data
    assert list(nominal.x) == [0.0, 0.0]
    assert (list(known.x), list(known.customdata)) == ([0.5], ["mass"])  # (1.25 − 1) / 0.5
    assert ends(known) == (pytest.approx([0.5 - 1.96 * 0.4]), pytest.approx([0.5 + 1.96 * 0.4]))  # 0.2 / 0.5
    assert (list(open_.x), list(open_.customdata)) == ([0.25], ["bias"])


def test_correlations_are_of_what_the_data_determine(monkeypatch):
    (cells,) = identified(monkeypatch).plots[2][0].data
    assert list(cells.x) == list(cells.y) == ["mass", "delay"]
    assert np.array(cells.z) == pytest.approx(np.array([[1, 0.5], [0.5, 1]]))  # 0.003 / (0.2 · 0.03)
    alone = identified(monkeypatch, distribution=distribution(determined=(True, False, False)))
    assert len(alone.plots) == 3
    still = np.diag([0.04, 0.0, 0.25])
    assert len(identified(monkeypatch, distribution=distribution(covariance=still)).plots) == 3


def test_without_priors_or_directions_there_is_nothing_of_them(monkeypatch):
    bare = distribution(prior_mean=np.zeros(0), prior_sd=np.zeros(0))
    page = identified(monkeypatch, distribution=bare, directions=(), condition=())
    assert len(page.plots) == 3
    assert len(page.tables) == 1
    assert page.words[2].startswith("Condition number of the scaled normal equations: nan.")


def test_profiles_are_curves_with_their_limits_and_words(monkeypatch):
    values, rise = np.array([1.0, 1.25, 1.75]), np.array([5.0, 0.0, 3.0])
    profile = ParameterProfile(
        name="mass", unit="kg", values=values, rise=rise, others={}, limit=3.5, low=1.1, high=None, level=0.9
    )
    page = identified(monkeypatch, profiles=(profile,))
    metric, caption = page.plots[3]
    curve, limit = metric.data
    assert caption.startswith("Profile likelihood")
    assert (list(curve.x), list(curve.y)) == ([1.0, 1.25, 1.75], [5.0, 0.0, 3.0])
    assert (list(limit.x), list(limit.y)) == ([1.0, 1.75], [3.5, 3.5])
    assert metric.layout.xaxis.title.text == "kg"
    assert "Profile of mass: [1.1, open above 1.75] kg at 90%." in page.words


def correlation(clip, lag):
    around = clip - clip.mean()
    return float((around[: len(around) - lag] * around[lag:]).sum() / (around**2).sum())


def test_residuals_are_the_identified_twin_less_what_was_measured(monkeypatch):
    replayed = told()
    page = identified(monkeypatch, replayed)
    assert replayed.asked == [
        ("twin", ["e0", "e1"], FitConfig().replay),
        ("table", 1, {"damping": 3.0, "mass": 1.25, "delay": 0.05}),
    ]
    metric, _ = page.plots[-1]
    elbow, wrist = metric.data
    assert (elbow.name, wrist.name) == ("elbow", "wrist")
    assert list(elbow.x) == [0.0, 0.25, 0.5, 0.75, 1.0]  # a second of lags
    for number, trace in enumerate((elbow, wrist)):
        clips = replayed.residual[0, :, number], replayed.residual[1, :14, number]
        expected = [np.mean([correlation(clip, lag) for clip in clips]) for lag in range(5)]
        assert list(trace.y) == pytest.approx(expected)
    (band,) = metric.layout.shapes
    assert (band.y0, band.y1) == (pytest.approx(-1.96 / 17**0.5), pytest.approx(1.96 / 17**0.5))  # 17 frames on average


def test_lags_end_with_the_shortest_clip_and_two_are_needed(monkeypatch):
    page = identified(monkeypatch, told(frames=20, short=5))
    assert list(page.plots[-1][0].data[0].x) == [0.0, 0.25, 0.5, 0.75]
    assert identified(monkeypatch, told(frames=20, short=4)).heads[-1] == "Residuals"
    assert identified(monkeypatch, told(frames=20, short=3)).heads[-1] == "Priors, correlation, identifiability"


# Ranges


class Ahead:
    """Errors and spreads of held-out clips that are known beforehand."""

    error = np.array([[[0.1, -0.2], [0.3, 0.4], [9.0, 9.0]]])
    sd = np.array([[[0.01, 0.02], [0.03, 0.05], [9.0, 9.0]]])
    made: Any = ()

    def __init__(self, *given):
        type(self).made = given

    def clips(self, twin, episodes):
        return NS(error=self.error, sd=self.sd)


def ranged(monkeypatch, *, within=2.0, episodes=3, curve=True, **changed):
    residual = np.zeros((1, 3, 2))
    monkeypatch.setattr(pages_identify, "open_backend", lambda: "backend")
    monkeypatch.setattr(pages_identify, "prepare_replay", Told(residual, [2]).prepare)
    monkeypatch.setattr(pages_identify, "BandPrediction", Ahead)
    found = {
        "calibration": NS(kappa=2.25, label="calibrated on 9 clips"),
        "noise": NS(
            channels=("elbow", "wrist"),
            sd=np.array([0.1, 0.2]),
            units=("rad", "deg"),
            rho=np.array([0.5, 0.6]),
            structured=np.array([0.7, 0.8]),
        ),
        "model_error": "",
        "unidentified_parameters": (),
        "estimate": {"mass": 1.25},
        "kappa": 2.25,
    }
    levels = NS(
        levels=np.array([0.5, 0.9]),
        plain=np.array([0.2, 0.6]),
        calibrated=np.array([0.45, 0.85]),
        low=np.array([0.3, 0.7]),
        high=np.array([0.65, 0.95]),
        clips=7,
    )
    ranges = NS(
        distribution=NS(**(found | changed)),
        curve=levels if curve else None,
        scores={},
        parameter_share=np.array([0.25, 0.75]),
        within=within,
    )
    page = KeptReport()
    held = [NS(index=number + 4) for number in range(episodes)]
    ranges_section(page, ranges, "twin", held, FitConfig(fixed={"damping": 3.0}))
    return page


def test_ranges_tell_their_factor_the_noise_and_how_many_test_clips_they_hold(monkeypatch):
    page = ranged(monkeypatch)
    assert page.words == ["Factor on the covariance kappa = 2.25: calibrated on 9 clips."]
    assert page.tables == [
        {
            "channel": ["elbow", "wrist"],
            "residual noise": [0.1, 0.2],
            "unit": ["rad", "deg"],
            "lag-1 correlation": [0.5, 0.6],
            "repeats with motion": [0.7, 0.8],
            "from parameters": [0.25, 0.75],
        }
    ]
    metric, caption = page.plots[0]
    high, low, _, plain, calibrated = metric.data
    for trace, values in ((high, [0.65, 0.95]), (low, [0.3, 0.7]), (plain, [0.2, 0.6]), (calibrated, [0.45, 0.85])):
        assert (list(trace.x), list(trace.y)) == ([0.5, 0.9], values)
    assert (plain.name, calibrated.name) == ("as fitted", "calibrated")
    assert caption.startswith("Share of 7 test clips")
    worse = ranged(monkeypatch, model_error="elbow", unidentified_parameters=("a", "b")).words[0]
    assert worse.endswith("MODEL ERROR beyond these ranges: elbow. Not determined, prior ranges: a, b.")


def test_two_held_out_clips_are_drawn_in_their_range(monkeypatch):
    page = ranged(monkeypatch)
    (_, _), (metric, first), (_, second) = page.plots
    assert (first.split(",")[0], second.split(",")[0]) == ("Episode 4", "Episode 5")
    assert Ahead.made[3] == {"damping": 3.0, "mass": 1.25}
    above, below, measured, simulated = metric.data[:4]
    assert list(measured.x) == [0.0, 0.25]
    assert list(measured.y) == [0.0, 2.0]
    assert list(simulated.y) == pytest.approx([0.1, 2.3])
    # 2 · √2.25 · sd
    assert list(above.y) == pytest.approx([0.1 + 3 * 0.01, 2.3 + 3 * 0.03])
    assert list(below.y) == pytest.approx([0.1 - 3 * 0.01, 2.3 - 3 * 0.03])
    assert [one.text for one in metric.layout.annotations] == ["elbow / rad", "wrist / deg"]


def test_without_calibration_or_held_out_clips_none_are_drawn(monkeypatch):
    assert len(ranged(monkeypatch, within=NAN).plots) == 1
    assert len(ranged(monkeypatch, episodes=0).plots) == 1
    assert ranged(monkeypatch, episodes=0, curve=False).plots == []


# Structures and drift


def structure(name, gain=None, **changed):
    size = None if gain is None else interval(gain, gain - 0.1, gain + 0.05)
    made = {"improvement": size, "error": None if gain is None else interval(1 - gain, 0.4, 0.9)}
    made |= {"name": name, "meaning": f"what {name} means", "channel_errors": {}, "values": {}}
    return StructureResult(**(made | changed))


def compared(*rows, folds=5):
    page = KeptReport()
    structures_section(page, StructureComparison(twin="t", base={}, units={}, episodes=12, folds=folds, results=rows))
    return page


def test_structures_that_are_missing_or_needed_stand_out():
    page = compared(
        structure("stribeck", 0.4, added=2, p_value=0.01, verdict="MISSING from the base"),
        structure("backlash", 0.02, added=1, p_value=0.6, verdict="no relevant gain: below 1%"),
        structure("delay", 0.3, added=3, p_value=0.02, verdict="needed, in the base"),
        structure("contact", reason="no contacts"),
    )
    assert (
        page.words[0]
        .split("without it, ")[1]
        .startswith("on 12 episodes that neither fit used, cross-fitted over 5 folds.")
    )
    metric, _ = page.plots[0]
    assert list(metric.layout.yaxis.ticktext) == ["stribeck", "backlash", "delay"]
    shown, quiet = metric.data
    assert (shown.name, list(shown.customdata), list(shown.x)) == (
        "missing, or needed",
        ["stribeck", "delay"],
        [0.4, 0.3],
    )
    assert ends(shown) == (pytest.approx([0.3, 0.2]), pytest.approx([0.45, 0.35]))
    assert list(quiet.customdata) == ["backlash"]
    (table,) = page.tables
    assert table["structure"] == ["stribeck", "backlash", "delay", "contact"]
    assert table["physics"][3] == "what contact means"
    assert table["added parameters"] == [2, 1, 3, None]
    assert table["improvement each"] == pytest.approx([0.2, 0.02, 0.1, NAN], nan_ok=True)
    assert table["p (Holm)"] == [0.01, 0.6, 0.02, None]
    assert table["verdict"] == [
        "MISSING from the base",
        "no relevant gain: below 1%",
        "needed, in the base",
        "not compared: no contacts",
    ]


def test_structures_of_which_none_applies_have_no_plot():
    page = compared(structure("contact", reason="no contacts"), folds=1)
    assert page.plots == []
    assert "on the held-out part" in page.words[0]


def drifted(*params):
    page = KeptReport()
    drift_section(page, Drift(groups=("first", "last"), sizes=(3, 4), params=params))
    return page


def param(name, p_change, p_trend=0.9, k=0.0):
    return DriftParam(
        name=name, unit="kg", common=1.0, estimates=(1.0 + k, 2.0 + k), errors=(0.1 + k, 0.3 + k), q=5.0,
        p_change=p_change, trend=0.5 + k, p_trend=p_trend,
    )  # fmt: skip


def test_what_changed_comes_first_the_surest_at_the_top():
    page = drifted(param("a", 0.4), param("b", 0.03), param("c", 0.3), param("d", 0.6, 0.01, k=0.25))
    assert page.words[0].startswith("d, b changed. Tested for change between 2 groups")
    assert page.tables == [
        {
            "parameter": ["d", "b", "c", "a"],
            "unit": ["kg"] * 4,
            "p of change": [0.6, 0.03, 0.3, 0.4],
            "trend": [0.75, 0.5, 0.5, 0.5],
            "p of trend": [0.01, 0.9, 0.9, 0.9],
        }
    ]
    metric, _ = page.plots[0]
    assert [one.text for one in metric.layout.annotations] == ["d / kg", "b / kg", "c / kg", "a / kg"]
    first = metric.data[0]
    assert (list(first.x), list(first.y)) == (["first", "last"], [1.25, 2.25])
    assert list(first.error_y.array) == pytest.approx([1.96 * 0.35, 1.96 * 0.55])


def test_of_many_parameters_eight_are_drawn_and_no_change_is_told_as_such():
    page = drifted(*(param(f"p{k}", 0.9 - k / 100) for k in range(9)))
    assert page.words[0].startswith("These data show no change of a parameter.")
    assert page.tables[0]["parameter"] == [f"p{k}" for k in range(8, 0, -1)]
