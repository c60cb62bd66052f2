"""How a recording is laid out when it is opened: pictures and scene on the left, plots and words on the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twinloop.dataset.exporters import rerun_entities as entities
from twinloop.dataset.exporters.streams import EpisodeStreams


def blueprint(streams: EpisodeStreams, cameras: Sequence[str]) -> Any:
    """The layout of one episode's recording."""
    import rerun.blueprint as rrb  # pyright: ignore[reportMissingImports]

    seen = [rrb.Spatial2DView(origin=f"{entities.CAMERAS}/{entities.escaped(name)}", name=name) for name in cameras]
    left = rrb.Vertical(*seen, *([rrb.Spatial3DView(origin=entities.WORLD, name="scene")] if streams.ours else []))
    known = any(True for _ in streams.joints_si())
    joints = rrb.TimeSeriesView(
        origin="/", contents=[f"/{entities.JOINTS}/**"] if known else [f"/{entities.DATASET}/**"], name="joints"
    )
    felt = [
        rrb.TimeSeriesView(origin=f"{entities.SIGNALS}/{entities.escaped(channel.name)}", name=channel.name)
        for channel in streams.signals()
    ]
    words = rrb.Tabs(
        rrb.TextDocumentView(origin=entities.ABOUT, name="about"), rrb.TextLogView(origin=entities.LOG, name="log")
    )
    right = rrb.Vertical(joints, *([rrb.Tabs(*felt)] if felt else []), words)
    whole = rrb.Horizontal(left, right) if cameras or streams.ours else right
    return rrb.Blueprint(whole, rrb.TimePanel(timeline="time"), collapse_panels=True)
