"""Run ``twinloop monitor``: calibrate a monitor on successful episodes, and check recorded episodes with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from twinloop.core.contract import STATE, Contract
from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.policies import Predictor
from twinloop.policies.folder import is_policy_path
from twinloop.randomize import read_identified
from twinloop.release.monitor.calibration import (
    RATE,
    Calibration,
    CalibrationOrigin,
    fit_calibration,
    require_enough,
    save_monitor_calibration,
)
from twinloop.release.monitor.faults import compute_signatures, weight_load_signature
from twinloop.release.monitor.live import LiveMonitor, check_policy
from twinloop.release.monitor.recorded import (
    MonitorVerdict,
    RecordedEpisodes,
    compute_held_share,
    compute_rows,
    make_references,
    monitor_recorded,
)
from twinloop.report import KeyMetric, ReportPage
from twinloop.stats import wilson
from twinloop.twin import Twin
from twinloop.workflows.deploy.monitor_episodes import build_contract, read_episodes, require_same_policy
from twinloop.workflows.deploy.requests import MonitorCalibrateRequest, MonitorCheckRequest
from twinloop.workflows.run.results import claim_output, write_result, write_run
from twinloop.workflows.run.twin_and_task import load_requested_twin
from twinloop.workflows.scenario.references import policy_folder

_LISTED = 40


def monitor_section(page: ReportPage, verdicts: Sequence[MonitorVerdict], result: Mapping[str, Any]) -> None:
    """Add a monitor's results to a report: alarms with their likely causes, and the scores by signal.

    Args:
        page: the report page.
        verdicts: verdict of the monitor for each episode.
        result: metrics of the check, as in ``result.json``.
    """
    wrong = result["low"] > result["promised"] or bool(result["course"])
    page.key_metrics(
        [
            KeyMetric(label="episodes", value=result["episodes"]),
            KeyMetric(label="with an alarm", value=result["alarmed"], tone="bad" if wrong else None),
            KeyMetric(label="calibrated false alarms", value=100 * result["promised"], unit="%"),
        ]
    )
    page.text(
        f"Between {100 * result['low']:.1f} and {100 * result['high']:.1f} % of such episodes alarm (95 %, Wilson)."
    )
    for said in result["course"]:
        page.text(said)
    if result["causes"]:
        page.section("Likely causes of the alarms")
        page.table(["cause", "episodes"], [[cause, str(count)] for cause, count in result["causes"].items()])
    names = list(verdicts[0].scores)
    page.section("Signals", "The largest score of each episode, in units of the limit: a score above 1 is an alarm.")
    rows = []
    for name in names:
        values = sorted(one.scores[name] for one in verdicts)
        over = sum(value > 1.0 for value in values)
        rows.append([name, f"{values[len(values) // 2]:.2f}", f"{values[-1]:.2f}", str(over)])
    page.table(["signal", "median episode", "worst episode", "episodes above the limit"], rows)
    alarmed = [one for one in verdicts if one.alarms]
    if alarmed:
        page.section("Alarms", f"First alarms, for {min(len(alarmed), _LISTED)} of {len(alarmed)} episodes.")
        page.table(
            ["episode", "likely cause", "first alarm"],
            [[one.name, one.cause, str(one.alarms[0])] for one in alarmed[:_LISTED]],
        )


_TRIED = 8  # episodes whose commands are simulated with each fault; a signature is their mean (our choice)


def run_monitor_calibrate(request: MonitorCalibrateRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Calibrate a monitor on the successful episodes of a dataset and save it in a folder.

    Returns:
        The metrics of the calibration, and exit code 0.

    Raises:
        InputError: If no outcomes are recorded, there are too few successes for the false-alarm rate, the policy does
            not fit the data, or an option is invalid.
    """
    if not 0.0 < request.rate < 1.0:
        raise InputError(
            f"--rate {request.rate:g} is not a probability of a false alarm per episode. Give one between 0 and 1."
        )
    claim_output(request.output)
    model, (acting, name) = (
        load_requested_twin(request.twin, request.output, request.policy),
        _open_named_policy(request.policy),
    )
    row = _load_parameters(model, request.params)
    require_same_policy(request.data, name, getattr(acting, "hash", ""))
    recorded = read_episodes(request.data, cameras=request.camera, policy=acting)
    known = np.isfinite(recorded.success)
    if not known.any():
        raise InputError(f"{request.data} does not state which episodes succeeded. Label them with `twinloop label`.")
    successes = recorded.take(recorded.success == 1.0)
    contract = build_contract(request.data, model) if acting is None else acting.contract
    calibration = calibrate_monitor(
        successes,
        model,
        contract,
        params=row,
        policy=acting,
        name=name,
        cameras=request.camera,
        rate=request.rate,
        seed=request.seed,
        nthread=request.threads,
        success_rate=float(recorded.success[known].mean()),
    )
    made = save_monitor_calibration(calibration, request.output)
    result = _calibration_to_json(calibration, made, request.output)
    write_result(request.output, result)
    console.print(
        f"{result['episodes']} successes of {request.data}; {calibration.band.count} of them set the thresholds."
    )
    console.print(f"Signals: {', '.join(calibration.signals)}")
    console.print(f"Calibrated false alarms: {100 * request.rate:g} % of episodes, for all signals together.")
    console.print(f"Monitor {made[:12]}: {request.output}")
    return result, 0


