"""Run ``twinloop coverage``: measure the coverage of reality or of the parameter space, or find similar clips.

A clip is a part of an episode of fixed length.
"""

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
from twinloop.report.coverage import plot_marginal_rows, plot_pair_matrix, plot_range_history
from twinloop.workflows.coverage.measured import headlines, measure, resolve_sides
from twinloop.workflows.coverage.page import coverage_sections
from twinloop.workflows.coverage.requests import CoverageRequest
from twinloop.workflows.coverage.result_text import result_to_json, text_lines
from twinloop.workflows.run.results import MeasuredRun, Outcome

_ROWS = 20  # printed parameters, least covered first; the page and the JSON have all


def run_coverage(request: CoverageRequest, console: Console) -> dict[str, Any] | Outcome:
    """Measure how well simulation covers reality or a parameter space, or print the clips nearest to a given clip.

    The coverage of reality is the share of real clips that have a simulated clip nearby. The coverage of the parameter
    space of one dataset is the share of the cells of two parameters that contain episodes.

    Raises:
        InputError: If a dataset for its own parameter space is given together with real or simulated episodes to
            compare.
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
    """Measure and print how well a generated dataset covers its parameter space; write a page if requested.

    Raises:
        InputError: If the dataset was not generated from a randomization, or no parameter was randomized.
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
    result = {"schema": 1, "verb": "coverage", "dataset": str(dataset), **coverage, "adaptive": history}
    if request.output is not None:
        page = coverage_page(coverage, history, dataset)
        result["output"] = str(page.write(request.output))
        console.print(f"Page: {request.output}")
    return result


def coverage_table(coverage: Mapping[str, Any]) -> Table:
    """Return a table of the 20 parameters whose range is covered least.

    Args:
        coverage: result of `dataset_coverage`.
    """
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
    """Return sentences on the coverage of parameter pairs, on empty regions of their ranges, and on adaptive ranges.

    Args:
        coverage: result of `dataset_coverage`.
        history: result of `dataset_history`; None if the ranges were not adaptive.
    """
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
    """Return a sentence on the largest region of two parameters in which no episode of the dataset is.

    Args:
        hole: the region, from `dataset_coverage`; None if there is none.
    """
    if hole is None:
        return "No pair of parameters has an empty cell."
    spans = " and ".join(
        f"{name} in [{low:.4g}, {high:.4g}]"
        for name, low, high in zip(hole["names"], hole["low"], hole["high"], strict=True)
    )
    by_chance = hole["by_chance"]
    number = f"{float(f'{by_chance:.2g}'):g}" if by_chance >= _RARE else f"fewer than {_RARE:g}"
    return (
        f"Largest hole: {spans}, {hole['probability']:.0%} of that pair; independent draws would leave "
        f"{number} such holes in all pairs."
    )


_RARE = 0.001  # an expected number below it is printed as such


def format_draws(result: Mapping[str, Any]) -> list[str]:
    """Return sentences on the draws of a generate run: acceptance, effective sample size, adaptive ranges, coverage.

    Args:
        result: result of the run.
    """
    lines = []
    if "acceptance" in result:
        found = result["acceptance"]
        low, high = found["interval"]
        lines.append(
            f"Constraints accepted {found['accepted']} of {found['candidates']} candidates "
            f"({found['rate']:.1%}, 95 % interval {low:.1%} to {high:.1%})."
        )
    if "importance" in result:
        found = result["importance"]
        lines.append(
            f"Importance weights: the kept episodes weigh as {found['effective_kept']:.0f} draws from the declared "
            f"distributions, largest weight {found['largest_weight']:.2f}."
        )
    if "adaptive" in result:
        found = result["adaptive"]
        lines.append(f"Adaptive ranges after {found['rounds']} rounds: {_format_ranges(found['ranges'])}.")
    covered = result["coverage"]
    if covered["pair_occupied"] is not None:
        lines.append(
            f"Coverage: {covered['pair_occupied']:.1%} of the cells of {covered['axes']} parameters taken in pairs "
            f"(independent draws: {covered['pair_expected']:.1%}). See `twinloop coverage`."
        )
    return lines


def coverage_page(coverage: Mapping[str, Any], history: Mapping[str, Any] | None, dataset: Path) -> ReportPage:
    """Return a page with plots and tables of a dataset's coverage of its parameter space.

    Args:
        coverage: result of `dataset_coverage`.
        history: result of `dataset_history`; None if the ranges were not adaptive.
        dataset: folder of the dataset.
    """
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
    page.plot(plot_marginal_rows(names, ends, *counts), "Move the pointer over a cell to see its counts.")
    if "pairs" in kept:
        _pairs_section(page, coverage, names)
    if history is not None:
        page.section(
            "Adaptive ranges",
            f"A boundary moves outwards if at least {history['thresholds'][1]:.0%} of its evaluations succeeded, and "
            f"inwards below {history['thresholds'][0]:.0%}; ranges change every {history['every']} episodes.",
        )
        page.plot(
            plot_range_history(history), "Marks show the rounds in which a boundary had been evaluated often enough."
        )
    return page


