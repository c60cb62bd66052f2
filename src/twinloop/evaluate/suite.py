"""Suites as data: the conditions in which a policy is evaluated, built-in or from a YAML file.

::

    name: cold_morning
    base: placement                 # variation in all slices: placement, default (all of the twin's ranges), or none
    episodes: 50                    # per slice
    declare:                        # parameters that slices set and the twin does not have
      - {name: push/gripper/force, low: 0, high: 20, source: "a knock; our choice"}
    slices:
      - name: stiff
        set: {"joint/*/damping": high, object/cube/mass: 0.15}  # SI values, or an end of the default range
      - name: slippery
        draw: {physics: {friction_coefficient: [0.2, 0.3]}}     # as the randomization section of a generate file
      - name: can
        object: {shape: cylinder, size: [0.03, 0.03, 0.04]}     # the task's object has this shape
      - name: mess
        scene: {sets: …, clutter: …}                            # as a twin's scene section
    axes: ["joint/*/damping"]       # every parameter that matches, at both ends of its default range: two slices each
    pairs: ["actuator/*/delay", object/cube/mass]               # each two at all four ends; all matches change together

In names, ``{object}`` is the task's object and ``{hand}`` the body that carries the tool.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.files import sha256_json
from twinloop.core.yaml_documents import load_yaml
from twinloop.twin.scene_spec import SceneSpec, ShapeSpec
from twinloop.twin.spec import ParamSpec, describe_errors

End = Literal["low", "high"]
ENDS: tuple[End, End] = ("low", "high")
# Characters of a slice's name: those that a condition and a file of conditions allow.
Word = Annotated[str, Field(pattern=r"^[^\s<>=#]+$", max_length=200)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SliceSpec(_Strict):
    """One condition of a suite.

    ``set`` gives parameters (patterns: all that match) a value in SI or an end of their default range. ``draw`` is a
    randomization section in addition to the suite's base. ``object`` replaces the shape of the task's object. ``scene``
    adds objects to the table. ``textures`` is a pool of procedural textures from which table and floor each get a
    random one. ``scenario`` is the folder of a stored scenario, which defines the whole world. ``ends`` has the axes of
    a pair and their ends, for the table of pairs. ``episodes`` replaces the suite's.
    """

    name: Word
    set: dict[str, float | End] = {}
    draw: dict[str, Any] = {}
    object: ShapeSpec | None = None
    scene: SceneSpec | None = None
    scenario: str = ""
    ends: dict[str, End] = {}
    episodes: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _check_scenario_alone(self) -> Self:
        if self.scenario and (self.set or self.draw or self.object or self.scene):
            raise ValueError("a scenario defines its whole world; leave out set, draw, object and scene")
        return self


class SuiteSpec(_Strict):
    """A suite as written in YAML; see the module. ``about`` is one sentence for people.

    ``lenient`` leaves out slices whose parameters the twin does not have, instead of raising an error: the built-in
    suites are for several twins.
    """

    name: Word
    about: str = ""
    base: Literal["placement", "default", "none"] = "placement"
    episodes: int = Field(default=20, ge=1)
    declare: list[ParamSpec] = []
    slices: list[SliceSpec] = []
    axes: list[str] = []
    pairs: list[str] = []
    scenarios: str = ""
    lenient: bool = False

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        names = [item.name for item in self.slices]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two slices have the name {twice[0]}")
        if not (self.slices or self.axes or self.pairs or self.scenarios):
            raise ValueError("a suite has slices, axes, pairs or scenarios")
        if len(self.pairs) == 1:
            raise ValueError("pairs needs at least two names")
        return self

    @property
    def hash(self) -> str:
        """Hash of the suite's content: the same hash, run seed and twin give the same worlds."""
        return sha256_json(self.model_dump(mode="json", exclude={"about"}))


def parse_suite(value: Any, *, where: str) -> SuiteSpec:
    """Return a checked suite from plain values; ``where`` names their origin in messages.

    Raises:
        InputError: a value is wrong; the message has its key.
    """
    if not isinstance(value, Mapping):
        raise InputError(f"{where} is not a suite. Give a mapping with name and slices; see docs/guides/evaluation.md.")
    try:
        return SuiteSpec.model_validate(value)
    except ValidationError as error:
        raise InputError(describe_errors(error, where=where, model=SuiteSpec)) from error


def read_suite(path: Path) -> SuiteSpec:
    """Return the suite in a YAML file; without ``name`` it has the name of the file.

    Raises:
        InputError: the file does not exist, is not YAML, or is not a suite; the message has the key.
    """
    value = load_yaml(path)
    if isinstance(value, dict):
        value = {"name": path.stem, **value}
    return parse_suite(value, where=str(path))


_FILE = Path(__file__).with_name("suites.yaml")


@cache
def builtin_suites() -> dict[str, SuiteSpec]:
    """Return the built-in suites, by name."""
    rows = load_yaml(_FILE)
    return {
        name: parse_suite({"name": name, "lenient": True, **row}, where=f"{_FILE.name}: {name}")
        for name, row in rows.items()
    }


def open_suite(name: str) -> SuiteSpec:
    """Return the built-in suite with this name, or the suite in the YAML file with this path.

    Raises:
        UnknownNameError: it is neither.
        InputError: the file is not a suite; the message has the key.
    """
    if name in builtin_suites():
        return builtin_suites()[name]
    if Path(name).suffix in (".yaml", ".yml"):
        return read_suite(Path(name))
    raise UnknownNameError("suite", name, builtin_suites(), where="the suites, and no YAML file")
