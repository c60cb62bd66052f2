"""Intel's Open Image Denoise, by the one door through which it comes in."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import MissingDependencyError

REMEDY = "pip install 'twinloop[path]'"
Image = NDArray[np.float32]


def can_denoise() -> bool:
    """Whether the package is installed."""
    return find_spec("pyoidn") is not None


def denoise(light: Image, albedo: Image, normal: Image) -> Image:
    """Linear light without the noise of few samples, led by what has none: albedo and normals, all ``(h, w, 3)``.

    Raises:
        MissingDependencyError: pyoidn is not installed.
    """
    try:
        import pyoidn  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(f"Denoising needs pyoidn ({error}).", remedy=REMEDY) from error
    guides = (np.ascontiguousarray(np.clip(albedo, 0.0, 1.0)), np.ascontiguousarray(normal))
    return pyoidn.denoise(np.ascontiguousarray(light), *guides, hdr=True)
