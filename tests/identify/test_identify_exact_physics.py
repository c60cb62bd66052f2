"""The physics step does not enter the parameters, descents keep ratios, and missing physics is seen and named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from support.swing import TRUTH, clips, swing_twin
from twinloop.core.errors import UnknownNameError
from twinloop.core.records import Episode
from twinloop.core.seeds import generator
from twinloop.identify import FitConfig, identify, optimization
from twinloop.identify.assembly import fit_space, select_free_parameters, servo_lag
from twinloop.identify.considered import undeclared_responses
from twinloop.identify.model_error import conditional_parameters, find_structured_channels
from twinloop.identify.optimization import _return_to_prior, optimize_fit, refit_at_prior, return_undetermined
from twinloop.identify.physics_rate import compute_step_correction, limit_physics_rate, settling_times
from twinloop.identify.problem import FitProblem, Linearization, ParameterBlock, linearize
from twinloop.identify.search import combine_blocks, lag_starts
from twinloop.identify.solver import FitCheckpoint, SolverSolution, refine
from twinloop.simulate import open_backend
from twinloop.simulate.command import arrived_share
from twinloop.simulate.replay import change_substeps, replay
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.twin import load_twin
from twinloop.twin.quantities import Prior

BACKEND = open_backend("threads", nthread=2)
ARM = """<mujoco><compiler autolimits="true"/><option timestep="0.005" integrator="implicitfast"/><worldbody>
<body name="arm"><inertial pos="0.2 0 0" mass="0.5" diaginertia="0.005 0.005 0.005"/>
<joint name="j0" axis="0 1 0" armature="0.01" damping="0.1" frictionloss="0.1"/></body></worldbody>
<actuator>
<general name="j0" joint="j0" biastype="affine" gainprm="20" biasprm="0 -20 -{kd}" forcerange="-40 40"/>
</actuator></mujoco>"""
NAMES = ("joint/*/damping", "joint/*/frictionloss", "joint/*/armature", "actuator/*/kp", "actuator/*/kd",
         "actuator/*/delay")  # fmt: skip


def arm_twin(folder, kd=1.0, names=NAMES):
    """Load a twin of one arm with a physics step of 5 ms."""
    (folder / "arm.xml").write_text(ARM.format(kd=kd))
    spec = {
        "schema": 1, "name": "arm", "model": "arm.xml", "control_hz": 50, "substeps": 4,
        "robot": {"type": "arm", "joints": ["j0"], "units": ["rad"]}, "params": [{"name": name} for name in names],
    }  # fmt: skip
    (folder / "arm.yaml").write_text(yaml.safe_dump(spec))
    return load_twin(folder / "arm.yaml")


def commanded(twin, count=4, frames=150):
    """Return episodes of sines whose readings are still to be simulated."""
    time = np.arange(frames) / twin.control_hz
    return [
        Episode(
            index=i, time=time, action=np.sin((3 + i) * time + i)[:, None] - np.sin(i), state=np.zeros((frames, 1)),
            units=twin.units, source="sim",
        )
        for i in range(count)
    ]  # fmt: skip


def recorded(twin, truth, noise, steps=32, count=4):
    """Return episodes of a robot whose physics step is ``steps`` times shorter than the twin's."""
    blank = commanded(twin, count)
    logs = prepare_replay(twin, blank)
    robot = replace(logs, twin=change_substeps(logs.twin, steps * logs.twin.substeps))
    readings = replay(BACKEND, robot, twin.table(1, truth))[0]
    readings += noise * generator(0, "test/exact").standard_normal(readings.shape)
    return [replace(episode, state=rows) for episode, rows in zip(blank, readings, strict=True)]


