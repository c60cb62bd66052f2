"""The sections of a report that compare real with simulated pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.dataset.pictures import Pictures
from twinloop.gap.camera_remedy import Remedy
from twinloop.gap.picture_statistics import QUANTILES
from twinloop.gap.vision import VisionGap
from twinloop.gap.vision_difference import MEANINGS, Difference
from twinloop.gap.vision_regions import Regions
from twinloop.gap.vision_side import Side
from twinloop.render.sheet import contact_sheet
from twinloop.report import KeyFigure, Report
from twinloop.report.gap_vision import against_chance, episode_scores, telling_regions, tone_quantiles
from twinloop.report.page import Tone
from twinloop.stats import Interval

_SHEET = 4  # pictures of each side
ALPHA = 0.05


def vision_section(
    page: Report, gap: VisionGap, tones: Mapping[str, NDArray[np.float64]], again: Sequence[Pictures]
) -> None:
    """What both sides look like, how far apart they are, where it shows, and what would close it.

    Args:
        page: to add to.
        gap: what was measured.
        tones: mean quantiles of display values ``(3, q)`` by ``real``, ``sim`` and, with remedies, ``remedied``.
        again: the simulated pictures that were kept, with all remedies.
    """
    _summary(page, gap)
    _remedies(page, gap, tones)
    _regions(page, gap, again)
    _distances(page, gap)


def verdict(gap: VisionGap) -> str:
    """One sentence."""
    p, auc = gap.classifier.p_value, gap.classifier.auc
    share = f"A classifier tells held-out pictures apart with an AUC of {_said(auc)} (½ is chance)"
    share += ", and no test was asked for" if np.isnan(p) else f", p = {p:.2g}"
    if p > ALPHA:
        return f"{share}: no gap is shown with so many episodes, which does not say that there is none."
    named = f"; first to change: {remedy_text(gap.remedies[0])}" if gap.remedies else "; no camera parameter closes it"
    return f"{share}{named}."


def remedy_text(row: Remedy) -> str:
    """A parameter, its value now and the one to give it."""
    unit = f" {row.unit}" if row.unit else ""
    return f"{row.parameter}: {row.now:.4g} → {row.value:.4g} [{row.low:.4g}, {row.high:.4g}]{unit}"


def difference_row(row: Difference) -> list[str]:
    """A row of the table of statistics."""
    left = "" if math.isnan(row.remedied) else f"{row.remedied:+.3g}"
    return [row.name, row.unit, f"{row.real:.4g}", f"{row.sim:.4g}", _said(row.difference), f"{row.p_value:.2g}", left]


HEAD = ("statistic", "unit", "real", "simulated", "real − simulated, 95 %", "p (Holm)", "left with remedies")


def _summary(page: Report, gap: VisionGap) -> None:
    page.section(
        "How far simulated pictures are from real ones",
        f"{len(gap.real.embedding)} pictures of {len(gap.real.names)} real episodes and {len(gap.sim.embedding)} of "
        f"{len(gap.sim.names)} simulated ones, seen by the encoder {gap.encoder} ({gap.encoder_hash[:12]}, "
        f"{gap.dimension} numbers a picture). Episodes, not pictures, are what is counted: labels are exchanged and "
        f"samples drawn episode by episode. {verdict(gap)}",
    )
    differ = sum(row.p_value <= ALPHA for row in gap.differences)
    page.figures(
        [
            KeyFigure(
                label="AUC, held out", value=float(gap.classifier.auc.estimate), source=_ends(gap.classifier.auc)
            ),
            KeyFigure(label="MMD²", value=float(gap.mmd.distance.estimate), source=_ends(gap.mmd.distance)),
            KeyFigure(label="KID", value=float(gap.kid.distance.estimate), source=_ends(gap.kid.distance)),
            KeyFigure(label="statistics that differ", value=f"{differ} of {len(gap.differences)}"),
            KeyFigure(label="regions that tell", value=f"{gap.regions.telling} of {gap.regions.auc.size}"),
        ]
    )
    pictures = [*_some(gap.real.kept), *_some(gap.sim.kept)]
    labels = ["real"] * len(_some(gap.real.kept)) + ["simulated"] * len(_some(gap.sim.kept))
    page.image(contact_sheet(pictures, labels, columns=_SHEET), "Some of the pictures that were compared.")


def _remedies(page: Report, gap: VisionGap, tones: Mapping[str, NDArray[np.float64]]) -> None:
    page.section(
        "Which camera parameter would close it",
        "Simulated pictures are developed again by the sensor's own formulas with other values of the twin's camera, "
        "until colours, edges and noise are as in the real pictures. A parameter is named where its change differs "
        "from none and closes something; the one that closes most of MMD² comes first. Both sides must show the same "
        "scenes on average: what the scenes themselves differ in is put down to the camera too.",
    )
    if gap.remedies:
        rows = [
            [row.parameter, row.unit, f"{row.now:.4g}", f"{row.value:.4g}", f"{row.low:.4g} to {row.high:.4g}",
             "–" if math.isnan(row.share) else f"{row.share:.0%}", ", ".join(row.closes) or "–"]
            for row in gap.remedies
        ]  # fmt: skip
        page.table(["parameter", "unit", "now", "value", "95 %", "of MMD² closed", "statistics that it closes"], rows)
        if math.isfinite(gap.left):
            page.text(
                f"With all of them together {max(gap.left, 0.0):.0%} of MMD² remain, by pictures developed again."
            )
    else:
        page.text("None: no parameter of the camera brings the simulated pictures nearer beyond chance.")
    page.plot(
        tone_quantiles(QUANTILES, tones["real"], tones["sim"], tones.get("remedied")),
        "Tone by quantile matching: on the dotted line both sides are equally bright. A line through the origin of "
        "another slope is exposure or white balance, a bent one gamma or contrast, a shifted one brightness.",
    )
    marked: dict[tuple[int, int], Tone] = {
        (i, 5): "bad" for i, row in enumerate(gap.differences) if row.p_value <= ALPHA
    }
    page.table(HEAD, [difference_row(row) for row in gap.differences], tones=marked)
    page.text(" ".join(f"{name}: {meaning}." for name, meaning in MEANINGS.items()))


def _regions(page: Report, gap: VisionGap, again: Sequence[Pictures]) -> None:
    page.section(
        "Where it shows",
        "Each region is judged alone: a classifier that sees only that region learns from some episodes and is judged "
        "by others. Clear regions tell nothing, red ones give the simulation away; the same map lies over both "
        "pictures.",
    )
    for regions, sim, when in (
        (gap.regions, gap.sim.kept, ""),
        (gap.regions_left, again, " once all remedies are applied"),
    ):
        if regions is not None:
            middle = [_some(kept)[len(_some(kept)) // 2] for kept in (gap.real.kept, sim)]
            page.plot(
                telling_regions(middle, ["real", "simulated" + when], regions.apart, _hover(regions)),
                f"{regions.telling} of {regions.auc.size} regions tell beyond chance{when} (permuted episodes, Holm). "
                "Colour is the distance of scores in standard deviations, on a scale of its own.",
            )


def _distances(page: Report, gap: VisionGap) -> None:
    page.section(
        "Distances in the embedding",
        "MMD² and KID are zero on average where both sides come from one source, and may be negative by chance. "
        "Precision and density ask whether simulated pictures look like real ones, recall and coverage whether all of "
        "the real ones are there.",
    )
    distance = gap.mmd.distance
    page.plot(
        against_chance(
            float(distance.estimate), float(distance.low), float(distance.high), gap.mmd.relabelled, name="MMD²"
        ),
        f"p = {gap.mmd.p_value:.2g}.",
    )
    rows = [["MMD²", _said(distance), gap.mmd.p_value], ["KID", _said(gap.kid.distance), gap.kid.p_value]]
    rows += [["AUC of the classifier", _said(gap.classifier.auc), gap.classifier.p_value]]
    rows += [["accuracy of the classifier", _said(gap.classifier.accuracy), math.nan]]
    rows += [
        [name, _said(getattr(gap.neighbours, name)), math.nan]
        for name in ("precision", "recall", "density", "coverage")
    ]
    page.table(["figure", "estimate, 95 %", "p"], rows)
    count = len(gap.real.embedding)
    real, sim = (
        _by_episode(gap.classifier.scores[:count], gap.real),
        _by_episode(gap.classifier.scores[count:], gap.sim),
    )
    page.plot(
        episode_scores(real, sim, gap.real.names, gap.sim.names),
        "Mean score of each episode by a classifier that has not seen it.",
    )


def _by_episode(scores: NDArray[np.float64], side: Side) -> NDArray[np.float64]:
    """Mean score of each episode; pictures that no fold held out do not count."""
    _, number = np.unique(side.embedding.clusters, return_inverse=True)
    there = np.isfinite(scores)
    counts = np.bincount(number[there], minlength=number.max() + 1)
    return np.bincount(number[there], weights=scores[there], minlength=number.max() + 1) / np.maximum(counts, 1)


def _hover(regions: Regions) -> NDArray[np.str_]:
    words = [
        [
            f"AUC {regions.auc[y, x]:.2f} [{regions.low[y, x]:.2f}, {regions.high[y, x]:.2f}], "
            f"{regions.apart[y, x]:.1f} standard deviations apart, p {regions.p_value[y, x]:.2g}; most by "
            f"{regions.by[y][x]}"
            for x in range(regions.auc.shape[1])
        ]
        for y in range(regions.auc.shape[0])
    ]
    return np.array(words)


def _some(kept: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
    chosen = np.unique(np.linspace(0, len(kept) - 1, min(len(kept), _SHEET)).astype(int))
    return [kept[i][0] for i in chosen]


def _said(interval: Interval) -> str:
    estimate, low, high = (float(getattr(interval, end)) for end in ("estimate", "low", "high"))
    return "–" if math.isnan(estimate) else f"{estimate:.4g} [{low:.4g}, {high:.4g}]"


def _ends(interval: Interval) -> str:
    return f"95 %: {float(interval.low):.3g} to {float(interval.high):.3g}"
