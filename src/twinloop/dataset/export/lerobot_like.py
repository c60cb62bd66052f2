"""Give an export the features of another LeRobot dataset, so that LeRobot's tools merge both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinloop.core.documents import read_json
from twinloop.core.errors import DatasetError, InputError
from twinloop.dataset.export.source import check_info
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.reader import flat_names


@dataclass(frozen=True, kw_only=True)
class Model:
    """Dataset whose features, robot type and frame rate an export has.

    Attributes:
        path: Its folder.
        info: Content of its ``info.json``.
    """

    path: Path
    info: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> Model:
        """Read the description of a LeRobot folder of version 3.

        Raises:
            DatasetError: If the folder is not a LeRobot dataset, or its description is damaged.
        """
        file = path / layout.INFO
        if not file.is_file():
            raise DatasetError(
                f"{path} is not a LeRobot dataset: it has no {layout.INFO}. Give the folder of a dataset."
            )
        info = read_json(file)
        check_info(info, where=file)
        return cls(path=path, info=info)

    def keep(self, info: Mapping[str, Any], *, where: Path) -> dict[str, Any]:
        """Return the content of ``info.json`` with only the features that the model has, and its robot type.

        Args:
            info: Content of ``info.json`` of the exported dataset.
            where: Folder of the exported dataset, for messages.

        Raises:
            InputError: If a feature of the model is missing or different, or the frame rates differ.
        """
        mine, theirs = info["features"], self.info["features"]
        reasons = [] if info["fps"] == self.info["fps"] else [f"{info['fps']} and {self.info['fps']} frames per second"]
        for key, feature in theirs.items():
            reasons += [f"{key}: {text}" for text in _differences(mine.get(key), feature)]
        if reasons:
            raise InputError(f"{where} cannot have the features of {self.path}: {'; '.join(reasons)}.")
        kept = {key: mine[key] for key in theirs}
        return {**info, "features": kept, "robot_type": self.info.get("robot_type")}

    def codec(self, key: str) -> str:
        """Return the codec of a camera's videos; empty if it is not known."""
        return str((self.info["features"][key].get("info") or {}).get("video.codec", ""))

    def describe_feature(self, key: str, feature: Mapping[str, Any]) -> dict[str, Any]:
        """Return a feature's entry of ``info.json`` in the model's form: its order of keys, names and marks."""
        own = dict(self.info["features"][key])
        if feature["dtype"] != "video":
            return own
        theirs, mine = own.get("info") or {}, feature.get("info") or {}
        return {**own, "info": {name: mine.get(name, value) for name, value in theirs.items()}}


def _differences(mine: Mapping[str, Any] | None, theirs: Mapping[str, Any]) -> list[str]:
    if mine is None:
        return ["missing"]
    found = [
        f"{name} {mine.get(name)} and {theirs.get(name)}"
        for name in ("dtype", "shape")
        if _plain(mine.get(name)) != _plain(theirs.get(name))
    ]
    names = flat_names(mine.get("names")), flat_names(theirs.get("names"))
    if names[0] != names[1] and mine["dtype"] not in ("video", "image"):
        found.append(f"names {', '.join(names[0])} and {', '.join(names[1])}")
    return found


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple) else value
