"""Run ``twinloop render``: render stored episodes again, with another renderer, camera, image size or sensor model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from twinloop.core.errors import InputError
from twinloop.generate import RenderConfig, render_config
from twinloop.generate.render_settings import CLEAN, DEVICE, parse_image_size
from twinloop.workflows.generate.generate import format_rendering, run_images_pass
from twinloop.workflows.generate.requests import RenderRequest


def run_render(request: RenderRequest, console: Console) -> dict[str, Any]:
    """Render a dataset into a new one, by default next to the source, and print the result."""
    settings = build_render_settings(request)
    target = request.output or request.dataset.with_name(f"{request.dataset.resolve().name}-{_suffix(settings)}")
    result = run_images_pass(request.dataset, target, settings, workers=request.workers, resume=request.resume)
    console.print(format_rendering(result))
    return result


def _suffix(settings: RenderConfig) -> str:
    """Return the suffix of the new dataset's name: the renderer, and the sensor if any."""
    name = "images" if settings.renderer == "auto" else Path(settings.renderer.partition(":")[0]).stem
    return name if settings.sensors == CLEAN else f"{name}-{DEVICE}"


def build_render_settings(request: RenderRequest) -> RenderConfig:
    """Convert the flags of ``twinloop render`` to render settings.

    Raises:
        InputError: If a flag has an invalid value.
    """
    values: dict[str, Any] = {
        "renderer": request.renderer,
        "cameras": list(request.camera) or None,
        "episodes": request.episodes,
        "samples": request.samples,
        "subframes": request.subframes,
    }
    own, everywhere = _split_pairs(request.size, "--size")
    values["sizes"] = own
    if everywhere:
        values["width"], values["height"] = parse_image_size(everywhere[-1])
    named, alone = _split_pairs(request.quality, "--quality")
    if alone:
        raise InputError(f"--quality {alone[0]}: give KEY=VALUE, as in shadow_map=2048.")
    values["quality"] = {key: _parse_scalar(text) for key, text in named.items()}
    names = [name.strip() for name in request.annotations.split(",") if name.strip()]
    values["annotations"] = "all" if names == ["all"] else names
    own, everywhere = _split_pairs(request.sensors, "--sensors")
    values["sensors"] = own or (everywhere[-1] if everywhere else CLEAN)
    if own and everywhere:
        raise InputError(
            f"--sensors {' '.join(request.sensors)}: give one word for all cameras, or CAMERA=DEVICE for each."
        )
    return render_config(values, where="The settings of the images")


def _split_pairs(words: Sequence[str], option: str) -> tuple[dict[str, str], list[str]]:
    """Split words into pairs ``KEY=VALUE`` and single words.

    Args:
        words: the words.
        option: flag to which the words belong.

    Returns:
        The values of the pairs by key, and the single words.

    Raises:
        InputError: If a key occurs twice, or there is more than one single word.
    """
    parts = [word.partition("=") for word in words]
    said = [key if sign else "" for key, sign, _ in parts]
    if (option != "--quality" and said.count("") > 1) or any(key and said.count(key) > 1 for key in said):
        raise InputError(f"{option} {' '.join(words)} sets the same name twice. Keep one.")
    return {key: value for key, sign, value in parts if sign}, [word for word in words if "=" not in word]


def _parse_scalar(text: str) -> bool | int | float | str:
    """Convert a text to a Boolean, an integer or a float if it has that form, else return it unchanged."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
