"""Draws follow their distributions, depend on their seed path alone, and refuse unphysical values."""

from __future__ import annotations

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import BoundsError, InputError, UnitsError, UnknownNameError
from twinloop.core.seeds import uniforms
from twinloop.randomize import Draw, JointDraw, Plan, default_draws, identified_draws, parse_randomization
from twinloop.randomize.distributions import (
    Choice,
    Empirical,
    LogUniform,
    MultivariateNormal,
    TruncatedNormal,
    Uniform,
)
from twinloop.twin import load_twin

SO101 = load_twin("so101_tabletop")
PANDA = load_twin("panda_tabletop")

ISSUE = """
visual:
  texture_pool: 200
  lighting_intensity: [0.3, 1.8]
  camera_jitter_deg: [-5, 5]
physics:
  object_mass_kg: [0.05, 0.4]
  friction_coefficient: [0.2, 1.1]
  object_position_noise_cm: [-2, 2]
"""


@pytest.mark.parametrize(
    ("distribution", "peer"),
    [
        (Uniform(low=-1, high=3), stats.uniform(-1, 4)),
        (LogUniform(low=0.1, high=10), stats.loguniform(0.1, 10)),
        (TruncatedNormal(mean=1, std=2), stats.norm(1, 2)),
        (TruncatedNormal(mean=1, std=2, low=0, high=2), stats.truncnorm(-0.5, 0.5, 1, 2)),
    ],
)
def test_distributions_agree_with_scipy(distribution, peer):
    u = np.linspace(0.001, 0.999, 101)
    np.testing.assert_allclose(distribution.ppf(u), peer.ppf(u), rtol=1e-9, atol=1e-9)


@given(u=st.floats(1e-12, 1 - 1e-12), low=st.floats(-5, 5), width=st.floats(0, 5))
def test_every_value_lies_in_the_support(u, low, width):
    for distribution in (
        Uniform(low=low, high=low + width),
        TruncatedNormal(mean=0, std=1, low=low, high=low + width + 1e-3),
        Choice(values=(low, low + width)),
        Empirical(samples=(low, low + width, low + width / 2)),
    ):
        value = distribution.ppf(np.array([u]))[0]
        inf, sup = distribution.support()
        assert inf - 1e-12 <= value <= sup + 1e-12


def test_a_choice_follows_its_weights():
    values = Choice(values=(1.0, 2.0, 3.0), weights=(1, 0, 3)).ppf(uniforms(0, "c", range(20_000))[:, 0])
    counts = [(values == v).mean() for v in (1, 2, 3)]
    np.testing.assert_allclose(counts, [0.25, 0, 0.75], atol=0.02)


def test_a_correlated_draw_has_the_covariance_it_was_given():
    covariance = np.array([[1.0, 0.8, 0], [0.8, 1.0, 0], [0, 0, 0]])
    normal = MultivariateNormal(mean=(1, 2, 3), covariance=tuple(map(tuple, covariance)))
    sample = normal.sample(uniforms(0, "m", range(50_000), size=3))
    np.testing.assert_allclose(sample.mean(axis=0), [1, 2, 3], atol=0.02)
    np.testing.assert_allclose(np.cov(sample.T), covariance, atol=0.03)
    np.testing.assert_array_equal(normal.sample(uniforms(0, "m", [7], size=3))[0], sample[7])


@settings(max_examples=20, deadline=None)
@given(episodes=st.lists(st.integers(0, 10**6), min_size=1, max_size=8, unique=True), seed=st.integers(0, 9))
def test_an_episode_draws_the_same_alone_and_in_company(episodes, seed):
    plan = Plan(twin=SO101, run_seed=seed, draws=tuple(default_draws(SO101)))
    table = plan.draw(episodes)
    for row, episode in enumerate(episodes):
        np.testing.assert_array_equal(table.values[row], plan.draw([episode]).values[0])


def test_a_draw_is_its_distribution_at_the_numbers_of_its_stream():
    """The contract with datasets that exist: which stream, which counter. To change it is to break their plans."""
    names = ("joint/elbow_flex/damping", "joint/gripper/damping")
    draw = Draw(names=names, distribution=Uniform(low=0.5, high=1.0))
    table = Plan(twin=SO101, run_seed=5, draws=(draw,)).draw([3, 8], attempt=[0, 2])
    u = uniforms(5, "draw/" + "+".join(names), [3, 8], size=2, attempt=[0, 2])
    np.testing.assert_array_equal(np.stack([table[name] for name in names], axis=1), 0.5 + 0.5 * u)
    normal = MultivariateNormal(mean=(0.0, 0.05), covariance=((1.0, 0.0), (0.0, 1.0)))
    joint = JointDraw(names=names, distribution=normal, transforms=("identity", "identity"))
    row = Plan(twin=SO101, run_seed=5, draws=(joint,)).draw([1]).row(0)
    for trial in range(200):
        candidate = normal.sample(uniforms(5, "draw/" + "+".join(names), [1], size=2, step=trial))[0]
        if ((candidate >= 0) & (candidate <= 10)).all():
            break
    assert [row[name] for name in names] == candidate.tolist()
    assert trial > 0


