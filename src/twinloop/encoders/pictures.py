"""How sharp pictures are, in a number that light and contrast do not move.

A network says nothing of the pictures that it wants, so its preprocessing is stated: in a YAML file of the same name
beside it, or in an ONNX file's metadata under `METADATA`. The hash of an encoder is of its file and of what is stated.
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
from twinloop.core.extension import raised
from twinloop.core.files import sha256_bytes, sha256_file, sha256_json
from twinloop.core.registry import Registry
from twinloop.core.yaml_documents import load_yaml, parse_yaml
from twinloop.dataset.media.pictures import Pictures, resized

Array = NDArray[np.floating[Any]]
_COARSE = 4  # pixels: an edge is as strong over so many where a little blur makes it weak over one


def sharpness(grey: Array) -> Array:
    """Of pictures ``(n, height, width)``: the logarithm of the energy of steps over one pixel by that over four."""
    fine, coarse = _energy(grey), _energy(block_means(grey, _COARSE))
    return np.log((fine + 1e-3) / (coarse + 1e-3))  # of a picture of one colour both are 0


def block_means(grey: Array, side: int) -> Array:
    """Means over square blocks; what is left over at the edges is cut off."""
    count, height, width = grey.shape[0], grey.shape[1] // side, grey.shape[2] // side
    return grey[:, : height * side, : width * side].reshape(count, height, side, width, side).mean(axis=(2, 4))


def _energy(grey: Array) -> Array:
    return (np.diff(grey, axis=1) ** 2).mean(axis=(1, 2)) + (np.diff(grey, axis=2) ** 2).mean(axis=(1, 2))


METADATA = "twinloop.preprocessing"
POLICY_FILES = ("encoder.onnx", "encoder.pt")
KINDS = ("classical", "onnx:FILE", "torch:FILE", "policy:FOLDER", "my_file.py:Encoder")
BATCH = 16  # pictures at once: 224 × 224 in float32 are 10 MB
Run = Callable[[NDArray[np.float32]], NDArray]


class ImageEncoder(Protocol):
    """Pictures to numbers."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    @property
    def hash(self) -> str:
        """A text that changes with the numbers."""
        ...

    @property
    def dimension(self) -> int:
        """How many numbers a picture gives."""
        ...

    def encode(self, pictures: Pictures) -> NDArray[np.float64]:
        """Numbers ``(n, dimension)`` of pictures ``(n, h, w, 3)`` uint8 sRGB."""
        ...


