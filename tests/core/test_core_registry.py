"""Registries: names built in, offered by installed packages, and in users' files, each kind through one door."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import mujoco
import pytest

from twinloop.checks import CHECKS, run_checks
from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.core.registry import Registry
from twinloop.curate.registry import CHECKS as CHECKS_OF_EPISODES
from twinloop.curate.registry import open_checks
from twinloop.dataset.export.formats import EXPORTERS, exporter
from twinloop.dataset.logs.formats import IMPORTERS, list_importers
from twinloop.dataset.logs.sets.public_sets import SETS
from twinloop.encoders.clips import CLIP_ENCODERS, open_clip_encoder
from twinloop.encoders.images import ENCODERS, open_encoder
from twinloop.generate.config import resolve_config
from twinloop.hardware.registry import ROBOTS, open_robot
from twinloop.label.rules import RULES, open_rule
from twinloop.render import RENDERERS, open_renderer, probe_all
from twinloop.render.catalog import renderer_versions
from twinloop.render.rays import CASTERS
from twinloop.simulate.rollout import BACKENDS, open_backend
from twinloop.tasks.registry import TASKS, open_task
from twinloop.twin import TWINS, load_twin

CODE = """
from pathlib import Path
from types import SimpleNamespace

from twinloop.checks import CheckOutcome
from twinloop.encoders.classical import ClassicalEncoder
from twinloop.hardware.virtual import VirtualRobot
from twinloop.simulate.threads import BackendThreads
from twinloop.tasks.pick_and_place import PickAndPlace

TWIN = Path(__file__).with_name("lab.yaml")
IMPORTER = SimpleNamespace(name="tape")
EXPORTER = SimpleNamespace(name="paper")


class Slower(PickAndPlace):
    name = "slower"


class Arm(VirtualRobot):
    def __init__(self, seed="1"):
        super().__init__("double_pendulum", seed=int(seed))


class Engine(BackendThreads):
    name = "engine"

    def __init__(self, device="cpu", nthread=0):
        super().__init__(nthread)
        self.device = device


class Flat:
    channels = ("rgb",)
    seconds = 0.5

    def __init__(self, model, *, height, width, cameras):
        self.size = height, width


class Thumbs(ClassicalEncoder):
    pass


class Clips:
    name, hash, needs = "clips", "0", "motion"

    def encode(self, clips):
        return [[1.0]] * len(clips)


class Calm:
    name, meaning, hash = "demonstration/calm", "nothing", "0" * 64

    def score(self, recordings):
        return []


class Lucky:
    name, version, meaning, hash = "success/lucky", 1, "luck", "0" * 64

    def label(self, recording):
        return []


def check_named(twin):
    return CheckOutcome(name="is named", status="pass", detail=twin.name)