def test_scopes_draw_once_per_run_episode_or_step():
    def draw(scope):
        draws = (Draw(names=("actuator/elbow_flex/delay",), distribution=Uniform(low=0, high=0.1), scope=scope),)
        return Plan(twin=SO101, run_seed=0, draws=draws).draw(range(4), nstep=5)

    assert np.unique(draw("run")["actuator/elbow_flex/delay"]).size == 1
    assert np.unique(draw("episode")["actuator/elbow_flex/delay"]).size == 4
    steps = draw("step").steps["actuator/elbow_flex/delay"]
    assert steps.shape == (4, 5)
    assert np.unique(steps).size == 20


def test_operations_are_relative_to_the_nominal():
    nominal = SO101.params["joint/elbow_flex/damping"].nominal
    for op, (low, high) in {"scale": (0.9, 1.1), "add": (-0.1, 0.1), "absolute": (0.5, 0.7)}.items():
        draws = (Draw(names=("joint/elbow_flex/damping",), distribution=Uniform(low=low, high=high), op=op),)
        values = Plan(twin=SO101, run_seed=0, draws=draws).draw(range(500))["joint/elbow_flex/damping"]
        expected = {
            "scale": (0.9 * nominal, 1.1 * nominal),
            "add": (nominal - 0.1, nominal + 0.1),
            "absolute": (0.5, 0.7),
        }
        np.testing.assert_allclose([values.min(), values.max()], expected[op], rtol=0.02)


def test_a_tied_draw_gives_one_value_to_all_and_an_independent_one_its_own():
    section = {
        "params": {"actuator/*/kp": {"scale": [0.8, 1.2], "tied": True}, "joint/*/damping": {"scale": [0.8, 1.2]}}
    }
    draws, _ = parse_randomization(section, SO101, where="x.yaml")
    row = Plan(twin=SO101, run_seed=0, draws=tuple(draws)).draw([0]).row(0)

    def factors(family, quantity):
        names = [f"{family}/{joint}/{quantity}" for joint in SO101.robot.joints]
        return np.array([row[name] / SO101.params[name].nominal for name in names])

    assert np.ptp(factors("actuator", "kp")) < 1e-12
    assert np.ptp(factors("joint", "damping")) > 0.01


def test_the_published_configuration_runs_as_it_stands():
    draws, pool = parse_randomization(yaml.safe_load(ISSUE), PANDA, where="generate.yaml")
    table = Plan(twin=PANDA, run_seed=0, draws=tuple(draws), texture_pool=pool).draw(range(2000))
    assert pool == 200
    assert set(table["texture/table"]) <= set(range(1, 201))
    spans = {
        "light/key/intensity": (0.3, 1.8),
        "camera/front/rotation/x": (-np.radians(5), np.radians(5)),
        "object/cube/mass": (0.05, 0.4),
        "object/cube/friction/slide": (0.2, 1.1),
        "object/cube/position/x": tuple(PANDA.params["object/cube/position/x"].nominal + np.array([-0.02, 0.02])),
    }
    for name, (low, high) in spans.items():
        values = table[name]
        assert low <= values.min()
        assert values.max() <= high
        assert np.ptp(values) > 0.99 * (high - low)
    assert np.ptp(table["object/target/position/x"]) == 0


