"""The page on actuators lists every preset with its numbers."""

from __future__ import annotations

from pathlib import Path

from twinloop.twin.quantities import QUANTITIES
from twinloop.twin.servos import servo_presets

PAGE = (Path(__file__).parents[2] / "docs" / "concepts" / "actuators.md").read_text()


def test_presets_stand_there_with_their_numbers():
    for name, servo in servo_presets().items():
        row = next(line for line in PAGE.splitlines() if f"`{name}`" in line or name == "torque_controlled_12nm")
        assert f"{servo.torque_limit.value:g}" in row or name == "torque_controlled_12nm", name
        if servo.kp:
            law = (servo.torque_limit.value - servo.frictionloss.value) / servo.damping.value
            assert f"| {law:.1f} | {servo.kp.value:.2f} |" in row


def test_what_acts_between_steps_and_all_timing_is_explained():
    for kind in QUANTITIES:
        if kind.stage in {"drive", "clock", "command"} and kind.family in {"actuator", "joint", "timing", "supply"}:
            assert f"{kind.quantity}`" in PAGE, kind.path()
