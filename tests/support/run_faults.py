"""What tests of several files share: run faults."""

from __future__ import annotations

import numpy as np

from twinloop.hardware.virtual import VirtualRobot
from twinloop.release.envelope import Envelope
from twinloop.release.envelope_settings import EnvelopeSettings
from twinloop.release.running import Runner
from twinloop.release.running_robot import RunOptions, TimedRobot, offered_contract
from twinloop.twin import load_twin

TWIN = load_twin("so101_tabletop")


ENVELOPE = Envelope(TWIN, EnvelopeSettings(stop_after_s=0.4))


ROBOT = VirtualRobot("so101_tabletop", seed=3)


CONTRACT = offered_contract(ROBOT, hz=30.0)


def ran_with(decider, *, robot=ROBOT, steps=30, patience_s=5.0, robot_patience_s=5.0, watchers=(), **options):
    robot.disconnect()
    spoken = TimedRobot(robot, patience_s=robot_patience_s)
    spoken.connect()
    runner = Runner(spoken, ENVELOPE, decider, watchers)
    try:
        return runner.run(0, RunOptions(steps=steps, patience_s=patience_s, **options))
    finally:
        runner.close()
        spoken.disconnect()


def assert_came_to_rest(ran, *, by: int | None = None) -> None:
    """Assert that the last commands are constant, and that none before broke a limit."""
    issued = ENVELOPE.units.to_si(np.array([step.issued for step in ran.steps]))
    speed = np.diff(issued, axis=0) / ENVELOPE.limits.dt
    assert np.isfinite(issued).all()
    assert (np.abs(speed) <= ENVELOPE.limits.speed + 1e-6).all()
    assert (np.abs(np.diff(speed, axis=0)) <= ENVELOPE.limits.max_speed_change + 1e-6).all()
    if by is not None:
        np.testing.assert_allclose(issued[by:], np.broadcast_to(issued[by], issued[by:].shape), atol=1e-12)
