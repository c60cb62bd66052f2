"""Read a suite, the list of conditions in which a policy is evaluated, from a YAML file or by its built-in name.

Each condition is an evaluation slice: fixed parameter values, random draws, another object or another scene. An
example:

::

    name: cold_morning
    base: placement                 # variation in all slices: placement, default (all of the twin's ranges), or none
    episodes: 50                    # per slice
    declare:                        # parameters that slices set and the twin does not have
      - {name: push/gripper/force, low: 0, high: 20, source: "a knock; our choice"}
    slices:
      - name: stiff
        set: {"joint/*/damping": high, object/cube/mass: 0.15}  # SI values, or one end (low, high) of the default range
      - name: slippery
        draw: {physics: {friction_coefficient: [0.2, 0.3]}}     # as randomization: in the YAML of twinloop generate
      - name: can
        object: {shape: cylinder, size: [0.03, 0.03, 0.04]}     # the task's object has this shape
      - name: mess
        scene: {sets: …, clutter: …}                            # as a twin's scene section
    axes: ["joint/*/damping"]       # two slices for every matching parameter: low and high end of its default range
    pairs: ["actuator/*/delay", object/cube/mass]  # four slices for every two names: all combinations of low and high
                                                   # ends; all parameters that match one name change together

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
# A slice's name excludes white space, the operators of a condition (<, >, =), and #, which separates the trial number.
Word = Annotated[str, Field(pattern=r"^[^\s<>=#]+$", max_length=200)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SliceSpec(_Strict):
    """One evaluation slice (one condition of a suite) as written in YAML.

    Attributes:
        name: Name of the slice, unique in the suite.
        set: Fixed parameter values by parameter name or pattern; a pattern sets all matching parameters. A value is a
            number in SI units, or ``"low"`` or ``"high"`` for that end of the parameter's default range.
        draw: Ranges to draw from, in addition to the suite's ``base``, as in the section ``randomization:`` of a
            generate file, for example ``{"physics": {"friction_coefficient": [0.2, 0.3]}}``.
        object: Shape that replaces the shape of the task's object.
        scene: Scene section as in a twin's YAML: permanent objects and random clutter on the table.
        scenario: Folder of a stored scenario. It defines the whole world, so set, draw, object and scene must be empty.
        ends: ``"low"`` or ``"high"`` by parameter name or pattern, for the table of results. Twinloop sets it in the
            slices that it makes from ``axes`` and ``pairs`` of `SuiteSpec`; users leave it empty.
        episodes: Number of trials; by default that of the suite.
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
    """A suite (the conditions in which policies are evaluated) as written in YAML; the module has an example.

    Attributes:
        name: Name of the suite.
        about: Description in one sentence.
        base: Parameters that vary in every slice: ``"placement"`` for the initial positions of objects, which the
            task's reset draws, ``"default"`` for all with a default range, ``"none"`` for none.
        episodes: Number of trials per slice.
        declare: Parameters that slices set and the twin does not have.
        slices: The evaluation slices.
        axes: Parameter names or patterns; each matching parameter gives two slices, at the low and high end of its
            default range.
        pairs: Two or more parameter names or patterns; each two of them give four slices, at all combinations of their
            ends.
        scenarios: Pattern of the names of stored scenarios; each matching scenario gives one slice.
        lenient: If true, a slice whose parameters the twin does not have is left out instead of raising an error.
            Built-in suites are lenient, because they are used with several twins.
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
            raise ValueError("the suite is empty: give it slices, axes, pairs or scenarios")
        if len(self.pairs) == 1:
            raise ValueError("pairs needs at least two names")
        return self

    @property
    def hash(self) -> str:
        """SHA-256 of the suite's content, excluding ``about``.

        Runs with the same hash, run seed and twin have the same worlds.
        """
        return sha256_json(self.model_dump(mode="json", exclude={"about"}))


def parse_suite(value: Any, *, where: str) -> SuiteSpec:
    """Check the content of a suite file that was loaded as dicts and lists, and return the suite.

    Args:
        value: The loaded content, a mapping.
        where: Name of its origin (file and key) for error messages.

    Raises:
        InputError: If a value is invalid; the message names its key.
    """
    if not isinstance(value, Mapping):
        raise InputError(f"{where} is not a suite. Give a mapping with name and slices; see docs/guides/evaluation.md.")
    try:
        return SuiteSpec.model_validate(value)
    except ValidationError as error:
        raise InputError(describe_errors(error, where=where, model=SuiteSpec)) from error


def read_suite(path: Path) -> SuiteSpec:
    """Read a suite from a YAML file; a file without the key ``name`` gives a suite with the file's name.

    Raises:
        InputError: If the file does not exist, is not YAML or is not a valid suite; the message names the key.
    """
    value = load_yaml(path)
    if isinstance(value, dict):
        value = {"name": path.stem, **value}
    return parse_suite(value, where=str(path))


_FILE = Path(__file__).with_name("suites.yaml")


@cache
def builtin_suites() -> dict[str, SuiteSpec]:
    """Return the suites that are part of twinloop, by name."""
    rows = load_yaml(_FILE)
    return {
        name: parse_suite({"name": name, "lenient": True, **row}, where=f"{_FILE.name}: {name}")
        for name, row in rows.items()
    }


def open_suite(name: str) -> SuiteSpec:
    """Return a suite by the name of a built-in suite or by the path of a YAML file.

    Raises:
        UnknownNameError: If ``name`` is neither a built-in suite nor a path that ends in .yaml or .yml.
        InputError: If the file does not exist or is not a valid suite; the message names the key.
    """
    if name in builtin_suites():
        return builtin_suites()[name]
    if Path(name).suffix in (".yaml", ".yml"):
        return read_suite(Path(name))
    raise UnknownNameError("suite", name, builtin_suites(), where="the suites, and no YAML file")
