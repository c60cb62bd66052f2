"""What an exporter of recordings was asked for: which cameras, their pictures as they are or as JPEG, and the truth."""

from __future__ import annotations

from dataclasses import dataclass

from twinloop.core.errors import UnknownNameError
from twinloop.dataset.exporters.protocol import ExportOptions
from twinloop.dataset.exporters.streams import chosen_cameras
from twinloop.dataset.exporters.truth import Truth
from twinloop.dataset.reader import DatasetReader

STREAM_SETTINGS = {
    "cameras": "cameras with commas, all (default) or none",
    "pictures": "video (packets copied where that can be done, default) or jpeg",
}
_PICTURES = ("video", "jpeg")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A dataset, the cameras to show, whether their packets are copied, and what else is known of its episodes."""

    reader: DatasetReader
    cameras: list[str]
    copied: bool
    truth: Truth


def read_asked(reader: DatasetReader, options: ExportOptions, truth: Truth, *, name: str) -> Asked:
    """What the options ask of a format.

    Args:
        name: the format's, for messages.

    Raises:
        UnknownNameError: no such camera or kind of pictures.
    """
    pictures = options.settings.get("pictures", _PICTURES[0])
    if pictures not in _PICTURES:
        raise UnknownNameError("kind of pictures", pictures, _PICTURES, where=f"the format {name}")
    cameras = chosen_cameras(reader, options.settings.get("cameras"))
    return Asked(reader=reader, cameras=cameras, copied=pictures == "video", truth=truth)
