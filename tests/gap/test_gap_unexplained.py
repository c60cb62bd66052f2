"""Missing physics of a twin is located; a correct twin has no unexplained residual."""

import json
from dataclasses import replace

import numpy as np
import pytest

from support.swing import TRUTH, clips, swing_twin
from twinloop.core.distribution import ParamDistribution, ResidualNoise
from twinloop.core.errors import InputError
from twinloop.gap.dynamics.unexplained import measure_unexplained
from twinloop.gap.dynamics.unexplained_events import compare_event_errors, compute_new_errors
from twinloop.gap.dynamics.unexplained_rules import RULES, find_hints
from twinloop.identify.structures import BUILTIN, select_structures
from twinloop.report import ReportPage
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.stats import ridge_predictions
from twinloop.twin.spec import ParamSpec
from twinloop.twin.variant import declare_params
from twinloop.workflows.gap.unexplained import (
    locate_unexplained_error,
    nested_section,
    read_nested,
    unexplained_section,
)

BACKEND = open_backend("threads", nthread=2)


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    return swing_twin(tmp_path_factory.mktemp("swing"))


def left_by(twin, log):
    """What the twin with the true parameters leaves, without the physics that was planted besides."""
    logs = prepare_replay(twin, log)
    best, nominal = (replay(BACKEND, logs, logs.twin.table(1, values))[0] for values in (TRUTH, {}))
    return measure_unexplained(logs, best, values=TRUTH, nominal=nominal)


def planted(twin, name, **more):
    (structure,) = select_structures([name])
    return structure.apply_to(twin, []), {**TRUTH, **more}


def test_play_sits_where_motion_and_load_turn_round(twin):
    geared, values = planted(twin, "backlash", **{"joint/swing/backlash": 0.05})
    found = left_by(twin, clips(geared, BACKEND, values, count=12, nframe=100, reach=170.0))
    hint = found.hint("position/swing")
    assert hint.rule.name == "backlash"
    assert "load_reversal" in [place.event for place in found.significant_events("position/swing")]
    (said,) = found.sentences("swing.yaml", "log")
    assert "backlash, then stiction is the first model term to try" in said
    assert "`twinloop identify --twin swing.yaml --data log --compare --structures backlash stribeck" in said
    plain = json.loads(json.dumps(found.to_json()))
    assert plain["hints"][0]["rule"] == "backlash"
    assert len(plain["moments"]) == 5
    total = found.explained.estimate + found.unexplained.estimate + found.noise.estimate
    assert total == pytest.approx(np.ones(1))


def test_friction_at_rest_and_a_drive_that_gives_out_are_told_apart(twin):
    sticky = {**TRUTH, "joint/swing/stiction": 3.0, "joint/swing/stribeck_velocity": 0.3}
    found = left_by(twin, clips(twin, BACKEND, sticky, count=12, nframe=80))
    assert found.hint("position/swing").rule.name == "stiction"
    weak = declare_params(twin, [ParamSpec(name="actuator/*/torque_limit", source="test")])
    found = left_by(
        twin, clips(weak, BACKEND, {**TRUTH, "actuator/swing/torque_limit": 1.8}, count=12, nframe=80, seed=3)
    )
    assert found.hint("position/swing").rule.name == "saturation"
    assert found.hint("position/swing").rule.structures[0] == "voltage_limit"


@pytest.mark.slow
def test_heat_and_wear_are_told_apart(twin):
    """A gain that falls within every episode, and one that falls from episode to episode."""
    hot = {**TRUTH, "actuator/swing/kp": 9.0}
    cold, warm = (clips(twin, BACKEND, values, count=12, nframe=80) for values in (TRUTH, hot))
    part = np.linspace(0.0, 1.0, 80)[:, None]
    mixed = [replace(a, state=(1 - part) * a.state + part * b.state) for a, b in zip(cold, warm, strict=True)]
    assert left_by(twin, mixed).hint("position/swing").rule.name == "heat"
    worn = clips(twin, BACKEND, lambda i: {**TRUTH, "actuator/swing/kp": 14.0 - 0.4 * i}, count=12, nframe=80)
    found = left_by(twin, worn).hint("position/swing")
    assert found.rule.name == "drift"
    assert "--drift 3" in found.command()


