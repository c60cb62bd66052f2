"""The part of a training report that says what adaptation did: what moved, from which error to which, how aligned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twinloop.report import Report

_METHODS = {
    "full": "All {moving:,} weights moved.",
    "head": "The {moving:,} weights from the latent to the commands moved.",
    "low_rank": "A change of rank {rank} was added to every matrix, {moving:,} numbers in all.",
}


def adaptation_section(page: Report, figures: Mapping[str, Any]) -> None:
    """Of a run that went on from a policy, aligned features, or changed pictures; nothing for others."""
    facts = figures.get("adaptation") or {}
    if not facts:
        return
    page.section("Adaptation", _begun(facts))
    if facts.get("held_out_before"):
        after = {row["source"]: row["by_unit"] for row in figures["held_out"]}
        rows = [
            (row["source"], unit, one["estimate"], _between(one), now["estimate"], _between(now))
            for row in facts["held_out_before"]
            for unit, one in row["by_unit"].items()
            for now in (after[row["source"]][unit],)
        ]
        page.table(
            ("source", "unit", "before", "95 %", "after", "95 %"), rows,
            caption="Held-out action error of the policy to go on from, and of what it became.",
        )  # fmt: skip
    if "pixels" in facts:
        page.text(f"Simulated pictures got the real ones' {_pixels(facts['pixels'])}.")
    if "alignment" in facts:
        _alignment(page, facts["alignment"])


def _begun(facts: Mapping[str, Any]) -> str:
    if "base_hash" not in facts:
        return ""
    near = f" Distance to the start weighed {facts['l2_start']:g}." if facts["l2_start"] else ""
    moved = _METHODS[facts["method"]].format(rank=facts["rank"], moving=facts["moving"])
    return f"Went on from {facts['base']}, hash {facts['base_hash'][:16]}. {moved}{near}"


def _pixels(said: Mapping[str, Any]) -> str:
    if said["method"] == "moments":
        return "mean and deviation of every channel, in stored RGB values"
    return f"amplitudes of the lowest frequencies, up to {said['beta']:g} of the shorter side"


def _alignment(page: Report, found: Mapping[str, Any]) -> None:
    page.text(f"Alignment: {found['verdict']}.")
    if "before" not in found:
        return
    moments = ("before", "after")
    rows = [
        (name, *(cell for when in moments for cell in (found[when][key]["estimate"], _between(found[when][key]))))
        for key, name in (("mmd", "MMD²"), ("probe_auc", "area under the curve of a linear probe"))
    ]
    rows.append(("CORAL, share of the covariances", found["before"]["coral"], "", found["after"]["coral"], ""))
    page.table(
        ("real against simulated features", "before", "95 %", "after", "95 %"), rows,
        caption="Of held-out episodes, which are the unit of the intervals. An area of one half is chance.",
    )  # fmt: skip


def _between(one: Mapping[str, Any]) -> str:
    return f"{one['low']:.3g} to {one['high']:.3g}" if "low" in one else "–"
