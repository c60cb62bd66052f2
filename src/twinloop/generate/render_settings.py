"""Render settings of the ``render:`` section of a generate file, and of ``twinloop render``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.dataset.spec import CameraSpec
from twinloop.render.annotate import AnnotationSettings
from twinloop.twin import Twin
from twinloop.twin.spec import describe_errors

CLEAN, DEVICE = "clean", "device"


class RenderConfig(BaseModel):
    """Settings of the second pass.

    Args:
        cameras: names of cameras of the twin; None for all that it names.
        height, width: size of the images in pixels, even numbers.
        sizes: other sizes of single cameras, as ``640x480`` (width, height).
        episodes: how many from the first on (a number), indices as text (``"0:30"``, ``"3,5,8"``, ``"0:10,40:"``), or a
            list of indices. None for all.
        renderer: see `render.catalog`; ``auto`` is the fastest that works on this machine.
        samples: light paths, or samples per pixel, if the renderer has such a setting.
        quality: further settings of the renderer by name.
        annotations: names of annotations; ``all``: every one that the renderer supports.
        sensors: ``clean`` for images without a sensor model; ``device`` for the twin's camera models (``sensors:`` in
            its YAML) and readings of its depth cameras and lidars; the name of a device for all cameras; or a mapping
            from cameras to ``clean``, ``device`` or names of devices.
        subframes: largest number of rendered times in one exposure of a sensor; with 1 there is no motion blur and no
            rolling shutter.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    cameras: list[str] | None = Field(default=None, min_length=1)
    height: int = Field(default=240, ge=16, le=8192)
    width: int = Field(default=320, ge=16, le=8192)
    sizes: dict[str, str] = {}
    episodes: int | str | list[int] | None = None
    renderer: str = "auto"
    samples: int | None = Field(default=None, ge=1)
    quality: dict[str, bool | int | float | str] = {}
    annotations: list[str] | Literal["all"] = []
    sensors: str | dict[str, str] = CLEAN
    subframes: int = Field(default=16, ge=1, le=64)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the renderer other than the image size."""
        return {**self.quality, **({} if self.samples is None else {"samples": self.samples})}

    @property
    def annotation_settings(self) -> AnnotationSettings | None:
        """Requested annotations, or None.

        Raises:
            UnknownNameError: an annotation does not exist.
        """
        names = ("all",) if self.annotations == "all" else tuple(self.annotations)
        return AnnotationSettings(wanted=names) if names else None

    def specs(self, twin: Twin) -> tuple[CameraSpec, ...]:
        """Return the cameras with their sizes, by default all in the twin's order.

        Raises:
            UnknownNameError: the twin does not name a camera.
            InputError: there is no camera, or a size is not possible for a video.
        """
        existing = twin.spec.cameras
        wanted = existing if self.cameras is None else list(dict.fromkeys(self.cameras))
        if not wanted:
            raise InputError(f"The twin {twin.name} names no camera to render from. Add `cameras:` to its YAML.")
        for name in [*wanted, *self.sizes]:
            if name not in existing:
                raise UnknownNameError("camera", name, existing, where=f"twin {twin.name}")
        for name in self.sizes:
            if name not in wanted:
                raise UnknownNameError("camera", name, wanted, where="the cameras to render, which it gives a size")
        own = {name: parse_image_size(text) for name, text in self.sizes.items()}
        sizes = {name: own.get(name, (self.width, self.height)) for name in wanted}
        return tuple(CameraSpec(name=name, height=height, width=width) for name, (width, height) in sizes.items())


def render_config(values: Mapping[str, Any], *, where: str) -> RenderConfig:
    """Return the settings of plain values.

    Raises:
        InputError: a key or a value is wrong; the message names it.
    """
    try:
        return RenderConfig.model_validate(dict(values))
    except ValidationError as error:
        raise InputError(describe_errors(error, where=where, model=RenderConfig)) from error


def parse_image_size(text: str) -> tuple[int, int]:
    """Return width and height of a text such as ``640x480``.

    Raises:
        InputError: the text has another form, or the size is not possible for a video.
    """
    match = re.fullmatch(r"(\d+)[x×](\d+)", text.strip())
    width, height = (int(match[1]), int(match[2])) if match else (0, 0)
    if not all(16 <= side <= 8192 and side % 2 == 0 for side in (width, height)):
        raise InputError(
            f"{text!r} is not an image size. Give width x height as in 640x480; both are even, from 16 to 8192."
        )
    return width, height


def select_episodes(asked: int | str | Sequence[int] | None, count: int, *, where: str) -> list[int]:
    """Return the sorted indices of the chosen episodes among ``count``, each once; see `RenderConfig`.

    Raises:
        InputError: the text has another form, or an episode does not exist.
    """
    if asked is None:
        return list(range(count))
    if isinstance(asked, int) or (isinstance(asked, str) and asked.strip().isdigit()):
        if int(asked) < 1:
            raise InputError(f"{int(asked)} episodes of {where}: at least one is needed.")
        return list(range(min(int(asked), count)))
    found: set[int] = set()
    for part in asked.split(",") if isinstance(asked, str) else asked:
        found.update(_parse_part(str(part).strip(), count, asked, where))
    if not found:
        raise InputError(f"Episodes {asked!r}: none of the {count} of {where}.")
    return sorted(found)


def _parse_part(part: str, count: int, asked: object, where: str) -> range:
    match = re.fullmatch(r"(\d*)(:?)(\d*)", part)
    if match is None:
        raise InputError(
            f"Episodes {asked!r} are not understood at {part!r}. Give how many (30), ranges (0:30, 40:), or indices "
            "with commas (3,5,8)."
        )
    first, colon, last = match.groups()
    if not first and not colon:
        return range(0)
    start = int(first or 0)
    end = (int(last) if last else count) if colon else start + 1
    if start >= count or end > count:
        raise InputError(f"Episodes {asked!r}: {where} has {count}, numbered 0 to {count - 1}.")
    return range(start, end)
