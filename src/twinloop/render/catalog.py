"""The renderers by name, each imported only when it is opened."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.registry import Registry, load_object
from twinloop.render.protocol import Renderer

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class RendererEntry:
    """Where a renderer lives (``module:class``), the packages it needs and the command that adds what it lacks.

    ``quality`` is where the dataclass of its settings lives, which its class takes as ``quality``; empty where it has
    none. ``seconds`` is roughly what a picture of 640×480 takes on two cores. ``auto`` takes it only where it is
    ``automatic``. ``found`` is a function that says what it found here once it works. ``optional`` are packages that
    change its pictures where they are installed. ``made`` is the class itself where it has been imported already.
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
        """Import its class; ``mujoco_warp`` and GL only come in when it is opened."""
        return self.made or load_object(self.location)

    def what_was_found(self) -> str:
        """What it says of itself where it works; empty where it has nothing to say."""
        return load_object(self.found)() if self.found else ""

    def settings(self, given: Mapping[str, Any]) -> Any:
        """Its settings object with some settings as given; None where none is given.

        Raises:
            UnknownNameError: a setting that it does not have.
            InputError: a value of another type than the setting's own.
        """
        if not given:
            return None
        kind = load_object(self.quality) if self.quality else None
        known = {field.name: field for field in dataclasses.fields(kind)} if kind else {}
        for name, value in given.items():
            if name not in known:
                raise UnknownNameError("quality setting", name, known, where=f"renderer {self.location}")
            if not _alike(value, known[name].default):
                own = known[name].default
                like = "true or false, or left out" if own is None else f"written like {own!r}"
                raise InputError(f"{name} is {like}; given {value!r}.")
        return kind(**given) if kind else None


def _alike(value: Any, own: Any) -> bool:
    """Whether a value may stand for a setting's own."""
    if own is None or isinstance(own, bool) or isinstance(value, bool):  # None: true, false, or as it is best here
        return isinstance(value, bool) and isinstance(own, bool | None)
    wanted = {int: int, float: (int, float), str: str}.get(type(own), object)
    return isinstance(value, wanted)


# In the order in which `auto` tries them: 640×480 with shadows 168 against 17 frames per second on 2 cores.
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
    """Return the entry of a renderer; one is made for a class in a user's file or of an installed package.

    Raises:
        UnknownNameError: there is no renderer of that name.
    """
    found = RENDERERS[name]
    if isinstance(found, RendererEntry):
        return found
    packages, remedy = ("mujoco",), f"mend {name.rpartition(':')[0]}"
    if (offered := RENDERERS.installed().get(name)) and offered.dist is not None:
        packages, remedy = ("mujoco", offered.dist.name), f"pip install --upgrade {offered.dist.name}"
    seconds = getattr(found, "seconds", 0.01)
    return RendererEntry(location=name, packages=packages, remedy=remedy, seconds=seconds, made=found)
