"""Credentials in addresses, flags and variables never appear in the console, a file or an error."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import logging
import os
import sqlite3
import subprocess
import sys
import time
import uuid
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from rich.table import Table

from support.dataset_writer import write_all
from twinloop.catalog import Workspace, state
from twinloop.cli.commands import make_console
from twinloop.cli.main import main
from twinloop.core import redaction
from twinloop.core.errors import DatasetError, InputError, MissingDependencyError, UnknownNameError
from twinloop.core.redaction import note_secrets, redact_text, redact_values, redact_words
from twinloop.dataset.storage.store import ObjectStore, write_log
from twinloop.dataset.storage.targets import fetch_dataset

fsspec = pytest.importorskip("fsspec")
S = "Zq7-Vx9.Kd3"  # the secret; nothing else in a workspace contains it
MOMENT = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
ROBOT = "so101"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """Each test begins with no credentials remembered: patterns have to find them first."""
    monkeypatch.setattr(redaction, "_noted", {})


@pytest.fixture
def cell(tmp_path, monkeypatch):
    Workspace.create(tmp_path / "cell").close()
    monkeypatch.chdir(tmp_path / "cell")
    return tmp_path / "cell"


def leaks(folder: Path, *texts: str) -> list[str]:
    """Return where the secret is, as it is, percent-encoded or as the header Basic has it: files, names, texts."""
    forms = [S, quote(S, safe=""), base64.b64encode(f"USER:{S}".encode()).decode()]
    found = [f"text: {text[:300]}" for text in texts for form in forms if form in text]
    for path in sorted(folder.rglob("*")):
        if any(form in path.name for form in forms):
            found.append(f"name: {path}")
        if path.is_file():
            data = path.read_bytes()
            found += [f"file: {path}" for form in forms if form.encode() in data]
    return found


def attempt(words: list[str], capfd) -> tuple[int, str]:
    """Run a command that may fail in any way; return its exit code and everything it printed."""
    capfd.readouterr()
    try:
        code = main(words)
    except SystemExit as end:
        code = int(end.code or 0)
    said = capfd.readouterr()
    return code, said.out + said.err


ADDRESSES = {
    "a store in memory": f"memory://USER:{S}@bucket-{{}}/set",
    "a web server": f"http://USER:{S}@127.0.0.1:9/set",
    "an address within an address": f"simplecache::memory://USER:{S}@bucket/set",
    "a signed address": f"http://127.0.0.1:9/set?X-Amz-Credential=me&X-Amz-Signature={S}&x=1",
    "a shared access signature": f"http://127.0.0.1:9/set?sv=2024&sig={S}",
    "an IPv6 host": f"http://USER:{S}@[::1]:9/set",
    "a password with a slash and an at sign": f"memory://USER:{S}/@more@bucket/set",
    "a kind of store that does not exist": f"s4://USER:{S}@bucket/set",
    "a token in place of the user": f"memory://{S}@bucket/set",
    "one slash too few": f"memory:/USER:{S}@bucket/set",
}
VERBS = {
    "fetch": ["fetch", "ADDRESS", "data/got"],
    "add": ["add", "ADDRESS"],
    "import from": ["import", "ADDRESS", "--output", "data/new", "--units", "deg"],
    "import to": ["import", "log.csv", "--units", "deg", "--output", "ADDRESS"],
    "export from": ["export", "lerobot-v2.1", "ADDRESS", "--output", "out"],
    "export to": ["export", "lerobot-v2.1", "data/planted", "--output", "ADDRESS"],
    "push": ["push", "ADDRESS", "me/set"],
    "push to": ["push", "data/planted", "ADDRESS"],
    "pull": ["pull", "ADDRESS", "--output", "data/got"],
    "pull to": ["pull", "me/set", "--output", "ADDRESS"],
    "replay": ["replay", "ADDRESS", "0"],
    "edit": ["edit", "select", "ADDRESS", "--output", "data/new", "--episodes", "0"],
    "query to": ["query", "success", "--output", "ADDRESS"],
    "query": ["query", "SELECT 'ADDRESS' AS a, nothing"],
    "train": ["train", "ADDRESS", "--output", "runs/t"],
    "run": ["run", "--robot", f"virtual:{ROBOT}", "--policy", "ADDRESS", "--output", "data/ran"],
    "serve": ["serve", "--policy", "ADDRESS"],
    "evaluate": ["evaluate", "ADDRESS"],
    "generate": ["generate", "missing.yaml", "--output", "ADDRESS"],
    "render": ["render", "ADDRESS", "--output", "data/new"],
    "twin check": ["twin", "check", "ADDRESS"],
    "init": ["init", "ADDRESS"],
    "an unknown verb": ["ADDRESS"],
    "an unknown flag": ["fetch", "x", "y", "--adress", "ADDRESS"],
    "a flag given twice over": ["fetch", "ADDRESS", "y", "z", "--json"],
    "a flag without a value": ["generate", "ADDRESS", "--output"],
}


FAST = ("fetch", "add", "import to", "push", "pull to", "query", "run", "an unknown flag")


def marks(verb: str) -> list[pytest.MarkDecorator]:
    attack = pytest.mark.attack(
        f"credentials in every kind of address are given to the command line: {verb}",
        expected="no byte of them on the console, in the workspace, or in the name of a file",
    )
    return [attack] if verb in FAST else [attack, pytest.mark.slow]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("verb", [pytest.param(verb, marks=marks(verb), id=verb) for verb in VERBS])
def test_commands_that_take_addresses(cell, tmp_path, capfd, monkeypatch, observed, verb):
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    write_all(cell / "data" / "planted") if "to" in verb else None
    every = 1 if verb in ("fetch", "add", "run") else 9 if verb in FAST else 3
    kinds = list(ADDRESSES.values())[::every]
    said, codes = list[str](), list[int]()
    for number, kind in enumerate(kinds):
        address = kind.replace("{}", uuid.uuid4().hex)
        monkeypatch.setattr(redaction, "_noted", {})
        words = [word.replace("ADDRESS", address) for word in VERBS[verb]] + ["--json"][number % 2 :]
        code, text = attempt(words, capfd)
        said.append(text)
        codes.append(code)
    observed(f"{len(codes)} runs, exit codes {sorted(set(codes))}")
    assert leaks(tmp_path, *said) == []
    assert not any(path.name.startswith(("memory:", "http:", "s4:")) for path in tmp_path.rglob("*"))


@pytest.mark.attack(
    "a dataset is written to, fetched from and logged beside an address with credentials",
    expected="the address works, and neither figures, dataset nor log contain them",
)
def test_the_address_still_works(tmp_path, cell, capfd):
    address = f"memory://USER:{S}@bucket-{uuid.uuid4().hex}/set"
    write_all(address)
    assert S not in ObjectStore(address).address
    write_log(address, {"output": address, "token": S})
    code, said = attempt(["fetch", address, "data/got", "--json"], capfd)
    assert code == 0
    assert json.loads(next(line for line in said.splitlines() if line.startswith("{")))["episodes"] == 9
    stored = b"".join(bytes(item.getbuffer()) for item in fsspec.filesystem("memory").store.values())
    assert leaks(tmp_path, said, stored.decode("latin-1")) == []
    assert "memory://***@bucket" in said
    fsspec.filesystem("memory").store.clear()


@pytest.mark.attack(
    "a run is recorded with credentials in its arguments, figures and folder",
    expected="the table `runs` and every byte of state.sqlite and its log are free of them",
)
def test_records_of_runs(cell):
    arguments = [
        "generate",
        "f.yaml",
        "--output",
        f"s3://USER:{S}@b/x",
        "--token",
        S,
        f"--api-key={S}",
        f"u:{S}@host/x",
    ]
    metrics = {"output": f"s3://USER:{S}@b/x", "token": S, "rows": [{"password": S, "n": 1}], "note": f"key: token={S}"}
    with Workspace.open(cell) as ws:
        ws.record_run("generate", cell / f"memory:/U:{S}@x", metrics, MOMENT, MOMENT, arguments)
        [row] = ws.query("SELECT * FROM runs").to_pylist()
    assert leaks(cell, json.dumps(row, default=str)) == []
    assert json.loads(row["arguments"])[:4] == ["generate", "f.yaml", "--output", "s3://***@b/x"]
    assert json.loads(row["result"])["rows"] == [{"password": "***", "n": 1}]


@pytest.mark.attack(
    "a workspace of an older version holds credentials in its record of runs",
    expected="queries do not show them; fsck names them; --repair removes every byte of them from the file",
)
def test_records_that_an_older_version_wrote(cell, capfd, observed, monkeypatch):
    opened = state._open_connection

    def leaving_bytes(path):  # as SQLite does in many of its builds
        connection = opened(path)
        connection.execute("PRAGMA secure_delete = OFF")
        return connection

    monkeypatch.setattr(state, "_open_connection", leaving_bytes)
    with Workspace.open(cell) as ws:
        for _ in range(40):
            ws.record_run("generate", None, {}, MOMENT, MOMENT, ["x" * 200])
        with ws.state.transaction() as connection:
            words = json.dumps(["generate", "--output", f"s3://USER:{S}@b/x", "--token", S, "x" * 3000])
            connection.execute(
                "UPDATE runs SET arguments = ?, result = ?", (words, json.dumps({"output": f"//u:{S}@x"}))
            )
        assert leaks(cell)
    said = [
        attempt(["query", "SELECT * FROM runs", *extra], capfd)[1] for extra in ([], ["--json"], ["--format", "csv"])
    ]
    assert leaks(cell / "twinloop.yaml", *said) == []
    code, text = attempt(["fsck"], capfd)
    observed(text.splitlines()[0])
    assert code == 1
    assert "40 runs have credentials in their records" in text
    assert leaks(cell / "twinloop.yaml", text) == []
    assert attempt(["fsck", "--repair"], capfd)[0] == 0
    assert leaks(cell) == []
    assert attempt(["fsck"], capfd)[0] == 0
    with contextlib.closing(sqlite3.connect(cell / "catalog" / "state.sqlite")) as connection:
        found = {row[0] for row in connection.execute("SELECT arguments FROM runs")}
    assert json.loads(found.pop())[:5] == ["generate", "--output", "s3://***@b/x", "--token", "***"]


@pytest.mark.parametrize(
    ("said", "tried"),
    [
        pytest.param(
            text, text, marks=pytest.mark.attack(f"a library's error says: {told}", expected="redacted"), id=told
        )
        for told, text in {
            "the whole address": f"Cannot connect to http://USER:{S}@host:80/x?token={S}",
            "the address as pathlib writes it": f"No such file: '/home/me/memory:/USER:{S}@b/x'",
            "the header of the request": f"401, headers={{'Authorization': 'Bearer {S}'}}",
            "the header Basic": "Authorization: Basic " + base64.b64encode(f"USER:{S}".encode()).decode(),
            "a signed address": f"GET https://b.s3.amazonaws.com/x?X-Amz-Security-Token={S}&X-Amz-Signature={S} failed",
            "the settings of a client": f"Session(aws_secret_access_key='{S}', token = {S})",
            "a dictionary": f'{{"password": "{S}", "user": "me"}}',
            "an address within the query of another": f"https://proxy/?url={quote(f's3://USER:{S}@b/x', safe='')}",
            "an encoded query within a query": f"https://proxy/?u={quote(f'https://h/x?sig={S}&a=1', safe='')}",
            "a connection string": f"DefaultEndpointsProtocol=https;AccountName=me;AccountKey={S};EndpointSuffix=x",
            "several addresses": f"tried s3://a:{S}@b/x, s3://c:{S}@d/y and //e:{S}@f",
            "a fragment of a redirect": f"https://h/cb#access_token={S}&state=1",
        }.items()
    ],
)
def test_what_libraries_say(said, tried, observed):
    observed(redact_text(said))
    for error in (DatasetError(said), InputError(tried), MissingDependencyError(said, remedy=said)):
        assert S not in str(error)
        assert S not in repr(error.args)
    assert S not in str(UnknownNameError("kind of store", said, [said], where=said))


@pytest.mark.attack(
    "a store's library repeats the password alone, cut from its address, in a long message that is shortened",
    expected="no part of the password is shown",
)
def test_a_password_that_is_repeated_alone(monkeypatch):
    store = ObjectStore(f"memory://USER:{S}@bucket/set")
    for said in (f"bad credentials {S}", "x" * 190 + S, f"Basic {base64.b64encode(f'USER:{S}'.encode()).decode()}"):
        monkeypatch.setattr(store._files, "sizes", lambda _, said=said: (_ for _ in ()).throw(RuntimeError(said)))
        with pytest.raises(DatasetError) as caught:
            store.read("current.json")
        assert S[:6] not in str(caught.value)
        assert leaks(Path("/nonexistent"), str(caught.value)) == []


@pytest.mark.attack("a token in a variable of the environment comes back in an error of a library", expected="redacted")
@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "MY_PASSWORD", "TWINLOOP_TOKEN"]
)
def test_values_of_the_environment(monkeypatch, name):
    monkeypatch.setenv(name, f"plain{S}")
    assert str(InputError(f"the service said: plain{S} is not known")) == "the service said: *** is not known"


@pytest.mark.attack(
    "credentials with a well-known form appear in a text without any name before them", expected="redacted"
)
@pytest.mark.parametrize(
    "token",
    [
        "hf_" + "aB3" * 10,
        "AKIA" + "IOSFODNN7EXAMPLE",
        "ASIA" + "Y34FZKBOKMUTVV7A",
        "ghp_" + "a1B2" * 9,
        "github_pat_" + "a1B2" * 9,
        "sk-" + "proj-" + "a1B2" * 9,
        "xoxb-" + "123456789012-abcdef",
        "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIB\n-----END RSA PRIVATE " + "KEY-----",
    ],
)
def test_tokens_of_a_known_form(token):
    assert redact_text(f"it said {token} there") == "it said *** there"


_ALPHABET = st.characters(codec="ascii", exclude_categories=("Cc",), exclude_characters=" \"'<>`|\\*")
_SECRETS = st.text(_ALPHABET, min_size=9, max_size=24).map(lambda text: "Q7" + text + "7Q")
_SHAPES = (
    "memory://U:{}@bucket/x",
    "http://u:{}@host:8000/a?b=c",
    "s3://{}@bucket",
    "filecache::simplecache::s3://u:{}@b/x",
    "//u:{}@host/x",
    "u:{}@host/x",
    "ws://u:{}@[::1]:80",
    "--token={}",
    "--api-key={}",
    "sftp://u:{}@h/a@b/c",
    "https://h/x?q=1#frag s3://u:{}@b",
    "/abs/path/memory:/u:{}@b",
)


@pytest.mark.attack(
    "any secret of any characters in any shape of address or flag",
    expected="absent from the redacted argument, and from any text in which it is repeated afterwards",
)
@settings(max_examples=150, deadline=None)
@given(_SECRETS, st.sampled_from(_SHAPES), st.sampled_from(["{}", "the server said: {} (403)", "Basic {}", "a={}&b"]))
@example("p@ss/w?rd#x", "memory://U:{}@bucket/x", "{}")
@example("12345/6@789012", "http://u:{}@host:8000/a?b=c", "{}")
def test_any_secret_in_any_shape(secret, shape, repeated):
    redaction._noted.clear()
    assume(not ("//{}@" in shape and set("/?#") & set(secret)))  # the same as a path with an @
    word = shape.format(secret)
    assert secret not in redact_words(["fetch", word, "x"])[1]
    note_secrets(["fetch", word])
    for form in (secret, quote(secret), quote(secret, safe="")):
        assert form not in redact_text(repeated.format(form))
        assert form not in json.dumps(redact_values({"output": [repeated.format(form)]}), ensure_ascii=False)


@pytest.mark.attack(
    "ordinary words of a command: paths, patterns, names with an at sign, ports, statements, times",
    expected="nothing of them is changed",
)
@pytest.mark.parametrize(
    "word",
    [
        *("data/set@2", "act@3", "main/champion", "s3://bucket/prefix", "http://127.0.0.1:8000", "http://h.x:80/a@b"),
        *(
            "videos/*",
            "joint=0.2",
            "name=object/cube/mass",
            "imu:wrist=/imu",
            "state=/joint_states,command=/arm",
            "12:30",
        ),
        *(
            "SELECT * FROM episodes WHERE task = 'a@b: c'",
            "--token-file",
            "key.pem",
            "--seed=3",
            "author=ada",
            "menagerie:x",
        ),
        *(
            "file:///data/x",
            "gs://b/x@v1/y",
            "--domain-token",
            "tokenizer=bpe",
            "C:/data/x",
            "hf_hub_download",
            "ray:h:80",
        ),
    ],
)
def test_ordinary_arguments_stay_as_they_are(word):
    assert redact_words([word, "x"]) == [word, "x"]
    note_secrets([word])
    assert redaction._noted == {}


@pytest.mark.attack(
    "texts of 30,000 characters made to keep the search for credentials busy", expected="each takes less than 1 s"
)
def test_long_texts_are_searched_quickly(observed):
    texts = ["//a" * 9000 + "@", "//u:" * 7000 + "@" * 9, "a-" * 15000, "eyJ-" * 7000, "%3A%2F" * 5000 + " %40",
             "token" * 6000, "access-key-" * 3000, "http://" * 4000 + "@", "token = " * 4000, "-" * 30000]  # fmt: skip
    longest = 0.0
    for text in texts:
        began = time.process_time()
        redact_text(text)
        note_secrets([text])
        longest = max(longest, time.process_time() - began)
    observed(f"at most {longest:.1f} s")
    assert longest < 1


@pytest.mark.attack(
    "the program ends with an exception of a library that holds the address, and a library logs a warning with it",
    expected="the traceback and the line are printed without credentials",
)
def test_tracebacks_and_logs_of_the_program(tmp_path):
    code = (
        "import logging, sys\n"
        "import twinloop.cli.main as program\n"
        "def fail(words=None, **_):\n"
        f"    logging.getLogger('urllib3').warning('retry http://USER:{S}@host/x?sig={S}')\n"
        f"    raise RuntimeError('cannot open s3://USER:{S}@bucket')\n"
        "program.main = fail\n"
        "program.run()\n"
    )
    script = tmp_path / "crash.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, str(script)], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "RuntimeError: cannot open s3://***@bucket" in done.stderr
    assert "retry http://***@host/x?sig=***" in done.stderr
    assert S not in done.stderr.replace(code, "")


@pytest.mark.attack(
    "the endpoint of the Hub is an address with credentials, and nobody answers there", expected="shown without them"
)
def test_the_endpoint_of_the_hub(cell, tmp_path, capfd, monkeypatch):
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_ENDPOINT", f"http://USER:{S}@127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    code, said = attempt(["pull", "me/set", "--output", "data/got", "--json"], capfd)
    assert code == 2
    assert leaks(tmp_path, said) == []


@pytest.mark.attack(
    "credentials are given as flags that do not exist: --token X, --password=X",
    expected="the usage error names the flag and not its value",
)
@pytest.mark.parametrize("words", [["--token", S], [f"--password={S}"], ["--secret-key", S, "--json"]])
def test_flags_that_do_not_exist(cell, tmp_path, capfd, words):
    code, said = attempt(["fetch", "memory://b/x", "y", *words], capfd)
    assert code == 2
    assert leaks(tmp_path, said) == []
    assert f"Unknown option '{words[0].partition('=')[0]}'" in said


@pytest.mark.attack(
    "a batch is added from, or a part of a workspace moved to, a folder whose name is an address with credentials",
    expected="the address is refused as a path before anything of that name is made",
)
def test_an_address_is_no_path(cell, capfd, observed):
    code, said = attempt(["pull", "me/set", "--output", f"memory://USER:{S}@bucket/x"], capfd)
    observed(said)
    assert code == 2
    assert "is an address, but a local file or folder is needed" in " ".join(said.split())
    assert [path.name for path in cell.iterdir() if ":" in path.name] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.attack(
    "a dataset is generated to, fetched from and resumed at an address with credentials, within a workspace",
    expected="it works, and no byte of them is in the workspace, in the store or on the console",
)
def test_a_dataset_generated_to_a_store(cell, tmp_path, capfd):
    (cell / "g.yaml").write_text(
        "scene: {robot: so101, task: pick_and_place}\nrollout: {parallel_envs: 2, episodes_per_env: 1}\n"
    )
    address = f"memory://USER:{S}@bucket-{uuid.uuid4().hex}/set"
    words = ["generate", "g.yaml", "--output", address, "--workers", "1", "--keep", "all"]
    said = [attempt([*words, *extra], capfd) for extra in ([], ["--resume", "--json"], [])]
    said.append(attempt(["fetch", address, "data/got"], capfd))
    assert [code for code, _ in said] == [0, 0, 2, 0]
    stored = b"".join(bytes(item.getbuffer()) for item in fsspec.filesystem("memory").store.values())
    assert leaks(tmp_path, *(text for _, text in said), stored.decode("latin-1")) == []
    fsspec.filesystem("memory").store.clear()


@pytest.mark.attack(
    "fetching fails halfway with credentials in the address", expected="the Python API's error is free of them"
)
def test_errors_of_the_api(tmp_path):
    for address in (f"memory://USER:{S}@nothing/here", f"s4://USER:{S}@x/y", f"memory://USER:{S}@"):
        with pytest.raises((DatasetError, UnknownNameError)) as caught:
            fetch_dataset(address, tmp_path / "x")
        assert S not in str(caught.value)
    assert leaks(tmp_path) == []
    assert os.environ.get("X") is None
    assert logging.lastResort is not None


@pytest.mark.attack(
    "a command prints an address with credentials, in a line, a table and its figures", expected="shown without them"
)
def test_what_commands_print(tmp_path, capfd, monkeypatch):
    address = f"s3://USER:{S}@b/x"
    table = Table(address, title=address)
    table.add_row(address)
    make_console(json=False).print(address, table)
    monkeypatch.setattr(
        "twinloop.workflows.data.transfer.fetch_dataset", lambda *_: {**_FETCHED, "address": address, "token": S}
    )
    assert main(["fetch", "memory://b/x", str(tmp_path / "y"), "--json"]) == 0
    said = capfd.readouterr()
    assert leaks(tmp_path, said.out, said.err) == []
    assert json.loads(said.out.splitlines()[-1]) == {**_FETCHED, "address": "s3://***@b/x", "token": "***"}


_FETCHED = {"episodes": 0, "frames": 0, "downloaded": 0, "files": 0, "left_out": []}
