"""Open renderers by name, and test in subprocesses which renderers work on this machine."""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinloop.core.documents import read_json
from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.core.files import sha256_file, sha256_json, write_json
from twinloop.core.registry import Registry, load_object
from twinloop.render.light_meshes import cache_folder
from twinloop.render.protocol import Renderer

if TYPE_CHECKING:
    import mujoco


AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class RendererEntry:
    """Registry entry of a renderer: location of its class, required packages and installation command.

    Attributes:
        location: the class as ``module:class``.
        packages: names of the required packages.
        remedy: command that installs missing parts.
        quality: location of the dataclass of the renderer's settings, which the class takes as its argument
            ``quality``; empty if the renderer has no settings.
        seconds: approximate time in s for an image of 640×480 on two cores.
        triangle_seconds: approximate additional time in s for each mesh triangle of an image, on one core.
        automatic: whether the renderer name ``auto`` may choose this renderer.
        environment: location, as ``module:function``, of a function without arguments that returns a text about the
            detected hardware and libraries, or raises a `MissingDependencyError`; empty if the renderer has none.
        optional: packages that change the renderer's images if they are installed.
        changes: location, as ``module:function``, of a function from a compiled model and the renderer's settings (or
            None) to a dictionary that describes how the renderer changes the model's shapes; empty if it never does.
        imported: the class itself, if it is already imported.
    """

    location: str
    packages: tuple[str, ...]
    remedy: str
    quality: str = ""
    seconds: float = 0.01
    triangle_seconds: float = 0.0
    automatic: bool = True
    environment: str = ""
    optional: tuple[str, ...] = ()
    changes: str = ""
    imported: Callable[..., Renderer] | None = None

    def load(self) -> Callable[..., Renderer]:
        """Import and return the renderer's class.

        Its large packages (``mujoco_warp``, OpenGL) are imported later, when a renderer is opened.
        """
        return self.imported or load_object(self.location)

    def describe_environment(self) -> str:
        """Return a text about a working renderer's environment, such as Mitsuba's variants; may be empty."""
        return load_object(self.environment)() if self.environment else ""

    def describe_changes(self, model: mujoco.MjModel, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return how the renderer, with the given settings, changes the shapes of a model; empty if it does not."""
        return load_object(self.changes)(model, self.make_settings(given)) if self.changes else {}

    def make_settings(self, given: Mapping[str, Any]) -> Any:
        """Return the renderer's settings object with the given values; None if ``given`` is empty.

        Raises:
            UnknownNameError: If the renderer has no setting of that name.
            InputError: If a value has another type than the setting's default.
        """
        if not given:
            return None
        kind = load_object(self.quality) if self.quality else None
        known = {field.name: field for field in dataclasses.fields(kind)} if kind else {}
        for name, value in given.items():
            if name not in known:
                raise UnknownNameError("quality setting", name, known, where=f"renderer {self.location}")
            if not _fits_type(value, known[name].default):
                own = known[name].default
                expected = "true or false" if own is None else f"a value like {own!r}"
                raise InputError(f"The quality setting {name} is {value!r}. Give {expected}, or leave it out.")
        return kind(**given) if kind else None


def _fits_type(value: Any, own: Any) -> bool:
    """Return whether a value has the type of a setting's default; the default None accepts True and False.

    Args:
        value: the given value.
        own: the setting's default.
    """
    if own is None or isinstance(own, bool) or isinstance(value, bool):  # None: true, false, or chosen automatically
        return isinstance(value, bool) and isinstance(own, bool | None)
    wanted = {int: int, float: (int, float), str: str}.get(type(own), object)
    return isinstance(value, wanted)


# In the order in which `auto` tries them: gl 168, warp 17 frames per second at 640×480 with shadows on 2 cores.
_BUILTIN = {
    "gl": RendererEntry(
        location="twinloop.render.gl:GlRenderer",
        packages=("mujoco",),
        remedy="apt-get install --no-install-recommends libegl1 libgl1",
        quality="twinloop.render.gl:GlQuality",
        triangle_seconds=4e-7,
        changes="twinloop.render.gl:describe_simplified_meshes",
    ),
    "warp": RendererEntry(
        location="twinloop.render.warp:WarpRenderer",
        packages=("mujoco", "mujoco-warp", "warp-lang"),
        remedy="pip install 'twinloop[warp]'",
        quality="twinloop.render.warp:WarpQuality",
        seconds=0.06,
    ),
    "mitsuba": RendererEntry(
        location="twinloop.render.mitsuba:MitsubaRenderer",
        packages=("mujoco", "mitsuba"),
        remedy="pip install 'twinloop[path]'",
        quality="twinloop.render.mitsuba:MitsubaQuality",
        seconds=5.0,
        automatic=False,
        environment="twinloop.render.mitsuba:working_variants",
        optional=("pyoidn",),
    ),
    "filament": RendererEntry(
        location="twinloop.render.filament:FilamentRenderer",
        packages=("mujoco",),
        remedy="apt-get install --no-install-recommends libvulkan1 mesa-vulkan-drivers",
        quality="twinloop.render.filament:FilamentQuality",
        seconds=0.1,
        triangle_seconds=6e-7,
        automatic=False,
        environment="twinloop.render.filament:describe_drivers",
        changes="twinloop.render.gl:describe_simplified_meshes",
    ),
}
RENDERERS: Registry[RendererEntry | Callable[..., Renderer]] = Registry(
    "renderer", _BUILTIN, group="twinloop.renderers", files=True, listed_names=lambda: [*_BUILTIN, AUTO]
)


def renderer_entry(name: str) -> RendererEntry:
    """Return the registry entry of a renderer.

    For a class in a user's file (``FILE:CLASS``) or in an installed package, an entry is created but not stored.

    Raises:
        UnknownNameError: If there is no renderer of that name.
    """
    found = RENDERERS[name]
    if isinstance(found, RendererEntry):
        return found
    packages, remedy = ("mujoco",), f"correct {name.rpartition(':')[0]}"
    if (offered := RENDERERS.list_installed().get(name)) and offered.dist is not None:
        packages, remedy = ("mujoco", offered.dist.name), f"pip install --upgrade {offered.dist.name}"
    seconds = getattr(found, "seconds", 0.01)
    return RendererEntry(location=name, packages=packages, remedy=remedy, seconds=seconds, imported=found)


# Warp compiles its kernels on first use: 5 to 30 s on two cores, longer if the cores are busy.
TRIAL_SECONDS = 240.0


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """Result of the test whether a renderer works on this machine.

    Attributes:
        name: name of the renderer.
        available: whether it works.
        detail: versions and environment if the renderer works, otherwise the reason why it does not.
        remedy: command that would make it work; empty if it works.
    """

    name: str
    available: bool
    detail: str
    remedy: str


def probe_all() -> list[ProbeResult]:
    """Test all renderers; return the results in the order in which ``auto`` tries the renderers."""
    return [probe_renderer(name) for name in RENDERERS]


@functools.cache
def probe_renderer(name: str) -> ProbeResult:
    """Test in a subprocess whether a renderer works on this machine.

    A success is stored in the user's cache folder until a package version, the Python interpreter or the machine
    changes. A failure is not stored, because installing a missing library changes none of these; the next process tests
    again.

    Raises:
        UnknownNameError: If there is no renderer of that name.
    """
    try:
        entry = renderer_entry(name)
    except MissingDependencyError as error:
        return ProbeResult(name=name, available=False, detail=str(error), remedy=error.remedy)
    versions = _versions(entry.packages)
    missing = [package for package, found in versions.items() if found is None]
    if missing:
        detail = f"{', '.join(missing)} is not installed"
        return ProbeResult(name=name, available=False, detail=detail, remedy=entry.remedy)
    detail = ", ".join(f"{package} {found}" for package, found in versions.items())
    problem = remember_success(_cache_file(name, versions), lambda: _run_trial(name))
    if problem:
        return ProbeResult(name=name, available=False, detail=problem, remedy=entry.remedy)
    try:
        found = entry.describe_environment()
    except MissingDependencyError as error:  # a library that a stored success needed is gone
        detail = str(error).partition(" To add it: ")[0]
        return ProbeResult(name=name, available=False, detail=detail, remedy=error.remedy)
    return ProbeResult(name=name, available=True, detail=detail + (f"; {found}" if found else ""), remedy="")


def renderer_versions(name: str) -> dict[str, str]:
    """Return the versions of the installed packages that affect a renderer's images, by package name.

    Raises:
        UnknownNameError: If there is no renderer of that name.
    """
    entry = renderer_entry(name)
    return {package: found for package, found in _versions((*entry.packages, *entry.optional)).items() if found}


def choose_renderer() -> str:
    """Return the name of the first renderer that works on this machine; ``auto`` chooses this renderer.

    Raises:
        MissingDependencyError: If none works. The message has the reason for each renderer.
    """
    tried = []
    for name in (name for name in RENDERERS.builtin if renderer_entry(name).automatic):
        result = probe_renderer(name)
        if result.available:
            return name
        tried.append(result)
    reasons = "; ".join(f"{result.name}: {result.detail}" for result in tried)
    raise MissingDependencyError(
        f"No renderer works here ({reasons}).", remedy=" or ".join(result.remedy for result in tried)
    )


def open_renderer(
    name: str,
    model: mujoco.MjModel,
    *,
    height: int = 240,
    width: int = 320,
    cameras: Sequence[str] | None = None,
    quality: Mapping[str, Any] | None = None,
) -> Renderer:
    """Open a renderer of one compiled model; the caller must close it, for example by a ``with`` statement.

    Args:
        name: ``gl``, ``warp``, ``mitsuba``, ``filament``, or ``auto`` for the first of ``gl`` and ``warp`` that works
            on this machine (each is tested in a subprocess).
        model: compiled model. It is copied, so later changes to it have no effect.
        height, width: size of the images in pixels.
        cameras: names of cameras; None for all cameras of the model.
        quality: settings of the renderer, by the field names of its settings class (`GlQuality`, …).

    Raises:
        UnknownNameError: If there is no such renderer, camera or setting.
        MissingDependencyError: If the renderer does not work on this machine. The message has the command that would
            help.
        InputError: If no renderer supports the size.
    """
    if name == AUTO:
        name = choose_renderer()
    entry = renderer_entry(name)
    settings = entry.make_settings(quality or {})
    options = {} if settings is None else {"quality": settings}
    return entry.load()(model, height=height, width=width, cameras=cameras, **options)


def _versions(packages: tuple[str, ...]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def _run_trial(name: str) -> str:
    """Test a renderer in a subprocess; return an empty text if its image was correct, else the error."""
    return run_trial([sys.executable, "-P", "-m", "twinloop.render.trial", name], seconds=TRIAL_SECONDS)


def run_trial(command: list[str], *, seconds: float) -> str:
    """Run a test command; return an empty text if it succeeded, else one line with the reason.

    Args:
        command: program and arguments; the program must be one of twinloop's own modules.
        seconds: time limit in s.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)  # noqa: S603 - our own module
    except subprocess.TimeoutExpired:
        return f"no image within {seconds:.0f} s"
    if done.returncode == 0:
        return ""
    error_lines = [line for line in done.stderr.splitlines() if line.strip()]
    if done.returncode < 0:
        return f"the process was ended by signal {-done.returncode}" + (f" ({error_lines[-1]})" if error_lines else "")
    return error_lines[-1] if error_lines else f"the trial ended with code {done.returncode}"


