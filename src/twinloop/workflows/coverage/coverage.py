"""Run ``twinloop coverage``: coverage of the parameter space or of reality, and the clips nearest to a given one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from twinloop.catalog import Workspace
from twinloop.catalog.episode_lookup import resolve_episodes
from twinloop.core.errors import InputError
from twinloop.curate.neighbours import choose_encoder, find_nearest_clips, open_clip_index
from twinloop.generate.coverage import dataset_coverage, dataset_history, summarize_coverage
from twinloop.report import KeyMetric, ReportPage
from twinloop.report.coverage import marginal_rows, pair_matrix, range_history
from twinloop.workflows.coverage.measured import headlines, measure, resolve_sides
from twinloop.workflows.coverage.page import coverage_sections
from twinloop.workflows.coverage.requests import CoverageRequest
from twinloop.workflows.coverage.result_text import result_to_json, text_lines
from twinloop.workflows.run.results import MeasuredRun, Outcome

_ROWS = 20  # printed parameters, least covered first; the page and the JSON have all


def run_coverage(request: CoverageRequest, console: Console) -> dict[str, Any] | Outcome:
    """Measure how much of reality or of its parameter space simulation covers, or print the clips nearest to one.

    Raises:
        InputError: a dataset alone is given together with sides to compare.
    """
    if request.nearest is not None:
        return run_nearest_clips(request, request.nearest, console)
    if request.dataset is None:
        return run_coverage_of_reality(request, console)
    sides = request.sides
    if sides.real or sides.sim or sides.workspace:
        raise InputError(
            f"{request.dataset} without --real is measured in its own parameter space. To compare it with reality: "
            f"--sim {request.dataset} --real LOG."
        )
    return run_coverage_alone(request.dataset, request, console)


def run_coverage_alone(dataset: Path, request: CoverageRequest, console: Console) -> dict[str, Any]:
    """Measure and print the coverage of a generated dataset; write a page if requested.

    Raises:
        InputError: the dataset was not generated from a randomization, or no parameter was randomized.
    """
    coverage = dataset_coverage(dataset, strength=3 if request.triples else 2)
    if not coverage["axes"]:
        raise InputError(
            f"No parameter was randomized per episode in {dataset}, so there is no parameter space to cover."
        )
    history = dataset_history(dataset)
    console.print(coverage_table(coverage))
    for line in format_coverage(coverage, history):
        console.print(line)
    figures = {"schema": 1, "verb": "coverage", "dataset": str(dataset), **coverage, "adaptive": history}
    if request.output is not None:
        page = coverage_page(coverage, history, dataset)
        figures["output"] = str(page.write(request.output))
        console.print(f"Page: {request.output}")
    return figures


def coverage_table(coverage: Mapping[str, Any]) -> Table:
    """Return a table of the parameters with the lowest coverage of their range."""
    table = Table(box=None, pad_edge=False)
    table.add_column("parameter", overflow="fold")
    for title in ("range", "kept", "attempted", "expected", "widest gap of kept"):
        table.add_column(title, justify="right")
    rows = sorted(_parameter_rows(coverage), key=lambda row: (row[2] - row[4], -row[6]))
    for name, ends, kept, attempted, expected, gap, _ in rows[:_ROWS]:
        table.add_row(name, ends, f"{kept:.0%}", f"{attempted:.0%}", f"{expected:.0%}", gap)
    table.caption = f"Share of the {coverage['cells']['marginal']} cells of each range that contain an episode."
    if len(rows) > _ROWS:
        table.caption += f" {len(rows) - _ROWS} more parameters are covered better; --json and --output show them."
    return table


def format_coverage(coverage: Mapping[str, Any], history: Mapping[str, Any] | None) -> list[str]:
    """Return sentences on pairs, holes and adaptive ranges."""
    kept, attempted = coverage["kept"], coverage["attempted"]
    lines = [f"{kept['episodes']} episodes kept of {attempted['episodes']} attempted, {len(coverage['axes'])} axes."]
    for key, cells in (("pairs", coverage["cells"]["pair"]), ("triples", coverage["cells"]["triple"])):
        if key in kept:
            lines.append(
                f"{key.capitalize()} of parameters ({cells} cells per axis): kept episodes visit "
                f"{kept[key]['occupied']:.1%} of the cells, attempts {attempted[key]['occupied']:.1%}; independent "
                f"draws would visit {kept[key]['expected']:.1%}."
            )
    lines.append(format_hole(kept.get("pairs", {}).get("hole")))
    if "ball" in kept:
        centre = ", ".join(f"{name} = {value:.3g}" for name, value in kept["ball"]["centre"].items())
        lines.append(f"Largest empty ball: radius {kept['ball']['radius']:.3f} in cumulative probability, at {centre}.")
    if history is not None:
        rounds = f"{len(history['rounds'])} rounds of {history['every']} episodes"
        lines.append(f"Adaptive ranges after {rounds}: {_format_ranges(history['ranges'])}.")
    return lines


def _format_ranges(ranges: Mapping[str, tuple[float, float]]) -> str:
    return ", ".join(f"{name} [{low:.4g}, {high:.4g}]" for name, (low, high) in ranges.items())


def format_hole(hole: Mapping[str, Any] | None) -> str:
    """Return a sentence on the largest hole in a pair of parameters."""
    if hole is None:
        return "No pair of parameters has an empty cell."
    spans = " and ".join(
        f"{name} in [{low:.4g}, {high:.4g}]"
        for name, low, high in zip(hole["names"], hole["low"], hole["high"], strict=True)
    )
    by_chance = float(f"{hole['by_chance']:.2g}")
    return (
        f"Largest hole: {spans}, {hole['probability']:.0%} of that pair; independent draws would leave "
        f"{by_chance:g} such holes in all pairs."
    )


def format_draws(figures: Mapping[str, Any]) -> list[str]:
    """Return sentences on the draws of a generate run: acceptance, effective size, adaptive ranges, coverage."""
    lines = []
    if "acceptance" in figures:
        found = figures["acceptance"]
        low, high = found["interval"]
        lines.append(
            f"Constraints accepted {found['accepted']} of {found['candidates']} candidates "
            f"({found['rate']:.1%}, 95 % interval {low:.1%} to {high:.1%})."
        )
    if "importance" in figures:
        found = figures["importance"]
        lines.append(
            f"Importance weights: the kept episodes weigh as {found['effective_kept']:.0f} draws from the declared "
            f"distributions, largest weight {found['largest_weight']:.2f}."
        )
    if "adaptive" in figures:
        found = figures["adaptive"]
        lines.append(f"Adaptive ranges after {found['rounds']} rounds: {_format_ranges(found['ranges'])}.")
    covered = figures["coverage"]
    if covered["pair_occupied"] is not None:
        lines.append(
            f"Coverage: {covered['pair_occupied']:.1%} of the cells of {covered['axes']} parameters taken in pairs "
            f"(independent draws: {covered['pair_expected']:.1%}). See `twinloop coverage`."
        )
    return lines


def coverage_page(coverage: Mapping[str, Any], history: Mapping[str, Any] | None, dataset: Path) -> ReportPage:
    """Return a page with plots and tables of the coverage."""
    kept, attempted = coverage["kept"], coverage["attempted"]
    page = ReportPage("Coverage of the parameter space", f"{dataset}, plan {coverage['plan_hash'][:12]}")
    page.key_metrics(_key_metrics(coverage))
    axes = coverage["axes"]
    names = [axis["name"] for axis in axes]
    page.section(
        "Each parameter",
        f"Every range is cut into {coverage['cells']['marginal']} equally probable cells. A share of 1 is the share "
        "that the declared distribution gives; paler cells have fewer attempted or kept episodes.",
    )
    ends = [
        f"{axis['range'][0]:.3g} … {axis['range'][1]:.3g} {axis['unit'].removesuffix('1')}".strip() for axis in axes
    ]
    counts = ([row["counts"] for row in part["marginals"]] for part in (kept, attempted))
    page.plot(marginal_rows(names, ends, *counts), "Move the pointer over a cell to see its counts.")
    if "pairs" in kept:
        _pairs_section(page, coverage, names)
    if history is not None:
        page.section(
            "Adaptive ranges",
            f"A boundary moves outwards if at least {history['thresholds'][1]:.0%} of its evaluations succeeded, and "
            f"inwards below {history['thresholds'][0]:.0%}; ranges change every {history['every']} episodes.",
        )
        page.plot(range_history(history), "Marks show the rounds in which a boundary had been evaluated often enough.")
    return page


def _pairs_section(page: ReportPage, coverage: Mapping[str, Any], names: list[str]) -> None:
    pairs = coverage["kept"]["pairs"]
    cells = coverage["cells"]["pair"]
    page.section(
        "Pairs of parameters",
        f"The fraction of {cells} × {cells} cells that contain a kept episode; independent draws would visit "
        f"{pairs['expected']:.1%}. {format_hole(pairs['hole'])}",
    )
    page.plot(pair_matrix(names, pairs["fractions"], pairs["expected_fractions"]))
    page.table(
        ["least covered pair", "", "visited", "expected"],
        [[*row["names"], f"{row['occupied']:.1%}", f"{row['expected']:.1%}"] for row in pairs["least"]],
    )


def _key_metrics(coverage: Mapping[str, Any]) -> list[KeyMetric]:
    short = summarize_coverage(coverage)
    figures = [
        KeyMetric(label="episodes kept", value=coverage["kept"]["episodes"]),
        KeyMetric(label="attempted", value=coverage["attempted"]["episodes"]),
        KeyMetric(label="axes", value=short["axes"], source="independent numbers per episode"),
    ]
    if short["pair_occupied"] is not None:
        expected = f"independent draws: {short['pair_expected']:.1%}"
        figures.append(KeyMetric(label="pair cells visited", value=f"{short['pair_occupied']:.1%}", source=expected))
    return figures


def _parameter_rows(coverage: Mapping[str, Any]) -> list[tuple[str, str, float, float, float, str, float]]:
    """Return name, range, share of cells with kept and with attempted episodes, expected share, and the widest gap."""
    rows = []
    parts = zip(coverage["axes"], coverage["kept"]["marginals"], coverage["attempted"]["marginals"], strict=True)
    for axis, kept, attempted in parts:
        low, high = axis["range"]
        gap = kept.get("gap")
        said = f"{gap['low']:.3g} to {gap['high']:.3g}" if gap and gap["width"] else ""
        rows.append(
            (
                axis["name"],
                f"{low:.3g} to {high:.3g} {axis['unit'].removesuffix('1')}".strip(),
                kept["occupied"],
                attempted["occupied"],
                kept["expected"],
                said,
                gap["width"] if gap else 0.0,
            )
        )
    return rows


_DEFAULT = "waypoints"


def resolve_clip(workspace: Workspace, like: str) -> tuple[str, int]:
    """Return the episode and the frame that ``EPISODE`` or ``EPISODE:FRAME`` names.

    An episode is the beginning of its id or ``BATCH:INDEX``, as for labels. A number after the name of a batch is an
    index, after anything else a frame.

    Raises:
        InputError, UnknownNameError: the text has another form, or there is no such episode.
    """
    head, colon, tail = like.rpartition(":")
    if colon and not tail.isdigit():
        raise InputError(
            f"--nearest {like}: {tail!r} is not a frame number. Write EPISODE or EPISODE:FRAME, such as {head}:60."
        )
    batch = workspace.query("SELECT 1 FROM places WHERE batch = ? LIMIT 1", [head]).num_rows
    name, frame = (head, int(tail)) if colon and not batch else (like, 0)
    return resolve_episodes(workspace, [name])[0], frame


def run_nearest_clips(request: CoverageRequest, like: str, console: Console) -> dict[str, Any]:
    """Print the clips nearest to the one that `resolve_clip` returns.

    With the default embedding, the encoder with the most stored clips is used.

    Raises:
        InputError, UnknownNameError: there are no embeddings, or no such clip.
    """
    embedding = request.sides.embedding
    with Workspace.open(request.sides.workspace) as workspace:
        episode, frame = resolve_clip(workspace, like)
        encoder_hash, encoder = choose_encoder(workspace, None if embedding == _DEFAULT else embedding)
        clips = len(open_clip_index(workspace, encoder_hash))
        began = time.perf_counter()
        found = find_nearest_clips(workspace, episode, frame, request.count, encoder_hash=encoder_hash)
        took = time.perf_counter() - began
        console.print(f"Nearest of {clips} clips embedded by {encoder}, found in {1e3 * took:.1f} ms:")
        rows = []
        for row in found:
            place = workspace.locate(row.episode_id)
            console.print(
                f"{row.distance:8.3g}  {row.episode_id}  frames {row.first_frame} to {row.last_frame}  (episode "
                f"{place.index} of {place.batch})",
                soft_wrap=True,
            )
            rows.append({**vars(row), "batch": place.batch, "episode_index": place.index})
    asked = {"like": like, "episode_id": episode, "frame": frame}
    return {"schema": 1, "verb": "coverage", **asked, "encoder": encoder, "clips": clips, "nearest": rows}


def run_coverage_of_reality(request: CoverageRequest, console: Console) -> Outcome:
    """Measure, print and store the coverage of reality.

    Raises:
        TwinloopError: the sides cannot be read or compared; the message states why.
    """
    sides = resolve_sides(request.sides)
    run = MeasuredRun.begin("coverage", "reality", request.output, request.fail_if, console)
    measured = measure(sides, request.projection)
    for line in text_lines(measured):
        console.print(line, soft_wrap=True)
    return run.end(
        result_to_json(measured),
        headlines(measured),
        title="Coverage of reality by simulation",
        subtitle=f"{measured.real.label} and {measured.sim.label}",
        fill=lambda page: coverage_sections(page, measured),
    )
