"""Open image encoders by name or file, run networks with their preprocessing, and compute the sharpness of images.

The file of a network does not describe the required input images. Therefore the preprocessing is read from a YAML file
with the same name in the same folder, or from the metadata of an ONNX file (key ``twinloop.preprocessing``). The hash
of an encoder depends on the file and on the preprocessing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from twinloop.core.documents import DocumentError
from twinloop.core.errors import InputError
from twinloop.core.extension import describe_error
from twinloop.core.files import sha256_bytes, sha256_file, sha256_json
from twinloop.core.registry import Registry
from twinloop.core.yaml_documents import load_yaml, parse_yaml
from twinloop.dataset.media.images import Images, resize_images

Array = NDArray[np.floating[Any]]
_COARSE = 4  # pixels: slight blur reduces differences between adjacent pixels, but not between blocks of this size


def sharpness(grey: Array) -> Array:
    """Return the sharpness of each image, shape ``(n,)``: a log ratio of fine to coarse intensity differences.

    It is the logarithm of the mean squared difference of adjacent pixels, divided by that of adjacent blocks of 4 × 4
    pixels. Blur lowers it.

    Args:
        grey: Grey images, shape ``(n, h, w)``.
    """
    fine, coarse = _energy(grey), _energy(block_means(grey, _COARSE))
    return np.log((fine + 1e-3) / (coarse + 1e-3))  # both are 0 in an image of one colour


def block_means(grey: Array, side: int) -> Array:
    """Return the mean of each block of ``side`` × ``side`` pixels; incomplete blocks at the edges are omitted.

    Args:
        grey: Grey images, shape ``(n, h, w)``.
        side: Side of a block in pixels.
    """
    count, height, width = grey.shape[0], grey.shape[1] // side, grey.shape[2] // side
    return grey[:, : height * side, : width * side].reshape(count, height, side, width, side).mean(axis=(2, 4))


def _energy(grey: Array) -> Array:
    return (np.diff(grey, axis=1) ** 2).mean(axis=(1, 2)) + (np.diff(grey, axis=2) ** 2).mean(axis=(1, 2))


METADATA = "twinloop.preprocessing"
POLICY_FILES = ("encoder.onnx", "encoder.pt")
ENCODER_NAMES = ("classical", "onnx:FILE", "torch:FILE", "policy:FOLDER", "my_file.py:Encoder")
BATCH_SIZE = 16  # images per call: 16 of 224 × 224 in float32 are 10 MB
Run = Callable[[NDArray[np.float32]], NDArray]


class ImageEncoder(Protocol):
    """Protocol for classes that encode images as feature vectors."""

    @property
    def name(self) -> str:
        """Name of the encoder in messages and reports."""
        ...

    @property
    def hash(self) -> str:
        """Hash of everything that determines the features; only features with equal hashes can be compared."""
        ...

    @property
    def dimension(self) -> int:
        """Number of features per image."""
        ...

    def encode(self, images: Images) -> NDArray[np.float64]:
        """Return features, shape ``(n, dimension)``, of sRGB images, shape ``(n, h, w, 3)``, uint8."""
        ...


class Preprocessing(BaseModel):
    """Preprocessing of a network's input images: resize to a fixed size, then (value / 255 − mean) / std per colour.

    Attributes:
        size: Height and width in pixels; images are resized by averaging.
        mean: Mean of red, green and blue, for values in [0, 1].
        std: Standard deviation of red, green and blue.
        layout: Order of the input axes, ``nchw`` or ``nhwc``, with n images, c colour channels, h height and w width.
        output: Name of the network's output to use; by default the first one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    layout: Literal["nchw", "nhwc"] = "nchw"
    output: str = ""

    @field_validator("size")
    @classmethod
    def _require_positive_size(cls, value: tuple[int, int]) -> tuple[int, int]:
        if min(value) < 1:
            raise ValueError("both sides must be at least 1 pixel")
        return value

    @field_validator("std")
    @classmethod
    def _require_positive_std(cls, value: tuple[float, float, float]) -> tuple[float, float, float]:
        if min(value) <= 0.0:
            raise ValueError("must be above 0")
        return value

    def __call__(self, images: Images) -> NDArray[np.float32]:
        """Return the network's input for sRGB images.

        Args:
            images: Images of any size, shape ``(n, h, w, 3)``, uint8.

        Returns:
            Resized images, (value / 255 − mean) / std per colour, float32. The shape is ``(n, 3, height, width)`` for
                the layout ``nchw``, else ``(n, height, width, 3)``.
        """
        small = resize_images(images, self.size).astype(np.float32) / np.float32(255.0)
        made = (small - np.array(self.mean, dtype=np.float32)) / np.array(self.std, dtype=np.float32)
        return np.ascontiguousarray(made.transpose(0, 3, 1, 2) if self.layout == "nchw" else made)


