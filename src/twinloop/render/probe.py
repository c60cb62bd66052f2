"""Open renderers, and find out which work here: each is tried in a subprocess, and success is remembered."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinloop.core.documents import read_json
from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.core.files import sha256_file, sha256_json, write_json
from twinloop.render.catalog import AUTO, RENDERERS, renderer_entry
from twinloop.render.protocol import Renderer

if TYPE_CHECKING:
    import mujoco

# Warp compiles its kernels on first use: 5 to 30 s on two cores, longer where these are busy.
TRIAL_SECONDS = 240.0


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """Whether a renderer works here; ``detail`` says what was seen, ``remedy`` is the command that would help."""

    name: str
    available: bool
    detail: str
    remedy: str


def probe_all() -> list[ProbeResult]:
    """Every renderer, in the order in which ``auto`` takes them."""
    return [probe_renderer(name) for name in RENDERERS]


@functools.cache
def probe_renderer(name: str) -> ProbeResult:
    """Try one renderer.

    A success is kept in the user's cache folder until a package version, the interpreter or the machine changes;
    a failure is tried again by the next process, because adding the missing library changes none of these.

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
    if not _remembered(record):
        problem = _try(name)
        if problem:
            return ProbeResult(name=name, available=False, detail=problem, remedy=entry.remedy)
        _remember(record)
    found = entry.what_was_found()
    return ProbeResult(name=name, available=True, detail=detail + (f"; {found}" if found else ""), remedy="")


def renderer_versions(name: str) -> dict[str, str]:
    """Versions of the packages that a renderer's pictures depend on, of those that are installed.

    Raises:
        UnknownNameError: there is no renderer of that name.
    """
    entry = renderer_entry(name)
    return {package: found for package, found in _versions((*entry.packages, *entry.optional)).items() if found}


def choose_renderer() -> str:
    """The first renderer that works here.

    Raises:
        MissingDependencyError: none does; says why for each.
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
    """A renderer of one compiled model, to be closed by its user (it is a context manager).

    Args:
        name: ``gl``, ``warp``, ``mitsuba``, or ``auto`` for the first of ``gl`` and ``warp`` that works here (each
            tried in a subprocess).
        model: copied; changing it afterwards changes nothing.
        cameras: names; all cameras of the model when None.
        quality: settings of that renderer, by the names of its settings class (`GlQuality`, …).

    Raises:
        UnknownNameError: no such renderer, camera or setting.
        MissingDependencyError: it does not work here; the message holds the command that would make it.
        InputError: an impossible size.
    """
    if name == AUTO:
        name = choose_renderer()
    entry = renderer_entry(name)
    settings = entry.settings(quality or {})
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


def _try(name: str) -> str:
    """Empty when the trial made its picture, else what it said last."""
    return outcome([sys.executable, "-P", "-m", "twinloop.render.trial", name], seconds=TRIAL_SECONDS)


def outcome(command: list[str], *, seconds: float) -> str:
    """Empty when a process of our own modules ended well, else how it ended and what it said last."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)  # noqa: S603 - our own module
    except subprocess.TimeoutExpired:
        return f"no picture within {seconds:.0f} s"
    if done.returncode == 0:
        return ""
    said = [line for line in done.stderr.splitlines() if line.strip()]
    if done.returncode < 0:
        return f"the process was ended by signal {-done.returncode}" + (f" ({said[-1]})" if said else "")
    return said[-1] if said else f"the trial ended with code {done.returncode}"


def _cache_file(name: str, versions: dict[str, str | None]) -> Path:
    own = Path(name.rpartition(":")[0])
    content = sha256_file(own) if own.is_file() else ""
    return memory(own.stem or name, name, content, versions, os.environ.get("MUJOCO_GL"))


def memory(title: str, *facts: object) -> Path:
    """The file in the user's cache folder that remembers what was found under these facts, here, by this Python."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    key = sha256_json([*facts, sys.executable, sys.version, platform.node()])
    return Path(root) / "twinloop" / "renderers" / f"{title}-{key[:16]}.json"


def _remembered(record: Path) -> bool:
    try:
        return read_json(record) == {"available": True}
    except InputError:
        return False


def _remember(record: Path) -> None:
    try:
        write_json(record, {"available": True})
    except OSError:
        return  # no writable home: the next process tries again
