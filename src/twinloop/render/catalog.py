"""Open renderers by name, and test in subprocesses which of them work here."""

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
from twinloop.render.protocol import Renderer

if TYPE_CHECKING:
    import mujoco


AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class RendererEntry:
    """Location of a renderer (``module:class``), its required packages and the command that installs them.

    ``quality`` is the location of the dataclass of its settings, the argument ``quality`` of its class; empty without
    settings. ``seconds`` is the approximate time of an image of 640×480 on two cores. ``auto`` considers only
    ``automatic`` ones. ``found`` is a function that describes its detected environment. ``optional`` are packages that
    change its images if they are installed. ``made`` is the class itself if it is already imported.
    """

    location: str
    packages: tuple[str, ...]
    remedy: str
    quality: str = ""
    seconds: float = 0.01
    automatic: bool = True
    found: str = ""
    optional: tuple[str, ...] = ()
    made: Callable[..., Renderer] | None = None

    def load(self) -> Callable[..., Renderer]:
        """Import the class of the renderer; ``mujoco_warp`` and GL are only imported when it is opened."""
        return self.made or load_object(self.location)

    def describe_environment(self) -> str:
        """Return a description of a working renderer's environment; empty without one."""
        return load_object(self.found)() if self.found else ""

    def make_settings(self, given: Mapping[str, Any]) -> Any:
        """Return the settings object with the given settings; None if none is given.

        Raises:
            UnknownNameError: a setting that the renderer does not have.
            InputError: a value of another type than the setting's default.
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
                like = "true or false, or left out" if own is None else f"written like {own!r}"
                raise InputError(f"{name} is {like}; given {value!r}.")
        return kind(**given) if kind else None


def _fits_type(value: Any, own: Any) -> bool:
    """Return whether a value has a type that fits a setting's default."""
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
        found="twinloop.render.mitsuba:working_variants",
        optional=("pyoidn",),
    ),
}
RENDERERS: Registry[RendererEntry | Callable[..., Renderer]] = Registry(
    "renderer", _BUILTIN, group="twinloop.renderers", files=True, shown=lambda: [*_BUILTIN, AUTO]
)


def renderer_entry(name: str) -> RendererEntry:
    """Return the entry of a renderer; create one for a class in a user's file or an installed package.

    Raises:
        UnknownNameError: there is no renderer of that name.
    """
    found = RENDERERS[name]
    if isinstance(found, RendererEntry):
        return found
    packages, remedy = ("mujoco",), f"mend {name.rpartition(':')[0]}"
    if (offered := RENDERERS.list_installed().get(name)) and offered.dist is not None:
        packages, remedy = ("mujoco", offered.dist.name), f"pip install --upgrade {offered.dist.name}"
    seconds = getattr(found, "seconds", 0.01)
    return RendererEntry(location=name, packages=packages, remedy=remedy, seconds=seconds, made=found)


# Warp compiles its kernels on first use: 5 to 30 s on two cores, longer where these are busy.
TRIAL_SECONDS = 240.0


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """Whether a renderer works here; ``detail`` is the observation, ``remedy`` the command that would help."""

    name: str
    available: bool
    detail: str
    remedy: str


def probe_all() -> list[ProbeResult]:
    """Return the results of all renderers, in the order in which ``auto`` tries them."""
    return [probe_renderer(name) for name in RENDERERS]


@functools.cache
def probe_renderer(name: str) -> ProbeResult:
    """Test one renderer and return the result.

    A success is stored in the user's cache folder until a package version, the interpreter or the machine changes.
    After a failure the next process tests again, because adding a missing library changes none of these.

    Raises:
        UnknownNameError: there is no renderer of that name.
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
    record = _cache_file(name, versions)
    if not _has_success(record):
        problem = _run_trial(name)
        if problem:
            return ProbeResult(name=name, available=False, detail=problem, remedy=entry.remedy)
        _store_success(record)
    found = entry.describe_environment()
    return ProbeResult(name=name, available=True, detail=detail + (f"; {found}" if found else ""), remedy="")


def renderer_versions(name: str) -> dict[str, str]:
    """Return the versions of the installed packages on which a renderer's images depend.

    Raises:
        UnknownNameError: there is no renderer of that name.
    """
    entry = renderer_entry(name)
    return {package: found for package, found in _versions((*entry.packages, *entry.optional)).items() if found}


def choose_renderer() -> str:
    """Return the first renderer that works here.

    Raises:
        MissingDependencyError: none works; the message has the reason for each.
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
    """Return a renderer of one compiled model, to be closed by its user (it is a context manager).

    Args:
        name: ``gl``, ``warp``, ``mitsuba``, or ``auto`` for the first of ``gl`` and ``warp`` that works here (each
            tried in a subprocess).
        model: copied; changing it afterwards changes nothing.
        cameras: names of cameras; None for all cameras of the model.
        quality: settings of that renderer, by the names of its settings class (`GlQuality`, …).

    Raises:
        UnknownNameError: no such renderer, camera or setting.
        MissingDependencyError: it does not work here; the message has the command that would help.
        InputError: an impossible size.
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
    """Return an empty text if the trial rendered its image correctly, else its last line of output."""
    return run_trial([sys.executable, "-P", "-m", "twinloop.render.trial", name], seconds=TRIAL_SECONDS)


def run_trial(command: list[str], *, seconds: float) -> str:
    """Return an empty text if a process of twinloop's modules succeeded, else its exit and last line of output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)  # noqa: S603 - our own module
    except subprocess.TimeoutExpired:
        return f"no image within {seconds:.0f} s"
    if done.returncode == 0:
        return ""
    said = [line for line in done.stderr.splitlines() if line.strip()]
    if done.returncode < 0:
        return f"the process was ended by signal {-done.returncode}" + (f" ({said[-1]})" if said else "")
    return said[-1] if said else f"the trial ended with code {done.returncode}"


def _cache_file(name: str, versions: dict[str, str | None]) -> Path:
    own = Path(name.rpartition(":")[0])
    content = sha256_file(own) if own.is_file() else ""
    return result_path(own.stem or name, name, content, versions, os.environ.get("MUJOCO_GL"))


def result_path(title: str, *facts: object) -> Path:
    """Return the file in the user's cache folder that stores a result for these facts, this machine and this Python."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    key = sha256_json([*facts, sys.executable, sys.version, platform.node()])
    return Path(root) / "twinloop" / "renderers" / f"{title}-{key[:16]}.json"


def _has_success(record: Path) -> bool:
    try:
        return read_json(record) == {"available": True}
    except InputError:
        return False


def _store_success(record: Path) -> None:
    try:
        write_json(record, {"available": True})
    except OSError:
        return  # no writable home: the next process tries again
