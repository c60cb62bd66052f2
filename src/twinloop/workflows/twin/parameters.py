"""A twin's parameters as a table, and the page of all: ``python -m twinloop.workflows.twin.parameters PAGE``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import mujoco
from rich.console import Console
from rich.table import Column, Table

from twinloop.checks import run_checks
from twinloop.core.engine_faults import ENGINE_FAULTS
from twinloop.core.files import write_text
from twinloop.twin import Param, Twin, builtin_names, load_twin
from twinloop.twin.compiling import solver_settings
from twinloop.twin.quantities import QUANTITIES, Quantity
from twinloop.workflows.twin.requests import TwinCheckRequest, TwinShowRequest

_FORM = ".4g"  # of numbers on the page
_WIDE = 140  # columns; in fewer a source has no room beside the figures


def show_twin(request: TwinShowRequest, console: Console) -> dict[str, Any]:
    """Print every parameter of a twin; returns them."""
    twin = load_twin(request.twin)
    table = Table(Column("parameter", no_wrap=True), "unit", "nominal", "bounds", "default range")
    sources = console.width >= _WIDE
    if sources:
        table.add_column("source")
    else:
        table.caption = f"--json has the source of every range too, and so has a window of {_WIDE} columns."
    for param in twin.params.values():
        bounds = f"{param.low:g} … {param.high:g}"
        cells = (param.name, param.unit, f"{param.nominal:.4g}", bounds, _range(param, "g"), param.source)
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


COMMAND = "python -m twinloop.workflows.twin.parameters docs/reference/parameters.md"

_HEAD = f"""# Parameters

Everything that can differ between two worlds, and what the built-in twins say of it. This page is written by
`{COMMAND}`; a test holds it to the code.

A parameter is declared in a twin's YAML by its path, `family/name/quantity`; `*` stands for every name that has the
quantity. All values are in SI units. `low` and `high` in the YAML may narrow the bounds below. A value outside its
bounds is an error. `range` with `op` (`absolute`, `scale`, `add`) is what a run draws unless it says otherwise; what
has none is declared for identification, scenarios and your own ranges. `twinloop twin show TWIN` prints a twin's own.

**Acts in** names the fields of the MuJoCo model that change, or the stage that consumes the value: `command` and
`drive` stand between a command and the motor, `clock` keeps the control period, `disturbance` pushes, `encoder` makes
the reading, `sensing` what cameras and other devices report, `reset` places things when an episode begins. *Pictures*
says that pictures change and motion does not, *also seen* that both do. What no world moves keeps the model's own bits.

## Conventions

- **Turns** follow the right-hand rule. `geom/table/rotation/x` > 0 raises the table's +y side,
  `geom/table/rotation/y` > 0 lowers its +x side; it turns about its own centre. With the turn's rotation matrix R,
  n = R ẑ and the plate's half height h, its upper face is z = z₀ + (h − n_x (x − x₀) − n_y (y − y₀)) / n_z, where
  (x₀, y₀, z₀) is the shape's centre after `geom/table/position`. Both turns together are one turn about the vector
  (x, y, z).
- **Gravity** turns the other way round the table: `world/gravity/tilt_x` > 0 makes things fall towards +y.
- **Bodies**: inertia is scaled through the second moments of mass S along the principal axes, I_xx = S_y + S_z, so that
  any factors leave a body that can exist. A size scales shapes, their places and the inertia, and leaves the mass and
  the sites. `com` of a free object and `payload` change what is compiled: they have to be declared in the YAML before
  the twin is loaded. A controller with `gravcomp` goes on compensating the nominal mass.
- **Contact**: with the time constant τ and damping ratio ζ of MuJoCo's `solref` (Modeling, "Solver parameters"),
  stiffness is 1 / (τ ζ)² and the restitution exp(−2 ζ arccos ζ / √(1 − ζ²)); at rest a body sinks in by
  g (1 − d) / stiffness, d the impedance of `solimp`. τ below two physics steps is refused. Of two shapes in contact
  the one of higher priority decides everything; the objects of the built-in twins have it. At equal priority the
  larger friction acts, and stiffness and damping are averages by `solmix`.
