"""Read the elements of an MJCF or URDF text, without entities, before MuJoCo does."""

from __future__ import annotations

import re
from collections.abc import Callable
from xml.parsers import expat

from twinloop.core.documents import DocumentError

# Most tags and comments of one file: 20 times those of the largest robots.
_MOST_TAGS = 200_000
# A tag with its attributes. No part of it can match in two ways, so that it is read in one pass.
_TAG = re.compile(rb"<(?:[^<>\"']|\"[^\"]*\"|'[^']*')*+>")
_BOM = b"\xef\xbb\xbf"
Start = Callable[[str, dict[str, str], int], None]


def read_elements(data: bytes, *, where: str, start: Start, end: Callable[[], None]) -> None:
    """Call ``start`` with name, attributes and line of every element, and ``end`` where it ends.

    Args:
        data: the document.
        where: its name, for messages.
        start: called for every element.
        end: called where an element ends.

    Raises:
        DocumentError: no well-formed XML in UTF-8, entities, or too many tags; names the line.
    """
    try:
        text = _without_comments(data.removeprefix(_BOM), where).decode()
    except UnicodeDecodeError as error:
        raise DocumentError(f"{where} is not well-formed XML: it is not text in UTF-8 ({error.reason}).") from error
    parser = expat.ParserCreate("utf-8")
    parser.StartElementHandler = lambda name, attributes: start(name, attributes, parser.CurrentLineNumber)
    parser.EndElementHandler = lambda _: end()
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise DocumentError(f"{where}, line {error.lineno} is not well-formed XML: {_reason(error)}.") from error


def _without_comments(data: bytes, where: str) -> bytes:
    """Return a document with only the line breaks of its comments, in which MuJoCo allows more than XML does."""
    parts, position, tags = list[bytes](), 0, 0
    while (begin := data.find(b"<", position)) >= 0:
        parts.append(data[position:begin])
        position = _end_of_tag(data, begin, where)
        tag, tags = data[begin:position], tags + 1
        parts.append(b"\n" * tag.count(b"\n") if tag.startswith((b"<!--", b"<?")) else tag)
        if tags > _MOST_TAGS:
            raise DocumentError(f"{where} has more than {_MOST_TAGS:,} tags and comments. Make the model smaller.")
    return b"".join([*parts, data[position:]])


def _end_of_tag(data: bytes, begin: int, where: str) -> int:
    if data.startswith(b"<!--", begin):
        end = data.find(b"-->", begin + 4) + 3
    elif data.startswith(b"<?", begin):
        end = data.find(b"?>", begin + 2) + 2
    elif data.startswith(b"<!", begin):
        raise DocumentError(
            f"{where}, line {_line(data, begin)}: a model has no DOCTYPE, no entities and no CDATA. Remove them."
        )
    else:
        found = _TAG.match(data, begin)
        end = found.end() if found else 0
    if end <= begin:
        raise DocumentError(f"{where}, line {_line(data, begin)} is not well-formed XML: the tag does not end.")
    return end


def _line(data: bytes, position: int) -> int:
    return data.count(b"\n", 0, position) + 1


def _reason(error: expat.ExpatError) -> str:
    return expat.errors.messages.get(error.code, str(error.code))
