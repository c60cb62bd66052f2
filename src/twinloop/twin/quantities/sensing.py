"""Declare the quantities of cameras, depth cameras, lidars, inertial units, force sensors and servo feedback.

The defaults are those of ideal sensors, which report true values at every frame. The ideal camera has no exposure time
and no noise. A linear light value of 1 gives the largest pixel value, and the image is encoded as sRGB. `CAMERA_OPTICS`
has the quantities of a camera's lens, shutter and clock.

The sensors of a twin are written into its model as texts ``sensor/<kind>/<name>`` (`twin.devices`), so that the model
alone determines its parameters. The values of real devices are in ``twin/devices/*.yaml``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Literal

import mujoco

from twinloop.twin.quantities.kinds import ONSETS, FitDeclaration, Quantity, sensor_quantity

_camera = partial(sensor_quantity, "camera")
_chain = partial(_camera, term="camera chain")
_late = partial(_camera, term="camera delay", neutral=0.0)


def _distortion_quantity(quantity: str, meaning: str) -> Quantity:
    return _chain(quantity, "1", -100.0, 100.0, 0.0, meaning)


_RADIAL = "radial distortion of OpenCV's models: {}"

CAMERA_OPTICS: tuple[Quantity, ...] = (
    _camera(
        "frame_rate",
        "Hz",
        0.0,
        1e4,
        0.0,
        "images per second, by the camera's own clock; 0: one at every request",
    ),
    _chain("frame_phase", "1", 0.0, 1.0, 0.0, "phase of the first image, as a fraction of the image period"),
    _late("latency", "s", 0.0, 1.0, 0.0, "age of an image, from the middle of its exposure to its delivery"),
    _late("latency_jitter", "s", 0.0, 1.0, 0.0, "largest extra age of an image; uniform from 0 to this"),
    _late("drop_rate", "1", 0.0, 1.0, 0.0, "probability that an image is lost and the previous one is kept"),
    _camera("duplicate_rate", "1", 0.0, 1.0, 0.0, "probability that the previous image is delivered again instead"),
    _chain(
        "readout",
        "s",
        0.0,
        1.0,
        0.0,
        "time between the starts of exposure of the first and the last row",
    ),
    _distortion_quantity("lens_k1", _RADIAL.format("of r² (pinhole) or θ² (fisheye)")),
    _distortion_quantity("lens_k2", _RADIAL.format("of r⁴ or θ⁴")),
    _distortion_quantity("lens_k3", _RADIAL.format("of r⁶ or θ⁶")),
    _distortion_quantity("lens_k4", _RADIAL.format("of r² in the denominator (pinhole), or of θ⁸ (fisheye)")),
    _distortion_quantity("lens_k5", _RADIAL.format("of r⁴ in the denominator (pinhole)")),
    _distortion_quantity("lens_k6", _RADIAL.format("of r⁶ in the denominator (pinhole)")),
    _distortion_quantity("lens_p1", "tangential distortion p1 of OpenCV's pinhole model, mostly downwards"),
    _distortion_quantity("lens_p2", "tangential distortion p2 of OpenCV's pinhole model, mostly to the right"),
    _chain("chromatic_red", "1", 0.9, 1.1, 1.0, "size of the red image relative to the green one"),
    _chain("chromatic_blue", "1", 0.9, 1.1, 1.0, "size of the blue image relative to the green one"),
    _chain("blur", "px", 0.0, 64.0, 0.0, "standard deviation of the lens's image of a point"),
)


def _exposure_quantities() -> Iterator[Quantity]:
    """Yield the quantities of a camera's exposure and gain."""
    yield _chain(
        "exposure_time",
        "s",
        0.0,
        1.0,
        0.0,
        "exposure time, the longest one with automatic exposure; 0: an instant in which white fills the well",
    )
    yield _chain("gain", "1", 1.0, 256.0, 1.0, "analog gain without automatic exposure; 1: a full well is white")
    yield _chain("exposure_compensation", "EV", -8.0, 8.0, 0.0, "exposure compensation in stops; positive is brighter")
    yield _chain("electron_rate", "e⁻/s", 1.0, 1e12, 1e6, "electron rate of a green pixel in linear light of 1")
    yield _camera("full_well", "e⁻", 10.0, 1e7, 1e4, "largest number of electrons of a pixel")
    yield _chain("exposure_target", "1", 0.01, 0.9, 0.18, "mean linear value at which automatic exposure aims")
    yield _chain("exposure_highlight", "1", 0.0, 0.99, 0.0, "its least mean of the brightest 2 %; 0: none")
    yield _chain("exposure_lag", "s", 0.0, 60.0, 0.0, "time constant of automatic exposure")
    yield _chain("exposure_time_min", "s", 1e-6, 1.0, 1e-6, "shortest exposure time of automatic exposure")
    yield _camera("gain_max", "1", 1.0, 256.0, 16.0, "largest gain of automatic exposure")


