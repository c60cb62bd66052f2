"""Robots in a simulated scene: a virtual robot with hidden parameters, or the twin with known ones."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.hardware.cell_robot import CellCameras, CellRobot
from twinloop.hardware.hidden import HiddenCell, make_hidden_cell
from twinloop.randomize import read_identified
from twinloop.rollout.observing import PERFECT
from twinloop.simulate import Controller, InitialState
from twinloop.tasks import find_task_name, open_task
from twinloop.twin import Twin, load_twin


class VirtualCell(CellRobot):
    """Virtual robot at a task; see `CellRobot`. Its true parameter values are hidden from the user.

    `HiddenCell` is the same robot as a twin, for parallel simulation: `run_batch` with the same run seed and episode
    number has the same states.

    Args:
        twin: type of robot and its scene: a built-in twin or a twin's file.
        seed: number of the individual robot.
        task: name of the task; by default the only task of the twin's YAML.
        session: episode number of the first connection; each later connection adds one.
        run_seed: seed of object poses and random effects within an episode.
        fault: one of `hidden.fault_names`, or None.
        cameras: cameras of the observations.
    """

    def __init__(
        self,
        twin: str | Path,
        *,
        seed: int = 0,
        task: str = "",
        session: int = 0,
        run_seed: int = 0,
        fault: str | None = None,
        cameras: CellCameras | None = None,
    ) -> None:
        cell = make_hidden_cell(load_twin(twin), seed, fault=fault)
        task = find_task_name(task, cell.twin)
        origin = _format_address("virtual", twin, cameras, seed=seed, task=task, run_seed=run_seed, fault=fault)
        super().__init__(
            cell, open_task(task, cell.twin), origin=origin, session=session, run_seed=run_seed, cameras=cameras
        )


class Home:
    """Task of a robot without a task: it starts at the twin's home, and nothing is to be done. See `tasks.Task`."""

    name = instruction = version = success_version = expert_version = ""
    nstep = 1

    def __init__(self, twin: Twin) -> None:
        self._twin = twin

    def reset(self, params: ParamTable, **_: Any) -> InitialState:
        """Return worlds at rest at the twin's home."""
        return InitialState.home(self._twin, params.nworld)

    def success(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return false for every state ``(nworld, nstep + 1, nstate)``."""
        return np.zeros(states.shape[:2], dtype=bool)

    def expert(self, initial: InitialState) -> Controller:
        """Raise an error, because there is no task."""
        del initial
        raise InputError(f"A robot without a task has no expert. Give one: twin:{self._twin.name}?task=NAME.")


class TwinCell(CellRobot):
    """The twin itself as a robot at a task, with nominal or identified parameter values; see `CellRobot`.

    Its tracker has no errors.

    Args:
        twin: a built-in twin or a twin's file.
        task: name of the task; empty for none, and by default the only task of the twin's YAML, if there is one.
        identified: run folder of `twinloop identify`; its estimates replace the nominal values. None for nominal ones.
        session: episode number of the first connection; each later connection adds one.
        run_seed: seed of object poses and random effects within an episode.
        cameras: cameras of the observations.

    Raises:
        InputError: If the folder has no identified distribution.
        UnknownNameError: If the distribution has a parameter that the twin lacks.
    """

    def __init__(
        self,
        twin: str | Path,
        *,
        task: str | None = None,
        identified: str | Path | None = None,
        session: int = 0,
        run_seed: int = 0,
        cameras: CellCameras | None = None,
    ) -> None:
        whole = load_twin(twin)
        name = (find_task_name("", whole) if whole.spec.task else "") if task is None else task
        values = dict[str, float]()
        if identified is not None:
            values = ParamDistribution.from_json(read_identified(Path(identified))["distribution"]).estimate
            values = {whole.find_param(name).name: value for name, value in values.items()}
        cell = HiddenCell(twin=whole, seed=0, fault="", values=MappingProxyType(values), tracker=PERFECT)
        origin = _format_address("twin", twin, cameras, task=name, identified=identified, run_seed=run_seed)
        opened = open_task(name, whole) if name else Home(whole)
        super().__init__(cell, opened, origin=origin, session=session, run_seed=run_seed, cameras=cameras)


def _format_address(scheme: str, twin: str | Path, cameras: CellCameras | None, **options: Any) -> str:
    """Return the address that opens a robot again; options without a value are left out."""
    if cameras is not None and cameras.names:
        unlike = {key: value for key, value in vars(cameras).items() if value != getattr(CellCameras, key)}
        options |= {"cameras": ",".join(unlike.pop("names")), **unlike}
    return f"{scheme}:{twin}?" + "&".join(f"{key}={value}" for key, value in options.items() if value)
