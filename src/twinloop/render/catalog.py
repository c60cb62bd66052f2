"""The renderers by name, each imported only when it is opened."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from twinloop.core.errors import UnknownNameError
from twinloop.render.protocol import Renderer

if TYPE_CHECKING:
    import mujoco

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class RendererEntry:
    """Where a renderer lives (``module:class``), the packages it needs and the command that adds what it lacks."""

    location: str
    packages: tuple[str, ...]
    remedy: str

    def load(self) -> Callable[..., Renderer]:
        """Import its class; ``mujoco_warp`` and GL only come in when it is opened."""
        module, _, name = self.location.partition(":")
        return cast("Callable[..., Renderer]", getattr(importlib.import_module(module), name))


# In the order in which `auto` tries them: 640×480 with shadows 168 against 17 frames per second on 2 cores.
RENDERERS: dict[str, RendererEntry] = {
    "gl": RendererEntry(
        location="twinloop.render.gl:GlRenderer",
        packages=("mujoco",),
        remedy="apt-get install --no-install-recommends libegl1 libgl1",
    ),
    "warp": RendererEntry(
        location="twinloop.render.warp:WarpRenderer",
        packages=("mujoco", "mujoco-warp", "warp-lang"),
        remedy="pip install 'twinloop[warp]'",
    ),
}


def renderer_entry(name: str) -> RendererEntry:
    """The entry of a renderer.

    Raises:
        UnknownNameError: there is no renderer of that name.
    """
    if name not in RENDERERS:
        raise UnknownNameError("renderer", name, [*RENDERERS, AUTO])
    return RENDERERS[name]


def open_renderer(
    name: str,
    model: mujoco.MjModel,
    *,
    height: int = 240,
    width: int = 320,
    cameras: Sequence[str] | None = None,
) -> Renderer:
    """A renderer of one compiled model, to be closed by its user (it is a context manager).

    Args:
        name: ``gl``, ``warp``, or ``auto`` for the first of these that works here (each tried in a subprocess).
        model: copied; changing it afterwards changes nothing.
        cameras: names; all cameras of the model when None.

    Raises:
        UnknownNameError: no such renderer or camera.
        MissingDependencyError: it does not work here; the message holds the command that would make it.
        InputError: an impossible size.
    """
    if name == AUTO:
        from twinloop.render.probe import choose_renderer

        name = choose_renderer()
    return renderer_entry(name).load()(model, height=height, width=width, cameras=cameras)
