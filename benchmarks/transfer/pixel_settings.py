"""Define the settings of the study of policies from images: looks, kinds of policies, sizes, and all recipes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from twinloop.core.errors import InputError

CAMERAS = ("front", "wrist")
DEMONSTRATIONS = 20  # per robot


@dataclass(frozen=True, kw_only=True)
class Look:
    """How a robot and its surroundings look in trials.

    Attributes:
        label: description in the table.
        renderer: name of the renderer.
        quality: settings of the renderer.
        rooms: first and last number of the rooms; from 100,001 on, no surface, object or light is that of lower ones.
        devices: other camera models by camera.
        shift: largest shift of the front camera in m, and largest turn in rad, besides those of the robot itself.
    """

    label: str
    renderer: str = "gl"
    quality: Mapping[str, Any] = field(default_factory=dict[str, Any])
    rooms: tuple[int, int] = (1, 1000)
    devices: Mapping[str, str] = field(default_factory=dict[str, str])
    shift: tuple[float, float] = (0.0, 0.0)


_OTHER: dict[str, Any] = {
    "rooms": (100_001, 200_000),
    "devices": {"front": "d435_color"},
    "shift": (0.02, math.radians(3.0)),
}
LOOKS: dict[str, Look] = {
    "training": Look(label="training look: rasterizer, rooms 1 to 1,000"),
    "filament": Look(label="other rooms, camera and pose of the camera; Filament", renderer="filament", **_OTHER),
    "traced": Look(
        label="other rooms, camera and pose of the camera; path tracer",
        renderer="mitsuba",
        quality={"samples": 8},
        **_OTHER,
    ),
}
PolicyKind = Literal["split", "adapted", "end", "nominal"]
POLICIES: dict[PolicyKind, str] = {
    "split": "localizer and policy from states",
    "adapted": f"the same, corrected with {DEMONSTRATIONS} demonstrations on the robot",
    "end": "the same, taught on end to end in simulation",
    "nominal": "the first one, trained on the nominal look only",
}


@dataclass(frozen=True, kw_only=True)
class PixelSettings:
    """Settings of the study.

    Attributes:
        family: ``hidden`` or ``drake``, see `robots.open_family`.
        first: seed of the first robot.
        robots: number of robots.
        seeds: number of training runs.
        episodes: trials per policy and robot.
        look: name of the look, one of `LOOKS`.
        policies: kinds of policies, of `POLICIES`.
    """

    family: Literal["hidden", "drake"] = "hidden"
    first: int = 490
    robots: int = 10
    seeds: int = 3
    episodes: int = 30
    look: str = "training"
    policies: tuple[PolicyKind, ...] = ("split", "end", "nominal")

    def __post_init__(self) -> None:
        if self.look not in LOOKS:
            raise InputError(f"--look {self.look}: there are {', '.join(LOOKS)}.")
        wrong = [kind for kind in self.policies if kind not in POLICIES]
        if wrong or not self.policies:
            raise InputError(f"--policies {', '.join(wrong) or '(none)'}: there are {', '.join(POLICIES)}.")
        if self.family == "drake" and "adapted" in self.policies:
            raise InputError("--policies adapted: demonstrations are not recorded on robots of the family drake.")

    @property
    def robot_seeds(self) -> list[int]:
        """Seeds of the robots."""
        return [self.first + n for n in range(self.robots)]


# Settings of all policies, chosen on robots 0 to 7 and in the twin's own worlds. The policy from states is taught with
# errors of the size of a localizer's.
CONTROL: dict[str, Any] = {"tracker_offset": 0.005, "tracker_wander": 0.006, "tracker_turn": 0.15}
LOCALIZER: dict[str, Any] = {"cameras": CAMERAS, "worlds": 4500, "frames": 10, "steps": 10_000}
END: dict[str, Any] = {"worlds": 64, "rounds": 4, "steps": 400, "final_steps": 2400, "batch": 64, "lr": 5e-4}


def settings_text(settings: PixelSettings) -> dict[str, Any]:
    """Return the settings that must be equal to continue a study in the same folder."""
    return {"control": CONTROL, "localizer": LOCALIZER, "end": END, "first": settings.first,
            "looks": {name: asdict(look) for name, look in LOOKS.items()}}  # fmt: skip
