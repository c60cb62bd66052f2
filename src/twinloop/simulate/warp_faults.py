"""What goes wrong in worlds of ``mujoco_warp``, counted per world as MuJoCo counts its warnings."""

from __future__ import annotations

from typing import Any

import mujoco
import mujoco_warp as mjw  # pyright: ignore[reportMissingImports]
import torch  # pyright: ignore[reportMissingImports]
import warp as wp  # pyright: ignore[reportMissingImports]

from twinloop.simulate.protocol import WARNINGS

_BAD = {"qpos": "mjWARN_BADQPOS", "qvel": "mjWARN_BADQVEL", "qacc": "mjWARN_BADQACC"}
# The solver's iteration limits are no overflow: MuJoCo goes on with what it has, without a warning.
_OVERFLOWS = {
    mjw.OverflowType.NEFC: "mjWARN_CNSTRFULL",
    mjw.OverflowType.NJMAX_NNZ: "mjWARN_CNSTRFULL",
    mjw.OverflowType.NVMAX: "mjWARN_CNSTRFULL",
    mjw.OverflowType.BROADPHASE: "mjWARN_CONTACTFULL",
    mjw.OverflowType.NARROWPHASE: "mjWARN_CONTACTFULL",
    mjw.OverflowType.CCD: "contact buffers of convex pairs overflowed",
    mjw.OverflowType.EPA_HORIZON: "contact buffers of convex pairs overflowed",
    mjw.OverflowType.HFIELD: "contact buffers of height fields overflowed",
    mjw.OverflowType.CONTACT_MATCH: "buffers of contact sensors overflowed",
    mjw.OverflowType.TACTILE: "buffers of contact sensors overflowed",
}


class Faults:
    """Counters ``(nworld, len(WARNINGS))`` since each world began, raised at most once per control step."""

    def __init__(self, nworld: int, device: torch.device) -> None:
        self.counts = torch.zeros((nworld, len(WARNINGS)), dtype=torch.int64, device=device)
        shifts = [int(bit).bit_length() - 1 for bit in _OVERFLOWS]
        self._shifts = torch.tensor(shifts, dtype=torch.int32, device=device)
        self._columns = torch.tensor([WARNINGS.index(name) for name in _OVERFLOWS.values()], device=device)

    def sound(self, controls: torch.Tensor) -> torch.Tensor:
        """Controls ``(nworld, substeps, nu)``, set to zero and counted where one is no number, as in MuJoCo."""
        sound = _good(controls).all(dim=2, keepdim=True)
        self._raise("mjWARN_BADCTRL", ~sound.flatten(1).all(dim=1))
        return torch.where(sound, controls, 0.0)

    def count(self, data: Any) -> None:
        """Add what a control step left in a Data, and forget its overflows."""
        for name, kind in _BAD.items():
            self._raise(kind, ~_good(wp.to_torch(getattr(data, name))).all(dim=1))
        overflow = wp.to_torch(data.overflow)
        bits = (overflow[:, None] >> self._shifts) & 1
        self.counts.index_add_(1, self._columns, bits.long())
        overflow.zero_()

    def _raise(self, kind: str, worlds: torch.Tensor) -> None:
        self.counts[:, WARNINGS.index(kind)] += worlds


def _good(values: torch.Tensor) -> torch.Tensor:
    return torch.isfinite(values) & (values.abs() <= mujoco.mjMAXVAL)
