"""The command ``twinloop bench policies``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class BenchPolicies:
    """How well twins of a real arm predict what its controllers do: the pendubot of RealAIGym.

    The arm is identified from its public logs, its controllers are re-implemented, and each is scored in twins from the
    leaderboard's own to draws from what was identified. Needs the sets dfki_double_pendulum and
    dfki_double_pendulum_rollouts (TWINLOOP_DATA, else their public address).
    """

    worlds: int = 40
    """Simulated rollouts of each controller in each twin."""
    seed: int = 0
    """Run seed."""
    threads: int = 0
    """C threads; 0 takes every core."""
    write: Path | None = None
    """A page that takes the tables between its two marks, such as docs/real_policies.md."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Identify, score, compare."""
        from twinloop.loop.real_policies.run import run_bench_policies

        shown = console(json=self.json)
        figures = run_bench_policies(shown, worlds=self.worlds, seed=self.seed, nthread=self.threads, page=self.write)
        return figures, 0
