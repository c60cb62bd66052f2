"""Convert light to 8 bits in two passes of machine code: sensing up to the converter, then processing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinloop.sensors.camera import colour, sensor
from twinloop.sensors.camera.seeds import POISSON_BELOW, CameraSeeds, normal, normals, philox, poisson
from twinloop.sensors.camera.shading import compute_glare, interpolate_cells
from twinloop.sensors.camera.stages import Capture
from twinloop.sensors.camera.tone import TONE_BINS, compute_tone_steps, tabulate_tone_steps
from twinloop.sensors.compiled import compile_lazily, run_over_rows


def sense_light(light: NDArray[np.float32], shot: Capture) -> NDArray:
    """Return the digital numbers of one capture of light ``(height, width, 3)``, as `list_sensing_stages` does."""
    model, unit = shot.unit.model, shot.unit
    height, width = light.shape[:2]
    spread = compute_glare(
        light[None], scattered=model.veiling_glare, width=model.glare_width, ghost=model.ghost, fast=True
    )
    let_through = unit.filter_transmission
    sites = np.array(colour.filter_colours(model.mosaic) if model.mosaic != "none" else (0, 0, 0, 0))
    response, dark = unit.shaded_response, unit.pattern.dark
    planes = 1 if model.mosaic != "none" else 3
    numbers = np.empty((height, width, planes), dtype=np.uint16 if model.bits else np.float64)
    read = sensor.read_noise(model, shot.exposure.gain)
    electrons = np.array(
        [
            model.electron_rate * shot.exposure.time,
            model.dark_current * shot.exposure.time,
            model.noise_scale,
            read * read,
            read,
            model.full_well,
            sensor.conversion_gain(model) * shot.exposure.gain,
            model.black_level,
            sensor.white_level(model),
        ]
    )
    run_over_rows(
        _sense,
        height,
        light,
        (spread.kept, spread.grid[0] @ let_through.T, *interpolate_cells(height), *interpolate_cells(width)),
        let_through,
        sites,
        (response.reshape(height, width, planes), dark.reshape(height, width, planes)),
        electrons,
        *_noise_streams(unit.seeds, shot.number),
        _draw_row_noise(shot, height),
        model.bits > 0,
        numbers,
    )
    return numbers[..., 0] if planes == 1 else numbers


def _draw_row_noise(shot: Capture, height: int) -> NDArray[np.float64]:
    model = shot.unit.model
    if model.noise_scale == 0.0 or model.row_noise == 0.0:
        return np.zeros(height)
    return model.row_noise * normals(shot.unit.seeds, sensor.ROWS, height, number=shot.number)


def _noise_streams(seeds: CameraSeeds, number: int) -> tuple[NDArray[np.uint64], ...]:
    """Return the keys of the two noise streams, and the common part of their counters."""
    keys = [np.array(seeds.key(stage), dtype=np.uint64) for stage in (sensor.NOISE, sensor.READ)]
    return (*keys, np.array([*seeds.world(), number], dtype=np.uint64))


@compile_lazily
def _sense(first, last, light, glare, let_through, sites, fixed, electrons, key, second, world, rows, whole, numbers):
    kept, grid, upper, lower, down, left, right, across = glare
    response, dark = fixed
    rate, dark_mean, scale, read2, read, well, conversion, black, white = electrons
    _, width, planes = numbers.shape
    size = width * planes
    words, more = np.empty((size // 4 + 2) * 4, dtype=np.uint32), np.empty(4, dtype=np.uint32)
    cells, mean, apart = np.empty((3, grid.shape[1])), np.empty(size), np.zeros(size)
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
            _noise(mean, words[start % 4 : start % 4 + size], (read2, read), (start, second, world), more, apart)
        offset, result = dark[y].reshape(size), numbers[y].reshape(size)
        for x in range(size):
            number = min(mean[x] + scale * (apart[x] + rows[y]) + offset[x], well) * conversion + black
            result[x] = np.rint(min(max(number, 0.0), white)) if whole else min(number, 1.0)


@compile_lazily
def _filter(light, kept, let_through, cells, between, begin, stride, planes, offset, mean):
    """Compute the transmission of one filter for a row of light and its glare, at the filter's pixels."""
    left, right, across = between
    for x in range(begin, len(light), stride):
        straight = light[x, 0] * let_through[0] + light[x, 1] * let_through[1] + light[x, 2] * let_through[2]
        veiled = cells[left[x]] * (1.0 - across[x]) + cells[right[x]] * across[x]
        mean[x * planes + offset] = kept * straight + veiled