def calibrate_monitor(
    successes: RecordedEpisodes,
    twin: Twin,
    contract: Contract,
    *,
    params: ParamTable | None = None,
    policy: Predictor | None = None,
    name: str = "",
    cameras: tuple[str, ...] = (),
    rate: float = RATE,
    seed: int = 0,
    nthread: int = 1,
    success_rate: float | None = None,
) -> Calibration:
    """Calibrate a monitor on successful episodes, and simulate faults in the twin to recognize their effects later.

    Args:
        successes: the successful episodes.
        twin: twin of the robot.
        contract: units and columns of observations and commands.
        params: one row of parameters of the twin; by default nominal values.
        policy: the policy of the episodes; if None, only robot and scene are monitored.
        name: permanent name of the policy, recorded in the calibration.
        cameras: cameras whose images are monitored.
        rate: probability of a false alarm in an episode, for all signals together.
        seed: seed of the random split of the episodes.
        nthread: number of simulation threads; 0 uses every core.
        success_rate: share of successes in the dataset, recorded in the calibration; None if unknown.

    Raises:
        InputError: If there are too few episodes for the rate, or the contract has no joint positions.
    """
    require_enough(len(successes), rate)
    table = twin.table(1) if params is None else params
    images = make_references(successes, cameras)
    streams, rows = compute_rows(successes, twin, contract, params=table, policy=policy, images=images, nthread=nthread)
    first = contract.state.to_si(successes.observation[STATE][:_TRIED, 0]) if contract.state else None
    if first is None:
        raise InputError("The contract of the policy has no joint positions. Add them, with units, for the monitor.")
    sent = contract.command_units.to_si(successes.commands[:_TRIED])
    hypotheses, signature = compute_signatures(twin, table, first, sent, nthread=nthread)
    signature = weight_load_signature(
        signature, hypotheses, compute_held_share(successes, twin, contract), twin.control_hz
    )
    origin = CalibrationOrigin(
        policy=name,
        policy_hash=getattr(policy, "hash", ""),
        twin=twin.name,
        twin_hash=twin.hash,
        contract=contract,
        source=successes.source,
        params={key: value for key, value in table.row(0).items() if value != twin.params[key].nominal},
        success_rate=success_rate,
    )
    return fit_calibration(
        rows,
        successes.commands,
        origin,
        hypotheses=hypotheses,
        signature=signature,
        arm=streams.arm,
        images=images,
        rate=rate,
        seed=seed,
    )


