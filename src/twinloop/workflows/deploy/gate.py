"""Run ``twinloop gate``: read the gate file and the evaluations, apply every rule, and store the decision."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console

from twinloop.catalog import Workspace
from twinloop.core.decision import GateDecision, RuleVerdict
from twinloop.core.errors import DatasetError, InputError, UnknownNameError
from twinloop.core.evaluation import Evaluation
from twinloop.core.files import write_json
from twinloop.policies.folder import find_onnx
from twinloop.release import PolicyRegistry, PolicyVersion
from twinloop.release.gate import GateContext, gate
from twinloop.release.gate_config import GateConfig, read_gate
from twinloop.release.version import find_trained_hash, read_config, read_training_record
from twinloop.report import KeyMetric, ReportPage
from twinloop.report.page import Tone
from twinloop.rollout.scenario_files import list_scenarios
from twinloop.workflows.deploy.requests import GateRequest
from twinloop.workflows.run.results import claim_output, lock_run_folder, write_report, write_result

_MOST_ROWS = 30
_PAIRED = ("pairs", "wins", "losses", "difference", "low", "p_value")
# Columns of the tables with the evidence of a rule.
_ROWS = {
    "slices": ("slice", "answer", "successes", "trials", "rate", *_PAIRED),
    "effects": ("effect", *_PAIRED, "missing"),
    "parameters": ("name", "identified", "drawn", "inside"),
}


def gate_section(page: ReportPage, decision: GateDecision) -> None:
    """Add a gate's decision to a report, with the table of rules and the evidence of each rule."""
    tone: Tone = "good" if decision.passed else "bad"
    page.key_metrics(
        [
            KeyMetric(label="decision", value="yes" if decision.passed else "no", tone=tone),
            KeyMetric(label="candidate", value=decision.candidate, source=decision.candidate_hash[:16]),
            KeyMetric(label="champion", value=decision.champion or "none yet", source=decision.champion_hash[:16]),
            KeyMetric(label="α", value=decision.alpha, source=f"looks: {decision.looks}"),
            KeyMetric(label="trials on a robot", value=decision.robot_trials, source="of the candidate"),
        ]
    )
    rows = [[rule.rule, rule.verdict, rule.requirement, rule.reason] for rule in decision.rules]
    tones: dict[tuple[int, int], Tone] = {
        (number, 1): "good" if rule.verdict == "yes" else "bad"
        for number, rule in enumerate(decision.rules)
        if rule.verdict not in ("waived", "none")
    }
    page.table(["rule", "verdict", "requirement", "result"], rows, tones=tones)
    for rule in decision.rules:
        _details(page, rule)
    page.section(
        "How to read this",
        "Every rule must have the verdict yes. Missing evidence counts as a no. A rule with the verdict waived was "
        "switched off by a person; the reason is in the table. The verdict `none` means that the rule does not apply: "
        "there is no champion yet, or there are no trials on a robot.\n\n"
        f"α = {decision.alpha:g} is the probability of a yes for a candidate that violates a tested rule. It is not "
        "divided among rules and slices, because all of them must pass; only effects of which one suffices share it. "
        + (
            "The tests are valid however often they are repeated while trials are added."
            if decision.looks == "any"
            else "The tests are exact for this one evaluation: it must not be repeated after more trials."
        ),
    )


def _details(page: ReportPage, rule: RuleVerdict) -> None:
    """Add tables with the evidence of a rule by slice (condition of a suite), physical effect or parameter."""
    for key, columns in _ROWS.items():
        rows: list[dict[str, Any]] = list(rule.evidence.get(key, ()))
        if not rows:
            continue
        names = [name for name in columns if any(name in row for row in rows)]
        shown = [[_format_cell(row.get(name)) for name in names] for row in rows[:_MOST_ROWS]]
        left = f"{len(rows) - _MOST_ROWS} more in decision.json" if len(rows) > _MOST_ROWS else ""
        order = "worst first" if key == "slices" else ""
        page.section(f"{rule.rule.capitalize()}, {key.removesuffix('s')} by {key.removesuffix('s')}")
        page.table(names, shown, caption="; ".join(part for part in (order, left) if part))


def _format_cell(value: Any) -> Any:
    return f"{value[0]:.4g} to {value[1]:.4g}" if isinstance(value, list) and len(value) == 2 else value


