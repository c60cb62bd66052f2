"""The sections of a report that say where the error lives that no parameter explains."""

from __future__ import annotations

import numpy as np

from twinloop.gap.events import MEANINGS as EVENTS
from twinloop.gap.unexplained_places import Place
from twinloop.gap.unexplained_result import ALPHA as LEVEL
from twinloop.gap.unexplained_result import LEAST_SHARE, StateShare, Unexplained, percent, stands_out
from twinloop.gap.unexplained_states import MEANINGS as STATES
from twinloop.loop.gap_where import NestedModels
from twinloop.report import Report
from twinloop.report.gap_where import share_bars, share_forest

_MOST_ROWS = 24  # of a forest; the largest are shown, and the table has them all


def where_section(page: Report, found: Unexplained) -> None:
    """Shares, events, states, worst moments, and what to try first."""
    names = [channel.removeprefix("position/") for channel in found.channels]
    page.section(
        "What no parameter explains",
        f"The mean squared error of the {found.reference} twin by channel: what better parameters take away, what is "
        f"noise ({found.noise_source}), and what is left. Over {found.episodes} episodes.",
    )
    page.plot(
        share_bars(
            names,
            {
                "explained by parameters": np.maximum(found.explained.estimate, 0.0),
                "explained by nothing in the twin": found.unexplained.estimate,
                "noise": found.noise.estimate,
            },
        )
    )
    for sentence in found.sentences():
        page.text(sentence)
    rows = [[name, *_shares(found, i)] for i, name in enumerate(names)]
    page.table(
        ["channel", "error left (RMS)", "unit", "explained", "unexplained", "noise", "predictable from states"],
        rows,
        caption="In parentheses the 95 % interval over episodes. Predictable is the part of what is left that the "
        "states below predict on episodes that they were not fitted to: a better model could take away that much.",
    )
    if found.hints:
        page.table(
            ["channel", "where", "model term to try", "behind it", "evidence", "the test of it"],
            [
                [h.channel, h.rule.where, h.term, f"{h.share:.0%}", "; ".join(h.evidence), h.command()]
                for h in found.hints
            ],
            caption="What to try first, by rule; whether it is missing is for the command to say.",
        )
    _events(page, found)
    _states(page, found)
    _moments(page, found)


def nested_section(page: Report, nested: NestedModels) -> None:
    """What nested models said on episodes that they had not seen."""
    page.section("What nested models say", " ".join(nested.sentences()))
    page.table(
        ["structure", "physics", "error it takes away", "p (Holm)", "verdict"],
        [
            [r.name, r.meaning, f"{r.improvement:+.1%} ({r.low:+.1%} to {r.high:+.1%})", f"{r.p_value:.2g}", r.verdict]
            for r in nested.rows
        ],
        caption="; ".join(f"{name} was not compared: {why}" for name, why in nested.skipped.items()),
    )


def _shares(found: Unexplained, i: int) -> list[str]:
    rmse = [float(part[i]) for part in (found.rmse.estimate, found.rmse.low, found.rmse.high)]
    return [
        f"{rmse[0]:.3g} ({rmse[1]:.3g} to {rmse[2]:.3g})",
        found.units[i],
        percent(found.explained, i),
        percent(found.unexplained, i),
        percent(found.noise, i),
        percent(found.predicted, i),
    ]


def _events(page: Report, found: Unexplained) -> None:
    tested = [place for place in found.places if place.ratio is not None]
    if not tested:
        return
    tested.sort(key=lambda place: (not stands_out(place), -_ends(place)[0]))
    shown = tested[:_MOST_ROWS]
    page.section(
        "When it arises",
        f"New error per frame inside an event over that outside. {len(found.places)} events and channels and "
        f"{len(found.states)} states are tested together (Holm, {LEVEL:.0%}).",
    )
    ends = np.array([_ends(place) for place in shown])
    page.plot(
        share_forest(
            [f"{place.channel.removeprefix('position/')}: {place.event}" for place in shown],
            ends[:, 0],
            (ends[:, 1], ends[:, 2]),
            [stands_out(place) for place in shown],
            title="error per frame, inside over outside",
            null=1.0,
            words=[_words(place) for place in shown],
        )
    )


def _states(page: Report, found: Unexplained) -> None:
    if not found.states:
        return
    rows = sorted(found.states, key=lambda s: (not _stands_out(s), -float(s.share.estimate)))[:_MOST_ROWS]
    page.section(
        "What it depends on",
        "Of what parameters leave, the part that functions of a state predict on episodes that they were not fitted "
        "to; `linear` is the part of the whole residual that parameters a little off would explain.",
    )
    ends = 100 * np.array([[float(part) for part in (s.share.estimate, s.share.low, s.share.high)] for s in rows])
    page.plot(
        share_forest(
            [f"{s.channel.removeprefix('position/')}: {s.state}" for s in rows],
            ends[:, 0],
            (ends[:, 1], ends[:, 2]),
            [_stands_out(s) for s in rows],
            title="part of the power of what is left / %",
            null=0.0,
            words=[f"{STATES[s.state]}: {percent(s.share, 0)}, p {s.p_value:.2g}" for s in rows],
        )
    )


def _moments(page: Report, found: Unexplained) -> None:
    unit = dict(zip(found.channels, found.units, strict=True))
    page.table(
        ["channel", "episode", "time / s", "new error", "unit", "what happens then"],
        [
            [m.channel, m.episode, round(m.time, 2), m.error, unit[m.channel], ", ".join(m.events) or "–"]
            for m in found.moments
        ],
        caption="The moments at which most error arises, worst first.",
    )


def _ends(place: Place) -> tuple[float, float, float]:
    ratio = place.ratio
    return (0.0, 0.0, 0.0) if ratio is None else (float(ratio.estimate), float(ratio.low), float(ratio.high))


def _words(place: Place) -> str:
    ratio, low, high = _ends(place)
    held = "" if place.share is None else f", holds {percent(place.share, 0)} more of the error than its frames"
    return (
        f"{EVENTS[place.event]}: {ratio:.2f} times ({low:.2f} to {high:.2f}) in {place.frames:.0%} of the frames{held}"
        f", p {place.p_value:.2g}, {place.episodes} episodes"
    )


def _stands_out(state: StateShare) -> bool:
    return state.p_value <= LEVEL and float(state.share.estimate) >= LEAST_SHARE
