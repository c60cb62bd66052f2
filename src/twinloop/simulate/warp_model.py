"""Put one model on a device of Warp, with fields that differ from world to world."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, nullcontext
from typing import Any

import mujoco
import mujoco_warp as mjw  # pyright: ignore[reportMissingImports]
import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import warp as wp  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray

from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.core.params import ParamTable
from twinloop.twin import Twin
from twinloop.twin.fields import FieldValues
from twinloop.twin.quantities.lookup import find_fixed_geoms
from twinloop.twin.quantities.rotation import quat_multiply


def find_device(name: str) -> wp.Device:
    """Return Warp's device of that name.

    Raises:
        MissingDependencyError: the machine has no such device.
        InputError: no device has that name.
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
def use_device(device: wp.Device) -> Generator[None]:
    """Set Warp's device for the block and, on a CUDA device, torch's stream for Warp, so that neither waits."""
    stream = nullcontext()
    if device.is_cuda:
        stream = wp.ScopedStream(wp.stream_from_torch(torch.cuda.current_stream(wp.device_to_torch(device))))
    with wp.ScopedDevice(device), stream:
        yield


class GraphCache:
    """Cache of repeated work as captured graphs, on a CUDA device and on the CPU."""

    def __init__(self, device: wp.Device) -> None:
        self._device = device
        self._captured: dict[str, tuple[Any, Any]] = {}

    def run(self, name: str, layout: Any, work: Callable[[], None]) -> None:
        """Run work: directly the first time, which compiles its kernels, and later as a graph.

        Args:
            layout: any value that changes when ``work`` uses other arrays than before.
        """
        if name not in self._captured:
            self._captured[name] = (None, None)
            work()
        else:
            self.prepare(name, layout, work)
            wp.capture_launch(self._captured[name][1])

    def prepare(self, name: str, layout: Any, work: Callable[[], None]) -> None:
        """Capture work as a graph without running it, unless done for this layout; its kernels must be compiled."""
        if self._captured.get(name, (None, None))[0] != layout:
            self._captured[name] = (layout, _capture_graph(self._device, work))


def _capture_graph(device: wp.Device, work: Callable[[], None]) -> Any:
    """Capture the launches of ``work`` as a graph. Torch's own stream cannot be captured on a CUDA device."""
    apart = wp.ScopedStream(wp.Stream(device)) if device.is_cuda else nullcontext()
    with wp.ScopedDevice(device), apart, wp.ScopedCapture(device) as capture:
        work()
    return capture.graph


def memory_used(device: wp.Device) -> int | None:
    """Return the memory of a CUDA device that all processes use, in bytes; None on the CPU."""
    return device.total_memory - device.free_memory if device.is_cuda else None


wp.config.log_level = wp.LOG_WARNING  # its greeting would appear in the output of every command

# Constants that mujoco_warp's set_const derives from other fields; per world as soon as any of those is.
_DERIVED = (
    "body_subtreemass",
    "body_invweight0",
    "dof_invweight0",
    "tendon_length0",
    "tendon_invweight0",
    "actuator_acc0",
    "eq_data",
    "cam_pos0",
    "cam_poscom0",
    "cam_mat0",
    "light_pos0",
    "light_poscom0",
    "light_dir0",
)
_MOST_DENSE_DOFS = 60  # mujoco_warp 4.0 refuses the dense Jacobian for more
_BOUNDS = ("geom_aabb", "geom_rbound")
_PLACES = {"body_pos", "body_quat", "geom_pos", "geom_quat"}
# Switches of work that put_model leaves out if the nominal model does not need it.
_SWITCHES = {
    "opt.wind": "has_fluid",
    "opt.density": "has_fluid",
    "opt.viscosity": "has_fluid",
    "tendon_stiffness": "has_tendon_stiffness",
    "tendon_damping": "has_tendon_damping",
}


