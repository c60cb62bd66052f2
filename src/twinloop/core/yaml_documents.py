"""Read YAML files from untrusted sources as plain values, within limits of size, nesting depth and memory.

Values are built from the parser's events without recursion, and tags never create objects. An alias or merge key counts
as many values as if its content were written in its place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import yaml

from twinloop.core.documents import MAX_DEPTH, MAX_INTEGER, MAX_NUMBER_LENGTH, DocumentError, read_text, shorten_number

# Most bytes of a YAML file. The longest that this package writes, a fit of a few hundred parameters, has 100 kB.
MAX_YAML_BYTES = 4 << 20
# Most values of a YAML file, those of aliases counted at each use: 0.4 s to read.
MAX_YAML_VALUES = 100_000
_LONG = 100  # characters of a text that count as one value: an alias of a long text repeats the text
_MOST_DIRECTIVES = 8  # lines that begin with %; libyaml compares each with all before it
_DECIMAL = re.compile(rf"[1-9][0-9]{{0,{MAX_NUMBER_LENGTH - 1}}}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x84\x86-\x9f]")


def load_yaml(path: Path) -> Any:
    """Return the YAML value in a file; None if the file is empty.

    Raises:
        InputError: If the file is missing or too large, or `parse_yaml` refuses its text.
    """
    return parse_yaml(read_text(path, MAX_YAML_BYTES), where=str(path))


def parse_yaml(text: str, *, where: str) -> Any:
    """Parse a YAML text to mappings with text keys, lists, text, numbers, booleans and None.

    A date remains text. An alias gives the same object as its anchor.

    Args:
        text: Text with one YAML document.
        where: Name of the document, for error messages.

    Raises:
        DocumentError: If the text is not valid YAML, is nested too deeply, or has too many values, a number that is too
            large, a key that is not text or occurs twice, a control character, or a tag of another type.
    """
    if len(re.findall(r"^%", text, re.MULTILINE)) > _MOST_DIRECTIVES:
        raise DocumentError(f"{where} has more than {_MOST_DIRECTIVES} lines that begin with %. Remove the directives.")
    try:
        return _YamlReader(text).read_value()
    except _RefusedError as refused:
        raise DocumentError(f"{where}, line {refused.line}: {refused}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        hint = " Indent with spaces, not tabs." if "\t" in text else ""
        raise DocumentError(f"{where}{line} is not valid YAML: {error.problem or error.context}.{hint}") from error
    except (yaml.YAMLError, UnicodeEncodeError, RecursionError) as error:
        raise DocumentError(f"{where} is not valid YAML: {' '.join(str(error).split())}.") from error


class _RefusedError(Exception):
    """Error for YAML content that is not allowed, with its line number (from 1)."""

    def __init__(self, message: str, event: Any) -> None:
        super().__init__(message)
        self.line = event.start_mark.line + 1


class _Value(NamedTuple):
    """A completely parsed YAML value with its size.

    Attributes:
        value: The value as a Python object.
        size: Number of values in it; the content of an alias counts at each use.
        depth: Number of nested levels in it.
        merge: Whether it is the merge key ``<<``.
    """

    value: Any
    size: int = 1
    depth: int = 0
    merge: bool = False  # the plain key <<


_UNSET = _Value(None)


@dataclass
class _OpenCollection:
    """A list or mapping whose end has not been read yet.

    Attributes:
        anchor: Name of its anchor, if any.
        values: Its values so far.
        size: Number of values so far.
        depth: Largest number of nested levels so far.
        key: Key of the mapping whose value comes next.
        merged: Values that the merge key ``<<`` adds.
    """

    anchor: str | None
    values: list[Any] | dict[str, Any]
    size: int = 1
    depth: int = 0
    key: _Value = _UNSET
    merged: dict[str, Any] | None = None  # the keys that << adds

    def finish(self) -> _Value:
        values = {**self.merged, **self.values} if self.merged and isinstance(self.values, dict) else self.values
        return _Value(values, self.size, self.depth + 1)


class _YamlReader:
    """Builder that creates the value of one YAML document from the parser's events, without recursion."""

    def __init__(self, text: str) -> None:
        self._loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
        self._open: list[_OpenCollection] = []
        self._anchors: dict[str, _Value] = {}
        self._result: _Value | None = None
        self._count = 0

    def read_value(self) -> Any:
        """Return the value of the document; None if the text has no document."""
        documents = 0
        while self._loader.check_event():
            event = self._loader.get_event()
            documents += isinstance(event, yaml.DocumentStartEvent)
            if documents > 1:
                raise _RefusedError("one document is expected, and another begins with `---`. Split the file.", event)
            if isinstance(event, yaml.NodeEvent):
                self._handle_node(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                closed = self._open.pop()
                self._add_value(closed.finish(), closed.anchor, event)
        return self._result.value if self._result else None

    def _handle_node(self, event: Any) -> None:
        if isinstance(event, yaml.AliasEvent):
            self._add_value(self._resolve_alias(event), None, event)
        elif isinstance(event, yaml.ScalarEvent):
            self._add_value(self._parse_scalar(event), event.anchor, event)
        else:
            _require_plain(event)
            if len(self._open) >= MAX_DEPTH:
                raise _RefusedError(f"values are nested more than {MAX_DEPTH} levels deep.", event)
            empty: list[Any] | dict[str, Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
            self._open.append(_OpenCollection(event.anchor, empty))

    def _resolve_alias(self, event: Any) -> _Value:
        if event.anchor in {outer.anchor for outer in self._open}:
            raise _RefusedError(f"the value `&{event.anchor:.40}` contains itself.", event)
        if event.anchor not in self._anchors:
            raise _RefusedError(f"the alias `*{event.anchor:.40}` has no anchor before it.", event)
        return self._anchors[event.anchor]

    def _add_value(self, value: _Value, anchor: str | None, event: Any) -> None:
        """Add a complete value to the list or mapping that contains it, and store its anchor.

        Args:
            value: The complete value.
            anchor: Name of its anchor, if any.
            event: Parser event of the value, for its line number.
        """
        self._require_room(value, event)
        outer = self._open[-1] if self._open else None
        if value.merge and not (outer and isinstance(outer.values, dict) and outer.key is _UNSET):
            raise _RefusedError("`<<` merges mappings and is not a value. Write it in quotes.", event)
        if anchor is not None:
            self._anchors[anchor] = value
        if outer is None:
            self._result = value
            return
        outer.size += value.size
        outer.depth = max(outer.depth, value.depth)
        if isinstance(outer.values, list):
            outer.values.append(value.value)
        elif outer.key is _UNSET:
            outer.key = _check_key(value, outer, event)
        elif outer.key.merge:
            outer.merged, outer.key = _merge_mappings(value.value, event), _UNSET
        else:
            outer.values[outer.key.value], outer.key = value.value, _UNSET

    def _require_room(self, value: _Value, event: Any) -> None:
        """Refuse a value that exceeds the limit of values or of nested levels.

        A list or mapping adds 1 to the number of values when it ends, because its items were counted before. A text
        adds 1 per 100 characters, and an alias adds all values of the content to which it refers.
        """
        self._count += 1 if isinstance(event, yaml.CollectionEndEvent) else value.size
        if self._count > MAX_YAML_VALUES:
            raise _RefusedError(f"there are more than {MAX_YAML_VALUES:,} values, aliases written out.", event)
        if len(self._open) + value.depth > MAX_DEPTH:
            raise _RefusedError(f"values are nested more than {MAX_DEPTH} levels deep, aliases written out.", event)

    def _parse_scalar(self, event: Any) -> _Value:
        text = event.value
        _require_plain(event)
        if _CONTROL.search(text):
            raise _RefusedError(f"the text {text!r:.60} has a control character. Remove it.", event)
        tag = event.tag
        if tag in (None, "!"):
            tag = self._loader.resolve(yaml.ScalarNode, text, event.implicit)
        try:
            value, count = _SCALARS.get(tag, str)(text), 1 + len(text) // _LONG
            return _Value(value, count, merge=tag == f"{_YAML}merge")
        except OverflowError:
            raise _RefusedError(f"the number {shorten_number(text)} does not fit in 64 bits.", event) from None
        except (ValueError, KeyError, IndexError):
            raise _RefusedError(f"{shorten_number(text)!r} is not a value of the type {tag}.", event) from None


def _require_plain(event: Any) -> None:
    """Refuse a YAML tag that would create an object other than a plain value."""
    if event.tag not in (None, "!", *_TAGS[type(event)]):
        raise _RefusedError(f"the tag {event.tag!r:.60} is not allowed. Write a plain value.", event)


def _check_key(key: _Value, outer: _OpenCollection, event: Any) -> _Value:
    if not isinstance(key.value, str):
        shown = "a list or mapping" if key.depth else repr(key.value)
        raise _RefusedError(f"the key {shown} is not text. Write it in quotes.", event)
    if outer.merged is not None if key.merge else key.value in outer.values:
        raise _RefusedError(f"the key {key.value!r:.60} is given twice. Remove one.", event)
    return key


def _merge_mappings(value: Any, event: Any) -> dict[str, Any]:
    """Return the keys and values that the merge key ``<<`` adds; an earlier mapping overrides a later one."""
    merged = dict[str, Any]()
    for mapping in reversed(cast("list[Any]", value) if isinstance(value, list) else [value]):
        if not isinstance(mapping, dict):
            raise _RefusedError("the value of `<<` is not a mapping or a list of mappings.", event)
        merged |= cast("dict[str, Any]", mapping)
    return merged


def _construct_number(text: str, tag: str) -> Any:
    if len(text) > MAX_NUMBER_LENGTH:
        raise OverflowError
    return getattr(_NUMBERS, f"construct_yaml_{tag}")(yaml.ScalarNode(tag, text))


def _parse_integer(text: str) -> int:
    # Digits without a leading zero are decimal in YAML and in Python alike; `_construct_number` is 5 times slower.
    value = int(text) if _DECIMAL.fullmatch(text) else _construct_number(text, "int")
    if not -MAX_INTEGER < value < MAX_INTEGER:
        raise OverflowError
    return value


def _parse_float(text: str) -> float:
    value = _construct_number(text, "float")
    if math.isinf(value) and "inf" not in text.lower():
        raise OverflowError
    return value


_NUMBERS = yaml.constructor.SafeConstructor()
_YAML = "tag:yaml.org,2002:"
_SCALARS: dict[str, Callable[[str], Any]] = {
    f"{_YAML}str": str,
    f"{_YAML}null": lambda _: None,
    f"{_YAML}bool": lambda text: yaml.constructor.SafeConstructor.bool_values[text.lower()],
    f"{_YAML}int": _parse_integer,
    f"{_YAML}float": _parse_float,
}
_TAGS = {
    yaml.ScalarEvent: tuple(_SCALARS),
    yaml.SequenceStartEvent: (f"{_YAML}seq",),
    yaml.MappingStartEvent: (f"{_YAML}map",),
}