@compile_lazily
def _noise(mean, words, reads, place, more, apart):
    """Compute the noise of counting and reading the mean electrons of a row, see `sensor.add_noise`."""
    read2, read = reads
    start, second, world = place
    for x in range(len(mean)):
        z, variance = normal(words[x]), mean[x] + read2
        skewed = mean[x] / (6.0 * max(variance, 1e-300))
        apart[x] = np.sqrt(max(variance - 2.0 * skewed * skewed, 0.0)) * z + skewed * (z * z - 1.0)
    have = -1  # number of the block of four words in `more`
    for x in range(len(mean)):
        if mean[x] < POISSON_BELOW:
            if (start + x) // 4 != have:
                have = (start + x) // 4
                philox(more, have, second, world)
            apart[x] = (poisson(words[x], mean[x]) - mean[x]) + read * normal(more[(start + x) % 4])


_EDGE = 2  # pixels of neighbourhood that demosaicing uses


def process_numbers(numbers: NDArray, shot: Capture) -> NDArray[np.uint8]:
    """Return 8-bit images of one exposure, equal to `stages.list_processing_stages` without sharpening."""
    model = shot.unit.model
    height, width = numbers.shape[:2]
    picture = np.empty((height, width, 3), dtype=np.uint8)
    gains, dark = shot.gains / sensor.number_span(model), sensor.black_number(model, shot.exposure)
    ending = (
        colour.compute_mixing_matrix(model),
        np.append(compute_tone_steps(model), np.inf),
        tabulate_tone_steps(model),
    )
    if model.mosaic == "none":
        run_over_rows(_colour, height, numbers, gains, dark, *ending, picture)
        return picture
    sites = np.array(colour.filter_colours(model.mosaic))
    plane = np.empty((height + 2 * _EDGE, width + 2 * _EDGE))
    run_over_rows(_balance, height, numbers, sites, gains, dark, plane)
    for axis in (0, 1):
        lines = plane if axis == 0 else plane.T
        lines[1::-1] = lines[3:5]
        lines[-2:] = lines[-4:-6:-1]
    run_over_rows(_develop, height, plane, sites, model.demosaic == "malvar", *ending, picture)
    return picture


@compile_lazily
def _balance(first, last, numbers, sites, gains, dark, plane):
    for y in range(first, last):
        raw, balanced = numbers[y], plane[y + 2]
        even, odd = gains[sites[2 * (y & 1)]], gains[sites[2 * (y & 1) + 1]]
        for x in range(len(raw)):
            balanced[x + 2] = min((raw[x] - dark) * (odd if x & 1 else even), 1.0)


@compile_lazily
def _colour(first, last, numbers, gains, dark, matrix, steps, begin, picture):
    width = numbers.shape[1]
    red, green, blue = np.empty(width), np.empty(width), np.empty(width)
    for y in range(first, last):
        for x in range(width):
            red[x] = min((numbers[y, x, 0] - dark) * gains[0], 1.0)
            green[x] = min((numbers[y, x, 1] - dark) * gains[1], 1.0)
            blue[x] = min((numbers[y, x, 2] - dark) * gains[2], 1.0)
        _deliver(red, green, blue, matrix, steps, begin, picture[y])


@compile_lazily
def _develop(first, last, plane, sites, malvar, matrix, steps, begin, picture):
    width = picture.shape[1]
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
        _deliver(red, green, blue, matrix, steps, begin, picture[y])


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
def _deliver(red, green, blue, matrix, steps, begin, row):
    """Write the 8 bits of a row's mixed colours: start in the table, then at most as many steps as a bin holds."""
    table, most = begin
    for c in range(3):
        for x in range(len(red)):
            value = red[x] * matrix[c, 0] + green[x] * matrix[c, 1] + blue[x] * matrix[c, 2]
            value = min(max(value, 0.0), 1.0)
            step = table[np.int32(value * TONE_BINS)]
            for _ in range(most):
                step += np.uint8(steps[step] <= value)
            row[x, c] = step
