"""Images made like others: moments that are equal afterwards, phases that stay, and real images untouched."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from support.edits import foreign
from support.training import frames
from twinloop.core.contract import ACTION
from twinloop.core.errors import InputError
from twinloop.train import train
from twinloop.train.config import PixelsConfig, TrainConfig
from twinloop.train.preparation import TrainingSetup

torch = pytest.importorskip("torch")

from twinloop.train import pixels as pixels_methods  # noqa: E402
from twinloop.train.pixels import FourierAdaptation, MomentMatching, make_pixel_transform, make_source_transform  # noqa: E402


def images(count: int, seed: int, low: float = 60, high: float = 160):
    generator = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand((count, 1, 12, 16, 3), generator=generator)


def test_after_moments_mean_and_deviation_of_every_channel_are_the_real_ones():
    sim, real = images(6, 0), images(5, 1, 100, 130) * torch.tensor([1.0, 0.8, 0.6])
    found = MomentMatching.of(real, sim)(sim)
    for side in (torch.mean, torch.std):
        torch.testing.assert_close(
            side(found.reshape(-1, 3), dim=0), side(real.reshape(-1, 3), dim=0), rtol=2e-3, atol=1e-2
        )
    torch.testing.assert_close(MomentMatching.of(sim, sim)(sim), sim)


def test_a_channel_that_does_not_vary_is_only_shifted():
    sim, real = torch.full((2, 1, 12, 16, 3), 40.0), images(3, 1)
    found = MomentMatching.of(real, sim)(sim)
    torch.testing.assert_close(found, real.reshape(-1, 3).mean(dim=0).expand_as(found))


def test_fda_of_width_zero_is_the_identity():
    sim, real = images(4, 0), images(3, 1)[:, 0]
    torch.testing.assert_close(FourierAdaptation.of(real, 0.0)(sim), sim)


def test_fda_swaps_low_amplitudes_keeps_phases_and_leaves_the_rest():
    sim, real = images(4, 0), images(1, 1)[:, 0]
    method = FourierAdaptation.of(real, 0.25)  # fewer than 3 periods of the 12 rows
    before, after = (np.fft.fft2(x[:, 0].numpy(), axes=(1, 2)) for x in (sim, method(sim)))
    wanted = np.abs(np.fft.fft2(real.numpy(), axes=(1, 2)))
    rows, columns = np.abs(np.fft.fftfreq(12) * 12), np.abs(np.fft.fftfreq(16) * 16)
    low = (rows < 3)[:, None] & (columns < 3)
    assert low.sum() == 25
    np.testing.assert_allclose(np.abs(after[:, low]), np.broadcast_to(wanted[:, low], after[:, low].shape), rtol=1e-3)
    np.testing.assert_allclose(np.exp(1j * np.angle(after)), np.exp(1j * np.angle(before)), atol=2e-2)
    np.testing.assert_allclose(after[:, ~low], before[:, ~low], rtol=1e-3, atol=1e-2)


def test_the_former_name_of_the_number_of_images_is_read():
    assert PixelsConfig.model_validate({"pictures": 7}) == PixelsConfig(images=7)


def test_which_real_image_is_taken_follows_from_the_generator():
    method, sim = FourierAdaptation.of(images(8, 1)[:, 0], 0.2), images(4, 0)
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(method(sim))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_a_batch_keeps_its_real_images_and_gets_bytes():
    run = make_source_transform({"front": lambda values: values + 300.0}, torch.tensor([True, False]))
    given = images(3, 0).to(torch.uint8)
    batch = {"source": torch.tensor([0, 1, 0]), "observation.images.front": given.clone()}
    made = run(batch)["observation.images.front"]
    assert made.dtype == torch.uint8
    assert torch.equal(made[1], given[1])
    assert (made[[0, 2]] == 255).all()
    assert torch.equal(batch["observation.images.front"], given)


class Cache:
    """Images whose grey is 200 for real and 50 for simulated frames."""

    def __init__(self, real_from: int) -> None:
        self.real_from = real_from

    def read(self, rows):
        level = np.where(np.asarray(rows) >= self.real_from, 200, 50).astype(np.uint8)
        noise = np.random.default_rng(0).integers(-5, 6, (*level.shape, 12, 16, 3))
        return (level[..., None, None, None] + noise).astype(np.uint8)


def prepared(*, real: bool = True, cameras=None) -> TrainingSetup:
    data = frames([[6] * 3, [6] * 2], real=[False, real])
    contract = dataclasses.replace(data.contract, cameras={"front": (12, 16)} if cameras is None else cameras)
    count = len(data.episodes)
    return TrainingSetup(
        config=TrainConfig.of({"sources": [{"data": "x"}], "batch": 4}),
        data=dataclasses.replace(data, contract=contract, columns={ACTION: data.columns[ACTION]}),
        training=np.arange(count), held_out=np.empty(0, dtype=np.int64), share=np.array([0.5, 0.5]),
    )  # fmt: skip


def test_statistics_are_of_each_kinds_training_images(monkeypatch):
    monkeypatch.setattr(pixels_methods, "open_caches", lambda data: {"front": Cache(18)})
    run = make_pixel_transform(prepared(), PixelsConfig(method="moments", images=20))
    batch = {"source": torch.tensor([0]), "observation.images.front": torch.full((1, 1, 12, 16, 3), 50).byte()}
    assert run(batch)["observation.images.front"].float().mean() == pytest.approx(200, abs=1.5)


def test_without_real_images_or_cameras_it_is_refused():
    with pytest.raises(InputError, match="no real training images"):
        make_pixel_transform(prepared(real=False), PixelsConfig())
    with pytest.raises(InputError, match="the policy uses none. Name cameras with --inputs"):
        make_pixel_transform(prepared(cameras={}), PixelsConfig())


def test_a_policy_is_trained_on_images_made_like_real_ones_and_adapted_again(tmp_path):
    folder = foreign(tmp_path / "theirs", [5, 5, 5], images=True)
    settings = {"width": 8, "depth": 1, "chunk_size": 2, "n_action_steps": 1, "images": {"channels": [4, 4]}}
    sources = [{"data": str(folder), "name": "real"}, {"data": str(folder), "name": "sim", "kind": "sim"}]
    said = {"sources": sources, "steps": 2, "batch": 4, "holdout": 0, "sim_fraction": 0.5, "pixels": {"method": "fda"}}
    plain = train(TrainConfig.of({**said, "settings": settings, "pixels": None}), tmp_path / "plain")
    made = [train(TrainConfig.of({**said, "settings": settings}), tmp_path / name) for name in ("a", "b")]
    assert made[0].metrics["adaptation"]["pixels"]["method"] == "fda"
    assert made[0].metrics["hash"] == made[1].metrics["hash"]
    assert made[0].metrics["hash"] != plain.metrics["hash"]
    adapt = {"from": str(tmp_path / "a"), "method": "low_rank", "rank": 2}
    again = train(TrainConfig.of({**said, "adapt": adapt}), tmp_path / "again")
    assert set(again.metrics["adaptation"]) >= {"base_hash", "pixels", "moving"}
