"""A user's own robot defines a few methods; everything else of the protocol comes from the base class."""

import threading
import time

import numpy as np
import pytest

from twinloop.cli.main import main
from twinloop.core.errors import CheckFailedError, InputError, UnknownNameError
from twinloop.core.records import Source
from twinloop.hardware import NotConnectedError, OwnRobot, check_robot, open_robot, record
from twinloop.hardware.driver import RobotDriver
from twinloop.twin import load_twin


class Cart(OwnRobot):
    """A cart that follows its command with a time constant, exactly integrated; a tracker and a camera see it."""

    joints, unit, tracked, cameras = ("slide",), "mm", ("cart.x",), {"front": (16, 32)}

    def __init__(self):
        self.x, self.steps = 0.0, []

    def reset(self, episode):
        self.x, self.steps = 10.0 * episode, []

    def step(self, command, dt):
        self.steps.append(dt)
        self.x = command[0] + (self.x - command[0]) * np.exp(-dt / 0.1)

    def read(self):
        return [self.x]

    def track(self):
        return [1e-3 * self.x]

    def see(self):
        return {"front": np.full((16, 32, 3), int(self.x) % 256, dtype=np.uint8)}


class Arm(OwnRobot):
    joints, unit = ("a", "b"), ("deg", "rad")

    def reset(self, episode):
        self.held, self.closed = np.zeros(2), False

    def send(self, command):
        self.held = np.clip(command, -1.0, 1.0)
        return self.held

    def read(self):
        return self.held

    def close(self):
        self.closed = True


class BlockingArm(OwnRobot):
    """A real robot whose vendor offers one call, which moves and returns after `dt`, or after `takes` of it."""

    source: Source = "real"
    joints, unit = ("a",), "rad"
    takes = 1.0

    def __init__(self):
        self.at, self.calls, self.resets, self.threads = 0.0, [], 0, set()

    def reset(self, episode):
        self.resets += 1

    def step(self, command, dt):
        self.threads.add(threading.current_thread().name)
        self.calls.append((float(command[0]), dt))
        time.sleep(self.takes * dt)
        self.at = float(command[0])

    def read(self):
        return [self.at]


class EarlyArm(BlockingArm):
    takes = 0.2


@pytest.mark.parametrize("kind", [BlockingArm, EarlyArm])
def test_a_real_robot_may_be_moved_by_a_blocking_call(kind):
    arm = kind()
    assert arm.source == "real"
    check_robot(arm)
    arm.calls, driver = [], RobotDriver(arm, patience_s=1.0)
    driver.connect()
    episode = record(driver, np.linspace(0.1, 0.4, 4)[:, None], 50.0)
    driver.disconnect()
    driver.close()
    assert (episode.source, arm.resets) == ("real", 2)
    assert episode.time[-1] >= 0.06  # true times by the computer's clock
    assert [command for command, _ in arm.calls] == pytest.approx([0.1, 0.2, 0.3])
    assert all(0.0 < dt <= 0.02 for _, dt in arm.calls)
    assert arm.threads >= {"robot " + kind.__name__}  # the driver's own thread, which has a time limit


def test_a_blocking_call_gets_every_command_even_if_the_loop_is_late():
    arm = BlockingArm()
    arm.connect()
    start = arm.clock.now()
    for step in (1, 2):
        arm.send_action({"a.pos": 0.1 * step})
        arm.clock.wait_until(start + 0.02 * step)
    arm.clock.wait_until(start)  # no new command: nothing to do
    time.sleep(0.03)
    arm.send_action({"a.pos": 0.3})
    arm.clock.wait_until(start + 0.06)
    arm.send_action({"a.pos": 0.4})
    arm.clock.wait_until(start)  # long passed
    commands, times = zip(*arm.calls, strict=True)
    assert commands == (0.1, 0.2, 0.3, 0.4)
    assert times[2:] == pytest.approx([0.01, 0.01])  # half a period


def test_a_vendor_call_that_never_returns_or_fails_is_a_fault_of_the_driver():
    arm = BlockingArm()
    driver = RobotDriver(arm, patience_s=0.1)
    driver.connect()
    arm.takes = 100.0
    driver.clock.wait_until(driver.clock.now() + 0.01)
    assert "has not answered for 0.1" in driver.clock.fault
    driver.close()


def test_a_source_that_does_not_fit_the_methods_is_named():
    class Odd(Arm):
        source = "sim"

    with pytest.raises(InputError, match=r'Odd has source = "sim", but no step\(command, dt\)'):
        Odd().connect()


def test_a_simulator_follows_the_protocol_and_is_recorded():
    cart = Cart()
    check_robot(cart)
    assert (cart.source, cart.name, cart.origin, cart.episode) == ("sim", "cart", "cart", 1)

    class Named(Cart):
        name = "cell"

    assert (Named().name, Named().origin) == ("cell", "cell")
    cart.connect()
    episode = record(cart, iter(np.full((20, 1), 50.0)), 50.0)
    cart.disconnect()
    np.testing.assert_allclose(np.diff(episode.time), 0.02, atol=1e-9)
    expected = 50.0 + (10.0 - 50.0) * np.exp(-episode.time / 0.1)  # the second session starts at 10 mm
    np.testing.assert_allclose(episode.state[:, 0], expected, rtol=1e-9)
    assert episode.units.joints[0].scale == pytest.approx(1e-3)
    assert not cart.is_connected


