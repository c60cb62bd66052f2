"""Tests that were skipped: what each of them lacks, and which of them lack something that is installed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version

_NAME = re.compile(r"[\w.-]+")
_EXTRA = re.compile(r"extra == ['\"]([\w-]+)['\"]")
# Renderers are named in reasons by their own names, which are those of their extras' modules but for these.
_RENDERERS = {"warp": "mujoco_warp"}


def installed_optional_modules() -> set[str]:
    """Return the modules of those packages of an extra that are installed."""
    named = {_NAME.match(line).group().lower() for line in requires("twinloop") or () if _EXTRA.search(line)}  # type: ignore[union-attr]
    found = {name for name in named if name != "twinloop" and _is_installed(name)}
    return {module for module, names in packages_distributions().items() if found & {name.lower() for name in names}}


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def wrongly_skipped(reasons: Iterable[str], modules: set[str]) -> list[str]:
    """Return the reasons that name a module as missing although it is installed."""
    return sorted({reason for reason in reasons if _missing(reason) & modules})


def _missing(reason: str) -> set[str]:
    """Return the modules that a reason to skip names: what cannot be imported, or a renderer that does not work."""
    words = re.findall(r"could not import '([\w.]+)'|([\w.-]+)(?:, [\w.-]+)* (?:is|are) not installed", reason)
    found = {word.partition(".")[0].replace("-", "_") for pair in words for word in pair if word}
    renderer = re.match(r"renderer (\w+) is not available", reason)
    return found | ({_RENDERERS.get(renderer[1], renderer[1])} if renderer else set())
