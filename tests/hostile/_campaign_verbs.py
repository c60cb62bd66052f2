"""A small workspace, and one command line for every command that writes, each of which takes about a second."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _campaign import command

from support.dataset_writer import SPEC, write_all
from support.exports import image_dataset
from support.releases import policy_folder, released
from twinloop.catalog import Workspace
from twinloop.cli.main import main
from twinloop.dataset.lerobot.reader import DatasetReader

TESTS = Path(__file__).resolve().parent.parent
SMALL = ("--steps", "6", "--batch", "8", "--set", "width=8", "depth=1", "chunk_size=4", "n_action_steps=2")
_TRIALS = "policy,domain,success,task,pair\n" + "".join(
    f"{policy},{domain},{(i * 7 + shift) % 10 < 7 - 3 * shift:d},cube,{i}\n"
    for shift, policy in enumerate("ab")
    for domain in ("real", "sim")
    for i in range(20 if domain == "real" else 60)
)
_RATES = "policy,domain,score\n" + "".join(
    f"p{i},{domain},{0.1 * i + 0.03 * (domain == 'sim')}\n" for i in range(8) for domain in ("real", "sim")
)
_TEXTS = {
    "swing.yaml": "scene: {twin: double_pendulum, task: swing.py:Swing}\nrandomization: default\n"
    "rollout: {parallel_envs: 4}\n",
    "hard.yaml": "scene: {robot: so101, task: pick_and_place}\nrollout: {parallel_envs: 1}\n"
    "randomization: {default: true, params: {object/cube/friction/slide: [0.05, 0.06]}}\n",
    "search.yaml": "scene: {twin: double_pendulum, task: swing.py:Swing}\nrandomization: default\n",
    "arm.xml": "<mujoco><worldbody><body name='link'><joint name='hinge'/><geom size='0.1'/></body></worldbody>"
    "<actuator><position name='hinge' joint='hinge' kp='1'/></actuator></mujoco>",
    "trials.csv": _TRIALS,
    "rates.csv": _RATES,
}


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A command line that writes.

    ``words`` are run in the workspace; ``{store}`` in them is a folder next to it. ``writes`` are the files and folders
    that it makes, relative to the workspace; if empty, the command changes the catalog. ``again`` are words that are
    added to resume after a kill. ``needs`` names modules that must be installed, ``hub`` a server to talk to. A verb
    that ``repeats`` may be run again after it has succeeded. One that is not ``exact`` measures wall-clock times, so
    that only the names of its files are the same each time. One that ``keeps`` its recording of a robot after a kill
    does not overwrite it: running it again takes another folder.
    """

    words: tuple[str, ...]
    writes: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    hub: bool = False
    repeats: bool = False
    exact: bool = True
    keeps: bool = False

    def line(self, cell: Path, *, resumed: bool = False) -> list[str]:
        """Return the words for a workspace."""
        words = (*self.words, *self.again) if resumed else self.words
        return [word.format(store=cell.parent / "store") for word in words]

    def made(self, cell: Path) -> dict[str, str]:
        """Return the digests of the outputs, or the content of the catalog."""
        if not self.writes:
            return {name: hashlib.sha256("".join(rows).encode()).hexdigest() for name, rows in views(cell).items()}
        return {
            f"{name}/{file}": value if self.exact else ""
            for name in self.writes
            for file, value in (digest(cell / name) if (cell / name).exists() else {}).items()
        }

    def unlike(self, made: dict[str, str], wanted: dict[str, str]) -> list[str]:
        """Return the files that are not those of an unbroken run; of a verb that keeps, those that are too many."""
        names = made.keys() if self.keeps else made.keys() | wanted.keys()
        return sorted(name for name in names if made.get(name) != wanted.get(name))

    def left(self, hidden: list[str], usual: list[str]) -> list[str]:
        """Return hidden files that are left over; those of a verb that keeps are the next writer's to remove."""
        found = sorted(set(hidden) - set(usual))
        return [name for name in found if not (self.keeps and name.endswith((".next", ".lock")))]

    @property
    def missing(self) -> str:
        """Return the first module that is needed and not installed."""
        return next((name for name in self.needs if importlib.util.find_spec(name) is None), "")