class Preprocessing(BaseModel):
    """What a network is given: pictures in a size, as (value / 255 − mean) / std by colour.

    ``size`` is height and width in pixels, to which pictures are averaged; ``layout`` is ``nchw`` or ``nhwc``;
    ``output`` names the output to take where there are several.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    layout: Literal["nchw", "nhwc"] = "nchw"
    output: str = ""

    @field_validator("size")
    @classmethod
    def _positive(cls, value: tuple[int, int]) -> tuple[int, int]:
        if min(value) < 1:
            raise ValueError("both sides must be at least 1 pixel")
        return value

    @field_validator("std")
    @classmethod
    def _divides(cls, value: tuple[float, float, float]) -> tuple[float, float, float]:
        if min(value) <= 0.0:
            raise ValueError("must be above 0")
        return value

    def __call__(self, pictures: Pictures) -> NDArray[np.float32]:
        """Pictures ``(n, h, w, 3)`` as the network wants them."""
        small = resized(pictures, self.size).astype(np.float32) / np.float32(255.0)
        made = (small - np.array(self.mean, dtype=np.float32)) / np.array(self.std, dtype=np.float32)
        return np.ascontiguousarray(made.transpose(0, 3, 1, 2) if self.layout == "nchw" else made)


class NetworkEncoder:
    """A network in a file, run by whatever ``run`` is.

    Args:
        name: for people.
        file: of the network.
        preprocessing: what it wants.
        run: from batches as `Preprocessing` makes them to numbers ``(n, …)``, which are laid out in a row.
    """

    def __init__(self, name: str, file: Path, preprocessing: Preprocessing, run: Run) -> None:
        self.name, self.preprocessing, self._file, self._run = name, preprocessing, file, run
        self.hash = sha256_bytes(sha256_file(file).encode(), sha256_json(preprocessing.model_dump()).encode())
        self.dimension = self._rows(np.zeros((1, *preprocessing.size, 3), dtype=np.uint8)).shape[1]

    def encode(self, pictures: Pictures) -> NDArray[np.float64]:
        """See `ImageEncoder`.

        Raises:
            InputError: the network fails, or its numbers are not finite.
        """
        parts = [self._rows(pictures[i : i + BATCH]) for i in range(0, len(pictures), BATCH)]
        rows = np.concatenate(parts) if parts else np.empty((0, self.dimension))
        if not np.isfinite(rows).all():
            raise InputError(
                f"{self._file} gives numbers that are not finite. Check mean and std of its preprocessing: "
                f"{self.preprocessing.model_dump()}."
            )
        return rows

    def _rows(self, pictures: Pictures) -> NDArray[np.float64]:
        try:
            found = np.asarray(self._run(self.preprocessing(pictures)), dtype=np.float64)
        except Exception as error:  # whatever a network's runtime raises, it is the file or what is stated of it
            raise InputError(
                f"{self._file} does not run on images of {self.preprocessing.size} (height, width) laid out as "
                f"{self.preprocessing.layout}: {raised(error)}. Check size and layout of its preprocessing."
            ) from error
        if found.ndim < 2 or len(found) != len(pictures):
            raise InputError(
                f"{self._file} gives {found.shape} for {len(pictures)} images; the first axis must be the image."
            )
        return found.reshape(len(found), -1)


# Names that end in a colon are followed by a file or folder, which their openers take; the others are classes.
ENCODERS: Registry[Callable[..., ImageEncoder]] = Registry(
    "encoder",
    {
        "classical": "twinloop.encoders.classical:ClassicalEncoder",
        "onnx:": "twinloop.encoders.onnx:open_onnx",
        "torch:": "twinloop.encoders.torchscript:open_torch",
        "policy:": "twinloop.encoders.pictures:open_policy_encoder",
    },
    group="twinloop.encoders",
    files=True,
    shown=lambda: KINDS,
    where="--embedding",
)


def open_encoder(reference: str) -> ImageEncoder:
    """An encoder by what the user writes.

    Args:
        reference: ``classical``; ``onnx:FILE`` or ``torch:FILE`` (TorchScript); ``policy:FOLDER`` with the vision part
            of a policy as ``encoder.onnx`` or ``encoder.pt``; ``path/to/file.py:CLASS``, or what an installed package
            offers, a class without arguments.

    Raises:
        UnknownNameError: none of these, or no such class.
        InputError: the file is missing, or its preprocessing is not stated.
        MissingDependencyError: what runs it is not installed.
    """
    scheme, colon, rest = reference.partition(":")
    if f"{scheme}{colon}" in ENCODERS.builtin and colon:
        return ENCODERS[f"{scheme}{colon}"](Path(rest))
    return _made(reference)


def open_policy_encoder(folder: Path) -> ImageEncoder:
    """Return the vision part of a policy, exported into its folder.

    Raises:
        InputError: it is not there.
    """
    found = [folder / name for name in POLICY_FILES if (folder / name).is_file()]
    if not found:
        raise InputError(
            f"{folder} has no {' or '.join(POLICY_FILES)}. Export the vision part of the policy there (ONNX or "
            f"TorchScript), with {Path(POLICY_FILES[0]).with_suffix('.yaml')} beside it:\n{_TEMPLATE}"
        )
    return open_encoder(f"{'onnx' if found[0].suffix == '.onnx' else 'torch'}:{found[0]}")


_TEMPLATE = "  size: [224, 224]\n  mean: [0.485, 0.456, 0.406]\n  std: [0.229, 0.224, 0.225]"


def stated_preprocessing(file: Path, stated: str | None = None) -> Preprocessing:
    """What is stated of a network's pictures, beside its file or within it.

    Args:
        file: of the network; looked for is ``FILE.yaml`` with its suffix replaced.
        stated: JSON or YAML that the file itself holds.

    Raises:
        InputError: nothing is stated, or it is not understood; shows what to write.
    """
    beside = file.with_suffix(".yaml")
    if not beside.is_file() and stated is None:
        raise InputError(
            f"Nothing says which pictures {file} wants. Write {beside}, for instance (values of ImageNet, of channels "
            f"in red, green, blue):\n{_TEMPLATE}"
        )
    where = str(beside) if beside.is_file() else f"{METADATA} in {file}"
    try:
        value = load_yaml(beside) if beside.is_file() else parse_yaml(str(stated), where=where)
        return Preprocessing.model_validate(value)
    except (ValidationError, DocumentError) as error:
        said = error.errors() if isinstance(error, ValidationError) else []
        what = "; ".join(f"{'.'.join(map(str, row['loc']))}: {row['msg']}" for row in said) or str(error)
        raise InputError(f"{where} is no preprocessing ({what}). Write, for instance:\n{_TEMPLATE}") from error


def require_network(file: Path, scheme: str) -> None:
    """Refuse a network's file that is not there."""
    if not file.is_file():
        raise InputError(f"The encoder {file} does not exist. Give the file of a network, as in {scheme}:encoder.onnx.")


def _made(reference: str) -> ImageEncoder:
    made = ENCODERS[reference]()
    lacking = [name for name in ("name", "hash", "dimension", "encode") if not hasattr(made, name)]
    if lacking:
        raise InputError(
            f"{reference} lacks {', '.join(lacking)}. An encoder has name, hash (a text that changes with its "
            "numbers), dimension and encode(pictures (n, h, w, 3) uint8) -> (n, dimension)."
        )
    return made