def _optics_quantities() -> Iterator[Quantity]:
    """Yield the quantities of a camera's vignetting, scattered light, ghost images and dust."""
    yield _chain("vignetting", "1", 0.0, 0.99, 0.0, "fraction of light lost in the corners; falls off as cos⁴")
    yield _camera("veiling_glare", "1", 0.0, 0.9, 0.0, "fraction of light that the lens scatters over the image")
    yield _camera("glare_width", "1", 0.01, 10.0, 0.3, "standard deviation of that scattering, in image heights")
    yield _camera("ghost", "1", 0.0, 0.5, 0.0, "fraction of light in the ghost image, mirrored at the image centre")
    yield _camera("dust_count", "1", 0.0, 500.0, 0.0, "expected number of dust specks in an image")
    yield _camera("dust_radius", "1", 1e-3, 0.5, 0.01, "median radius of a speck's shadow, in image heights")
    yield _camera("dust_depth", "1", 0.0, 1.0, 0.3, "largest fraction of light that a speck absorbs")


def _noise_quantities() -> Iterator[Quantity]:
    """Yield the quantities of a camera's noise: temporal noise, and noise that is fixed per pixel."""
    yield _chain("noise_scale", "1", 0.0, 10.0, 0.0, "factor on all noise that changes from image to image")
    yield _camera("read_noise", "e⁻", 0.0, 1e3, 0.0, "standard deviation of the read noise of a pixel, before gain")
    yield _camera("adc_noise", "e⁻", 0.0, 1e3, 0.0, "standard deviation of noise after the gain, divided by the gain")
    yield _camera("row_noise", "e⁻", 0.0, 1e3, 0.0, "standard deviation of noise common to a row of pixels")
    yield _camera("dark_current", "e⁻/s", 0.0, 1e6, 0.0, "electron rate of a pixel without light")
    yield _camera("prnu", "1", 0.0, 0.3, 0.0, "fixed deviation of the pixels' response (EMVA 1288)")
    yield _camera("dsnu", "e⁻", 0.0, 1e3, 0.0, "fixed deviation of the pixels' dark signal (EMVA 1288)")
    yield _camera("column_noise", "e⁻", 0.0, 1e3, 0.0, "fixed deviation common to a column of pixels")


def _colour_quantities() -> Iterator[Quantity]:
    """Yield the quantities of a camera's colour response, white balance, display values and compression."""
    yield _camera("red_response", "1", 0.05, 5.0, 1.0, "red pixels' response to white light, relative to green")
    yield _camera("blue_response", "1", 0.05, 5.0, 1.0, "blue pixels' response to white light, relative to green")
    yield _chain("white_balance_red", "1", 0.2, 5.0, 1.0, "red of white after white balance, relative to green")
    yield _chain("white_balance_blue", "1", 0.2, 5.0, 1.0, "blue of white after white balance, relative to green")
    yield _chain("white_balance_drift", "1", 0.0, 0.5, 0.0, "standard deviation in time of the logarithms of both")
    yield _chain("white_balance_time", "s", 0.01, 1e4, 10.0, "correlation time of that drift")
    yield _chain("saturation", "1", 0.0, 4.0, 1.0, "colour saturation; 1: true colours, 0: grey")
    yield _camera("brightness", "1", -0.5, 0.5, 0.0, "offset added to display values")
    yield _chain("contrast", "1", 0.2, 5.0, 1.0, "slope of display values at mid-grey")
    yield _camera("gamma", "1", 0.2, 5.0, 1.0, "exponent of display values; above 1 is darker")
    yield _camera("sharpness", "1", 0.0, 5.0, 0.0, "strength of edge enhancement")
    yield _camera("jpeg_quality", "1", 1.0, 100.0, 85.0, "IJG quality of JPEG compression, if the camera has it")
    yield _camera("video_crf", "1", 0.0, 51.0, 23.0, "constant rate factor of H.264, if the camera has it")