def _of(line: str, *writes: str, **more: Any) -> Verb:
    """Return a verb from its words, with ``~`` for a space in a word; by default it writes the path of --output."""
    words = tuple(word.replace("~", " ") for word in line.split())
    named = tuple(after for word, after in itertools.pairwise(words) if word == "--output")
    return Verb(words=words, writes=writes or named, **more)


_PICK = "SELECT~episode_id~FROM~episodes~WHERE~batch='first'"
VERBS: dict[str, Verb] = {
    "init": _of("init ../new --twin double_pendulum", "../new"),
    "add": _of("add data/second", repeats=True),
    "twin new": _of("twin new arm.xml --output arm.yaml"),
    "tasks new": _of("tasks new lift.py --twin double_pendulum", "lift.py"),
    "robot new": _of("robot new arm.py --twin double_pendulum", "arm.py"),
    "approve": _of("approve swing.py", "../home", exact=False, repeats=True),
    "generate": _of("generate swing.yaml --output data/new --workers 1", "data/new", again=("--resume",)),
    "render": _of(
        "render data/first --renderer ../fragile.py:Fragile --size 24x16 --workers 1 --output data/images",
        again=("--resume",),
    ),
    "fetch": _of("fetch disk://{store} data/fetched", "data/fetched", needs=("fsspec",), repeats=True),
    "fsck": _of("fsck --repair", repeats=True),
    "query": _of("query SELECT~batch,episode_index~FROM~episodes~ORDER~BY~ALL --output out.csv"),
    "coverage": _of("coverage data/first --output coverage.html"),
    "curate": _of("curate --where batch='first' --workers 1 --output runs/curate"),
    "import": _of("import log.csv --output data/imported --task swing", "data/imported"),
    "edit select": _of("edit select data/first --episodes 0-2 --output data/selected"),
    "edit delete": _of("edit delete data/first --episodes 0 --output data/deleted"),
    "edit split": _of("edit split data/first --parts train=0.5 test=0.5 --output data/parts"),
    "edit merge": _of("edit merge data/first data/more --output data/merged"),
    "edit retask": _of("edit retask data/first --task other --output data/retasked"),
    "edit reencode": _of("edit reencode data/seen --codec h264 --output data/encoded"),
    "edit rebalance": _of("edit rebalance data/first --by success --output data/balanced"),
    "export": _of("export lerobot-v2 data/seen --output ../exported"),
    "export robomimic": _of("export robomimic data/first --output ../exported.hdf5"),
    "export mcap": _of("export mcap data/first --output ../exported", needs=("mcap",)),
    "pull": _of("pull me/set --output data/pulled", needs=("huggingface_hub",), hub=True),
    "datasets freeze": _of(f"datasets freeze train --sql {_PICK}", repeats=True),
    "datasets materialize": _of("datasets materialize kept --output ../made"),
    "label add": _of("label add first:0 first:1 --success yes --author Ada", repeats=True),
    "label export": _of("label export labels.csv", "labels.csv"),
    "identify": _of(
        "identify --twin double_pendulum --data log.csv --holdout last:1 --free joint/*/frictionloss "
        "--output runs/identify",
    ),
    "record": _of(
        "record --robot virtual:so101_tabletop?seed=3 --excitation plan.yaml --output data/recorded",
        exact=False,
        keeps=True,
    ),
    "run": _of(
        "run --robot virtual:so101_tabletop?seed=3 --policy swaying --seconds 0.3 --output data/run",
        needs=("torch",),
        exact=False,
        keeps=True,
    ),
    "monitor calibrate": _of("monitor calibrate --data data/many --twin double_pendulum --rate 0.9 --output monitor"),
    "monitor check": _of("monitor check --data data/many --monitor usual --twin double_pendulum --output runs/check"),
    "gap dynamics": _of("gap dynamics --twin double_pendulum --data log.csv --no-why --output runs/gap"),
    "gap why": _of("gap why --twin double_pendulum --data log.csv --params runs/fit --draws 2 --output runs/why"),
    "gap vision": _of(
        "gap vision --real data/images-1 --sim data/images-2 --camera side --draws 0 --output runs/vision"
    ),
    "gap data": _of("gap data --real data/pendulum --twin double_pendulum --clip 0.2 --draws 0 --output runs/data"),
    "gap policies": _of("gap policies trials.csv --output runs/policies"),
    "gap predictivity": _of("gap predictivity rates.csv --output runs/predict"),
    "gap classes": _of("gap classes --trials trials.csv --output runs/classes"),
    "gap compare": _of("gap compare trials.csv --a a --b b --output runs/compare"),
    "gap power": _of("gap power --p 0.2 0.9 --output runs/power"),
    "gap estimate": _of("gap estimate trials.csv --output runs/estimate"),
    "gap history": _of("gap history runs --output history.html"),
    "train": _of(
        " ".join(("train --data data/planted --output policies/new", *SMALL)),
        "policies/new/model.safetensors",
        "policies/new/result.json",  # README.md contains the duration in seconds
        again=("--resume",),
        needs=("torch",),
    ),
    "distill": _of(
        "distill hard.yaml --output policies/taught --worlds 1 --rounds 2 --steps 2 --final-steps 2 --set width=8 "
        "depth=1",
        "policies/taught/model.safetensors",
        "policies/taught/result.json",
        again=("--resume",),
        needs=("torch",),
    ),
    "reinforce": _of(
        "reinforce hard.yaml --output policies/teacher --worlds 1 --iterations 2 --batch 90 --passes 1 --set width=8 "
        "depth=1",
        "policies/teacher/model.safetensors",
        "policies/teacher/result.json",
        again=("--resume",),
        needs=("torch", "stable_baselines3"),
    ),
    "localize train": _of(
        "localize train hard.yaml --output policies/eyes --worlds 10 --frames 1 --steps 20 --batch 4 --height 24 "
        "--width 32 --images clean --workers 1 --cameras front --set width=8 depth=1",
        "policies/eyes/model.safetensors",
        "policies/eyes/result.json",
        again=("--resume",),
        needs=("torch",),
    ),
    "localize score": _of(
        "localize score seeing/eyes --photos seeing/photos --twin so101_tabletop --output runs/score",
        "runs/score/result.json",
        needs=("torch",),
    ),
    "localize adapt": _of(
        "localize adapt seeing/eyes --photos seeing/photos --twin so101_tabletop --output policies/mine",
        "policies/mine",
        needs=("torch",),
    ),
    "localize attach": _of(
        "localize attach seeing/eyes --control seeing/control --output policies/seeing",
        "policies/seeing",
        needs=("torch",),
    ),
    "evaluate": _of(
        "evaluate expert --twin double_pendulum --task swing.py:Swing --episodes 2 --output runs/tried-2", exact=False
    ),
    "compare": _of(
        "compare expert expert --twin double_pendulum --task swing.py:Swing --max-episodes 4 --output runs/compared",
        exact=False,
    ),
    "gate": _of("gate gate.yaml --deployment lab --output runs/gate", exact=False),
    "promote": _of("promote pick@3 --force --reason planted --who Ada", repeats=True),
    "rollback": _of("rollback --reason planted --who Ada", repeats=True),
    "policies add": _of("policies add swaying --name pick", needs=("torch",), repeats=True),
    "policies export": _of("policies export swaying --output sway.onnx", needs=("torch", "onnxscript"), repeats=True),
    "sensors show": _of("sensors show so101_tabletop --camera front --size 32x24 --output shown"),
    "scenario from-failure": _of(
        "scenario from-failure data/hard:0 --name slips --force --tries 2 --reason dropped", "scenarios/slips"
    ),
    "scenario counterfactual": _of(
        "scenario counterfactual kept --change object/cube/mass=0.05 --tries 2 --output runs/what"
    ),
    "scenario ablate": _of("scenario ablate kept --term object~friction --tries 2 --output runs/ablate"),
    "scenario regress": _of("scenario regress --output runs/regress"),
    "scenario augment": _of("scenario augment kept --episodes 4 --workers 1 --output data/around"),
    "scenario search": _of("scenario search search.yaml --output runs/search"),
    "evidence": _of("evidence --failure-rate 0.01 --output runs/claim"),
}
# Commands that write nothing themselves, and commands that are made of those above.
READING = (
    "replay", "datasets list", "datasets show", "datasets diff", "datasets lineage", "label show", "label list",
    "label agreement", "label rules", "policies list", "policies show", "policies audit", "policies verify",
    "twin check", "twin show", "robot check", "tasks check", "tasks list", "sensors list", "scenario list",
    "scenario show", "doctor",
)  # fmt: skip
LEFT_OUT = {
    "demo": "minutes long, and made of import, identify, generate, curate and train",
    "push": "writes to the Hub alone, in one commit",
    "serve": "writes nothing; see test_soak",
    "studio": "writes labels and exclusions only; it is killed in tests/studio",
    "scenario loop": "minutes long, and made of generate, train and compare",
    "plan": "writes one file, as query does",
    "gap sensors": "needs a recorded log of a sensor; writes as gap data does",
}


