"""What tests of several files share: rollout substeps."""

from __future__ import annotations

HARD = {
    "actuator/*/voltage": (6.4, 8.4),
    "actuator/elbow_flex/delay": (0.0, 0.06),
    "supply/bus/resistance": (0.0, 0.3),
    "actuator/*/thermal_resistance": (4.0, 8.0),
    "joint/*/stiction": (1.0, 1.8),
    "joint/*/load_friction": (0.05, 0.2),
    "timing/command/jitter": (0.0, 0.012),
    "timing/command/drop_rate": (0.0, 0.05),
    "timing/control/jitter": (0.0, 0.006),
}
