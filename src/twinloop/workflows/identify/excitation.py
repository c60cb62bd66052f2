"""Plan an identification (`identify --plan`): parameters that a log determines, and a motion for the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rich.console import Console

from twinloop.core.errors import InputError
from twinloop.hardware.excite import ExcitationPlan, require_plan_name, save_excitation
from twinloop.hardware.limits import motion_limits
from twinloop.identify import FitConfig
from twinloop.identify.excitation import Excitation, ExcitationOptions, suggest_excitation
from twinloop.identify.excitation_motions import MotionTrials
from twinloop.identify.plan import IdentificationPlan, plan_identification
from twinloop.identify.survey import ProfileOptions, ProfileSurvey, survey
from twinloop.simulate import open_backend
from twinloop.twin import Twin, load_twin
from twinloop.workflows.data.logs import LogEpisodes
from twinloop.workflows.identify.requests import IdentifyRequest, PlanOptions
from twinloop.workflows.run.results import claim_output, write_result


def _excitation_options(planning: PlanOptions) -> ExcitationOptions:
    """Return the options of the search for an excitation."""
    return ExcitationOptions(
        duration=planning.duration,
        piece=min(5.0, planning.duration),
        repeat=planning.repeat,
        criterion=planning.optimal,
        seed=planning.plan_seed,
    )


def run_plan(asked: IdentifyRequest, log: LogEpisodes | None, config: FitConfig, console: Console) -> dict[str, Any]:
    """Print which parameters a log, or none, determines; store an excitation and the results, if requested."""
    request, reference, output = asked.planning, asked.twin, asked.output
    if not 0 < request.speed_share <= 1:
        share = f"--speed-share {request.speed_share:g} is no share."
        raise InputError(f"{share} Give more than 0 and at most 1, such as 0.6.")
    twin = load_twin(reference)
    if output is not None:
        claim_output(output)
    if request.excitation is not None:
        require_plan_name(request.excitation)
        _excitation_options(request)
    if twin.spec.robot is None and (log is None or request.excitation is not None):
        raise InputError(f"The twin {twin.name} has no robot that could be moved. Leave --excitation, and give --data.")
    console.print(f"Data: {log.label}" if log else "Data: none yet")
    options = ProfileOptions(seed=request.plan_seed)
    seen = survey(twin, log.episodes if log else (), backend=open_backend(), config=config, options=options)
    suggested = None if request.excitation is None else _suggest_motion(twin, seen, config, request)
    repeat = request.repeat if suggested else 1
    found = plan_identification(seen, suggested, repeat=repeat, data=log.label if log else "")
    console.print(found.text(), soft_wrap=True)
    figures = {**found.to_json(), "verb": "plan", "twin_hash": twin.hash, "excitation": None}
    if suggested is not None and request.excitation is not None:
        made = _build_excitation_plan(reference, twin, suggested, found, request)
        save_excitation(made, request.excitation)
        figures["excitation"] = {"path": str(request.excitation), "seconds": made.seconds, **made.made}
        console.print("\n" + _describe_excitation(made, suggested, request), soft_wrap=True)
    return write_result(output, figures) if output is not None else figures


def _suggest_motion(twin: Twin, seen: ProfileSurvey, config: FitConfig, request: PlanOptions) -> Excitation:
    trials = MotionTrials(
        twin=twin,
        space=replace(seen.space, twin=twin),
        points=seen.points,
        noise=seen.joint_noise(),
        config=config,
        backend=open_backend(),
        limits=motion_limits(twin, speed=request.speed_share),
    )
    open_now = plan_identification(seen).undetermined_parameters
    columns = [i for i, name in enumerate(seen.space.names) if name in open_now] or range(len(seen.space.names))
    return suggest_excitation(trials, seen.told, list(columns), _excitation_options(request))


def _build_excitation_plan(
    reference: str, twin: Twin, suggested: Excitation, found: IdentificationPlan, request: PlanOptions
) -> ExcitationPlan:
    expected: dict[str, Mapping[str, Any]] = {}
    for row in found.parameters:
        then = row.then or row.now
        expected[row.name] = {
            "unit": "relative" if row.log else row.unit,
            "before": float(f"{row.error_in_unit(row.now):.4g}"),
            "after": float(f"{row.error_in_unit(then):.4g}"),
            "verdict": then.verdict,
        }
    return ExcitationPlan(
        twin=reference,
        twin_hash=twin.hash,
        joints=tuple(twin.robot.joints),
        control=twin.robot.control,
        hz=twin.control_hz,
        commands=suggested.commands,
        home=twin.home()[1],
        limits=motion_limits(twin, speed=request.speed_share),
        following=suggested.following,
        repeat=request.repeat,
        expected=expected,
        made={
            "seed": request.plan_seed,
            "criterion": request.optimal,
            "pieces": list(suggested.kinds),
            "gain": suggested.gain,
            "random_gain_mean": suggested.random_gain[0],
            "random_gain_best": suggested.random_gain[1],
            "speed_share": request.speed_share,
            "data": found.data or "none",
        },
    )


def _describe_excitation(made: ExcitationPlan, suggested: Excitation, request: PlanOptions) -> str:
    """Return a text on the excitation, and on its information compared with random motion."""
    mean, best = suggested.random_gain
    unit = " nats" if request.optimal == "D" else ""
    return (
        f"Excitation of {made.seconds:.0f} s, to be recorded {made.repeat} times: {request.excitation}\n"
        f"  pieces: {', '.join(suggested.kinds)}; {suggested.refused} of the pieces drawn break a limit.\n"
        f"  {request.optimal}-criterion {suggested.gain:.2f}{unit}; as many random Fourier series: {mean:.2f} on "
        f"average, {best:.2f} the best of 100.\n"
        f"  Next: twinloop record --robot ADDRESS --excitation {request.excitation} --output DIR"
    )
