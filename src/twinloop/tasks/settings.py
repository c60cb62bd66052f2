"""Read the settings of a task from the twin's ``task:`` section."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.twin import Twin, builtin_names
from twinloop.twin.load import library_names, read_spec
from twinloop.twin.spec import describe_errors

_Settings = TypeVar("_Settings")


def read_settings(kind: type[_Settings], twin: Twin, task: str) -> _Settings:
    """Return the settings in the section ``task.NAME`` of a twin.

    Args:
        kind: dataclass of the settings; fields without a default are required.
        twin: the twin.
        task: name of the task.

    Raises:
        InputError: If the twin has no such section, a key is missing, or a value has the wrong type.
        UnknownNameError: If the section has an unknown key.
    """
    where = f"task.{task} of the twin {twin.name}"
    section = twin.spec.task.get(task)
    fields: dict[str, Any] = {field.name: field for field in dataclasses.fields(kind)}  # pyright: ignore[reportArgumentType]
    required = [name for name, field in fields.items() if field.default is dataclasses.MISSING]
    if section is None:
        fitting = [name for name in (*builtin_names(), *library_names()) if task in read_spec(name).task]
        others = f", or choose another twin: {', '.join(fitting)}" if fitting else ""
        raise InputError(
            f"The twin {twin.name} has no section task.{task}. Add one with {', '.join(required)}{others}."
        )
    for key in section:
        if key not in fields:
            raise UnknownNameError("key", key, fields, where=where)
    missing = [name for name in required if name not in section]
    if missing:
        raise InputError(f"{where} lacks {', '.join(missing)}. Add it to the twin's YAML.")
    try:
        return TypeAdapter(kind).validate_python(section)
    except ValidationError as error:
        raise InputError(describe_errors(error, where=where)) from error
