"""Logs checked before anything is fitted, against a twin where one is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from rich.console import Console

from twinloop.dataset.log_checks import Expectations, LogReport, check_log
from twinloop.dataset.log_checks.mending import Mending
from twinloop.loop.logs import import_episodes, open_raw
from twinloop.simulate.inverse_dynamics import InverseDynamics
from twinloop.twin import Twin, load_twin

_TONES = {"error": "bold red", "warning": "yellow", "note": "dim"}


def expectations_of(twin: Twin) -> Expectations:
    """What a log of a twin's robot should look like.

    Raises:
        InputError: the twin has no robot.
    """
    joints = [twin.model.joint(name) for name in twin.robot.joints]
    limited = np.array([bool(joint.limited[0]) for joint in joints])
    return Expectations(
        name=twin.name,
        joints=tuple(twin.robot.joints),
        ranges=np.where(limited[:, None], twin.joint_ranges, [-np.inf, np.inf]),
        slides=np.array([joint.type[0] == mujoco.mjtJoint.mjJNT_SLIDE for joint in joints]),
        control=twin.robot.control,
        inverse_dynamics=None if twin.robot.gears is not None else InverseDynamics(twin),
    )


def run_import_check(
    reference: str,
    *,
    twin: str | None,
    output: Path | None,
    mending: Mending,
    console: Console,
    **reading: Any,
) -> dict[str, Any]:
    """Check a log as it is after mending; where there are no errors and ``output`` is given, import it.

    Args:
        reference: see `loop.logs.open_log`, as is ``reading``.
        twin: the twin that the log is meant for; without one it is judged by itself.
        output: folder of the dataset.
        mending: what is to be changed before.
        console: where the findings are printed.
        **reading: what the log does not say of itself.
    """
    log = open_raw(reference, **reading)
    expectations = None if twin is None else expectations_of(load_twin(twin))
    report = check_log([mending.mended(episode) for episode in log.episodes], expectations)
    console.print(f"Data: {log.label}")
    show(report, console)
    figures: dict[str, Any] = {"schema": 1, "verb": "import", "check": report.to_json(), "twin": twin, "log": log.label}
    if output is not None and not report.errors:
        figures |= import_episodes(log.checked(mending), output)
    return figures


def show(report: LogReport, console: Console) -> None:
    """Print a report, errors in red."""
    for line in report.text().splitlines():
        console.print(line, style=_TONES.get(line.partition(":")[0]), soft_wrap=True)
