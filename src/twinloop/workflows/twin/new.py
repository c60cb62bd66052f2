"""Write a commented twin YAML for a model, as a start for the user's own."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import mujoco
from rich.console import Console

from twinloop.core.errors import InputError
from twinloop.core.files import write_text
from twinloop.twin import Twin, load_twin
from twinloop.twin.load import MENAGERIE, MODEL_SUFFIXES, generic_params
from twinloop.twin.params import Param
from twinloop.workflows.twin.requests import TwinNewRequest

_COMMENT = 44  # column of the comments
_AROUND = 0.05  # m, half of the suggested range of a start position; our choice
_HEADING = 0.5  # rad, half of the suggested range of a start heading; our choice


def run_twin_new(request: TwinNewRequest, console: Console) -> dict[str, Any]:
    """Write the twin YAML of a model, and load it.

    Raises:
        InputError: If the file exists, the reference is not that of a model, or the model cannot be loaded.
    """
    if Path(request.model).suffix not in MODEL_SUFFIXES and not request.model.startswith(MENAGERIE):
        raise InputError(
            f"{request.model} is not a model. Give an MJCF or URDF file ({', '.join(sorted(MODEL_SUFFIXES))}), "
            f"package:NAME/PATH or {MENAGERIE}NAME. For a variant of a twin write a YAML file with `base: TWIN`."
        )
    twin = load_twin(request.model)
    output = request.output or Path(f"{twin.name}.yaml")
    if output.exists():
        raise InputError(f"{output} exists. Choose another --output, or move it.")
    output.parent.mkdir(parents=True, exist_ok=True)
    model = request.model
    if Path(model).is_file():
        model = Path(os.path.relpath(model, output.parent)).as_posix()
    write_text(output, format_twin(twin, model, output))
    made = load_twin(output)
    robot = f"{len(made.spec.robot.joints)} joints" if made.spec.robot else "no robot"
    console.print(f"{output}: {robot}, {len(made.params)} parameters.")
    console.print(f"Next: edit it, then twinloop twin check {output}", soft_wrap=True)
    return {"schema": 1, "verb": "twin", "kind": "new", "twin": str(output), "parameters": len(made.params)}


def format_twin(twin: Twin, model: str, file: Path) -> str:
    """Return the text of a twin YAML.

    Args:
        twin: The twin of the bare model.
        model: Reference to the model, as seen from the YAML file.
        file: Path of the YAML file, whose name is that of the twin.
    """
    compiled, spec, robot = twin.model, twin.spec, twin.spec.robot
    sites = [compiled.site(i).name for i in range(compiled.nsite) if compiled.site(i).name]
    cameras = [compiled.camera(i).name for i in range(compiled.ncam) if compiled.camera(i).name]
    step = f"{1e3 / (spec.control_hz * spec.substeps):.3g} ms"
    lines = [
        f"# A twin of {Path(model).name}.",
        f"# Check it with `twinloop twin check {file}`, and list its parameters with `twinloop twin show {file}`.",
        "schema: 1",
        f"name: {file.stem}",
        _comment(f"model: {model}", "from this folder, or package:NAME/PATH in a Python package"),
        _comment(f"control_hz: {spec.control_hz:g}", "commands per second, as in the robot's loop and its logs"),
        _comment(f"substeps: {spec.substeps}", f"physics steps per command, here of {step}"),
    ]
    if robot is not None:
        lines += [
            "robot:",
            _comment(f"  type: {robot.type}", "LeRobot's name of the robot"),
            f"  joints: [{', '.join(robot.joints)}]",
            *([f"  actuators: [{', '.join(robot.actuators)}]"] if robot.actuators else []),
            _comment(
                f"  units: [{', '.join(robot.units)}]", "in logs and datasets: rad, deg, m, mm, range_m100_100, …"
            ),
            _comment(f"  control: {robot.control}", "what commands are: position, velocity or torque"),
            _comment("  # tcp: SITE", f"site at the tool; the model has {', '.join(sites) or 'none'}"),
            _comment(
                "  # gripper: {joint: J, open: 1, closed: 0}", "joint of the gripper and its commands in rad or m"
            ),
            _comment("  # servo: PRESET", "measured servo; see docs/concepts/actuators.md"),
        ]
    else:
        lines.append("# robot: {type: NAME, joints: [], units: []}  # the model has no actuators on joints")
    lines += [
        _comment(f"# objects: [{', '.join(_free_bodies(twin))}]", "free bodies that tasks move, such as [cube, bin]"),
        _comment("# cameras: []", f"cameras that policies use; the model has {', '.join(cameras) or 'none'}"),
        "# Parameters that may vary, with the usual ranges. Give your own as `range: [low, high]` with `op: absolute`,",
        "# `scale` or `add`, and `source: why`. Remove the lines of parameters whose values are exact.",
        "params:",
        *_param_lines(twin),
        *_start_lines(twin),
    ]
    return "\n".join(lines) + "\n"


def _comment(text: str, comment: str) -> str:
    return f"{text:<{_COMMENT}}  # {comment}"


def _free_bodies(twin: Twin) -> dict[str, int]:
    """Return the index in qpos at which the pose of each named free body begins, by name."""
    model = twin.model
    free = [i for i in range(model.njnt) if model.jnt_type[i] == mujoco.mjtJoint.mjJNT_FREE]
    starts = {model.body(int(model.jnt_bodyid[i])).name: int(model.jnt_qposadr[i]) for i in free}
    return {name: start for name, start in starts.items() if name}


def _start_lines(twin: Twin) -> list[str]:
    """Return commented declarations with which each free body starts an episode in ranges around its place at home."""
    home, _ = twin.home()
    lines = []
    for name, start in _free_bodies(twin).items():
        x, y, _, w, _, _, z = home[start : start + 7]
        heading = math.remainder(2.0 * math.atan2(z, w), 2.0 * math.pi)
        for key, centre, half in (("position/x", x, _AROUND), ("position/y", y, _AROUND), ("yaw", heading, _HEADING)):
            limits = f"range: [{centre - half:.3g}, {centre + half:.3g}], op: absolute"
            lines.append(f'  # - {{name: "object/{name}/{key}", {limits}, source: "where people put it"}}')
    head = "  # Where objects start in an episode, in m and rad, world frame. Tasks place those that `objects:` names."
    return [head, *lines] if lines else []


def _param_lines(twin: Twin) -> list[str]:
    """Return one line for each usual declaration that the model has parameters of, with their values as a comment."""
    lines = []
    for row in generic_params():
        found = [param for param in twin.params.values() if param.quantity.path("*") == row["name"]]
        if not found:
            continue
        entries = ", ".join(f"{key}: {_quote(value)}" for key, value in row.items())
        lines.append(_comment(f"  - {{{entries}}}", _describe(found)))
    return lines


def _quote(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else f"{value}"


def _describe(params: list[Param]) -> str:
    low, high = min(param.nominal for param in params), max(param.nominal for param in params)
    nominal = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
    unit = f" {params[0].unit}" if params[0].unit not in ("", "1") else ""
    text = f"{len(params)} of nominal {nominal}{unit}"
    if (ends := params[0].default_range) is None:
        return text
    op = {"scale": "times ", "add": "plus ", "absolute": ""}[params[0].op]
    return f"{text}, range {op}[{ends[0]:.3g}, {ends[1]:.3g}]"