@pytest.mark.parametrize(
    ("section", "error", "message"),
    [
        (
            {"physics": {"object_mass": [1, 2]}},
            UnitsError,
            "Which unit is meant. Write object_mass_kg or object_mass_g",
        ),
        ({"physics": {"object_mass_cm": [1, 2]}}, UnitsError, "object_mass_cm is in m, but object/cube/mass is in kg"),
        ({"physics": {"object_mas_kg": [1, 2]}}, UnknownNameError, "Nearest existing: object_mass"),
        ({"physics": {"object_mass_kg": [-1, 2]}}, BoundsError, r"range \[-1, 2\] kg leaves the physical bounds"),
        ({"physics": {"object_mass_kg": [2, 1]}}, InputError, "lower limit is above its upper limit"),
        ({"physics": {"object_mass_kg": 3}}, InputError, r"a range is written \[low, high\]"),
        ({"fisics": {}}, UnknownNameError, "Nearest existing: physics"),
        ({"params": {"joint/*/dampin": [0, 1]}}, UnknownNameError, "Nearest existing: joint/"),
        ({"params": {"joint/*/damping": {"distribution": "gauss"}}}, UnknownNameError, "Unknown distribution 'gauss'"),
        ({"params": {"joint/*/damping": {"mean": 1}}}, InputError, "uniform takes low, high, given mean"),
        (
            {"physics": {"object_mass_kg": [2, 1]}},
            InputError,
            "^x.yaml: .*object_mass_kg: The range",
        ),
        (
            {"physics": {"object_mass_kg": [float("nan"), 0.4]}},
            InputError,
            "object_mass_kg: .* contains NaN, which is not",
        ),
        (
            {"params": {"joint/*/damping": {"distribution": "normal", "mean": 1, "std": -1}}},
            InputError,
            r"^x.yaml: randomization.params.joint/\*/damping: .*positive std, got -1",
        ),
        (
            {"params": {"joint/*/damping": {"distribution": "normal", "mean": float("nan"), "std": 1}}},
            InputError,
            "a mean that is a number, got NaN",
        ),
        ({"params": {"joint/*/damping": {"low": "x", "high": 1}}}, InputError, "damping.low: a number is expected"),
        ({"visual": {"texture_pool": 0}}, InputError, "at least 1"),
    ],
)
def test_a_wrong_section_is_refused_with_the_next_step(section, error, message):
    with pytest.raises(error, match=message):
        Plan(twin=SO101, run_seed=0, draws=tuple(parse_randomization(section, SO101, where="x.yaml")[0]))


def test_one_parameter_has_one_draw():
    draw = Draw(names=("joint/elbow_flex/damping",), distribution=Uniform(low=0.5, high=1))
    with pytest.raises(InputError, match="joint/elbow_flex/damping is drawn twice"):
        Plan(twin=SO101, run_seed=0, draws=(draw, draw))


def identified(determined=(True, True, False)):
    return ParamDistribution(
        names=("actuator/elbow_flex/kp", "joint/elbow_flex/damping", "sensor/elbow_flex/offset"),
        transforms=("log", "identity", "identity"),
        mean=np.array([np.log(9.0), 0.6, 0.0]),
        covariance=np.array([[0.01, 0.005, 0], [0.005, 0.01, 0], [0, 0, 1.0]]),
        low=np.zeros(3),
        high=np.ones(3),
        determined=determined,
        clusters=30,
    )


def test_an_identified_distribution_is_drawn_with_its_correlation_and_the_rest_by_default():
    draws = identified_draws(SO101, identified())
    table = Plan(twin=SO101, run_seed=0, draws=tuple(draws)).draw(range(5000))
    kp, damping = np.log(table["actuator/elbow_flex/kp"]), table["joint/elbow_flex/damping"]
    assert kp.mean() == pytest.approx(np.log(9.0), abs=0.01)
    assert np.corrcoef(kp, damping)[0, 1] == pytest.approx(0.5, abs=0.05)
    low, high = SO101.params["sensor/elbow_flex/offset"].default_range
    offset = table["sensor/elbow_flex/offset"]
    assert low <= offset.min() < offset.max() <= high
    wide = Plan(twin=SO101, run_seed=0, draws=tuple(identified_draws(SO101, identified(), kappa=4))).draw(range(5000))
    assert np.log(wide["actuator/elbow_flex/kp"]).std() == pytest.approx(2 * kp.std(), rel=0.05)


def test_nothing_determined_is_nothing_to_draw_from():
    with pytest.raises(InputError, match="determined no parameter"):
        identified_draws(SO101, identified((False, False, False)))


@pytest.mark.parametrize("kappa", [-1.0, float("nan"), float("inf"), "2", True])
def test_a_kappa_that_is_no_factor_is_refused(kappa):
    with pytest.raises(InputError, match="kappa must be a number ≥ 0"):
        identified_draws(SO101, identified(), kappa=kappa)


def test_a_joint_draw_that_cannot_be_physical_ends_with_a_message():
    far = ParamDistribution(
        names=("joint/elbow_flex/damping",),
        transforms=("identity",),
        mean=np.array([-5.0]),
        covariance=np.array([[1e-6]]),
        low=np.array([0.0]),
        high=np.array([1.0]),
        determined=(True,),
        clusters=3,
    )
    with pytest.raises(BoundsError, match="were all outside their physical bounds"):
        Plan(twin=SO101, run_seed=0, draws=tuple(identified_draws(SO101, far))).draw([0])
