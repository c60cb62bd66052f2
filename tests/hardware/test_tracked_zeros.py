"""A recording with a tracked tool determines encoder zeros; without the tracker they are not determined."""

from dataclasses import replace

import pytest

from twinloop.hardware import VirtualCell
from twinloop.hardware.motions import plan_motion
from twinloop.hardware.record import add_tool_position, record
from twinloop.identify import FitConfig, identify
from twinloop.simulate import open_backend
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.twin import load_twin

PLANTED = {"sensor/shoulder_pan/offset": -0.08, "sensor/elbow_flex/offset": 0.1}


@pytest.fixture(scope="module")
def log():
    twin, robot = load_twin("so101_tabletop"), VirtualCell(seed=3)
    robot.cell = replace(robot.cell, values={**robot.cell.values, **PLANTED})
    episodes = []
    for number in range(4):
        plan = plan_motion(twin, "random", seconds=6.0, seed=11, episode=number)
        robot.connect()
        episode = record(robot, robot.units.from_si(plan.commands), plan.hz, index=number)
        robot.disconnect()
        episodes.append(add_tool_position(episode, twin.robot.tcp))
    return twin, episodes


def fitted_zeros(log, compare):
    twin, episodes = log
    quantities = ("offset", "kp", "damping", "frictionloss", "delay")
    config = FitConfig(replay=ReplayOptions(compare=compare), quantities=quantities)
    found = identify(twin, episodes, backend=open_backend(), config=config).distribution
    determined = dict(zip(found.names, found.determined, strict=True))
    return {name: (determined[name], found.estimate[name]) for name in PLANTED}


@pytest.mark.slow
def test_a_tracked_tool_determines_the_zeros(log):
    for name, (determined, value) in fitted_zeros(log, ("position", "place/tcp")).items():
        assert determined
        assert value == pytest.approx(PLANTED[name], abs=0.02)


@pytest.mark.slow
def test_joint_readings_alone_do_not_determine_them(log):
    assert not any(determined for determined, _ in fitted_zeros(log, ("position",)).values())
