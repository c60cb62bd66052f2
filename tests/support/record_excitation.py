"""What tests of several files share: record excitation."""

from __future__ import annotations

import numpy as np

from twinloop.hardware.excite import ExcitationPlan
from twinloop.hardware.limits import motion_limits
from twinloop.twin import load_twin

TWIN = load_twin("so101_tabletop")


HOME = TWIN.home()[1]


LIMITS = motion_limits(TWIN)


def plan_of(seconds=1.5, **changes) -> ExcitationPlan:
    time = np.arange(round(seconds * 30)) / 30.0
    blend = np.sin(np.pi * time / time[-1])[:, None] ** 2
    value = {
        "twin": "so101_tabletop",
        "twin_hash": TWIN.hash,
        "joints": tuple(TWIN.robot.joints),
        "control": "position",
        "hz": 30.0,
        "commands": HOME + blend * [0.3, -0.2, 0.2, -0.3, 0.4, 0.2],
        "home": HOME,
        "limits": LIMITS,
        "tracking_error": np.full(6, 0.25),
    }
    return ExcitationPlan(**{**value, **changes})
