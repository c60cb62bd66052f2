"""Find an export format by its name; the module of a format is imported at first use."""

from __future__ import annotations

from twinloop.core.registry import Registry
from twinloop.dataset.export.protocol import Exporter

EXPORTERS: Registry[Exporter] = Registry(
    "format",
    {
        "lerobot": "twinloop.dataset.export.lerobot_v3:EXPORTER",
        "lerobot-v2": "twinloop.dataset.export.lerobot_v21:EXPORTER",
        "groot": "twinloop.dataset.export.groot:EXPORTER",
        "robomimic": "twinloop.dataset.export.robomimic:EXPORTER",
        "mcap": "twinloop.dataset.export.mcap:EXPORTER",
        "rerun": "twinloop.dataset.export.rerun:EXPORTER",
    },
    group="twinloop.exporters",
)
exporter = EXPORTERS.find
