"""Failure classes fire where their cause was planted, hold their level where none was, and name commands that exist."""

import json
import math
import re
import shlex
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from scipy.stats import norm

from support.swing import TRUTH, clips, swing_twin
from twinloop.cli.main import TWINLOOP, main
from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError
from twinloop.core.headline import HeadlineMetric
from twinloop.core.trials import Trials
from twinloop.gap.policies.classes import (
    EpisodeErrors,
    check_conditions,
    check_drift,
    check_gap_limits,
    check_other_environment,
    check_simulation_easier,
    check_weak_policies,
    compute_relative_errors,
)
from twinloop.gap.policies.classes_coverage import (
    TrainingSupport,
    check_axis_coverage,
    check_combination_coverage,
    outside_p_value,
    visited_axes,
)
from twinloop.gap.policies.classes_result import ALPHA, MEANINGS, adjust_checks
from twinloop.report import ReportPage
from twinloop.simulate import open_backend
from twinloop.workflows.data.logs import LogEpisodes
from twinloop.workflows.gap import classes as gap_classes
from twinloop.workflows.gap.classes import (
    _first_episode_after,
    classes_section,
    compute_twin_errors,
    diagnose,
    load_training_support,
)
from twinloop.workflows.gap.requests import GapClassesRequest

BACKEND = open_backend("threads", nthread=2)


def fired(checks):
    return [check.subject for check in adjust_checks(checks).fired_checks]


def test_values_outside_a_range_of_samples_are_as_rare_as_the_exact_law_says():
    rng = np.random.default_rng(0)
    n, m, draws = 19, 6, 20_000
    training, real = rng.normal(size=(draws, n)), rng.normal(size=(draws, m))
    low, high = training.min(axis=1, keepdims=True), training.max(axis=1, keepdims=True)
    outside = np.sum((real < low) | (real > high), axis=1)
    for k in range(1, 4):
        assert np.mean(outside >= k) == pytest.approx(outside_p_value(k, m, n), abs=0.01)
    assert outside_p_value(1, 1, 19) == pytest.approx(2 / 20)
    assert outside_p_value(0, 3, 9) == 1.0


def test_a_condition_that_training_never_saw_is_named_with_how_it_ends():
    rng = np.random.default_rng(1)
    support = TrainingSupport(names=("mass", "friction"), values=rng.uniform(size=(400, 2)), origin="my dataset")
    real = np.stack([np.linspace(0.1, 1.6, 20), rng.uniform(size=20)], axis=-1)
    won = real[:, 0] < 1.0
    mass, friction = check_axis_coverage(support, ["mass", "friction"], real, success=won.tolist(), remedy=["do it"])
    assert fired([mass, friction]) == ["mass"]
    assert "8 of 20 real mass are outside" in mass.evidence
    assert "as far as 1.6" in mass.evidence
    assert "of those outside 0 of 8 succeed, of those inside 12 of 12" in mass.evidence
    said = adjust_checks([mass, friction]).sentences()[0]
    assert said.startswith("Never covered in training: 8 of 20")
    assert said.endswith("To do: `do it`.")


def test_declared_ranges_need_no_sample_and_few_samples_say_how_many():
    bounds = np.array([[0.5, 1.5]])
    declared = TrainingSupport(names=("kp",), values=np.empty((0, 1)), bounds=bounds, origin="run")
    assert fired(check_axis_coverage(declared, ["kp"], [[2.0]])) == ["kp"]
    assert fired(check_axis_coverage(declared, ["kp"], [[1.0]])) == []
    few = TrainingSupport(names=("kp",), values=np.linspace(0, 1, 8)[:, None])
    (check,) = check_axis_coverage(few, ["kp"], [[2.0]])
    assert fired([check]) == []
    assert check.needed == "8 training episodes are too few for 1 real ones; use 39 or declared ranges"
    assert outside_p_value(1, 1, 39) <= ALPHA < outside_p_value(1, 1, 38)
    with pytest.raises(InputError, match=r"Training \(training\) has kp, reality has mass\. Give both the same"):
        check_axis_coverage(few, ["mass"], [[1.0]])


def test_a_combination_that_no_training_episode_is_near_is_found_though_each_axis_is_covered():
    rng = np.random.default_rng(2)
    diagonal = rng.uniform(size=(300, 1)) + 0.02 * rng.normal(size=(300, 2))
    support = TrainingSupport(names=("a", "b"), values=diagonal)
    corner = check_combination_coverage(support, ["a", "b"], [[0.1, 0.9]])
    assert fired([corner]) == ["combination of 2 axes"]
    usual = check_combination_coverage(support, ["a", "b"], diagonal[:1] + 0.001)
    assert fired([usual]) == []
    assert check_combination_coverage(support, ["a"], [[0.1]]) is None


def metric(name, estimate, half, *, better="higher"):
    return HeadlineMetric(name=name, estimate=estimate, low=estimate - half, high=estimate + half, better=better)


