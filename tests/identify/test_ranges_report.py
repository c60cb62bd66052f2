"""An identification from log to page: calibrated ranges, structures and drift are printed, stored and drawn."""

import json

import numpy as np
import pytest
from rich.console import Console

from support.swing import TRUTH, clips, swing_twin
from twinloop.core.errors import InputError
from twinloop.identify.config import FitConfig
from twinloop.report.identification import (
    plot_correlation_map,
    plot_coverage_curve,
    plot_drift_panels,
    plot_predicted_band,
)
from twinloop.simulate import open_backend
from twinloop.twin import load_twin
from twinloop.workflows.data.logs import LogEpisodes
from twinloop.workflows.identify.identify import fit, identify_log, split_log
from twinloop.workflows.identify.requests import IdentifyRequest, PostFitAnalyses


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swing")
    twin = swing_twin(folder)
    episodes = clips(twin, open_backend("threads", nthread=2), TRUTH, count=18, nframe=40)
    return folder / "swing.yaml", LogEpisodes(
        name="swing", label="a planted log", hash="0" * 64, episodes=tuple(episodes)
    )


@pytest.mark.slow
def test_everything_beyond_the_fit_is_printed_stored_and_drawn(log, tmp_path, capsys):
    pytest.importorskip("plotly")
    twin, clips_of = log
    asked = PostFitAnalyses(calibrate="last:9", compare=True, structures=("quadratic_damping",), drift="2")
    config = FitConfig(iterations=5, free=("joint/*/damping", "joint/*/frictionloss", "actuator/*/kp"))
    fixed = FitConfig(**{**vars(config), "fixed": {"actuator/swing/delay": TRUTH["actuator/swing/delay"]}})
    request = IdentifyRequest(twin=str(twin), holdout="last:3", ranging=asked)
    metrics = identify_log(request, clips_of, tmp_path / "run", fixed, Console(width=160))
    printed = capsys.readouterr().out
    assert metrics["training"] == [0, 1, 2, 3, 4, 5]
    assert sorted(map(int, metrics["ranges"]["scores"])) == list(range(6, 15))
    assert metrics["distribution"]["calibration"]["clips"] == 9
    assert len(metrics["ranges"]["curve"]["levels"]) == len(metrics["ranges"]["curve"]["calibrated"])
    assert metrics["structures"]["structures"][0]["verdict"].startswith("no relevant gain")
    assert metrics["drift"]["drifting"] == []
    for words in ("Ranges: kappa", "calibrated on 9 clips for 90%", "Coverage of 3 test clips", "Drift: none of 3"):
        assert words in printed
    assert json.loads((tmp_path / "run" / "result.json").read_text())["drift"]["groups"] == ["0–8", "9–17"]
    page = (tmp_path / "run" / "report.html").read_text()
    for title in (
        "Parameters identified from the log",
        "Priors, correlation, identifiability",
        "Residuals",
        "Ranges for randomization",
        "Missing physics",
        "Drift",
    ):
        assert f"<h2>{title}</h2>" in page
    assert "Episode 15, held out: measured against simulated, and the calibrated range." in page


@pytest.mark.parametrize(
    ("holdout", "calibrate", "clips_used"),
    [
        ("last:9", None, 9),
        pytest.param("last:8", None, 0, marks=pytest.mark.slow),
        pytest.param("last:9", "last:2", 2, marks=pytest.mark.slow),
    ],
)
def test_enough_held_out_clips_calibrate_the_ranges_unless_others_are_named(log, holdout, calibrate, clips_used):
    config = FitConfig(iterations=3, free=("joint/*/damping", "actuator/*/kp"))
    found = fit(load_twin(log[0]), log[1], holdout, config, calibration=calibrate)
    assert found.distribution.calibration.clips == clips_used
    assert (found.ranges.curve is None) == (clips_used != 2)
    assert ("no episode tests the ranges" in found.text()) == (clips_used == 9)


def test_calibration_clips_come_from_what_is_not_held_out(log):
    _, clips_of = log
    training, widening, held = split_log(clips_of.episodes, "last:3", "last:9")
    assert [[e.index for e in part] for part in (training, widening, held)] == [
        list(range(6)),
        list(range(6, 15)),
        [15, 16, 17],
    ]
    with pytest.raises(InputError, match="--calibrate 'some' is not understood"):
        split_log(clips_of.episodes, "last:3", "some")
    with pytest.raises(InputError, match="no episode 16 to hold out"):
        split_log(clips_of.episodes, "last:3", "16")


def test_structures_without_compare_are_a_mistake(log, tmp_path):
    with pytest.raises(InputError, match="Add --compare"):
        request = IdentifyRequest(twin=str(log[0]), ranging=PostFitAnalyses(structures=("delay",)))
        identify_log(request, log[1], tmp_path / "run", FitConfig(), Console())


def test_plots_refuse_what_does_not_fit_and_draw_what_does():
    pytest.importorskip("plotly")
    with pytest.raises(InputError, match="2 parameters was given correlations in shape"):
        plot_correlation_map(["a", "b"], np.eye(3))
    with pytest.raises(InputError, match="1 parameters over 2 groups was given shape"):
        plot_drift_panels(["x", "y"], ["a"], [[1.0]], [[0.1]], [""])
    with pytest.raises(InputError, match="2 channels and 3 frames was given values in shape"):
        plot_predicted_band(
            np.arange(3), ["a", "b"], np.zeros((3, 1)), np.zeros((3, 2)), np.zeros((3, 2)), units=["", ""]
        )
    metric = plot_coverage_curve([0.5, 0.9], [0.4, 0.8], [0.5, 1.0], [0.2, 0.6], [0.8, 1.0])
    traces = {trace.name: trace for trace in metric.data}
    assert list(traces["calibrated"].y) == [0.5, 1.0]
    band = plot_predicted_band([0, 1], ["a"], [[0.0], [1.0]], [[0.5], [0.5]], [[0.1], [0.2]], units=["m"])
    assert [list(trace.y) for trace in band.data[:2]] == [[0.6, 0.7], [0.4, 0.3]]