CAMERA_SENSORS: tuple[Quantity, ...] = (
    *_exposure_quantities(),
    *_optics_quantities(),
    *_noise_quantities(),
    *_colour_quantities(),
)


_RIGHT = math.pi / 2


def _triangulation_quantities() -> Iterator[Quantity]:
    """Yield the quantities of depth cameras that triangulate: stereo and structured light."""
    yield sensor_quantity("depth", "disparity_noise", "px", 0.0, 10.0, 0.0, "standard deviation of the disparity")
    yield sensor_quantity(
        "depth", "disparity_bias", "px", -10.0, 10.0, 0.0, "constant error from the pair's calibration"
    )


def _time_of_flight_quantities() -> Iterator[Quantity]:
    """Yield the quantities of time-of-flight depth cameras."""
    yield sensor_quantity("depth", "range_bias", "m", -1.0, 1.0, 0.0, "constant error of distances along a pixel's ray")
    yield sensor_quantity("depth", "range_noise", "m", 0.0, 1.0, 0.0, "standard deviation of distances up to 0.5 m")
    yield sensor_quantity("depth", "range_noise_slope", "1", 0.0, 1.0, 0.0, "growth of range_noise per m beyond 0.5 m")
    yield sensor_quantity(
        "depth", "wiggle_amplitude", "m", 0.0, 0.5, 0.0, "systematic error that oscillates with distance"
    )
    yield sensor_quantity(
        "depth", "amplitude_limit", "1/m²", 0.0, 1e6, 0.0, "weakest measurable signal; 1: white at 1 m"
    )


def _depth_quantities() -> Iterator[Quantity]:
    """Yield the quantities that every depth camera has."""
    yield sensor_quantity("depth", "scale_error", "1", -0.2, 0.2, 0.0, "relative error of all distances")
    yield sensor_quantity("depth", "edge_noise", "px", 0.0, 10.0, 0.0, "standard deviation of the line of sight")
    yield sensor_quantity(
        "depth", "grazing_limit", "rad", 0.1, _RIGHT, _RIGHT, "incidence angle beyond which pixels are lost"
    )
    yield sensor_quantity("depth", "grazing_dropout", "1", 0.0, 1.0, 0.0, "fraction of pixels lost near that angle")
    yield sensor_quantity("depth", "dark_limit", "1", 0.0, 1.0, 0.0, "brightness below which pixels begin to be lost")
    yield sensor_quantity(
        "depth", "specular_dropout", "1", 0.0, 1.0, 0.0, "fraction of pixels lost on a perfect mirror"
    )


def _lidar_quantities() -> Iterator[Quantity]:
    """Yield the quantities of lidars."""
    yield sensor_quantity("lidar", "scale_error", "1", -0.2, 0.2, 0.0, "relative error of all distances")
    yield sensor_quantity("lidar", "range_bias", "m", -1.0, 1.0, 0.0, "constant error of distances")
    yield sensor_quantity(
        "lidar", "range_noise", "m", 0.0, 1.0, 0.0, "standard deviation of distances at normal incidence"
    )
    yield sensor_quantity("lidar", "range_noise_slope", "1", 0.0, 1.0, 0.0, "growth of range_noise per m of distance")
    yield sensor_quantity(
        "lidar", "incidence_noise", "1", 0.0, 100.0, 0.0, "growth of range_noise with 1/cos of incidence"
    )
    yield sensor_quantity("lidar", "angle_noise", "rad", 0.0, 0.1, 0.0, "standard deviation of azimuth and elevation")
    yield sensor_quantity(
        "lidar", "divergence", "rad", 0.0, 0.1, 0.0, "full beam width, at 1/e² of the central intensity"
    )
    yield sensor_quantity(
        "lidar", "drop_threshold", "1/m²", 0.0, 1e6, 0.0, "weakest detectable return; 1: white at 1 m"
    )
    yield sensor_quantity(
        "lidar",
        "drop_rate",
        "1",
        0.0,
        1.0,
        0.0,
        "fraction of all returns that is lost, independent of strength",
        term="camera delay",
        neutral=0.0,
    )


