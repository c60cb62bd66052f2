"""Plan an identification (`twinloop identify --plan`) before any fit.

The plan lists the parameters that a log determines, and can include an excitation: a motion of the robot that
determines the other parameters.
"""

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
from twinloop.identify.survey import Survey, SurveyOptions, survey
from twinloop.simulate import open_backend
from twinloop.twin import Twin, load_twin
from twinloop.workflows.data.logs import LogEpisodes
from twinloop.workflows.identify.requests import IdentifyRequest, PlanOptions
from twinloop.workflows.run.results import claim_output, write_result


def _excitation_options(planning: PlanOptions) -> ExcitationOptions:
    """Return the options of the search for an excitation (motion that determines parameters)."""
    return ExcitationOptions(
        duration=planning.duration,
        segment_duration=min(5.0, planning.duration),
        repeat=planning.repeat,
        criterion=planning.optimal,
        seed=planning.plan_seed,
    )


def run_plan(request: IdentifyRequest, log: LogEpisodes | None, config: FitConfig, console: Console) -> dict[str, Any]:
    """Print which parameters a log determines; if requested, plan an excitation motion that determines the others.

    Results are stored if the request has an output.

    Args:
        request: the options.
        log: the log; None if no data were recorded yet.
        config: configuration of the planned fit.
        console: output for people.

    Raises:
        InputError: If an option is invalid, or the twin has no robot to move and there is no log.
    """
    planning, reference, output = request.planning, request.twin, request.output
    if not 0 < planning.speed_share <= 1:
        share = f"--speed-share {planning.speed_share:g} is not a share."
        raise InputError(f"{share} Give more than 0 and at most 1, such as 0.6.")
    twin = load_twin(reference)
    if output is not None:
        claim_output(output)
    if planning.excitation is not None:
        require_plan_name(planning.excitation)
        _excitation_options(planning)
    if twin.spec.robot is None and (log is None or planning.excitation is not None):
        raise InputError(f"The twin {twin.name} has no robot that could be moved. Leave --excitation, and give --data.")
    if planning.excitation is not None and twin.robot.control == "velocity":
        raise InputError(
            f"No motion is planned for {twin.name}, because it takes velocities. Leave --excitation, and record its "
            "robot with twinloop record --motion random."
        )
    console.print(f"Data: {log.label}" if log else "Data: none yet")
    options = SurveyOptions(seed=planning.plan_seed)
    surveyed = survey(twin, log.episodes if log else (), backend=open_backend(), config=config, options=options)
    suggested = None if planning.excitation is None else _suggest_motion(twin, surveyed, config, planning)
    repeat = planning.repeat if suggested else 1
    found = plan_identification(surveyed, suggested, repeat=repeat, data=log.label if log else "")
    console.print(found.text(), soft_wrap=True)
    result = {**found.to_json(), "verb": "plan", "twin_hash": twin.hash, "excitation": None}
    if suggested is not None and planning.excitation is not None:
        made = _build_excitation_plan(reference, twin, suggested, found, planning)
        save_excitation(made, planning.excitation)
        result["excitation"] = {"path": str(planning.excitation), "seconds": made.seconds, **made.provenance}
        console.print("\n" + _describe_excitation(made, suggested, planning), soft_wrap=True)
    return write_result(output, result) if output is not None else result


def _suggest_motion(twin: Twin, surveyed: Survey, config: FitConfig, request: PlanOptions) -> Excitation:
    trials = MotionTrials(
        twin=twin,
        space=replace(surveyed.space, twin=twin),
        points=surveyed.points,
        noise=surveyed.joint_noise(),
        config=config,
        backend=open_backend(),
        limits=motion_limits(twin, speed=request.speed_share),
    )
    open_now = plan_identification(surveyed).undetermined_parameters
    columns = [i for i, name in enumerate(surveyed.space.names) if name in open_now] or range(len(surveyed.space.names))
    return suggest_excitation(trials, surveyed.information, list(columns), _excitation_options(request))


def _build_excitation_plan(
    reference: str, twin: Twin, suggested: Excitation, found: IdentificationPlan, request: PlanOptions
) -> ExcitationPlan:
    expected: dict[str, Mapping[str, Any]] = {}
    for row in found.parameters:
        then = row.with_excitation or row.with_data
        expected[row.name] = {
            "unit": "relative" if row.log else row.unit,
            "before": float(f"{row.error_in_unit(row.with_data):.4g}"),
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
        tracking_error=suggested.tracking_error,
        repeat=request.repeat,
        expected=expected,
        provenance={
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


def _describe_excitation(plan: ExcitationPlan, suggested: Excitation, request: PlanOptions) -> str:
    """Return a text on the excitation, with its Fisher-information criterion compared with that of random motion."""
    mean, best = suggested.random_gain
    unit = " nats" if request.optimal == "D" else ""
    return (
        f"Excitation of {plan.seconds:.0f} s, to be recorded {plan.repeat} times: {request.excitation}\n"
        f"  segments: {', '.join(suggested.kinds)}; {suggested.rejected} random segments were rejected "
        "because they break a limit.\n"
        f"  {request.optimal}-criterion {suggested.gain:.2f}{unit}; as many random Fourier series: {mean:.2f} on "
        f"average, {best:.2f} the best of 100.\n"
        f"  Next: twinloop record --robot ADDRESS --excitation {request.excitation} --output DIR"
    )
