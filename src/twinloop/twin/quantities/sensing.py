"""Quantities of sensing devices: cameras, depth cameras, lidars, inertial units, force sensors, servo feedback.

Lens, shutter and clock are in `camera_optics`. The defaults are those of ideal sensors, which report true values at
every frame. The ideal camera fills its wells with linear light of 1 in an instant, adds no noise, and encodes the
image as sRGB.

The sensors of a twin are written into its model as texts ``sensor/<kind>/<name>`` (`twin.devices`), so the model
alone determines its parameters. The numbers of devices are in ``twin/devices/*.yaml``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Literal

import mujoco

from twinloop.twin.quantities.kinds import ONSETS, FitDeclaration, Quantity, reported

_camera = partial(reported, "camera")
_chain = partial(_camera, term="camera chain")
_late = partial(_camera, term="camera delay", neutral=0.0)


def _distortion(quantity: str, meaning: str) -> Quantity:
    return _chain(quantity, "1", -100.0, 100.0, 0.0, meaning)


_RADIAL = "radial distortion of OpenCV's models: {}"

CAMERA_OPTICS: tuple[Quantity, ...] = (
    _camera(
        "frame_rate",
        "Hz",
        0.0,
        1e4,
        0.0,
        "pictures per second, on a clock of their own; 0: one when asked for",
    ),
    _chain("frame_phase", "1", 0.0, 1.0, 0.0, "part of their period after which pictures begin"),
    _late("latency", "s", 0.0, 1.0, 0.0, "age of a picture, from the middle of its exposure to its delivery"),
    _late("latency_jitter", "s", 0.0, 1.0, 0.0, "largest extra age of a picture, uniform from none to this"),
    _late("drop_rate", "1", 0.0, 1.0, 0.0, "probability that a picture never arrives, and the one before stands"),
    _camera("duplicate_rate", "1", 0.0, 1.0, 0.0, "probability that the picture before arrives again in its place"),
    _chain(
        "readout",
        "s",
        0.0,
        1.0,
        0.0,
        "time from the beginning of the first row's exposure to that of the last",
    ),
    _distortion("lens_k1", _RADIAL.format("of r² (pinhole) or θ² (fisheye)")),
    _distortion("lens_k2", _RADIAL.format("of r⁴ or θ⁴")),
    _distortion("lens_k3", _RADIAL.format("of r⁶ or θ⁶")),
    _distortion("lens_k4", _RADIAL.format("of r² in the denominator (pinhole), or of θ⁸ (fisheye)")),
    _distortion("lens_k5", _RADIAL.format("of r⁴ in the denominator (pinhole)")),
    _distortion("lens_k6", _RADIAL.format("of r⁶ in the denominator (pinhole)")),
    _distortion("lens_p1", "tangential distortion of OpenCV's pinhole model, mostly downwards"),
    _distortion("lens_p2", "tangential distortion of OpenCV's pinhole model, mostly to the right"),
    _chain("chromatic_red", "1", 0.9, 1.1, 1.0, "size of the red picture over the green one's"),
    _chain("chromatic_blue", "1", 0.9, 1.1, 1.0, "size of the blue picture over the green one's"),
    _chain("blur", "px", 0.0, 64.0, 0.0, "standard deviation of the spot that the lens makes of a point"),
)


def _exposure() -> Iterator[Quantity]:
    """How much of the light is gathered, and how much that is made of it."""
    yield _chain(
        "exposure_time",
        "s",
        0.0,
        1.0,
        0.0,
        "how long a pixel gathers light; where exposure is automatic, at longest; 0: an instant that fills the well",
    )
    yield _chain("gain", "1", 1.0, 256.0, 1.0, "analog gain, where exposure is not automatic; 1: a full well is white")
    yield _chain("exposure_compensation", "EV", -8.0, 8.0, 0.0, "stops by which pictures are exposed more than usual")
    yield _chain("electron_rate", "e⁻/s", 1.0, 1e12, 1e6, "electrons that light of 1 frees in a pixel behind green")
    yield _camera("full_well", "e⁻", 10.0, 1e7, 1e4, "electrons that a pixel holds")
    yield _chain("exposure_target", "1", 0.01, 0.9, 0.18, "mean of the picture's linear values sought automatically")
    yield _chain("exposure_highlight", "1", 0.0, 0.99, 0.0, "least mean of the brightest 2 % sought alike; 0: none")
    yield _chain("exposure_lag", "s", 0.0, 60.0, 0.0, "time constant with which automatic exposure follows the light")
    yield _chain("exposure_time_min", "s", 1e-6, 1.0, 1e-6, "shortest exposure chosen automatically")
    yield _camera("gain_max", "1", 1.0, 256.0, 16.0, "largest gain chosen automatically")


def _optics() -> Iterator[Quantity]:
    """What happens to light on its way that depends on no geometry."""
    yield _chain("vignetting", "1", 0.0, 0.99, 0.0, "part of the light that a corner loses, falling off as cos⁴")
    yield _camera("veiling_glare", "1", 0.0, 0.9, 0.0, "part of the light that the lens scatters widely")
    yield _camera("glare_width", "1", 0.01, 10.0, 0.3, "standard deviation of that scattering, in picture heights")
    yield _camera("ghost", "1", 0.0, 0.5, 0.0, "part of the light that returns mirrored at the picture's middle")
    yield _camera("dust_count", "1", 0.0, 500.0, 0.0, "specks of dust to expect on a picture")
    yield _camera("dust_radius", "1", 1e-3, 0.5, 0.01, "median radius of a speck's shadow, in picture heights")
    yield _camera("dust_depth", "1", 0.0, 1.0, 0.3, "largest part of the light that a speck takes")


def _noise() -> Iterator[Quantity]:
    """Yield the quantities of noise, which differs between images and pixels."""
    yield _chain("noise_scale", "1", 0.0, 10.0, 0.0, "factor on all that changes by chance from picture to picture")
    yield _camera("read_noise", "e⁻", 0.0, 1e3, 0.0, "standard deviation of reading a pixel, before the gain")
    yield _camera("adc_noise", "e⁻", 0.0, 1e3, 0.0, "the same after the gain, divided by it")
    yield _camera("row_noise", "e⁻", 0.0, 1e3, 0.0, "the same, common to the pixels of a row")
    yield _camera("dark_current", "e⁻/s", 0.0, 1e6, 0.0, "electrons that a pixel gathers without light")
    yield _camera("prnu", "1", 0.0, 0.3, 0.0, "standard deviation of a pixel's response, fixed (EMVA 1288)")
    yield _camera("dsnu", "e⁻", 0.0, 1e3, 0.0, "standard deviation of a pixel's dark signal, fixed (EMVA 1288)")
    yield _camera("column_noise", "e⁻", 0.0, 1e3, 0.0, "the same, common to the pixels of a column, fixed")


def _colour() -> Iterator[Quantity]:
    """How electrons behind filters become colours, and colours display values."""
    yield _camera("red_response", "1", 0.05, 5.0, 1.0, "electrons that white light frees behind red, against green")
    yield _camera("blue_response", "1", 0.05, 5.0, 1.0, "electrons that white light frees behind blue, against green")
    yield _chain("white_balance_red", "1", 0.2, 5.0, 1.0, "red of white after white balance, against green")
    yield _chain("white_balance_blue", "1", 0.2, 5.0, 1.0, "blue of white after white balance, against green")
    yield _chain("white_balance_drift", "1", 0.0, 0.5, 0.0, "standard deviation of the logarithms of both in time")
    yield _chain("white_balance_time", "s", 0.01, 1e4, 10.0, "time over which that drift forgets itself")
    yield _chain("saturation", "1", 0.0, 4.0, 1.0, "distance of colours from grey, against true ones")
    yield _camera("brightness", "1", -0.5, 0.5, 0.0, "added to display values")
    yield _chain("contrast", "1", 0.2, 5.0, 1.0, "steepness of display values in their middle")
    yield _camera("gamma", "1", 0.2, 5.0, 1.0, "exponent of display values; above 1 is darker")
    yield _camera("sharpness", "1", 0.0, 5.0, 0.0, "how much edges are enhanced")
    yield _camera("jpeg_quality", "1", 1.0, 100.0, 85.0, "quality of JPEG pictures by the IJG's scale, where they are")
    yield _camera("video_crf", "1", 0.0, 51.0, 23.0, "constant rate factor of H.264 pictures, where they are")


CAMERA_SENSORS: tuple[Quantity, ...] = (*_exposure(), *_optics(), *_noise(), *_colour())


_RIGHT = math.pi / 2


def _triangulated() -> Iterator[Quantity]:
    """What cameras have that compare two views."""
    yield reported("depth", "disparity_noise", "px", 0.0, 10.0, 0.0, "standard deviation of a disparity")
    yield reported("depth", "disparity_bias", "px", -10.0, 10.0, 0.0, "error of every disparity, as of a bent rig")


def _timed() -> Iterator[Quantity]:
    """What cameras have that time their light."""
    yield reported("depth", "range_bias", "m", -1.0, 1.0, 0.0, "error of every distance along a pixel's ray")
    yield reported("depth", "range_noise", "m", 0.0, 1.0, 0.0, "standard deviation of a distance up to 0.5 m")
    yield reported("depth", "range_noise_slope", "1", 0.0, 1.0, 0.0, "growth of that with distance beyond 0.5 m")
    yield reported("depth", "wiggle_amplitude", "m", 0.0, 0.5, 0.0, "systematic error that oscillates with distance")
    yield reported("depth", "amplitude_limit", "1/m²", 0.0, 1e6, 0.0, "weakest light that is measured; 1: white at 1 m")


def _seen() -> Iterator[Quantity]:
    """What every depth camera has."""
    yield reported("depth", "scale_error", "1", -0.2, 0.2, 0.0, "relative error of every distance")
    yield reported("depth", "edge_noise", "px", 0.0, 10.0, 0.0, "standard deviation of how far aside a pixel looks")
    yield reported("depth", "grazing_limit", "rad", 0.1, _RIGHT, _RIGHT, "incidence beyond which all is lost")
    yield reported("depth", "grazing_dropout", "1", 0.0, 1.0, 0.0, "part of the pixels lost near that incidence")
    yield reported("depth", "dark_limit", "1", 0.0, 1.0, 0.0, "brightness below which pixels begin to be lost")
    yield reported("depth", "specular_dropout", "1", 0.0, 1.0, 0.0, "part of the pixels lost on a perfect mirror")


def _scanned() -> Iterator[Quantity]:
    """What lidars have."""
    yield reported("lidar", "scale_error", "1", -0.2, 0.2, 0.0, "relative error of every distance")
    yield reported("lidar", "range_bias", "m", -1.0, 1.0, 0.0, "error of every distance")
    yield reported("lidar", "range_noise", "m", 0.0, 1.0, 0.0, "standard deviation of a distance met head-on")
    yield reported("lidar", "range_noise_slope", "1", 0.0, 1.0, 0.0, "growth of that with distance")
    yield reported("lidar", "incidence_noise", "1", 0.0, 100.0, 0.0, "relative growth of that with 1/cos of incidence")
    yield reported("lidar", "angle_noise", "rad", 0.0, 0.1, 0.0, "standard deviation of azimuth and of elevation")
    yield reported("lidar", "divergence", "rad", 0.0, 0.1, 0.0, "full width of a beam, at 1/e² of its middle")
    yield reported("lidar", "drop_threshold", "1/m²", 0.0, 1e6, 0.0, "weakest return that is noticed; 1: white at 1 m")
    yield reported(
        "lidar",
        "drop_rate",
        "1",
        0.0,
        1.0,
        0.0,
        "part of all returns that is lost whatever they are",
        term="camera delay",
        neutral=0.0,
    )


RANGING: tuple[Quantity, ...] = (*_seen(), *_triangulated(), *_timed(), *_scanned())


Reporting = Literal["imu", "force_torque", "servo"]
_AXES = ("x", "y", "z")


def _sampling(device: Reporting) -> Iterator[Quantity]:
    """Yield the quantities of sampling: times, filter, delay."""
    yield reported(device, "rate", "Hz", 0.0, 1e5, 0.0, "samples per second, on a clock of their own; 0: one per frame")
    yield reported(device, "phase", "1", 0.0, 1.0, 0.0, "part of their period after which samples begin")
    late = FitDeclaration(first=True, scanned=True, excitation=ONSETS)
    yield reported(device, "delay", "s", 0.0, 1.0, 0.0, "age of a sample when it is delivered", fit=late)
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


SENSOR_TEXT = "sensor/{}/{}"

SENSING: tuple[Quantity, ...] = (*CAMERA_SENSORS, *CAMERA_OPTICS, *RANGING, *INERTIAL)


def sensor_members(model: mujoco.MjModel, device: str) -> list[str]:
    """Names of a model's sensors of one kind of device."""
    prefix = SENSOR_TEXT.format(device, "")
    names = (mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_TEXT, i) or "" for i in range(model.ntext))
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
