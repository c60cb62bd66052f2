"""Fit a residual, which is the motion that no identified parameter explains, and decide on held-out episodes.

The residual action is an offset of each joint's control: piecewise linear in the position, plus terms in the direction
of motion, the velocity and the control error. It is fitted by ridge regression to the errors of the open-loop replay of
the training episodes, which is linearized up to three times. Each joint's penalty is chosen by cross-validation over
these episodes, with the one-standard-error rule; no offset is one of the choices. The remaining errors of the training
episodes give the standard deviation and the correlation time of a random disturbance (an Ornstein-Uhlenbeck process).

Held-out episodes only decide. The action is admitted if it reduces the mean absolute error. The disturbance is admitted
if an ensemble of replays with it has a smaller continuous ranked probability score (CRPS; Gneiting & Raftery, JASA 102,
2007) than the replay without it. The CRPS is the mean absolute error if there is a single prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from twinloop.core.console import fit_column
from twinloop.core.errors import InputError
from twinloop.core.params import SeedPath
from twinloop.core.plain import JsonRecord
from twinloop.simulate import Backend
from twinloop.simulate.command import compute_targets
from twinloop.simulate.replay import replay, replay_motion
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.simulate.residual import ResidualShape, compute_difference
from twinloop.stats import Interval, bootstrap_paired
from twinloop.twin.quantities.world import RESIDUAL_DISTURBANCE
from twinloop.twin.residual_spec import JointResidual, ResidualSpec
from twinloop.twin.variant import add_twin_residual

Array = NDArray[np.float64]

_OFFSETS = 8  # positions between which the offset is linear: our choice, 15 to 45 degrees apart for most joints
_PROBE = 0.01  # of a joint's range of commands: offset with which the response to each term is measured
_MOST = 0.05  # of a joint's range of commands: largest bound
_BOUND = 0.99  # quantile of the absolute offsets in the training episodes
_LEAST_RANGE = 1e-3  # rad or m; a joint that moves less has no residual
_PENALTIES = 10.0 ** np.arange(-4.0, 2.0)  # relative to the mean diagonal of the normal matrix; the last choice is none
_FOLDS = 5
_ITERATIONS = 3  # linearizations
_HUBER = 1.345  # standard deviations; 95 % efficiency for normal errors (Huber 1981)
_NORMAL_MAD = 1.4826  # of a normal distribution: standard deviation over median absolute deviation
_LEAST_HELD_OUT = 6  # with fewer, improvement of every episode has a two-sided probability above 5 % by chance
_ENSEMBLE = 8  # replays of each held-out episode with different disturbances
_CLEAR = 2.5  # standard errors; a probability below 1 % by chance
_LAG = 0.1  # s, between the frames whose covariance gives the correlation time; errors of single frames do not count


@dataclass(frozen=True, kw_only=True)
class Admission(JsonRecord):
    """Decision on a part of the residual by the errors of the held-out episodes without and with it.

    Attributes:
        before: Error of each joint without it in the log's unit, shape ``(njoint,)``.
        after: Error of each joint with it.
        reduction: Relative reduction of the errors, averaged over joints, with its interval over paired episodes.
        reason: Why it is not admitted; "" if it is.
    """

    before: Array
    after: Array
    reduction: Interval
    reason: str
    json_also: ClassVar = ("admitted",)

    @property
    def admitted(self) -> bool:
        """Whether the error falls, with an interval that excludes zero."""
        return not self.reason

    def text(self) -> str:
        """Return the decision with the reduction of the held-out error, as one sentence."""
        decision = "admitted" if self.admitted else f"NOT ADMITTED: {self.reason}"
        if not np.isfinite(self.reduction.estimate):
            return decision
        return f"held-out error reduced by {self.reduction.percent(1)}, {decision}"


@dataclass(frozen=True, kw_only=True)
class ResidualFit(JsonRecord):
    """Fitted residual and the decisions on its two parts.

    Attributes:
        joints: Joints that are compared with the log.
        units: Unit of each joint in the log.
        command_unit: Unit of offsets, bounds and standard deviations.
        fitted: Fitted residual of the joints for which cross-validation chose one; None if there is none.
        action: Decision on the offsets, by the mean absolute error.
        disturbance: Decision on the disturbance, by the CRPS.
        admitted: Admitted parts of the residual; None if no part is admitted.
        training: Numbers of the training episodes.
        holdout: Numbers of the held-out episodes.
    """

    joints: tuple[str, ...]
    units: tuple[str, ...]
    command_unit: str
    fitted: ResidualSpec | None
    action: Admission
    disturbance: Admission
    admitted: ResidualSpec | None
    training: tuple[int, ...]
    holdout: tuple[int, ...]

    def text(self) -> str:
        """Return both decisions and the errors of each joint, as text for a terminal."""
        wide = fit_column(24, self.joints)
        head = f"{'held-out error':<{wide}}{'unit':<18}{'before':>10}{'action':>10}   {'CRPS':>10}{'disturbed':>10}"
        lines = [
            "Residual: motion that no identified parameter explains, as bounded offsets of the commands",
            f"Action: {self.action.text()}.",
            f"Disturbance: {self.disturbance.text()}.",
            f"{head}  {'bound':>9}{'sd':>9} {self.command_unit}  time",
        ]
        parts = (self.action.before, self.action.after, self.disturbance.before, self.disturbance.after)
        for i, joint in enumerate(self.joints):
            before, after, plain, disturbed = (f"{part[i]:>10.3g}" for part in parts)
            found = None if self.fitted is None else self.fitted.joints.get(joint)
            columns = "no residual" if found is None else f"{found.bound:>9.3g}{found.sd:>9.3g}"
            columns += f"    {found.time:.2g} s" if found is not None and found.sd else ""
            lines.append(f"{joint:<{wide}}{self.units[i]:<18}{before}{after}   {plain}{disturbed}  {columns}")
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class _Joints:
    """Joints of a log for which a residual can be fitted.

    Attributes:
        names: Names of the joints.
        actuators: Index of each joint among the robot's joints, shape ``(njoint,)``.
        channels: Index of its position among the compared channels, shape ``(njoint,)``.
        ranges: Range of its commands in the training episodes, shape ``(njoint,)``.
        features: Ranges of position, speed and control error, as arguments of `JointResidual`.
        motion: Position, velocity and control error at the training frames, shape ``(nframe, nu)`` each.
    """

    names: tuple[str, ...]
    actuators: NDArray[np.intp]
    channels: NDArray[np.intp]
    ranges: Array
    features: tuple[Mapping[str, object], ...]
    motion: tuple[Array, Array, Array]

    def spec(self, source: str, weights: Array, bound: Array, sd: Array, time: Array) -> ResidualSpec:
        """Return a residual with the given weights ``(njoint, noffset + 3)``, bounds and disturbances ``(njoint,)``."""
        rows = zip(self.names, self.features, weights, bound, sd, time, strict=True)
        joints = {
            name: JointResidual(
                **ranges,  # pyright: ignore[reportArgumentType]  # the fields of JointResidual
                offsets=row[:_OFFSETS].tolist(),
                direction=float(row[-3]),
                damping=float(row[-2]),
                stiffness=float(row[-1]),
                bound=float(limit),
                sd=float(spread),
                time=float(seconds),
            )
            for name, ranges, row, limit, spread, seconds in rows
        }
        return ResidualSpec(source=source, joints=joints)


class _Replays:
    """Replays of the training and the held-out episodes in the identified twin, with different residuals."""

    def __init__(self, backend: Backend, training: ReplayLogs, held: ReplayLogs, values: Mapping[str, float]) -> None:
        self.backend, self.training, self.held, self.values = backend, training, held, values

    def readings(self, logs: ReplayLogs, residual: ResidualSpec | None, *, worlds: int = 0) -> Array:
        """Return predicted channels, shape ``(nwindow, nframe, nchannel)``, or with disturbances those of every world.

        Args:
            logs: The windows to replay.
            residual: The residual; None for none.
            worlds: Number of worlds with different disturbances; 0 for a replay without a disturbance.
        """
        if residual is not None:
            logs = replace(logs, twin=add_twin_residual(logs.twin, residual))
        if not worlds:
            return replay(self.backend, logs, logs.twin.table(1, self.values))[0]
        table = logs.twin.table(worlds, {**self.values, RESIDUAL_DISTURBANCE: 1.0})
        return replay(self.backend, logs, table.with_seeds(SeedPath.of(0, range(worlds))))


def fit_residual(
    backend: Backend,
    training: ReplayLogs,
    held: ReplayLogs,
    values: Mapping[str, float],
    *,
    level: float = 0.95,
) -> ResidualFit:
    """Fit a residual to the training episodes, and decide on its parts with the held-out episodes.

    Args:
        backend: The backend that simulates the replays.
        training: Windows of the training episodes.
        held: Windows of the held-out episodes, which neither the parameters nor the residual were fitted to.
        values: Identified parameter values by name, SI.
        level: Confidence level of the intervals.

    Raises:
        InputError: If the twin has a residual or no robot, too few episodes are held out, or no joint moves.
    """
    if training.twin.spec.residual is not None:
        raise InputError(f"The twin {training.twin.name} already has a residual. Identify the twin without it.")
    check_holdout(len(held.episodes))
    replays = _Replays(backend, training, held, values)
    joints = _find_joints(replays)
    source = (
        f"fitted to {len(training.episodes)} episodes, held out {len(held.episodes)}, twin {training.twin.hash[:12]}"
    )
    weights, bound = _fit_action(replays, joints, source)
    nothing = np.zeros(len(joints.names))
    fitted = joints.spec(source, weights, bound, nothing, nothing + 1.0) if weights.any() else None
    plain = replays.readings(held, None)
    after = plain if fitted is None else replays.readings(held, fitted)
    errors = held.episode_errors(plain)
    action = _decide(
        joints,
        held,
        errors,
        None if fitted is None else held.episode_errors(after),
        level=level,
        missing="in cross-validation of the training episodes it predicts nothing",
    )
    kept = (weights, bound) if action.admitted else (0.0 * weights, nothing)
    sd, time = _fit_disturbance(replays, joints, joints.spec(source, *kept, nothing, nothing + 1.0))
    disturbed = joints.spec(source, *kept, sd, time)
    errors = held.episode_errors(after) if action.admitted else errors
    scores = _crps(held, replays.readings(held, disturbed, worlds=_ENSEMBLE)) if sd.any() else None
    missing = "the remaining errors of the training episodes are not clearly correlated in time"
    disturbance = _decide(joints, held, errors, scores, level=level, missing=missing)
    admitted = disturbed if disturbance.admitted else fitted if action.admitted else None
    return ResidualFit(
        joints=joints.names,
        units=tuple(training.channels[i].unit for i in joints.channels),
        command_unit={"torque": "N·m", "velocity": "rad/s"}.get(training.twin.robot.control, "rad"),
        fitted=joints.spec(source, weights, bound, sd, time) if weights.any() or sd.any() else None,
        action=action,
        disturbance=disturbance,
        admitted=admitted,
        training=training.episodes,
        holdout=held.episodes,
    )


def check_holdout(count: int) -> None:
    """Raise `InputError` if the number of held-out episodes is too small to decide on a residual."""
    if count < _LEAST_HELD_OUT:
        raise InputError(
            f"A residual is admitted by held-out episodes, of which it needs at least {_LEAST_HELD_OUT}; {count} are "
            f"held out. Give --holdout last:{_LEAST_HELD_OUT} or more."
        )


def _find_joints(replays: _Replays) -> _Joints:
    """Return the joints that the log compares and moves, with the ranges of their motion in the training episodes."""
    logs, twin = replays.training, replays.training.twin
    names = [channel.name for channel in logs.channels]
    table = twin.table(1, replays.values)
    motion = replay_motion(replays.backend, logs, table)
    valid = np.arange(logs.commands.shape[1]) < logs.ends[:, None]
    position, velocity = motion.qpos[..., twin.joint_qpos][valid], motion.qvel[..., twin.joint_qvel][valid]
    control = compute_targets(twin, table, logs.commands[valid])
    difference = compute_difference(twin, control, position, velocity)
    low, high = position.min(axis=0), position.max(axis=0)
    ranges = np.ptp(logs.commands[valid], axis=0)
    chosen = [
        i
        for i, joint in enumerate(twin.robot.joints)
        if f"position/{joint}" in names and high[i] - low[i] > _LEAST_RANGE and ranges[i] > 0
    ]
    if not chosen:
        raise InputError(f"No joint of {twin.name} moves in the log, so that no residual can be fitted.")
    tiny = np.finfo(float).tiny
    features = tuple(
        {
            "positions": (float(low[i]), float(high[i])),
            "speed": max(float(np.abs(velocity[:, i]).max()), tiny),
            "difference": max(float(np.abs(difference[:, i]).max()), tiny),
        }
        for i in chosen
    )
    return _Joints(
        names=tuple(twin.robot.joints[i] for i in chosen),
        actuators=np.array(chosen),
        channels=np.array([names.index(f"position/{twin.robot.joints[i]}") for i in chosen]),
        ranges=ranges[chosen],
        features=features,
        motion=(position, velocity, difference),
    )


def _fit_action(replays: _Replays, joints: _Joints, source: str) -> tuple[Array, Array]:
    """Return the weights ``(njoint, noffset + 3)`` and the bounds ``(njoint,)`` of the residual action.

    The response to each term is measured for all joints in one replay; the effect of a joint's offset on the others is
    neglected. A joint's weights change only if its error in the training episodes falls.
    """
    logs, probe, nothing = replays.training, _PROBE * joints.ranges, np.zeros(len(joints.names))

    def predict(weights: Array) -> Array:
        spec = joints.spec(source, weights * probe[:, None], joints.ranges, nothing, nothing + 1.0)
        return replays.readings(logs, spec)[..., joints.channels]

    measured, terms = logs.measured[..., joints.channels], np.eye(_OFFSETS + 3)
    weights = np.zeros((len(joints.names), len(terms)))
    now = predict(weights)
    for _ in range(_ITERATIONS):
        response = np.stack([predict(weights + term) - now for term in terms], axis=-1)
        target = measured - now + (response * weights).sum(axis=-1)
        columns = range(len(joints.names))
        fit = np.stack([_ridge(response[:, :, i], target[:, :, i], logs.episode_index) for i in columns])
        after = predict(fit)
        better = np.nanmean(np.abs(measured - after), axis=(0, 1)) < np.nanmean(np.abs(measured - now), axis=(0, 1))
        if not better.any():
            break
        weights = np.where(better[:, None], fit, weights)
        now = predict(weights)
    weights = weights * probe[:, None]
    shape = ResidualShape(logs.twin, joints.spec(source, weights, joints.ranges, nothing, nothing + 1.0))
    offsets = (shape.compute_features(*joints.motion) * shape.weights).sum(axis=-1)[:, joints.actuators]
    return weights, np.minimum(np.quantile(np.abs(offsets), _BOUND, axis=0), _MOST * joints.ranges)


def _ridge(response: Array, error: Array, episode: NDArray[np.intp]) -> Array:
    """Return the coefficients of one joint by a robust ridge regression, shape ``(k,)``; 0 if they do not predict.

    Args:
        response: Change of the reading by each of k terms, shape ``(nwindow, nframe, k)``.
        error: Measured minus predicted reading, NaN if not measured, shape ``(nwindow, nframe)``.
        episode: Number of the episode of each window, shape ``(nwindow,)``.
    """
    known = np.isfinite(error) & np.isfinite(response).all(axis=-1)
    x, y = response[known], error[known]
    scale = _NORMAL_MAD * np.median(np.abs(y))
    weight = np.minimum(1.0, _HUBER * scale / np.maximum(np.abs(y), np.finfo(float).tiny))
    fold = np.broadcast_to(episode[:, None] % _FOLDS, known.shape)[known]
    grams, moments, losses = [], [], []
    for number in np.unique(fold):
        rows = fold == number
        weighted = x[rows] * weight[rows, None]
        grams.append(weighted.T @ x[rows])
        moments.append(weighted.T @ y[rows])
        losses.append([])
    whole, moment = np.sum(grams, axis=0), np.sum(moments, axis=0)
    for gram, part, loss in zip(grams, moments, losses, strict=True):
        for penalty in (*_PENALTIES, np.inf):
            fit = _solve(whole - gram, moment - part, penalty)
            loss.append(fit @ gram @ fit - 2.0 * fit @ part)
    return _solve(whole, moment, (*_PENALTIES, np.inf)[_choose_penalty(np.array(losses))])


def _solve(gram: Array, moment: Array, penalty: float) -> Array:
    """Return the ridge coefficients ``(k,)`` from the normal equations; 0 for an infinite penalty."""
    size = np.trace(gram) / len(gram)
    if not np.isfinite(penalty) or size <= 0:
        return np.zeros(len(moment))
    return np.linalg.solve(gram + penalty * size * np.eye(len(gram)), moment)


def _choose_penalty(losses: Array) -> int:
    """Return the index of the largest penalty whose loss is within one standard error of the smallest loss.

    ``losses`` has the shape ``(nfold, npenalty)``, in the order of growing penalties. With a single fold it is the last
    index.
    """
    if len(losses) < 2:
        return losses.shape[1] - 1
    excess = losses - losses[:, [int(np.argmin(losses.sum(axis=0)))]]
    error = excess.std(axis=0, ddof=1) / np.sqrt(len(losses))
    return int(np.flatnonzero(excess.mean(axis=0) <= error)[-1])


def _fit_disturbance(replays: _Replays, joints: _Joints, base: ResidualSpec) -> tuple[Array, Array]:
    """Return the standard deviation and the correlation time in s of each joint's disturbance, ``(njoint,)`` each.

    Covariances of the remaining errors at one and two lags give both, free of errors of single frames. The standard
    deviation of the offset follows from the spread of replays with a known disturbance of the same correlation time.
    """
    logs, hz = replays.training, replays.training.twin.control_hz
    error = (logs.measured - replays.readings(logs, base))[..., joints.channels]
    limit = 3.0 * _NORMAL_MAD * np.nanmedian(np.abs(error), axis=(0, 1))
    error = np.clip(error, -limit, limit)
    lag = max(1, round(_LAG * hz))
    near, far = (_covariance(logs, error, k) for k in (lag, 2 * lag))
    size = np.nanmean(error**2, axis=(0, 1))
    usable = (near > 0) & (far > 0)
    decay = np.clip(np.where(usable, far, 0.0) / np.where(usable, near, 1.0), 1e-6, 1.0 - 1e-3)
    spread = np.sqrt(np.where(usable, np.minimum(near / decay, size), 0.0))
    time = np.where(spread > 0, -lag / hz / np.log(decay), 1.0)
    probe = _PROBE * joints.ranges
    spec = joints.spec(base.source, np.zeros((len(time), _OFFSETS + 3)), 0.0 * probe, probe, time)
    moved = replays.readings(logs, spec, worlds=2)[..., joints.channels]
    reached = np.sqrt(np.nanmean((moved[0] - moved[1]) ** 2, axis=(0, 1)) / 2.0)
    return np.where(reached > 0, probe * spread / np.where(reached > 0, reached, 1.0), 0.0), time


def _covariance(logs: ReplayLogs, error: Array, lag: int) -> Array:
    """Return the covariance of errors at a lag in frames, shape ``(njoint,)``; 0 if it is not clearly positive.

    It is clearly positive if its mean over episodes is at least `_CLEAR` standard errors above zero.
    """
    products = np.nanmean(error[:, :-lag] * error[:, lag:], axis=1)
    rows = np.array([products[logs.episode_index == row].mean(axis=0) for row in range(len(logs.episodes))])
    limit = _CLEAR * rows.std(axis=0, ddof=1) / np.sqrt(len(rows)) if len(rows) > 1 else np.inf
    return np.where(rows.mean(axis=0) > limit, rows.mean(axis=0), 0.0)


def _crps(logs: ReplayLogs, readings: Array) -> Array:
    """Return the mean CRPS of an ensemble ``(nworld, nwindow, nframe, nchannel)``, shape ``(nepisode, nchannel)``.

    It is the mean error of the m members minus half of the mean difference between two different members.
    """
    count = len(readings)
    ordered = np.sort(readings, axis=0)
    factors = (2.0 * np.arange(count) - count + 1.0) / (count * (count - 1.0))
    spread = np.tensordot(factors, ordered, axes=1)
    error = np.mean([logs.episode_errors(member) for member in readings], axis=0)
    return error - logs.episode_errors(logs.measured + np.where(np.isnan(logs.measured), np.nan, spread))


def _decide(
    joints: _Joints, held: ReplayLogs, before: Array, after: Array | None, *, level: float, missing: str
) -> Admission:
    """Return the decision on a part of the residual, from errors without and with it, ``(nepisode, nchannel)`` each.

    ``after`` is None if the training episodes chose no such part, and ``missing`` is the reason then.
    """
    first = before[:, joints.channels]
    second = first if after is None else after[:, joints.channels]
    means = [np.average(each, axis=0, weights=held.episode_lengths) for each in (first, second)]
    if after is None:
        unknown = Interval.of(np.nan, np.nan, np.nan, level=level, method="no residual")
        return Admission(before=means[0], after=means[1], reduction=unknown, reason=missing)
    scale = np.maximum(first.mean(axis=0), np.finfo(float).tiny)
    relative = [(each / scale).mean(axis=1) for each in (first, second)]
    reduction = bootstrap_paired(relative[1], relative[0], level=level)
    reason = "" if reduction.low > 0 else "the interval does not exclude zero"
    return Admission(before=means[0], after=means[1], reduction=reduction, reason=reason)
