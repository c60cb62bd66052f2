"""Play in the gears: without it a geared robot is its twin, with it the link waits for the motor to cross the gap."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.hardware.arms import SETTLE_S, VirtualArms, add_robot_gears
from twinloop.hardware.hidden import HiddenParameters
from twinloop.hardware.teleop_motion import teleop_commands
from twinloop.sensors.servo import STS3215_RESOLUTION
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.twin import load_twin

ROBOTS = ("so101_tabletop", "panda_tabletop", "double_pendulum")


def nothing_hidden(twin, *, play=1e-6, params=None):
    """A robot that is its twin, but for the play."""
    n = len(twin.robot.joints)
    return HiddenParameters(
        params=params or {},
        backlash=np.full(n, play),
        load_friction=np.zeros(n),
        command_jitter_s=0.0,
        clock_jitter_s=0.0,
        count=np.full(n, 1e-9),
        read_noise=np.zeros(n),
    )


def driven(twin, hidden, commands):
    """Joint positions ``(nstep, n)`` in SI at which commands are issued."""
    arms = VirtualArms(twin, hidden, seed=0, sessions=[0], nthread=1)
    positions = []
    for step, row in enumerate(commands):
        arms.wait_until(step / twin.control_hz)
        positions.append(twin.units.to_si(arms.observe()[0]))
        arms.command(row[None])
    return np.array(positions)


def in_the_twin(twin, commands):
    """The same in the plain twin, after the same rest at home."""
    rest = round(SETTLE_S * twin.control_hz)
    si = twin.units.to_si(commands) if twin.robot.control == "position" else commands
    rows = np.concatenate([np.tile(twin.home()[1], (rest, 1)), si])[None]
    run = rollout(open_backend(), twin, twin.table(1), InitialState.home(twin, 1), rows, rows.shape[1])
    return run.qpos[0, rest : rest + len(commands)][:, twin.joint_qpos]


@pytest.mark.parametrize("name", ROBOTS)
def test_without_play_a_geared_robot_is_its_twin(name):
    twin = load_twin(name)
    commands = teleop_commands(twin, seed=1, episodes=[0], seconds=4.0)[0][: round(3 * twin.control_hz)]
    truth = in_the_twin(twin, commands)
    tight = driven(twin, nothing_hidden(twin), commands)
    assert np.ptp(truth, axis=0).max() > 0.3
    # What remains: the friction that sits at the link's bearing, the grease, the flank's compliance.
    scale = np.abs(truth - truth.mean(axis=0)).max()
    assert np.abs(tight - truth).max() < 0.005 * scale


def test_with_play_it_is_not():
    twin = load_twin("so101_tabletop")
    commands = teleop_commands(twin, seed=1, episodes=[0], seconds=4.0)[0]
    truth = in_the_twin(twin, commands)
    tight, loose = (driven(twin, nothing_hidden(twin, play=play), commands) for play in (1e-6, 1e-2))
    assert np.abs(loose - truth).max() > 4 * np.abs(tight - truth).max()


def test_a_reversed_command_does_not_move_the_link_until_the_motor_has_crossed_the_play():
    twin = load_twin("so101_tabletop")
    play = 0.015
    arms = VirtualArms(twin, nothing_hidden(twin, play=play), seed=0, sessions=[0], nthread=1)
    geared, home, step = arms._geared, twin.units.from_si(twin.home()[0][twin.joint_qpos]), 1 / 480
    link, motor = geared.link_qpos[0], geared.motor_qpos[0]

    def ramp(start, stop, seconds):
        track = []
        for part in np.linspace(0, 1, round(seconds / step)):
            command = home.copy()
            command[0] += np.degrees(start + part * (stop - start))
            arms.command(command[None])
            arms.wait_until(float(arms.now()[0]) + step)
            track.append(arms._qpos[0, [link, motor]])
        return np.array(track)

    there = ramp(0.0, 0.1, 1.0)
    assert there[-1, 0] - there[-1, 1] == pytest.approx(-play / 2, abs=2e-4)  # the motor pushes on one flank
    back = ramp(0.1, 0.0, 1.0)
    turned = int(np.argmax(back[:, 1]))
    rest = back[turned:, 0].max()
    moved = turned + int(np.argmax(back[turned:, 0] < rest - 3e-4))
    crossed = back[turned, 1] - back[moved, 1]
    assert crossed == pytest.approx(play, rel=0.1)
    assert back[moved, 0] - back[moved, 1] == pytest.approx(play / 2, abs=3e-4)  # now on the other
    free = back[turned:moved]
    assert np.ptp(free[:, 1]) > 30 * np.ptp(free[:, 0])


def test_the_play_is_never_left_further_than_the_flanks_give():
    twin = load_twin("so101_tabletop")
    arms = VirtualArms(twin, nothing_hidden(twin, play=0.01), seed=0, sessions=range(3), nthread=1)
    commands, geared = teleop_commands(twin, seed=2, episodes=range(3), seconds=5.0), arms._geared
    gaps = []
    for step in range(commands.shape[1]):
        arms.wait_until(step / 30)
        arms.command(commands[:, step])
        gaps.append(arms._qpos[:, geared.link_qpos] - arms._qpos[:, geared.motor_qpos])
    assert 0.01 / 2 < np.abs(gaps).max() < 0.01 / 2 + STS3215_RESOLUTION  # the worst impact: not one count
    assert np.quantile(np.abs(gaps), 0.95) < 0.01 / 2 + 2e-4


@pytest.mark.parametrize("name", ROBOTS)
def test_the_geared_model_weighs_what_the_twin_weighs_and_stands_where_it_stands(name):
    twin = load_twin(name)
    geared = add_robot_gears(twin)
    plain, model = twin.model, geared.twin.model
    rotors = len(twin.robot.joints) * 1e-6
    assert model.body_mass.sum() == pytest.approx(plain.body_mass.sum() + rotors, rel=1e-9)
    assert model.nu == plain.nu
    home = geared.convert_qpos(twin, twin.home()[0])
    np.testing.assert_array_equal(home[geared.link_qpos], twin.home()[0][twin.joint_qpos])
    np.testing.assert_array_equal(home[geared.motor_qpos], home[geared.link_qpos])
    # The motor side has the joint's friction, damping and reflected inertia; the link side none of them.
    np.testing.assert_array_equal(model.dof_armature[geared.motor_dof], plain.dof_armature[twin.joint_qvel])
    np.testing.assert_array_equal(model.dof_damping[geared.motor_dof], plain.dof_damping[twin.joint_qvel])
    assert not model.dof_armature[geared.link_dof].any()


def test_a_twin_that_has_gears_already_is_not_given_others():
    """The same hidden play in the plain twin and in the geared one."""
    plain, geared = load_twin("so101_tabletop"), load_twin("so101_tabletop_geared")
    dry = {f"joint/{name}/frictionloss": 0.06 for name in plain.robot.joints}
    commands = teleop_commands(plain, seed=1, episodes=[0], seconds=4.0)[0][:60]
    ways = [driven(twin, nothing_hidden(twin, play=0.012, params=dry), commands) for twin in (plain, geared)]
    np.testing.assert_allclose(ways[0], ways[1], atol=1e-9)
    assert add_robot_gears(geared).twin.model.nq == add_robot_gears(plain).twin.model.nq