- **Wind** pushes only where the air has a density or a viscosity. Of scope `step` it is a schedule of gusts.
- **A link's flexibility** is a joint without a motor in the model, with `stiffness`, `damping` and `springref`.
- **Lights**: their number is how many are `active`. `luminous_intensity`, `radius`, `roughness` and `metallic` travel
  with every world and every episode's provenance; the classic renderer and the tracer ignore them.
"""


def parameters_page() -> str:
    """The whole page, as Markdown."""
    parts = [_HEAD, "## Quantities\n"]
    order = list(dict.fromkeys(kind.family for kind in QUANTITIES))
    kinds_in_order = sorted(QUANTITIES, key=lambda kind: order.index(kind.family))
    for family, kinds in groupby(kinds_in_order, key=lambda kind: kind.family):
        rows = [(f"`{k.path()}`", k.unit, _bounds(k.low, k.high), k.meaning, _acts_in(k)) for k in kinds]
        parts += [f"### {family}\n", _table(("path", "unit", "bounds", "meaning", "acts in"), rows)]
    parts.append("## Built-in twins\n")
    shown: dict[str, list[tuple[str, ...]]] = {}
    for name in builtin_names():
        twin = load_twin(name)
        rows = [_declared(list(group)) for _, group in groupby(twin.params.values(), key=_alike)]
        parts.append(_twin_section(twin, rows, shown))
        shown[name] = rows
    return "\n".join(parts)


def _twin_section(twin: Twin, rows: list[tuple[str, ...]], shown: dict[str, list[tuple[str, ...]]]) -> str:
    """Return a twin's table; for a twin based on another, only the differences."""
    head = f"### {twin.name}\n\n{twin.spec.description}.\n"
    for other, others in shown.items():
        own = [row for row in rows if row not in others]
        if 2 * len(own) < len(rows):
            head, rows = f"{head}\nAs `{other}`, but for:\n", own
    return f"{head}\n{_table(('parameter', 'unit', 'nominal', 'default range', 'source'), rows)}"


def _acts_in(kind: Quantity) -> str:
    if kind.stage != "model":
        return f"stage {kind.stage}"
    where = ", ".join(f"`{field}`" for field in kind.fields)
    return where + (" (pictures)" if kind.visual else " (also seen)" if kind.seen else "")


def _alike(param: Param) -> tuple[object, ...]:
    """What parameters have in common that share a line."""
    kind = param.quantity
    return kind.family, kind.quantity, kind.member, param.default_range, param.op, param.source


def _declared(group: Sequence[Param]) -> tuple[str, ...]:
    first = group[0]
    names = [param.target for param in group]
    target = names[0] if len(names) == 1 else "{" + ",".join(names) + "}"
    return f"`{first.quantity.path(target)}`", first.unit, _span(group), _range(first), first.source


def _span(group: Iterable[Param]) -> str:
    values = [param.nominal for param in group]
    low, high = min(values), max(values)
    return f"{low:{_FORM}}" if low == high else f"{low:{_FORM}} … {high:{_FORM}}"


def _range(param: Param, form: str = _FORM) -> str:
    if param.default_range is None:
        return "not drawn"
    return {"absolute": "", "scale": "× ", "add": "+ "}[param.op] + _bounds(*param.default_range, form)


def _bounds(low: float, high: float, form: str = _FORM) -> str:
    return f"[{low:{form}}, {high:{form}}]"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    write_text(Path(sys.argv[1]), parameters_page())


def check_twin(request: TwinCheckRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Check whether a twin holds up, and print each check; 1 where one fails."""
    report = run_checks(request.twin, progress=lambda check: console.print(check.line()))
    return report.to_json(), 0 if report.passed else 1
