"""Open image encoders by name or file, run networks with their preprocessing, and compute the sharpness of images.

A network file does not describe its input images. Therefore the preprocessing is stated in a YAML file of the same name
in the same folder, or in an ONNX file's metadata under `METADATA`. An encoder's hash covers file and preprocessing.
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
from twinloop.dataset.media.images import Pictures, resize_images

Array = NDArray[np.floating[Any]]
_COARSE = 4  # px: a slight blur weakens a step over 1 px, but not over so many


def sharpness(grey: Array) -> Array:
    """Return the sharpness ``(n,)`` of images ``(n, h, w)``: log ratio of the energies of steps over 1 and 4 px."""
    fine, coarse = _energy(grey), _energy(block_means(grey, _COARSE))
    return np.log((fine + 1e-3) / (coarse + 1e-3))  # both are 0 in an image of one colour


def block_means(grey: Array, side: int) -> Array:
    """Return means over blocks of ``side`` × ``side`` px; incomplete blocks at the edges are left out."""
    count, height, width = grey.shape[0], grey.shape[1] // side, grey.shape[2] // side
    return grey[:, : height * side, : width * side].reshape(count, height, side, width, side).mean(axis=(2, 4))


def _energy(grey: Array) -> Array:
    return (np.diff(grey, axis=1) ** 2).mean(axis=(1, 2)) + (np.diff(grey, axis=2) ** 2).mean(axis=(1, 2))


METADATA = "twinloop.preprocessing"
POLICY_FILES = ("encoder.onnx", "encoder.pt")
KINDS = ("classical", "onnx:FILE", "torch:FILE", "policy:FOLDER", "my_file.py:Encoder")
BATCH = 16  # images per call: 16 of 224 × 224 in float32 are 10 MB
Run = Callable[[NDArray[np.float32]], NDArray]


class ImageEncoder(Protocol):
    """Protocol of encoders from images to feature vectors."""

    @property
    def name(self) -> str:
        """Name in messages and reports."""
        ...

    @property
    def hash(self) -> str:
        """Hash that changes if the features change."""
        ...

    @property
    def dimension(self) -> int:
        """Number of features per image."""
        ...

    def encode(self, pictures: Pictures) -> NDArray[np.float64]:
        """Return features ``(n, dimension)`` of sRGB images ``(n, h, w, 3)`` uint8."""
        ...


class Preprocessing(BaseModel):
    """Preprocessing of a network's images: a fixed size, then (value / 255 − mean) / std by colour.

    ``size`` is height and width in px, to which images are averaged; ``layout`` is ``nchw`` or ``nhwc``; ``output``
    names the network's output to use if there are several.
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

    def __call__(self, pictures: Pictures) -> NDArray[np.float32]:
        """Return the network's input from sRGB images ``(n, h, w, 3)`` uint8."""
        small = resize_images(pictures, self.size).astype(np.float32) / np.float32(255.0)
        made = (small - np.array(self.mean, dtype=np.float32)) / np.array(self.std, dtype=np.float32)
        return np.ascontiguousarray(made.transpose(0, 3, 1, 2) if self.layout == "nchw" else made)


class NetworkEncoder:
    """Image encoder with a network from a file.

    Args:
        name: name in messages and reports.
        file: file of the network.
        preprocessing: preprocessing of the network's images.
        run: function from preprocessed batches to outputs ``(n, …)``, which are flattened to ``(n, dimension)``.
    """

    def __init__(self, name: str, file: Path, preprocessing: Preprocessing, run: Run) -> None:
        self.name, self.preprocessing, self._file, self._run = name, preprocessing, file, run
        self.hash = sha256_bytes(sha256_file(file).encode(), sha256_json(preprocessing.model_dump()).encode())
        self.dimension = self._run_batch(np.zeros((1, *preprocessing.size, 3), dtype=np.uint8)).shape[1]

    def encode(self, pictures: Pictures) -> NDArray[np.float64]:
        """Return the network's outputs ``(n, dimension)`` for sRGB images ``(n, h, w, 3)`` uint8.

        Raises:
            InputError: the network fails, or its outputs are not finite.
        """
        parts = [self._run_batch(pictures[i : i + BATCH]) for i in range(0, len(pictures), BATCH)]
        rows = np.concatenate(parts) if parts else np.empty((0, self.dimension))
        if not np.isfinite(rows).all():
            raise InputError(
                f"{self._file} gives numbers that are not finite. Check mean and std of its preprocessing: "
                f"{self.preprocessing.model_dump()}."
            )
        return rows

    def _run_batch(self, pictures: Pictures) -> NDArray[np.float64]:
        try:
            found = np.asarray(self._run(self.preprocessing(pictures)), dtype=np.float64)
        except Exception as error:  # any error of the runtime is caused by the file or the stated preprocessing
            raise InputError(
                f"{self._file} does not run on images of {self.preprocessing.size} (height, width) laid out as "
                f"{self.preprocessing.layout}: {describe_error(error)}. Check size and layout of its preprocessing."
            ) from error
        if found.ndim < 2 or len(found) != len(pictures):
            raise InputError(
                f"{self._file} gives {found.shape} for {len(pictures)} images; the first axis must be the image."
            )
        return found.reshape(len(found), -1)


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
    shown=lambda: KINDS,
    where="--embedding",
)


