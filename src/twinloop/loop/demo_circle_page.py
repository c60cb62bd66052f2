"""What the report of the demo says of its second half: transfer, one failure before and after, the gate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.hardware.hidden_cell import HiddenCell, hidden_cell
from twinloop.loop.demo_circle import SecondHalf, gate_words
from twinloop.loop.virtual_robots.settings import FIRST_ROBOT, PICTURES, TWIN
from twinloop.loop.virtual_robots.trials import policy_actor, run_trials
from twinloop.render import contact_sheet
from twinloop.report import KeyFigure, Report
from twinloop.report.gap_comparison import interval_rows
from twinloop.rollout.photographer import Photographer
from twinloop.twin import load_twin

TRAINED_ON = {
    "nominal": "the nominal twin",
    "posterior": "what a log of the robot says",
    "after": "that and around a failure",
}
_MOMENTS, _SIZE = 6, (180, 240)


def transfer_figure(half: SecondHalf) -> KeyFigure | None:
    """Success on the robot from the first policy to the last, for the head of the page."""
    rates = half.to_json()["success"]
    if not rates:
        return None
    trials = next(iter(rates.values()))["trials"]
    return KeyFigure(
        label="success on a virtual robot",
        value=" → ".join(f"{rate['rate']:.0%}" for rate in rates.values()),
        unit="trained on: nominal twin → its log → a failure",
        source=f"virtual robot {FIRST_ROBOT}, the same {trials} places",
    )


def circle_section(page: Report, half: SecondHalf, pictures: NDArray[np.uint8] | None) -> None:
    """The circle closing: transfer before and after, one failure, what was made of it, and the gate."""
    rates = half.to_json()["success"]
    trials = next(iter(rates.values()))["trials"]
    page.section(
        "Round the circle, on a virtual robot",
        f"Virtual robot {FIRST_ROBOT} has hidden parameters and effects that no twin here has. It is the one of ten on "
        "which the nominal twin serves worst; docs/transfer.md has the others. Each policy was tried there at the same "
        f"{trials} places; intervals are exact, 95 %.",
    )
    page.plot(
        interval_rows(
            [f"trained on {TRAINED_ON[name]}" for name in rates],
            *([100 * rate[key] for rate in rates.values()] for key in ("rate", "low", "high")),
            title="success on the robot, %",
        )
    )
    if not half.scenario:
        page.text("The policy did not fail in these trials, so that there was nothing to mend.")
        return
    closed = half.scenario.get("expected") or half.scenario["open_loop"]
    page.section(
        "A failure, and what became of it",
        "One trial that failed on the robot was rebuilt in the twin with identified parameters, where it fails again "
        f"in {closed['failures']} of {closed['trials']} worlds like it. It is kept as {half.scenario['scenario']}; "
        "demonstrations around it were generated, and the policy was trained on with them.",
    )
    if pictures is not None:
        page.image(pictures, "That trial on the virtual robot, before and after.")
    page.table(
        ["the same trials in the twin", "before, %", "after, %", "gained", "lost"],
        [_change(one) for one in half.circle.get("changes", ())],
    )
    page.table(
        ["gate", "verdict", "reason"],
        [[one["rule"], one["verdict"], one["reason"]] for one in half.gate.get("rules", ())],
        caption=gate_words(half),
    )


def before_and_after(number: int, policies: dict[str, Path]) -> NDArray[np.uint8]:
    """Pictures of one place on the robot, a row per policy.

    Args:
        number: of the place.
        policies: folders by what a row is called.
    """
    cell, sheet, labels = hidden_cell(load_twin(TWIN), FIRST_ROBOT), list[NDArray[np.uint8]](), list[str]()
    for name, folder in policies.items():
        frames, times, success = _frames(cell, number, folder)
        sheet += list(frames)
        labels += [f"{name}, {time:.1f} s" for time in times]
        labels[-1] = f"{name}: {'success' if success else 'failure'}"
    return contact_sheet(sheet, labels, columns=_MOMENTS)


def _frames(cell: HiddenCell, number: int, folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.float64], bool]:
    batch = run_trials(cell, [number], policy_actor(cell, folder))
    states = batch.trajectories.states[0]
    at = np.linspace(0, len(states) - 1, _MOMENTS).round().astype(int)
    photographer = Photographer(cell.twin, PICTURES[:1], height=_SIZE[0], width=_SIZE[1])
    try:
        pictures = photographer.pictures(states[at], batch.params.take([0] * _MOMENTS))
    finally:
        photographer.close()
    return pictures[PICTURES[0]], at / batch.twin.control_hz, bool(batch.success[0])


def _change(one: Mapping[str, Any]) -> list[Any]:
    rates = [round(100 * float(one[side]["estimate"])) for side in ("before", "after")]
    return [one["name"], *rates, one["gained"], one["lost"]]
