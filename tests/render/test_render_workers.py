"""Rendering in worker processes: the same images in the same order as in one, and a death that names its job."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator

import mujoco
import numpy as np
import pytest

from twinloop.core.errors import InputError, TwinloopError
from twinloop.core.pool import LocalProcesses
from twinloop.render import Frames, SceneStates, open_renderer, probe_renderer

SCENE = """
<mujoco><worldbody><light pos="0 0 3"/>
<camera name="top" pos="0 0 1.5"/><camera name="side" pos="0 -1 0" euler="90 0 0"/>
<body><joint name="turn" axis="0 0 1"/><geom type="box" size="0.3 0.1 0.05" rgba="0.9 0.4 0.1 1"/></body>
</worldbody></mujoco>
"""

pytestmark = pytest.mark.skipif(
    not probe_renderer("gl").available, reason="renderer gl is not available; it makes these pictures"
)


@functools.cache
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(SCENE)


def images(number: int) -> Frames:
    states = SceneStates(qpos=np.linspace(0, 0.1 * (number + 1), 3)[:, None])
    with open_renderer("gl", model(), height=32, width=48) as renderer:
        return renderer.render(states, {"light_diffuse": np.full((1, 3), 0.2 * (number + 1))})


def brightness_after_a_while(number: int) -> tuple[float, int]:
    time.sleep(0.3 if number == 0 else 0.0)  # the first is the last to finish
    return float(images(number)["top"].mean()), os.getpid()


def die(number: int) -> Frames:
    if number == 1:
        os._exit(1)
    return images(number)


def wrong(number: int) -> Frames:
    with open_renderer("gl", model(), height=32, width=48) as renderer:
        return renderer.render(SceneStates(qpos=np.zeros((1, 1 + number))))


def ordered_map(function: Callable, items: Iterable[int], *, workers: int) -> Iterator[tuple]:
    with LocalProcesses(workers) as engine:
        yield from engine.map(function, items)


def test_two_workers_make_the_images_that_one_makes_in_the_same_order() -> None:
    alone = list(ordered_map(images, range(4), workers=1))
    both = list(ordered_map(images, range(4), workers=2))
    assert [number for number, _ in both] == [number for number, _ in alone] == [0, 1, 2, 3]
    for (_, one), (_, two) in zip(alone, both, strict=True):
        for camera in ("top", "side"):
            np.testing.assert_array_equal(one[camera], two[camera])


def test_a_slow_first_does_not_lose_its_place() -> None:
    results = [result for _, result in ordered_map(brightness_after_a_while, range(5), workers=2)]
    levels = [level for level, _ in results]
    assert levels == sorted(levels), "each is lit more than the one before"
    processes = {process for _, process in results}
    assert len(processes) == 2
    assert os.getpid() not in processes


def test_work_is_read_only_as_far_ahead_as_needed() -> None:
    read: list[int] = []

    def numbers():
        for number in range(8):
            read.append(number)
            yield number

    results = ordered_map(brightness_after_a_while, numbers(), workers=2)
    next(results)
    assert len(read) <= 3
    results.close()


def test_an_error_keeps_its_kind_across_the_border_of_processes() -> None:
    results = ordered_map(wrong, [0, 1], workers=2)
    assert next(results)[0] == 0
    with pytest.raises(InputError, match="The states have 2 positions per frame, the model has nq = 1"):
        next(results)


def test_a_renderer_process_that_dies_is_named() -> None:
    with pytest.raises(TwinloopError, match="A worker process ended while working on [01]"):
        list(ordered_map(die, range(3), workers=2))
