"""From light to digital numbers in one pass, for machine code: the stages up to the converter at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinloop.sensors.camera import colour, sensor
from twinloop.sensors.camera.chance_kernels import normal, normals, philox, poisson
from twinloop.sensors.camera.glare import between_cells, veil
from twinloop.sensors.camera.seeds import POISSON_BELOW, CameraSeeds
from twinloop.sensors.camera.stages import Shot
from twinloop.sensors.compiled import compiled, over_rows


def sensed(light: NDArray[np.float32], shot: Shot) -> NDArray:
    """Digital numbers of one capture, as `stages.sensing_stages` makes them of light ``(height, width, 3)``."""
    model, unit = shot.unit.model, shot.unit
    height, width = light.shape[:2]
    spread = veil(light[None], scattered=model.veiling_glare, width=model.glare_width, ghost=model.ghost, fast=True)
    let_through = unit.let_through
    sites = np.array(colour.pattern(model.mosaic) if model.mosaic != "none" else (0, 0, 0, 0))
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
            sensor.conversion(model) * shot.exposure.gain,
            model.black_level,
            sensor.white(model),
        ]
    )
    over_rows(
        _sense,
        height,
        light,
        (spread.kept, spread.grid[0] @ let_through.T, *between_cells(height), *between_cells(width)),
        let_through,
        sites,
        (response.reshape(height, width, planes), dark.reshape(height, width, planes)),
        electrons,
        *_chance(unit.seeds, shot.number),
        _rows(shot, height),
        model.bits > 0,
        numbers,
    )
    return numbers[..., 0] if planes == 1 else numbers


def _rows(shot: Shot, height: int) -> NDArray[np.float64]:
    model = shot.unit.model
    if model.noise_scale == 0.0 or model.row_noise == 0.0:
        return np.zeros(height)
    return model.row_noise * normals(shot.unit.seeds, sensor.ROWS, height, number=shot.number)


def _chance(seeds: CameraSeeds, number: int) -> tuple[NDArray[np.uint64], ...]:
    """Keys of the two streams of noise, and what the counters have in common."""
    keys = [np.array(seeds.key(stage), dtype=np.uint64) for stage in (sensor.NOISE, sensor.READ)]
    return (*keys, np.array([*seeds.world(), number], dtype=np.uint64))


@compiled
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


@compiled
def _filter(light, kept, let_through, cells, between, begin, stride, planes, offset, mean):
    """What of a row of light and of the veil over it one filter lets through, where it stands."""
    left, right, across = between
    for x in range(begin, len(light), stride):
        straight = light[x, 0] * let_through[0] + light[x, 1] * let_through[1] + light[x, 2] * let_through[2]
        veiled = cells[left[x]] * (1.0 - across[x]) + cells[right[x]] * across[x]
        mean[x * planes + offset] = kept * straight + veiled


@compiled
def _noise(mean, words, reads, place, more, apart):
    """What counting and reading add to the mean electrons of a row (`sensor.noisy`)."""
    read2, read = reads
    start, second, world = place
    for x in range(len(mean)):
        z, variance = normal(words[x]), mean[x] + read2
        skewed = mean[x] / (6.0 * max(variance, 1e-300))
        apart[x] = np.sqrt(max(variance - 2.0 * skewed * skewed, 0.0)) * z + skewed * (z * z - 1.0)
    have = -1  # the block of four words that stands in more
    for x in range(len(mean)):
        if mean[x] < POISSON_BELOW:
            if (start + x) // 4 != have:
                have = (start + x) // 4
                philox(more, have, second, world)
            apart[x] = (poisson(words[x], mean[x]) - mean[x]) + read * normal(more[(start + x) % 4])