def test_a_twin_that_is_right_leaves_nothing_to_name(twin):
    for seed in range(2):
        found = left_by(twin, clips(twin, BACKEND, TRUTH, count=12, nframe=80, seed=seed))
        assert found.hints == ()
        assert float(found.predicted.estimate[0]) < 0.05
        assert found.explained.estimate[0] > 0.98
        assert "no significant event or state" in found.sentences()[0]


def test_few_episodes_say_how_many_are_needed(twin):
    found = left_by(twin, clips(twin, BACKEND, TRUTH, count=4, nframe=80))
    tests = len(found.events) + len(found.states)
    least = int(np.ceil(np.log2(tests / 0.05)))
    assert f"4 episodes are too few: {tests} tests together need at least {least}" in found.sentences()[0]
    one = left_by(twin, clips(twin, BACKEND, TRUTH, count=1, nframe=80))
    assert np.isnan(one.unexplained.low).all()
    assert one.unexplained.method == "one episode, no interval"
    assert all(place.reason for place in one.events)


def test_shares_are_what_the_noise_leaves(twin):
    log = clips(twin, BACKEND, TRUTH, count=6, nframe=60, noise_deg=0.3, rho=0.0)
    logs = prepare_replay(twin, log)
    truth = replay(BACKEND, logs, logs.twin.table(1, TRUTH))[0]
    biased = truth + 0.4
    noise = ResidualNoise(channels=("position/swing",), units=("deg",), sd=[0.3], rho=[0.0], structured=[0.0], hz=30.0)
    for found in (
        measure_unexplained(logs, biased, noise=noise),
        measure_unexplained(logs, biased, floor=np.array([0.09])),
    ):
        assert found.reference == "identified"
        assert float(found.unexplained.estimate[0]) == pytest.approx(0.16 / 0.25, abs=0.05)
        assert float(found.noise.estimate[0]) == pytest.approx(0.09 / 0.25, abs=0.05)
        assert found.explained.estimate[0] == 0
    alone = measure_unexplained(logs, truth)  # the sensors' noise is estimated from the frames
    assert float(alone.noise.estimate[0]) == pytest.approx(1.0, abs=0.15)


def test_replays_that_do_not_fit_are_refused(twin):
    logs = prepare_replay(twin, clips(twin, BACKEND, TRUTH, count=2, nframe=40))
    with pytest.raises(
        InputError, match=r"The nominal readings have shape \(2, 39, 1\), the log's windows \(2, 40, 1\)"
    ):
        measure_unexplained(logs, logs.measured, nominal=logs.measured[:, 1:])
    lost = logs.measured.copy()
    lost[1, 20:] = np.inf
    with pytest.raises(InputError, match="The identified twin diverges in episode 1, so its error cannot be divided"):
        measure_unexplained(logs, lost)


def test_new_errors_keep_white_noise_and_forget_what_stays():
    rng = np.random.default_rng(0)
    white = rng.normal(size=(40, 200, 1))
    assert np.nanmean(compute_new_errors(white, 20.0)) == pytest.approx(1.0, abs=0.05)
    step = np.zeros((1, 100, 1))
    step[0, 50:] = 3.0
    arisen = np.nan_to_num(compute_new_errors(step, 20.0)[0, :, 0])
    assert arisen[50] > 8
    assert arisen[60:].max() < 0.1
    assert np.isnan(compute_new_errors(white[:, :1], 20.0)).all()


def test_the_ratio_of_errors_is_the_one_that_was_planted_and_tests_keep_their_level():
    rng = np.random.default_rng(2)
    mask = np.zeros((30, 100, 1), dtype=bool)
    mask[:, 20:50] = True
    square = rng.normal(size=(30, 100, 1)) ** 2
    for factor in (1.0, 4.0):
        (found,) = compare_event_errors(
            np.where(mask, factor, 1.0) * square, {"x": mask}, np.arange(30), ("c",), level=0.95, alpha=0.05, seed=0
        )
        assert found.ratio.covers(factor)
        assert found.share.covers(0.3 * (factor - 1) / (0.3 * factor + 0.7))
        assert (found.p_value < 0.01) == (factor > 1)
        assert found.frames == pytest.approx(0.3)


def test_ridge_tells_a_law_from_noise_on_episodes_that_it_has_not_seen():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(20, 50, 5))
    y = x @ np.array([1.0, -2.0, 0.0, 0.0, 0.5]) + 0.1 * rng.normal(size=(20, 50))
    fold = np.arange(20) % 5
    assert np.mean((y - ridge_predictions(x, y, fold)) ** 2) == pytest.approx(0.01, rel=0.1)
    noise = rng.normal(size=(20, 50))
    assert np.mean(ridge_predictions(x, noise, fold) ** 2) < 0.01
    gap = y.copy()
    gap[:, 40:] = np.nan
    assert np.isfinite(ridge_predictions(x, gap, fold)).all()