def test_a_gap_is_too_wide_only_where_its_interval_says_so():
    rows = [
        metric("skill/a", 0.2, 0.1),
        metric("skill/b", 0.45, 0.1),
        metric("skill/c", 0.9, 0.05),
        metric("unexplained/a", 0.6, 0.1, better="lower"),
        HeadlineMetric(name="skill/d", estimate=0.1, better="higher", method="one episode"),
        metric("other", 9.0, 0.1),
    ]
    checks = check_gap_limits(rows, {"skill": 0.5, "unexplained": 0.25}, episodes=10, remedy=["r"])
    assert sorted(fired(checks)) == ["skill/a", "unexplained/a"]
    assert len(checks) == 5
    undecided = checks[1]
    assert undecided.needed == "about 40 episodes like these 10 would decide it"
    assert undecided.p_value == pytest.approx(norm.sf(0.05 / (0.1 / norm.ppf(0.975))))
    assert checks[4].needed == "it has no interval (one episode); give more episodes"


def errors(values, channels=("a", "b")):
    return EpisodeErrors(channels=channels, values=np.asarray(values), numbers=tuple(range(len(values))))


def test_drift_since_calibration_is_seen_in_the_channel_that_drifts():
    rng = np.random.default_rng(3)
    table = rng.lognormal(sigma=0.2, size=(24, 2))
    table[12:, 1] *= 1.8
    found = adjust_checks(check_drift(errors(table), 12, remedy=["again"]))
    assert [check.subject for check in found.fired_checks] == ["b"]
    assert found.fired_checks[0].metric.covers(1.8)
    assert found.classes == ("drift",)
    better = table[::-1]
    assert fired(check_drift(errors(better), 12)) == []  # what becomes better is no failure
    (few, _) = check_drift(errors(table[10:14]), 2)
    assert few.needed == "2 and 2 episodes allow only 6 permutations; 20 are needed"
    with pytest.raises(InputError, match="1 episodes are before the calibration and 23 after it"):
        check_drift(errors(table), 1)


def test_another_environment_is_compared_by_relative_errors():
    rng = np.random.default_rng(4)
    here, there = rng.lognormal(sigma=0.2, size=(15, 2)), rng.lognormal(sigma=0.2, size=(12, 2))
    there[:, 0] *= 2.0
    assert fired(check_other_environment(errors(here), errors(there), name="B")) == ["a in B"]
    with pytest.raises(InputError, match="different channels: a, b and a, c. Compare logs with the same"):
        check_other_environment(errors(here), errors(there, ("a", "c")))
    scaled = compute_relative_errors(
        ["a", "b", "c"], here[:, [0, 1, 1]], 3 * np.stack([here[:, 0], 0 * here[:, 0], here[:, 1]], -1), range(15)
    )
    assert scaled.channels == ("a", "c")
    assert scaled.values == pytest.approx(np.full((15, 2), 1 / 3))


def tries(policy, domain, won, total, condition=""):
    return Trials.of_counts(policy, domain, won, total, condition=condition)


def test_trials_tell_failing_conditions_weak_policies_and_what_simulation_makes_easy():
    trials = Trials.concatenate_trials(
        [
            tries("p", "real", 18, 20, "lab"),
            tries("p", "real", 19, 20, "hall"),
            tries("p", "real", 4, 20, "kitchen"),
            tries("p", "sim", 57, 60, "lab"),
            tries("q", "sim", 6, 60, "lab"),
        ]
    )
    assert fired(check_conditions(trials)) == ["kitchen"]
    assert fired(check_weak_policies(trials, 0.5)) == ["q"]
    assert fired(check_simulation_easier(trials)) == ["p"]
    close = Trials.concatenate_trials([tries("p", "real", 7, 10, "a"), tries("p", "real", 5, 10, "b")])
    b = next(check for check in check_conditions(close) if check.subject == "b")
    assert not adjust_checks([b]).fired_checks
    assert re.fullmatch(
        r"rates like these need \d+ trials of each for a significant difference \(80% power\)", b.needed
    )
    with pytest.raises(
        InputError, match="20 real trials in 1 named conditions: a comparison of environments needs two"
    ):
        check_conditions(tries("p", "real", 3, 20, "lab"))


def test_checks_together_fire_by_chance_as_rarely_as_they_claim():
    rng, alarms, repetitions = np.random.default_rng(5), 0, 120
    for _ in range(repetitions):
        support = TrainingSupport(names=("x", "y"), values=rng.normal(size=(200, 2)))
        real = rng.normal(size=(10, 2))
        checks = [
            *check_axis_coverage(support, ["x", "y"], real),
            check_combination_coverage(support, ["x", "y"], real),
        ]
        alarms += bool(adjust_checks(checks).fired_checks)
    assert alarms <= repetitions * ALPHA + 3 * math.sqrt(repetitions * ALPHA * (1 - ALPHA))


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    return swing_twin(tmp_path_factory.mktemp("swing"))


