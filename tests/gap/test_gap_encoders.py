"""Encoders: sensitivity of classical features, networks that users name, and error messages."""

import numpy as np
import pytest
import yaml

from benchmarks.error_rates.gap.vision_scenes import camera_images
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.records import Embedding, require_same_encoder
from twinloop.encoders.classical import compute_features, convert_to_lab
from twinloop.encoders.images import Preprocessing, open_encoder

STATED = {"size": [8, 12], "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.25, 0.5]}


def test_classical_features_are_finite_and_tell_what_changed():
    plain = camera_images(1, frames=2)[0]
    encoder = open_encoder("classical")
    rows = encoder.encode(plain)
    assert rows.shape == (2, encoder.dimension)
    assert np.isfinite(rows).all()
    assert rows[:1] == pytest.approx(encoder.encode(plain[:1]), abs=1e-4)
    soft, red = camera_images(1, frames=2, blur=1.5)[0], camera_images(1, frames=2, white_balance_red=1.3)[0]
    before, blurred, tinted = (compute_features(p) for p in (plain, soft, red))
    moved = {name: np.abs(blurred[name] - before[name]).max() for name in before}
    assert moved["spectrum"] > 0.2
    assert moved["spectrum"] > 5 * np.abs(tinted["spectrum"] - before["spectrum"]).max()
    assert np.abs(tinted["layout"] - before["layout"]).max() > 5 * np.abs(blurred["layout"] - before["layout"]).max()


def test_lab_is_cies():
    colours = np.array([[[[255, 255, 255], [255, 0, 0], [0, 0, 0], [119, 119, 119]]]], dtype=np.uint8)
    wanted = [[100, 0, 0], [53.24, 80.09, 67.20], [0, 0, 0], [50.03, 0, 0]]
    assert convert_to_lab(colours)[0, 0] == pytest.approx(np.array(wanted), abs=0.05)


def test_images_too_small_for_classical_features():
    with pytest.raises(InputError, match=r"32x32 are too small .* 64 pixels or more"):
        open_encoder("classical").encode(np.zeros((1, 32, 32, 3), dtype=np.uint8))


def test_a_class_of_the_users_own(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "class Mean:\n    name, hash, dimension = 'mean', 'v1', 3\n"
        "    def encode(self, pictures):\n        return pictures.mean(axis=(1, 2))\n"
    )
    assert open_encoder(f"{file}:Mean").encode(np.full((2, 4, 4, 3), 9, dtype=np.uint8)).tolist() == [[9] * 3] * 2
    file.write_text("class Bare:\n    name = 'bare'\n")
    with pytest.raises(InputError, match="lacks hash, dimension, encode"):
        open_encoder(f"{file}:Bare")


def test_an_unknown_encoder_and_a_missing_file_are_named(tmp_path):
    with pytest.raises(UnknownNameError, match=r"Unknown encoder 'clasical' .* classical"):
        open_encoder("clasical")
    with pytest.raises(InputError, match="nothing.onnx does not exist"):
        open_encoder("onnx:nothing.onnx")
    with pytest.raises(InputError, match=r"has no encoder.onnx or encoder.pt"):
        open_encoder(f"policy:{tmp_path}")


def test_preprocessing_is_what_is_stated():
    image = np.full((1, 16, 24, 3), [51, 102, 255], dtype=np.uint8)
    made = Preprocessing.model_validate(STATED)(image)
    assert made.shape == (1, 3, 8, 12)
    assert made.dtype == np.float32
    assert made[0, :, 0, 0] == pytest.approx([(0.2 - 0.5) / 0.2, (0.4 - 0.4) / 0.25, (1.0 - 0.3) / 0.5])


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_torchscript_encoder(tmp_path):
    torch = pytest.importorskip("torch")
    file = tmp_path / "encoder.pt"
    module = torch.nn.Sequential(torch.nn.AvgPool2d(4), torch.nn.Flatten())
    torch.jit.trace(module, torch.zeros(1, 3, 8, 12)).save(str(file))
    with pytest.raises(InputError, match=r"(?s)The preprocessing of images for .* is not stated.* size: \[224, 224\]"):
        open_encoder(f"torch:{file}")
    file.with_suffix(".yaml").write_text(yaml.safe_dump(STATED))
    encoder = open_encoder(f"policy:{tmp_path}")
    images = np.random.default_rng(0).integers(0, 256, (20, 16, 24, 3), dtype=np.uint8)
    found = encoder.encode(images)
    wanted = Preprocessing.model_validate(STATED)(images).reshape(20, 3, 2, 4, 3, 4).mean(axis=(3, 5)).reshape(20, -1)
    assert found == pytest.approx(wanted, abs=1e-5)
    first = encoder.hash
    file.with_suffix(".yaml").write_text(yaml.safe_dump({**STATED, "std": [1, 1, 1]}))
    assert open_encoder(f"torch:{file}").hash != first
    file.with_suffix(".yaml").write_text(yaml.safe_dump({**STATED, "std": [0, 1, 1], "crop": 3}))
    with pytest.raises(InputError, match=r"is not a valid preprocessing .*std.*must be above 0.*crop"):
        open_encoder(f"torch:{file}")


def test_a_file_that_is_no_network(tmp_path):
    pytest.importorskip("torch")
    file = tmp_path / "weights.pt"
    file.write_bytes(b"no network at all")
    with pytest.raises(InputError, match="is not TorchScript"):
        open_encoder(f"torch:{file}")


def test_an_onnx_encoder_states_its_preprocessing_itself(tmp_path):
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    images = helper.make_tensor_value_info("pictures", TensorProto.FLOAT, ["n", 3, 8, 12])
    rows = helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["n", 3, 1, 1])
    graph = helper.make_graph([helper.make_node("GlobalAveragePool", ["pictures"], ["rows"])], "g", [images], [rows])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, {"twinloop.preprocessing": yaml.safe_dump(STATED)})
    file = tmp_path / "encoder.onnx"
    onnx.save(model, str(file))
    encoder = open_encoder(f"onnx:{file}")
    shown = np.full((3, 16, 24, 3), 127.5).astype(np.uint8)
    assert encoder.dimension == 3
    assert encoder.encode(shown)[2] == pytest.approx((127 / 255 - np.array(STATED["mean"])) / STATED["std"], abs=1e-5)
    helper.set_model_props(model, {"twinloop.preprocessing": yaml.safe_dump({**STATED, "output": "row"})})
    onnx.save(model, str(file))
    with pytest.raises(UnknownNameError, match=r"Unknown output 'row' .* rows"):
        open_encoder(f"onnx:{file}")
    file.write_bytes(b"no onnx")
    with pytest.raises(InputError, match="cannot be read as ONNX"):
        open_encoder(f"onnx:{file}")


def test_embeddings_of_different_encoders_are_refused():
    rows = {"values": np.ones((2, 3)), "clusters": np.arange(2), "encoder": "classical"}
    one, two = (Embedding(**rows, encoder_hash=h, source=s) for h, s in (("aa", "real"), ("bb", "sim")))
    with pytest.raises(InputError, match="different encoders cannot be compared"):
        require_same_encoder(one, two)