def leaves() -> Iterator[str]:
    """Yield the words of every command of the command line."""
    from twinloop.cli.main import TWINLOOP

    for one in TWINLOOP.commands:
        for part in getattr(one, "commands", [None]):
            yield one.name if part is None else f"{one.name} {part.name}"


def build(root: str) -> None:
    """Make the workspace ``ROOT/cell``, and what its commands need; a job of `Campaign`."""
    base, cell = Path(root), Path(root) / "cell"
    _folders(base, cell)
    os.chdir(cell)
    for words in _MADE:
        assert main(words.format(store=base / "store").split()) in (0, 1), words
    shutil.copytree(cell / "data" / "first", base / "plain")
    with Workspace.open(cell) as held:
        for name in ("seen", "hard"):
            held.add(cell / "data" / name)
        held.freeze("kept", "SELECT episode_id FROM episodes WHERE batch = 'first'")


_MADE = (
    "generate swing.yaml --output data/first --workers 1 --keep all",
    "generate swing.yaml --output data/more --seed 7 --workers 1 --keep all",
    "generate swing.yaml --output disk://{store} --workers 1",
    "generate swing.yaml --output data/many --episodes 20 --workers 1 --keep all",
    "render data/first --renderer ../fragile.py:Fragile --size 96x72 --workers 1 --output data/images-1",
    "render data/more --renderer ../fragile.py:Fragile --size 96x72 --workers 1 --output data/images-2",
    "monitor calibrate --data data/many --twin double_pendulum --rate 0.9 --output usual",
    "generate hard.yaml --output data/hard --keep all --workers 1",
    "scenario from-failure data/hard:0 --name kept --force --tries 2 --reason planted",
    "import log.csv --output data/pendulum --task swing",
    "identify --twin double_pendulum --data log.csv --holdout last:1 --free joint/*/frictionloss --output runs/fit",
    "gap dynamics --twin double_pendulum --data log.csv --no-why --output runs/earlier",
)


