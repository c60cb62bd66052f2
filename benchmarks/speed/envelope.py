"""Measure the CPU time that the safety envelope adds to a command; ``--write docs`` updates the page.

``python -m benchmarks.speed.envelope [--write docs]``. CPU time on one thread. Commands are judged one after the other,
as with a running robot, including the evaluation of the readings; the readings are the sent commands.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed.page import main
from benchmarks.studies import markdown_table
from twinloop.release.envelope import Envelope
from twinloop.twin import Twin, load_twin

TWIN, COMMANDS, MARK = "so101_tabletop", 600, "python -m benchmarks.speed.envelope"
Array = NDArray[np.float64]


def run(commands: int = COMMANDS) -> dict[str, Array]:
    """Return milliseconds of each command ``(commands,)``, by kind of commands."""
    twin = load_twin(TWIN)
    home = twin.units.from_si(twin.home()[1])
    return {
        name: _time_commands(Envelope(twin), sequence, home)
        for name, sequence in _test_commands(twin, commands).items()
    }


def _test_commands(twin: Twin, commands: int) -> dict[str, Array]:
    """Return commands ``(commands, n)`` in the robot's units: slow, faster than allowed, and down into the table."""
    low, high = (twin.units.from_si(ends) for ends in twin.joint_ranges.T)
    home, wave = twin.units.from_si(twin.home()[1]), np.sin(np.arange(commands) / twin.control_hz)[:, None]
    room = np.minimum(high - home, home - low)
    down = np.array([joint in ("shoulder_lift", "elbow_flex") for joint in twin.robot.joints])
    rng = np.random.default_rng(0)
    return {
        "within limits": home + 0.1 * room * wave,
        "too fast": rng.uniform(low, high, (commands, len(home))),
        "pushing into the table": np.where(down, high, home) + 0.02 * room * wave,
    }


def _time_commands(envelope: Envelope, sequence: Array, home: Array) -> Array:
    motion, reading, spent = envelope.begin(home), home, list[float]()
    for frame, command in enumerate(sequence):
        started = time.process_time()
        motion = envelope.add_reading(motion, reading, frame * envelope.limits.dt)
        ruling = envelope.judge(motion, command, reading)
        motion = envelope.add_accepted_command(motion, ruling.motion, ruling.command)
        spent.append(1e3 * (time.process_time() - started))
        reading = ruling.command
    if motion.stopped:
        raise RuntimeError(f"the envelope stopped: {motion.stopped}")
    return np.array(spent)


def table(found: dict[str, Array]) -> str:
    """Return the Markdown table for the page."""
    rows = [
        [name, *(f"{value:.2f} ms" for value in (np.median(spent), np.quantile(spent, 0.99), spent.max()))]
        for name, spent in found.items()
    ]
    return markdown_table(["commands", "median", "99 %", "longest"], rows)


if __name__ == "__main__":
    main(__doc__, "evidence/performance.md", MARK, lambda: table(run()))
