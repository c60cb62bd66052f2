"""Measure the cost of soft bodies: physics steps per second, the dense Jacobian against the sparse one, and overhead.

``python -m benchmarks.speed.soft`` prints the table of docs/evidence/performance.md. Times are CPU times of one
process, the least of three runs, so that other programs change them little. The bodies fall onto a box.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import mujoco
import numpy as np
from rich.console import Console
from rich.table import Table

from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.twin import Twin, load_twin

_NSTEP, _NWORLD = 50, 4  # control steps, of 10 physics steps each, and worlds of the backend
_ROPE = '<elasticity young="1e6" damping=".01"/><edge equality="true"/>'
_CLOTH = '<elasticity young="1e5" poisson=".2" damping=".01" thickness=".002" elastic2d="both"/>'
_BLOCK = '<elasticity young="5e4" poisson=".3" damping=".01"/>'
BODIES = {
    "rope of 30": f'type="grid" dim="1" count="30 1 1" spacing=".02 .02 .02" radius=".005" mass=".1">{_ROPE}',
    "cloth 12×12": f'type="grid" dim="2" count="12 12 1" spacing=".03 .03 .03" radius=".003" mass=".1">{_CLOTH}',
    "block 5×5×5, full": f'type="grid" dim="3" count="5 5 5" spacing=".03 .03 .03" radius=".003" mass=".3">{_BLOCK}',
    "block 5×5×5, trilinear": 'type="grid" dim="3" dof="trilinear" count="5 5 5" spacing=".03 .03 .03" radius=".003" '
    f'mass=".3">{_BLOCK}',
}


def load_body(body: str) -> Twin:
    """Compile a twin with one soft body above a box."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "soft.xml"
        path.write_text(
            '<mujoco><option integrator="discrete" timestep="0.002" tolerance="1e-6"/><worldbody>'
            '<geom type="plane" size="2 2 .1"/><geom type="box" size=".1 .1 .05" pos="0 0 .05"/>'
            f'<flexcomp name="soft" pos="0 0 .2" {body}<contact selfcollide="none"/></flexcomp></worldbody></mujoco>'
        )
        return load_twin(path)


def cpu_seconds(run: Callable[[], object]) -> float:
    """Return the least CPU time of three runs of a function, in s."""
    times = []
    for _ in range(3):
        began = time.process_time()
        run()
        times.append(time.process_time() - began)
    return min(times)


def measure(body: str) -> dict[str, float]:
    """Return the CPU times per physics step of one soft body, in s, and its degrees of freedom."""
    twin = load_body(body)
    nstep = _NSTEP * twin.substeps

    def step(jacobian: mujoco.mjtJacobian) -> float:
        model = copy.copy(twin.model)
        model.opt.jacobian = jacobian

        def run() -> None:
            data = mujoco.MjData(model)
            for _ in range(nstep):
                mujoco.mj_step(model, data)

        return cpu_seconds(run) / nstep

    backend, start = open_backend("threads", nthread=1), InitialState.home(twin, _NWORLD)
    commands = np.zeros((_NWORLD, _NSTEP, 0))
    threads = cpu_seconds(lambda: rollout(backend, twin, twin.table(_NWORLD), start, commands, _NSTEP))
    return {
        "nv": twin.model.nv,
        "dense": step(mujoco.mjtJacobian.mjJAC_DENSE),
        "sparse": step(mujoco.mjtJacobian.mjJAC_SPARSE),
        "own": step(mujoco.mjtJacobian(int(twin.model.opt.jacobian))),
        "threads": threads / (_NWORLD * nstep),
        "dt": twin.dt,
    }


def main() -> None:
    """Print the table."""
    table = Table("soft body", "nv", "ms per step", "× real time", "dense / sparse", "bare loop / threads")
    for name, body in BODIES.items():
        found = measure(body)
        table.add_row(
            name,
            f"{found['nv']:.0f}",
            f"{1e3 * found['own']:.2f}",
            f"{found['dt'] / found['own']:.2f}",
            f"{found['dense'] / found['sparse']:.2f}",
            f"{found['own'] / found['threads']:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
