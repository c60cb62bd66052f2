"""The command ``twinloop bench``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import tyro

from twinloop.cli.commands import Outcome, console
from twinloop.core.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Bench:
    """How fast worlds run on a GPU, as a ratio to the bare mujoco_warp step loop on the same model."""

    suite: tyro.conf.Positional[Literal["gpu"]]
    """What to measure."""
    device: str = "cuda"
    """Warp's name of the device: cuda, cuda:1, or cpu to try the same code without a GPU."""
    worlds: str = "1,4,16,64,256,1024,4096,16384"
    """Numbers of worlds, comma separated."""
    twin: str = "so101_tabletop"
    """A built-in twin with the task pick_and_place, or a twin YAML."""
    rounds: int = 3
    """Rounds of ours and the bare loop in turn; the table shows medians."""
    any_order: bool = False
    """Let the GPU add in any order, here and in the bare loop: faster, but a run does not repeat bit for bit."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Measure."""
        from twinloop.loop.bench import run_bench_gpu

        figures = run_bench_gpu(
            console(json=self.json),
            device=self.device,
            worlds=_numbers(self.worlds),
            twin=self.twin,
            rounds=self.rounds,
            deterministic=not self.any_order,
        )
        return figures, 0


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise InputError(f"--worlds {text}: give whole numbers separated by commas, such as 1,64,4096.") from error
