"""Frames that cost seconds each are kept as they are made, so that no death of a process loses a finished one."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.files import sha256_json, write_bytes
from twinloop.render import Fields, Observed, Renderer, SceneStates


class RememberingRenderer(Renderer):
    """A renderer that writes every frame into a folder, and takes from there what it has made before.

    A frame is named by what it depends on: state, fields, channels, cameras, size, and ``context``, which names the
    model, the renderer and its settings. It is stored without loss, so that what is taken again is the same to the bit.
    """

    def __init__(self, inner: Renderer, model: mujoco.MjModel, folder: Path, context: Mapping[str, Any]) -> None:
        self._inner, self._model, self._folder = inner, model, folder
        self.name, self.cameras, self.channels = inner.name, inner.cameras, inner.channels
        self.height, self.width = inner.height, inner.width
        self._context = sha256_json([dict(context), list(inner.cameras), inner.height, inner.width])

    def observe(
        self, states: SceneStates, fields: Fields | None = None, *, channels: Sequence[str] = ("rgb",)
    ) -> Observed:
        """See `Renderer.observe`; one frame after another."""
        frames = [self._frame(states, fields or {}, i, channels) for i in range(len(states))]
        return {
            camera: {name: np.concatenate([frame[camera, name] for frame in frames]) for name in channels}
            for camera in self.cameras
        }

    def _frame(
        self, states: SceneStates, fields: Fields, row: int, channels: Sequence[str]
    ) -> dict[tuple[str, str], NDArray]:
        state = states.take([row])
        own = {name: value[row] if self._of_frames(name, value) else value for name, value in fields.items()}
        path = self._folder / f"{self._key(state, own, channels)}.npz"
        if path.is_file():
            with np.load(path) as stored:
                return {(camera, name): stored[f"{camera}:{name}"] for camera in self.cameras for name in channels}
        seen = self._inner.observe(state, own, channels=channels)
        made = {(camera, name): seen[camera][name] for camera in self.cameras for name in channels}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **{f"{camera}:{name}": array for (camera, name), array in made.items()})  # pyright: ignore[reportArgumentType]
        write_bytes(path, buffer.getvalue())
        return made

    def _of_frames(self, name: str, value: NDArray) -> bool:
        return np.ndim(value) > np.ndim(getattr(self._model, name))

    def _key(self, state: SceneStates, fields: Fields, channels: Sequence[str]) -> str:
        digest = hashlib.sha256(f"{self._context} {','.join(channels)}".encode())
        arrays = {"qpos": state.qpos, "mocap_pos": state.mocap_pos, "mocap_quat": state.mocap_quat, **fields}
        for name, array in sorted(arrays.items()):
            if array is not None:
                plain = np.ascontiguousarray(array)
                digest.update(f"{name} {plain.dtype.str} {plain.shape}".encode() + plain.tobytes())
        return digest.hexdigest()

    def close(self) -> None:
        """See `Renderer.close`."""
        self._inner.close()
