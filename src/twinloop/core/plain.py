"""Convert Python objects, dataclasses and arrays to values that can be written as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np


def to_plain_value(value: Any) -> Any:
    """Convert a value to JSON-compatible types, recursively.

    Dataclasses become dictionaries, arrays and tuples become lists, paths and times become text. If the value has a
    method ``to_json``, its result is used.

    Raises:
        TypeError: If the value has no JSON form.
    """
    if value is None or type(value) in (str, bool, int, float):
        return value
    own = getattr(value, "to_json", None)
    if own is not None:
        return own()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain_value(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain_value(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [to_plain_value(item) for item in cast("list[Any]", value)]
    if isinstance(value, np.ndarray | np.generic):
        return cast("object", value.tolist())
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return to_jsonable_python(value)
    except PydanticSerializationError:
        raise TypeError(f"{type(value).__name__} has no JSON form") from None


class JsonRecord:
    """Base class of dataclasses that are stored as a JSON object with one key per field, in the order of the fields.

    Attributes:
        json_schema: Schema version, written first under the key ``schema``; None if the class has no version.
        json_names: JSON keys of fields whose key differs from the field name; None as a key omits the field.
        json_also: Names of properties that are written after the fields; as a mapping, with their JSON keys.
    """

    json_schema: ClassVar[int | None] = None
    json_names: ClassVar[Mapping[str, str | None]] = {}
    json_also: ClassVar[tuple[str, ...] | Mapping[str, str]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fields, and the properties in ``json_also``, as a JSON-compatible dictionary."""
        also = self.json_also
        keys = {
            field.name: self.json_names.get(field.name, field.name) for field in dataclasses.fields(cast("Any", self))
        }
        keys |= also if isinstance(also, Mapping) else {name: name for name in also}
        schema = {} if self.json_schema is None else {"schema": self.json_schema}
        return schema | {key: to_plain_value(getattr(self, name)) for name, key in keys.items() if key is not None}
