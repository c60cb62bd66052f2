"""Copy a twin's model to a device of Warp, with model fields that differ between worlds."""

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
    """Return the device of Warp with the given name, such as ``cuda``, ``cuda:1`` or ``cpu``.

    Raises:
        MissingDependencyError: If the machine has no CUDA device.
        InputError: If no device has that name.
    """
    if not name.startswith(("cuda", "cpu")):
        raise InputError(f"Unknown Warp device {name!r}. Use cuda, cuda:0, cuda:1 … or cpu.")
    if name.startswith("cuda") and not wp.is_cuda_available():
        raise MissingDependencyError(
            "The backend warp finds no CUDA device.",
            remedy="run on a machine with an NVIDIA GPU and its driver, or use the CPU: --device cpu, or the backend "
            "warp:cpu",
        )
    try:
        return wp.get_device(name)
    except ValueError as error:
        raise InputError(f"Unknown Warp device {name!r}. Devices: {', '.join(map(str, wp.get_devices()))}.") from error


@contextmanager
def use_device(device: wp.Device) -> Generator[None]:
    """Return a context manager that makes a device current for Warp.

    On a CUDA device Warp also uses torch's stream, so that the two libraries need not wait for each other.
    """
    stream = nullcontext()
    if device.is_cuda:
        stream = wp.ScopedStream(wp.stream_from_torch(torch.cuda.current_stream(wp.device_to_torch(device))))
    with wp.ScopedDevice(device), stream:
        yield


class GraphCache:
    """Cache of repeated device work as captured graphs, which launch faster than single kernels.

    They are CUDA graphs on a CUDA device, and Warp's counterpart (recorded kernel launches) on the CPU.
    """

    def __init__(self, device: wp.Device) -> None:
        self._device = device
        self._captured: dict[str, tuple[Any, Any]] = {}

    def run(self, name: str, layout: Any, work: Callable[[], None]) -> None:
        """Run a function that launches kernels: directly the first time, and later as a captured graph.

        The first call compiles the kernels.

        Args:
            name: name of the function in the cache.
            layout: cache key of the arrays that the function uses. If it differs from the last key, the graph is
                captured again.
            work: function that launches kernels.
        """
        if name not in self._captured:
            self._captured[name] = (None, None)
            work()
        else:
            self.prepare(name, layout, work)
            wp.capture_launch(self._captured[name][1])

    def prepare(self, name: str, layout: Any, work: Callable[[], None]) -> None:
        """Capture kernel launches as a graph (CUDA graph, or Warp's counterpart on the CPU), but do not run it.

        Nothing happens if the graph exists for this layout. The kernels must be compiled already.

        Args:
            name: name of the function in the cache.
            layout: cache key of the arrays that the function uses.
            work: function that launches kernels.
        """
        if self._captured.get(name, (None, None))[0] != layout:
            self._captured[name] = (layout, _capture_graph(self._device, work))


def _capture_graph(device: wp.Device, work: Callable[[], None]) -> Any:
    """Capture the kernel launches of ``work`` as a graph.

    On a CUDA device a new stream is used, because torch's own stream cannot be captured.
    """
    stream = wp.ScopedStream(wp.Stream(device)) if device.is_cuda else nullcontext()
    with wp.ScopedDevice(device), stream, wp.ScopedCapture(device) as capture:
        work()
    return capture.graph


def memory_used(device: wp.Device) -> int | None:
    """Return the memory of a CUDA device in use by all processes, in bytes; None on the CPU."""
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
    """Model of a twin on Warp's current device. A model field gets a value for each world when it is first written.

    Attributes:
        host: MuJoCo's model with two flags changed: automatic reset is enabled again, because ``mujoco_warp`` never
            resets; native convex collision is disabled, so that pairs of boxes use MuJoCo's analytic collider. (In
            float32 the convex collider turns the normal of a 0.1 mm deep contact with a table by 4°, as measured; see
            also mujoco_warp's issues 1430 and 1526.)
        device: model of ``mujoco_warp``.
        version: number that increases whenever an array of the device model is replaced, so that a captured graph
            is out of date.
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
                f"mujoco_warp cannot simulate the model of {twin.name}: {error} Use the backend threads."
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
        """Data of ``mujoco_warp`` without contacts, for computations that must not change the worlds."""
        if self._scratch is None:
            self._scratch = mjw.make_data(self.host, nworld=self._nworld, nconmax=1, njmax=1)
        return self._scratch

    def check(self, params: ParamTable, names: Iterable[str]) -> None:
        """Check that ``mujoco_warp`` can store the given model fields separately for each world.

        Args:
            params: parameters of the worlds, to name the affected ones in the error.
            names: names of the model fields.

        Raises:
            InputError: If ``mujoco_warp`` shares a field between worlds.
        """
        for name in names:
            if self._find_batched_type(name) is None:
                changed = (
                    self._twin.params[each]
                    for each in sorted(self._twin.find_changed_params(params) | set(params.steps))
                )
                affected = [p.name for p in changed if name in p.quantity.fields]
                raise InputError(
                    f"{', '.join(affected) or name}: the backend warp cannot vary this between worlds, because "
                    f"mujoco_warp keeps one {name} for all of them. Keep it nominal, or use the backend threads."
                )

    def view(self, name: str) -> torch.Tensor:
        """Return a model field as a tensor ``(nworld, …)`` that shares its memory.

        If all worlds share the field, it is first copied to one value per world.
        """
        owner, attribute = self._locate_field(name)
        if name not in self._expanded:
            shared = getattr(owner, attribute)
            expanded = wp.empty((self._nworld, *shared.shape[1:]), dtype=shared.dtype)
            setattr(owner, attribute, expanded)
            if expanded.size:
                wp.to_torch(expanded).copy_(wp.to_torch(shared)[:1].expand(wp.to_torch(expanded).shape))
            if name in _SWITCHES:
                setattr(self.device, _SWITCHES[name], True)
            self._expanded.add(name)
            self.version += 1
        return wp.to_torch(getattr(owner, attribute))

    def write(self, fields: FieldValues, worlds: NDArray[np.intp] | None = None) -> None:
        """Write model fields, one row per world, and recompute the constants derived from them.

        Args:
            fields: values of model fields.
            worlds: indices of the worlds; None for all worlds.
        """
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

    def update_fixed_geoms(self, data: Any, fields: FieldValues) -> None:
        """Set the poses of geoms that never move from each world's model fields.

        It is needed because ``mujoco_warp`` computes these poses only once.

        Args:
            data: data of ``mujoco_warp``, changed in place.
            fields: model fields that were written.
        """
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
    """Convert unit quaternions wxyz to rotation matrices, shape ``(…, 3, 3)``."""
    w, x, y, z = quaternion.unbind(-1)
    rows = [
        torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], dim=-1),
        torch.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], dim=-1),
        torch.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], dim=-1),
    ]
    return torch.stack(rows, dim=-2)
