"""Infos of a batch as Gymnasium has them: arrays over environments, each with its mask under ``_key``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.envs.batch import WorldBatch

Infos = dict[str, Any]

_KEYS = ("is_success", "episode_number", "elapsed_steps", "invalid")


def world_infos(worlds: WorldBatch, success: NDArray[np.bool_], envs: NDArray[np.intp]) -> Infos:
    """Where the episodes of some environments stand; ``success`` is one row each."""
    done = np.zeros(len(worlds.steps), dtype=bool)
    done[envs] = success
    values = (done & worlds.valid, worlds.numbers.copy(), worlds.steps.copy(), worlds.reasons)
    infos: Infos = dict(zip(_KEYS, values, strict=True))
    return infos | {f"_{name}": _mask(worlds, envs) for name in _KEYS}


def drawn_infos(worlds: WorldBatch, envs: NDArray[np.intp]) -> Infos:
    """The drawn parameters of some environments, by name."""
    names = worlds.params.names
    params = {name: worlds.params[name].copy() for name in names}
    return {"params": params | {f"_{name}": _mask(worlds, envs) for name in names}, "_params": _mask(worlds, envs)}


def with_final(fresh: Infos, last: Infos, final: NDArray[Any], ended: NDArray[np.intp]) -> Infos:
    """Infos of a step in which some environments ended and began anew.

    Args:
        fresh: of those that began anew.
        last: of all, before they did.
        final: last observations, see `final_rows`.
        ended: the environments that did.
    """
    mask = np.zeros(len(final), dtype=bool)
    mask[ended] = True
    merged = {**last, **fresh}
    for name in _KEYS:
        merged[name] = np.where(mask, fresh[name], last[name])
        merged[f"_{name}"] = last[f"_{name}"]
    final_info = {name: last[name] for name in _KEYS} | {f"_{name}": mask.copy() for name in _KEYS}
    return merged | {"final_obs": final, "_final_obs": mask, "final_info": final_info, "_final_info": mask.copy()}


def final_rows(observation: Any, envs: NDArray[np.intp], num_envs: int) -> NDArray[Any]:
    """The observations of some environments as objects ``(num_envs,)``, None for the rest."""
    rows = np.full(num_envs, None, dtype=object)
    for env in envs:
        rows[env] = _row(observation, int(env))
    return rows


def put_rows(observation: Any, envs: NDArray[np.intp], rows: Any) -> None:
    """Replace the observations of some environments in place."""
    if isinstance(observation, dict):
        for name, value in observation.items():
            put_rows(value, envs, rows[name])
        return
    observation[envs] = rows


def _row(observation: Any, env: int) -> Any:
    if isinstance(observation, dict):
        return {name: _row(value, env) for name, value in observation.items()}
    return observation[env].copy()


def _mask(worlds: WorldBatch, envs: NDArray[np.intp]) -> NDArray[np.bool_]:
    mask = np.zeros(len(worlds.steps), dtype=bool)
    mask[envs] = True
    return mask
