"""Rotors: thrust follows the throttle by the curve and its lags, includes the history, and turns the body."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.worlds import make_world
from twinloop.core.errors import InputError
from twinloop.core.records import Episode, LoggedSignal
from twinloop.core.units import UnitMap
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayOptions, prepare_replay
from twinloop.twin import load_twin

CURVE = {"rotors/all/thrust/constant": 0.01, "rotors/all/thrust/linear": 0.02, "rotors/all/thrust/quadratic": 0.1}
MASS = 0.027


@pytest.fixture(scope="module")
def twin():
    return load_twin("crazyflie")


def lifts(twin, throttles, values, *, earlier=None, backend="threads"):
    """Accelerometer's z over time ``(nworld, nstep + 1)`` under throttles ``(nstep, 4)``."""
    table = twin.table(max(np.size(v) for v in values.values()), values)
    home = InitialState.home(twin, table.nworld)
    if earlier is not None:
        before = np.repeat(np.asarray(earlier)[None], table.nworld, axis=0)
        home = replace(home, command=before[:, 0], earlier=before[:, 1:])
    commands = np.repeat(np.asarray(throttles, float)[None], table.nworld, axis=0)
    run = rollout(open_backend(backend), twin, table, home, commands, len(throttles), record=("sensordata",))
    assert run.valid.all()
    return run.records["sensordata"][..., 2]


def curve(throttle):
    return 0.01 + 0.02 * throttle + 0.1 * throttle**2


def test_a_steady_throttle_gives_the_thrust_of_the_curve(twin):
    for throttle in (0.0, 0.3, 0.8):
        lift = lifts(twin, np.full((5, 4), throttle), {**CURVE, "rotors/all/lag": 0.05})
        np.testing.assert_allclose(lift[0, 2:], 4 * curve(throttle) / MASS, rtol=1e-9)


def test_a_step_of_throttle_arrives_through_two_lags(twin):
    """u(t) = 1 − (a e^(−t/a) − b e^(−t/b)) / (a − b), of time constants a and b."""
    a, b, low, high = 0.06, 0.02, 0.2, 0.7
    values = {**CURVE, "rotors/all/lag": a, "rotors/all/second_lag": b}
    steps = np.concatenate([np.full((3, 4), low), np.full((150, 4), high)])
    lift = lifts(twin, steps, values)[0, 4:]
    time = 1e-3 * np.arange(1, len(lift) + 1)
    share = 1 - (a * np.exp(-time / a) - b * np.exp(-time / b)) / (a - b)
    expected = 4 * curve(low + (high - low) * share) / MASS
    np.testing.assert_allclose(lift, expected, rtol=1e-2)  # a step of the cascade counts the newest value: 1 ms


def test_rotors_turn_at_first_as_the_throttles_before_say(twin):
    """A run that begins in the middle of another one continues it."""
    rng = np.random.default_rng(3)
    throttles = rng.uniform(0.2, 0.8, size=(300, 4))
    values = {**CURVE, "rotors/all/lag": [0.03, 0.06], "rotors/all/second_lag": [0.0, 0.01]}
    whole = lifts(twin, throttles, values)
    rest = lifts(twin, throttles[250:], values, earlier=throttles[:250])
    np.testing.assert_allclose(rest[:, 1:], whole[:, 251:], rtol=2e-2, atol=2e-2)  # the body has turned meanwhile


def test_backends_agree_to_the_bit(twin):
    throttles = np.random.default_rng(4).uniform(0.2, 0.8, size=(40, 4))
    values = {**CURVE, "rotors/all/lag": [0.02, 0.05], "rotors/all/drag": [0.003, 0.008]}
    both = [lifts(twin, throttles, values, earlier=throttles[:9], backend=name) for name in ("threads", "reference")]
    np.testing.assert_array_equal(both[0], both[1])


def test_unequal_thrusts_turn_the_body_by_arm_over_inertia(twin):
    """Rotors 3 and 4 are on the left (+y): more of them rolls to the right, x̂ being forward; 1 and 4 pitch up."""
    table = twin.table(1, {**CURVE, "rotors/all/lag": 0.0})
    for more, axis, sign in (([0, 0, 1, 1], 3, 1.0), ([0, 1, 1, 0], 4, 1.0)):
        throttle = 0.5 + 0.1 * np.array(more)
        commands = np.tile(throttle, (1, 10, 1))
        run = rollout(open_backend(), twin, table, InitialState.home(twin, 1), commands, 10)
        difference = 2 * (curve(0.6) - curve(0.5)) * 0.028
        inertia = {3: 1.029e-5, 4: 1.105e-5}[axis]
        assert run.qvel[0, -1, axis] == pytest.approx(sign * difference / inertia * 0.01, rel=1e-3)


def test_drag_turns_against_the_rotors_and_damping_holds_roll_back(twin):
    commands = np.tile([0.6, 0.5, 0.6, 0.5], (2, 10, 1))
    table = twin.table(2, {**CURVE, "rotors/all/lag": 0.0, "rotors/all/drag": [0.003, 0.006]})
    yaw = rollout(open_backend(), twin, table, InitialState.home(twin, 2), commands, 10).qvel[:, -1, 5]
    expected = -2 * (curve(0.6) - curve(0.5)) * np.array([0.003, 0.006]) / 1.955e-5 * 0.01
    np.testing.assert_allclose(yaw, expected, rtol=1e-3)
    still = np.full((2, 100, 4), 0.5)
    table = twin.table(2, {**CURVE, "rotors/all/damping": [0.0, 1.029e-4]})
    spinning = replace(InitialState.home(twin, 2), qvel=np.tile([0, 0, 0, 2.0, 0, 0], (2, 1)))
    rate = rollout(open_backend(), twin, table, spinning, still, 100).qvel[:, -1, 3]
    np.testing.assert_allclose(rate, [2.0, 2.0 * np.exp(-1.0)], rtol=1e-2)


def test_a_log_of_an_inertial_unit_begins_at_the_gyroscopes_rates(twin):
    time = np.linspace(0.0, 0.199, 200)
    rates = np.stack([np.full(200, 0.5), np.full(200, -0.3), np.full(200, 0.2)], axis=-1)
    nothing = np.empty((200, 0))
    log = Episode(
        index=0,
        time=time,
        action=nothing,
        state=nothing,
        units=UnitMap(joints=(), source="a test"),
        command="none",
        signals={
            "motor": LoggedSignal(time=time, values=np.full((200, 4), 0.6), columns=("m1", "m2", "m3", "m4"), unit="1"),
            "angular_velocity/imu": LoggedSignal(time=time, values=rates, columns=("x", "y", "z"), unit="rad/s"),
        },
    )
    logs = prepare_replay(twin, [log], ReplayOptions(window=0.05, start="measured", compare=("angular_velocity/imu",)))
    read = replay(open_backend(), logs, logs.twin.table(1))[0]
    np.testing.assert_allclose(read[:, 1, :], rates[:3][: len(read)], atol=0.02)


def test_rotors_belong_to_a_free_body_that_is_pushed_at_sites(tmp_path):
    body = '<body name="box"><freejoint/><geom size=".1" mass="1"/></body>'
    with pytest.raises(InputError, match="no free body of the model has an actuator that pushes at a site"):
        make_world(tmp_path, body, ["rotors/all/drag"])
