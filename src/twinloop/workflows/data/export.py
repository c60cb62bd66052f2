"""Export datasets to other formats, and compare the exported files with the source.

Formats that can store them also get the simulation models, body poses and labels of the episodes. The format ``card``
is the README.md of a dataset.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from twinloop.catalog import Workspace
from twinloop.core.errors import InputError, TwinloopError
from twinloop.core.files import write_text
from twinloop.core.params import ParamTable
from twinloop.core.records import Provenance, StoredSimulation
from twinloop.dataset.export.formats import exporter
from twinloop.dataset.export.lerobot_language import Subtasks
from twinloop.dataset.export.lerobot_v3 import write as export_lerobot
from twinloop.dataset.export.mcap import export_mcap
from twinloop.dataset.export.protocol import Exporter, ExportOptions
from twinloop.dataset.export.rerun import export_rerun
from twinloop.dataset.export.robomimic import export_robomimic
from twinloop.dataset.export.source import open_source
from twinloop.dataset.export.streams import (
    NO_GROUND_TRUTH,
    BodyPoses,
    EpisodeStreams,
    GroundTruth,
    StreamEvent,
    open_reader,
)
from twinloop.dataset.export.verification import FolderReader, verify_export
from twinloop.dataset.folder_card import Rows, folder_card
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.signals import SIMULATION_TABLE, read_stored_simulation
from twinloop.generate.config import GenerateConfig, load_plan
from twinloop.generate.replay import read_root_config
from twinloop.label.rule import UNKNOWN, RuleEpisode
from twinloop.label.rules_builtin import SubtasksFromStates
from twinloop.rollout.episodes import INITIAL_COMMAND
from twinloop.rollout.replay import recorded_params
from twinloop.rollout.substeps import step_inputs
from twinloop.simulate.bodies import model_bodies
from twinloop.simulate.drives import DriveStages
from twinloop.simulate.protocol import STATE_SPEC
from twinloop.twin import Twin
from twinloop.twin.model_limits import ENGINE_ERRORS, check_model_text
from twinloop.twin.model_text import model_text, world_model_inplace
from twinloop.workflows.data.labels import open_episode_task
from twinloop.workflows.data.requests import ExportRequest
from twinloop.workflows.run.results import Outcome

_LABELS = """
    SELECT places.episode_index, kind, value, first_frame, last_frame, labels.source, author
    FROM labels JOIN places USING (episode_id) WHERE batch = ? ORDER BY labels.seq
