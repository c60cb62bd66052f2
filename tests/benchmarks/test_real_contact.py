"""Tosses and drops: speeds at their own moment, errors over whole flights, and planted contact that comes back."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.real_data import planar_impacts
from benchmarks.real_data.case import Fitted
from benchmarks.real_data.cube_tosses import CASE as CUBE
from benchmarks.real_data.cube_tosses import REPLAY
from benchmarks.real_data.free_flight import flight_errors, with_speeds_at_frames
from benchmarks.real_data.planar_impacts import CASE as SQUARE
from twinloop.core.errors import BoundsError
from twinloop.core.records import Episode, LoggedSignal
from twinloop.core.seeds import generator
from twinloop.core.units import UnitMap
from twinloop.dataset.logs.sets.registry import load_set
from twinloop.identify import FitConfig, identify
from twinloop.identify.assembly import fit_problem, fit_space
from twinloop.simulate import open_backend
from twinloop.simulate.open_loop import open_loop
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.twin import load_twin

BACKEND = open_backend("threads", nthread=2)
SLIDE, STIFFNESS = "object/cube/friction/slide", "object/cube/contact/stiffness"
# The estimate of a search over 123 of the shared tosses, with impedance the same at every depth.
FOUND = {
    SLIDE: 0.1843,
    STIFFNESS: 5318.0,
    "object/cube/contact/damping_ratio": 1.488,
    "object/cube/contact/impedance/d0": 0.9162,
    "object/cube/contact/impedance/dwidth": 0.9162,
    "object/cube/size": 0.9588,
    "geom/table/position/z": -0.0006,
    "world/gravity/magnitude": 9.419,
    "world/gravity/tilt_x": 0.0017,
    "object/cube/inertia/x": 1.0953,
    "object/cube/inertia/y": 1.2764,
    "object/cube/inertia/z": 1.1174,
    "object/cube/com/x": -0.0009,
    "object/cube/com/y": 0.0013,
    "object/cube/com/z": 0.0071,
}


def toss(index, poses, twists, *, hz=148.0):
    time, none = np.arange(len(poses)) / hz, np.empty((len(poses), 0))
    signals = {
        "pose/cube": LoggedSignal(time=time, values=poses, columns=("x", "y", "z", "qw", "qx", "qy", "qz"), unit=""),
        "twist/cube": LoggedSignal(time=time, values=twists, columns=("vx", "vy", "vz", "wx", "wy", "wz"), unit=""),
    }
    units = UnitMap(joints=(), source="a body without joints")
    return Episode(index=index, time=time, action=none, state=none, units=units, source="sim", signals=signals)


def planted(values, *, count=8, nframe=70):
    """Tosses of the twin with planted parameters."""
    rng, twin = generator(6, "test/planted"), load_twin("cube_toss")
    blank = []
    for index in range(count):
        turn = rng.normal(size=4)
        pose = np.concatenate([[0.0, 0.0, 0.15], turn / np.linalg.norm(turn)])
        twist = np.concatenate([rng.normal(scale=0.6, size=2), [-0.5], rng.normal(scale=3.0, size=3)])
        blank.append(toss(index, np.tile(pose, (nframe, 1)), np.tile(twist, (nframe, 1))))
    logs = prepare_replay(twin, blank, REPLAY)
    table = logs.twin.table(count, {name: np.full(count, value) for name, value in values.items()})
    initial = logs.start.make_initial_states(logs.twin, table, np.zeros((count, 0)))
    run = open_loop(BACKEND, logs.twin, table, initial, logs.commands[:, :-1])
    return [toss(i, run.qpos[i], run.qvel[i]) for i in range(count)]


def test_a_backward_difference_becomes_the_speed_at_its_frame():
    time = np.arange(40) / 148.0
    height = 0.3 + 0.7 * time - 0.5 * 9.81 * time**2
    before = np.diff(np.concatenate([[0.3 - 0.7 / 148.0 - 0.5 * 9.81 / 148.0**2], height])) * 148.0
    twists = np.zeros((40, 6))
    twists[:, 2] = before
    poses = np.tile([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0], (40, 1))
    mended = with_speeds_at_frames(toss(0, poses, twists), "twist/cube", "vz").signals["twist/cube"].values
    assert mended[:, 2] == pytest.approx(0.7 - 9.81 * time, abs=1e-9)
    assert np.array_equal(mended[:, [0, 1, 3, 4, 5]], twists[:, [0, 1, 3, 4, 5]])
    assert np.array_equal(twists[:, 2], before)  # given values stay


def test_a_flight_is_off_by_nothing_from_its_own_twin_and_by_more_from_another():
    episodes, twin = planted({SLIDE: 0.3}, count=4), load_twin("cube_toss")
    own, other = (
        flight_errors(twin, episodes, REPLAY, {SLIDE: slide}, BACKEND, physics_hz=2368.0) for slide in (0.3, 0.9)
    )
    assert own.shape == (4, 2)
    assert own == pytest.approx(0.0, abs=1e-6)
    assert other[:, 0].mean() > 5e-3


def test_errors_of_a_pose_are_the_sizes_of_its_columns():
    episodes, twin = planted({}, count=2), load_twin("cube_toss")
    options = replace(REPLAY, compare=("pose/cube", "pose_error/cube"))
    columns = flight_errors(
        twin,
        episodes,
        options,
        {SLIDE: 0.9},
        BACKEND,
        physics_hz=2368.0,
        sizes=lambda r: np.stack(
            [np.linalg.norm(r[..., :3], axis=-1), r[..., 6], np.linalg.norm(r[..., 3:6], axis=-1), r[..., 7]], axis=-1
        ),
    )
    assert columns[:, 0] == pytest.approx(columns[:, 1])
    assert columns[:, 2] == pytest.approx(columns[:, 3])
    assert columns.min() > 0


def test_a_point_with_impossible_contact_is_as_bad_as_one_that_diverges():
    stiff = {STIFFNESS: 90_000.0, "object/cube/contact/damping_ratio": 5.0}
    logs = prepare_replay(load_twin("cube_toss"), planted({}, count=2, nframe=20), REPLAY)
    config = FitConfig(replay=REPLAY, free=tuple(stiff))
    space, _ = fit_space(logs, config)
    nominal = space.column("start")
    impossible = fit_space(logs, replace(config, start=stiff))[0].column("start")
    problem = fit_problem(BACKEND, logs, space, nominal, config)
    points = np.stack([nominal, impossible, nominal])
    residual = problem.residual(points, np.zeros((3, len(logs), logs.nlocal)))
    measured = ~np.isnan(logs.measured)
    assert np.isinf(residual[1][measured]).all()
    assert np.isfinite(residual[[0, 2]][:, measured]).all()
    np.testing.assert_array_equal(residual[0], residual[2])
    with pytest.raises(BoundsError, match="Lower the stiffness or the damping"):
        fit_problem(BACKEND, logs, space, impossible, config)


@pytest.mark.slow
def test_planted_contact_is_found_where_slopes_alone_end_elsewhere():
    episodes, truth = planted({SLIDE: 0.25, STIFFNESS: 6000.0}), {SLIDE: 0.25, STIFFNESS: 6000.0}
    start = {SLIDE: 1.2, STIFFNESS: 60000.0}
    config = FitConfig(
        replay=REPLAY, free=tuple(truth), start=start, walk=100, physics_hz=2368.0, iterations=15, polish=0, rescale=0
    )
    alone = identify(load_twin("cube_toss"), episodes, backend=BACKEND, config=config)
    searched = replace(config, search="cma", starts=1, generations=40, population=10)
    found = identify(load_twin("cube_toss"), episodes, backend=BACKEND, config=searched)
    assert found.values[SLIDE] == pytest.approx(0.25, rel=0.02)
    assert found.values[STIFFNESS] == pytest.approx(6000.0, rel=0.1)
    assert found.training_error[0] < 0.1 * alone.training_error[0]


def real(name):
    folder = Path(os.environ.get("TWINLOOP_DATA", "")) / name
    if not os.environ.get("TWINLOOP_DATA") or not folder.is_dir():
        pytest.skip(f"{name} is not in TWINLOOP_DATA")
    return folder


def test_an_estimate_of_the_tosses_keeps_what_it_reached():
    """11.1 ± 0.5 % of the width and 12.2 ± 1.0° over the 247 tosses that its search had not seen; here over all."""
    case = CUBE
    test = load_set(case.name, real(case.name))
    twin = load_twin(case.twin)
    ready = [with_speeds_at_frames(episode, "twist/cube", "vz") for episode in test]
    errors = flight_errors(twin, ready, REPLAY, FOUND, BACKEND, physics_hz=592.0).mean(axis=0)
    assert 100 * errors[0] / 0.1048 < 12.5
    assert np.degrees(errors[1]) < 15.0


@pytest.mark.parametrize("case", [CUBE, SQUARE], ids=lambda case: case.name)
def test_every_second_flight_is_left_out_once(case):
    flights = [toss(i, np.zeros((3, 7)), np.zeros((3, 6))) for i in range(9)]
    folds = case.folds(flights)
    assert [[e.index for e in fold.test] for fold in folds] == [[0, 2, 4, 6, 8], [1, 3, 5, 7]]
    for fold in folds:
        assert sorted(e.index for e in [*fold.training, *fold.test]) == list(range(9))
        inner = case.inner_folds(fold.training)
        assert {e.index for f in inner for e in [*f.training, *f.test]} == {e.index for e in fold.training}


def drop(index, *, zero=0.02, noise=(0.0, 0.0, 0.0), nframe=40, hz=250.0):
    """A square in free fall, whose recorded angle ends ``zero`` less than two quarter turns."""
    rng, time = generator(index, "test/drop"), np.arange(nframe) / hz
    fall = np.stack([0.0 * time, 2.0 - 0.5 * 9.81 * time**2, np.pi - zero - 0.7 * (time[-1] - time)], axis=1)
    speeds = np.stack([0.0 * time, -9.81 * time, 0.7 + 0.0 * time], axis=1) + rng.normal(size=(nframe, 3)) * noise
    return Episode(
        index=index,
        time=time,
        action=np.zeros((nframe, 3)),
        state=fall,
        units=load_twin("planar_square").units,
        command="torque",
        signals={"joint_velocity": LoggedSignal(time=time, values=speeds, columns=("x", "z", "th"), unit="m/s")},
    )


def test_the_angles_zero_is_read_from_where_training_squares_rest():
    drops = [drop(i, zero=zero) for i, zero in enumerate((0.03, 0.02, -0.01))]
    assert planar_impacts.rest_zero(drops) == pytest.approx(0.02)


def test_the_scatter_of_speeds_is_that_of_free_fall():
    noise = np.array([0.005, 0.01, 0.3])
    assert planar_impacts.speed_scatter([drop(i, noise=noise) for i in range(30)]) == pytest.approx(noise, rel=0.15)


def test_a_median_of_equal_flights_is_the_flight_and_scatter_moves_it():
    twin = load_twin("planar_square")
    values = {name: twin.params[name].nominal for name in planar_impacts.BEGINNINGS}
    fitted = Fitted(values=values, extra={"scatter": [0.0, 0.0, 0.0]})
    drops = [drop(i, nframe=200) for i in range(2)]
    one, median, spread = (
        SQUARE.errors(replace(fitted, prediction=name, extra={"scatter": scatter}), drops, BACKEND).values
        for name, scatter in (
            ("one flight", [0.0] * 3),
            ("median over first states", [0.0] * 3),
            ("median over first states", [0.0, 0.0, 5.0]),
        )
    )
    np.testing.assert_allclose(median, one, rtol=1e-9)
    assert np.abs(spread - one).max() > 1.0


@pytest.mark.slow
@pytest.mark.parametrize("case", [CUBE, SQUARE], ids=lambda case: case.name)
def test_a_fit_beats_the_twin_as_shipped_on_flights_it_has_not_seen(case):
    fold = case.folds(load_set(case.name, real(case.name)))[0]
    fitted = replace(case.fit(fold.training, "", BACKEND), prediction=case.candidates[-1].prediction)
    after, before = (case.errors(known, fold.test, BACKEND).metrics for known in (fitted, Fitted()))
    assert (after < before).all(), (after, before)
