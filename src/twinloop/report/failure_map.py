"""A map of failures over two parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.report.figure import new_figure, set_layout


def failure_map(odds: NDArray[np.float64], axes: Sequence[str]) -> Any:
    """Cells by how improbable their most probable failure is; NaN cells stay empty.

    Args:
        odds: ``(n, n)``, first axis along x.
        axes: names of both.
    """
    figure, count = new_figure(), len(odds)
    places = [f"{100 * i // count}–{100 * (i + 1) // count} %" for i in range(count)]
    text = np.where(np.isnan(odds.T), "", np.char.mod("%.1f", np.nan_to_num(odds.T)))
    figure.add_heatmap(
        x=places,
        y=places,
        z=odds.T,
        text=text,
        texttemplate="%{text}",
        colorscale="OrRd_r",
        colorbar={"title": "½ z²"},
        hoverongaps=False,
    )
    figure.update_xaxes(title=f"{axes[0]}, quantile")
    figure.update_yaxes(title=f"{axes[1]}, quantile")
    set_layout(figure, height=460)
    return figure