RANGING: tuple[Quantity, ...] = (
    *_depth_quantities(),
    *_triangulation_quantities(),
    *_time_of_flight_quantities(),
    *_lidar_quantities(),
)


Reporting = Literal["imu", "force_torque", "servo"]
_AXES = ("x", "y", "z")


def _sampling_quantities(device: Reporting) -> Iterator[Quantity]:
    """Yield the quantities of a sensor's sampling: rate, phase, delay and low-pass filter."""
    yield sensor_quantity(device, "rate", "Hz", 0.0, 1e5, 0.0, "samples per second, by its own clock; 0: one per frame")
    yield sensor_quantity(
        device, "phase", "1", 0.0, 1.0, 0.0, "phase of the first sample, as a fraction of the sample period"
    )
    late = FitDeclaration(first=True, scanned=True, excitation=ONSETS)
    yield sensor_quantity(device, "delay", "s", 0.0, 1.0, 0.0, "age of a sample when it is delivered", fit=late)
    yield sensor_quantity(
        device,
        "bandwidth",
        "Hz",
        0.0,
        1e5,
        0.0,
        "half-power frequency of a first-order low-pass before sampling; 0: none",
    )


def _imu_quantities() -> Iterator[Quantity]:
    yield from _sampling_quantities("imu")
    for triad, what, unit, most in (
        ("gyro", "angular rate", "rad/s", 200.0),
        ("accel", "specific force", "m/s²", 1e4),
    ):
        yield sensor_quantity(
            "imu",
            f"{triad}_noise",
            f"{unit}/√Hz",
            0.0,
            1.0,
            0.0,
            f"white noise of the {what}, IEEE 952's N: N/√Δt in each sample; a data sheet's one-sided density over √2",
        )
        yield sensor_quantity(
            "imu", f"{triad}_walk", f"{unit}/√s", 0.0, 1.0, 0.0, f"random walk of the {what}'s bias, IEEE 952's K"
        )
        yield sensor_quantity(
            "imu",
            f"{triad}_instability",
            unit,
            0.0,
            1.0,
            0.0,
            f"flicker noise of the {what}, IEEE 952's B: the Allan deviation's floor over 0.664",
        )
        for axis in _AXES:
            yield sensor_quantity(
                "imu",
                f"{triad}_bias_{axis}",
                unit,
                -100.0,
                100.0,
                0.0,
                f"bias of the {what} along {axis}",
            )
        for axis in _AXES:
            yield sensor_quantity(
                "imu", f"{triad}_scale_error_{axis}", "1", -0.5, 0.5, 0.0, f"relative error of the {what} along {axis}"
            )
        for reads, felt in (pair for pair in ("xy", "xz", "yx", "yz", "zx", "zy")):
            meaning = f"fraction of the {what} along {felt} that axis {reads} measures"
            yield sensor_quantity("imu", f"{triad}_misalignment_{reads}{felt}", "1", -0.5, 0.5, 0.0, meaning)
        if triad == "gyro":
            for axis in _AXES:
                yield sensor_quantity(
                    "imu",
                    f"gyro_g_sensitivity_{axis}",
                    "rad·s/m",
                    -1.0,
                    1.0,
                    0.0,
                    f"angular rate reported along {axis} per specific force along {axis}",
                )
        yield sensor_quantity("imu", f"{triad}_range", unit, 0.0, most, 0.0, f"largest {what} reported; 0: no limit")
        yield sensor_quantity("imu", f"{triad}_step", unit, 0.0, 10.0, 0.0, f"quantization step of the {what}; 0: none")


