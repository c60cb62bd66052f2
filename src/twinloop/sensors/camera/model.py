"""Describe one camera by numbers and settings, and create its lens, shutter and clock from a twin's sensor values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.sensors.camera.lens import Lens
from twinloop.sensors.camera.shutter import CaptureClock, Shutter

_LENS = tuple(field.name for field in fields(Lens) if field.name != "model")
_SHUTTER = tuple(field.name for field in fields(Shutter) if field.name != "kind")
_CLOCK = tuple(field.name for field in fields(CaptureClock))
OPTICS_QUANTITIES: tuple[str, ...] = (*_CLOCK, *_SHUTTER, *_LENS)
OPTICS_SETTINGS: tuple[str, ...] = ("lens", "shutter")


def make_lens(values: Mapping[str, ArrayLike], settings: Mapping[str, Any], *, world: int = 0) -> Lens:
    """Create the lens of a camera in one world; values that are not given are those of a perfect lens.

    Args:
        values: values by quantity, a number or one per world (`Twin.sensor_values`). The quantities are the attributes
            of `Lens` except ``model``, in the same units; those of other parts of the camera are ignored.
        settings: settings by name, as plain values or objects with an attribute ``value``. The setting ``lens`` is
            the lens model, ``pinhole`` or ``fisheye``.
        world: index of the world.

    Raises:
        UnknownNameError: If the lens model is unknown.
        InputError: If a coefficient is given that the lens model does not use.
    """
    return Lens(model=_choice(settings, "lens", "pinhole"), **_numbers(values, _LENS, world))


def make_shutter(values: Mapping[str, ArrayLike], settings: Mapping[str, Any], *, world: int = 0) -> Shutter:
    """Create the shutter of a camera in one world.

    Args:
        values: values by quantity, a number or one per world: ``exposure_time`` and ``readout``, both in s. Quantities
            of other parts of the camera are ignored.
        settings: settings by name. The setting ``shutter`` is ``rolling`` or ``global``.
        world: index of the world.

    Raises:
        UnknownNameError: If the kind of shutter is unknown.
        InputError: If a time is below 0.
    """
    return Shutter(kind=_choice(settings, "shutter", "rolling"), **_numbers(values, _SHUTTER, world))


def make_clock(values: Mapping[str, ArrayLike]) -> CaptureClock:
    """Create the capture clock of a camera for all worlds.

    Args:
        values: values by quantity, a number or one per world; quantities of other parts of the camera are ignored.
    """
    return CaptureClock(**{name: values[name] for name in _CLOCK if name in values})


def _numbers(values: Mapping[str, ArrayLike], names: tuple[str, ...], world: int) -> dict[str, float]:
    given = {name: np.ravel(np.asarray(values[name], dtype=np.float64)) for name in names if name in values}
    return {name: float(value[world] if len(value) > 1 else value[0]) for name, value in given.items()}


def _choice(settings: Mapping[str, Any], name: str, default: str) -> Any:
    value = settings.get(name, default)
    return getattr(value, "value", value)


# Choices by setting.
CHOICES: dict[str, tuple[str, ...]] = {
    "exposure": ("manual", "auto"),
    "mosaic": ("none", "rggb", "bggr", "grbg", "gbrg"),
    "demosaic": ("bilinear", "malvar"),
    "codec": ("none", "yuyv", "mjpeg", "h264"),
}


def _setting(default: Any) -> Any:
    return field(default=default, metadata={"setting": True})


@dataclass(frozen=True, kw_only=True)
class CameraModel:
    """Numbers and settings of one camera in one world; the default is an ideal camera.

    The numbers are the twin's parameters ``sensor/NAME/QUANTITY``; `twin.quantities` has their meanings and units.

    Attributes:
        exposure_time: exposure time in s, the longest one under automatic exposure; 0 for an instantaneous image.
        gain: analog gain without automatic exposure; at a gain of 1, a full pixel is white.
        exposure_compensation: change of the exposure in stops; positive is brighter.
        electron_rate: electrons per second of a green pixel in linear light of 1.
        full_well: largest number of electrons in a pixel.
        exposure_target: mean linear value that automatic exposure aims at.
        exposure_highlight: least mean linear value of the brightest 2 % of the pixels that automatic exposure aims at;
            0 for none.
        exposure_lag: time constant of automatic exposure, in s.
        exposure_time_min: shortest exposure time of automatic exposure, in s.
        gain_max: largest gain of automatic exposure.
        vignetting: share of the light lost in the corners.
        veiling_glare: share of the light that the lens scatters, with the standard deviation ``glare_width`` in
            image heights.
        ghost: share of the light in the ghost image, which is mirrored at the image centre.
        dust_count: expected number of dust specks, with the median radius ``dust_radius`` in image heights and the
            largest absorbed share ``dust_depth``.
        noise_scale: factor on all noise that changes from image to image.
        read_noise: standard deviation of noise before the gain, in electrons.
        adc_noise: standard deviation of noise after the gain, in electrons at a gain of 1.
        row_noise: standard deviation of noise common to a row of pixels, in electrons.
        dark_current: electrons per second without light.
        prnu: relative deviation of the pixels' sensitivity, constant for one physical camera (EMVA 1288).
        dsnu: deviation of the pixels' dark signal in electrons, constant for one physical camera (EMVA 1288).
        column_noise: deviation common to a column of pixels in electrons, constant for one physical camera.
        red_response: electrons at a red pixel in white light, relative to green; likewise ``blue_response``.
        white_balance_red: red value of a white surface after white balance, relative to its green value, 1 if the
            balance is right; likewise ``white_balance_blue``.
        white_balance_drift: standard deviation over time of the logarithms of both, with the correlation time
            ``white_balance_time`` in s.
        saturation: colour saturation; 1 for true colours, 0 for grey.
        brightness: offset added to display values.
        contrast: slope of display values at mid-grey.
        gamma: exponent of display values; above 1 is darker.
        sharpness: strength of edge enhancement; 0 for none.
        jpeg_quality: quality of the codec ``mjpeg``, 1 to 100.
        video_crf: constant rate factor of the codec ``h264``, 0 to 51; larger compresses more.
        exposure: ``manual`` for constant ``exposure_time`` and ``gain``, or ``auto`` for automatic exposure.
        mains_hz: mains frequency, or 0. Automatic exposures longer than half its period are multiples of half the
            period.
        bits: bits of the analog-to-digital converter; 0 for no quantization.
        black_level: digital number of a pixel without light.
        mosaic: colour filters of the upper left 2×2 pixels, row by row, such as ``rggb``; ``none`` for three
            sensors behind a prism.
        demosaic: ``bilinear``, or ``malvar`` (Malvar, He, Cutler, ICASSP 2004).
        colour_matrix: 3×3 matrix, row by row, from the sensor's white-balanced red, green and blue to those of
            sRGB. Its inverse is the transmission of the sensor's filters.
        tone_curve: increasing points x, y, x, y, … from linear to display values, both from 0 to 1; empty for sRGB.
        codec: ``none``, ``yuyv`` (4:2:2 without compression), ``mjpeg`` (4:2:2) or ``h264``.
        serial: serial number, which makes pixel pattern and dust the same in all episodes; empty for a new camera in
            every episode.

    Raises:
        UnknownNameError: If a setting has an unknown choice.
        InputError: If a setting is impossible.
    """

    exposure_time: float = 0.0
    gain: float = 1.0
    exposure_compensation: float = 0.0
    electron_rate: float = 1e6
    full_well: float = 1e4
    exposure_target: float = 0.18
    exposure_highlight: float = 0.0
    exposure_lag: float = 0.0
    exposure_time_min: float = 1e-6
    gain_max: float = 16.0

    vignetting: float = 0.0
    veiling_glare: float = 0.0
    glare_width: float = 0.3
    ghost: float = 0.0
    dust_count: float = 0.0
    dust_radius: float = 0.01
    dust_depth: float = 0.3

    noise_scale: float = 0.0
    read_noise: float = 0.0
    adc_noise: float = 0.0
    row_noise: float = 0.0
    dark_current: float = 0.0
    prnu: float = 0.0
    dsnu: float = 0.0
    column_noise: float = 0.0

    red_response: float = 1.0
    blue_response: float = 1.0
    white_balance_red: float = 1.0
    white_balance_blue: float = 1.0
    white_balance_drift: float = 0.0
    white_balance_time: float = 10.0
    saturation: float = 1.0
    brightness: float = 0.0
    contrast: float = 1.0
    gamma: float = 1.0
    sharpness: float = 0.0
    jpeg_quality: float = 85.0
    video_crf: float = 23.0

    exposure: str = _setting("manual")
    mains_hz: float = _setting(0.0)
    bits: int = _setting(0)
    black_level: float = _setting(0.0)
    mosaic: str = _setting("none")
    demosaic: str = _setting("malvar")
    colour_matrix: tuple[float, ...] = _setting((1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0))
    tone_curve: tuple[float, ...] = _setting(())
    codec: str = _setting("none")
    serial: str = _setting("")

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise UnknownNameError(name, str(getattr(self, name)), choices, where="a camera's settings")
        if self.bits != 0 and not (4 <= self.bits <= 16 and 0.0 <= self.black_level < 2**self.bits - 1):
            raise InputError(
                f"A camera's converter cannot have {self.bits} bits and a black level of {self.black_level:g}. "
                "Bits are 4 to 16, or 0 for none, and the black level must be below their largest number."
            )
        if len(self.colour_matrix) != 9 or abs(np.linalg.det(np.reshape(self.colour_matrix, (3, 3)))) < 1e-6:
            raise InputError(
                f"colour_matrix has {len(self.colour_matrix)} numbers. It must be an invertible 3x3 matrix: "
                "9 numbers, row by row."
            )
        _check_curve(self.tone_curve)

    @classmethod
    def from_values(cls, values: Mapping[str, ArrayLike], settings: Mapping[str, Any], *, world: int = 0) -> Self:
        """Create the camera of one world from a twin's sensor values and settings.

        Quantities and settings of lens, shutter and clock are ignored.

        Args:
            values: values by quantity, a number or one per world (`Twin.sensor_values`).
            settings: settings by name (as in `Device`), as plain values or objects with an attribute ``value``.
            world: index of the world.

        Raises:
            UnknownNameError: If a camera has no such quantity or setting.
            InputError: If a setting is impossible.
        """
        known = {entry.name: entry for entry in fields(cls)}
        values = {name: value for name, value in values.items() if name in known or name not in OPTICS_QUANTITIES}
        settings = {name: value for name, value in settings.items() if name not in OPTICS_SETTINGS}
        for kind, given in (("camera quantity", values), ("camera setting", settings)):
            for name in given:
                if name not in known or _is_setting(known[name]) != (kind == "camera setting"):
                    names = [key for key, entry in known.items() if _is_setting(entry) == (kind == "camera setting")]
                    raise UnknownNameError(kind, name, names)
        numbers = {name: float(_select_world(value, world)) for name, value in values.items()}
        choices = {name: _plain(getattr(value, "value", value)) for name, value in settings.items()}
        return cls(**numbers, **choices)


QUANTITY_FIELDS: tuple[str, ...] = tuple(entry.name for entry in fields(CameraModel) if not entry.metadata)
SETTING_FIELDS: tuple[str, ...] = tuple(entry.name for entry in fields(CameraModel) if entry.metadata)


def _is_setting(entry: Field[Any]) -> bool:
    return bool(entry.metadata)


def _select_world(value: ArrayLike, world: int) -> float:
    numbers = np.ravel(np.asarray(value, dtype=np.float64))
    return numbers[world] if len(numbers) > 1 else numbers[0]


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _check_curve(points: tuple[float, ...]) -> None:
    """Raise InputError if a tone curve does not increase from (0, 0) to (1, 1)."""
    if not points:
        return
    x, y = np.array(points[0::2]), np.array(points[1::2])
    shaped = len(x) == len(y) >= 2 and (x[0], y[0], x[-1], y[-1]) == (0.0, 0.0, 1.0, 1.0)
    if not shaped or np.any(np.diff(x) <= 0.0) or np.any(np.diff(y) <= 0.0):
        raise InputError(
            "tone_curve must be points x, y, x, y, … that increase from 0, 0 to 1, 1. Correct it, or leave it "
            "empty for sRGB."
        )