def run_gate(request: GateRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Decide whether a candidate may replace the champion; print and store the decision.

    In a workspace, a positive decision makes the policy the candidate, which `twinloop promote` accepts.

    Returns:
        The decision, and exit code 1 if it is negative, else 0.

    Raises:
        InputError: If the gate file or an evaluation is invalid, or a policy is not a folder and there is no workspace.
        UnknownNameError: If there is no such policy version.
    """
    config = read_gate(request.file)
    if request.output is not None:
        claim_output(request.output)
    root = request.workspace or Workspace.find(request.file.absolute().parent)
    with nullcontext() if root is None else Workspace.open(root) as held:
        registry = None if held is None else PolicyRegistry(held, deployment=request.deployment)
        decision = _decide(config, request.file, registry)
        if registry is not None:
            registry.record_decision(decision)
    for line in decision.format_lines():
        console.print(line, soft_wrap=True)
    result = {**decision.to_json(), "verb": "gate", "hash": decision.hash, "deployment": request.deployment}
    result["workspace"] = None if root is None else str(root)
    if request.output is not None:
        page = ReportPage(f"Gate of {decision.candidate}", f"{request.file}, decided {decision.made}")
        with lock_run_folder(request.output):
            write_json(request.output / "decision.json", decision.to_json())
            write_report(page, lambda page: gate_section(page, decision), request.output / "report.html", console)
            result = write_result(request.output, result)
    return result, 0 if decision.passed else 1


def _decide(config: GateConfig, file: Path, registry: PolicyRegistry | None) -> GateDecision:
    """Find the policies of a gate file, read their evaluations, and apply the rules.

    Args:
        config: content of the gate file.
        file: path of the gate file; policy folders are relative to its folder.
        registry: registry of the workspace, or None without a workspace.
    """
    candidate_folder, mine = _find_policy(config.candidate, file, registry)
    champion_folder, theirs = (
        (None, None) if config.champion is None else _find_champion(config.champion, file, registry)
    )
    now = None if registry is None else registry.aliases().get("champion")
    if config.champion is None and now not in (None, mine.reference):
        raise InputError(
            f"{file} states that there is no champion yet (champion: null), but {now} is the champion. To "
            "compare with it, write champion: champion."
        )
    evidence = config.evidence
    candidate = [] if evidence is None else [Evaluation.read(folder) for folder in evidence.candidate]
    champion = [] if evidence is None else [Evaluation.read(folder) for folder in evidence.champion]
    named = config
    if registry is not None:
        update = {"candidate": mine.reference, "champion": None if theirs is None else theirs.reference}
        named = config.model_copy(update=update)
    trained = find_trained_hash(read_config(candidate_folder), mine.policy)
    known = GateContext(
        candidate_hash=mine.policy or "",
        champion_hash="" if theirs is None else theirs.policy or "",
        contract=mine.record.get("contract"),
        folder=candidate_folder,
        training=None if registry is None else read_training_record(registry.workspace, trained),
        stored_scenarios=None
        if registry is None
        else [path.name for path in list_scenarios(registry.workspace.root / "scenarios")],
        look_used=""
        if registry is None or config.looks == "any" or not mine.added
        else _find_spent_alpha(registry, mine, [*candidate, *champion]),
    )
    decision = gate(named, candidate, champion, context=known)
    if registry is not None:  # after all errors: a refused file registers nothing
        _register(registry, {candidate_folder: mine, champion_folder: theirs}, [*candidate, *champion])
    return decision


def _register(
    registry: PolicyRegistry, policies: Mapping[Path | None, PolicyVersion | None], evidence: list[Evaluation]
) -> None:
    """Add the policies of a gate that were given as folders, and store the evaluations.

    Args:
        registry: registry of the workspace.
        policies: described versions, by their folders; versions of the registry itself are not added.
        evidence: evaluations of the gate.

    Raises:
        DatasetError: If another process has added a version of the same name in the meantime.
    """
    for folder, version in policies.items():
        if folder is None or version is None or version.added:
            continue
        reference = registry.add(folder, policy=version.policy)
        if reference != version.reference:
            raise DatasetError(
                f"{folder} was added as {reference}, because another process added {version.reference} meanwhile. "
                "Run the gate again."
            )
    for evaluation in evidence:
        registry.store_evaluation(evaluation)


def _find_policy(reference: str, file: Path, registry: PolicyRegistry | None) -> tuple[Path, PolicyVersion]:
    """Return the folder of a policy and its version. A policy that is not in the registry yet is not added.

    Args:
        reference: the policy in the gate file: a folder relative to the file, or a name in the registry.
        file: path of the gate file.
        registry: registry; None if there is no workspace, and the policy must then be a folder.

    Raises:
        InputError: If the policy is not a folder, and there is no registry.
        UnknownNameError: If the registry has no such version.
    """
    folder = file.parent / reference
    is_folder = (folder / "config.json").is_file() or find_onnx(folder) is not None
    if registry is not None:
        if is_folder:
            return folder, registry.describe(folder)
        return registry.folder(reference), registry.version(reference)
    if not is_folder:
        raise InputError(
            f"{reference} is not the folder of a saved policy next to {file}, and there is no workspace with a "
            "registry that may contain it. Give a folder, or --workspace."
        )
    config = read_config(folder)
    return folder, PolicyVersion(
        name=folder.resolve().name,
        version=0,
        hash="",
        policy=config.get("hash"),
        record={"contract": config.get("contract")},
        added="",
        added_by="",
    )


def _find_champion(
    reference: str | None, file: Path, registry: PolicyRegistry | None
) -> tuple[Path | None, PolicyVersion | None]:
    if reference is None:
        return None, None
    try:
        return _find_policy(reference, file, registry)
    except UnknownNameError as error:
        if reference != "champion" or registry is None:
            raise
        raise InputError(
            f"{registry.deployment} has no champion yet. For the first champion write `champion: null` in {file}: the "
            "rule `floor` then decides."
        ) from error


def _find_spent_alpha(registry: PolicyRegistry, candidate: PolicyVersion, evidence: list[Evaluation]) -> str:
    """Return a message if the only test of a gate with ``looks: once`` was already made with other trials, else "".

    ``looks: once`` gives the significance level α to a single test of the candidate. A second test with more trials is
    therefore not valid.
    """
    hashes = tuple(one.hash for one in evidence)
    for before in registry.decisions(candidate.reference):
        if before.looks == "once" and before.is_tested and before.evidence != hashes:
            return f"looks: once, but α was spent on {before.made} for other trials of the candidate; use looks: any"
    return ""