def test_the_correction_removes_the_error_of_the_physics_step_and_knows_its_own(tmp_path):
    twin = arm_twin(tmp_path)
    logs = limit_physics_rate(prepare_replay(twin, commanded(twin)), 200.0)
    table, local, width = twin.table(1), np.zeros((1, len(logs), 0)), np.array([1e-4])

    def read(substeps):
        return replay(BACKEND, replace(logs, twin=change_substeps(logs.twin, substeps)), table)[0]

    found = compute_step_correction(BACKEND, logs, table, local, width, own=twin.substeps)
    exact, coarse = read(512), read(logs.twin.substeps)
    before, after = (np.sqrt(np.mean((x - exact) ** 2)) for x in (coarse, coarse + found.value))
    assert before > 1e-3
    assert after < before / 30
    assert 0.3 * after < np.sqrt(np.mean(found.error**2)) < 30 * after


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_gradual_arrival_has_the_same_second_moment_wherever_in_the_step_it_is(first, second):
    step = np.arange(-4.0, 6.0)

    def moments(arrival, *, gradual):
        weight = np.diff(arrived_share(np, step - arrival, gradual=gradual))
        mean = weight @ step[1:]
        return weight.sum(), mean - arrival, weight @ (step[1:] - mean) ** 2

    one, other = moments(first, gradual=True), moments(second, gradual=True)
    assert one == pytest.approx(other, abs=1e-12)
    assert one[0] == pytest.approx(1.0)
    assert moments(0.5, gradual=False)[2] > moments(0.0, gradual=False)[2] + 0.2


def test_a_fit_does_not_put_its_physics_step_into_the_delay(tmp_path):
    """The twin steps by 5 ms: uncorrected, delays would be off by half of it."""
    twin = arm_twin(tmp_path)
    truth = {"actuator/j0/delay": 0.031, "joint/j0/armature": 0.013, "actuator/j0/kd": 1.2}
    config = FitConfig(free=tuple(truth))
    rows = {
        row.name: row for row in identify(twin, recorded(twin, truth, 1e-4), backend=BACKEND, config=config).estimates
    }
    delay = rows["actuator/j0/delay"]
    assert delay.value == pytest.approx(0.031, abs=1.5e-4)
    assert all(row.low <= truth[name] <= row.high for name, row in rows.items())


def test_a_quarter_of_the_step_correction_counts_as_its_error(tmp_path):
    twin = arm_twin(tmp_path)
    training = prepare_replay(twin, recorded(twin, {}, 1e-4))
    config = FitConfig(iterations=3, polish=0)
    found = optimize_fit(BACKEND, training, fit_space(training, config)[0], config, FitCheckpoint(None, {}))
    doubt = 0.25 * found.problem.correction
    assert np.abs(doubt).max() > 1e-6
    assert any(np.array_equal(row, doubt) for row in found.step_errors)


@pytest.mark.slow
def test_the_last_stage_has_central_differences_while_it_replays_a_part_of_the_windows(tmp_path, monkeypatch):
    twin, steps = arm_twin(tmp_path), []

    def watched(problem, point, local, *, step=None):
        if step is not None:  # not in the search of blocks
            steps.append((len(problem.measured), step))
        return linearize(problem, point, local, step=step)

    monkeypatch.setattr(optimization, "linearize", watched)
    training = prepare_replay(twin, recorded(twin, {}, 1e-4, steps=4, count=15))
    config = FitConfig(iterations=3, polish=0)
    optimize_fit(BACKEND, training, fit_space(training, config)[0], config, FitCheckpoint(None, {}))
    part = [step for count, step in steps if count < 15]
    assert part
    assert all(np.array_equal(one, -other) for one, other in zip(part[::2], part[1::2], strict=True))
    assert sum(count == 15 for count, _ in steps) >= 2  # then all windows, one-sided


def test_the_surroundings_are_searched_only_while_residuals_are_correlated(tmp_path, monkeypatch):
    twin, calls = arm_twin(tmp_path), []
    better = np.log(17.0)

    def search(problem, here, *, generations, population, seed):
        calls.append((generations * population, seed))
        kp = names.index("actuator/j0/kp")
        found = here.point.copy()
        found[kp] = better if len(calls) == 1 else here.point[kp] + 1.0  # the second is worse
        return found

    monkeypatch.setattr(optimization, "evolve_blocks", search)
    log = recorded(twin, {"actuator/j0/kp": 17.0}, 1e-4)
    waves = 5e-4 * np.sin(0.7 * np.arange(150))[:, None]  # no parameter explains them

    def fit(episodes):
        training = prepare_replay(twin, episodes)
        space = fit_space(training, config)[0]
        names[:] = space.names
        return optimize_fit(BACKEND, training, space, config, FitCheckpoint(None, {}))

    names, config = [], FitConfig(free=("actuator/*/kp",), iterations=1, polish=0)
    fit(log)
    assert not calls
    found = fit([replace(episode, state=episode.state + waves) for episode in log])
    assert 1 <= len(calls) <= 3
    assert len({seed for _, seed in calls}) == len(calls)
    assert found.solution.point[0] == pytest.approx(better, abs=0.01)


