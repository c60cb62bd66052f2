"""Warp's devices: finding one, working on it in torch's stream, and capturing work as a graph."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
import warp as wp  # pyright: ignore[reportMissingImports]

from twinloop.core.errors import InputError, MissingDependencyError


def find_device(name: str) -> wp.Device:
    """Warp's device of that name.

    Raises:
        MissingDependencyError: the machine has no such device.
        InputError: no device is called like that.
    """
    if not name.startswith(("cuda", "cpu")):
        raise InputError(f"Unknown Warp device {name!r}. Name cuda, cuda:0, cuda:1 … or cpu.")
    if name.startswith("cuda") and not wp.is_cuda_available():
        raise MissingDependencyError(
            "The backend warp finds no CUDA device.",
            remedy="run on a machine with an NVIDIA GPU and its driver, or use the CPU: --device cpu, or the backend "
            "warp:cpu",
        )
    try:
        return wp.get_device(name)
    except ValueError as error:
        raise InputError(f"Unknown Warp device {name!r}. There are {', '.join(map(str, wp.get_devices()))}.") from error


@contextmanager
def on_device(device: wp.Device) -> Generator[None]:
    """Warp's device for the block and, on a CUDA device, torch's stream for Warp, so that neither waits."""
    stream = nullcontext()
    if device.is_cuda:
        stream = wp.ScopedStream(wp.stream_from_torch(torch.cuda.current_stream(wp.device_to_torch(device))))
    with wp.ScopedDevice(device), stream:
        yield


class Graphs:
    """Work that is done again and again, as graphs, on a CUDA device and on the CPU alike."""

    def __init__(self, device: wp.Device) -> None:
        self._device = device
        self._captured: dict[str, tuple[Any, Any]] = {}

    def run(self, name: str, layout: Any, work: Callable[[], None]) -> None:
        """Do it: the first time as it is, which compiles what has not been, and then as a graph.

        Args:
            layout: changes when ``work`` uses other arrays than before.
        """
        if name not in self._captured:
            self._captured[name] = (None, None)
            work()
        else:
            self.prepare(name, layout, work)
            wp.capture_launch(self._captured[name][1])

    def prepare(self, name: str, layout: Any, work: Callable[[], None]) -> None:
        """Capture it without doing it, where that has not been done. It must have been compiled."""
        if self._captured.get(name, (None, None))[0] != layout:
            self._captured[name] = (layout, _captured(self._device, work))


def _captured(device: wp.Device, work: Callable[[], None]) -> Any:
    """What ``work`` launches, as a graph. Torch's own stream cannot be captured on a CUDA device."""
    apart = wp.ScopedStream(wp.Stream(device)) if device.is_cuda else nullcontext()
    with wp.ScopedDevice(device), apart, wp.ScopedCapture(device) as capture:
        work()
    return capture.graph


def memory_used(device: wp.Device) -> int | None:
    """Bytes taken of a CUDA device's memory, by everybody; None on the CPU."""
    return device.total_memory - device.free_memory if device.is_cuda else None