def _folders(base: Path, cell: Path) -> None:
    """Write what the commands read."""
    from support.record_excitation import plan_of
    from support.release_commands import gate_file
    from twinloop.hardware.excite import save_excitation

    released(cell)
    shutil.copy(TESTS / "support" / "fragile.py", base / "fragile.py")
    shutil.copy(TESTS.parent / "benchmarks" / "speed" / "swing.py", cell / "swing.py")
    for name, text in _TEXTS.items():
        (cell / name).write_text(text)
    _log(cell / "log.csv")
    save_excitation(plan_of(0.5), cell / "plan.yaml")
    gate_file(cell, "new", 1, 0.8, None).rename(cell / "gate.yaml")
    policy_folder(cell / "trained", 9)
    write_all(cell / "data" / "second", dataclasses.replace(SPEC, name="second"))
    image_dataset(cell / "data" / "seen")
    if importlib.util.find_spec("torch"):
        from support.running import saved_localizer, saved_policy
        from support.training import dataset

        saved_policy(cell / "swaying")
        saved_localizer(cell / "seeing")
        dataset(cell / "data" / "planted", range(4))


def _log(path: Path) -> None:
    """Write three swings of the double pendulum as one CSV file."""
    import numpy as np

    rng = np.random.default_rng(3)
    lines = [
        "# units: rad",
        "# command: torque",
        "episode,time_s,action/shoulder,action/elbow,state/shoulder,state/elbow",
    ]
    for episode in range(3):
        phase = rng.uniform(0, 6, size=2)
        for k in range(80):
            t = k / 100
            action = np.sin(6.28 * np.array([3.1, 4.9]) * t + phase) * [1.5, 0.8]
            state = 0.3 * np.sin(6.28 * np.array([1.1, 1.9]) * t + phase)
            lines.append(",".join(map(repr, [episode, t, *map(float, action), *map(float, state)])))
    path.write_text("\n".join(lines) + "\n")


