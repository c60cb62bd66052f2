"""Read and write an excitation plan: commands that move a robot so that its parameters can be identified.

``PLAN.yaml`` holds the rate, target robot, limits and expected standard errors. The commands are in ``PLAN.csv`` in the
same folder, one column per joint in rad or m (N·m or N for a torque-controlled robot). Their SHA-256 in the YAML file
links the two files.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from twinloop.core.documents import read_bytes
from twinloop.core.errors import InputError
from twinloop.core.files import sha256_bytes, write_bytes, write_text
from twinloop.core.plain import to_plain_value
from twinloop.core.records import freeze_fields
from twinloop.core.units import CommandKind
from twinloop.core.yaml_documents import load_yaml
from twinloop.hardware.limits import MotionLimits

Array = NDArray[np.float64]
SCHEMA = 1
_FILE_KEYS = {"tracking_error": "following", "provenance": "made"}  # keys in the file that differ from the fields
_MOST_BYTES = 256 << 20  # of the commands: one hour of six joints at 1 kHz


@dataclass(frozen=True, kw_only=True)
class ExcitationPlan:
    """Excitation plan: commands, limits, and the standard errors that are expected from a recording.

    Attributes:
        twin: name or file of its twin.
        twin_hash: hash of the twin's content.
        joints: joints in column order.
        control: kind of command.
        hz: commands per second.
        commands: ``(T, n)`` for T control steps and n joints, in SI units; starts and ends at ``home``.
        home: the command at rest, ``(n,)``.
        limits: limits that the commands respect.
        tracking_error: largest tracking error in simulations of this motion with several plausible sets of parameter
            values, ``(n,)`` in rad or m.
        repeat: number of recordings assumed for the expected standard errors.
        expected: per parameter, the standard errors expected before and after the recordings, and their unit.
        provenance: how the plan was computed: seed, design criterion and its value, and the shape of each segment of
            the motion.
    """

    twin: str
    twin_hash: str
    joints: tuple[str, ...]
    control: CommandKind
    hz: float
    commands: Array
    home: Array
    limits: MotionLimits
    tracking_error: Array
    repeat: int = 1
    expected: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    provenance: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        freeze_fields(self, "commands", "home", "tracking_error")

    @property
    def seconds(self) -> float:
        """Duration of one repetition of the commands in s."""
        return len(self.commands) / self.hz

    def command_peaks(self) -> dict[str, dict[str, float]]:
        """Return each joint's lowest and highest command and largest speed and acceleration, in SI units."""
        rate = np.diff(self.commands, axis=0) * self.hz
        change = np.diff(rate, axis=0) * self.hz
        return {
            joint: {
                "low": float(self.commands[:, j].min()),
                "high": float(self.commands[:, j].max()),
                "speed": float(np.abs(rate[:, j]).max(initial=0.0)),
                "acceleration": float(np.abs(change[:, j]).max(initial=0.0)),
            }
            for j, joint in enumerate(self.joints)
        }

    def require_within_limits(self, where: str) -> None:
        """Raise an error for commands outside the plan's limits. ``where`` is the plan's name in the message.

        Raises:
            InputError: If a command is outside its limits. The message names the joint and the limit.
        """
        limits, slack = self.limits, 1.0 + 1e-6
        for j, (joint, peak) in enumerate(self.command_peaks().items()):
            if peak["low"] < limits.low[j] - 1e-6 or peak["high"] > limits.high[j] + 1e-6:
                raise InputError(
                    f"{where} commands {joint} from {peak['low']:.3f} to {peak['high']:.3f}; its limits are "
                    f"{limits.low[j]:.3f} to {limits.high[j]:.3f}. Make the plan again."
                )
            if self.control == "position" and peak["speed"] > slack * limits.speed[j]:
                raise InputError(
                    f"{where} moves {joint} at {peak['speed']:.3f}/s; its limit is {limits.speed[j]:.3f}/s. Make the "
                    "plan again."
                )


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _LimitsFile(_Strict):
    low: list[float]
    high: list[float]
    speed: list[float]
    acceleration: list[float]
    torque: list[float]
    clearance: float = Field(gt=0)


