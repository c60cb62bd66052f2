"""The report on a training run: what it was trained on, how the loss went down, how far held-out commands are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twinloop.loop.pages_adapt import adaptation_section
from twinloop.report import KeyFigure, Report
from twinloop.report.training import error_curves, loss_curve


def train_page(figures: Mapping[str, Any]) -> Report:
    """An empty page with the run's title."""
    subtitle = (
        f"{figures['policy']}, {figures['parameters']:,} parameters, policy hash {figures['hash'][:16]}; seed "
        f"{figures['seed']}; twinloop {figures['versions']['twinloop']}, torch {figures['versions']['torch']}"
    )
    return Report("Training of a policy", subtitle)


def train_section(page: Report, figures: Mapping[str, Any]) -> None:
    """All of the page; ``figures`` are those of ``result.json``."""
    page.figures(
        [
            *_errors(figures),
            KeyFigure(label="steps", value=figures["steps"]),
            KeyFigure(label="time", value=figures["seconds"], unit="s"),
            KeyFigure(label="speed", value=figures["samples_per_second"], unit="samples/s"),
        ]
    )
    for note in figures["notes"]:
        page.text(f"{note[0].upper()}{note[1:]}.")
    columns = ("source", "real", "episodes", "held out", "frames", "share", "realized", "samples")
    keys = ("name", "real", "episodes", "held_out", "frames", "share", "share_realized", "samples")
    page.section("Data", f"Normalized by {figures['normalization']}.")
    page.table(columns, [[row[key] for key in keys] for row in figures["sources"]])
    page.section("Loss")
    steps, losses = zip(*figures["losses"], strict=True)
    page.plot(loss_curve(steps, losses), "Mean over the batches since the point before, in the policy's normal form.")
    if figures["held_out"]:
        _held_out(page, figures)
    adaptation_section(page, figures)


def _errors(figures: Mapping[str, Any]) -> list[KeyFigure]:
    return [
        KeyFigure(label=f"held-out action error, {row['source']}", value=one["estimate"], unit=unit)
        for row in figures["held_out"]
        for unit, one in list(row["by_unit"].items())[:1]
    ]


def _held_out(page: Report, figures: Mapping[str, Any]) -> None:
    page.section(
        "Held-out action error",
        "How far the policy's commands are from those of episodes that it was not trained on: mean absolute difference "
        "over the steps of a chunk that are carried out. It is no success rate: `twinloop evaluate` measures that.",
    )
    evaluations = [row for row in figures["evaluations"] if "sources" in row]
    steps = [row["step"] for row in evaluations]
    for unit in figures["held_out"][0]["by_unit"]:
        lines = {
            source: [row["sources"][source]["by_unit"][unit] for row in evaluations]
            for source in evaluations[0]["sources"]
        }
        page.plot(
            error_curves(steps, lines, unit=unit, kept=figures["kept_step"]),
            f"Mean over the joints in {unit}; the dotted line is where the kept weights are from.",
        )
    rows = [
        (row["source"], unit, one["joints"], row["episodes"], one["estimate"], one.get("low"), one.get("high"))
        for row in figures["held_out"]
        for unit, one in row["by_unit"].items()
    ]
    page.table(
        ("source", "unit", "joints", "episodes", "error", "95 % low", "high"), rows,
        caption="Of the kept weights; intervals over episodes.",
    )  # fmt: skip
    joints = list(figures["held_out"][0]["by_joint"])
    page.table(
        ("source", *joints), [(row["source"], *row["by_joint"].values()) for row in figures["held_out"]],
        caption="By joint, in each joint's unit.",
    )  # fmt: skip