"""
ENTRIES = {
    "twins": "lab = lab_code:TWIN\nwrong = lab_code:Slower",
    "tasks": "slower = lab_code:Slower\npick_and_place = lab_code:Arm\nheavy = lab_heavy:Task\nodd = lab_odd:Task",
    "robots": "lab_arm = lab_code:Arm",
    "backends": "engine = lab_code:Engine",
    "renderers": "flat = lab_code:Flat",
    "encoders": "thumbs = lab_code:Thumbs",
    "clip_encoders": "clips = lab_code:Clips",
    "importers": "tape = lab_code:IMPORTER",
    "exporters": "paper = lab_code:EXPORTER",
    "checks": "is named = lab_code:check_named",
    "checks_of_episodes": "demonstration/calm = lab_code:Calm",
    "rules": "success/lucky = lab_code:Lucky",
}


REGISTRIES = (
    *(BACKENDS, CASTERS, CHECKS, CLIP_ENCODERS, CHECKS_OF_EPISODES, ENCODERS, EXPORTERS, IMPORTERS, RENDERERS, ROBOTS),
    *(RULES, SETS, TASKS, TWINS),
)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as pip installs it: the package's code, and the metadata with its entry points."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "lab_code.py").write_text(CODE)
    (tmp_path / "lab_heavy.py").write_text("import a_package_that_nobody_has")
    (tmp_path / "lab_odd.py").write_text("raise RuntimeError('not today')")
    (tmp_path / "lab.yaml").write_text("base: double_pendulum\nname: lab\ncontrol_hz: 25\n")
    metadata = tmp_path / "robot_lab-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: robot-lab\nVersion: 1.2\n")
    text = "".join(f"[twinloop.{group}]\n{lines}\n" for group, lines in ENTRIES.items())
    (metadata / "entry_points.txt").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("lab_code", "lab_heavy", "lab_odd"):
        sys.modules.pop(name, None)


def test_an_installed_package_offers_every_kind(installed: Path) -> None:
    twin = load_twin("lab")
    assert (twin.name, twin.control_hz) == ("lab", 25.0)
    (installed / "mine.yaml").write_text("base: lab\nname: mine\n")
    assert load_twin(installed / "mine.yaml").control_hz == 25.0
    assert open_task("slower", load_twin("so101_tabletop")).name == "slower"
    assert open_robot("lab_arm?seed=4").reveal().params == open_robot("virtual:double_pendulum?seed=4").reveal().params
    assert open_backend("engine:gpu7", nthread=3).device == "gpu7"
    assert open_backend("engine", nthread=3).nthread == 3
    assert open_renderer("flat", twin.model, height=4, width=6).size == (4, 6)
    assert renderer_versions("flat") == {"mujoco": mujoco.__version__, "robot-lab": "1.2"}
    assert "flat" in {found.name for found in probe_all()}
    assert open_encoder("thumbs").dimension == open_encoder("classical").dimension
    assert open_clip_encoder("clips").hash == "0"
    assert list_importers()[0].name == "tape"
    assert exporter("paper").name == "paper"
    assert run_checks(twin, only=["is named"]).checks[0].detail == "lab"
    assert [check.name for check in open_checks(["demonstration/calm"], lambda _: twin)] == ["demonstration/calm"]
    assert open_rule("success/lucky").name == "success/lucky"
    assert resolve_config({"scene": {"robot": "lab", "task": "slower"}}, where="x", folder=installed).twin == "lab"


def test_what_an_installed_package_cannot_do_is_said(installed: Path) -> None:
    twin = load_twin("so101_tabletop")
    assert open_task("pick_and_place", twin).name == "pick_and_place", "a built-in name is never replaced"
    with pytest.raises(UnknownNameError, match=r"Unknown task 'slowr' in the built-in tasks; .*Nearest.*: slower"):
        open_task("slowr", twin)
    with pytest.raises(
        InputError, match="The installed package registers <class .* as the twin wrong. Register the path"
    ):
        load_twin("wrong")
    with pytest.raises(MissingDependencyError, match=r"task heavy needs .*a_package_that_nobody_has.*pip install --up"):
        open_task("heavy", twin)
    with pytest.raises(InputError, match=r"task odd of the package robot-lab cannot .*RuntimeError: not today \("):
        open_task("odd", twin)


@pytest.mark.parametrize("registry", REGISTRIES, ids=[registry.kind for registry in REGISTRIES])
def test_every_built_in_name_leads_to_its_object(registry: Registry[object]) -> None:
    for name in registry.builtin:
        with contextlib.suppress(MissingDependencyError):  # only `warp` of the backends imports an optional module
            assert registry[name] is not None


def test_a_registry_is_a_mapping_that_loads_upon_use() -> None:
    things: Registry[object] = Registry(
        "thing", {"float": "builtins:float", "five": 5, "far": "twinloop.nowhere:X [gpu]", "bug": "twinloop.nowhere:X"}
    )
    assert list(things) == ["float", "five", "far", "bug"]
    assert things["float"] is float
    assert things["five"] == 5
    assert "six" not in things
    with pytest.raises(MissingDependencyError, match=r'The thing far needs .*pip install "twinloop\[gpu\]"') as caught:
        things["far"]
    assert caught.value.exit_code == 3
    with pytest.raises(ModuleNotFoundError):
        things["bug"]
    with pytest.raises(UnknownNameError, match=r"^Unknown thing 'flaot' in a\.yaml\. Nearest existing: float\."):
        things.find("flaot", where="a.yaml")


def test_a_file_is_refused_where_a_kind_takes_none(tmp_path: Path) -> None:
    """A policy's folder names its kind, and may come from an untrusted source."""
    file = tmp_path / "mine.py"
    file.write_text("raise SystemExit('it ran')")
    kinds: Registry[object] = Registry("kind", {})
    for files in (kinds, Registry[object]("kind", {}, group="twinloop.policies")):
        with pytest.raises(UnknownNameError, match="Unknown kind"):
            files[f"{file}:X"]
