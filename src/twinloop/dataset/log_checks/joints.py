"""Whether a log is of the twin's robot at all: its joints and what they are commanded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from twinloop.dataset.log_checks.expectations import Expectations, LogRecord
from twinloop.dataset.log_checks.finding import Finding, in_episode


def check_joints(records: Sequence[LogRecord], expectations: Expectations) -> Iterator[Finding]:
    """Missing and further joints, and another kind of command."""
    for record in records:
        begin = float(record.time[0]) if len(record.time) else 0.0
        missing = [joint for joint in expectations.joints if joint not in record.joints]
        further = [joint for joint in record.joints if joint not in expectations.joints]
        if missing:
            same = len(record.joints) == len(expectations.joints)
            yield in_episode(
                record, "", begin, "missing_joint", "error",
                f"the log lacks {', '.join(missing)} of {expectations.name}; it has "
                f"{', '.join(record.joints) or 'none'}.",
                f"--joints {','.join(expectations.joints)} names the columns, if they are these."
                if same
                else "Choose a twin with these joints.",
                count=float(len(missing)),
            )  # fmt: skip
        if further:
            yield in_episode(
                record, "", begin, "further_joint", "note", f"{expectations.name} has no {', '.join(further)}.",
                "They are not used.", count=float(len(further)),
            )  # fmt: skip
        if record.command not in ("none", expectations.control):
            yield in_episode(
                record, "", begin, "command_kind", "error",
                f"the log commands a {record.command}, {expectations.name} takes a {expectations.control}.",
                f"Choose a twin whose robot has control: {record.command}.",
            )  # fmt: skip
