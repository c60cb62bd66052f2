"""A camera's lens, shutter and clock: see `sensors.camera` (`lens`, `shutter`, `capture`) for the formulas."""

from __future__ import annotations

from functools import partial

from twinloop.twin.quantities.kinds import Quantity, reported

_camera = partial(reported, "camera")


def _distortion(quantity: str, meaning: str) -> Quantity:
    return _camera(quantity, "1", -100.0, 100.0, 0.0, meaning)


_RADIAL = "radial distortion of OpenCV's models: {}"

CAMERA_OPTICS: tuple[Quantity, ...] = (
    reported(
        "camera",
        "frame_rate",
        "Hz",
        0.0,
        1e4,
        0.0,
        "pictures per second, on a clock of their own; 0: one when asked for",
    ),
    _camera("frame_phase", "1", 0.0, 1.0, 0.0, "part of their period after which pictures begin"),
    reported(
        "camera", "latency", "s", 0.0, 1.0, 0.0, "age of a picture, from the middle of its exposure to its delivery"
    ),
    reported(
        "camera", "latency_jitter", "s", 0.0, 1.0, 0.0, "largest extra age of a picture, uniform from none to this"
    ),
    reported(
        "camera", "drop_rate", "1", 0.0, 1.0, 0.0, "probability that a picture never arrives, and the one before stands"
    ),
    reported(
        "camera", "duplicate_rate", "1", 0.0, 1.0, 0.0, "probability that the picture before arrives again in its place"
    ),
    reported(
        "camera",
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
    _camera("chromatic_red", "1", 0.9, 1.1, 1.0, "size of the red picture over the green one's"),
    _camera("chromatic_blue", "1", 0.9, 1.1, 1.0, "size of the blue picture over the green one's"),
    _camera("blur", "px", 0.0, 64.0, 0.0, "standard deviation of the spot that the lens makes of a point"),
)
