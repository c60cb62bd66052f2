"""The source files that a check's figures come from, so that other code never has the same hash."""

from __future__ import annotations

import functools
import inspect
import re
from importlib.util import find_spec
from pathlib import Path

from twinloop.core.files import sha256_file

_ROOM = Path(__file__).parent
_IMPORT = re.compile(r"^\s*from (twinloop[\w.]*) import ", re.MULTILINE)
# What is followed further: rooms that measure. Of others, as of `dataset`, what is imported directly counts.
_FOLLOWED = ("twinloop.curate", "twinloop.stats", "twinloop.encoders", "twinloop.dataset.logs.checks")
# A list of names, which grows, and modules of which no figure comes.
_NO_FIGURES = (
    *("twinloop.curate.registry", "twinloop.core.errors", "twinloop.core.files", "twinloop.core.headline"),
    "twinloop.core.registry",
)


def source_hashes(kind: type) -> dict[str, str]:
    """SHA-256 of files by name: for a class of ours all of its package folder and the modules that those import.

    A class in a user's own file has that file, and what it imports of twinloop.
    """
    file = Path(inspect.getfile(kind)).resolve()
    ours = _ROOM in file.parents and file.parent != _ROOM
    return {path.name if path == file else _name(path): sha for path, sha in _hashes(file.parent if ours else file)}


@functools.lru_cache(maxsize=64)
def _hashes(place: Path) -> tuple[tuple[Path, str], ...]:
    found = set(place.glob("*.py")) if place.is_dir() else {place}
    waiting = sorted(found)
    while waiting:
        for module in _IMPORT.findall(waiting.pop().read_text(encoding="utf-8")):
            spec = None if module in _NO_FIGURES else find_spec(module)
            path = None if spec is None or spec.origin is None else Path(spec.origin)
            if path is not None and path not in found:
                found.add(path)
                waiting += [path] * module.startswith(_FOLLOWED)
    return tuple((path, sha256_file(path)) for path in sorted(found))


def _name(path: Path) -> str:
    """A file within twinloop, so that a hash does not depend on where it is installed."""
    root = _ROOM.parent
    return path.relative_to(root).as_posix() if root in path.parents else path.name
