"""Identification of a twin from logs of commands and positions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import UnknownNameError
from twinloop.core.files import sha256_bytes, sha256_json
from twinloop.core.records import Episode
from twinloop.identify.assembly import fit_space
from twinloop.identify.bootstrap import refit_bootstrap
from twinloop.identify.bounds import narrowed
from twinloop.identify.checkpoint import Checkpoint
from twinloop.identify.config import FitConfig
from twinloop.identify.holdout import HoldoutSpec
from twinloop.identify.problem import linearize
from twinloop.identify.profile import profile_likelihood
from twinloop.identify.result import IdentifyResult
from twinloop.identify.space import Space
from twinloop.identify.summary import distribution, estimates, evidence, notes, residual_summary
from twinloop.identify.uncertainty import fit_clusters, uncertainty
from twinloop.identify.uncertainty_clusters import FrameTimes
from twinloop.identify.walk import FitProgress, walk
from twinloop.simulate import Backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayLogs, prepare_replay
from twinloop.stats import Interval, bootstrap_mean, mae
from twinloop.twin import Twin


def identify(
    twin: Twin,
    episodes: Sequence[Episode],
    *,
    backend: Backend,
    holdout: HoldoutSpec | None = None,
    config: FitConfig | None = None,
    progress: Callable[[FitProgress], None] | None = None,
) -> IdentifyResult:
    """Fit the twin's parameters to the episodes that are not held out.

    Each episode, or each window of it, is replayed open loop from its first frame; Huber's loss keeps frames that the
    twin cannot explain (a gripper closed on an object) from pulling. Delay starts from the shift that fits best. Where
    the log is quantized by an encoder of known counts, ``sensor/J/scale`` is read off the quantization and not fitted.

    An interrupt (Ctrl-C) during the walk ends it there: the result holds the best that was found, and says so.

    Args:
        twin: the twin.
        episodes: the log.
        backend: where it is replayed.
        holdout: which episodes the fit must not see.
        config: how it walks.
        progress: is told after every step how far the walk is.

    Raises:
        LogError, InputError: the log does not fit the twin, the hold-out leaves nothing to train on, the twin cannot be
            replayed from any start, or the checkpoint is another fit's.
    """
    began, config = time.perf_counter(), config or FitConfig()
    logs = prepare_replay(twin, episodes, config.replay)
    numbers = list(dict.fromkeys(logs.numbers))
    trained, held_out = ([numbers[i] for i in rows] for rows in (holdout or HoldoutSpec(kind="none")).split(numbers))
    training, held = logs.of_episodes(trained), logs.of_episodes(held_out)
    space, scales = fit_space(training, config)
    for name in config.profile:
        if name not in space.names:
            raise UnknownNameError("free parameter", name, space.names, where="--profile")
    fixed = space.fixed
    space, excluded = narrowed(space, config.bounds, config.start)
    checkpoint = Checkpoint(config.checkpoint, _fingerprint(training, space, config))
    walked = walk(backend, training, space, config, checkpoint, progress=progress)
    problem, solution = walked.problem, walked.solution
    alone = len(problem.blocks) > 1
    end = linearize(problem, solution.point, solution.end.local, alone=True) if alone else solution.end
    times = FrameTimes(begins=training.begins, dt=1.0 / training.twin.control_hz)
    clusters = fit_clusters(problem, end, times=times) if config.bootstrap else None
    refits = refit_bootstrap(problem, end, clusters, draws=config.bootstrap) if clusters else None
    found = uncertainty(problem, end, space.names, times=times, level=config.level, refits=refits)
    profiles = [profile_likelihood(problem, end, space, found, n, checkpoint=checkpoint) for n in config.profile]
    values = {name: float(value) for name, value in space.values(solution.point).items()}
    readings = _readings(backend, training, {**fixed, **values})
    # Where first states were corrected, what is left over is what the corrected windows leave.
    left = end.residual * problem.width if training.nlocal else readings - training.measured
    return IdentifyResult(
        distribution=distribution(space, solution.point, found, scales, training),
        estimates=estimates(space, solution.point, found, scales),
        joints=tuple(channel.name.removeprefix("position/") for channel in logs.channels),
        log_units=tuple(channel.unit for channel in logs.channels),
        training=tuple(trained),
        holdout=tuple(held_out),
        training_error=mae(readings, training.measured),
        nominal_training_error=mae(_readings(backend, training, {}), training.measured),
        holdout_error=_holdout_error(backend, held, {**fixed, **values}, config.level),
        condition=found.condition,
        directions=found.directions,
        residuals=residual_summary(left),
        evidence=evidence(problem, found),
        converged=solution.converged,
        worlds_replayed=walked.worlds + alone * (len(space.names) + 1),
        seconds=time.perf_counter() - began,
        notes=(*notes(logs, scales, held_out, space.names, found), *excluded, *walked.notes),
        profiles=tuple(profiles),
        optima=tuple({n: float(v) for n, v in space.values(o.point).items()} for o in walked.optima),
    )


def _fingerprint(logs: ReplayLogs, space: Space, config: FitConfig) -> dict[str, str]:
    """What makes a fit this one, by what a person would call it."""
    return {
        "twin": logs.twin.hash,
        "data": sha256_bytes(logs.commands.tobytes(), logs.measured.tobytes()),
        "parameters": ", ".join(space.names),
        "settings": sha256_json(asdict(replace(config, checkpoint=None, bootstrap=0, profile=()))),
    }


def _readings(backend: Backend, logs: ReplayLogs, values: Mapping[str, float]) -> NDArray[np.float64]:
    return replay(backend, logs, logs.twin.table(1, values))[0]


def _holdout_error(backend: Backend, logs: ReplayLogs, values: Mapping[str, float], level: float) -> Interval | None:
    """Mean absolute error of the held-out episodes per joint; bounded only where there are two to compare."""
    if not len(logs):
        return None
    errors = logs.episode_errors(_readings(backend, logs, values))
    if len(errors) == 1:
        unknown = np.full(errors.shape[1], np.nan)
        return Interval(estimate=errors[0], low=unknown, high=unknown, level=level, method="one episode, no interval")
    return bootstrap_mean(errors, weights=logs.episode_lengths, level=level)
