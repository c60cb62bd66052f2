"""Define the settings of a rendering, from the ``render:`` section of a generate file or from ``twinloop render``."""

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
    """Settings of the second pass, which renders images of stored states.

    Args:
        cameras: names of cameras of the twin; None for all cameras that the twin's YAML names.
        height: height of the images in pixels, an even number.
        width: width of the images in pixels, an even number.
        sizes: other sizes for single cameras by name, as ``640x480`` (width, height).
        episodes: episodes to render: a number from the first on, indices as text (``"0:30"``, ``"3,5,8"``,
            ``"0:10,40:"``), or a list of indices. None for all episodes.
        renderer: name of a renderer, see `render.catalog`; ``auto`` chooses the fastest that works on this machine.
        samples: light paths, or samples per pixel, if the renderer has such a setting.
        quality: further settings of the renderer by name.
        annotations: names of annotations to store; ``all`` for every one that the renderer supports.
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
        """Settings of the renderer, except the image size."""
        return {**self.quality, **({} if self.samples is None else {"samples": self.samples})}

    @property
    def annotation_settings(self) -> AnnotationSettings | None:
        """Requested annotations; None if no annotation is requested.

        Raises:
            UnknownNameError: If an annotation does not exist.
        """
        names = ("all",) if self.annotations == "all" else tuple(self.annotations)
        return AnnotationSettings(wanted=names) if names else None

    def specs(self, twin: Twin) -> tuple[CameraSpec, ...]:
        """Return the cameras to render with their image sizes, by default all cameras in the twin's order.

        Raises:
            UnknownNameError: If the twin names no such camera.
            InputError: If there is no camera, or a size is not possible for a video.
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
                raise UnknownNameError("camera", name, wanted, where="the sizes of the cameras to render")
        own = {name: parse_image_size(text) for name, text in self.sizes.items()}
        sizes = {name: own.get(name, (self.width, self.height)) for name in wanted}
        return tuple(CameraSpec(name=name, height=height, width=width) for name, (width, height) in sizes.items())


def render_config(values: Mapping[str, Any], *, where: str) -> RenderConfig:
    """Validate a dictionary of settings, and return the `RenderConfig`.

    Args:
        values: settings by name.
        where: origin of the settings, for messages.

    Raises:
        InputError: If a key or a value is wrong; the message names it.
    """
    try:
        return RenderConfig.model_validate(dict(values))
    except ValidationError as error:
        raise InputError(describe_errors(error, where=where, model=RenderConfig)) from error


def parse_image_size(text: str) -> tuple[int, int]:
    """Return width and height from a text such as ``640x480``.

    Raises:
        InputError: If the text has another form, or the size is not possible for a video.
    """
    match = re.fullmatch(r"(\d+)[x×](\d+)", text.strip())
    width, height = (int(match[1]), int(match[2])) if match else (0, 0)
    if not all(16 <= side <= 8192 and side % 2 == 0 for side in (width, height)):
        raise InputError(
            f"{text!r} is not an image size. Give width x height as in 640x480; both are even, from 16 to 8192."
        )
    return width, height


def select_episodes(selection: int | str | Sequence[int] | None, count: int, *, where: str) -> list[int]:
    """Return the indices of the chosen episodes in ascending order, each once.

    Args:
        selection: a number of episodes from the first on, a text such as ``"0:10,40:"``, or indices; see
            `RenderConfig`.
        count: number of existing episodes.
        where: dataset, for messages.

    Raises:
        InputError: If the text has another form, or an episode does not exist.
    """
    if selection is None:
        return list(range(count))
    if isinstance(selection, int) or (isinstance(selection, str) and selection.strip().isdigit()):
        if int(selection) < 1:
            raise InputError(f"{int(selection)} episodes of {where}: at least one is needed.")
        return list(range(min(int(selection), count)))
    found: set[int] = set()
    for part in selection.split(",") if isinstance(selection, str) else selection:
        found.update(_parse_part(str(part).strip(), count, selection, where))
    if not found:
        raise InputError(f"Episodes {selection!r}: none of the {count} episodes of {where} is selected.")
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
        raise InputError(f"Episodes {asked!r}: {where} has {count} episodes, numbered 0 to {count - 1}.")
    return range(start, end)
