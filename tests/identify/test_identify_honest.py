"""Priors scale with the robot and obey the user; intervals include what no data determine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from support.one_joint import actuator_twin
from twinloop.core.errors import InputError
from twinloop.core.records import Episode
from twinloop.core.seeds import generator
from twinloop.identify import FitConfig, identify
from twinloop.identify.assembly import select_free_parameters
from twinloop.identify.problem import (
    FitProblem,
    Linearization,
    ParameterBlock,
    derivative_sizes,
    ignore_rough_frames,
    likelihood_weight,
    small_steps,
)
from twinloop.identify.uncertainty import compute_uncertainty
from twinloop.simulate import open_backend
from twinloop.simulate.replay import change_physics_rate, change_substeps, replay
from twinloop.simulate.replay_logs import ReplayOptions, harden_friction, prepare_replay
from twinloop.twin import load_twin
from twinloop.twin.quantities import Prior
from twinloop.twin.spec import ParamSpec
from twinloop.twin.variant import declare_params

BACKEND = open_backend("threads", nthread=2)
ARM = """<mujoco><compiler autolimits="true"/><option timestep="0.002" integrator="implicitfast"/><worldbody>
<body name="arm"><inertial pos="0.2 0 0" mass="0.5" diaginertia="0.005 0.005 0.005"/>
<joint name="j0" axis="0 1 0" armature="0.01" damping="{damping}" frictionloss="{friction}"/></body></worldbody>
<actuator>
<general name="j0" joint="j0" biastype="affine" gainprm="20" biasprm="0 -20 -1" forcerange="-{limit} {limit}"/>
</actuator></mujoco>"""
QUANTITIES = (
    *("joint/*/damping", "joint/*/frictionloss", "joint/*/armature", "sensor/*/offset", "link/*/mass"),
    *("actuator/*/kp", "actuator/*/kd", "actuator/*/torque_limit", "actuator/*/delay"),
)
SERVO = '<position name="j0" joint="j0" kp="20" kv="1" forcerange="-4 4"/>'
RATE = {"control_hz": 50, "substeps": 10, "gravity": 9.81}


def arm_twin(folder, *, limit=4.0, damping=0.0, friction=0.0):
    """Load a twin of one arm against gravity, with the default range of every parameter."""
    (folder / "arm.xml").write_text(ARM.format(limit=limit, damping=damping, friction=friction))
    spec = {
        "schema": 1, "name": "arm", "model": "arm.xml", "control_hz": 50, "substeps": 10,
        "robot": {"type": "arm", "joints": ["j0"], "units": ["rad"]}, "params": [{"name": name} for name in QUANTITIES],
    }  # fmt: skip
    (folder / "arm.yaml").write_text(yaml.safe_dump(spec))
    return load_twin(folder / "arm.yaml")


def free_parameter(twin, name, **config):
    (found,) = [p for p in select_free_parameters(twin, FitConfig(**config)).free if p.name == name]
    return found


def test_a_prior_of_the_user_wins_over_the_declared_one_of_the_same_pattern(tmp_path):
    twin = actuator_twin(tmp_path, SERVO, **RATE)
    mine = free_parameter(twin, "joint/j0/damping", priors={"joint/*/damping": Prior(spread=0.013)})
    declared = free_parameter(twin, "joint/j0/damping")
    assert (mine.sd, mine.prior_source) == (0.013, "fit file")
    assert declared.sd != mine.sd
    assert declared.prior_source == "quantity"


def test_a_prior_that_is_a_fraction_of_nothing_is_refused(tmp_path):
    twin = actuator_twin(tmp_path, SERVO, **RATE)
    with pytest.raises(InputError, match=r"prior of sensor/j0/offset has no width.*spread in rad"):
        select_free_parameters(twin, FitConfig(priors={"sensor/*/offset": Prior(spread=0.1, relative=True)}))


@pytest.mark.parametrize("factor", [1.0, 30.0])
def test_where_the_nominal_value_is_0_priors_and_ranges_scale_with_the_torque_limit(tmp_path, factor):
    limit = 4.0 * factor
    twin = arm_twin(tmp_path, limit=limit)
    for quantity, spread, size in (("frictionloss", 3.0, 0.02 * limit), ("damping", 1.0, limit / 10)):
        param = twin.params[f"joint/j0/{quantity}"]
        assert param.nominal == 0.0
        assert free_parameter(twin, param.name).sd == pytest.approx(spread * size)
        assert param.default_range == pytest.approx((0.0, 2 * size))
        assert param.op == "absolute"


def test_replays_make_dry_friction_hard_unless_the_model_sets_its_softness():
    ours = load_twin("so101_tabletop")  # its XML sets the softness of the joints' friction
    joints = slice(6, 12)
    kept = change_physics_rate(ours, 240.0).model
    assert np.array_equal(kept.dof_solref[joints], ours.model.dof_solref[joints])
    assert np.array_equal(kept.dof_solimp[joints], ours.model.dof_solimp[joints])
    model = load_twin("xl330_pendulum").model
    model.dof_solref[:], model.dof_solimp[:, :2] = (0.02, 1.0), (0.9, 0.95)
    for step in (0.004, 0.001):  # a second call for another step follows that step
        model.opt.timestep = step
        harden_friction(model)
        assert model.dof_solref[0] == pytest.approx((2 * step, 1.0))


@given(st.floats(0.0, 0.95), st.integers(0, 2**32 - 1))
def test_the_weight_of_the_prior_counts_independent_frames(rho, seed):
    """Residuals with the correlation ρ count as (1 − ρ)/(1 + ρ) of their number."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((4, 3000, 1))
    for t in range(1, 3000):
        noise[:, t] = rho * noise[:, t - 1] + np.sqrt(1 - rho**2) * noise[:, t]
    expected = 1.31 / (4 * 3000) * (1 + rho) / (1 - rho)
    assert likelihood_weight(noise / 0.6745) == pytest.approx(expected, rel=0.25)


