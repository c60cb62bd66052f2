"""Simulate sensor and image processing in compiled code, faster than the stages in NumPy and with the same result.

One pass converts light to the sensor's digital numbers, a second pass converts them to 8-bit images.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinloop.sensors.camera import colour, sensor
from twinloop.sensors.camera.seeds import POISSON_BELOW, CameraSeeds, normal, normals, philox, poisson
from twinloop.sensors.camera.shading import compute_glare, interpolate_cells
from twinloop.sensors.camera.stages import Capture
from twinloop.sensors.camera.tone import TONE_BINS, compute_tone_steps, tabulate_tone_steps
from twinloop.sensors.compiled import compile_lazily, run_over_rows


def sense_light(light: NDArray[np.float32], capture: Capture) -> NDArray:
    """Return the digital numbers that the sensor measures in one capture.

    The result equals that of the stages of `list_sensing_stages`.

    Args:
        light: linear light, shape ``(height, width, 3)``.
        capture: number and exposure of the capture, and the camera unit (one physical camera with its own pixel
            pattern).
    """
    model, unit = capture.unit.model, capture.unit
    height, width = light.shape[:2]
    spread = compute_glare(
        light[None], scattered=model.veiling_glare, width=model.glare_width, ghost=model.ghost, fast=True
    )
    let_through = unit.filter_transmission
    sites = np.array(colour.filter_colours(model.mosaic) if model.mosaic != "none" else (0, 0, 0, 0))
    response, dark = unit.shaded_response, unit.pattern.dark
    planes = 1 if model.mosaic != "none" else 3
    numbers = np.empty((height, width, planes), dtype=np.uint16 if model.bits else np.float64)
    read = sensor.read_noise(model, capture.exposure.gain)
    electrons = np.array(
        [
            model.electron_rate * capture.exposure.time,
            model.dark_current * capture.exposure.time,
            model.noise_scale,
            read * read,
            read,
            model.full_well,
            sensor.conversion_gain(model) * capture.exposure.gain,
            model.black_level,
            sensor.white_level(model),
        ]
    )
    run_over_rows(
        _sense,
        height,
        light,
        (spread.direct_share, spread.grid[0] @ let_through.T, *interpolate_cells(height), *interpolate_cells(width)),
        let_through,
        sites,
        (response.reshape(height, width, planes), dark.reshape(height, width, planes)),
        electrons,
        *_noise_streams(unit.seeds, capture.number),
        _draw_row_noise(capture, height),
        model.bits > 0,
        numbers,
    )
    return numbers[..., 0] if planes == 1 else numbers


def _draw_row_noise(capture: Capture, height: int) -> NDArray[np.float64]:
    model = capture.unit.model
    if model.noise_scale == 0.0 or model.row_noise == 0.0:
        return np.zeros(height)
    return model.row_noise * normals(capture.unit.seeds, sensor.ROWS, height, number=capture.number)


def _noise_streams(seeds: CameraSeeds, number: int) -> tuple[NDArray[np.uint64], ...]:
    """Return the Philox keys of photon noise and of read noise, and the part of the counter that both have in common.

    Returns:
        Two keys of two numbers each, and the three counter numbers episode, attempt and capture.
    """
    keys = [np.array(seeds.key(stage), dtype=np.uint64) for stage in (sensor.NOISE, sensor.READ)]
    return (*keys, np.array([*seeds.counter_prefix(), number], dtype=np.uint64))


@compile_lazily
def _sense(first, last, light, glare, let_through, sites, fixed, electrons, key, second, world, rows, whole, numbers):
    kept, grid, upper, lower, down, left, right, across = glare
    response, dark = fixed
    rate, dark_mean, scale, read2, read, well, conversion, black, white = electrons
    _, width, planes = numbers.shape
    size = width * planes
    words, more = np.empty((size // 4 + 2) * 4, dtype=np.uint32), np.empty(4, dtype=np.uint32)
    cells, mean, deviation = np.empty((3, grid.shape[1])), np.empty(size), np.zeros(size)
    for y in range(first, last):
        for c in range(3):
            for cell in range(grid.shape[1]):
                cells[c, cell] = grid[upper[y], cell, c] * (1.0 - down[y]) + grid[lower[y], cell, c] * down[y]
        for site in range(2 if planes == 1 else 3):
            c = sites[2 * (y & 1) + site] if planes == 1 else site
            begin, stride, offset = (site, 2, 0) if planes == 1 else (0, 1, site)
            _filter(
                light[y], kept, let_through[c], cells[c], (left, right, across), begin, stride, planes, offset, mean
            )
        sensitive = response[y].reshape(size)
        for x in range(size):
            mean[x] = max(mean[x], 0.0) * (sensitive[x] * rate) + dark_mean
        if scale > 0.0:
            start = y * size
            philox(words, start // 4, key, world)
            _noise(mean, words[start % 4 : start % 4 + size], (read2, read), (start, second, world), more, deviation)
        offset, result = dark[y].reshape(size), numbers[y].reshape(size)
        for x in range(size):
            number = min(mean[x] + scale * (deviation[x] + rows[y]) + offset[x], well) * conversion + black
            result[x] = np.rint(min(max(number, 0.0), white)) if whole else min(number, 1.0)


@compile_lazily
def _filter(light, direct_share, let_through, cells, cell_weights, first, stride, planes, offset, mean):
    """Compute one row of light behind a colour filter, including glare, at the pixels of that filter.

    Args:
        light: light of the row, shape ``(width, 3)``.
        direct_share: share of the light that is not glare.
        let_through: transmission of the filter for red, green and blue, ``(3,)``.
        cells: glare behind the filter in each column of the coarse glare grid, interpolated to this row,
            ``(columns,)``.
        cell_weights: interpolation of the glare for each pixel: left cell, right cell, and weight of the right cell,
            ``(width,)`` each.
        first, stride: first column with the filter, and distance to the next such column.
        planes: values per pixel in ``mean``: 1 with a colour mosaic, else 3.
        offset: index of this filter's value among the values of a pixel.
        mean: result, shape ``(planes · width,)``, one pixel after another, written in place.
    """
    left, right, across = cell_weights
    for x in range(first, len(light), stride):
        straight = light[x, 0] * let_through[0] + light[x, 1] * let_through[1] + light[x, 2] * let_through[2]
        veiled = cells[left[x]] * (1.0 - across[x]) + cells[right[x]] * across[x]
        mean[x * planes + offset] = direct_share * straight + veiled


@compile_lazily
def _noise(mean, words, read_noise, stream, buffer, deviation):
    """Compute the photon noise and read noise of one row of pixels, as `sensor.add_noise` does.

    From a mean of 12 electrons on, the random number of a value in ``words`` determines the sum of both noises. Below
    12, it determines the photon noise only, and the read noise comes from a second sequence of random numbers
    (``stream``).

    Args:
        mean: mean electrons of each value of the row.
        words: random 32-bit integer (word) of each value.
        read_noise: variance and standard deviation of the read noise, in electrons.
        stream: index of the row's first value in the image; key and counter of the random generator (Philox) for the
            second sequence.
        buffer: working memory for one block of four random integers.
        deviation: differences from the mean in electrons, written in place.
    """
    read2, read = read_noise
    start, second, world = stream
    for x in range(len(mean)):
        z, variance = normal(words[x]), mean[x] + read2
        skewness = mean[x] / (6.0 * max(variance, 1e-300))
        deviation[x] = np.sqrt(max(variance - 2.0 * skewness * skewness, 0.0)) * z + skewness * (z * z - 1.0)
    block = -1  # number of the block of four words in `buffer`
    for x in range(len(mean)):
        if mean[x] < POISSON_BELOW:
            if (start + x) // 4 != block:
                block = (start + x) // 4
                philox(buffer, block, second, world)
            deviation[x] = (poisson(words[x], mean[x]) - mean[x]) + read * normal(buffer[(start + x) % 4])


_EDGE = 2  # pixels of neighbourhood that demosaicing uses


def process_numbers(numbers: NDArray, capture: Capture) -> NDArray[np.uint8]:
    """Return the 8-bit image of one capture from the sensor's digital numbers, shape ``(height, width, 3)``.

    The result equals that of `stages.list_processing_stages`, except that sharpening is not included.

    Args:
        numbers: digital numbers, shape ``(height, width)`` with a colour filter mosaic, else ``(height, width, 3)``;
            at most `sensor.white_level`.
        capture: the capture, with its exposure, gains and camera unit.
    """
    model = capture.unit.model
    height, width = numbers.shape[:2]
    image = np.empty((height, width, 3), dtype=np.uint8)
    gains, dark = capture.gains / sensor.number_span(model), sensor.black_number(model, capture.exposure)
    ending = (
        colour.compute_mixing_matrix(model),
        np.append(compute_tone_steps(model), np.inf),
        tabulate_tone_steps(model),
    )
    if model.mosaic == "none":
        run_over_rows(_colour, height, numbers, gains, dark, *ending, image)
        return image
    sites = np.array(colour.filter_colours(model.mosaic))
    plane = np.empty((height + 2 * _EDGE, width + 2 * _EDGE))
    run_over_rows(_balance, height, numbers, sites, gains, dark, plane)
    for axis in (0, 1):
        lines = plane if axis == 0 else plane.T
        lines[1::-1] = lines[3:5]
        lines[-2:] = lines[-4:-6:-1]
    run_over_rows(_develop, height, plane, sites, model.demosaic == "malvar", *ending, image)
    return image


@compile_lazily
def _balance(first, last, numbers, sites, gains, dark, plane):
    for y in range(first, last):
        raw, balanced = numbers[y], plane[y + 2]
        even, odd = gains[sites[2 * (y & 1)]], gains[sites[2 * (y & 1) + 1]]
        for x in range(len(raw)):
            balanced[x + 2] = min((raw[x] - dark) * (odd if x & 1 else even), 1.0)


@compile_lazily
def _colour(first, last, numbers, gains, dark, matrix, steps, begin, image):
    width = numbers.shape[1]
    red, green, blue = np.empty(width), np.empty(width), np.empty(width)
    for y in range(first, last):
        for x in range(width):
            red[x] = min((numbers[y, x, 0] - dark) * gains[0], 1.0)
            green[x] = min((numbers[y, x, 1] - dark) * gains[1], 1.0)
            blue[x] = min((numbers[y, x, 2] - dark) * gains[2], 1.0)
        _write_row(red, green, blue, matrix, steps, begin, image[y])


@compile_lazily
def _develop(first, last, plane, sites, malvar, matrix, steps, begin, image):
    width = image.shape[1]
    red, green, blue = np.empty(width), np.empty(width), np.empty(width)
    for y in range(first, last):
        start = 1 if sites[2 * (y & 1)] == 1 else 0  # first column whose filter is not green
        reddish = sites[2 * (y & 1) + start] == 0
        rows = (plane[y], plane[y + 1], plane[y + 2], plane[y + 3], plane[y + 4])
        own, other = (red, blue) if reddish else (blue, red)
        if malvar:
            _malvar_row(rows, start, own, green, other)
        else:
            _bilinear_row(rows, start, own, green, other)
        _write_row(red, green, blue, matrix, steps, begin, image[y])


@compile_lazily
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


@compile_lazily
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


@compile_lazily
def _write_row(red, green, blue, matrix, steps, begin, row):
    """Convert one row of colours to 8-bit display values by colour matrix and tone curve.

    The linear values from 0 to 1 are divided into bins. A table gives the display value at the beginning of the bin.
    This value then increases by 1 for each threshold that is not above the linear value.

    Args:
        red, green, blue: linear colours of the row, ``(width,)`` each.
        matrix: colour matrix, shape ``(3, 3)``.
        steps: thresholds: linear values at which the display value increases by 1, then infinity, ``(256,)``.
        begin: result of `tabulate_tone_steps`, a tuple: the table, and the largest number of thresholds in a bin.
        row: result, ``(width, 3)``, written in place.
    """
    table, most = begin
    for c in range(3):
        for x in range(len(red)):
            value = red[x] * matrix[c, 0] + green[x] * matrix[c, 1] + blue[x] * matrix[c, 2]
            value = min(max(value, 0.0), 1.0)
            step = table[np.int32(value * TONE_BINS)]
            for _ in range(most):
                step += np.uint8(steps[step] <= value)
            row[x, c] = step