class WarpModel:
    """A twin's model on Warp's current device; a field becomes per world when it is first written.

    Attributes:
        host: the model as MuJoCo has it, but for two flags. That for no automatic reset is off, because
            ``mujoco_warp`` never resets. That for native convex collision is set, which gives box pairs the analytic
            collider that MuJoCo always uses: in float32 the convex one turns the normal of a 0.1 mm deep contact with
            a table by 4° (measured; see also mujoco_warp's issues 1430 and 1526).
        device: the ``mujoco_warp`` model.
        version: grows whenever the device model gets another array, so that a captured graph is out of date.
    """

    def __init__(self, twin: Twin, nworld: int) -> None:
        self._twin, self._nworld, self._graphs = twin, nworld, GraphCache(wp.get_device())
        self.host = copy.copy(twin.model)
        self.host.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
        self.host.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_NATIVECCD)
        if self.host.nv > _MOST_DENSE_DOFS:
            # `compile_model` asks for the dense Jacobian because of a fault in MuJoCo's sparse solver. mujoco_warp has
            # another solver: no such fault (compared in the tests), and no dense form for large models.
            self.host.opt.jacobian = mujoco.mjtJacobian.mjJAC_SPARSE
        try:
            self.device = mjw.put_model(self.host)
        except (NotImplementedError, ValueError) as error:
            raise InputError(
                f"mujoco_warp does not take the model of {twin.name}: {error} Use the backend threads."
            ) from error
        self.device.opt.warn_overflow = 0  # reported per world, see `WarningCounters`
        if wp.get_device().is_cuda:  # without it the solver's loop is unrolled to its iteration limit
            self.device.opt.graph_conditional = wp.is_conditional_graph_supported()
        self.version = 0
        self._expanded: set[str] = set()
        self._scratch: Any = None
        self._still = find_fixed_geoms(self.host)

    @property
    def scratch(self) -> Any:
        """Data without contacts, for computations that must not change the worlds."""
        if self._scratch is None:
            self._scratch = mjw.make_data(self.host, nworld=self._nworld, nconmax=1, njmax=1)
        return self._scratch

    def check(self, params: ParamTable, names: Iterable[str]) -> None:
        """Refuse parameters whose fields ``mujoco_warp`` shares between worlds.

        Raises:
            InputError: with the parameters, their field and the next step.
        """
        for name in names:
            if self._find_batched_type(name) is None:
                moved = (
                    self._twin.params[each]
                    for each in sorted(self._twin.find_changed_params(params) | set(params.steps))
                )
                guilty = [p.name for p in moved if name in p.quantity.fields]
                raise InputError(
                    f"{', '.join(guilty) or name}: the backend warp cannot vary this between worlds, because "
                    f"mujoco_warp keeps one {name} for all of them. Keep it nominal, or use the backend threads."
                )

    def view(self, name: str) -> torch.Tensor:
        """Return a per-world field as a tensor ``(nworld, …)`` that shares its memory; expand a shared field first."""
        owner, attribute = self._locate_field(name)
        if name not in self._expanded:
            shared = getattr(owner, attribute)
            own = wp.empty((self._nworld, *shared.shape[1:]), dtype=shared.dtype)
            setattr(owner, attribute, own)
            if own.size:
                wp.to_torch(own).copy_(wp.to_torch(shared)[:1].expand(wp.to_torch(own).shape))
            if name in _SWITCHES:
                setattr(self.device, _SWITCHES[name], True)
            self._expanded.add(name)
            self.version += 1
        return wp.to_torch(getattr(owner, attribute))

    def write(self, fields: FieldValues, worlds: NDArray[np.intp] | None = None) -> None:
        """Write fields of all worlds, or of some, one row each, and recompute the constants derived from them."""
        for name, values in fields.arrays.items():
            target = self.view(name)
            rows = torch.as_tensor(values.reshape(len(values), *target.shape[1:]), device=target.device)
            index = slice(None) if worlds is None else torch.as_tensor(worlds, device=target.device)
            target[index] = rows.to(target.dtype)
        if fields.set_const:
            derived = (*_DERIVED, *_BOUNDS) if "geom_size" in fields.arrays else _DERIVED
            for name in derived:
                self.view(name)
            self._graphs.run("constants", self.version, lambda: mjw.set_const(self.device, self.scratch, restore=False))

    def place(self, data: Any, fields: FieldValues) -> None:
        """Set the poses of geoms without joints from their world's fields; ``mujoco_warp`` itself does so only once."""
        if not self._still.size or not _PLACES & set(fields.arrays):
            return
        scratch, geoms = self.scratch, torch.as_tensor(self._still)
        bodies = torch.as_tensor(self.host.geom_bodyid[self._still])
        mjw.kinematics(self.device, scratch)
        turn = wp.to_torch(scratch.xquat)[:, bodies]
        shift, own = self.view("geom_pos")[:, geoms], self.view("geom_quat")[:, geoms]
        position = wp.to_torch(scratch.xpos)[:, bodies] + (_matrix(turn) * shift[..., None, :]).sum(-1)
        wp.to_torch(data.geom_xpos)[:, geoms] = position
        wp.to_torch(data.geom_xmat)[:, geoms] = _matrix(quat_multiply(turn, own))

    def _locate_field(self, name: str) -> tuple[Any, str]:
        owner, _, attribute = name.rpartition(".")
        return (self.device.opt if owner else self.device), attribute

    def _find_batched_type(self, name: str) -> Any:
        owner, attribute = self._locate_field(name)
        specs = {field.name: field.type for field in dataclasses.fields(owner)}
        shape = getattr(specs.get(attribute), "shape", ())
        return specs[attribute] if shape and shape[0] == "*" else None


def _matrix(quaternion: torch.Tensor) -> torch.Tensor:
    """Return the rotation matrices ``(…, 3, 3)`` of unit quaternions wxyz."""
    w, x, y, z = quaternion.unbind(-1)
    rows = [
        torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], dim=-1),
        torch.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], dim=-1),
        torch.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], dim=-1),
    ]
    return torch.stack(rows, dim=-2)