def scale_problem(noise, prior_sd):
    """Readings a·b·x: the data determine the product only; in logarithms the sum of two parameters."""
    x = np.linspace(0.5, 1.5, 200)[None, :, None]

    def readings(points, local):
        return np.exp(points.sum(axis=1))[:, None, None, None] * x + 0.0 * local.sum()

    truth = np.array([0.3, -0.1])
    measured = readings(truth[None], np.zeros((1, 1, 0)))[0] + noise * generator(3, "scale").standard_normal(x.shape)
    problem = FitProblem(
        readings=readings,
        measured=measured,
        blocks=(ParameterBlock(columns=np.arange(2), channels=np.arange(1)),),
        centre=np.zeros(2),
        sd=np.array(prior_sd),
        low=np.full(2, -np.inf),
        high=np.full(2, np.inf),
        width=np.array([0.6745 * noise]),
    )
    return problem, truth


def linearization(problem, point, step):
    base = problem.residual(point[None], problem.zero_corrections[None])[0]
    moved = [problem.residual((point + h)[None], problem.zero_corrections[None])[0] for h in np.diag(step)]
    slopes = np.stack([(one - base) / h for one, h in zip(moved, step, strict=True)], axis=-1)
    return Linearization(
        point=point, local=problem.zero_corrections, residual=base, jacobians=(slopes,),
        local_jacobian=np.zeros((*base.shape, 0)), losses=np.zeros(1),
    )  # fmt: skip


def test_small_steps_leave_a_scale_open_that_usual_steps_seem_to_determine():
    problem, truth = scale_problem(1e-3, [0.7, 0.1])
    problem = replace(problem, prior_weight=1.31 / 200)
    usual = linearization(problem, truth, 0.05 * problem.sd)
    fine = linearization(problem, truth, small_steps(problem, derivative_sizes(usual, problem), 0.002))
    direction = np.array([1.0, -1.0])  # the data know nothing along it
    sizes = [np.abs(each.jacobians[0] @ direction).max() for each in (usual, fine)]
    assert sizes[0] > 5.0  # Huber widths per unit
    assert sizes[1] < 0.01


def linear_problem():
    """Readings that are linear in two parameters, and the values that fit them best."""
    rng = generator(1, "nuisance")
    slopes = rng.standard_normal((30, 40, 1, 2))
    problem = FitProblem(
        readings=lambda points, local: np.einsum("efcp,wp->wefc", slopes, points) + 0.0 * local.sum(),
        measured=rng.standard_normal((30, 40, 1)),
        blocks=(ParameterBlock(columns=np.arange(2), channels=np.arange(1)),),
        centre=np.zeros(2), sd=np.full(2, 10.0), low=np.full(2, -np.inf), high=np.full(2, np.inf),
        width=np.ones(1), prior_weight=1.31 / 1200,
    )  # fmt: skip
    return problem, np.linalg.lstsq(slopes.reshape(-1, 2), problem.measured.ravel(), rcond=None)[0]