def run_monitor_check(request: MonitorCheckRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Check recorded episodes with a monitor, and print the alarms with their likely causes.

    Returns:
        The metrics, and exit code 1 if significantly more episodes alarm than calibrated or the scores drift, else 0.

    Raises:
        InputError: If the policy or the twin differs from that of the calibration, or an option is invalid.
    """
    if request.output is not None:
        claim_output(request.output)
    model, (acting, name) = (
        load_requested_twin(request.twin, request.output, request.policy),
        _open_named_policy(request.policy),
    )
    monitor = LiveMonitor.open(request.monitor, model, nthread=request.threads)
    origin = monitor.calibration.origin
    if acting is None and origin.policy_hash:
        raise InputError(
            f"{request.monitor} was calibrated with the policy {origin.policy or origin.policy_hash[:12]}. Add "
            f"--policy {origin.policy or 'FOLDER'}."
        )
    check_policy(origin.policy_hash, getattr(acting, "hash", ""), where=str(request.monitor))
    require_same_policy(request.data, name, getattr(acting, "hash", ""))
    cameras = tuple(monitor.calibration.images)
    verdicts = monitor_recorded(read_episodes(request.data, cameras=cameras, policy=acting), monitor, acting)
    result = {
        **_summarize_verdicts(verdicts, monitor, request.data),
        "policy": name,
        "policy_hash": getattr(acting, "hash", ""),
    }
    _print_verdicts(verdicts, result, console)
    if request.output is not None:
        page = ReportPage(f"Monitor check of {request.data.name}", f"monitor {monitor.hash[:12]}")
        write_run(request.output, result, page, lambda made: monitor_section(made, verdicts, result), console)
    return result, int(bool(result["course"]) or result["low"] > monitor.calibration.band.rate)


def _summarize_verdicts(verdicts: Sequence[MonitorVerdict], monitor: LiveMonitor, data: Path) -> dict[str, Any]:
    alarmed = [one for one in verdicts if one.alarms]
    share = wilson(len(alarmed), len(verdicts))
    return {
        "data": str(data),
        "monitor": monitor.hash,
        "promised": monitor.calibration.band.rate,
        "episodes": len(verdicts),
        "alarmed": len(alarmed),
        "low": float(share.low),
        "high": float(share.high),
        "causes": dict(Counter(one.cause for one in alarmed).most_common()),
        "course": list(verdicts[-1].drifts),
        "alarms": [
            {"episode": one.name, "cause": one.cause, "alarms": [alarm.to_json() for alarm in one.alarms]}
            for one in alarmed
        ],
    }


def _print_verdicts(verdicts: Sequence[MonitorVerdict], result: Mapping[str, Any], console: Console) -> None:
    for one in verdicts:
        for alarm in one.alarms[:1]:
            cause = "" if one.cause == "unknown" else f" Likely cause: {one.cause}."
            more = f" Further alarms: {len(one.alarms) - 1}." if len(one.alarms) > 1 else ""
            console.print(f"{one.name}: {alarm}{cause}{more}", soft_wrap=True)
    for said in result["course"]:
        console.print(said, soft_wrap=True)
    console.print(
        f"{result['alarmed']} of {result['episodes']} episodes alarm [{100 * result['low']:.1f}, "
        f"{100 * result['high']:.1f} %]; {100 * result['promised']:g} % was calibrated for episodes without a fault."
    )


def _calibration_to_json(calibration: Calibration, made: str, output: Path) -> dict[str, Any]:
    origin = calibration.origin
    return {
        "monitor": made,
        "output": str(output),
        "policy": origin.policy,
        "policy_hash": origin.policy_hash,
        "twin": origin.twin_hash,
        "episodes": origin.episodes,
        "calibration_episodes": calibration.band.count,
        "rate": calibration.band.rate,
        "signals": list(calibration.signals),
        "limits": calibration.band.together,
    }


def _open_named_policy(reference: str | None) -> tuple[Predictor | None, str]:
    """Return a policy and a permanent name for it: its folder, or NAME@VERSION instead of an alias.

    Returns:
        The policy and its name; None and "" if ``reference`` is None.
    """
    if reference is None:
        return None, ""
    from twinloop.policies import open_policy

    folder = policy_folder(reference)
    return open_policy(folder), reference if is_policy_path(reference) else _resolve_version(reference)


def _resolve_version(reference: str) -> str:
    from twinloop.catalog import Workspace
    from twinloop.release.registry import PolicyRegistry

    with Workspace.open() as workspace:
        return PolicyRegistry(workspace).version(reference).reference


def _load_parameters(twin: Twin, params: Path | None) -> ParamTable:
    """Return one row of a twin's parameters: the estimates of an identify run, or by default nominal values.

    Args:
        twin: the twin.
        params: folder of the identify run, or None.
    """
    if params is None:
        return twin.table(1)
    found = ParamDistribution.from_json(read_identified(params)["distribution"]).estimate
    return twin.table(1, {name: value for name, value in found.items() if name in twin.params})