def test_the_same_episode_is_the_same_scene_and_a_later_one_another():
    one, other = Cart(), Cart()
    other.episode = 3
    one.connect()
    other.connect()
    assert (one.get_observation()["slide.pos"], other.get_observation()["slide.pos"]) == (0.0, 30.0)
    other.connect()  # already begun
    assert other.episode == 4


def test_a_command_is_held_until_the_next_and_waiting_for_the_past_does_nothing():
    cart = Cart()
    cart.connect()
    cart.send_action({"slide.pos": 5.0})
    for moment in (0.02, 0.05, 0.05, 0.01):
        cart.clock.wait_until(moment)
    assert cart.steps == pytest.approx([0.02, 0.03])
    assert cart.clock.now() == 0.05
    assert cart.get_observation()["environment.cart.x"] == pytest.approx(5e-3 * (1 - np.exp(-0.5)))
    assert cart.get_observation()["front"].shape == (16, 32, 3)


def test_a_real_robot_reports_the_command_as_sent_and_is_closed():
    arm = Arm()
    check_robot(arm)
    assert (arm.source, arm.closed) == ("real", True)
    arm.connect()
    assert arm.send_action({"a.pos": 3.0, "b.pos": 0.5}) == {"a.pos": 1.0, "b.pos": 0.5}
    assert arm.units.joints[0].scale == pytest.approx(np.pi / 180)
    with pytest.raises(UnknownNameError, match=r"c\.pos"):
        arm.send_action({"a.pos": 0.0, "c.pos": 0.0})
    with pytest.raises(InputError, match="not finite"):
        arm.send_action({"a.pos": np.nan, "b.pos": 0.0})


def test_a_robot_with_a_twin_has_its_joints_units_and_ranges():
    class Follower(OwnRobot):
        twin = "so101_tabletop"

        def step(self, command, dt):
            pass

        def read(self):
            return self.units.from_si(np.full(6, 0.5))

    arm, twin = Follower(), load_twin("so101_tabletop")
    check_robot(arm)
    assert (arm.units, tuple(arm.action_features)) == (twin.units, tuple(f"{name}.pos" for name in twin.units.names))
    arm.connect()
    (low, high) = twin.model.joint("gripper").range
    assert arm.get_observation()["gripper.pos"] == pytest.approx(100 * (0.5 - low) / (high - low))


def test_torque_commands_begin_at_zero():
    class Motor(Cart):
        command = "torque"

    motor = Motor()
    motor.episode = 2
    motor.connect()
    motor.clock.wait_until(0.1)
    assert list(motor.action_features) == ["slide.torque"]
    assert motor.x == pytest.approx(20.0 * np.exp(-1.0))  # towards a command of 0, not of the reading


def test_what_is_missing_or_does_not_fit_is_said():
    class Nothing(OwnRobot):
        joints = ("a",)

    class Short(Cart):
        joints = ("a", "b")

    class Units(Cart):
        unit = ("mm", "mm")

    class Image(Cart):
        cameras = {"front": (8, 8)}  # noqa: RUF012

    with pytest.raises(InputError, match=r"Nothing must define read\(\), and step\(command, dt\) or send\(command\)"):
        Nothing().connect()
    with pytest.raises(NotConnectedError, match="connect"):
        Cart().get_observation()
    with pytest.raises(InputError, match=r"return 2 values, and joints and tracked have 3 names"):
        check_robot(Short())
    with pytest.raises(InputError, match="Units has 1 joints and 2 units"):
        _ = Units().units
    with pytest.raises(CheckFailedError, match=r"the image front is uint8 \(16, 32, 3\)"):
        check_robot(Image())


def test_new_classes_follow_the_protocol_and_are_not_overwritten(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, kind in (("my_sim.py", "sim"), ("my_arm.py", "real")):
        assert main(["robot", "new", name, "--kind", kind, "--twin", "so101_tabletop"]) == 0
        robot = open_robot(f"{name}:{'MySim' if kind == 'sim' else 'MyArm'}?option=2")
        assert (robot.source, robot.name, len(robot.units.joints)) == (kind, "so101_follower", 6)
        assert robot.option == 2.0
        assert robot.units.known
        assert len((tmp_path / name).read_text().splitlines()) <= 40
    assert main(["robot", "new", "my_sim.py"]) == 2
    assert main(["robot", "new", "my_sim.txt"]) == 2
    capsys.readouterr()
    assert main(["robot", "check", "my_arm.py:MyArm"]) == 0
    assert "shoulder_pan in deg" in capsys.readouterr().out.replace("\n", " ")
    text = (tmp_path / "my_sim.py").read_text().replace("twin =", "joints, unit = ('a', 'b'), 'range_0_100' #")
    (tmp_path / "ranges.py").write_text(text)
    assert main(["robot", "check", "ranges.py:MySim"]) == 0
    assert "Warning: the ranges of a, b are unknown" in capsys.readouterr().out.replace("\n", " ")
    (tmp_path / "bad.py").write_text(
        (tmp_path / "my_sim.py").read_text().replace("return self.positions", "return [float('nan')] * 6")
    )
    assert main(["robot", "check", "bad.py:MySim"]) == 1