def test_a_nuisance_widens_the_interval_of_what_it_can_explain_and_no_other():
    problem, point = linear_problem()
    here = linearization(problem, point, np.full(2, 1e-3))
    slopes = here.jacobians[0]
    alone = compute_uncertainty(problem, here, ["a", "b"])
    alike = compute_uncertainty(problem, here, ["a", "b"], nuisances={"like a": slopes[..., 0]})
    wide = (alike.high - alike.low) / (alone.high - alone.low)
    assert wide[0] > 10  # the nuisance has the deviation 1, the estimate of a had 1/√1200
    assert alike.high[0] - alike.low[0] == pytest.approx(2 * 1.96, rel=0.15)
    assert wide[1] == pytest.approx(1.0, abs=0.1)
    held = compute_uncertainty(problem, here, ["a", "b"], considered=slopes[None, ..., 1])
    assert (held.high - held.low)[1] == pytest.approx(2 * 1.96, rel=0.15)


def test_an_interval_reaches_to_the_optimum_with_each_effect_in_a_positive_amount():
    problem, point = linear_problem()
    here = linearization(problem, point, np.full(2, 1e-3))
    like_a, unlike = here.jacobians[0][..., 0], generator(2, "effect").standard_normal((30, 40, 1))
    lacking = replace(problem, measured=problem.measured + 0.3 * (like_a + unlike))  # the true robot has an effect
    estimate = np.linalg.lstsq(here.jacobians[0].reshape(-1, 2), lacking.measured.ravel(), rcond=None)[0]
    here = linearization(lacking, estimate, np.full(2, 1e-3))

    def limits(amount):
        effects = {"wrong": {"other": np.roll(unlike, 7)}, "right": {"effect": amount * (like_a + unlike)}}
        return compute_uncertainty(lacking, here, ["a", "b"], effects=effects)

    right, negative = limits(1.0), limits(-1.0)
    assert right.low[0] < point[0] < estimate[0] - 0.2
    assert negative.low[0] > point[0]  # the amount would be negative
    assert right.high[0] - estimate[0] == pytest.approx(negative.high[0] - estimate[0], rel=1e-6)


def test_an_interval_reaches_from_an_unfinished_estimate_to_the_optimum():
    problem, optimum = linear_problem()
    away = optimum + np.array([0.2, 0.0])  # seven standard errors from it
    limits = compute_uncertainty(problem, linearization(problem, away, np.full(2, 1e-3)), ["a", "b"])
    assert limits.low[0] < optimum[0] < away[0] < limits.high[0]
    assert limits.high[0] - away[0] < (away[0] - limits.low[0]) / 2


def test_frames_whose_derivative_depends_on_the_step_tell_nothing():
    problem, truth = scale_problem(1e-3, [0.7, 0.1])
    here = linearization(problem, truth, np.full(2, 1e-6))
    slopes = here.jacobians[0].copy()
    slopes[0, 17:20] *= 400.0
    kept = ignore_rough_frames(replace(here, jacobians=(slopes,)), here, problem).jacobians[0]
    assert np.flatnonzero(np.all(kept == 0, axis=(0, 2, 3))).tolist() == [17, 18, 19]
    assert np.array_equal(kept[0, :17], slopes[0, :17])


def recorded(twin, truth, count, noise, stream):
    """Return episodes of sines of a robot with other values, whose physics step is 16 times shorter."""
    time = np.arange(200) / twin.control_hz
    blank = [
        Episode(
            index=i, time=time, action=np.sin((2 + 0.7 * i) * time + i)[:, None], state=np.zeros((200, 1)),
            units=twin.units, source="sim",
        )
        for i in range(count)
    ]  # fmt: skip
    logs = prepare_replay(twin, blank)
    robot = replace(logs, twin=change_substeps(logs.twin, 16 * logs.twin.substeps))
    readings = replay(BACKEND, robot, twin.table(1, truth))[0]
    readings += noise * generator(0, stream).standard_normal(readings.shape)
    return [replace(episode, state=row) for episode, row in zip(blank, readings, strict=True)]


def test_the_common_scale_is_as_uncertain_as_the_masses_and_covers_the_truth(tmp_path):
    """Gain, inertia, friction and masses can all be larger by one factor: no log of positions tells it."""
    twin = arm_twin(tmp_path, damping=0.1, friction=0.1)
    truth = {"actuator/j0/kp": 26.0, "joint/j0/frictionloss": 0.15, "actuator/j0/delay": 0.03}
    truth["link/arm/mass"] = 1.1 * twin.params["link/arm/mass"].nominal
    result = identify(twin, recorded(twin, truth, 5, 1e-4, "test/honest"), backend=BACKEND)
    rows = {row.name: row for row in result.estimates}
    kp = rows["actuator/j0/kp"]
    assert kp.low is not None
    assert kp.high is not None
    assert kp.low < 26.0 < kp.high
    assert 0.2 < np.log(kp.high / kp.low) < 0.5  # masses are known to 10 %: ±1.96 · 0.1
    assert not rows["link/arm/mass"].determined
    for name, value in truth.items():
        row = rows[name]
        if row.low is not None and row.high is not None:
            assert row.low <= value <= row.high