def _force_torque_quantities() -> Iterator[Quantity]:
    yield from _sampling_quantities("force_torque")
    parts = (("force", "N", 1e5), ("torque", "N·m", 1e4))
    for kind, unit, most in parts:
        for axis in _AXES:
            yield sensor_quantity(
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
            meaning = f"{kind} reported along {axis} without load, after taring"
            yield sensor_quantity("force_torque", f"{kind}_bias_{axis}", unit, -most, most, 0.0, meaning)
    for kind, unit, most in parts:
        for axis in _AXES:
            meaning = f"largest {kind} reported along {axis}, reference for hysteresis, crosstalk; 0: no limit"
            yield sensor_quantity("force_torque", f"{kind}_range_{axis}", unit, 0.0, most, 0.0, meaning)
    for kind, unit, most in parts:
        yield sensor_quantity(
            "force_torque", f"{kind}_walk", f"{unit}/√s", 0.0, most, 0.0, f"random walk of the {kind}s' zero point"
        )
        yield sensor_quantity(
            "force_torque", f"{kind}_scale_error", "1", -0.5, 0.5, 0.0, f"relative error of all {kind}s"
        )
        yield sensor_quantity(
            "force_torque", f"{kind}_step", unit, 0.0, most, 0.0, f"quantization step of a {kind}; 0: none"
        )
    yield sensor_quantity(
        "force_torque",
        "crosstalk",
        "1",
        0.0,
        0.5,
        0.0,
        "largest reading of a component due to another, both relative to their ranges; drawn per pair and episode",
    )
    yield sensor_quantity(
        "force_torque", "hysteresis", "1", 0.0, 0.5, 0.0, "width of the load-unload loop, relative to the range"
    )


def _servo_quantities() -> Iterator[Quantity]:
    yield from _sampling_quantities("servo")
    yield sensor_quantity("servo", "velocity_noise", "rad/s", 0.0, 100.0, 0.0, "standard deviation of a speed reading")
    yield sensor_quantity("servo", "velocity_ripple", "1", 0.0, 1.0, 0.0, "tachometer ripple relative to the speed")
    yield sensor_quantity("servo", "velocity_ripple_order", "1", 0.0, 1e5, 1.0, "tachometer ripples per turn")
    yield sensor_quantity("servo", "velocity_step", "rad/s", 0.0, 10.0, 0.0, "quantization step of the speed; 0: none")
    yield sensor_quantity("servo", "current_noise", "A", 0.0, 1e2, 0.0, "standard deviation of a current reading")
    yield sensor_quantity("servo", "current_bias", "A", -10.0, 10.0, 0.0, "current reported when none flows")
    yield sensor_quantity("servo", "current_scale_error", "1", -0.5, 0.5, 0.0, "relative error of the current")
    yield sensor_quantity("servo", "current_range", "A", 0.0, 1e3, 0.0, "largest current reported; 0: no limit")
    yield sensor_quantity("servo", "current_step", "A", 0.0, 10.0, 0.0, "quantization step of the current; 0: none")
    yield sensor_quantity("servo", "load_step", "1", 0.0, 1.0, 0.0, "quantization step of the duty; 0: none")
    yield sensor_quantity("servo", "voltage_step", "V", 0.0, 10.0, 0.0, "quantization step of the supply; 0: none")
    yield sensor_quantity(
        "servo", "temperature_step", "K", 0.0, 10.0, 0.0, "quantization step of the temperature; 0: none"
    )
    yield sensor_quantity("servo", "room_temperature", "°C", -40.0, 80.0, 20.0, "temperature of an unused servo")


INERTIAL: tuple[Quantity, ...] = (*_imu_quantities(), *_force_torque_quantities(), *_servo_quantities())


SENSOR_TEXT = "sensor/{}/{}"

SENSING: tuple[Quantity, ...] = (*CAMERA_SENSORS, *CAMERA_OPTICS, *RANGING, *INERTIAL)


def sensor_members(model: mujoco.MjModel, device: str) -> list[str]:
    """Return the names of a model's sensors of one type of device, for example ``camera``."""
    prefix = SENSOR_TEXT.format(device, "")
    names = (mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_TEXT, i) or "" for i in range(model.ntext))
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
