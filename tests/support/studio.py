"""Run the studio as a user does, and ask it as a browser does."""

from __future__ import annotations

import http.client
import json
import os
import queue
import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa

from support.quality import write_dataset
from support.releases import released
from twinloop.catalog import Workspace
from twinloop.report.page import ReportPage


def studio_workspace(folder: Path) -> Path:
    """A workspace with everything that the studio shows.

    There are six episodes of two cameras, of which two failed; three runs, one with a report; two versions of a
    dataset; a trained policy and one without data, with 40 trials each; and the releases of `support.releases`.
    """
    with Workspace.open(released(folder)) as ws:
        ws.add(write_dataset(folder / "data" / "first", episodes=6, failed=(1, 4)))
        began = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
        report = folder / "runs" / "gap" / "report.html"
        ReportPage("Gap of a twin").text("All is well.").write(report)
        interval = {"estimate": 0.25, "low": 0.125, "high": 0.5}
        words = ["gap", "--data", "data/it's here"]
        ws.record_run(
            "gap", report.parent, {"error": interval, "exit_code": 0}, began, began + timedelta(minutes=3), words
        )
        ws.record_run("gate", None, {"passed": False, "exit_code": 1}, began, began + timedelta(seconds=2), ["gate"])
        ws.record_run("export", folder.parent, {"exit_code": 0}, began, began, ["export", str(folder.parent)])
        first = ws.freeze("good", "SELECT episode_id FROM episodes WHERE success", note="the first look")
        ws.freeze("good", "SELECT episode_id FROM episodes WHERE episode_index <> 1")
        ws.record_policy("1" * 64, "first", first.hash)
        ws.append("evaluations", trials({"1" * 64: 30, "2" * 64: 12}), run_id="planted")
    (folder.parent / "report.html").write_text("<script>alert(1)</script>")
    return folder


def trials(successes: dict[str, int]) -> pa.Table:
    """Forty trials of each policy in the same worlds, the first of which succeed."""
    rows = [
        {
            "policy": policy,
            "suite": "nominal",
            "trial": f"t{n:02d}",
            "source": "sim",
            "success": n < won,
            "condition": half,
        }
        for policy, won in successes.items()
        for n in range(40)
        for half in [("dark", "bright")[n % 2]]
    ]
    return pa.Table.from_pylist(rows)


class Server:
    """The command `twinloop studio FOLDER`; a context manager.

    Attributes:
        address: the address for the next browser, as printed last.
    """

    def __init__(self, folder: Path, *words: str, environment: dict[str, str] | None = None) -> None:
        command = [
            sys.executable,
            "-m",
            "twinloop",
            "studio",
            str(folder),
            "--no-browser",
            "--port",
            "0",
            "--author",
            "tester",
        ]
        self.process = subprocess.Popen(
            [*command, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self._printed: queue.Queue[str] = queue.Queue()
        self._lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        self.address = self._next_address()
        self.port = int(re.search(r":(\d+)/", self.address)[1])  # type: ignore[index]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line)
            for address in re.findall(r"http://\S+", line):
                self._printed.put(address)

    def _next_address(self) -> str:
        try:
            return self._printed.get(timeout=60)
        except queue.Empty:
            raise AssertionError("no address was printed: " + "".join(self._lines)) from None

    def admit(self) -> Client:
        """Return a client that used the printed address."""
        client = Client(self.port)
        answer = client.ask("GET", "/enter/" + self.address.rpartition("/")[2])
        assert answer.status == 303
        client.start = answer.headers["location"]
        client.cookie = answer.headers["set-cookie"].partition(";")[0]
        assert "httponly" in answer.headers["set-cookie"].lower()
        self.address = self._next_address()
        return client

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """A browser without pages: it sends its cookie and reads answers.

    Attributes:
        start: path of the first page.
    """

    def __init__(self, port: int) -> None:
        self.port, self.cookie, self.start = port, "", ""

    def ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {"Cookie": self.cookie, **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **query: str) -> Any:
        answer = self.ask("GET", f"{path}?{urlencode(query)}" if query else path)
        assert answer.status == 200, answer.body
        return json.loads(answer.body)

    def post(self, path: str, value: Any) -> Any:
        answer = self.ask("POST", path, json.dumps(value).encode())
        assert answer.status == 200, answer.body
        return json.loads(answer.body)
