"""``meta/modality.json``, by which NVIDIA's GR00T finds its way: spans of the state and action vectors by name.

Joints that belong together share a span, named as GR00T's own examples name them (``single_arm`` and ``gripper`` for an
SO-100, ``left_arm``, ``left_hand`` … for a humanoid; Isaac-GR00T, ``getting_started/examples``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from twinloop.dataset.reader import flat_names
from twinloop.dataset.spec import STATE, TRUE_TIME

TASK = {"human.task_description": {"original_key": "task_index"}}
_IMAGES = "observation.images."
# Parts of a body by words in a joint's name, the first that fits; what fits none is of an arm.
_PARTS = (
    ("gripper", r"gripper|jaw"),
    ("hand", r"hand|finger|thumb|pinky"),
    ("leg", r"hip|knee|ankle|leg"),
    ("waist", r"waist|torso"),
    ("neck", r"neck|head"),
    ("base", r"base|wheel"),
)
_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


def modality(features: Mapping[str, Any], *, grouped: bool = True) -> dict[str, Any]:
    """The content of ``modality.json``.

    Args:
        features: of ``info.json``.
        grouped: joints that belong together in one span; else a span for each column.
    """
    state = spans(features, STATE, grouped=grouped)
    further = {
        key.removeprefix("observation."): {"start": 0, "end": int(feature["shape"][0]), "original_key": key}
        for key, feature in features.items()
        if key.startswith("observation.")
        and key not in (STATE, TRUE_TIME)
        and "float" in feature["dtype"]
        and len(feature["shape"]) == 1
    }
    videos = {key.removeprefix(_IMAGES): {"original_key": key} for key, f in features.items() if f["dtype"] == "video"}
    return {
        "state": {**state, **{key: span for key, span in further.items() if key not in state}},
        "action": spans(features, "action", grouped=grouped),
        "video": videos,
        "annotation": dict(TASK),
    }


def spans(features: Mapping[str, Any], key: str, *, grouped: bool) -> dict[str, dict[str, int]]:
    """The spans of a vector feature by name, in order; one for the whole where its columns have no names."""
    if key not in features:
        return {}
    width = int(features[key]["shape"][0])
    names = [name.removesuffix(".pos") for name in flat_names(features[key].get("names"))]
    if len(names) != width:
        return {"joints": {"start": 0, "end": width}}
    known = {name.removesuffix(".pos") for name in flat_names(features.get("action", {}).get("names"))}
    return _joined([part(name) if grouped and (name in known or not known) else name for name in names])


def part(joint: str) -> str:
    """The part of the body that a joint belongs to, such as ``single_arm``, ``right_hand`` or ``waist``."""
    words = " ".join(word.lower() for word in _WORDS.findall(joint))
    limb = next((name for name, pattern in _PARTS if re.search(pattern, words)), "arm")
    side = re.search(r"\b(left|right)\b", words)
    if side:
        return f"{side[1]}_{limb}"
    return "single_arm" if limb == "arm" else limb


def _joined(labels: Sequence[str]) -> dict[str, dict[str, int]]:
    """Runs of equal labels as spans; a label that comes again is counted."""
    found: dict[str, dict[str, int]] = {}
    last = ""
    for column, label in enumerate(labels):
        if column and labels[column - 1] == label:
            found[last]["end"] = column + 1
            continue
        again = sum(name == label or name.startswith(f"{label}_again") for name in found)
        last = f"{label}_again{again}" if again else label
        found[last] = {"start": column, "end": column + 1}
    return found