def test_a_physics_step_is_no_longer_than_the_settling_time_of_a_joint(tmp_path):
    logs = prepare_replay(arm_twin(tmp_path), commanded(arm_twin(tmp_path)))
    fine = replace(logs, twin=change_substeps(logs.twin, 40))  # 2000 Hz
    assert settling_times(fine.twin) == pytest.approx([0.035 / 1.1])  # 0.005 + 0.5 · 0.2² + 0.01 kg·m²
    assert limit_physics_rate(fine, 240.0).twin.dt == pytest.approx(1 / 250)
    stiff = replace(logs, twin=change_substeps(arm_twin(tmp_path, kd=19.9), 40))
    assert settling_times(stiff.twin) == pytest.approx([0.035 / 20])
    assert 0.0012 < limit_physics_rate(stiff, 240.0).twin.dt <= 0.035 / 20
    assert limit_physics_rate(replace(stiff, twin=arm_twin(tmp_path, kd=19.9)), 240.0).twin.dt == 0.005  # its own


def test_an_undeclared_encoder_scale_is_a_nuisance_only_where_the_log_does_not_state_its_unit(tmp_path):
    twin = arm_twin(tmp_path)
    logs = prepare_replay(twin, recorded(twin, {}, 1e-4))
    space = fit_space(logs, FitConfig())[0]
    for stated in (True, False):
        seen = replace(logs, stated_units=(stated,))
        names = undeclared_responses(BACKEND, seen, space, FitConfig(), space.column("start"), np.zeros((len(logs), 0)))
        assert ("sensor/j0/scale" in names) == (not stated)


def test_the_rotor_of_a_stiff_joint_is_no_parameter_but_part_of_the_delay(tmp_path):
    """The joint settles within 0.0185 kg·m² / 18 N·m·s = 1 ms; the log's rotor is heavier than the twin's."""
    twin = arm_twin(tmp_path, kd=18.0)
    truth = {"joint/j0/armature": 0.014, "actuator/j0/delay": 0.03}
    result = identify(twin, recorded(twin, truth, 1e-4), backend=BACKEND)
    rows = {row.name: row for row in result.estimates}
    assert not rows["joint/j0/armature"].determined
    assert "settles within one physics step" in rows["joint/j0/armature"].reason
    delay = rows["actuator/j0/delay"]
    assert delay.low < 0.03 < delay.high
    vague = FitConfig(priors={"joint/*/armature": Prior(spread=1.5)})
    rows = {
        row.name: row for row in identify(twin, recorded(twin, truth, 1e-4), backend=BACKEND, config=vague).estimates
    }
    assert not rows["actuator/j0/delay"].determined  # as uncertain as the rotor
    chosen = identify(twin, recorded(twin, truth, 1e-4), backend=BACKEND, config=FitConfig(free=("joint/*/armature",)))
    assert chosen.estimates[0].name == "joint/j0/armature"
    assert "settles" not in chosen.estimates[0].reason


@given(st.floats(0.1, 10.0), st.floats(0.1, 10.0), st.floats(-0.8, 4.0))
def test_a_step_along_a_ratio_keeps_the_ratio(gain, damping, part):
    problem = ratio_problem()
    point = np.array([np.log(gain), damping])
    move = np.array([part, part * damping])  # derivative of the value: gain · part, as a part of the gain
    after = problem.move_along(point, move)
    assert after[1] / np.exp(after[0]) == pytest.approx(damping / gain)
    assert problem.move_between(point, after) == pytest.approx(move)


def ratio_problem():
    """A steep valley along damping / gain = 0.1, and a weak slope along it towards a gain of 9."""

    def readings(points, local):
        gain, damping = np.exp(points[:, 0]), points[:, 1]
        rows = np.stack([1e4 * (damping / gain - 0.1), gain / 9.0 - 1.0], axis=1)
        return rows[:, None, :, None] + 0.0 * local.sum()

    return FitProblem(
        readings=readings,
        measured=np.zeros((1, 2, 1)),
        blocks=(ParameterBlock(columns=np.arange(2), channels=np.arange(1)),),
        centre=np.array([np.log(4.0), 0.4]),
        sd=np.array([1.0, 0.4]),
        low=np.array([-5.0, 0.0]),
        high=np.array([5.0, 10.0]),
        width=np.ones(1),
        prior_weight=1e-9,
        logarithmic=np.array([True, False]),
    )


