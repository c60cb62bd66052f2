"""Write the report on a training run: data, loss, error on held-out episodes, and adaptation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twinloop.report import KeyMetric, ReportPage
from twinloop.report.curves import plot_error_curves, plot_loss_curve


def train_page(result: Mapping[str, Any]) -> ReportPage:
    """Return an empty report page with the title of a training run: policy, hash, and software versions."""
    subtitle = (
        f"{result['policy']}, {result['parameters']:,} parameters, policy hash {result['hash'][:16]}; seed "
        f"{result['seed']}; twinloop {result['versions']['twinloop']}, torch {result['versions']['torch']}"
    )
    return ReportPage("Training of a policy", subtitle)


def train_section(page: ReportPage, result: Mapping[str, Any]) -> None:
    """Add all sections on a training run to a report.

    Args:
        page: the report page.
        result: content of the run's ``result.json``.
    """
    page.key_metrics(
        [
            *_error_metrics(result),
            KeyMetric(label="steps", value=result["steps"]),
            KeyMetric(label="time", value=result["seconds"], unit="s"),
            KeyMetric(label="speed", value=result["samples_per_second"], unit="samples/s"),
        ]
    )
    for note in result["notes"]:
        page.text(f"{note[0].upper()}{note[1:]}.")
    columns = ("source", "real", "episodes", "held out", "frames", "share", "realized", "samples")
    keys = ("name", "real", "episodes", "held_out", "frames", "share", "share_realized", "samples")
    page.section("Data", f"Normalized by {result['normalization']}.")
    page.table(columns, [[row[key] for key in keys] for row in result["sources"]])
    page.section("Loss")
    steps, losses = zip(*result["losses"], strict=True)
    page.plot(plot_loss_curve(steps, losses), "Mean over the batches since the previous point, in normalized units.")
    if result["held_out"]:
        _held_out(page, result)
    adaptation_section(page, result)


def _error_metrics(result: Mapping[str, Any]) -> list[KeyMetric]:
    return [
        KeyMetric(label=f"held-out action error, {row['source']}", value=one["estimate"], unit=unit)
        for row in result["held_out"]
        for unit, one in list(row["by_unit"].items())[:1]
    ]


def _held_out(page: ReportPage, result: Mapping[str, Any]) -> None:
    page.section(
        "Held-out action error",
        "How far the policy's commands are from those of episodes that it was not trained on: mean absolute difference "
        "over the steps of a chunk that are carried out. It is not a success rate: `twinloop evaluate` measures that.",
    )
    evaluations = [row for row in result["evaluations"] if "sources" in row]
    steps = [row["step"] for row in evaluations]
    for unit in result["held_out"][0]["by_unit"]:
        lines = {
            source: [row["sources"][source]["by_unit"][unit] for row in evaluations]
            for source in evaluations[0]["sources"]
        }
        page.plot(
            plot_error_curves(steps, lines, unit=unit, policy_step=result["kept_step"]),
            f"Mean over the joints in {unit}; the dotted line is the step whose weights are kept.",
        )
    rows = [
        (row["source"], unit, one["joints"], row["episodes"], one["estimate"], one.get("low"), one.get("high"))
        for row in result["held_out"]
        for unit, one in row["by_unit"].items()
    ]
    page.table(
        ("source", "unit", "joints", "episodes", "error", "95 % low", "high"), rows,
        caption="Of the kept weights; intervals over episodes.",
    )  # fmt: skip
    joints = list(result["held_out"][0]["by_joint"])
    page.table(
        ("source", *joints), [(row["source"], *row["by_joint"].values()) for row in result["held_out"]],
        caption="By joint, in each joint's unit.",
    )  # fmt: skip


_METHODS = {
    "full": "All {moving:,} weights moved.",
    "head": "The {moving:,} weights from the latent to the commands moved.",
    "low_rank": "A change of rank {rank} was added to every matrix, {moving:,} numbers in all.",
}


def adaptation_section(page: ReportPage, result: Mapping[str, Any]) -> None:
    """Add a section on continued training, aligned features or adapted images.

    Nothing is added if the run used none of them.

    Args:
        page: the report page.
        result: content of the run's ``result.json``.
    """
    facts = result.get("adaptation") or {}
    if not facts:
        return
    page.section("Adaptation", _describe_start(facts))
    if facts.get("held_out_before"):
        after = {row["source"]: row["by_unit"] for row in result["held_out"]}
        rows = [
            (row["source"], unit, one["estimate"], _format_interval(one), now["estimate"], _format_interval(now))
            for row in facts["held_out_before"]
            for unit, one in row["by_unit"].items()
            for now in (after[row["source"]][unit],)
        ]
        page.table(
            ("source", "unit", "before", "95 %", "after", "95 %"), rows,
            caption="Held-out action error of the base policy, and of the trained one.",
        )  # fmt: skip
    if "pixels" in facts:
        page.text(f"Simulated images got the real ones' {_describe_pixels(facts['pixels'])}.")
    if "alignment" in facts:
        _alignment(page, facts["alignment"])


def _describe_start(facts: Mapping[str, Any]) -> str:
    if "base_hash" not in facts:
        return ""
    near = (
        f" The squared distance to the initial weights had the weight {facts['l2_start']:g}."
        if facts["l2_start"]
        else ""
    )
    moved = _METHODS[facts["method"]].format(rank=facts["rank"], moving=facts["moving"])
    return f"Continued from {facts['base']}, hash {facts['base_hash'][:16]}. {moved}{near}"


def _describe_pixels(said: Mapping[str, Any]) -> str:
    if said["method"] == "moments":
        return "mean and deviation of every channel, in stored RGB values"
    return f"amplitudes of the lowest frequencies, up to {said['beta']:g} of the shorter side"


def _alignment(page: ReportPage, found: Mapping[str, Any]) -> None:
    page.text(f"Alignment: {found['verdict']}.")
    if "before" not in found:
        return
    moments = ("before", "after")
    rows = [
        (
            name,
            *(cell for when in moments for cell in (found[when][key]["estimate"], _format_interval(found[when][key]))),
        )
        for key, name in (("mmd", "MMD²"), ("probe_auc", "area under the curve of a linear probe"))
    ]
    rows.append(("CORAL, share of the covariances", found["before"]["coral"], "", found["after"]["coral"], ""))
    page.table(
        ("real against simulated features", "before", "95 %", "after", "95 %"), rows,
        caption="Of held-out episodes, which are the unit of the intervals. An area of one half is chance.",
    )  # fmt: skip


def _format_interval(one: Mapping[str, Any]) -> str:
    return f"{one['low']:.3g} to {one['high']:.3g}" if "low" in one else "–"
