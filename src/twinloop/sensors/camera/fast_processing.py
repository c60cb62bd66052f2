"""From digital numbers to 8 bits in one pass, for machine code: white balance, demosaicing, colour and tone at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinloop.sensors.camera import colour, sensor
from twinloop.sensors.camera.stages import Shot
from twinloop.sensors.camera.tone import TONE_BINS, first_steps, tone_steps
from twinloop.sensors.compiled import compiled, over_rows

_EDGE = 2  # pixels that demosaicing looks around


def processed(numbers: NDArray, shot: Shot) -> NDArray[np.uint8]:
    """8-bit pictures of one capture, as `stages.processing_stages` makes them, but for its sharpening."""
    model = shot.unit.model
    height, width = numbers.shape[:2]
    picture = np.empty((height, width, 3), dtype=np.uint8)
    gains, dark = shot.gains / sensor.span(model), sensor.black(model, shot.exposure)
    ending = (colour.mixing(model), np.append(tone_steps(model), np.inf), first_steps(model))
    if model.mosaic == "none":
        over_rows(_colour, height, numbers, gains, dark, *ending, picture)
        return picture
    sites = np.array(colour.pattern(model.mosaic))
    plane = np.empty((height + 2 * _EDGE, width + 2 * _EDGE))
    over_rows(_balance, height, numbers, sites, gains, dark, plane)
    for axis in (0, 1):
        lines = plane if axis == 0 else plane.T
        lines[1::-1] = lines[3:5]
        lines[-2:] = lines[-4:-6:-1]
    over_rows(_develop, height, plane, sites, model.demosaic == "malvar", *ending, picture)
    return picture


@compiled
def _balance(first, last, numbers, sites, gains, dark, plane):
    for y in range(first, last):
        raw, balanced = numbers[y], plane[y + 2]
        even, odd = gains[sites[2 * (y & 1)]], gains[sites[2 * (y & 1) + 1]]
        for x in range(len(raw)):
            balanced[x + 2] = min((raw[x] - dark) * (odd if x & 1 else even), 1.0)


@compiled
def _colour(first, last, numbers, gains, dark, matrix, steps, begin, picture):
    width = numbers.shape[1]
    red, green, blue = np.empty(width), np.empty(width), np.empty(width)
    for y in range(first, last):
        for x in range(width):
            red[x] = min((numbers[y, x, 0] - dark) * gains[0], 1.0)
            green[x] = min((numbers[y, x, 1] - dark) * gains[1], 1.0)
            blue[x] = min((numbers[y, x, 2] - dark) * gains[2], 1.0)
        _deliver(red, green, blue, matrix, steps, begin, picture[y])


@compiled
def _develop(first, last, plane, sites, malvar, matrix, steps, begin, picture):
    width = picture.shape[1]
    red, green, blue = np.empty(width), np.empty(width), np.empty(width)
    for y in range(first, last):
        start = 1 if sites[2 * (y & 1)] == 1 else 0  # first column behind the row's other colour
        reddish = sites[2 * (y & 1) + start] == 0
        rows = (plane[y], plane[y + 1], plane[y + 2], plane[y + 3], plane[y + 4])
        own, other = (red, blue) if reddish else (blue, red)
        if malvar:
            _malvar_row(rows, start, own, green, other)
        else:
            _bilinear_row(rows, start, own, green, other)
        _deliver(red, green, blue, matrix, steps, begin, picture[y])


@compiled
def _malvar_row(rows, start, own, green, other):
    far, above, here, below, beyond = rows
    for x in range(start, len(green), 2):
        sides, ends = here[x + 1] + here[x + 3], above[x + 2] + below[x + 2]
        second = (far[x + 2] + beyond[x + 2]) + (here[x] + here[x + 4])
        corners = (above[x + 1] + above[x + 3]) + (below[x + 1] + below[x + 3])
        own[x] = here[x + 2]
        green[x] = (4.0 * here[x + 2] + 2.0 * (ends + sides) - second) * 0.125
        other[x] = (6.0 * here[x + 2] + 2.0 * corners - 1.5 * second) * 0.125
    for x in range(1 - start, len(green), 2):
        sides, ends = here[x + 1] + here[x + 3], above[x + 2] + below[x + 2]
        wide, tall = here[x] + here[x + 4], far[x + 2] + beyond[x + 2]
        corners = (above[x + 1] + above[x + 3]) + (below[x + 1] + below[x + 3])
        own[x] = (5.0 * here[x + 2] + 4.0 * sides - corners - wide + 0.5 * tall) * 0.125
        green[x] = here[x + 2]
        other[x] = (5.0 * here[x + 2] + 4.0 * ends - corners - tall + 0.5 * wide) * 0.125


@compiled
def _bilinear_row(rows, start, own, green, other):
    _, above, here, below, _ = rows
    for x in range(start, len(green), 2):
        own[x] = here[x + 2]
        green[x] = ((above[x + 2] + below[x + 2]) + (here[x + 1] + here[x + 3])) * 0.25
        other[x] = ((above[x + 1] + above[x + 3]) + (below[x + 1] + below[x + 3])) * 0.25
    for x in range(1 - start, len(green), 2):
        own[x] = (here[x + 1] + here[x + 3]) * 0.5
        green[x] = here[x + 2]
        other[x] = (above[x + 2] + below[x + 2]) * 0.5


@compiled
def _deliver(red, green, blue, matrix, steps, begin, row):
    """Mixed colours of a row, and their 8 bits: begin in the table, then at most as many steps as a bin holds."""
    table, most = begin
    for c in range(3):
        for x in range(len(red)):
            value = red[x] * matrix[c, 0] + green[x] * matrix[c, 1] + blue[x] * matrix[c, 2]
            value = min(max(value, 0.0), 1.0)
            step = table[np.int32(value * TONE_BINS)]
            for _ in range(most):
                step += np.uint8(steps[step] <= value)
            row[x, c] = step
