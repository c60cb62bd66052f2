"""Describe suites as data: which conditions a policy is tried in; named ones, and anybody's from a file.

::

    name: cold_morning
    base: placement                 # what varies everywhere: placement, default (all of the twin's ranges), or none
    episodes: 50                    # of each slice
    declare:                        # parameters that the twin lacks and slices set
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
    pairs: ["actuator/*/delay", object/cube/mass]               # each two at all four ends; what matches moves as one

Names hold ``{object}`` and ``{hand}`` for the task's object and the body that carries the tool.
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
from twinloop.twin.spec import ParamSpec, describe

End = Literal["low", "high"]
ENDS: tuple[End, End] = ("low", "high")
# Characters of a slice's name: what a condition and a file of conditions can name.
Word = Annotated[str, Field(pattern=r"^[^\s<>=#]+$", max_length=200)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SliceSpec(_Strict):
    """One condition of a suite.

    ``set`` gives parameters (patterns: all that match) a value in SI or an end of their default range; ``draw`` is a
    randomization section on top of the suite's base. ``object`` replaces the shape of the task's object, ``scene`` adds
    things to the table, ``textures`` is a pool of procedural textures of which table and floor have one each, drawn.
    ``scenario`` is the folder of a pinned world, which says everything else. ``ends`` tells the axes of a pair and
    their ends, for the table of pairs. ``episodes`` replaces the suite's.
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
    def _one_way(self) -> Self:
        if self.scenario and (self.set or self.draw or self.object or self.scene):
            raise ValueError("a scenario says everything about its world; set nothing beside it")
        return self


class SuiteSpec(_Strict):
    """A suite as written; see the module. ``about`` is one sentence for people.

    ``lenient`` leaves out slices whose parameters the twin does not have instead of refusing them: what comes with
    twinloop fits more twins than one.
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
    def _says_something(self) -> Self:
        names = [item.name for item in self.slices]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two slices have the name {twice[0]}")
        if not (self.slices or self.axes or self.pairs or self.scenarios):
            raise ValueError("a suite has slices, axes, pairs or scenarios")
        if len(self.pairs) == 1:
            raise ValueError("one name makes no pair")
        return self

    @property
    def hash(self) -> str:
        """Names what is tried: the same hash, run seed and twin give the same worlds."""
        return sha256_json(self.model_dump(mode="json", exclude={"about"}))


def parse_suite(value: Any, *, where: str) -> SuiteSpec:
    """A checked suite from plain values; ``where`` names their origin in messages.

    Raises:
        InputError: what is wrong, by key.
    """
    if not isinstance(value, Mapping):
        raise InputError(
            f"{where} is no suite: a mapping with name and slices is expected. See docs/guides/evaluation.md."
        )
    try:
        return SuiteSpec.model_validate(value)
    except ValidationError as error:
        raise InputError(describe(error, where=where, model=SuiteSpec)) from error


def read_suite(path: Path) -> SuiteSpec:
    """The suite in a YAML file; named after the file where it names itself nowhere.

    Raises:
        InputError: no such file, no YAML, or no suite; names the key.
    """
    value = load_yaml(path)
    if isinstance(value, dict):
        value = {"name": path.stem, **value}
    return parse_suite(value, where=str(path))


_FILE = Path(__file__).with_name("suites.yaml")


@cache
def builtin_suites() -> dict[str, SuiteSpec]:
    """The suites that come with twinloop, by name."""
    rows = load_yaml(_FILE)
    return {
        name: parse_suite({"name": name, "lenient": True, **row}, where=f"{_FILE.name}: {name}")
        for name, row in rows.items()
    }


def open_suite(name: str) -> SuiteSpec:
    """The suite of that name, or the one in the YAML file of that path.

    Raises:
        UnknownNameError: neither.
        InputError: the file is no suite; names the key.
    """
    if name in builtin_suites():
        return builtin_suites()[name]
    if Path(name).suffix in (".yaml", ".yml"):
        return read_suite(Path(name))
    raise UnknownNameError("suite", name, builtin_suites(), where="the suites, and no YAML file")
