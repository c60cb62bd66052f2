"""What inertial units, force sensors and servos report: see `sensors.imu`, `sensors.force_torque`, `sensors.servo`.

The defaults are an ideal sensor's, which reports the truth at every frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from twinloop.twin.quantities.kinds import Quantity, reported

Reporting = Literal["imu", "force_torque", "servo"]
_AXES = ("x", "y", "z")


def _sampling(device: Reporting) -> Iterator[Quantity]:
    """When samples are taken, of what, and when they arrive."""
    yield reported(device, "rate", "Hz", 0.0, 1e5, 0.0, "samples per second, on a clock of their own; 0: one per frame")
    yield reported(device, "phase", "1", 0.0, 1.0, 0.0, "part of their period after which samples begin")
    yield reported(device, "delay", "s", 0.0, 1.0, 0.0, "age of a sample when it is delivered")
    yield reported(
        device,
        "bandwidth",
        "Hz",
        0.0,
        1e5,
        0.0,
        "half-power frequency of a first-order low-pass before sampling; 0: none",
    )


def _imu() -> Iterator[Quantity]:
    yield from _sampling("imu")
    for triad, what, unit, most in (
        ("gyro", "angular rate", "rad/s", 200.0),
        ("accel", "specific force", "m/s²", 1e4),
    ):
        yield reported(
            "imu",
            f"{triad}_noise",
            f"{unit}/√Hz",
            0.0,
            1.0,
            0.0,
            f"white noise of the {what}, IEEE 952's N: N/√Δt in each sample; a data sheet's one-sided density over √2",
        )
        yield reported(
            "imu", f"{triad}_walk", f"{unit}/√s", 0.0, 1.0, 0.0, f"random walk of the {what}'s bias, IEEE 952's K"
        )
        yield reported(
            "imu",
            f"{triad}_instability",
            unit,
            0.0,
            1.0,
            0.0,
            f"flicker noise of the {what}, IEEE 952's B: the Allan deviation's floor over 0.664",
        )
        for axis in _AXES:
            yield reported(
                "imu",
                f"{triad}_bias_{axis}",
                unit,
                -100.0,
                100.0,
                0.0,
                f"{what} reported along {axis} where there is none",
            )
        for axis in _AXES:
            yield reported(
                "imu", f"{triad}_scale_error_{axis}", "1", -0.5, 0.5, 0.0, f"relative error of the {what} along {axis}"
            )
        for reads, felt in (pair for pair in ("xy", "xz", "yx", "yz", "zx", "zy")):
            meaning = f"part of the {what} along {felt} that {reads} reads"
            yield reported("imu", f"{triad}_misalignment_{reads}{felt}", "1", -0.5, 0.5, 0.0, meaning)
        if triad == "gyro":
            for axis in _AXES:
                yield reported(
                    "imu",
                    f"gyro_g_sensitivity_{axis}",
                    "rad·s/m",
                    -1.0,
                    1.0,
                    0.0,
                    f"angular rate reported along {axis} per specific force there",
                )
        yield reported("imu", f"{triad}_range", unit, 0.0, most, 0.0, f"largest {what} reported; 0: no limit")
        yield reported("imu", f"{triad}_step", unit, 0.0, 10.0, 0.0, f"size of one count of the {what}; 0: not counted")


def _force_torque() -> Iterator[Quantity]:
    yield from _sampling("force_torque")
    parts = (("force", "N", 1e5), ("torque", "N·m", 1e4))
    for kind, unit, most in parts:
        for axis in _AXES:
            yield reported(
                "force_torque",
                f"{kind}_noise_{axis}",
                unit,
                0.0,
                most,
                0.0,
                f"standard deviation of a {kind} along {axis}",
            )
    for kind, unit, most in parts:
        for axis in _AXES:
            meaning = f"{kind} reported along {axis} without load: what taring left"
            yield reported("force_torque", f"{kind}_bias_{axis}", unit, -most, most, 0.0, meaning)
    for kind, unit, most in parts:
        for axis in _AXES:
            meaning = f"largest {kind} reported along {axis}, to which hysteresis and cross-talk refer; 0: no limit"
            yield reported("force_torque", f"{kind}_range_{axis}", unit, 0.0, most, 0.0, meaning)
    for kind, unit, most in parts:
        yield reported(
            "force_torque", f"{kind}_walk", f"{unit}/√s", 0.0, most, 0.0, f"random walk of the {kind}s' zero"
        )
        yield reported("force_torque", f"{kind}_scale_error", "1", -0.5, 0.5, 0.0, f"relative error of all {kind}s")
        yield reported(
            "force_torque", f"{kind}_step", unit, 0.0, most, 0.0, f"size of one count of a {kind}; 0: not counted"
        )
    yield reported(
        "force_torque",
        "crosstalk",
        "1",
        0.0,
        0.5,
        0.0,
        "largest part that a component reads of another, both in parts of their ranges; drawn per pair and episode",
    )
    yield reported(
        "force_torque", "hysteresis", "1", 0.0, 0.5, 0.0, "width of the loop between loading and unloading, in ranges"
    )


def _servo() -> Iterator[Quantity]:
    yield from _sampling("servo")
    yield reported("servo", "velocity_noise", "rad/s", 0.0, 100.0, 0.0, "standard deviation of a speed reading")
    yield reported("servo", "velocity_ripple", "1", 0.0, 1.0, 0.0, "part of the speed that the tachometer ripples by")
    yield reported("servo", "velocity_ripple_order", "1", 0.0, 1e5, 1.0, "ripples of the tachometer in a turn")
    yield reported("servo", "velocity_step", "rad/s", 0.0, 10.0, 0.0, "size of one count of the speed; 0: not counted")
    yield reported("servo", "current_noise", "A", 0.0, 1e2, 0.0, "standard deviation of a current reading")
    yield reported("servo", "current_bias", "A", -10.0, 10.0, 0.0, "current reported where there is none")
    yield reported("servo", "current_scale_error", "1", -0.5, 0.5, 0.0, "relative error of the current")
    yield reported("servo", "current_range", "A", 0.0, 1e3, 0.0, "largest current reported; 0: no limit")
    yield reported("servo", "current_step", "A", 0.0, 10.0, 0.0, "size of one count of the current; 0: not counted")
    yield reported("servo", "load_step", "1", 0.0, 1.0, 0.0, "size of one count of the duty; 0: not counted")
    yield reported("servo", "voltage_step", "V", 0.0, 10.0, 0.0, "size of one count of the supply; 0: not counted")
    yield reported(
        "servo", "temperature_step", "K", 0.0, 10.0, 0.0, "size of one count of the temperature; 0: not counted"
    )
    yield reported("servo", "room_temperature", "°C", -40.0, 80.0, 20.0, "temperature of a servo that did nothing")


INERTIAL: tuple[Quantity, ...] = (*_imu(), *_force_torque(), *_servo())
