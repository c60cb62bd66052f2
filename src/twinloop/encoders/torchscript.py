"""Load image encoders from TorchScript files, which ``torch.jit.script`` or ``torch.jit.trace`` created."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.core.extension import require_approved
from twinloop.core.files import sha256_file
from twinloop.encoders.images import NetworkEncoder, read_preprocessing, require_network


def open_torch(file: Path) -> NetworkEncoder:
    """Open a network in a TorchScript file as an image encoder; it runs on the CPU without gradients.

    TorchScript is code. A file in a folder of data, which may come from another person, is opened only if the user has
    approved its content.

    If the module returns several tensors, the first one is used. If it returns a dictionary, the tensor with the name
    ``output`` of the preprocessing is used, by default the first one.

    Raises:
        MissingDependencyError: If torch is not installed.
        NotApprovedError: If the file is in a folder of data and is not approved.
        InputError: If the file does not exist or is not TorchScript, or its preprocessing is not stated.
    """
    require_network(file, "torch")
    require_approved(file, sha256_file(file), "")
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        what = f"An encoder in a TorchScript file needs torch ({error})."
        raise MissingDependencyError(what, remedy="pip install torch") from error
    try:
        with warnings.catch_warnings():  # newer versions of torch recommend other formats
            warnings.simplefilter("ignore", DeprecationWarning)
            module = torch.jit.load(str(file), map_location="cpu").eval()
    except RuntimeError as error:
        raise InputError(
            f"{file} is not TorchScript ({str(error).splitlines()[0]}). Save the module with torch.jit.trace(module, "
            "images).save(FILE); a state dict or a pickled module has no code to run."
        ) from error
    preprocessing = read_preprocessing(file)

    def run(batch: NDArray[np.float32]) -> NDArray:
        with torch.inference_mode():
            return _select_tensor(module(torch.from_numpy(batch)), preprocessing.output).numpy()

    return NetworkEncoder(f"torch:{file.name}", file, preprocessing, run)


def _select_tensor(outputs: Any, output: str) -> Any:
    if isinstance(outputs, dict):
        return outputs[output or next(iter(outputs))]
    return outputs[0] if isinstance(outputs, tuple | list) else outputs
