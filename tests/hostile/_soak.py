"""One process that works for a long time in a workspace and with a policy server; it prints its figures each round."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).resolve().parent.parent
EVERY = 10  # rounds in one workspace: its own growth is no leak
WARM_UP = 0.2  # share of the rounds that is not judged: libraries load and caches fill
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(TESTS), *sys.path]),
    "OMP_NUM_THREADS": "1",
    "ARROW_IO_THREADS": "1",  # pyarrow starts up to eight when it needs them: a new one would look like a leak
}
QUERIES = (
    "SELECT batch, count(*) AS n FROM episodes GROUP BY batch",
    'SELECT verdict, count(*) AS n FROM scores GROUP BY ALL ORDER BY "n"',
    "SELECT max(frame_index) AS n FROM frames",
    "SELECT name, avg(value) AS n FROM params GROUP BY name",
)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A process after a round: resident memory in MiB, open descriptors, threads, children, files in its TMPDIR."""

    memory: float
    descriptors: int
    threads: int
    children: int
    temporary: int

    @classmethod
    def of(cls, process: int, temporary: Path) -> Sample:
        """Look at a process."""
        home = Path("/proc", str(process))
        pages = int((home / "statm").read_text().split()[1])
        children = sum(len(task.read_text().split()) for task in home.glob("task/*/children"))
        return cls(
            memory=pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
            descriptors=len(list((home / "fd").iterdir())),
            threads=len(list((home / "task").iterdir())),
            children=children,
            temporary=sum(1 for _ in temporary.rglob("*")),
        )


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Samples of one process without the warm-up: medians of the first and the last third."""

    first: float
    last: float
    samples: list[Sample]

    @classmethod
    def of(cls, samples: list[Sample]) -> Judged:
        """Leave out the warm-up and compare."""
        kept = samples[int(WARM_UP * len(samples)) :]
        third = max(1, len(kept) // 3)
        first, last = (statistics.median(one.memory for one in part) for part in (kept[:third], kept[-third:]))
        return cls(first=first, last=last, samples=kept)

    @property
    def growth(self) -> float:
        """Return the growth of memory, as a share."""
        return self.last / self.first - 1.0

    def rises(self, name: str) -> bool:
        """Return whether the least of the last third is more than the most of the first third."""
        values, third = [getattr(one, name) for one in self.samples], max(1, len(self.samples) // 3)
        return min(values[-third:]) > max(values[:third])


def work(root: str, address: str) -> None:
    """Do one round for each line on standard input, and print a sample after each."""
    from twinloop.cli.main import main

    base, said = Path(root), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    for number, _ in enumerate(sys.stdin):
        cell = base / "cell"
        if number % EVERY == 0:
            os.chdir(base)
            shutil.rmtree(cell, ignore_errors=True)
            _require(main(["init", str(cell), "--twin", "double_pendulum"]) == 0)
            shutil.copy(TESTS.parent / "benchmarks" / "speed" / "swing.py", cell)
            (cell / "swing.yaml").write_text(
                "scene: {twin: double_pendulum, task: swing.py:Swing}\nrandomization: default\n"
                "rollout: {parallel_envs: 4}\n"
            )
        os.chdir(cell)
        _round(main, number % EVERY)
        _ask(address)
        os.write(said, (json.dumps(asdict(Sample.of(os.getpid(), Path(os.environ["TMPDIR"])))) + "\n").encode())


def _round(main: Any, number: int) -> None:
    """Generate, query, curate and label; and one command that is refused."""
    name, words = f"r{number}", ["--workers", "1"]
    _require(main(["generate", "swing.yaml", "--output", f"data/{name}", "--seed", str(number), *words]) == 0)
    for sql in QUERIES:
        _require(main(["query", sql]) == 0)
    _require(main(["curate", "--where", f"batch = '{name}'", *words, "--output", f"runs/{name}"]) == 0)
    _require(main(["label", "add", f"{name}:0", "--success", "yes", "--author", "Ada"]) == 0)
    _require(main(["edit", "select", f"data/{name}", "--episodes", "0", "--output", f"data/{name}-0"]) == 0)
    _require(main(["generate", "swing.yaml", "--output", f"data/{name}"]) == 2)
    _require(main(["query", "SELECT nothing FROM nowhere"]) == 2)


def _ask(address: str) -> None:
    """Query the server by both ways, each in a separate session; one client disconnects without a message."""
    from twinloop.release.client import PolicyClient

    for way in ("http", "ws", "ws"):
        client = PolicyClient(f"{way}://{address}")
        client.restart(0)
        observation = _observation(client.contract)
        for _ in range(10):
            _require(np.isfinite(client.act(observation)).all())
        client.close()


def _observation(contract: Any) -> dict[str, Any]:
    from twinloop.core.contract import ENVIRONMENT, IMAGES, STATE

    made: dict[str, Any] = {STATE: np.zeros(len(contract.state.names))}
    if contract.environment:
        made[ENVIRONMENT] = np.zeros(len(contract.environment))
    shapes = dict(contract.cameras)
    return made | {f"{IMAGES}{name}": np.zeros((*shape, 3), dtype=np.uint8) for name, shape in shapes.items()}


def _require(right: object) -> None:
    if not right:
        raise AssertionError("a command of the soak ended otherwise than it should")


def serve() -> None:
    """Serve a policy that adds, for where torch is not installed; print the port."""
    from support.serve import Adding
    from twinloop.release.serve import PolicyServer, ServeOptions

    server = PolicyServer(Adding, ServeOptions(port=0))
    threading.Thread(target=_tell, args=(server,), daemon=True).start()
    server.run()


def _tell(server: Any) -> None:
    while not server.is_running:
        time.sleep(0.01)
    print(server.address.rpartition(":")[2], flush=True)  # noqa: T201 - the answer


@contextlib.contextmanager
def processes(root: Path) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str]]]:
    """Start the worker and the server; both end with the block."""
    environment = {**os.environ, **ENVIRONMENT}
    for name in ("work", "served"):
        (root / f"tmp-{name}").mkdir()
    pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
    line = [sys.executable, "-W", "ignore", "-c"]
    with subprocess.Popen(
        [*line, "import _soak; _soak.serve()"], stdout=pipe, stderr=quiet, text=True,
        env={**environment, "TMPDIR": str(root / "tmp-served")},
    ) as server:  # fmt: skip
        try:
            assert server.stdout is not None
            address = f"127.0.0.1:{int(server.stdout.readline())}"
            with subprocess.Popen(
                [*line, f"import _soak; _soak.work({str(root)!r}, {address!r})"], stdin=pipe, stdout=pipe, text=True,
                env={**environment, "TMPDIR": str(root / "tmp-work")},
            ) as worker:  # fmt: skip
                assert worker.stdin is not None
                try:
                    yield worker, server
                finally:
                    worker.stdin.close()
        finally:
            server.terminate()


def soak(root: Path, *, seconds: float, rounds: int) -> tuple[list[Sample], list[Sample]]:
    """Work until the time is over, but at least so many rounds; return the samples of the worker and of the server."""
    working, serving, until = list[Sample](), list[Sample](), time.monotonic() + seconds
    with processes(root) as (worker, server):
        assert worker.stdin is not None
        assert worker.stdout is not None
        while len(working) < rounds or time.monotonic() < until:
            worker.stdin.write("go\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
            assert line, f"the worker ended in round {len(working)}"
            working.append(Sample(**json.loads(line)))
            serving.append(Sample.of(server.pid, root / "tmp-served"))
    return working, serving