def test_every_rule_names_structures_that_exist_and_a_command_that_parses(twin):
    names = {structure.name for structure in BUILTIN}
    for rule in RULES:
        assert set(rule.structures) <= names
    found = find_hints("c", [("position", 0.2, "said")], [("still", 0.3, "so")], ["sensor/a/offset"])
    assert (
        found[0].command("T", "L").startswith("twinloop identify --twin T --data L --free 'sensor/*/offset' --output")
    )
    assert found[0].note() == ""
    (none,) = find_hints("c", [("time", 0.2, "said")], [], [])
    for pattern in ("actuator/*/thermal_resistance", "actuator/*/thermal_time", "supply/bus/resistance"):
        assert pattern in none.note("my.yaml").split(" under ")[0].removeprefix("first declare ").split(" or ")
    both = find_hints("c", [("linear", 0.7, "l"), ("limit", 0.1, "m")], [("fast", 0.4, "f")], [])
    assert [hint.rule.name for hint in both] == ["saturation", "refit"]
    both = find_hints("c", [("limit", 0.2, "m")], [("fast", 0.4, "f"), ("effort", 0.3, "e")], [], states_tried=False)
    assert [(hint.rule.name, hint.share, hint.evidence) for hint in both] == [
        ("saturation", 0.2, ("m", "e")),
        ("speed", 0.4, ("f",)),
    ]


def test_a_page_shows_shares_events_states_and_the_command(twin, tmp_path):
    sticky = {**TRUTH, "joint/swing/stiction": 3.0, "joint/swing/stribeck_velocity": 0.3}
    log = clips(twin, BACKEND, sticky, count=12, nframe=80)
    found = locate_unexplained_error(twin, log, backend=BACKEND, params=known(TRUTH))
    page = ReportPage("Where", "test")
    pytest.importorskip("plotly")
    unexplained_section(page, found)
    nested_section(page, read_nested(compared(tmp_path)))
    html = page.write(tmp_path / "report.html").read_text()
    for words in (
        "not explained by the twin",
        "--compare --structures stribeck",
        "swing: slow",
        "removes 42% (30% to 50%) of the held-out error, Holm p 0.001: MISSING from the base",
    ):
        assert words in html


def known(values):
    names = tuple(values)
    mean = np.array(list(values.values()))
    return ParamDistribution(
        names=names,
        transforms=("identity",) * len(names),
        mean=mean,
        covariance=np.diag((0.01 * mean) ** 2),
        low=mean - 1,
        high=mean + 1,
        determined=(True,) * len(names),
        clusters=10,
    )


def compared(folder, *, structures=True):
    """What `identify --compare` stores, as far as it is read."""
    gain = {"estimate": 0.42, "low": 0.3, "high": 0.5}
    rows = [
        {"name": "stribeck", "meaning": "sticks", "improvement": gain, "p_holm": 0.001}
        | {"verdict": "MISSING from the base", "not_applicable": ""},
        {"name": "backlash", "meaning": "play", "improvement": {"estimate": 0.0, "low": None, "high": None}}
        | {"p_holm": 1.0, "verdict": "no relevant gain: below 1%", "not_applicable": ""},
        {"name": "contact_softness", "meaning": "soft", "improvement": None, "not_applicable": "no contacts"},
    ]
    run = {"distribution": {}, "structures": {"twin": "swing", "structures": rows} if structures else None}
    (folder / "result.json").write_text(json.dumps(run))
    return folder


def test_nested_models_of_an_earlier_run_are_read_and_their_lack_is_said(tmp_path):
    found = read_nested(compared(tmp_path))
    assert [row.name for row in found.rows if row.missing] == ["stribeck"]
    assert found.skipped == {"contact_softness": "no contacts"}
    assert json.loads(json.dumps(found.to_json()))["sentences"] == found.sentences()
    nothing = replace(found, rows=found.rows[1:])
    assert nothing.sentences() == ["Nested models: none of 1 structures reduces the error on new episodes (backlash)."]
    with pytest.raises(InputError, match="compared no structures. Run `twinloop identify .* --compare"):
        read_nested(compared(tmp_path, structures=False))
