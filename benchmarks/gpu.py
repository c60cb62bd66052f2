"""Worlds and their pictures on a CUDA device against bare ``mujoco_warp``: what ``twinloop bench gpu`` prints."""

from __future__ import annotations

import argparse

from rich.console import Console

from twinloop.core.errors import MissingDependencyError
from twinloop.loop import bench_pictures
from twinloop.loop.bench import TARGET, WORLDS, run_bench_gpu


def run(device: str = "cuda") -> dict:
    """The figures, or why there are none on this machine."""
    try:
        figures = run_bench_gpu(Console(), device=device, worlds=WORLDS)
        return figures | {"pictures": bench_pictures.run_bench_pictures(Console(), device=device)}
    except MissingDependencyError as error:
        return {"skipped": str(error), "target": TARGET}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    print(run(parser.parse_args().device))