@pytest.mark.slow
def test_an_interval_holds_the_friction_of_a_robot_with_stribeck_friction_that_its_twin_lacks(tmp_path):
    twin = arm_twin(tmp_path, damping=0.1, friction=0.2)
    rows = [ParamSpec(name=f"joint/j0/{name}", source="test") for name in ("stiction", "stribeck_velocity")]
    truth = {"joint/j0/stiction": 2.5, "joint/j0/stribeck_velocity": 0.3, "joint/j0/frictionloss": 0.2}
    result = identify(twin, recorded(declare_params(twin, rows), truth, 12, 1e-3, "test/stribeck"), backend=BACKEND)
    friction = next(row for row in result.estimates if row.name == "joint/j0/frictionloss")
    assert not friction.conditional  # residuals of this noise show no structure
    assert friction.low < 0.2 < friction.high
    assert friction.value > 0.202  # without the effect the interval begins at 0.2015


def payload_log(folder, noise):
    """Return a twin, six episodes with 0 and 0.4 kg in turn, and the options with which their payload is known."""
    (folder / "arm.xml").write_text(
        ARM.format(limit=4.0, damping=0.1, friction=0.1).replace(
            '<joint name="j0"', '<site name="tool" pos="0.3 0 0"/><joint name="j0"'
        )
    )
    names = (*QUANTITIES, "link/*/payload")
    spec = {
        "schema": 1, "name": "arm", "model": "arm.xml", "control_hz": 50, "substeps": 10,
        "robot": {"type": "arm", "joints": ["j0"], "units": ["rad"]},
        "params": [{"name": name, "source": "test"} for name in names],
    }  # fmt: skip
    (folder / "arm.yaml").write_text(yaml.safe_dump(spec))
    twin = load_twin(folder / "arm.yaml")
    time = np.arange(200) / twin.control_hz
    truth = {"actuator/j0/kp": 26.0, "link/arm/mass": 1.1 * twin.params["link/arm/mass"].nominal}
    blank = [
        Episode(
            index=i, time=time, action=np.sin((2 + 0.7 * i) * time + i)[:, None], state=np.zeros((200, 1)),
            units=twin.units, source="sim", conditions={"payload": 0.4 * (i % 2)},
        )
        for i in range(6)
    ]  # fmt: skip
    options = ReplayOptions(conditions={"link/arm/payload": "payload"})
    logs = prepare_replay(twin, blank, options)
    robot = replace(logs, twin=change_substeps(logs.twin, 16 * logs.twin.substeps))
    readings = replay(BACKEND, robot, twin.table(1, truth))[0]
    readings += noise * generator(0, "test/payload").standard_normal(readings.shape)
    log = [replace(e, state=r) for e, r in zip(blank, readings, strict=True)]
    return twin, log, options


@pytest.mark.slow
def test_a_payload_of_known_mass_determines_the_common_scale(tmp_path):
    """Without it the gain is as uncertain as the masses; with 0 and 0.4 kg in turn it is several times better known."""
    twin, log, options = payload_log(tmp_path, 1e-4)

    def gain(episodes, config):
        rows = {row.name: row for row in identify(twin, episodes, backend=BACKEND, config=config).estimates}
        return rows["actuator/j0/kp"]

    def width(row):
        return np.log(row.high / row.low if row.determined else row.prior_high / row.prior_low)

    loaded, bare = gain(log, FitConfig(replay=options)), gain(log[::2], FitConfig())
    assert loaded.low < 26.0 < loaded.high
    assert width(loaded) < 0.25 * width(bare)
    assert bare.interval == "not determined: its interval would be wider than its prior's"


def test_undetermined_parameters_of_a_fit_return_to_their_nominal_values(tmp_path):
    twin, log, _ = payload_log(tmp_path, 1e-2)
    rows = {row.name: row for row in identify(twin, log[::2], backend=BACKEND).estimates}
    for name in ("link/arm/mass", "joint/j0/armature"):
        assert not rows[name].determined
        assert rows[name].value == pytest.approx(rows[name].nominal, rel=1e-12)
    assert all(row.low <= row.value <= row.high for row in rows.values() if row.determined)