class NetworkEncoder:
    """Image encoder that runs a network from a file.

    Args:
        name: Name of the encoder in messages and reports.
        file: File of the network.
        preprocessing: Preprocessing of the input images.
        run: Function that runs the network on a preprocessed batch of n images; its output, shape ``(n, …)``, is
            flattened to ``(n, dimension)``.
    """

    def __init__(self, name: str, file: Path, preprocessing: Preprocessing, run: Run) -> None:
        self.name, self.preprocessing, self._file, self._run = name, preprocessing, file, run
        self.hash = sha256_bytes(sha256_file(file).encode(), sha256_json(preprocessing.model_dump()).encode())
        self.dimension = self._run_batch(np.zeros((1, *preprocessing.size, 3), dtype=np.uint8)).shape[1]

    def encode(self, images: Images) -> NDArray[np.float64]:
        """Return the network's outputs, shape ``(n, dimension)``, for sRGB images, shape ``(n, h, w, 3)``, uint8.

        Raises:
            InputError: If the network fails, or its outputs are not finite.
        """
        parts = [self._run_batch(images[i : i + BATCH_SIZE]) for i in range(0, len(images), BATCH_SIZE)]
        rows = np.concatenate(parts) if parts else np.empty((0, self.dimension))
        if not np.isfinite(rows).all():
            raise InputError(
                f"{self._file} gives numbers that are not finite. Check mean and std of its preprocessing: "
                f"{self.preprocessing.model_dump()}."
            )
        return rows

    def _run_batch(self, images: Images) -> NDArray[np.float64]:
        try:
            outputs = np.asarray(self._run(self.preprocessing(images)), dtype=np.float64)
        except Exception as error:  # any error of the runtime is caused by the file or the stated preprocessing
            raise InputError(
                f"{self._file} does not run on images of {self.preprocessing.size} (height, width) laid out as "
                f"{self.preprocessing.layout}: {describe_error(error)}. Check size and layout of its preprocessing."
            ) from error
        if outputs.ndim < 2 or len(outputs) != len(images):
            raise InputError(
                f"{self._file} gives {outputs.shape} for {len(images)} images. "
                "The first axis must have one entry per image."
            )
        return outputs.reshape(len(outputs), -1)


# A name that ends in a colon is followed by the file or folder for its opener; the others are classes.
ENCODERS: Registry[Callable[..., ImageEncoder]] = Registry(
    "encoder",
    {
        "classical": "twinloop.encoders.classical:ClassicalEncoder",
        "onnx:": "twinloop.encoders.onnx:open_onnx",
        "torch:": "twinloop.encoders.torchscript:open_torch",
        "policy:": "twinloop.encoders.images:open_policy_encoder",
    },
    group="twinloop.encoders",
    files=True,
    listed_names=lambda: ENCODER_NAMES,
    where="--embedding",
)


