"""The formats that datasets can be exported to, by name; a format's file is imported when it is asked for."""

from __future__ import annotations

from twinloop.core.registry import Registry
from twinloop.dataset.exporters.protocol import Exporter

EXPORTERS: Registry[Exporter] = Registry(
    "format",
    {
        "lerobot": "twinloop.dataset.exporters.lerobot_v3:EXPORTER",
        "lerobot-v2": "twinloop.dataset.exporters.lerobot_v21:EXPORTER",
        "groot": "twinloop.dataset.exporters.groot:EXPORTER",
        "robomimic": "twinloop.dataset.exporters.robomimic:EXPORTER",
        "mcap": "twinloop.dataset.exporters.mcap:EXPORTER",
        "rerun": "twinloop.dataset.exporters.rerun:EXPORTER",
    },
    group="twinloop.exporters",
)
exporter = EXPORTERS.find
