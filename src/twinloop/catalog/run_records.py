"""Records of runs without credentials."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from twinloop.core.files import dumps
from twinloop.core.redaction import redacted, redacted_values, redacted_words


def without_secrets(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of ``runs`` without credentials; texts that hold none stay as they are."""
    return dict(row) | {
        "folder": redacted_values(row["folder"]),
        "arguments": _cleaned(row["arguments"], lambda words: redacted_words([str(word) for word in words])),
        "result": _cleaned(row["result"], redacted_values),
    }


def _cleaned(text: str, clean: Callable[[Any], Any]) -> str:
    try:
        value = json.loads(text)
        cleaned = clean(value)
    except (ValueError, TypeError):  # nothing that `Workspace.record_run` wrote
        return redacted(text)
    return text if cleaned == value else dumps(cleaned)