"""


def label_events(reader: DatasetReader) -> Callable[[int], Sequence[StreamEvent]] | None:
    """Return a function that gives the labels of an episode as events, if a workspace contains the dataset.

    The workspace above the dataset's folder is searched first, then the one above the working folder.

    Returns:
        A function from the index of an episode to its labels; None if neither workspace contains the dataset.
    """
    for start in (reader.path, Path.cwd()):
        if (root := Workspace.find(start)) is None:
            continue
        workspace = Workspace.open(root)
        try:
            rows = _load_labels(workspace, reader.path)
        finally:
            workspace.close()
        if rows is not None:
            return lambda index, rows=rows: [
                _make_label_event(EpisodeStreams(reader, index), row) for row in rows[index]
            ]
    return None


def _load_labels(workspace: Workspace, folder: Path) -> Mapping[int, Sequence[Mapping[str, Any]]] | None:
    batches = workspace.query("SELECT batch, path FROM batches").to_pylist()
    known = [row["batch"] for row in batches if (workspace.root / row["path"]).resolve() == folder.resolve()]
    if not known:
        return None
    found: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for row in workspace.query(_LABELS, [known[0]]).to_pylist():
        found[row["episode_index"]].append(row)
    return found


def _make_label_event(streams: EpisodeStreams, row: Mapping[str, Any]) -> StreamEvent:
    first, last = row["first_frame"], row["last_frame"]
    span = "" if first is None else f", frames {first} to {last}"
    at = float(streams.time[min(first or 0, streams.length - 1)])
    return StreamEvent(time=at, text=f"{row['kind']}: {row['value']} ({row['source']} {row['author']}{span})")


_WRITERS = {"robomimic": export_robomimic, "mcap": export_mcap, "rerun": export_rerun}


def add_ground_truth(exporter: Exporter, source: Path) -> Exporter:
    """Return an exporter that also writes models, body poses and labels, if its format can store them.

    Args:
        exporter: the exporter of a format. It is returned unchanged if the format cannot store these data.
        source: folder of the dataset.
    """
    if exporter.name == "lerobot":
        return replace(exporter, write=partial(export_lerobot, subtasks=find_subtasks(source)))
    writer = _WRITERS.get(exporter.name)
    if writer is None:
        return exporter
    reader = open_reader(source)
    truth, events = load_ground_truth(reader) or NO_GROUND_TRUTH, label_events(reader)
    truth = truth if events is None else replace(truth, events=events)
    return replace(exporter, write=partial(writer, truth=truth))


def find_subtasks(source: Path) -> Callable[[int], Subtasks] | None:
    """Return a function from the index of an episode to the phases of its task, with the frames at which they begin.

    Returns:
        The function; None if twinloop did not generate the dataset.
    """
    if not (source / layout.SPEC).is_file():
        return None
    reader = DatasetReader(source)

    def subtasks(index: int) -> Subtasks:
        task, reason = open_episode_task(reader, index)
        episode = RuleEpisode(episode_id="", reader=reader, index=index, task=task, missing_reason=reason)
        found = [one for one in SubtasksFromStates().label(episode) if one.value != UNKNOWN]
        if not found:
            raise InputError(f"Episode {index} of {source} has no subtasks: {reason or 'its task has no phases'}.")
        return [(one.value, one.first_frame or 0) for one in found]

    return subtasks


def load_ground_truth(reader: DatasetReader) -> GroundTruth | None:
    """Return the simulation models and body poses of a dataset's episodes.

    Returns:
        The data of a dataset that twinloop generated, or of a log that includes its models; None for any other dataset.
        If the twin cannot be loaded or has changed, the result has only a note with the reason.
    """
    if not reader.written_by_twinloop:
        return None
    if SIMULATION_TABLE in reader.side_tables:
        return GroundTruth(simulation=partial(read_stored_simulation, reader), bodies=partial(_imported_bodies, reader))
    if "generate" not in read_root_config(reader):
        return None
    try:
        twin = load_plan(GenerateConfig.model_validate(read_root_config(reader)["generate"])).twin
    except TwinloopError as error:
        return GroundTruth(notes=(f"models and poses are left out, because the twin cannot be loaded: {error}",))
    if twin.hash != reader.spec.twin_hash:
        was = f"{twin.name} is {twin.hash[:12]} now and was {reader.spec.twin_hash[:12]}"
        return GroundTruth(notes=(f"models and poses are left out, because the twin has changed since ({was})",))
    known = _GeneratedDataset(reader, twin)
    return GroundTruth(simulation=known.simulation, bodies=known.bodies, command=twin.robot.control)


class _GeneratedDataset:
    """Dataset generated by twinloop, with its twin; computes the models and body poses of the episodes."""

    def __init__(self, reader: DatasetReader, twin: Twin) -> None:
        self._reader, self.twin = reader, twin

    def simulation(self, index: int) -> StoredSimulation | None:
        """Return the model of an episode's world, its states, and its actuator inputs.

        None if another program appended the episode to the dataset, because it then has no simulator states.
        """
        if self._reader.is_appended(index):
            return None
        provenance = self._reader.provenance(index)
        params = recorded_params(self.twin, provenance)
        text = model_text(self.twin, params)
        controls, notes = self._controls(index, params, provenance)
        return StoredSimulation(
            model=text.xml,
            assets=text.assets,
            states=self._reader.states(index),
            spec=STATE_SPEC,
            controls=controls,
            notes=notes,
        )

    def bodies(self, index: int) -> BodyPoses | None:
        """Return the poses and shapes of an episode's bodies at each frame.

        None if another program appended the episode to the dataset, because it then has no simulator states.
        """
        if self._reader.is_appended(index):
            return None
        model = copy.copy(self.twin.model)
        params = recorded_params(self.twin, self._reader.provenance(index))
        world_model_inplace(self.twin, params, model)
        return model_bodies(model, self._reader.states(index)[:-1])

    def _controls(
        self, index: int, params: ParamTable, provenance: Provenance
    ) -> tuple[NDArray[np.float64] | None, tuple[str, ...]]:
        """Return the actuator inputs of every physics step, if MuJoCo can repeat the episode from them alone.

        Returns:
            The inputs, shape ``(nstep, nu)`` for nstep physics steps and nu actuators, and no notes; or None, and notes
            with the reasons why they do not suffice.
        """
        initial = np.atleast_2d(np.asarray(provenance.extra[INITIAL_COMMAND], dtype=np.float64))
        inputs = list(step_inputs(self.twin, params, initial, self._reader.commands(index), self._reader.states(index)))
        said = {
            "drives change the model between physics steps": DriveStages(self.twin, params).active,
            "parameters change at control steps": self.twin.stepped_fields(params, [0]) is not None,
            "the physics step varies": any(step.timestep is not None for step in inputs),
            "external forces act on bodies": any(
                step.wrenches is not None and np.any(step.wrenches) for step in inputs
            ),
        }
        notes = tuple(
            f"controls are left out, because they do not suffice to repeat the episode: {reason}"
            for reason, holds in said.items()
            if holds
        )
        return (None if notes else np.stack([step.controls for step in inputs])), notes


def _imported_bodies(reader: DatasetReader, index: int) -> BodyPoses | None:
    """Return the poses and shapes of an episode's bodies; None if its log does not include a model with full states.

    Raises:
        InputError: If MuJoCo cannot read the model.
    """
    kept = read_stored_simulation(reader, index)
    if kept is None or kept.spec != STATE_SPEC:
        return None
    where = f"The model of episode {index} in {reader.path}"
    check_model_text(kept.model, kept.assets, where=where)
    try:
        model = mujoco.MjModel.from_xml_string(kept.model, dict(kept.assets))
    except ENGINE_ERRORS as error:
        raise InputError(f"{where} cannot be read by MuJoCo: {' '.join(str(error).split())}") from error
    return model_bodies(model, kept.states[: int(reader.lengths[index])])


SETTINGS = {
    "repo_id": "USER/NAME on the Hub, for the code example that loads the dataset",
    "name": "the title; by default the dataset's own name or the folder's",
    "licence": "a licence identifier of the Hub or a sentence, instead of the licence in the folder",
}
_SCORES = """
    SELECT "check", s.verdict, count(DISTINCT s.episode_id) AS episodes
    FROM scores s JOIN places p USING (episode_id) WHERE p.batch = ?
    GROUP BY ALL ORDER BY ALL
