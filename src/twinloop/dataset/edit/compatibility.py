"""Check that folders can be combined into one dataset (features, rate, units), and combine their metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.documents import read_json
from twinloop.core.errors import DatasetError, InputError, UnitsError
from twinloop.core.units import UnitMap
from twinloop.dataset.edit.source import EditSource
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.reader import flat_names
from twinloop.dataset.media.depth import is_depth
from twinloop.dataset.spec import INDEX_FEATURES

_SAME_UNITS = "--same-units"
_COMMON = "--common (of edit merge and datasets materialize)"
_UNKNOWN_ROBOTS = (None, "", "unknown")
# Positions in degrees are 57 times those in radians, and a joint within one turn never exceeds 2π rad. Both conditions
# must hold, because the range of motion varies by more between episodes of one folder. Ten is our choice below 57.
_ANOTHER_SCALE = 10.0
_ONE_TURN = 2 * np.pi


def check_features(sources: Sequence[EditSource]) -> None:
    """Check that all source folders have the same features, frame rate and robot type.

    Raises:
        InputError: If two folders differ. The message lists every difference between these two folders.
    """
    first = sources[0]
    for other in sources[1:]:
        found = find_differences(first, other)
        if found:
            common = first.features.keys() != other.features.keys()
            raise InputError(
                f"{first} and {other} cannot become one dataset:\n"
                + "\n".join(f"  {line}" for line in found)
                + "\nGive only folders with the same features, or convert the features first."
                + (f" {_COMMON} keeps only the features that all folders have." if common else "")
            )


def keep_common_features(sources: Sequence[EditSource]) -> None:
    """Limit each source to the features that all sources have; changes the sources in place.

    Raises:
        InputError: If the sources have no feature in common except frame indices and timestamps.
    """
    kept = [key for key in sources[0].features if all(key in source.features for source in sources)]
    if set(kept) <= set(INDEX_FEATURES):
        names = ", ".join(map(str, sources))
        raise InputError(
            f"{names} have no feature in common except frame indices and timestamps, so {_COMMON} cannot be used. "
            "Choose folders with common features."
        )
    for source in sources:
        source.keep_features(kept)


def find_left_out_features(sources: Sequence[EditSource]) -> dict[str, list[str]]:
    """Return the features that `keep_common_features` excluded, and for each feature the folders that have it."""
    found: dict[str, list[str]] = {}
    for source in sources:
        for key in source.excluded_features:
            found.setdefault(key, []).append(str(source))
    return found


def find_differences(one: EditSource, other: EditSource) -> list[str]:
    """Return one line of text per difference between two sources in frame rate, robot type or features.

    Video codecs and joint units are not compared. An unknown robot type does not count as a difference.
    """
    lines: list[str] = []
    if one.reader.fps != other.reader.fps:
        lines.append(f"fps: {one.reader.fps:g} and {other.reader.fps:g}")
    robots = one.info.get("robot_type"), other.info.get("robot_type")
    if robots[0] != robots[1] and not any(robot in _UNKNOWN_ROBOTS for robot in robots):
        lines.append(f"robot_type: {robots[0]} and {robots[1]}")
    for key in dict.fromkeys([*one.features, *other.features]):
        mine, theirs = one.features.get(key), other.features.get(key)
        if mine is None or theirs is None:
            lines.append(f"{key}: only in {one if theirs is None else other}")
        else:
            lines += [f"{key}: {difference}" for difference in _compare_features(mine, theirs)]
    return lines


def _compare_features(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    types = mine.get("dtype"), theirs.get("dtype")
    lines = [f"dtype {types[0]} and {types[1]}"] if types[0] != types[1] else []
    if list(mine.get("shape", ())) != list(theirs.get("shape", ())):
        lines.append(f"shape {list(mine.get('shape', ()))} and {list(theirs.get('shape', ()))}")
    names = flat_names(mine.get("names")), flat_names(theirs.get("names"))
    if names[0] != names[1] and mine.get("dtype") not in ("video", "image"):
        lines.append(f"names {', '.join(names[0]) or 'none'} and {', '.join(names[1]) or 'none'}")
    depth = [is_depth(entry) for entry in (mine, theirs)]
    if depth[0] != depth[1]:
        lines.append(f"is_depth_map {depth[0]} and {depth[1]}")
    return lines


def combine_units(sources: Sequence[EditSource], *, same_units: bool) -> tuple[UnitMap | None, list[str]]:
    """Return the unit map of the merged dataset, and notes on how it was determined.

    Args:
        same_units: Whether the caller guarantees equal units of the joint columns in all folders. If true, the units
            are not compared.

    Returns:
        The unit map, or None if no source declares units; and notes for the user.

    Raises:
        UnitsError: If the units of two folders differ, if only some folders declare units, or if no folder declares
            units and the values of one folder look like degrees and those of another folder like radians.
    """
    maps = [source.reader.units for source in sources]
    known = [map_ for map_ in maps if map_ is not None]
    if same_units or len(sources) == 1:
        return (known[0] if known else None), []
    if not known:
        return None, _check_undeclared_units(sources)
    for source, map_ in zip(sources, maps, strict=True):
        if map_ is None:
            declaring = sources[maps.index(known[0])]
            raise UnitsError(
                f"{source} does not declare the units of its joints; {declaring} does "
                f"({_list_units(known[0])}). Are they the same? If so, add {_SAME_UNITS}; if not, import {source} with "
                "--units first."
            )
        if line := _describe_unit_difference(known[0], map_):
            raise UnitsError(
                f"{sources[maps.index(known[0])]} and {source} have different units: {line}. Equal numbers would mean "
                f"different positions. Convert them to one unit, or add {_SAME_UNITS} if the units are equal in fact; "
                "each episode keeps its own unit map in its provenance."
            )
    return known[0], []


def _list_units(map_: UnitMap) -> str:
    return ", ".join(dict.fromkeys(joint.unit for joint in map_.joints))


def _describe_unit_difference(one: UnitMap, other: UnitMap) -> str:
    """Describe the first difference in joints, units, scales or offsets of two unit maps; empty if they are equal."""
    if one.names != other.names:
        return f"the joints are {', '.join(one.names)} and {', '.join(other.names)}"
    for mine, theirs in zip(one.joints, other.joints, strict=True):
        if mine.unit != theirs.unit:
            return f"{mine.joint} is in {mine.unit} and in {theirs.unit}"
        scales = np.array([[mine.scale, mine.offset], [theirs.scale, theirs.offset]], dtype=np.float64)  # None is NaN
        if not np.allclose(scales[0], scales[1], rtol=1e-6, atol=1e-9, equal_nan=True):
            return (
                f"{mine.joint} is {mine.offset} + {mine.scale} · value and {theirs.offset} + {theirs.scale} · value "
                "(rad or m)"
            )
    return ""


def _check_undeclared_units(sources: Sequence[EditSource]) -> list[str]:
    """Return a note that no folder declares units, after a check of the largest action values.

    Raises:
        UnitsError: If the actions of one folder look like degrees and those of another folder like radians.
    """
    reaches = [_largest_actions(source) for source in sources]
    for source, reach in zip(sources[1:], reaches[1:], strict=True):
        if reach is None or reaches[0] is None or reach.shape != reaches[0].shape:
            continue
        near, far = sorted((float(np.median(reaches[0])), float(np.median(reach))))
        if near <= _ONE_TURN < far and far > _ANOTHER_SCALE * near:
            raise UnitsError(
                f"Neither {sources[0]} nor {source} declares the units of its joints, and the actions of one reach "
                f"{far:.3g} and those of the other to {near:.3g} (medians over the joints), as degrees and radians do. "
                f"Are they the same? If so, add {_SAME_UNITS}; if not, import one of them with --units first."
            )
    return ["no folder declares the units of its joints; they are assumed to be equal"]


def _largest_actions(source: EditSource) -> NDArray[np.float64] | None:
    """Return the largest absolute value of each action column from ``stats.json``.

    None if the file has no extremes of ``action``.
    """
    path = source.path / layout.STATS
    if not path.is_file():
        return None
    action = read_json(path).get("action") or {}
    try:
        extremes = np.array([action["min"], action["max"]], dtype=np.float64)
    except (KeyError, TypeError, ValueError):
        return None
    return np.abs(extremes).max(axis=0)


def combine_info(sources: Sequence[EditSource]) -> dict[str, Any]:
    """Return ``info.json`` of the merged dataset, except its totals.

    Features, rate and version come from the first folder, and the robot type from the first folder that has one. Other
    entries are kept if they are equal in all folders.
    """
    first = dict(sources[0].info)
    robot = next((s.info["robot_type"] for s in sources if s.info.get("robot_type") not in _UNKNOWN_ROBOTS), None)
    known = {"features", "fps", "codebase_version", "robot_type"}
    same = {k: v for k, v in first.items() if k in known or all(s.info.get(k) == v for s in sources)}
    return {**same, "robot_type": robot or first.get("robot_type")}


def combine_frame_schemas(sources: Sequence[EditSource]) -> pa.Schema:
    """Return the Arrow schema of the frame columns that every folder has, with the types of the first folder.

    Raises:
        DatasetError: If a feature that is not a video has no column in the data files of a folder.
    """
    first = sources[0].schema
    without = {key for source in sources for key in source.excluded_features}
    shared = [name for name in first.names if all(name in source.schema.names for source in sources)]
    names = [name for name in shared if name not in without]
    for source in sources:
        wanted = [key for key, entry in source.features.items() if entry.get("dtype") != "video"]
        missing = [key for key in wanted if key not in names]
        if missing:
            raise DatasetError(f"{source}: the features {', '.join(missing)} have no column in its data files.")
    schema = pa.schema([first.field(name) for name in names])
    return schema.with_metadata(first.metadata) if names == first.names else schema


def combine_episode_columns(
    sources: Sequence[EditSource], is_recomputed: Callable[[str], bool]
) -> tuple[pa.Schema, list[str]]:
    """Return the columns of the episode table that are copied unchanged, and a note on each excluded column.

    A column is excluded if its types in two folders cannot be unified.

    Args:
        is_recomputed: Returns True for the name of a column that the edit computes again; such a column is not copied.
    """
    fields: dict[str, pa.Field] = {}
    notes: list[str] = []
    refused: set[str] = set()
    for source in sources:
        for field in source.columns:
            if is_recomputed(field.name) or field.name in refused:
                continue
            try:
                pair = [fields.get(field.name, field), field]
                fields[field.name] = pa.unify_schemas(
                    [pa.schema([one]) for one in pair], promote_options="permissive"
                ).field(0)
            except (pa.ArrowTypeError, pa.ArrowInvalid):
                refused.add(field.name)
                notes.append(
                    f"the episode column {field.name} is left out, because its type is "
                    f"{fields[field.name].type} in one folder and {field.type} in {source}"
                )
    kept = [field.with_nullable(True) for name, field in fields.items() if name not in refused]
    return pa.schema(kept), notes
