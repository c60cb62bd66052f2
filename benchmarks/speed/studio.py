"""Time the studio on a catalog of 200,000 episodes: ``python -m benchmarks.speed.studio``.

The catalog is that of `benchmarks.speed.catalog`, with a map of 200,000 clips. The studio runs in another process, as a
user starts it; it answers over HTTP. ``start_s`` is the time until it prints its address. ``first_ms`` is the time of
the first answer to a question, ``next_ms`` the median of five answers, to the next pages where there are pages.
``readers_ms`` is the median when 20 clients ask at the same time. All are wall-clock times.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.speed.catalog import build
from twinloop.catalog import Workspace

EPISODES, BATCHES, CLIPS, READERS, REPEATS = 200_000, 20, 200_000, 20, 5
QUESTIONS = {
    "episodes": "/api/episodes?limit=60",
    "one batch": "/api/episodes?limit=60&batch=batch-007",
    "failures": "/api/episodes?limit=60&outcome=no",
    "bad quality": "/api/episodes?limit=60&verdict=bad",
    "most suspect first": "/api/episodes?limit=60&order=suspect",
    "a range of a parameter": "/api/episodes?limit=60&parameter=joint/joint_3/damping:0.2:0.3",
    "values of all filters": "/api/values",
    "gap": "/api/gap",
    "parameters": "/api/parameters",
    "dataset versions": "/api/datasets",
    "policies": "/api/policies",
    "releases": "/api/releases",
    "runs": "/api/runs",
    "map of coverage": "/api/coverage",
    "points of the map": "/api/coverage/{encoder}/points",
}


def run(episodes: int = EPISODES, clips: int = CLIPS) -> dict[str, Any]:
    """Return the times in s and ms."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "cell"
        build(root, episodes, batches=BATCHES)
        encoder = _add_clips(root, clips)
        began = time.perf_counter()
        words = ["studio", str(root), "--no-browser", "--port", "0"]
        command = [sys.executable, "-m", "twinloop", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                address = next(found[0] for line in process.stdout if (found := re.findall(r"http://\S+", line)))
                started = time.perf_counter() - began
                client = _Client(address)
                asked = {name: question.replace("{encoder}", encoder) for name, question in QUESTIONS.items()}
                rows = {name: _time_answers(client, question) for name, question in asked.items()}
                return {"episodes": episodes, "clips": clips, "start_s": started, "questions": rows}
            finally:
                process.terminate()


def _add_clips(root: Path, clips: int) -> str:
    """Add clips with random features of 64 numbers to the first episodes; return the hash of their encoder."""
    rng, encoder = np.random.default_rng(0), "e" * 64
    with Workspace.open(root) as workspace:
        rows = workspace.query("SELECT episode_id FROM episodes ORDER BY episode_id LIMIT ?", [clips])
        vectors = rng.standard_normal((rows.num_rows, 64)).astype(np.float32)
        table = pa.table(
            {
                "episode_id": rows["episode_id"],
                "encoder": ["random"] * rows.num_rows,
                "encoder_hash": [encoder] * rows.num_rows,
                "first_frame": np.zeros(rows.num_rows, dtype=np.int64),
                "last_frame": np.full(rows.num_rows, 59),
                "vector": pa.FixedSizeListArray.from_arrays(vectors.ravel(), 64).cast(pa.list_(pa.float32())),
            }
        )
        workspace.append("embeddings", table, run_id="planted")
    return encoder


def _time_answers(client: _Client, question: str) -> dict[str, float]:
    first = client.time_answer(question)
    pages = [f"{question}&offset={60 * page}" if "limit=" in question else question for page in range(1, REPEATS + 1)]
    later = [client.time_answer(page) for page in pages]
    with ThreadPoolExecutor(READERS) as pool:
        readers = list(pool.map(client.time_answer, [question] * READERS))
    return {"first_ms": first, "next_ms": statistics.median(later), "readers_ms": statistics.median(readers)}


class _Client:
    """An admitted browser without pages."""

    def __init__(self, address: str) -> None:
        self._host = re.findall(r"http://([^/]+)", address)[0]
        self._cookie = ""
        answer = self._ask("/enter/" + address.rpartition("/")[2])
        self._cookie = str(answer.getheader("set-cookie")).partition(";")[0]

    def time_answer(self, question: str) -> float:
        """Return the time of an answer in ms."""
        began = time.perf_counter()
        answer = self._ask(question)
        took = 1e3 * (time.perf_counter() - began)
        if answer.status != 200:
            raise SystemExit(f"{question}: {answer.status}")
        return took

    def _ask(self, question: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self._host, timeout=120)
        connection.request("GET", question, headers={"Cookie": self._cookie})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer


def main() -> None:
    """Print the times as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=EPISODES)
    given = parser.parse_args()
    print(json.dumps(run(given.episodes, min(CLIPS, given.episodes)), indent=1))


if __name__ == "__main__":
    main()
