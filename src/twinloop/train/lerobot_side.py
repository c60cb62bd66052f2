"""Train with LeRobot, or predict with one of its checkpoints, in the Python environment that has LeRobot.

Another process starts this file as a script. It needs numpy and torch, but not twinloop.

::

    python lerobot_side.py train --policy.type=act …    LeRobot's own lerobot-train
    python lerobot_side.py serve FOLDER DEVICE          a checkpoint's predictions over standard input and output

Messages have the format of twinloop's policy server (``release/serve_wire.py``): the header's length, a JSON header,
raw arrays; never pickles.
"""

from __future__ import annotations

import json
import math
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

PROTOCOL = 1
TASK, SEEDS, ACTION, FEATURES = "task", "seeds", "action", "features"
_LENGTH = struct.Struct("<I")
_IMAGES = "observation.images"
Arrays = Mapping[str, NDArray[Any]]


def send(stream: BinaryIO, kind: str, arrays: Arrays | None = None, message: str = "") -> None:
    """Write a message to a stream; arrays are sent in C order and little-endian.

    Args:
        stream: stream of the other process.
        kind: kind of message, such as ``act`` or ``error``.
        arrays: arrays by name.
        message: text: the task text of a request, or an error.
    """
    given = {name: np.asarray(array) for name, array in (arrays or {}).items()}
    rows = [{"name": name, "dtype": a.dtype.name, "shape": list(a.shape)} for name, a in given.items()]
    header = {"protocol": PROTOCOL, "kind": kind, "arrays": rows} | ({"message": message} if message else {})
    text = json.dumps(header).encode()
    parts = (a.astype(a.dtype.newbyteorder("<"), copy=False).tobytes() for a in given.values())
    stream.write(b"".join((_LENGTH.pack(len(text)), text, *parts)))
    stream.flush()


def receive(stream: BinaryIO) -> tuple[str, dict[str, NDArray[Any]], str]:
    """Read the next message from a stream; return its kind, arrays by name and text.

    Raises:
        EOFError: If the other process closed the stream.
    """
    (length,) = _LENGTH.unpack(_read_exactly(stream, _LENGTH.size))
    header = json.loads(_read_exactly(stream, length))
    arrays = {}
    for row in header["arrays"]:
        kind = np.dtype(row["dtype"]).newbyteorder("<")
        data = _read_exactly(stream, math.prod(row["shape"]) * kind.itemsize)
        arrays[row["name"]] = np.frombuffer(data, kind).reshape(row["shape"])
    return header["kind"], arrays, header.get("message", "")


