"""Planted errors are attributed to the planted cause, within their intervals; the text claims no more than that."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from support.gap_attribution import DAMPING, DELAY, KP, LIMIT, known, log_of, moved
from support.one_joint import joints_twin
from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import BoundsError, InputError
from twinloop.core.seeds import generator
from twinloop.gap.attribution.attribute import AttributionOptions, attribute
from twinloop.gap.attribution.groups import changed_params, parameter_groups
from twinloop.gap.attribution.result import OVERALL, ChannelExplanation, ErrorCause, join_groups
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.stats import Interval
from twinloop.workflows.run.results import replace_nonfinite

OPTIONS = AttributionOptions(resamples=400)


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    return joints_twin(tmp_path_factory.mktemp("twin"), joints=2, control_hz=50, substeps=4)


@pytest.fixture(scope="module")
def backend():
    return open_backend("threads", nthread=1)


def shared(backend, twin, episodes, params, **changes):
    values = params.estimate if isinstance(params, ParamDistribution) else params
    groups = parameter_groups(twin, changed_params(twin, values))
    return attribute(backend, twin, episodes, params, groups, options=replace(OPTIONS, **changes))


@pytest.mark.parametrize(("planted", "cause"), [({DELAY: 0.06}, "delay"), ({KP: 1.6}, "servo gain")])
def test_a_planted_error_is_attributed_to_its_group(twin, backend, planted, cause):
    truth = moved(twin, planted)
    episodes = log_of(twin, backend, truth, noise=1e-3)
    rng = generator(4, "test/estimate")  # an estimate whose errors match its standard deviations
    values = moved(twin, {DELAY: 0.0, KP: 1.0, DAMPING: 1.0}) | truth
    spread = {DELAY: 0.002, KP: 0.03 * values[KP], DAMPING: 0.03 * values[DAMPING]}
    estimate = {name: max(value + spread[name] * rng.standard_normal(), 1e-4) for name, value in values.items()}
    found = shared(backend, twin, episodes, known(estimate, [spread[name] for name in estimate], twin))
    row = found.names.index(cause)
    share = found.share.interval.at(row, 0)
    assert share.covers(1.0)
    assert share.estimate > 0.8
    explained = found.explanation("position/j0")
    assert [c.name for c in explained.significant_causes][:1] == [cause]
    others = [i for i in range(len(found.names)) if i != row]
    assert all(found.share.interval.at(i, 0).covers(0.0) for i in others)


def test_shares_and_what_is_left_add_up_to_all_of_the_error(twin, backend):
    values = moved(twin, {DELAY: 0.05, KP: 1.5, DAMPING: 0.7})
    episodes = log_of(twin, backend, values, noise=5e-3)
    off = {name: 1.03 * value for name, value in values.items()}
    for exact in (8, 0):
        found = shared(backend, twin, episodes, off, exact=exact, pairs=2, steps=1)
        total = found.share.interval.estimate.sum(axis=0) + found.remaining.interval.estimate[0]
        assert total[0] == pytest.approx(1.0)
        ratio = (found.identified / found.nominal) ** 2
        assert found.remaining.interval.estimate[0, 0] == pytest.approx(ratio[0])


def test_shares_equal_those_of_a_plain_loop_over_all_orders(twin, backend):
    values = moved(twin, {DELAY: 0.05, KP: 1.5, DAMPING: 0.7})
    episodes = log_of(twin, backend, moved(twin, {DELAY: 0.04, KP: 1.4}), count=4)
    found = shared(backend, twin, episodes, values, physics_hz=1e6)
    slow, nominal = {}, np.ones(2)
    logs = prepare_replay(twin, episodes)
    for order in itertools.permutations(found.groups):
        now, before = {}, None
        for group in (None, *order):
            now |= {} if group is None else {name: values[name] for name in group.params}
            readings = replay(open_backend("reference"), logs, twin.table(1, now))[0]
            error = np.nanmean((readings[:, 1:] - logs.measured[:, 1:]) ** 2, axis=(0, 1))
            if before is None:
                nominal = error
            else:
                slow[group.name] = slow.get(group.name, 0) + (before - error) / math.factorial(len(order))
            before = error
    by_hand = np.stack([slow[name][:1] / nominal[:1] for name in found.names])
    assert found.share.interval.estimate[:, :1] == pytest.approx(by_hand, rel=1e-9)


def test_sampled_orders_agree_with_all_coalitions_and_say_how_sure_they_are(twin, backend):
    values = moved(twin, {DELAY: 0.05, KP: 1.5, DAMPING: 0.7, "joint/j0/armature": 1.5})
    episodes = log_of(twin, backend, values, noise=2e-3)
    exact = shared(backend, twin, episodes, values)
    some = shared(backend, twin, episodes, values, exact=0, pairs=6, steps=1)
    assert exact.coalitions == "all 16 coalitions"
    assert "orders, each order and its reverse" in some.coalitions
    assert np.abs(some.share.interval.estimate - exact.share.interval.estimate)[:, 0].max() < 0.1
    assert some.share.interval.covers(exact.share.interval.estimate)[:, 0].all()


def test_equal_causes_share_equally_and_one_that_does_nothing_gets_nothing(twin, backend):
    values = moved(twin, {KP: 1.5, "actuator/j1/kp": 1.5, LIMIT: 3.0})
    episodes = log_of(twin, backend, values, same=True)
    groups = parameter_groups(twin, changed_params(twin, values), by="parameter")
    found = attribute(backend, twin, episodes, values, groups, options=OPTIONS)
    share = dict(zip(found.names, found.share.interval.estimate[:, -1], strict=True))
    assert share[KP] == pytest.approx(0.5)
    assert share["actuator/j1/kp"] == pytest.approx(0.5)
    assert share[LIMIT] == pytest.approx(0.0, abs=1e-12)
    explained = found.explanation()
    assert LIMIT in {cause.name for cause in explained.causes if not cause.significant}
    assert f"; {LIMIT} is not significant." in explained.sentence()
    assert found.explanation("position/j1").causes[0].name == "actuator/j1/kp"


def test_groups_that_make_up_for_each_other_are_told_of_together_and_one_that_harms_is_said_to(twin, backend):
    truth = moved(twin, {KP: 2.0, DAMPING: 2.0})
    words = shared(backend, twin, log_of(twin, backend, truth), truth).explanation("position/j0").sentence()
    assert words.startswith("100 % ± 0 of j0's squared error is servo gain with damping. 0 % ± 0 is explained by no")
    wrong = moved(twin, {DELAY: 0.06, KP: 1.3})
    words = shared(backend, twin, log_of(twin, backend, moved(twin, {DELAY: 0.06})), wrong)
    assert "servo gain (its identified value adds error here)" in words.explanation("position/j0").sentence()


def test_what_parameters_are_not_sure_of_widens_the_intervals(twin, backend):
    values = moved(twin, {DELAY: 0.05, KP: 1.5})
    episodes = log_of(twin, backend, values, noise=1e-3)
    sure = shared(backend, twin, episodes, known(values, 1e-9, twin))
    unsure = shared(backend, twin, episodes, known(values, [0.01, 0.1 * values[KP]], twin))
    widths = [(a.share.interval.high - a.share.interval.low)[:, 0] for a in (sure, unsure)]
    assert (widths[1] > 2 * widths[0]).all()
    assert sure.share.interval.estimate == pytest.approx(unsure.share.interval.estimate)
    partly = replace(known(values, [0.01, 0.1 * values[KP]], twin), determined=(False, True))
    assert shared(backend, twin, episodes, partly).undetermined == (DELAY,)


def test_groups_that_cannot_be_told_apart_are_told_of_together():
    rng = generator(0, "test/joined")
    common, own = 5 * rng.standard_normal(500), rng.standard_normal((500, 3))
    replicates = np.stack([common + own[:, 0], own[:, 1], -common + own[:, 2]], axis=-1)
    assert join_groups(replicates) == [[0, 2], [1]]
    assert join_groups(own) == [[0], [1], [2]]
    assert join_groups(0.005 * replicates) == [[0], [1], [2]]  # estimates accurate enough to be separated


def interval(estimate, half):
    low, high = np.asarray(estimate - half), np.asarray(estimate + half)
    return Interval(estimate=np.asarray(estimate), low=low, high=high, level=0.95, method="test")


def test_the_sentence_says_shares_harm_and_what_is_not_told():
    rows = [
        ("servo gain", 0.62, 0.07, 1),
        ("delay", 0.21, 0.04, 1),
        ("encoder", -0.05, 0.02, 1),
        ("gear", 0.004, 0.1, 0),
    ]
    causes = tuple(
        ErrorCause(groups=(name,), share=interval(share, half), p_value=0.0, significant=bool(told), needed=share > 0)
        for name, share, half, told in rows
    )
    about = {"channel": "position/elbow", "unit": "deg", "nominal": 2.0, "identified": 0.7}
    told = ChannelExplanation(**about, causes=causes, remaining=interval(0.216, 0.03), floor=0.004)
    assert told.sentence() == (
        "62 % ± 7 of elbow's squared error is servo gain, 21 % ± 4 delay, −5 % ± 2 encoder (its identified value adds "
        "error here); gear is not significant. 22 % ± 3 is explained by no parameter of the twin (0.4 % is "
        "noise)."
    )
    assert told.sentence("sits at reversals").endswith("of the twin (0.4 % is noise) and sits at reversals.")
    compensating = replace(causes[2], needed=True)
    alone = replace(told, causes=(compensating, *causes[3:]), floor=np.nan)
    assert alone.sentence().startswith(
        "−5 % ± 2 of elbow's squared error, encoder (it compensates others: the error grows without it)"
    )
    assert replace(told, causes=causes[3:]).sentence().startswith("No group of parameters explains elbow")


def test_a_perfect_twin_has_nothing_to_attribute(twin, backend):
    found = shared(backend, twin, log_of(twin, backend, {}), moved(twin, {KP: 1.5}))
    assert np.isnan(found.share.interval.estimate).all()
    assert found.explanation().sentence() == f"There is no error of {OVERALL} to attribute."
    json.dumps(replace_nonfinite(found.to_json()), allow_nan=False)


def test_few_episodes_have_shares_without_claims(twin, backend):
    values = moved(twin, {KP: 1.5, DELAY: 0.05})
    found = shared(backend, twin, log_of(twin, backend, values, count=3), known(values, 1e-6, twin))
    words = found.explanation("position/j0").sentence()
    assert "No share is significant (3 episodes, no interval: at least 4 are needed)" in words
    assert not found.explanation("position/j0").significant_causes


def test_logs_too_long_are_replayed_in_part_and_evenly(twin, backend):
    values = moved(twin, {KP: 1.5})
    episodes = log_of(twin, backend, values, count=12)
    some = shared(backend, twin, episodes, values, steps=2 * 6 * 1.2 * 200)
    assert len(some.episodes) == 6
    assert some.replayed_part.startswith("6 of 12 episodes, so that 2 worlds take ")
    assert shared(backend, twin, episodes, values).replayed_part == ""


def test_mistakes_are_named(twin, backend):
    episodes, values = log_of(twin, backend, {}, count=4), moved(twin, {KP: 1.5, DELAY: 0.05})
    groups = parameter_groups(twin, changed_params(twin, values))
    with pytest.raises(InputError, match="The groups leave out actuator/j0/delay"):
        attribute(backend, twin, episodes, values, groups[:1])
    with pytest.raises(InputError, match="contain actuator/j0/kp more than once"):
        attribute(backend, twin, episodes, values, (*groups, groups[0]))
    with pytest.raises(BoundsError, match="outside its physical bounds"):
        attribute(backend, twin, episodes, {KP: -1.0}, groups)