class _PlanFile(_Strict):
    schema_: int = Field(alias="schema", ge=1, le=SCHEMA)
    kind: Literal["excitation"]
    twin: str
    twin_hash: str
    joints: list[str] = Field(min_length=1)
    control: CommandKind
    hz: float = Field(gt=0, allow_inf_nan=False)
    frames: int = Field(ge=2)
    seconds: float
    repeat: int = Field(ge=1)
    home: list[float]
    limits: _LimitsFile
    following: list[float]
    peaks: dict[str, dict[str, float]] = {}
    expected: dict[str, dict[str, Any]] = {}
    made: dict[str, Any] = {}
    commands: str
    sha256: str


def save_excitation(plan: ExcitationPlan, path: Path) -> None:
    """Write a plan to the YAML file ``path``, and its commands to a CSV file of the same name.

    Raises:
        InputError: If the name does not end in ``.yaml``, or a file exists.
    """
    require_plan_name(path)
    table = _format_csv(plan)
    value = {
        "schema": SCHEMA,
        "kind": "excitation",
        "twin": plan.twin,
        "twin_hash": plan.twin_hash,
        "joints": list(plan.joints),
        "control": plan.control,
        "hz": plan.hz,
        "frames": len(plan.commands),
        "seconds": plan.seconds,
        "repeat": plan.repeat,
        "home": plan.home.tolist(),
        "limits": to_plain_value(plan.limits),
        "following": plan.tracking_error.tolist(),
        "peaks": plan.command_peaks(),
        "expected": {name: dict(row) for name, row in plan.expected.items()},
        "made": dict(plan.provenance),
        "commands": path.with_suffix(".csv").name,
        "sha256": sha256_bytes(table),
    }
    write_bytes(path.with_suffix(".csv"), table)
    write_text(path, yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120))


def require_plan_name(path: Path) -> None:
    """Check that a plan's file can be written to ``path``, before a plan is computed.

    Raises:
        InputError: If the name does not end in ``.yaml``, or the file exists.
    """
    if path.suffix not in (".yaml", ".yml"):
        raise InputError(
            f"{path} is not a plan's file name. Use the suffix .yaml; the commands get the same name with .csv."
        )
    for each in (path, path.with_suffix(".csv")):
        if each.exists():
            raise InputError(f"{each} exists, and a log may belong to it. Choose another name, or move it away.")


def load_excitation(path: Path) -> ExcitationPlan:
    """Read a stored excitation plan from its YAML file.

    Raises:
        InputError: If a file is missing or not a plan, the file of the commands was changed after the plan was written
            (its SHA-256 differs), or a command is outside the plan's limits. The message describes the defect.
    """
    raw = load_yaml(path)
    if not isinstance(raw, Mapping):
        raise InputError(f"{path} is not an excitation plan: it is not a mapping. Make one with identify --plan.")
    try:
        value = _PlanFile.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(
            f"{path} is not an excitation plan: {place}: {first['msg']}. Make one with identify --plan --excitation."
        ) from error
    table = path.parent / value.commands
    if not table.is_file():
        raise InputError(
            f"{path} needs its commands {value.commands}, which are missing in the same folder. Keep both together."
        )
    data = read_bytes(table, _MOST_BYTES)
    if sha256_bytes(data) != value.sha256:
        raise InputError(f"{table} was changed after {path} was written: its SHA-256 differs. Make the plan again.")
    given: dict[str, Any] = {
        item.name: getattr(value, _FILE_KEYS.get(item.name, item.name)) for item in fields(ExcitationPlan)
    }
    given |= {"joints": tuple(value.joints), "limits": MotionLimits(**value.limits.model_dump())}
    given["commands"] = _read_csv(data, value.joints, table)
    plan = ExcitationPlan(**given)
    plan.require_within_limits(str(path))
    return plan


def _format_csv(plan: ExcitationPlan) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["time", *plan.joints])
    for frame, row in enumerate(plan.commands.tolist()):
        writer.writerow([repr(frame / plan.hz), *map(repr, row)])
    return text.getvalue().encode()


def _read_csv(data: bytes, joints: list[str], where: Path) -> Array:
    rows = list(csv.reader(io.StringIO(data.decode())))
    if rows[0] != ["time", *joints]:
        raise InputError(f"{where} has the columns {', '.join(rows[0])}; its plan has time, {', '.join(joints)}.")
    return np.array(rows[1:], dtype=np.float64)[:, 1:]