def _read_exactly(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError(f"{count - len(data)} bytes of a message are missing: the other process closed the stream.")
    return data


class ServedCheckpoint:
    """LeRobot checkpoint with its own processors, which predicts chunks of commands.

    Args:
        folder: folder of the checkpoint (``pretrained_model``).
        device: cpu or cuda.
    """

    def __init__(self, folder: str, device: str) -> None:
        from lerobot.configs.policies import PreTrainedConfig  # pyright: ignore[reportMissingImports]
        from lerobot.policies.factory import (  # pyright: ignore[reportMissingImports]
            get_policy_class,
            make_pre_post_processors,
        )

        config = PreTrainedConfig.from_pretrained(folder)
        config.device, config.pretrained_path = device, Path(folder)
        if hasattr(config, "pretrained_backbone_weights"):
            config.pretrained_backbone_weights = (
                None  # the checkpoint contains them; otherwise they would be downloaded
            )
        self.policy = get_policy_class(config.type).from_pretrained(folder, config=config)
        self.policy.eval()
        self.before, self.after = make_pre_post_processors(
            config, folder, preprocessor_overrides={"device_processor": {"device": device}}
        )
        self._robot, self._latent = "", None
        head = getattr(getattr(self.policy, "model", None), "action_head", None)
        if config.type == "act" and head is not None:
            head.register_forward_pre_hook(self._store_latent)

    def predict_chunks(self, arrays: Arrays, task: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return commands ``(n, chunk, k)`` and features ``(n, d)`` for n samples and k joints.

        Args:
            arrays: observation histories ``(n, steps, …)`` by key. With ``seeds`` ``(n, 8)``, each sample is predicted
                separately, and its eight bytes seed torch.
            task: task text for the policy.
        """
        import torch  # pyright: ignore[reportMissingImports]

        seen = {key: values for key, values in arrays.items() if key != SEEDS}
        seeds = arrays.get(SEEDS)
        with torch.inference_mode():
            if seeds is None:
                made = [self._predict_with_features(seen, task)]
            else:
                made = []
                for row, seed in enumerate(seeds):
                    torch.manual_seed(int.from_bytes(seed.tobytes(), "little") >> 1)
                    made.append(
                        self._predict_with_features({key: values[row : row + 1] for key, values in seen.items()}, task)
                    )
        chunks, features = zip(*made, strict=True)
        return np.concatenate(chunks), np.concatenate(features)

    def _predict_with_features(self, seen: Arrays, task: str) -> tuple[NDArray[Any], NDArray[Any]]:
        import torch  # pyright: ignore[reportMissingImports]

        steps = len(next(iter(seen.values()))[0])
        batches = [
            self.before(_make_batch({key: v[:, step] for key, v in seen.items()}, task)) for step in range(steps)
        ]
        self._latent = None
        chunk = self._predict_history(batches)
        made = torch.stack([self.after(chunk[:, step]) for step in range(chunk.shape[1])], dim=1)
        command = made.to("cpu", torch.float64).numpy()
        return command, np.empty((len(command), 0)) if self._latent is None else self._latent

    def _predict_history(self, batches: Sequence[dict[str, Any]]) -> Any:
        """Return the predicted chunk for a history, one batch per observation step, the newest last.

        If the policy has observation queues, LeRobot's `populate_queues` fills them: the first batch is repeated until
        a queue is full, and each later batch replaces the oldest one.
        """
        import torch  # pyright: ignore[reportMissingImports]
        from lerobot.policies.utils import populate_queues  # pyright: ignore[reportMissingImports]

        self.policy.reset()
        if not set(getattr(self.policy, "_queues", {})) - {ACTION}:
            return self.policy.predict_action_chunk(batches[-1])
        cameras = list(self.policy.config.image_features)
        stacked = dict[str, Any]()
        for batch in batches:
            stacked = dict(batch)
            if cameras:
                stacked[_IMAGES] = torch.stack([batch[key] for key in cameras], dim=-4)
            self.policy._queues = populate_queues(self.policy._queues, stacked, [ACTION])
        return self.policy.predict_action_chunk({key: v for key, v in stacked.items() if key != ACTION})

    def _store_latent(self, _: Any, inputs: tuple[Any, ...]) -> None:
        """Store the input of ACT's action head, averaged over the chunk; a forward hook of torch."""
        import torch  # pyright: ignore[reportMissingImports]

        self._latent = inputs[0].mean(dim=1).to("cpu", torch.float64).numpy()


def _make_batch(seen: Arrays, task: str) -> dict[str, Any]:
    """Return observations as torch tensors in the form of LeRobot's own loop (``lerobot/policies/utils.py``).

    Images become float32 from 0 to 1 with the channels first. ``task`` is repeated for every sample.
    """
    import torch  # pyright: ignore[reportMissingImports]

    batch: dict[str, Any] = {}
    for key, values in seen.items():
        tensor = torch.as_tensor(np.array(values))
        if values.dtype == np.uint8:
            batch[key] = (tensor.to(torch.float32) / 255).movedim(-1, 1).contiguous()
        else:
            batch[key] = tensor.to(torch.float32)
    return batch | {TASK: [task] * len(next(iter(seen.values())))}


def serve(folder: str, device: str, reading: BinaryIO, writing: BinaryIO) -> None:
    """Answer requests for predictions until the stream is closed; errors of the policy are sent as answers.

    Args:
        folder: folder of the checkpoint.
        device: torch device.
        reading: stream of requests.
        writing: stream of answers.
    """
    try:
        served = ServedCheckpoint(folder, device)
    except Exception as error:  # noqa: BLE001 - any error of LeRobot is sent to the caller
        send(writing, "error", message=f"{type(error).__name__}: {error}")
        return
    send(writing, "ready")
    while True:
        try:
            _, arrays, task = receive(reading)
        except EOFError:
            return
        try:
            command, features = served.predict_chunks(arrays, task)
            send(writing, ACTION, {ACTION: command, FEATURES: features})
        except Exception as error:  # noqa: BLE001 - any error of LeRobot is sent to the caller
            send(writing, "error", message=f"{type(error).__name__}: {error}")


def declare_torchvision_operators() -> None:
    """Make a torchvision built for CUDA importable with a CPU build of torch, by declaring the missing operators.

    The operators exist only while the ``torch.library.Library`` object that declares them is alive. Therefore this
    module keeps a reference to it.
    """
    import torch  # pyright: ignore[reportMissingImports]

    try:
        import torchvision  # noqa: F401  # pyright: ignore[reportMissingImports]
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEEP_ALIVE.append(library)


_KEEP_ALIVE: list[Any] = []


def _main(words: Sequence[str]) -> None:
    declare_torchvision_operators()
    if words[0] == "train":
        from lerobot.scripts.lerobot_train import main  # pyright: ignore[reportMissingImports]

        sys.argv = ["lerobot-train", *words[1:]]
        main()
        return
    import torch  # pyright: ignore[reportMissingImports]

    writing = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # LeRobot's prints must not mix with messages
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))
    serve(words[1], words[2], sys.stdin.buffer, writing)


if __name__ == "__main__":
    _main(sys.argv[1:])
