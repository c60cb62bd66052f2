"""Every built-in twin in every renderer that works here."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.render import Frames, SceneStates, open_renderer, probe_renderer
from twinloop.twin import Twin, load_twin
from twinloop.twin.load import builtin_names


def at_home(twin: Twin, renderer: str, **options) -> Frames:
    found = probe_renderer(renderer)
    if not found.available:
        pytest.skip(f"renderer {renderer} is not available: {found.detail}; {found.remedy}")
    with open_renderer(renderer, twin.model, **options) as opened:
        return opened.render(SceneStates(qpos=twin.home()[0]))


@pytest.mark.parametrize("name", builtin_names())
def test_every_camera_shows_something(name: str) -> None:
    frames = at_home(load_twin(name), "gl")
    assert frames
    for image in frames.values():
        assert image.std() > 10
        assert 40 < image.mean() < 220


@pytest.mark.slow
@pytest.mark.parametrize("name", builtin_names())
def test_the_ray_tracer_shows_what_the_rasterizer_shows(name: str) -> None:
    twin = load_twin(name)
    rasterized, traced = at_home(twin, "gl"), at_home(twin, "warp")
    for camera, image in rasterized.items():
        difference = np.abs(image[0].astype(int) - traced[camera][0]).max(axis=-1)
        # Edges and the coarse border of rasterized shadows differ; flat areas do not.
        assert np.median(difference) <= 4
        assert np.mean(difference > 40) < 0.03
