"""Run all checks on the episodes of one log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from twinloop.core.errors import LogError
from twinloop.dataset.logs.checks.bodies import check_inertial, check_poses
from twinloop.dataset.logs.checks.dynamics import check_torques, check_twists, check_velocities
from twinloop.dataset.logs.checks.finding import (
    JointExpectations,
    LogFinding,
    LogRecord,
    LogReport,
    make_finding,
    merge_findings,
)
from twinloop.dataset.logs.checks.response import CommandResponse, check_response, find_command_pair, find_responses
from twinloop.dataset.logs.checks.series import UnbrokenSeries, prepare_series
from twinloop.dataset.logs.checks.timing import (
    EpisodeLags,
    check_drift,
    check_lags,
    check_rates,
    check_timing,
    median_lags,
)
from twinloop.dataset.logs.checks.units import check_joints, check_units
from twinloop.dataset.logs.checks.values import (
    check_clipping,
    check_excitation,
    check_jumps,
    check_numbers,
    check_resolution,
    check_standstill,
)

_ALONE = (check_timing, check_numbers, check_jumps, check_standstill, check_clipping, check_resolution, check_poses,
          check_twists, check_inertial)  # fmt: skip


def check_log(records: Sequence[LogRecord], expectations: JointExpectations | None = None) -> LogReport:
    """Run all checks on a log and return a report of its defects.

    Args:
        records: Episodes, raw (with all defects) or checked.
        expectations: Joints of the twin. If None, units and signs are checked without a twin.

    Raises:
        LogError: If there is no episode.
    """
    if not records:
        raise LogError("There is no episode to check. Give a log with at least one.")
    findings: list[LogFinding] = []
    lags: list[EpisodeLags] = []
    for record in records:
        if not len(record.time):
            findings.append(_empty_finding(record))
            continue
        for check in _ALONE:
            findings += check(record)
        series = prepare_series(record)
        if series is not None:
            found, responses = _check_in_time(record, series, expectations)
            findings += found
            lags.append((record.index, float(series.time[0]), series.dt, responses, _conditions(record)))
    nonempty = [record for record in records if len(record.time)]
    findings += [*check_lags(lags), *_check_together(nonempty, expectations)]
    return LogReport(
        findings=merge_findings(findings),
        lags=median_lags([responses for *_, responses, _ in lags]),
        episodes=len(records),
        frames=sum(len(record.time) for record in records),
    )


def _check_in_time(
    record: LogRecord, series: UnbrokenSeries, expectations: JointExpectations | None
) -> tuple[list[LogFinding], list[CommandResponse]]:
    """Run the checks that compare columns of one episode over time.

    Returns:
        The findings, and the response of each joint to its command.
    """
    found = [*check_velocities(record, series), *check_torques(record, series, expectations)]
    pair = find_command_pair(record, series)
    if pair is None:
        return found, []
    defects = list(check_response(record, pair))
    swapped = {finding.column for finding in defects if finding.kind == "swapped"}
    responses = [answer for answer in find_responses(pair) if answer.joint not in swapped]
    return [*found, *defects, *check_drift(record.index, pair, responses)], responses


def _check_together(records: Sequence[LogRecord], expectations: JointExpectations | None) -> Iterator[LogFinding]:
    """Run the checks that compare all episodes of a log."""
    if not records:
        return
    yield from check_rates(records)
    yield from check_excitation(records)
    yield from check_units(records, expectations)
    if expectations is not None:
        yield from check_joints(records, expectations)


def _conditions(record: LogRecord) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(record.conditions.items()))


def _empty_finding(record: LogRecord) -> LogFinding:
    return make_finding(
        record, "", 0.0, "empty", "error", "the episode has no frame.", "Leave it out or record it again."
    )