def test_wear_after_the_calibration_and_a_clean_log_end_to_end(twin, tmp_path, monkeypatch):
    def worn(index):
        return {**TRUTH, "joint/swing/frictionloss": 0.09 if index < 8 else 0.4}

    monkeypatch.setattr(gap_classes, "load_twin", lambda _: twin)
    log = clips(twin, BACKEND, worn, count=16, nframe=60)
    monkeypatch.setattr(
        gap_classes, "open_log", lambda _: LogEpisodes(name="t", label="t", hash="", episodes=tuple(log))
    )
    request = GapClassesRequest(
        data="log", twin="swing.yaml", params=calibrated(tmp_path), training="log", calibrated="8"
    )
    found = diagnose(request, LogEpisodes(name="log", label="log", hash="", episodes=tuple(log)))
    assert found.classes == ("drift",)
    assert found.fired_checks[0].metric.low > 1.0
    assert "`twinloop identify --twin swing.yaml --data log --drift 3 --output drift`" in found.sentences()[0]
    assert set(found.skipped) == {"gap_too_wide", "other_environment", "weak_in_simulation", "beyond_what_is_modelled"}
    plain = json.loads(json.dumps(found.to_json()))
    assert plain["classes"] == ["drift"]
    page = ReportPage("Classes", "test")
    classes_section(page, found)
    assert MEANINGS["drift"] in page.html()


def calibrated(folder):
    """What an identify run of the planted values stores, as far as it is read."""
    mean = np.array(list(TRUTH.values()))
    known = ParamDistribution(
        names=tuple(TRUTH),
        transforms=("identity", "identity", "log", "identity"),
        mean=np.where(np.array(list(TRUTH)) == "actuator/swing/kp", np.log(mean), mean),
        covariance=np.diag(np.full(4, 0.01**2)),
        low=mean - 1,
        high=mean + 1,
        determined=(True,) * 4,
        clusters=10,
    )
    (folder / "result.json").write_text(json.dumps({"distribution": known.to_json()}))
    return folder


def test_errors_of_a_right_twin_are_small_and_its_run_stands_for_ranges(twin, tmp_path):
    log = clips(twin, BACKEND, TRUTH, count=3, nframe=60)
    run = calibrated(tmp_path)
    found = compute_twin_errors(twin, log, run)
    assert found.channels == ("swing",)
    assert found.values.max() < 0.02 < compute_twin_errors(twin, log, None).values.max()
    support = load_training_support(str(run))
    kp = support.bounds[support.names.index("actuator/swing/kp")]
    assert kp == pytest.approx(12.0 * np.exp([-0.0196, 0.0196]))
    with pytest.raises(InputError, match="has joint/swing/damping, .*, reality has lowest swing, highest swing"):
        check_axis_coverage(support, *visited_axes(log))


def test_a_calibration_is_placed_by_number_or_by_date(twin):
    log = [replace(e, time=e.time + 1.7e9 + 3600 * e.index) for e in clips(twin, BACKEND, TRUTH, count=4, nframe=20)]
    assert _first_episode_after(log, "3") == 3
    moment = datetime.fromtimestamp(1.7e9 + 3600 * 1.5, tz=UTC).isoformat()
    assert _first_episode_after(log, moment) == 2
    with pytest.raises(InputError, match="--calibrated yesterday: give the number of the first episode"):
        _first_episode_after(log, "yesterday")


def test_the_command_line_names_what_is_missing_and_reads_trials(tmp_path, capsys):
    assert main(["gap", "classes"]) == 2
    assert "Nothing to diagnose. Give one of: --data and --training" in " ".join(capsys.readouterr().err.split())
    assert main(["gap", "classes", "--other", "log"]) == 2
    assert "--other compares the errors of a twin on a log. Give --twin and --data" in capsys.readouterr().err
    table = tmp_path / "trials.csv"
    rows = ["policy,domain,success,condition"]
    rows += [f"p,real,{int(i < won)},{name}" for name, won in (("lab", 19), ("kitchen", 3)) for i in range(20)]
    rows += [f"p,sim,{int(i < 38)},lab" for i in range(40)]
    table.write_text("\n".join(rows))
    out = tmp_path / "out"
    words = ["gap", "classes", "--trials", str(table), "--output", str(out), "--fail-if", "class/other_environment > 0"]
    assert main(words) == 1
    result = json.loads((out / "result.json").read_text())
    assert result["kind"] == "classes"
    assert result["classes"] == ["other_environment", "beyond_what_is_modelled"]
    assert {row["name"]: row["estimate"] for row in result["headline"]}["classes"] == 2
    for check in result["checks"]:
        for command in check["remedy"]:
            parses(command)


def parses(command):
    """A remedy is a command of this program, flags and all."""
    words = shlex.split(command)
    assert words[0] == "twinloop"
    TWINLOOP.parse(words[1:])
