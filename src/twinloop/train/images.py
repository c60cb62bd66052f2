"""Take images of worlds in which policies are trained, and vary them for training."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch  # pyright: ignore[reportMissingImports]
from pydantic import Field
from torch import Tensor  # pyright: ignore[reportMissingImports]

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.randomize import Plan
from twinloop.rollout.camera import camera_sensors
from twinloop.rollout.world_camera import WorldCamera
from twinloop.train.config import StrictConfig
from twinloop.twin import Twin


class ImageConfig(StrictConfig):
    """Configuration of the images of a training in simulated worlds.

    Attributes:
        cameras: names of the cameras.
        height, width: size of the images in pixels.
        images: ``device`` for images of the twin's camera models (exposure, lens, noise, latency), ``clean`` without;
            by default ``device`` if all cameras have one.
        renderer: name of the renderer.
    """

    cameras: tuple[str, ...] = ()
    height: int = Field(default=96, ge=16, le=1024)
    width: int = Field(default=128, ge=16, le=1024)
    images: Literal["device", "clean"] | None = None
    renderer: str = "auto"


def choose_cameras(twin: Twin, config: ImageConfig) -> dict[str, tuple[int, int]]:
    """Return the size (height, width) of the images by camera; by default of all cameras that the twin declares.

    Raises:
        UnknownNameError: If a camera does not exist.
        InputError: If the twin has no camera.
    """
    known = twin.spec.cameras
    for name in config.cameras:
        if name not in known:
            raise UnknownNameError("camera", name, known, where=f"twin {twin.name}")
    if not known:
        raise InputError(f"The twin {twin.name} has no camera. Add `cameras:` to its YAML.")
    return dict.fromkeys(config.cameras or known, (config.height, config.width))


def uses_devices(twin: Twin, config: ImageConfig) -> bool:
    """Return whether images pass through the camera models of the twin."""
    modelled = all(name in camera_sensors(twin) for name in choose_cameras(twin, config))
    return modelled if config.images is None else config.images == "device"


def open_cameras(plan: Plan, config: ImageConfig, seed: int) -> WorldCamera:
    """Return the cameras of the worlds of a plan.

    Args:
        plan: distribution of the worlds.
        config: the configuration.
        seed: seed of random textures and rooms.

    Raises:
        InputError: If images of camera models are wanted, and the twin has none for a camera.
    """
    return WorldCamera(
        plan.twin,
        tuple(choose_cameras(plan.twin, config)),
        height=config.height,
        width=config.width,
        renderer=config.renderer,
        scenery=replace(plan.scenery, seed=seed),
        sensors=uses_devices(plan.twin, config),
    )


def augment_images(images: Tensor, chance: torch.Generator) -> Tensor:
    """Return images ``(n, steps, h, w, 3)`` uint8 that are shifted, recoloured, darkened, and partly covered at random.

    Each sample is shifted by up to 4 % of its size. Channels are multiplied by 0.85 to 1.15 and all by 0.8 to 1.2, and
    a constant with a standard deviation of 8 is added. In a quarter of the samples a rectangle of up to a third of each
    side has a random colour.
    """
    n, _, height, width, _ = images.shape
    rows, columns = (_shift_axis(side, n, chance) for side in (height, width))
    moved = images[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]].movedim(3, 1)
    gain = (0.85 + 0.3 * torch.rand((n, 1, 1, 1, 3), generator=chance)) * (
        0.8 + 0.4 * torch.rand((n, 1, 1, 1, 1), generator=chance)
    )
    changed = moved * gain + 8.0 * torch.randn((n, 1, 1, 1, 1), generator=chance)
    for sample in torch.nonzero(torch.rand(n, generator=chance) < 0.25).flatten().tolist():
        low = torch.rand(2, generator=chance)
        size = torch.rand(2, generator=chance) / 3.0
        top, left = int(low[0] * height), int(low[1] * width)
        bottom, right = top + 1 + int(size[0] * height), left + 1 + int(size[1] * width)
        changed[sample, :, top:bottom, left:right] = 255.0 * torch.rand(3, generator=chance)
    return changed.round().clamp(0.0, 255.0).to(torch.uint8)


def _shift_axis(side: int, count: int, chance: torch.Generator) -> Tensor:
    """Return shifted indices of an axis for each sample, ``(count, side)``; the border is repeated."""
    most = round(0.04 * side)
    shift = torch.randint(-most, most + 1, (count, 1), generator=chance)
    return (torch.arange(side) + shift).clamp(0, side - 1)
