"""Create Filament's Vulkan context without a window, and test in a subprocess whether that is possible.

Filament ends the process if there is no Vulkan driver, so the test must not run in the caller's process.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from twinloop.core.errors import MissingDependencyError
from twinloop.render.catalog import remember_success, renderer_entry, result_path, run_trial

_LIBRARY = "libvulkan.so.1"
_DRIVERS = ("/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d")  # manifests of drivers
_CHOICES = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES")  # variables of Vulkan's loader
_TRIAL_SECONDS = 60.0


def require_driver() -> None:
    """Test in a subprocess whether Filament's context can be created.

    A success is stored in the user's cache folder until MuJoCo, the machine or its Vulkan drivers change.

    Raises:
        MissingDependencyError: If Vulkan or a driver is missing. The message has the command that installs both.
    """
    problem = _find_problem()
    if problem:
        raise MissingDependencyError(
            f"The filament renderer needs Vulkan and a driver ({problem}).", remedy=renderer_entry("filament").remedy
        )


def describe_drivers() -> str:
    """Return a text with the names of the installed Vulkan drivers.

    Raises:
        MissingDependencyError: If Vulkan or a driver is missing.
    """
    require_driver()
    return "Vulkan drivers " + ", ".join(path.stem for path in _list_manifests())


def _list_manifests() -> list[Path]:
    return [path for folder in _DRIVERS for path in sorted(Path(folder).glob("*.json"))]


def _find_problem() -> str:
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError as error:
        return str(error)
    choices = [os.environ.get(name) for name in _CHOICES]
    facts = [(str(path), path.stat().st_mtime) for path in _list_manifests()], choices
    command = [sys.executable, "-P", "-m", "twinloop.render.filament.trial"]
    record = result_path("filament-context", version("mujoco"), *facts)
    return remember_success(record, lambda: run_trial(command, seconds=_TRIAL_SECONDS))


def create_context() -> Any:
    """Create and return Filament's context; without a Vulkan driver, this ends the process."""
    from mujoco import mjrf
    from mujoco.studio import window  # noqa: F401 - registers the provider of Filament's materials

    with _discard_output():
        return mjrf.Context(mjrf.ContextConfig(graphics_api=mjrf.GraphicsApi.GRAPHICS_API_VULKAN))


@contextmanager
def _discard_output() -> Generator[None]:
    """Discard the messages that Filament prints, because the standard output contains results of commands."""
    sys.stdout.flush()
    before, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(before, 1)
        os.close(before)
        os.close(nothing)
