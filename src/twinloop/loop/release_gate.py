"""Decide about a candidate: read the gate's file and its evidence, ask every rule, write the decision down."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console

from twinloop.catalog import Workspace
from twinloop.core.decision import GateDecision
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.evaluation import Evaluation
from twinloop.core.files import write_json
from twinloop.loop.pages_release import gate_section
from twinloop.loop.runs import claim_output, finishing, write_report, write_result
from twinloop.release import Registry, Version
from twinloop.release.gate import Known, gate
from twinloop.release.gate_config import GateConfig, read_gate
from twinloop.release.record import config_of
from twinloop.release.trained import trained_on
from twinloop.report import Report
from twinloop.rollout.pinned_files import stored


def run_gate(
    file: Path, output: Path | None, *, workspace: Path | None, deployment: str, console: Console
) -> tuple[dict[str, Any], int]:
    """Print and store a decision; in a workspace it is written down there, and a yes makes the candidate's alias.

    Args:
        file: YAML, see `release.gate_config`.
        output: folder for decision.json, result.json and report.html; None stores none of them.
        workspace: its folder; by default the nearest one upwards from the file. Without one, policies are folders.
        deployment: whose champion is meant.
        console: for people.

    Returns:
        The decision, and 1 where it is a no.

    Raises:
        InputError: the file or an evaluation is wrong, or a policy is no folder and there is no workspace.
        UnknownNameError: no such version, or no champion yet.
    """
    config = read_gate(file)
    if output is not None:
        claim_output(output)
    root = workspace or Workspace.find(file.absolute().parent)
    with nullcontext() if root is None else Workspace.open(root) as held:
        registry = None if held is None else Registry(held, deployment=deployment)
        decision = _decide(config, file, registry)
        if registry is not None:
            registry.record_decision(decision)
    for line in decision.lines():
        console.print(line, soft_wrap=True)
    figures = {**decision.to_json(), "verb": "gate", "hash": decision.hash, "deployment": deployment}
    figures["workspace"] = None if root is None else str(root)
    if output is not None:
        page = Report(f"Gate of {decision.candidate}", f"{file}, decided {decision.made}")
        with finishing(output):
            write_json(output / "decision.json", decision.to_json())
            write_report(page, lambda page: gate_section(page, decision), output / "report.html", console)
            figures = write_result(output, figures)
    return figures, 0 if decision.passed else 1


def _decide(config: GateConfig, file: Path, registry: Registry | None) -> GateDecision:
    """Find the policies, read their evaluations, and ask."""
    mine = _policy(config.candidate, file, registry)
    theirs = None if config.champion is None else _champion(config.champion, file, registry)
    now = None if registry is None else registry.aliases().get("champion")
    if config.champion is None and now not in (None, mine.reference):
        raise InputError(
            f"{file} says that there is no champion yet (champion: null), and there is one, {now}. Compare with it: "
            "champion: champion."
        )
    evidence = config.evidence
    candidate = [] if evidence is None else [Evaluation.read(folder) for folder in evidence.candidate]
    champion = [] if evidence is None else [Evaluation.read(folder) for folder in evidence.champion]
    if registry is not None:
        for evaluation in (*candidate, *champion):
            registry.keep(evaluation)
    named = config
    if registry is not None:
        update = {"candidate": mine.reference, "champion": None if theirs is None else theirs.reference}
        named = config.model_copy(update=update)
    known = Known(
        candidate_hash=mine.policy or "",
        champion_hash="" if theirs is None else theirs.policy or "",
        contract=mine.record.get("contract"),
        trained=None if registry is None else trained_on(registry.workspace, mine.policy),
        stored=None if registry is None else [path.name for path in stored(registry.workspace.root / "scenarios")],
        spent="" if registry is None or config.looks == "any" else _spent(registry, mine, [*candidate, *champion]),
    )
    return gate(named, candidate, champion, known=known)


def _policy(said: str, file: Path, registry: Registry | None) -> Version:
    """A version of the registry; a folder is added to it. Without a workspace a folder stands for itself."""
    folder = file.parent / said
    is_folder = (folder / "config.json").is_file()
    if registry is not None:
        return registry.version(registry.add(folder) if is_folder else said)
    if not is_folder:
        raise InputError(
            f"{said} is no folder of a saved policy beside {file}, and there is no workspace whose registry could know "
            "it. Give a folder, or --workspace."
        )
    config = config_of(folder)
    return Version(
        name=folder.resolve().name,
        version=0,
        hash="",
        policy=config.get("hash"),
        record={"contract": config.get("contract")},
        added="",
        added_by="",
    )


def _champion(said: str, file: Path, registry: Registry | None) -> Version:
    try:
        return _policy(said, file, registry)
    except UnknownNameError as error:
        if said != "champion" or registry is None:
            raise
        raise InputError(
            f"{registry.deployment} has no champion yet. For the first one write `champion: null` in {file}: its floor "
            "decides then."
        ) from error


def _spent(registry: Registry, candidate: Version, evidence: list[Evaluation]) -> str:
    """Whether the one look was taken before, at other trials."""
    hashes = tuple(one.hash for one in evidence)
    for before in registry.decisions(candidate.reference):
        if before.looks == "once" and before.looked and before.evidence != hashes:
            return f"looks: once, and α was spent on {before.made} at other trials of it; use looks: any"
    return ""