def open_encoder(reference: str) -> ImageEncoder:
    """Open an image encoder by its name or file.

    Args:
        reference: ``classical``; ``onnx:FILE`` or ``torch:FILE`` (TorchScript); ``policy:FOLDER`` with the vision part
            of a policy as ``encoder.onnx`` or ``encoder.pt``; ``path/to/file.py:CLASS``, or a name that an installed
            package registers, for a class without constructor arguments.

    Raises:
        UnknownNameError: the name or the class is unknown.
        InputError: a file is missing, its preprocessing is not stated, or the class lacks an attribute.
        MissingDependencyError: the package that runs the encoder is not installed.
    """
    scheme, colon, rest = reference.partition(":")
    if f"{scheme}{colon}" in ENCODERS.builtin and colon:
        return ENCODERS[f"{scheme}{colon}"](Path(rest))
    return _open_registered(reference)


def open_policy_encoder(folder: Path) -> ImageEncoder:
    """Open the vision part of a policy, which must be exported into the policy's folder.

    Raises:
        InputError: the folder has neither ``encoder.onnx`` nor ``encoder.pt``; see also `open_encoder`.
    """
    found = [folder / name for name in POLICY_FILES if (folder / name).is_file()]
    if not found:
        raise InputError(
            f"{folder} has no {' or '.join(POLICY_FILES)}. Export the vision part of the policy there (ONNX or "
            f"TorchScript), and {Path(POLICY_FILES[0]).with_suffix('.yaml')} next to it:\n{_TEMPLATE}"
        )
    return open_encoder(f"{'onnx' if found[0].suffix == '.onnx' else 'torch'}:{found[0]}")


_TEMPLATE = "  size: [224, 224]\n  mean: [0.485, 0.456, 0.406]\n  std: [0.229, 0.224, 0.225]"


def read_preprocessing(file: Path, stated: str | None = None) -> Preprocessing:
    """Read the preprocessing that is stated for a network, in a YAML file or in the network's own file.

    Args:
        file: file of the network; the YAML file has the same name with the suffix ``.yaml`` and takes precedence.
        stated: JSON or YAML from the metadata of the network's file; None if it has none.

    Raises:
        InputError: no preprocessing is stated, or it is invalid; the message has an example.
    """
    beside = file.with_suffix(".yaml")
    if not beside.is_file() and stated is None:
        raise InputError(
            f"The preprocessing of images for {file} is not stated. Write {beside}, for example (values of ImageNet, "
            f"for red, green and blue):\n{_TEMPLATE}"
        )
    where = str(beside) if beside.is_file() else f"{METADATA} in {file}"
    try:
        value = load_yaml(beside) if beside.is_file() else parse_yaml(str(stated), where=where)
        return Preprocessing.model_validate(value)
    except (ValidationError, DocumentError) as error:
        said = error.errors() if isinstance(error, ValidationError) else []
        what = "; ".join(f"{'.'.join(map(str, row['loc']))}: {row['msg']}" for row in said) or str(error)
        raise InputError(f"{where} is not a valid preprocessing ({what}). Write, for example:\n{_TEMPLATE}") from error


def require_network(file: Path, scheme: str) -> None:
    """Raise an error if the file of a network does not exist."""
    if not file.is_file():
        raise InputError(f"The encoder {file} does not exist. Give the file of a network, as in {scheme}:encoder.onnx.")


def _open_registered(reference: str) -> ImageEncoder:
    made = ENCODERS[reference]()
    lacking = [name for name in ("name", "hash", "dimension", "encode") if not hasattr(made, name)]
    if lacking:
        raise InputError(
            f"{reference} lacks {', '.join(lacking)}. An encoder has name, hash (a text that changes if the "
            "features change), dimension and encode(images (n, h, w, 3) uint8) -> (n, dimension)."
        )
    return made
