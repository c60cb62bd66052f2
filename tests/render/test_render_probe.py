"""Probing: working renderers are found in a subprocess and cached; failures name the remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import twinloop.render.catalog as probing
from twinloop.core.errors import MissingDependencyError, UnknownNameError
from twinloop.render import RENDERERS, choose_renderer, open_renderer, probe_all, probe_renderer
from twinloop.render.catalog import RendererEntry
from twinloop.render.protocol import SceneStates
from twinloop.render.trial import HEIGHT, WIDTH, find_problem, make_scene


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    probe_renderer.cache_clear()
    yield tmp_path
    probe_renderer.cache_clear()


def add_renderer(monkeypatch: pytest.MonkeyPatch, name: str, location: str, packages: tuple[str, ...] = ()) -> None:
    entry = RendererEntry(location=location, packages=packages, remedy=f"apt-get install {name}")
    monkeypatch.setitem(RENDERERS.builtin, name, entry)


def test_what_probes_as_available_opens_and_what_does_not_has_a_remedy() -> None:
    for result in probe_all():
        assert result.detail
        assert bool(result.remedy) is not result.available
        entry = RENDERERS[result.name]
        assert entry.load().__name__.lower().startswith(result.name)


def test_a_success_is_remembered_and_a_failure_is_not(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = []
    monkeypatch.setattr(probing, "_run_trial", lambda name: trials.append(name) or "")
    assert probe_renderer("gl").available
    probe_renderer.cache_clear()
    assert probe_renderer("gl").available
    assert trials == ["gl"]
    monkeypatch.setattr(probing, "_run_trial", lambda name: trials.append(name) or "no libEGL")
    add_renderer(monkeypatch, "gl", "twinloop.render.gl:GlRenderer", ("numpy",))
    for _ in range(2):
        probe_renderer.cache_clear()
        assert probe_renderer("gl").detail == "no libEGL"
    assert trials == ["gl"] * 3


def test_a_process_that_dies_is_a_result_and_not_the_end(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "executable", str(write_script(own_cache, "echo 'cannot find libvulkan' >&2; kill -ABRT $$"))
    )
    assert probe_renderer("gl").detail == "the process was ended by signal 6 (cannot find libvulkan)"
    probe_renderer.cache_clear()
    monkeypatch.setattr(probing, "TRIAL_SECONDS", 0.2)
    monkeypatch.setattr(sys, "executable", str(write_script(own_cache, "exec sleep 5")))
    assert probe_renderer("gl").detail == "no image within 0 s"


def write_script(folder: Path, text: str) -> Path:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_package_that_is_not_installed_is_named_without_a_trial(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "_run_trial", lambda name: pytest.fail("tried although its package is missing"))
    add_renderer(monkeypatch, "filament", "nowhere:Nothing", ("no-such-package",))
    result = probe_renderer("filament")
    assert (result.available, result.detail) == (False, "no-such-package is not installed")
    assert result.remedy == "apt-get install filament"


def test_auto_takes_the_first_that_works(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.setattr(probing, "_run_trial", lambda name: "no libEGL" if name == "gl" else "")
    add_renderer(monkeypatch, "warp", "twinloop.render.warp:WarpRenderer", ("numpy",))
    assert choose_renderer() == "warp"


def test_when_none_works_every_reason_and_remedy_is_told(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.setattr(probing, "_run_trial", lambda name: f"{name} is broken")
    with pytest.raises(MissingDependencyError, match="gl: gl is broken; warp: ") as caught:
        choose_renderer()
    assert "libegl1 libgl1 or pip install 'twinloop[warp]'" in caught.value.remedy
    assert "mitsuba" not in str(caught.value), "a path tracer is asked for by name"


def test_an_unknown_renderer_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"Unknown renderer 'glx' in the built-in .* Nearest existing: gl"):
        probe_renderer("glx")
    with pytest.raises(UnknownNameError, match="Unknown renderer 'povray'"):
        open_renderer("povray", None)  # pyright: ignore[reportArgumentType]


def test_without_the_gl_libraries_it_says_so_and_mujoco_still_imports(tmp_path: Path) -> None:
    # An EGL library that cannot be loaded replaces a missing one.
    code = (
        "import ctypes.util, mujoco\n"
        "ctypes.util.find_library = lambda name: None\n"
        "from twinloop.render import open_renderer\n"
        "from twinloop.core.errors import MissingDependencyError\n"
        "m = mujoco.MjModel.from_xml_string(\"<mujoco><worldbody><camera name='c'/></worldbody></mujoco>\")\n"
        "import OpenGL.platform.ctypesloader as loader\n"
        "def missing(*a, **k): raise OSError('libEGL.so.1: cannot open shared object file')\n"
        "loader._loadLibraryPosix = missing\n"
        "try:\n    open_renderer('gl', m)\nexcept MissingDependencyError as error:\n    print(error)\n"
    )
    env = {key: value for key, value in os.environ.items() if key not in {"MUJOCO_GL", "PYOPENGL_PLATFORM"}}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert "The gl renderer needs EGL and OpenGL" in done.stdout, done.stderr
    assert "apt-get install --no-install-recommends libegl1 libgl1" in done.stdout


def test_opening_gl_leaves_the_environment_able_to_start_processes() -> None:
    if not probe_renderer("gl").available:
        pytest.skip("renderer gl is not available")
    code = (
        "import os, mujoco\n"
        "from twinloop.render import open_renderer\n"
        "m = mujoco.MjModel.from_xml_string(\"<mujoco><worldbody><camera name='c'/></worldbody></mujoco>\")\n"
        "open_renderer('gl', m).close()\n"
        "assert 'MUJOCO_GL' not in os.environ\n"
    )
    env = {key: value for key, value in os.environ.items() if key != "MUJOCO_GL"}
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env=env)


def test_a_trial_asks_for_everything_that_a_renderer_claims() -> None:
    model = make_scene()
    if not probe_renderer("gl").available:
        pytest.skip("renderer gl is not available")
    with open_renderer("gl", model, height=HEIGHT, width=WIDTH) as renderer:
        seen = renderer.observe(SceneStates(qpos=model.qpos0), channels=renderer.channels)["front"]
    right = {channel: values[0] for channel, values in seen.items()}
    assert find_problem(model, right) == ""
    assert find_problem(model, {"rgb": right["rgb"]}) == ""
    spoilt = {
        "rgb": (np.zeros_like(right["rgb"]), "The image is wrong: 0 pixels show the box, at least 50 should."),
        "linear": (right["linear"] / 2 + 0.3, "its linear light is not that of its colours"),
        "geom": (np.zeros_like(right["geom"]), "The ids are wrong: 0 in the middle, it should be 1."),
        "depth": (right["depth"] + 0.01, "The depth is wrong: "),
        "normal": (-right["normal"], "The normals are wrong: "),
    }
    for channel, (values, words) in spoilt.items():
        assert words in find_problem(model, right | {channel: values})
    nothing = np.full_like(right["depth"], np.nan)
    assert "The depth is wrong: nan m" in find_problem(model, right | {"depth": nothing})


@pytest.mark.slow
@pytest.mark.parametrize("name", RENDERERS)
def test_the_trial_of_what_works_passes(name: str) -> None:
    if not probe_renderer(name).available:
        pytest.skip(f"renderer {name} is not available")
    subprocess.run([sys.executable, "-m", "twinloop.render.trial", name], check=True, timeout=240)