def _cache_file(name: str, versions: dict[str, str | None]) -> Path:
    own = Path(name.rpartition(":")[0])
    content = sha256_file(own) if own.is_file() else ""
    return result_path(own.stem or name, name, content, versions, os.environ.get("MUJOCO_GL"))


def result_path(title: str, *facts: object) -> Path:
    """Return the path in the user's cache folder of the file that stores the result of one renderer test.

    The file name contains a hash of ``facts``, this machine and this Python. If one of these changes, the path changes,
    so the stored result is not found and the caller tests again.

    Args:
        title: readable first part of the file name.
        facts: values on which the result depends, such as versions and settings.
    """
    key = sha256_json([*facts, sys.executable, sys.version, platform.node()])
    return cache_folder() / "renderers" / f"{title}-{key[:16]}.json"


def remember_success(record: Path, test: Callable[[], str]) -> str:
    """Return the problem that a test finds, empty if there is none; a test that succeeded is not run again.

    Args:
        record: file that stores the success; see `result_path`.
        test: function that returns a problem, or an empty text.
    """
    try:
        if read_json(record) == {"available": True}:
            return ""
    except InputError:
        pass  # no test has succeeded yet
    problem = test()
    if not problem:
        try:
            write_json(record, {"available": True})
        except OSError:
            return ""  # the cache folder is not writable, so the next process tests again
    return problem