def _pairs_section(page: ReportPage, coverage: Mapping[str, Any], names: list[str]) -> None:
    pairs = coverage["kept"]["pairs"]
    cells = coverage["cells"]["pair"]
    page.section(
        "Pairs of parameters",
        f"The fraction of {cells} × {cells} cells that contain a kept episode; independent draws would visit "
        f"{pairs['expected']:.1%}. {format_hole(pairs['hole'])}",
    )
    page.plot(plot_pair_matrix(names, pairs["fractions"], pairs["expected_fractions"]))
    page.table(
        ["least covered pair", "", "visited", "expected"],
        [[*row["names"], f"{row['occupied']:.1%}", f"{row['expected']:.1%}"] for row in pairs["least"]],
    )


def _key_metrics(coverage: Mapping[str, Any]) -> list[KeyMetric]:
    short = summarize_coverage(coverage)
    result = [
        KeyMetric(label="episodes kept", value=coverage["kept"]["episodes"]),
        KeyMetric(label="attempted", value=coverage["attempted"]["episodes"]),
        KeyMetric(label="axes", value=short["axes"], source="independent numbers per episode"),
    ]
    if short["pair_occupied"] is not None:
        expected = f"independent draws: {short['pair_expected']:.1%}"
        result.append(KeyMetric(label="pair cells visited", value=f"{short['pair_occupied']:.1%}", source=expected))
    return result


def _parameter_rows(coverage: Mapping[str, Any]) -> list[tuple[str, str, float, float, float, str, float]]:
    """Return one row per parameter for `coverage_table`.

    Returns:
        Name, range as text, share of cells with kept episodes, share with attempted episodes, share expected from
        independent draws, widest gap between kept episodes as text, and its width.
    """
    rows = []
    parts = zip(coverage["axes"], coverage["kept"]["marginals"], coverage["attempted"]["marginals"], strict=True)
    for axis, kept, attempted in parts:
        low, high = axis["range"]
        gap = kept.get("gap")
        gap_text = f"{gap['low']:.3g} to {gap['high']:.3g}" if gap and gap["width"] else ""
        rows.append(
            (
                axis["name"],
                f"{low:.3g} to {high:.3g} {axis['unit'].removesuffix('1')}".strip(),
                kept["occupied"],
                attempted["occupied"],
                kept["expected"],
                gap_text,
                gap["width"] if gap else 0.0,
            )
        )
    return rows


_DEFAULT = "waypoints"


def resolve_clip(workspace: Workspace, clip: str) -> tuple[str, int]:
    """Return the episode id and the frame that a text ``EPISODE`` or ``EPISODE:FRAME`` names; the default frame is 0.

    ``EPISODE`` is the beginning of an episode's id. An episode may also be given as ``BATCH:INDEX``, with the name of a
    batch (a dataset folder in the workspace) and the index in it; its frame is 0.

    Raises:
        InputError: If the text has another form.
        UnknownNameError: If there is no such episode.
    """
    head, colon, tail = clip.rpartition(":")
    if colon and not tail.isdigit():
        raise InputError(
            f"--nearest {clip}: {tail!r} is not a frame number. Write EPISODE or EPISODE:FRAME, such as {head}:60."
        )
    batch = workspace.query("SELECT 1 FROM places WHERE batch = ? LIMIT 1", [head]).num_rows
    name, frame = (head, int(tail)) if colon and not batch else (clip, 0)
    return resolve_episodes(workspace, [name])[0], frame


def run_nearest_clips(request: CoverageRequest, clip: str, console: Console) -> dict[str, Any]:
    """Print the clips of a workspace nearest to a given clip, by the distance of their embeddings.

    The option ``embedding`` names the encoder that computed the embeddings. If it has its default value, the encoder
    with the most embedded clips in the workspace is used.

    Args:
        request: the options.
        clip: the given clip, as `resolve_clip` reads it.
        console: output for people.

    Raises:
        InputError: If the workspace has no embeddings, or the clip is given in another form.
        UnknownNameError: If there is no such episode.
    """
    embedding = request.sides.embedding
    with Workspace.open(request.sides.workspace) as workspace:
        episode, frame = resolve_clip(workspace, clip)
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
    given = {"like": clip, "episode_id": episode, "frame": frame}
    return {"schema": 1, "verb": "coverage", **given, "encoder": encoder, "clips": clips, "nearest": rows}


def run_coverage_of_reality(request: CoverageRequest, console: Console) -> Outcome:
    """Measure, print and store how much of reality the simulated episodes cover.

    Raises:
        TwinloopError: If the sides cannot be read or compared; the message states why.
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
