"""Long fits are saved as they run, resume to the same result, and return the best so far when interrupted."""

import json
from dataclasses import replace

import pytest

from support.swings import BACKEND, FREE, swings
from twinloop.core.errors import InputError
from twinloop.identify import FitConfig, identify
from twinloop.twin import load_twin


@pytest.fixture(scope="module")
def twin():
    return load_twin("double_pendulum")


@pytest.fixture(scope="module")
def episodes(twin):
    return swings(twin)


class Stop:
    """An interrupt after so many steps."""

    def __init__(self, after):
        self.left, self.seen = after, []

    def __call__(self, now):
        self.seen.append(now)
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


CONFIGS = {
    "lm": FitConfig(free=FREE),
    "multistart": FitConfig(free=FREE, search="multistart", starts=3, iterations=6),
    "cma": FitConfig(free=FREE, search="cma", starts=1, generations=6, iterations=3),
}


@pytest.mark.parametrize("search", ["lm", "cma", pytest.param("multistart", marks=pytest.mark.slow)])
def test_a_fit_goes_on_to_the_end_that_it_would_have_had(twin, episodes, tmp_path, search):
    config = CONFIGS[search]
    whole = identify(twin, episodes, backend=BACKEND, config=config)
    kept = replace(config, checkpoint=tmp_path / "fit.json")
    part = identify(twin, episodes, backend=BACKEND, config=kept, progress=Stop(3))
    assert not part.converged
    assert any(note.startswith("Interrupted: this is the best result so far.") for note in part.notes)
    assert any("Run again with the checkpoint" in note for note in part.notes)
    seen = Stop(0)
    again = identify(twin, episodes, backend=BACKEND, config=kept, progress=seen)
    assert dict(again.values) == dict(whole.values)
    assert len(seen.seen) > 0


def test_progress_says_stage_step_and_loss(twin, episodes):
    seen = Stop(0)
    identify(twin, episodes, backend=BACKEND, config=CONFIGS["cma"], progress=seen)
    stages = list(dict.fromkeys(now.stage for now in seen.seen))
    assert stages[:2] == ["cma", "walk"]
    first = [now for now in seen.seen if now.stage == "cma"]
    assert [now.iteration for now in first] == [1, 2, 3, 4, 5, 6]
    assert all(now.max_iterations == 6 for now in first)
    assert first[-1].loss <= first[0].loss
    assert first[-1].replays > first[0].replays


def test_an_interrupt_before_anything_was_found_is_an_interrupt(twin, episodes, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("twinloop.identify.optimization.fit_problem", stop)
    with pytest.raises(KeyboardInterrupt):
        identify(twin, episodes, backend=BACKEND, config=CONFIGS["lm"])


def test_a_checkpoint_of_another_fit_is_refused_by_what_differs(twin, episodes, tmp_path):
    kept = replace(CONFIGS["lm"], checkpoint=tmp_path / "fit.json", iterations=1)
    identify(twin, episodes, backend=BACKEND, config=kept)
    with pytest.raises(InputError, match="belongs to another fit: data differ. Use the same, or give"):
        identify(twin, episodes[:2], backend=BACKEND, config=kept)
    with pytest.raises(InputError, match="belongs to another fit: settings differ"):
        identify(twin, episodes, backend=BACKEND, config=replace(kept, width=2.0))
    with pytest.raises(InputError, match="belongs to another fit: parameters, settings differ"):
        identify(twin, episodes, backend=BACKEND, config=replace(kept, free=FREE[:1]))


@pytest.mark.parametrize("content", ["[]", '{"schema": 7, "stages": {}}', '{"schema": 1}'])
def test_what_is_no_checkpoint_is_refused(twin, episodes, tmp_path, content):
    path = tmp_path / "fit.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"fit.json is not a checkpoint of a fit. Give another file, or remove it."):
        identify(twin, episodes, backend=BACKEND, config=replace(CONFIGS["lm"], checkpoint=path))
    assert json.loads(path.read_text()) == json.loads(content)
