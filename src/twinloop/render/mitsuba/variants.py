"""Find the Mitsuba variants that work on this machine; each is tested in a subprocess, and a success is stored.

A variant is a build of Mitsuba: ``cuda_ad_rgb`` for NVIDIA GPUs, ``llvm_ad_rgb`` for CPUs through LLVM's compiler,
``scalar_rgb`` for CPUs and no compiler. LLVM is a library of the system, and a wrong version ends the process: on a CPU
with AVX-512, versions 14 to 16 do so, and 19.1.7 works.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

from twinloop.core.documents import read_json
from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.core.files import write_json
from twinloop.render.catalog import result_path, run_trial

AUTO = "auto"
VARIANTS = {"cuda": "cuda_ad_rgb", "llvm": "llvm_ad_rgb", "scalar": "scalar_rgb"}
REMEDY = "pip install 'twinloop[path]'"
REMEDIES = {
    "cuda": "install NVIDIA's driver, or choose another variant",
    "llvm": "apt-get install --no-install-recommends libllvm19 (or set DRJIT_LIBLLVM_PATH to libLLVM 17 or newer)",
    "scalar": "apt-get install --no-install-recommends libatomic1",
}
_LIBRARY = "DRJIT_LIBLLVM_PATH"
_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
_TRIED = (19, 18, 20, 21, 17, 16, 15, 14)  # versions in the order of preference: 19.1.7 was measured to work
_TRIAL_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class MitsubaVariant:
    """Mitsuba variant with its LLVM library.

    Attributes:
        name: short name, a key of `VARIANTS`: ``cuda``, ``llvm`` or ``scalar``.
        library: path of the LLVM library for ``llvm``; empty for the default one.
    """

    name: str
    library: str = ""

    def load(self) -> Any:
        """Import Mitsuba, select this variant, and return the module.

        Raises:
            MissingDependencyError: If Mitsuba is not installed, or a library that it needs is missing.
        """
        if self.library:
            os.environ[_LIBRARY] = self.library  # read when Dr.Jit first needs LLVM
        mitsuba = import_mitsuba()
        mitsuba.set_variant(VARIANTS[self.name])
        return mitsuba


def import_mitsuba() -> ModuleType:
    """Import and return the package Mitsuba; no other function imports it.

    Raises:
        MissingDependencyError: If Mitsuba is not installed, or a library that it needs is missing.
    """
    try:
        import mitsuba  # pyright: ignore[reportMissingImports]
    except (ImportError, NameError) as error:  # if libatomic1 is missing, drjit raises a NameError
        if isinstance(error, NameError) or "libatomic" in str(error):
            raise MissingDependencyError("Mitsuba needs libatomic.", remedy=REMEDIES["scalar"]) from error
        raise MissingDependencyError(f"The mitsuba renderer needs mitsuba ({error}).", remedy=REMEDY) from error
    return mitsuba


def choose_variant(name: str = AUTO) -> MitsubaVariant:
    """Return the named variant if it works on this machine; for ``auto``, the fastest variant that works.

    Raises:
        UnknownNameError: If there is no such variant.
        MissingDependencyError: If the variant does not work. The message has the reason and the next step.
    """
    if name != AUTO and name not in VARIANTS:
        raise UnknownNameError("variant", name, [*VARIANTS, AUTO], where="the mitsuba renderer")
    problems = {}
    for one in VARIANTS if name == AUTO else [name]:
        found, problem = _probe(one)
        if found is not None:
            return found
        problems[one] = problem
    reasons = "; ".join(f"{one}: {problem}" for one, problem in problems.items())
    remedy = REMEDY if _version() is None else REMEDIES["scalar" if name == AUTO else name]
    raise MissingDependencyError(f"No variant of mitsuba works here ({reasons}).", remedy=remedy)


def working_variants() -> str:
    """Return a text that lists the variants that work on this machine, with their LLVM libraries."""
    found = [variant for variant, _ in map(_probe, VARIANTS) if variant is not None]
    named = [f"{one.name} with {one.library}" if one.library else one.name for one in found]
    return "variants " + ", ".join(named)


@functools.cache
def _probe(name: str) -> tuple[MitsubaVariant | None, str]:
    """Test a variant of Mitsuba; return it with an empty text if it works, else None and the reason.

    For ``llvm``, the returned variant has the first LLVM library that works. A success is stored in the user's cache
    folder until the package, the Python interpreter, the machine or the libraries change.
    """
    installed = _version()
    if installed is None:
        return None, "mitsuba is not installed"
    if name == "cuda" and not Path("/dev/nvidiactl").exists():
        return None, "there is no NVIDIA GPU"
    candidates = [MitsubaVariant(name=name, library=path) for path in (_list_libraries() if name == "llvm" else [""])]
    if not candidates:
        return None, "there is no libLLVM"
    record = result_path(f"mitsuba-{name}", installed, [(one.name, one.library) for one in candidates])
    remembered = _load_stored_variant(record)
    if remembered in candidates:
        return remembered, ""
    problem = ""
    for candidate in candidates:
        problem = _run_trial(candidate)
        if not problem:
            _store_variant(record, candidate)
            return candidate, ""
    return None, problem


def _version() -> str | None:
    try:
        return version("mitsuba")
    except PackageNotFoundError:
        return None


def _list_libraries() -> list[str]:
    """Return the paths of the libLLVM files to try, the most reliable version first.

    If ``DRJIT_LIBLLVM_PATH`` is set, only that path is returned.
    """
    if os.environ.get(_LIBRARY):
        return [os.environ[_LIBRARY]]
    found = sorted(
        set(_find_installed_libraries()), key=lambda item: (_TRIED.index(item[0]) if item[0] in _TRIED else 99, item[1])
    )
    return [path for _, path in found]


def _find_installed_libraries() -> Iterator[tuple[int, str]]:
    for folder in (*_FOLDERS, *(str(path) for path in Path("/usr/lib").glob("llvm-*/lib"))):
        for path in Path(folder).glob("libLLVM*.so*"):
            match = re.search(r"\.so\.(\d+)|LLVM-(\d+)", path.name)
            if match:
                yield int(match[1] or match[2]), str(path.resolve())


def _load_stored_variant(record: Path) -> MitsubaVariant | None:
    try:
        return MitsubaVariant(**read_json(record))
    except (InputError, TypeError):
        return None


def _store_variant(record: Path, variant: MitsubaVariant) -> None:
    try:
        write_json(record, {"name": variant.name, "library": variant.library})
    except OSError:
        return  # the cache folder is not writable, so the next process tests again


def _run_trial(variant: MitsubaVariant) -> str:
    """Test a variant in a subprocess; return an empty text if it rendered its image correctly, else the error."""
    command = [sys.executable, "-P", "-m", "twinloop.render.mitsuba.trial", variant.name, variant.library]
    problem = run_trial(command, seconds=_TRIAL_SECONDS)
    return f"with {variant.library}: {problem}" if problem and variant.library else problem