def test_a_bent_valley_is_followed_with_few_replays():
    problem = ratio_problem()
    start = np.array([np.log(4.0), 0.4])
    solution = refine(problem, linearize(problem, start, step=1e-6 * problem.sd))
    assert np.exp(solution.point[0]) == pytest.approx(9.0, rel=0.05)
    assert solution.replays <= 6


def test_starts_divide_the_same_lag_differently_and_keep_what_is_given(tmp_path):
    space = select_free_parameters(arm_twin(tmp_path), FitConfig(start={"actuator/j0/delay": 0.02}))
    point = space.column("start")
    lag = 0.02 + 1.1 / 20
    starts = lag_starts(space, point)
    assert len(starts) >= 2
    for start in starts:
        table = space.table(start[None])
        delay = space.scalar_values(start)["actuator/j0/delay"]
        assert delay + servo_lag(space.twin, table)[0, 0] == pytest.approx(lag)
    assert np.ptp([space.scalar_values(start)["actuator/j0/delay"] for start in starts]) > 0.3 * lag
    assert lag_starts(space, point, keep=("actuator/j0/kp",)) == []


def test_each_block_takes_its_best_solution():
    problem = replace(ratio_problem(), blocks=tuple(
        ParameterBlock(columns=np.array([i]), channels=np.arange(1)) for i in range(2)
    ))  # fmt: skip

    def solution(point, losses):
        here = replace(linearize(problem, np.array(point)), losses=np.array(losses))
        return SolverSolution(end=here, history=(), replays=0, converged=True)

    first, second = solution([1.0, 2.0], [0.1, 0.9]), solution([3.0, 4.0], [0.5, 0.2])
    assert combine_blocks(problem, [first, second]).tolist() == [1.0, 4.0]


def test_correlated_residuals_are_structure_and_rounding_is_not():
    rng, frames = generator(0, "test/structure"), 400
    white = rng.standard_normal((3, frames))
    slow = np.cumsum(white, axis=1) / 20
    rest = np.full((3, frames), 0.03)
    residual = np.stack([white, slow, rest], axis=-1)
    measured = np.round(np.cumsum(rng.standard_normal((3, frames, 3)), axis=1) / 0.1) * 0.1
    assert find_structured_channels(residual, measured).tolist() == [False, True, False]
    for part, seen in ((0.5, True), (2.0, False)):  # of the residual, by which the physics step may be wrong
        assert find_structured_channels(residual, measured, part * residual[None])[1] == seen


def test_parameters_are_conditional_on_the_channels_that_determine_them():
    problem = replace(ratio_problem(), measured=np.zeros((1, 5, 2)), width=np.ones(2),
                      blocks=(ParameterBlock(columns=np.arange(2), channels=np.arange(2)),))  # fmt: skip
    slopes = np.zeros((1, 5, 2, 2))
    slopes[..., 0, 0], slopes[..., 1, 0], slopes[..., 1, 1] = 1.0, 0.1, 1.0
    here = Linearization(
        point=np.zeros(2), local=np.zeros((1, 0)), residual=np.zeros((1, 5, 2)), jacobians=(slopes,),
        local_jacobian=np.zeros((1, 5, 2, 0)), losses=np.zeros(1),
    )  # fmt: skip
    assert conditional_parameters(here, problem, np.array([False, True])).tolist() == [False, True]
    assert conditional_parameters(here, problem, np.array([True, False])).tolist() == [True, False]


@pytest.mark.parametrize(("load", "marked"), [(0.0, False), (0.4, True)])
def test_missing_friction_marks_intervals_and_is_named(tmp_path, load, marked):
    twin = swing_twin(tmp_path)
    log = clips(twin, BACKEND, {**TRUTH, "joint/swing/load_friction": load}, count=6, noise_deg=0.03, rho=0.0)
    free = tuple(TRUTH)
    result = identify(twin, log, backend=BACKEND, config=FitConfig(free=free))
    assert [row.conditional for row in result.estimates if row.determined] == [marked] * len(result.determined)
    said = [note for note in result.notes if "correlated in time" in note]
    assert len(said) == marked
    if marked:
        assert "load_friction would explain" in said[0].lower()
        assert any(row.interval.endswith("†") for row in result.estimates)


