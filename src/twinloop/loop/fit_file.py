"""How a fit walks, as a person writes it: a YAML file with the fields of `FitConfig`."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.yaml_documents import load_yaml
from twinloop.identify import FitConfig
from twinloop.twin.spec import describe

_LEAST_REFITS = 40  # one beyond each end of a 95 % interval


def read_fit(path: Path) -> FitConfig:
    """The configuration in a YAML file; what it leaves out keeps its default.

    Raises:
        InputError: the file is missing, is no YAML, or a value has the wrong type; names the key.
        UnknownNameError: a key that does not exist; names the nearest.
    """
    value = load_yaml(path)
    if not isinstance(value, Mapping):
        raise InputError(f"{path} is not a mapping of options. Write `replay: {{window: 0.5}}`, for example.")
    _known_keys(FitConfig, value, where=str(path))
    try:
        return TypeAdapter(FitConfig).validate_python(value)
    except ValidationError as error:
        raise InputError(describe(error, where=str(path))) from error


def fit_config(
    fit: Path | None = None,
    window: float | None = None,
    free: Sequence[str] = (),
    bootstrap: int = 0,
    profile: Sequence[str] = (),
    measured_torque: bool = False,
) -> FitConfig:
    """The configuration in a file, or the default one, with what was said besides.

    Raises:
        InputError: a window that is not longer than 0, or as `read_fit`.
    """
    config = FitConfig() if fit is None else read_fit(fit)
    if window is not None:
        if not window > 0:
            raise InputError(f"--window {window:g}: give seconds, such as 0.5.")
        config = replace(config, replay=replace(config.replay, window=window, start="measured"))
    if bootstrap:
        if bootstrap < _LEAST_REFITS:
            raise InputError(
                f"--bootstrap {bootstrap}: percentiles take at least {_LEAST_REFITS} refits. Give as many, or "
                "leave it out."
            )
        config = replace(config, bootstrap=bootstrap)
    if profile:
        config = replace(config, profile=tuple(profile))
    if measured_torque:
        config = replace(config, replay=replace(config.replay, torque="measured"))
    return replace(config, free=tuple(free)) if free else config


def _known_keys(kind: type, value: Mapping[str, Any], *, where: str, prefix: str = "") -> None:
    """Refuse keys that no field of a dataclass, or of one within it, has."""
    hints = get_type_hints(kind)
    for key, item in value.items():
        if key not in hints:
            known = [f"{prefix}{name}" for name in hints]
            raise UnknownNameError("option of a fit", f"{prefix}{key}", known, where=where)
        inner = _dataclass_in(hints[key])
        if inner is None or not isinstance(item, Mapping):
            continue
        parts = item if _is_mapping(hints[key]) else {"": item}
        for name, part in parts.items():
            if isinstance(part, Mapping):
                _known_keys(inner, part, where=where, prefix=f"{prefix}{key}.{f'{name}.' if name else ''}")


def _dataclass_in(hint: Any) -> type | None:
    """The dataclass that an annotation holds, if any."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return hint
    return next((found for part in get_args(hint) if (found := _dataclass_in(part))), None)


def _is_mapping(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is types.UnionType:
        return any(_is_mapping(part) for part in get_args(hint))
    return isinstance(origin, type) and issubclass(origin, Mapping)
