"""Define the size of the monitor study and its planted faults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TWIN, TASK, CAMERA = "so101_tabletop", "pick_and_place", "front"
# The policy sees the tracked tool: without it, a moved tracker cannot be detected. Chunks overlap by half, so that they
# can disagree.
POLICY: dict[str, Any] = {
    "chunk_size": 32,
    "n_action_steps": 16,
    "action_space": "delta_to_state",
    "width": 256,
    "depth": 3,
    "loss": "l1",
}
MOVED = 0.03  # m, of tracker and camera
ROBOTS = 110  # robots 110, 111, …: no threshold of the monitor was chosen with their data
CALIBRATED, HELD, FAULTY = 0, 100_000, 200_000  # first episode numbers, so that no two parts share episodes


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A planted fault.

    Attributes:
        name: Name, as printed.
        cell: Fault of the robot cell, by the name that `make_hidden_cell` takes; "" for none.
        tracker: Displacement of the tracker along y, m.
        images: Fault of the cell that changes images only; "" for none.
        cause: Cause that the monitor should name.
    """

    name: str
    cell: str = ""
    tracker: float = 0.0
    images: str = ""
    cause: str = ""


FAULTS = (
    Fault(name="friction doubled", cell="friction_doubled", cause="worn actuator"),
    Fault(name="backlash grown threefold", cell="backlash_grown", cause="worn actuator"),
    Fault(name="80 ms more latency", cell="latency_80ms", cause="latency"),
    Fault(name="object three times as heavy", cell="object_heavier", cause="unknown object"),
    Fault(name="object larger and smoother", cell="object_unknown", cause="unknown object"),
    Fault(name="tracker moved 3 cm", tracker=MOVED, cause="moved tracker"),
)
WITH_IMAGES = (
    Fault(name="camera moved 3 cm", images="camera_moved_3cm", cause="moved camera"),
    Fault(name="light halved", images="light_halved", cause="light"),
)


@dataclass(frozen=True, kw_only=True)
class MonitorSettings:
    """Size of the study.

    Attributes:
        robots: Number of virtual robots, each with its own monitor.
        demos: Number of demonstrations in randomized worlds on which the policy is trained.
        steps: Number of training steps of the policy.
        calibration: Number of successful episodes on which a monitor is calibrated.
        held: Number of further episodes without a fault.
        faulty: Number of episodes with each fault.
        has_images: Number of episodes of the first robot for each part of the study with images: calibration, held-out
            episodes, and each fault of images. 0 skips that study.
        rate: Nominal rate of false alarms.
    """

    robots: int = 2
    demos: int = 300
    steps: int = 2000
    calibration: int = 60
    held: int = 60
    faulty: int = 15
    has_images: int = 36
    rate: float = 0.05


# 20 successes were too few: the thresholds were the largest values, and one unusual success hid a planted fault.
SMALL = MonitorSettings(robots=1, demos=200, steps=2000, calibration=60, held=12, faulty=4, has_images=0, rate=0.1)
