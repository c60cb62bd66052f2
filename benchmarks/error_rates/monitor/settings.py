"""How large the study of the monitor is, and what is planted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from twinloop.workflows.demo.virtual_robots.settings import TransferRecipe

TWIN, TASK, CAMERA = "so101_tabletop", "pick_and_place", "front"
# Good settings where the tool is tracked (docs/evidence/transfer.md). Without tracking nobody can tell whether the
# tracker was moved. Chunks overlap by half, so that they can disagree.
RECIPE = TransferRecipe(sees="tool", shake=0.0175)
POLICY: dict[str, Any] = {**RECIPE.settings, "n_action_steps": 16}
MOVED = 0.03  # m, of tracker and camera
ROBOTS = 110  # robots 110, 111, …: no threshold of the monitor was chosen while looking at one of them
CALIBRATED, HELD, FAULTY = 0, 100_000, 200_000  # first episode numbers: no two parts share one


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is planted: a fault of the cell, or a tracker that was moved; and the cause that is right to name."""

    name: str
    cell: str = ""
    tracker: float = 0.0
    pictures: str = ""
    cause: str = ""


FAULTS = (
    Fault(name="friction doubled", cell="friction_doubled", cause="worn actuator"),
    Fault(name="backlash grown threefold", cell="backlash_grown", cause="worn actuator"),
    Fault(name="80 ms more latency", cell="latency_80ms", cause="latency"),
    Fault(name="object three times as heavy", cell="object_heavier", cause="unknown object"),
    Fault(name="object larger and smoother", cell="object_unknown", cause="unknown object"),
    Fault(name="tracker moved 3 cm", tracker=MOVED, cause="moved tracker"),
)
PICTURED = (
    Fault(name="camera moved 3 cm", pictures="camera_moved_3cm", cause="moved camera"),
    Fault(name="light halved", pictures="light_halved", cause="light"),
)


@dataclass(frozen=True, kw_only=True)
class MonitorSettings:
    """What the study consists of.

    Attributes:
        robots: virtual robots, each with a monitor of its own.
        demos, steps: demonstrations in randomized worlds and steps of training of the policy, one for all.
        calibration: successes that a monitor is calibrated on.
        held: further episodes without a fault.
        faulty: episodes with each fault.
        pictured: successes that a monitor with pictures is calibrated on, and episodes without and with each fault of
            pictures; of the first robot.
        rate: of false alarms.
    """

    robots: int = 2
    demos: int = 300
    steps: int = 2000
    calibration: int = 60
    held: int = 60
    faulty: int = 15
    pictured: int = 36
    rate: float = 0.05


# 20 successes were too few: their limits were the largest values, and one odd success hid a planted fault.
SMALL = MonitorSettings(robots=1, demos=200, steps=2000, calibration=60, held=12, faulty=4, pictured=0, rate=0.1)
