"""Load image encoders from ONNX files, and run them with onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.encoders.images import METADATA, NetworkEncoder, read_preprocessing, require_network


def open_onnx(file: Path) -> NetworkEncoder:
    """Open a network in an ONNX file as an image encoder.

    It runs on one CPU thread, so that its features are reproducible.

    Raises:
        MissingDependencyError: If onnxruntime is not installed.
        InputError: If the file cannot be read, the network has several inputs, or its preprocessing is not stated.
        UnknownNameError: If the preprocessing selects an output that the network does not have.
    """
    require_network(file, "onnx")
    session = open_session(str(file), where=str(file), what="An encoder in an ONNX file")
    inputs, outputs = session.get_inputs(), [output.name for output in session.get_outputs()]
    if len(inputs) != 1:
        raise InputError(
            f"{file} has the inputs {', '.join(i.name for i in inputs)}; an encoder has images as its only input."
        )
    preprocessing = read_preprocessing(file, session.get_modelmeta().custom_metadata_map.get(METADATA))
    output = preprocessing.output or outputs[0]
    if output not in outputs:
        raise UnknownNameError("output", output, outputs, where=str(file))
    one = inputs[0].shape[:1] == [1]  # exported for one image at a time

    def run(batch: NDArray[np.float32]) -> NDArray:
        parts = [batch[i : i + 1] for i in range(len(batch))] if one else [batch]
        return np.concatenate([session.run([output], {inputs[0].name: part})[0] for part in parts])

    return NetworkEncoder(f"onnx:{file.name}", file, preprocessing, run)


def open_session(model: bytes | str, *, where: str, what: str) -> Any:
    """Return a session of onnxruntime for a network, which runs on one CPU thread, so that results are reproducible.

    Args:
        model: content or path of the ONNX file.
        where: name of the file, for the message.
        what: what needs onnxruntime, the start of the message if it is not installed.

    Raises:
        MissingDependencyError: If onnxruntime is not installed.
        InputError: If the network cannot be read.
    """
    try:
        import onnxruntime  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(
            f"{what} needs onnxruntime ({error}).", remedy="pip install 'twinloop[onnx]'"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own exceptions have no common public base
        raise InputError(f"{where} cannot be read as ONNX ({' '.join(str(error).split())}).") from error