def open_encoder(reference: str) -> ImageEncoder:
    """Open an image encoder by its name or file.

    Args:
        reference: ``classical``; ``onnx:FILE``; ``torch:FILE`` for TorchScript; ``policy:FOLDER`` for the vision
            network of a policy, stored as ``encoder.onnx`` or ``encoder.pt``; ``path/to/file.py:CLASS``, or a name that
            an installed package registers, for a class whose constructor needs no arguments.

    Raises:
        UnknownNameError: If the name or the class is unknown.
        InputError: If a file is missing, its preprocessing is not stated, or the class lacks an attribute.
        MissingDependencyError: If the package that runs the encoder is not installed.
    """
    scheme, colon, rest = reference.partition(":")
    if f"{scheme}{colon}" in ENCODERS.builtin and colon:
        return ENCODERS[f"{scheme}{colon}"](Path(rest))
    return _open_registered(reference)


def open_policy_encoder(folder: Path) -> ImageEncoder:
    """Open the vision network of a policy, which must have been exported into the policy's folder.

    Raises:
        InputError: If the folder has neither ``encoder.onnx`` nor ``encoder.pt``, or `open_encoder` refuses the file.
    """
    files = [folder / name for name in POLICY_FILES if (folder / name).is_file()]
    if not files:
        raise InputError(
            f"{folder} has no {' or '.join(POLICY_FILES)}. Export the vision part of the policy there (ONNX or "
            f"TorchScript), and {Path(POLICY_FILES[0]).with_suffix('.yaml')} next to it:\n{_TEMPLATE}"
        )
    return open_encoder(f"{'onnx' if files[0].suffix == '.onnx' else 'torch'}:{files[0]}")


_TEMPLATE = "  size: [224, 224]\n  mean: [0.485, 0.456, 0.406]\n  std: [0.229, 0.224, 0.225]"


def read_preprocessing(file: Path, stated: str | None = None) -> Preprocessing:
    """Read the preprocessing of a network's input images from a YAML file or from the network's own metadata.

    Args:
        file: File of the network. A YAML file with the same name and the suffix ``.yaml`` takes precedence.
        stated: Preprocessing as JSON or YAML text in the metadata of the network's file; None if there is none.

    Raises:
        InputError: If no preprocessing is stated, or it is invalid. The message has an example.
    """
    yaml_file = file.with_suffix(".yaml")
    if not yaml_file.is_file() and stated is None:
        raise InputError(
            f"The preprocessing of images for {file} is not stated. Write {yaml_file}, for example (values of "
            f"ImageNet, for red, green and blue):\n{_TEMPLATE}"
        )
    where = str(yaml_file) if yaml_file.is_file() else f"{METADATA} in {file}"
    try:
        value = load_yaml(yaml_file) if yaml_file.is_file() else parse_yaml(str(stated), where=where)
        return Preprocessing.model_validate(value)
    except (ValidationError, DocumentError) as error:
        problems = error.errors() if isinstance(error, ValidationError) else []
        what = "; ".join(f"{'.'.join(map(str, row['loc']))}: {row['msg']}" for row in problems) or str(error)
        raise InputError(f"{where} is not a valid preprocessing ({what}). Write, for example:\n{_TEMPLATE}") from error


def require_network(file: Path, scheme: str) -> None:
    """Raise an error if the file of a network does not exist.

    Args:
        file: File of the network.
        scheme: Prefix of the reference for the error message, ``onnx`` or ``torch``.

    Raises:
        InputError: If the file does not exist.
    """
    if not file.is_file():
        raise InputError(f"The encoder {file} does not exist. Give the file of a network, as in {scheme}:encoder.onnx.")


def _open_registered(reference: str) -> ImageEncoder:
    encoder = ENCODERS[reference]()
    lacking = [name for name in ("name", "hash", "dimension", "encode") if not hasattr(encoder, name)]
    if lacking:
        raise InputError(
            f"{reference} lacks {', '.join(lacking)}. An encoder has name, hash (a text that changes if the "
            "features change), dimension and encode(images (n, h, w, 3) uint8) -> (n, dimension)."
        )
    return encoder
