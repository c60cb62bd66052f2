"""The command ``twinloop bench``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from twinloop.cli.commands import Outcome, console
from twinloop.core.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Bench:
    """How fast worlds run and are rendered on a GPU, or how far the renderers that work here agree.

    `gpu` gives a ratio to the bare mujoco_warp step loop on the same model, and pictures per second; `renderers`
    compares silhouettes, depth, ids, normals and colours of every built-in twin from every camera.
    """

    suite: tyro.conf.Positional[Literal["gpu", "renderers"]]
    """What to measure."""
    device: str = "cuda"
    """Warp's name of the device: cuda, cuda:1, or cpu to try the same code without a GPU."""
    worlds: str = "1,4,16,64,256,1024,4096,16384"
    """Numbers of worlds, comma separated; pictures are made of up to 4096."""
    twin: str = "so101_tabletop"
    """A built-in twin with the task pick_and_place, or a twin YAML."""
    rounds: int = 3
    """Rounds of ours and the bare loop in turn; the table shows medians."""
    any_order: bool = False
    """Let the GPU add in any order, here and in the bare loop: faster, but a run does not repeat bit for bit."""
    frames: int = 3
    """renderers: states of each twin."""
    write: Path | None = None
    """renderers: a page that takes the tables between its two marks, such as docs/rendering.md."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Measure."""
        if self.suite == "renderers":
            from twinloop.loop.agreement import run_bench_renderers

            return run_bench_renderers(console(json=self.json), frames=self.frames, page=self.write), 0
        from twinloop.loop.bench import run_bench_gpu
        from twinloop.loop.bench_pictures import WORLDS, run_bench_pictures

        worlds = _numbers(self.worlds)
        same = {"device": self.device, "twin": self.twin, "rounds": self.rounds}
        shown = console(json=self.json)
        figures = run_bench_gpu(shown, worlds=worlds, deterministic=not self.any_order, **same)
        few = [count for count in worlds if count <= max(WORLDS)]
        if few:
            figures["pictures"] = run_bench_pictures(shown, worlds=few, **same)
        return figures, 0


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise InputError(f"--worlds {text}: give whole numbers separated by commas, such as 1,64,4096.") from error
