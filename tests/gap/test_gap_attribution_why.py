"""The joined answer: what parameters explain, where the rest sits, what moves predictions; words, figures and page."""

import json

import numpy as np
import pytest

from benchmarks.error_rates.gap.attribution import shares_study, sobol_study
from support.gap_attribution import DAMPING, DELAY, KP, known, log_of, moved
from support.one_joint import joints_twin
from twinloop.core.errors import InputError
from twinloop.report import ReportPage
from twinloop.report.gap_attribution import plot_share_panels
from twinloop.simulate import open_backend
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.workflows.gap.requests import AttributionOptionsRequest
from twinloop.workflows.gap.why import explain, load_groups, why_section
from twinloop.workflows.run.results import replace_nonfinite

pytest.importorskip("plotly")


@pytest.fixture(scope="module")
def why(tmp_path_factory):
    twin, backend = joints_twin(tmp_path_factory.mktemp("twin"), joints=2, control_hz=50, substeps=4), open_backend()
    values = moved(twin, {DELAY: 0.05, KP: 1.4, DAMPING: 1.02})
    episodes = log_of(twin, backend, values, count=6, noise=2e-3)
    params = known(values, [1e-3, 0.02 * values[KP], 0.02 * values[DAMPING]], twin)
    options = ReplayOptions(window=0.5, start="measured")
    attribution_options = AttributionOptionsRequest(draws=4, group=("loop=actuator/*/delay,actuator/*/kp",))
    return explain(
        twin,
        episodes,
        params,
        backend=backend,
        options=options,
        attribution_options=attribution_options,
        note="6 episodes of a test",
    )


def test_the_answer_joins_what_parameters_explain_and_what_is_left(why):
    assert why.attribution.names == ("loop", "damping")
    first = next(sentence for sentence in why.sentences() if "j0's squared error is loop" in sentence)
    assert "is explained by no parameter of the twin (" in first
    assert "% is noise)" in first
    assert why.sentences()[0].partition(" of ")[2].startswith("all channels' squared error is loop")
    text = why.text()
    assert "all 4 coalitions; 4 draws of the parameters" in text
    assert "predictions of j0 spread by" in text


def test_metrics_name_shares_and_what_is_left(why):
    metrics = {metric.name: metric for metric in why.headline()}
    assert {"unexplained", "unexplained/j0", "share/loop", "share/damping"} <= set(metrics)
    left = why.attribution.remaining.interval
    assert metrics["unexplained/j0"].low == left.low[0, 0]
    assert metrics["share/loop"].estimate + metrics["share/damping"].estimate + metrics["unexplained"].estimate == (
        pytest.approx(1.0)
    )
    json.dumps(replace_nonfinite(why.to_json()), allow_nan=False)


def test_the_page_shows_bars_exchanges_and_sensitivity(why):
    page = ReportPage("Why")
    why_section(page, why.sentences(), why.attribution, why.unexplained, why.sensitivity)
    html = page.html()
    assert "divided among groups of parameters by Shapley values" in html
    assert "Only this group nominal, all others identified" in html
    assert "Sensitivity of the predictions" in html
    assert "actuator/j0/delay" in html


def test_panels_have_a_bar_for_each_cause():
    ends = ([0.5, -0.1], [0.7, 0.2])
    metric = plot_share_panels(["elbow"], [["gain", "delay"]], [[0.6, 0.05]], [ends], [[True, False]])
    (bars,) = metric.data
    assert list(bars.x) == pytest.approx([60.0, 5.0])
    assert list(bars.error_x.array) == pytest.approx([10.0, 15.0])
    with pytest.raises(InputError, match="1 panels were given 0 lists of names"):
        plot_share_panels(["elbow"], [], [], [], [])


def test_groups_of_a_file_are_read_beside_those_of_the_command_line(tmp_path):
    path = tmp_path / "groups.yaml"
    path.write_text("gains: [actuator/*/kp]\nlags:\n- actuator/*/delay\n")
    own = load_groups(AttributionOptionsRequest(groups=path, group=("zero=actuator/*/bias",)))
    assert own == {"gains": ("actuator/*/kp",), "lags": ("actuator/*/delay",), "zero": ("actuator/*/bias",)}
    path.write_text("gains: actuator/*/kp\n")
    with pytest.raises(InputError, match="groups.yaml contains no groups. Write `NAME: "):
        load_groups(AttributionOptionsRequest(groups=path))


def test_noise_comes_from_what_is_left_where_no_floor_was_given(why):
    assert np.isnan(why.attribution.floor).all()
    assert why.explanations()[1].floor >= 0


def test_shares_hold_planted_truths_only_where_the_parameters_are_drawn():
    rows = {(r["alike"], r["episodes"], r["draws"]): r for r in shares_study(15, 0).metrics}
    drawn = [row for (_, _, draws), row in rows.items() if draws]
    assert np.mean([row["covers_at_fault"] for row in drawn]) > 0.85
    assert np.mean([row["covers_others"] for row in drawn]) > 0.9
    assert np.mean([row["covers_left"] for row in drawn]) > 0.85
    assert np.mean([row["blamed_wrongly"] for row in drawn]) < 0.1
    assert rows[0.9, 10, False]["blamed_wrongly"] > 0.5  # equal effects, with their uncertainty ignored
    assert rows[0.0, 20, True]["largest_found"] > 0.9


def test_the_table_of_sobol_indices_covers_closed_forms():
    table = sobol_study(10, 0)
    assert all(min(row["covered"]) > 0.9 for row in table.metrics)
    assert "Ishigami" in table.markdown()
