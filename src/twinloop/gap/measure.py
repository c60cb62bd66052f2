"""Measuring the gap of a twin against recorded episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError
from twinloop.core.records import Episode
from twinloop.gap.baselines import baselines
from twinloop.gap.report import GapReport
from twinloop.simulate import Backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayLogs, ReplayOptions, prepare_replay
from twinloop.stats import Interval, bootstrap_mean, bootstrap_paired
from twinloop.twin import Twin

Params = Mapping[str, float] | ParamDistribution


def measure_gap(
    twin: Twin,
    episodes: Sequence[Episode],
    *,
    backend: Backend,
    params: Params | None = None,
    options: ReplayOptions | None = None,
    training: Sequence[Episode] | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> GapReport:
    """How far the twin's replay of the recorded commands is from the recorded positions.

    Args:
        twin: the twin; its nominal parameters are always measured.
        episodes: the episodes to measure on, held out from whatever ``params`` were fitted to.
        backend: where the replays run.
        params: identified parameters, SI values by name or a distribution, of which the estimate is taken.
        options: how the episodes are cut into windows and what is compared; whole episodes and joint positions
            without it.
        training: episodes on which the baseline's delay is chosen; without them it is chosen on ``episodes``
            themselves, which favours the baseline, and is said so.
        level: confidence level of the intervals, which are bootstrapped over episodes.
        seed: of the bootstrap.

    Raises:
        LogError: the episodes do not fit the twin.
        UnknownNameError, BoundsError: a parameter that the twin has not, or a value outside its bounds.
        InputError: the replay diverges with these parameters.
    """
    logs = prepare_replay(twin, episodes, options)
    lag_logs = logs if training is None else prepare_replay(twin, training, options)
    values = dict(params.estimate) if isinstance(params, ParamDistribution) else params
    guesses = baselines(logs, lag_logs)
    errors = {guess.name: logs.episode_errors(guess.readings) for guess in guesses}
    errors["nominal"] = _twin_errors(backend, logs, {})
    if values is not None:
        errors["identified"] = _twin_errors(backend, logs, values)
    lengths = logs.episode_lengths
    means = {name: _mean(table, lengths, level, seed) for name, table in errors.items()}
    chosen_on = (
        "the measured episodes themselves" if training is None else f"{len(lag_logs.episodes)} training episodes"
    )
    return GapReport(
        joints=tuple(channel.name.removeprefix("position/") for channel in logs.channels),
        log_units=tuple(channel.unit for channel in logs.channels),
        episodes=logs.episodes,
        twins={name: means[name] for name in ("nominal", "identified") if name in means},
        baselines={guess.name: means[guess.name] for guess in guesses},
        meanings={
            guess.name: guess.meaning + (f" (chosen on {chosen_on})" if guess.name == "delay" else "")
            for guess in guesses
        },
        improvement=_improvement(errors, lengths, level, seed),
        episode_errors=errors,
        lengths=lengths,
        source=", ".join(sorted({episode.source for episode in episodes})),
    )


def _twin_errors(backend: Backend, logs: ReplayLogs, values: Mapping[str, float]) -> NDArray[np.float64]:
    readings = replay(backend, logs, logs.twin.table(1, values))[0]
    if np.isinf(readings).any():
        lost = logs.numbers[int(np.argwhere(np.isinf(readings))[0, 0])]
        raise InputError(
            f"The twin {logs.twin.name} diverges in episode {lost} with these parameters. "
            "More substeps in the twin's YAML, or less extreme parameters, keep it finite."
        )
    return logs.episode_errors(readings)


def _mean(errors: NDArray[np.float64], lengths: NDArray[np.float64], level: float, seed: int) -> Interval:
    """Mean over frames of all episodes with its interval; a single episode has none (NaN)."""
    if len(errors) > 1:
        return bootstrap_mean(errors, weights=lengths, level=level, seed=seed)
    unknown = np.full(errors.shape[1], np.nan)
    return Interval(estimate=errors[0], low=unknown, high=unknown, level=level, method="one episode, no interval")


def _improvement(
    errors: Mapping[str, NDArray[np.float64]], lengths: NDArray[np.float64], level: float, seed: int
) -> Interval | None:
    if "identified" not in errors or len(lengths) == 1:
        return None
    return bootstrap_paired(errors["nominal"], errors["identified"], weights=lengths, level=level, seed=seed)