def digest(path: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of an output; without seconds and moments, where a file is about a run."""
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    return {
        one.relative_to(path).as_posix(): hashlib.sha256(_plain(one)).hexdigest()
        for one in files
        if not one.name.endswith(_CLOCKED)
    }


_CLOCKED = ("report.html", ".log.jsonl")  # they contain their time of creation


def _plain(path: Path) -> bytes:
    data = path.read_bytes()
    return json.dumps(_without_clock(json.loads(data)), sort_keys=True).encode() if path.suffix == ".json" else data


def _without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_clock(one) for key, one in value.items() if not _CLOCK.search(key)}
    return [_without_clock(one) for one in value] if isinstance(value, list) else value


_CLOCK = re.compile(r"seconds|_per_second|^started|^ended|^made$|_at$|^run_id$")


def views(cell: Path) -> dict[str, list[str]]:
    """Return everything that the catalog shows, without moments and random names."""
    with Workspace.open(cell) as held:
        return {name: sorted(_row(row) for row in held.query(f"SELECT * FROM {name}").to_pylist()) for name in _VIEWS}


_VIEWS = ("episodes", "places", "params", "scores", "labels", "evaluations", "batches", "datasets", "policies")


def _row(row: dict[str, Any]) -> str:
    return json.dumps({k: v for k, v in row.items() if not _MOMENT.search(k)}, sort_keys=True, default=str)


_MOMENT = re.compile(r"run_id|added|updated|at$|made|created|committed|files|label_id|^time$")


def whole(cell: Path) -> list[str]:
    """Return the defects of a workspace: findings of fsck except leftovers, and unreadable datasets."""
    ran = command(["fsck", "--deep", "--json"], cell)
    wrong = [] if ran.clear else [f"fsck ended with {ran.code}: {ran.text[-400:]}"]
    wrong += [one["problem"] for one in ran.metrics.get("findings", ()) if one["kind"] != "leftover"]
    for info in sorted(cell.parent.rglob("meta/info.json")):
        folder = info.parent.parent
        parts = folder.relative_to(cell.parent).parts
        ours = '"codebase_version": "v3' in info.read_text()
        if ours and parts[0] != "store" and not any(part.startswith(".") for part in parts):
            wrong += _unreadable(folder)
    for file in cell.parent.rglob("*.json"):
        if not any(part.startswith(".") for part in file.relative_to(cell.parent).parts):
            with contextlib.suppress(FileNotFoundError):
                json.loads(file.read_text() or "{")
    return wrong


def _unreadable(folder: Path) -> list[str]:
    try:
        if (folder / "twinloop").is_dir():  # one of ours
            reader = DatasetReader(folder)
            for index in range(len(reader)):
                reader.states(index) if (folder / "twinloop/states").is_dir() else reader.provenance(index)
    except Exception as error:  # noqa: BLE001 - any error means that the dataset is not whole
        return [f"{folder.name}: {type(error).__name__}: {error}"]
    return []


def leftovers(base: Path) -> list[str]:
    """Return hidden files and folders below a folder that a finished command must not leave, except swept ones."""
    found = (path for path in base.rglob("*") if path.name.startswith(".") and "swept" not in path.parts)
    return sorted(path.relative_to(base).as_posix() for path in found if path.name != ".gitignore")
