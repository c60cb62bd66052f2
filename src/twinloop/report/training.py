"""The curves of a training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from twinloop.report.figure import BLUE, GREEN, GREY, INK, ORANGE, VIOLET, new_figure, set_layout

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_COLOURS = (ORANGE, BLUE, GREEN, VIOLET, GREY)
_HEIGHT = 320


def loss_curve(steps: Sequence[int], losses: Sequence[float]) -> Figure:
    """The mean training loss up to each of these steps, on a logarithmic axis."""
    figure = new_figure()
    figure.add_scatter(
        x=list(steps), y=list(losses), mode="lines+markers", marker={"size": 5}, line={"color": INK, "width": 1.6},
        hovertemplate="step %{x}: %{y:.4g}<extra></extra>",
    )  # fmt: skip
    figure.update_xaxes(title="step")
    figure.update_yaxes(title="training loss", type="log")
    set_layout(figure, height=_HEIGHT)
    return figure


def error_curves(steps: Sequence[int], errors: Mapping[str, Sequence[float]], *, unit: str, kept: int | None) -> Figure:
    """Held-out action error at each evaluation, a line per source.

    Args:
        steps: of the evaluations.
        errors: as many by source.
        unit: of the errors.
        kept: the step whose weights became the policy.
    """
    figure = new_figure()
    for place, (source, values) in enumerate(errors.items()):
        figure.add_scatter(
            x=list(steps), y=list(values), mode="lines+markers", name=source, marker={"size": 5},
            line={"color": _COLOURS[place % len(_COLOURS)], "width": 1.6},
            hovertemplate=f"{source}, step %{{x}}: %{{y:.4g}} {unit}<extra></extra>",
        )  # fmt: skip
    if kept is not None:
        figure.add_vline(x=kept, line={"color": GREY, "dash": "dot", "width": 1.4})
    figure.update_xaxes(title="step")
    figure.update_yaxes(title=f"error / {unit}", rangemode="tozero")
    set_layout(figure, height=_HEIGHT)
    return figure
