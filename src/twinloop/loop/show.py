"""A twin's parameters as a table."""

from __future__ import annotations

from typing import Any

import mujoco
from rich.console import Console
from rich.table import Column, Table

from twinloop.core.engine_faults import ENGINE_FAULTS
from twinloop.twin import Param, load_twin
from twinloop.twin.compiling import solver_settings

_WIDE = 140  # columns; in fewer a source has no room beside the figures


def show_twin(reference: str, console: Console) -> dict[str, Any]:
    """Print every parameter of a twin; returns them."""
    twin = load_twin(reference)
    table = Table(Column("parameter", no_wrap=True), "unit", "nominal", "bounds", "default range")
    sources = console.width >= _WIDE
    if sources:
        table.add_column("source")
    else:
        table.caption = f"--json has the source of every range too, and so has a window of {_WIDE} columns."
    for param in twin.params.values():
        bounds = f"{param.low:g} … {param.high:g}"
        cells = (param.name, param.unit, f"{param.nominal:.4g}", bounds, _range(param), param.source)
        table.add_row(*(cells if sources else cells[:-1]))
    console.print(f"{twin.name} ({twin.hash[:12]}): {twin.spec.description}; {twin.control_hz:g} Hz × {twin.substeps}")
    settings = solver_settings(twin.model)
    for fault in ENGINE_FAULTS:
        if fault.name in settings.changed_for:
            console.print(
                f"The {settings.jacobian} {settings.solver} solver is used, whatever the model asks for: in MuJoCo "
                f"{mujoco.mj_versionString()} with the {fault.jacobian} Jacobian, {fault.effect} ({fault.source})."
            )
    console.print(table)
    rows = [
        {
            "name": param.name,
            "unit": param.unit,
            "nominal": param.nominal,
            "low": param.low,
            "high": param.high,
            "range": param.default_range,
            "op": param.op,
            "source": param.source,
        }
        for param in twin.params.values()
    ]
    return {
        "twin": twin.name,
        "hash": twin.hash,
        "control_hz": twin.control_hz,
        "solver": settings.to_json(),
        "params": rows,
    }


def _range(param: Param) -> str:
    if param.default_range is None:
        return "not drawn"
    low, high = param.default_range
    return {"absolute": "", "scale": "× ", "add": "+ "}[param.op] + f"[{low:g}, {high:g}]"