def test_a_second_finger_starts_where_the_first_one_is():
    twin = load_twin("panda_tabletop")
    qpos, qvel = twin.home()[0], np.zeros(twin.model.nv)
    first, second = (twin.model.joint(f"finger_joint{i}") for i in (1, 2))
    qpos[first.qposadr[0]], qvel[first.dofadr[0]] = 0.013, 0.2
    twin.align_coupled_joints(qpos, qvel)
    assert qpos[second.qposadr[0]] == pytest.approx(0.013)
    assert qvel[second.dofadr[0]] == pytest.approx(0.2)


def test_what_has_hardly_an_effect_returns_to_its_prior_and_what_has_one_does_not():
    """The second parameter changes the readings by far less than a prior standard deviation counts."""

    def readings(points, local):
        rows = np.stack([100.0 * (points[:, 0] - 2.0), 1e-3 * points[:, 1]], axis=1)
        return rows[:, None, :, None] + 0.0 * local.sum()

    problem = replace(ratio_problem(), readings=readings, prior_weight=1e-2, logarithmic=np.zeros(2, dtype=bool))
    returned = _return_to_prior(problem, linearize(problem, np.array([2.0, 1.5])))
    assert returned.point.tolist() == [2.0, 0.4]
    assert returned.losses == pytest.approx(problem.losses_at(returned.point[None])[0])
    strong = replace(problem, readings=lambda points, local: readings(points, local) - 1e3 * points[:, None, 1:, None])
    assert _return_to_prior(strong, linearize(strong, np.array([2.0, 1.5]))).point.tolist() == [2.0, 1.5]


def test_undetermined_parameters_return_to_their_prior_where_others_make_up_for_it():
    """The first two parameters trade off against each other; the third has an effect of its own."""
    noise = generator(0, "test/return").standard_normal((1, 50, 2))

    def readings(points, local):
        rows = np.stack([points[:, 0] + points[:, 1] - 2.0, points[:, 2]], axis=1)
        return np.repeat(rows[:, None, None, :], 50, axis=2) + 0.0 * local.sum()

    problem = replace(
        ratio_problem(), readings=readings, measured=noise, width=np.ones(2), prior_weight=1e-6,
        blocks=(ParameterBlock(columns=np.arange(3), channels=np.arange(2)),),
        centre=np.array([1.0, 0.4, 3.0]), sd=np.ones(3), low=np.full(3, -9.0), high=np.full(3, 9.0),
        logarithmic=np.zeros(3, dtype=bool),
    )  # fmt: skip
    here = refine(problem, linearize(problem, np.array([0.7, 1.3, 0.0]))).end
    returned = return_undetermined(problem, here, np.array([False, True, True]))
    assert returned.point[1] == 0.4
    assert returned.point[0] == pytest.approx(1.6 + noise[..., 0].mean(), abs=0.1)
    assert returned.point[2] == pytest.approx(here.point[2], abs=1e-3)
    assert returned.losses.sum() < 1.01 * here.losses.sum()
    assert return_undetermined(problem, here, np.zeros(3, dtype=bool)).point.tolist() == here.point.tolist()
    one = return_undetermined(problem, here, np.array([True, True, False])).point  # not both: their sum is measured
    assert (one[:2] == problem.centre[:2]).sum() == 1
    assert one[:2].sum() == pytest.approx(2.0 + noise[..., 0].mean(), abs=0.1)
    centred = refit_at_prior(problem, here, [1, 2])  # also the one whose return raises the loss
    assert centred.point[1:].tolist() == [0.4, 3.0]
    assert centred.point[0] == pytest.approx(1.6 + noise[..., 0].mean(), abs=0.1)
    assert centred.losses.sum() > 2 * here.losses.sum()


def test_the_profile_of_a_hidden_rotor_is_refused_before_the_fit(tmp_path):
    twin = arm_twin(tmp_path, kd=18.0)
    config = FitConfig(profile=("joint/j0/armature",))
    with pytest.raises(UnknownNameError, match="joint/j0/armature"):
        identify(twin, recorded(twin, {}, 1e-4), backend=BACKEND, config=config)
