"""What every command that measures begins and ends with: its folder, its figures, its page, and its exit code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from twinloop.core.headline import Headline
from twinloop.loop.fail_if import Condition, check_names, judge, parse_conditions
from twinloop.loop.figure_names import figures_of
from twinloop.loop.runs import claim_output, finishing, write_report, write_result
from twinloop.report import Report

Outcome = tuple[dict[str, Any], int]


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """One run of a command that measures. ``kind`` is the word after ``twinloop`` ``verb``, or what was asked of it.

    Without ``output`` nothing is stored.
    """

    verb: str
    kind: str
    output: Path | None
    conditions: tuple[Condition, ...]
    console: Console

    @classmethod
    def begin(cls, verb: str, kind: str, output: Path | None, fail_if: Sequence[str], console: Console) -> MeasuredRun:
        """Claim the folder and read the conditions, before anything is computed.

        Raises:
            InputError: the folder is taken, or a condition cannot be read.
            UnknownNameError: a condition is on a figure that this command never tells.
        """
        run = cls(verb=verb, kind=kind, output=output, conditions=parse_conditions(fail_if), console=console)
        run.expect(figures_of(verb, kind))
        if output is not None:
            claim_output(output)
        return run

    def expect(self, figures: Sequence[str]) -> None:
        """Say which figures there will be, ``*`` where only the data tell, as soon as that is known; none says nothing.

        Raises:
            UnknownNameError: a condition names none of them.
        """
        if figures:
            check_names(self.conditions, figures)

    def storing(self) -> AbstractContextManager[None]:
        """Hold the folder while a command writes files of its own there, before `end` writes the others.

        Raises:
            DatasetLockedError: another process writes there.
            InputError: another process has finished a run there since this one began.
        """
        return nullcontext() if self.output is None else finishing(self.output, "run")

    def end(
        self,
        figures: Mapping[str, Any],
        headline: Sequence[Headline],
        *,
        title: str = "",
        subtitle: str = "",
        fill: Callable[[Report], None] | None = None,
    ) -> Outcome:
        """Store result.json and report.html, judge the conditions, and give the figures and the exit code.

        Args:
            figures: what the measurement found, in a plain form.
            headline: the figures that conditions and the history see.
            title: of the page.
            subtitle: of the page.
            fill: adds the sections of the page; None for no page.

        Raises:
            UnknownNameError: a condition on a figure that the data did not give; all is stored even so.
        """
        result: dict[str, Any] = {
            **figures,
            "verb": self.verb,
            "kind": self.kind,
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "headline": [figure.to_json() for figure in headline],
        }
        if self.output is not None:  # before conditions are judged: one that names no figure must not lose the rest
            with finishing(self.output):
                if fill is not None:  # result.json comes last, see `write_run`
                    write_report(Report(title, subtitle), fill, self.output / "report.html", self.console)
                result = write_result(self.output, result)
        verdict = judge(self.conditions, {figure.name: figure for figure in headline})
        for line in verdict.lines():
            self.console.print(line, soft_wrap=True)
        return {**result, "failed": verdict.to_json()}, verdict.code
