"""What a camera makes of the light that reaches its sensor: see `sensors.camera` for the formulas.

Lens, shutter and clock stand in `camera_optics`.

The ideal camera fills its wells with linear light of 1 in an instant, adds no noise, and encodes what it saw as sRGB.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from twinloop.twin.quantities.kinds import Quantity, reported

_camera = partial(reported, "camera")


def _exposure() -> Iterator[Quantity]:
    """How much of the light is gathered, and how much that is made of it."""
    yield _camera(
        "exposure_time",
        "s",
        0.0,
        1.0,
        0.0,
        "how long a pixel gathers light; where exposure is automatic, at longest; 0: an instant that fills the well",
    )
    yield _camera("gain", "1", 1.0, 256.0, 1.0, "analog gain, where exposure is not automatic; 1: a full well is white")
    yield _camera("exposure_compensation", "EV", -8.0, 8.0, 0.0, "stops by which pictures are exposed more than usual")
    yield _camera("electron_rate", "e⁻/s", 1.0, 1e12, 1e6, "electrons that light of 1 frees in a pixel behind green")
    yield _camera("full_well", "e⁻", 10.0, 1e7, 1e4, "electrons that a pixel holds")
    yield _camera("exposure_target", "1", 0.01, 0.9, 0.18, "mean of the picture's linear values sought automatically")
    yield _camera("exposure_highlight", "1", 0.0, 0.99, 0.0, "least mean of the brightest 2 % sought alike; 0: none")
    yield _camera("exposure_lag", "s", 0.0, 60.0, 0.0, "time constant with which automatic exposure follows the light")
    yield _camera("exposure_time_min", "s", 1e-6, 1.0, 1e-6, "shortest exposure chosen automatically")
    yield _camera("gain_max", "1", 1.0, 256.0, 16.0, "largest gain chosen automatically")


def _optics() -> Iterator[Quantity]:
    """What happens to light on its way that depends on no geometry."""
    yield _camera("vignetting", "1", 0.0, 0.99, 0.0, "part of the light that a corner loses, falling off as cos⁴")
    yield _camera("veiling_glare", "1", 0.0, 0.9, 0.0, "part of the light that the lens scatters widely")
    yield _camera("glare_width", "1", 0.01, 10.0, 0.3, "standard deviation of that scattering, in picture heights")
    yield _camera("ghost", "1", 0.0, 0.5, 0.0, "part of the light that returns mirrored at the picture's middle")
    yield _camera("dust_count", "1", 0.0, 500.0, 0.0, "specks of dust to expect on a picture")
    yield _camera("dust_radius", "1", 1e-3, 0.5, 0.01, "median radius of a speck's shadow, in picture heights")
    yield _camera("dust_depth", "1", 0.0, 1.0, 0.3, "largest part of the light that a speck takes")


def _noise() -> Iterator[Quantity]:
    """What differs from picture to picture, and from pixel to pixel."""
    yield _camera("noise_scale", "1", 0.0, 10.0, 0.0, "factor on all that changes by chance from picture to picture")
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
    yield _camera("white_balance_red", "1", 0.2, 5.0, 1.0, "red of white after white balance, against green")
    yield _camera("white_balance_blue", "1", 0.2, 5.0, 1.0, "blue of white after white balance, against green")
    yield _camera("white_balance_drift", "1", 0.0, 0.5, 0.0, "standard deviation of the logarithms of both in time")
    yield _camera("white_balance_time", "s", 0.01, 1e4, 10.0, "time over which that drift forgets itself")
    yield _camera("saturation", "1", 0.0, 4.0, 1.0, "distance of colours from grey, against true ones")
    yield _camera("brightness", "1", -0.5, 0.5, 0.0, "added to display values")
    yield _camera("contrast", "1", 0.2, 5.0, 1.0, "steepness of display values in their middle")
    yield _camera("gamma", "1", 0.2, 5.0, 1.0, "exponent of display values; above 1 is darker")
    yield _camera("sharpness", "1", 0.0, 5.0, 0.0, "how much edges are enhanced")
    yield _camera("jpeg_quality", "1", 1.0, 100.0, 85.0, "quality of JPEG pictures by the IJG's scale, where they are")
    yield _camera("video_crf", "1", 0.0, 51.0, 23.0, "constant rate factor of H.264 pictures, where they are")


CAMERA_SENSORS: tuple[Quantity, ...] = (*_exposure(), *_optics(), *_noise(), *_colour())