"""
_LABELS_OF_BATCH = """
    SELECT l.kind AS label, l.source, l.value, count(DISTINCT l.episode_id) AS episodes
    FROM labels l JOIN places p USING (episode_id) WHERE p.batch = ?
    GROUP BY ALL ORDER BY ALL LIMIT 40
"""


def run_card(request: ExportRequest, console: Console) -> dict[str, Any]:
    """Write the card (README.md) of a dataset, by default into the folder of the dataset; return the result.

    Raises:
        InputError: If an option does not apply to a card, or a setting does not exist.
    """
    if request.episodes is not None or request.verify:
        raise InputError("A card describes the whole dataset, without a comparison. Leave out --episodes and --verify.")
    dataset, output, workspace = request.dataset, request.output, request.workspace
    settings = parse_settings(request.set)
    if unknown := sorted(set(settings) - set(SETTINGS)):
        raise InputError(f"A card has no setting {unknown[0]}. It has: {', '.join(SETTINGS)}.")
    target = output or dataset / layout.CARD
    tables = load_card_tables(dataset, workspace)
    text = folder_card(dataset, tables=tables, **settings)
    write_text(target, text)
    if output is None:
        _record_card(dataset, workspace)
    sections = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    console.print(f"{target}: {', '.join(sections)}")
    made = {"schema": 1, "verb": "export", "format": "card", "dataset": str(dataset), "output": str(target)}
    return {**made, "sections": sections}


def load_card_tables(dataset: Path, workspace: Path | None = None) -> dict[str, Rows]:
    """Return the tables of a dataset card, by title: numbers of episodes by check verdict and by label.

    Args:
        dataset: folder of the dataset.
        workspace: the workspace with the scores and labels; by default the nearest one above the dataset's folder.

    Returns:
        The tables that have rows; empty if the workspace does not contain the dataset.

    Raises:
        InputError: If there is no workspace at ``workspace``.
    """
    root = workspace or Workspace.find(dataset.absolute().parent)
    if root is None:
        return {}
    with Workspace.open(root) as known:
        batch = _find_batch(known, dataset)
        if batch is None:
            return {}
        found: dict[str, Sequence[Mapping[str, Any]]] = {
            "Quality": known.query(_SCORES, [batch]).to_pylist(),
            "Labels": known.query(_LABELS_OF_BATCH, [batch]).to_pylist(),
        }
    return {title: table for title, table in found.items() if table}


def _find_batch(known: Workspace, dataset: Path) -> str | None:
    """Return the name under which a workspace lists a dataset folder, or None if the folder was not added to it."""
    rows = known.query("SELECT batch, path FROM batches").to_pylist()
    return next((row["batch"] for row in rows if (known.root / row["path"]).resolve() == dataset.resolve()), None)


def _record_card(dataset: Path, workspace: Path | None) -> None:
    """Record the new card in the workspace of a dataset, so that `fsck` does not report a changed file."""
    root = workspace or Workspace.find(dataset.absolute().parent)
    if root is not None:
        with Workspace.open(root) as known:
            if _find_batch(known, dataset) is not None:
                known.add(dataset)


def run_export(request: ExportRequest, console: Console) -> Outcome:
    """Export a dataset folder, or write its card.

    Returns:
        The metrics, and exit code 1 if a requested comparison with the source found a difference, else 0.

    Raises:
        InputError: If an option does not apply, or ``--output`` is missing.
    """
    if request.format == "card":
        return run_card(request, console), 0
    if request.output is None:
        raise InputError(f"No output is given. Name the folder or file of the {request.format} export with --output.")
    result = export(request, request.output)
    console.print(
        f"{result['episodes']} episodes, {result['frames']} frames, {result['bytes'] / 1e6:.1f} MB written in "
        f"{result['files']} files: {request.output}"
    )
    for note in result["notes"]:
        console.print(f"  {note}", style="dim")
    verification = result.get("verification")
    if verification:
        console.print(verification["text"])
    return result, 0 if verification is None or verification["accepted"] else 1


def export(request: ExportRequest, output: Path) -> dict[str, Any]:
    """Export a dataset folder to ``output``, and compare the result with the source if requested.

    Returns:
        The metrics of the export. The result of the comparison, if requested, has the key ``verification``.
    """
    dataset = request.dataset
    chosen = add_ground_truth(exporter(request.format), dataset)
    options = ExportOptions(episodes=parse_episodes(request.episodes), settings=parse_settings(request.set))
    done = chosen.export(dataset, output, options)
    result: dict[str, Any] = {
        "schema": 1,
        "verb": "export",
        "format": request.format,
        "dataset": str(dataset),
        **done.to_json(),
        "lost": chosen.unsupported,
    }
    if request.verify:
        images = options.settings.get("images") != "none"
        order = {episode: place for place, episode in enumerate(open_source(dataset, images=images).episodes)}
        places = [order[episode] for episode in done.episodes]
        found = verify_export(FolderReader(dataset, images=images), chosen.open_reader(output), places)
        result["verification"] = {**found.to_json(), "text": str(found)}
    return result


def parse_episodes(text: str | None) -> tuple[int, ...] | None:
    """Parse the numbers of episodes in a text such as ``0,2-5,9``; return None, which means all, for None.

    Raises:
        InputError: If the text has another form.
    """
    if text is None:
        return None
    found: list[int] = []
    for word in text.split(","):
        low, dash, high = word.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise InputError(f"--episodes {text}: give numbers and ranges, such as 0,2-5,9.")
        found += range(int(low), int(high) + 1) if dash else [int(low)]
    return tuple(found)


def parse_settings(words: Sequence[str]) -> dict[str, str]:
    """Parse words of the form ``NAME=VALUE``, and return the settings of an export format by name.

    Raises:
        InputError: If a word has another form.
    """
    pairs = [word.partition("=") for word in words]
    for name, sign, value in pairs:
        if not (name and sign):
            raise InputError(f"--set {name}{sign}{value}: write NAME=VALUE.")
    return {name: value for name, _, value in pairs}
