"""The door to torch: nothing of this room needs it before a policy is made or opened."""

from __future__ import annotations

from types import ModuleType

from twinloop.core.errors import MissingDependencyError


def require_torch() -> ModuleType:
    """The package ``torch``, once it and safetensors are known to be there.

    Raises:
        MissingDependencyError: one of them is not installed.
    """
    try:
        import safetensors.torch  # noqa: F401  # pyright: ignore[reportMissingImports]
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        what = f"Policies are torch networks in safetensors files, and {error.name} is not installed."
        raise MissingDependencyError(what, remedy="pip install 'twinloop[train]'") from error
    return torch
