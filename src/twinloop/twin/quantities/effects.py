"""Physical effects that several quantities share: their names, in the order in which reports list them.

A quantity names its ``cause``, its ``term`` and its ``fault`` (see `kinds`). One that no list here has comes last.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# What a person calls a cause.
CAUSES = (
    "servo gain",
    "torque limit",
    "delay",
    "command zero",
    "motor & supply",
    "damping",
    "dry friction",
    "gear",
    "springs & stops",
    "mass & inertia",
    "encoder",
    "contact",
    "rotors",
    "air",
    "gravity & mounting",
    "disturbances",
    "scene",
)

# Terms of the physics that can be switched off one by one, and what they mean.
TERMS: Mapping[str, str] = MappingProxyType(
    {
        "command delay": "commands reach the servos late",
        "command jitter and loss": "commands arrive unevenly or not at all",
        "command bias": "servos seek another angle than they were told",
        "control clock": "the loop is slow or unsteady",
        "reading delay": "readings are old when they are used",
        "encoder offset and scale": "joints report another angle than they have",
        "encoder noise and counts": "readings flicker and come in steps",
        "joint friction": "dry friction in the joints",
        "load friction": "friction that grows with a joint's torque",
        "backlash": "play of the gears",
        "joint damping": "damping other than the twin's",
        "rotor inertia": "rotor inertia other than the twin's",
        "servo stiffness": "servo gains other than the twin's",
        "torque limit": "torque limits and supply voltage other than the twin's",
        "supply sag": "the voltage falls under load",
        "motor heat": "windings are or become warm",
        "link masses": "link masses other than the twin's",
        "object mass": "mass, centre of mass and inertia of objects other than the twin's",
        "object friction": "friction of objects other than the twin's",
        "contact softness": "contacts softer or harder than the twin's",
        "object size": "objects larger or smaller than the twin's",
        "object place": "things lie elsewhere than in the twin",
        "approach angle": "objects are turned otherwise than in the twin",
        "table": "the table is higher or tilted",
        "gravity": "the room is tilted or gravity another",
        "air": "wind and drag",
        "pushes": "somebody pushes",
        "camera pose": "cameras stand elsewhere than in the twin",
        "camera chain": "pictures pass through another camera than the twin's",
        "camera delay": "pictures are late or lost",
        "light": "light other than the twin's",
        "surfaces": "colours and textures other than the twin's",
    }
)

# What may be wrong with a robot's drives; the monitor's regressions keep this order.
FAULTS = ("friction", "latency", "gain", "load", "play")
