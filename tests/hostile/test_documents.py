"""YAML, JSON and other files that claim memory, time or another file are refused at once, by name and line."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import shutil
import socket
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from _limited import Limited
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.exports import image_dataset
from twinloop.catalog import Workspace
from twinloop.core.documents import DocumentError, parse_json
from twinloop.core.yaml_documents import parse_yaml

QUICK = "refused by file and line in under 1 s of CPU time and 512 MiB, without a traceback"
Observed = Callable[[object], None]


@pytest.fixture(scope="module")
def limited() -> Limited:
    """One process with everything loaded, for all attacks."""
    return Limited.shared()


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new workspace, in which commands run."""
    return Workspace.create(tmp_path_factory.mktemp("cell") / "cell").root


def attack(what: str, *values: Any, expected: str = QUICK, name: str, slow: bool = False) -> Any:
    """Return one row of the table of attacks."""
    marks = [pytest.mark.attack(what, expected=expected), *([pytest.mark.slow] if slow else [])]
    return pytest.param(*values, marks=marks, id=name)


def _laughs(first: str, one: str, width: int = 10, levels: int = 10) -> str:
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{i}: &a{i} {one.format(', '.join([f'*a{i - 1}'] * width))}" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


def _nested(depth: int) -> str:
    """Return a chain of anchors, each 40 levels deep with the one before inside."""
    lines = [f"a{i}: &a{i} {'[' * 40}{f'*a{i - 1}' if i else 'x'}{']' * 40}" for i in range(depth)]
    return "\n".join(lines) + "\n"


DIGITS = "9" * 4_301
DIRECTIVES = "".join(f"%TAG !a{i}! x\n" for i in range(200_000))
YAMLS = [
    attack("YAML: ten levels of ten aliases each, 10⁹ values", _laughs("[x]", "[{}]"), "more than 100,000", name="lol"),
    attack(
        "YAML: ten levels of ten merge keys each",
        _laughs("{x: 1}", "{{<<: [{}]}}"),
        "more than 100,000",
        name="merge-keys",
    ),
    attack(
        "YAML: 30,000 merge keys in one mapping",
        "{" + ",".join(f"<<: {{k{i}: 1}}" for i in range(30_000)) + "}",
        "given twice",
        name="many-merges",
    ),
    attack(
        "YAML: a text of 1 MB with 90,000 aliases, 90 GB written out",
        "a: &a " + "x" * 1_000_000 + "\nb: [" + "*a, " * 90_000 + "]",
        "more than 100,000",
        name="long-text-aliases",
    ),
    attack("YAML: a list that contains itself", "a: &a [1, *a]", "line 1: the value `&a` contains itself", name="ring"),
    attack("YAML: a mapping that contains itself", "&a {b: {c: *a}}", "contains itself", name="ring-of-mappings"),
    attack("YAML: a merge key that merges its own mapping", "&a {<<: *a}", "contains itself", name="ring-of-merges"),
    attack("YAML: an alias as the key of the mapping that it names", "&a {*a : 1}", "contains itself", name="ring-key"),
    attack("YAML: an alias without an anchor", "a: *b", "has no anchor", name="no-anchor"),
    attack("YAML: 10⁶ brackets", "[" * 1_000_000, "nested more than 64", name="brackets"),
    attack("YAML: 10⁶ nested block lists", "- " * 1_000_000, "nested more than 64", name="blocks"),
    attack("YAML: 5·10⁵ nested mappings as keys", "? " * 500_000, "nested more than 64", name="keys"),
    attack("YAML: a chain of aliases, 4,000 levels deep", _nested(100), "nested more than 64", name="deep-aliases"),
    attack("YAML: 10⁶ values", "[" + "1," * 1_000_000 + "]", "more than 100,000", name="many-values"),
    attack("YAML: an integer of 4,301 digits", f"seed: {DIGITS}", "does not fit in 64 bits", name="digits"),
    attack("YAML: an integer of 30 digits, which no array holds", "seed: 1" + "0" * 29, "64 bits", name="integer"),
    attack("YAML: a hexadecimal integer of 10,000 digits", f"a: 0x{'f' * 10_000}", "64 bits", name="hexadecimal"),
    attack("YAML: an octal integer of 10,000 digits", f"a: 0{'7' * 10_000}", "64 bits", name="octal"),
    attack("YAML: a binary integer of 10⁵ digits", f"a: 0b{'1' * 100_000}", "64 bits", name="binary"),
    attack("YAML: an integer of 2,000 parts to the base of 60", "a: 1" + ":59" * 2_000, "64 bits", name="sexagesimal"),
    attack("YAML: an integer of 10⁵ digits with underscores", "a: 1" + "_0" * 100_000, "64 bits", name="underscores"),
    attack("YAML: a finite number that is infinite as a float", "a: 1.0e+999", "64 bits", name="float"),
    attack("YAML: a hexadecimal integer without digits", "a: 0x_", "is not a value", name="no-digits"),
    attack("YAML: a text with the tag of an integer", "a: !!int abc", "is not a value", name="wrong-tag"),
    attack("YAML: a Python object", "!!python/object/apply:os.system [id]", "the tag .* is not allowed", name="object"),
    attack("YAML: a Python tuple", "a: !!python/tuple [1]", "the tag .* is not allowed", name="tuple"),
    attack("YAML: bytes in base 64", "a: !!binary aGk=", "the tag .* is not allowed", name="bytes"),
    attack("YAML: a set", "a: !!set {b, c}", "the tag .* is not allowed", name="set"),
    attack("YAML: an ordered list of pairs", "a: !!omap [b: 1]", "the tag .* is not allowed", name="pairs"),
    attack("YAML: an impossible date with its tag", "a: !!timestamp 2001-99-99", "tag .* is not allowed", name="date"),
    attack("YAML: the same key twice", "seed: 1\nx: 2\nseed: 3", "line 3: the key 'seed' is given twice", name="twice"),
    attack("YAML: the same key twice, once in quotes", "seed: 1\n'seed': 3", "given twice", name="twice-quoted"),
    attack("YAML: a number as a key", "1: 2", "the key 1 is not text", name="key-number"),
    attack("YAML: `on` as a key, which is true", "on: 2", "the key True is not text", name="key-true"),
    attack("YAML: a list as a key", "[a, b]: 2", "is not text", name="key-list"),
    attack("YAML: a zero character in a text", 'model: "a\\0.xml"', "control character", name="zero"),
    attack("YAML: a text that clears the terminal", 'name: "\\e[2J\\e[H"', "control character", name="terminal"),
    attack("YAML: half of a surrogate pair", 'name: "\\ud800"', "is not valid YAML", name="surrogate"),
    attack("YAML: 200,000 directives", DIRECTIVES, "begin with %", name="tags"),
    attack("YAML: two documents in one file", "a: 1\n---\na: 2\n", "one document is expected", name="documents"),
    attack("YAML: a file of 5 MB", "# " + "x" * 5_000_000, "at most 4,194,304 are read", name="large"),
]


@pytest.mark.parametrize(("text", "message"), YAMLS)
def test_a_hostile_yaml_file_is_refused(
    limited: Limited, tmp_path: Path, text: str, message: str, observed: Observed
) -> None:
    file = tmp_path / "sent.yaml"
    file.write_text(text)
    outcome = limited.refused("twinloop.core.yaml_documents:load_yaml", file)
    observed(outcome)
    assert re.search(message, outcome.message), outcome
    assert "sent.yaml" in outcome.message


JSONS = [
    attack("JSON: 4·10⁵ brackets", "[" * 400_000, "nested more than 64", name="brackets"),
    attack("JSON: 10⁵ nested objects", '{"a":' * 100_000, "nested more than 64", name="objects"),
    attack("JSON: 65 closed levels", "[" * 65 + "]" * 65, "nested more than 64", name="levels"),
    attack("JSON: an integer of 4,301 digits", f'{{"a": {DIGITS}}}', "64 bits", name="digits"),
    attack("JSON: an integer of 30 digits", "[1" + "0" * 29 + "]", "64 bits", name="integer"),
    attack("JSON: the same key twice", '{"licence": "a", "licence": "b"}', "'licence' is given twice", name="twice"),
    attack(
        "JSON: one of 100,000 keys twice",
        "{" + ",".join(f'"{i}":1' for i in range(100_000)) + ',"5":1}',
        "given twice",
        name="twice-of-many",
    ),
    attack("JSON: half of a surrogate pair", '{"a": "\\ud800"}', "not allowed in text", name="surrogate"),
    attack("JSON: a zero character in a key", '{"a\\u0000": 1}', "not allowed in text", name="zero"),
    attack("JSON: 5·10⁶ empty lists", "[" + "[]," * 5_000_000 + "[]]", "more values than allowed", name="lists"),
    attack("JSON: 10⁷ numbers", "[" + "0," * 10_000_000 + "0]", "more values than allowed", name="numbers"),
    attack("JSON: no text at all", "", "is not valid JSON", name="empty"),
]


@pytest.mark.parametrize(("text", "message"), JSONS)
def test_a_hostile_json_file_is_refused(
    limited: Limited, tmp_path: Path, text: str, message: str, observed: Observed
) -> None:
    file = tmp_path / "sent.json"
    file.write_text(text)
    outcome = limited.refused("twinloop.core.documents:read_json", file)
    observed(outcome)
    assert re.search(message, outcome.message), outcome
    assert "sent.json" in outcome.message


@pytest.mark.attack("JSON: a file of 1 TB, all of it a hole", expected=QUICK)
def test_a_sparse_file_of_any_size_is_refused(limited: Limited, tmp_path: Path, observed: Observed) -> None:
    file = tmp_path / "sent.json"
    with file.open("wb") as opened:
        opened.truncate(1 << 40)
    outcome = limited.refused("twinloop.core.documents:read_json", file)
    observed(outcome)
    assert "at most 33,554,432 are read" in outcome.message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        attack("YAML in UTF-16", "name: x".encode("utf-16"), "not text in UTF-8", name="utf-16"),
        attack("YAML in Latin-1", "name: Jürgen".encode("latin-1"), "not text in UTF-8", name="latin-1"),
        attack("YAML: bytes that are no text", bytes(range(256)), "not text in UTF-8", name="bytes"),
        attack("YAML: a raw zero byte", b"name: a\0b", "not valid YAML", name="zero"),
    ],
)
def test_a_yaml_file_that_is_no_text_is_refused(
    limited: Limited, tmp_path: Path, data: bytes, message: str, observed: Observed
) -> None:
    file = tmp_path / "sent.yaml"
    file.write_bytes(data)
    outcome = limited.refused("twinloop.core.yaml_documents:load_yaml", file)
    observed(outcome)
    assert message in outcome.message


def test_what_people_write_is_read() -> None:
    text = (
        "base: &b {x: 1, y: .inf}\nmerged: {<<: *b, x: 2}\ndate: 2026-07-01\nname: café\n"
        "hex: 0x1F\nlong: 1_000\nclock: 1:30\nno: &n ~\n"
    ).replace("no:", '"no":')
    value = parse_yaml(text, where="x")
    assert value["merged"] == {"x": 2, "y": float("inf")}
    assert (value["date"], value["hex"], value["long"], value["clock"]) == ("2026-07-01", 31, 1000, 90)
    assert parse_yaml("﻿a: 1".removeprefix("﻿"), where="x") == {"a": 1}
    assert parse_yaml("", where="x") is None
    assert str(parse_json('[NaN, Infinity, 18446744073709551615, "\\ud83d\\ude00"]', where="x")[3]) == "😀"


TEXT = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=8)  # control characters are refused
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=60, deadline=None)
@given(PLAIN)
def test_what_yaml_and_json_write_is_read_back(value: Any) -> None:
    text = yaml.safe_dump(value, allow_unicode=True)
    expected = yaml.safe_load(text)
    written = json.dumps(value)
    assert parse_yaml(text, where="x") == expected
    assert parse_json(written, where="x") == json.loads(written)


@settings(max_examples=150, deadline=None)
@example("<<")
@example("a: <<")
@example("- <<")
@given(st.text(alphabet="ab01:-?&*[]{}<>!|%'\"#,\n \\._", max_size=60))
def test_any_text_is_read_as_pyyaml_does_or_refused(text: str) -> None:
    try:
        value = parse_yaml(text, where="x")
    except DocumentError:
        return
    assert value == yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _place(folder: Path, kind: str) -> Path:
    """Make a file system entry that is no regular file."""
    path = folder / "sent.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(path))
    elif kind == "ring":
        path.symlink_to(path)
    elif kind == "link to a pipe":
        os.mkfifo(folder / "pipe")
        path.symlink_to(folder / "pipe")
    elif kind == "long":
        path = folder / ("x" * 5_000)
    else:
        path.symlink_to(kind)
    return path


@pytest.mark.parametrize("reader", ["twinloop.core.yaml_documents:load_yaml", "twinloop.core.documents:read_json"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        attack("A document that is a named pipe", "pipe", "is a pipe, not a regular file", name="pipe"),
        attack("A document that is a folder", "folder", "is a folder", name="folder"),
        attack("A document that is a socket", "socket", "is a socket", name="socket"),
        attack("A document that is a link to itself", "ring", "cannot be read", name="link-ring"),
        attack("A document that is a link to a pipe", "link to a pipe", "is a pipe", name="link-to-pipe"),
        attack("A document that is a link to /dev/zero", "/dev/zero", "is a device", name="zero"),
        attack("A document that is a link to /dev/random", "/dev/random", "is a device", name="random"),
        attack("A document that is a link to the process's own memory", "/proc/self/mem", "", name="memory"),
        attack("A document that is a link to a file of the kernel without size", "/proc/self/maps", "", name="kernel"),
        attack("A document whose name has 5,000 characters", "long", "cannot be read", name="long-name"),
    ],
)
def test_what_is_no_regular_file_is_not_read(
    limited: Limited,
    tmp_path: Path,
    reader: str,
    kind: str,
    message: str,
    observed: Observed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = limited.refused(reader, _place(tmp_path, kind))
    observed(outcome)
    assert message in outcome.message


COMMANDS = [
    (["generate", "{}", "--output", "{out}"], ".yaml"),
    (["train", "{}", "--output", "{out}"], ".yaml"),
    (["gate", "{}"], ".yaml"),
    (["twin", "check", "{}"], ".yaml"),
    (["twin", "check", "{}"], ".xml"),
    (["twin", "show", "{}"], ".urdf"),
    (["import", "{}", "--output", "{out}"], ".csv"),
    (["import", "{}", "--output", "{out}"], ".hdf5"),
    (["import", "{}", "--output", "{out}"], ".mcap"),
    (["import", "{}", "--output", "{out}"], ".bag"),
    (["import", "{log}", "--describe", "{}", "--output", "{out}"], ".yaml"),
    (["gap", "policies", "{}"], ".csv"),
    (["gap", "policies", "{}"], ".json"),
    (["gap", "predictivity", "{}"], ".csv"),
    (["coverage", "--real", "{0}", "--sim", "{0}"], ".npz"),
    (["evaluate", "expert", "--twin", "so101_tabletop", "--task", "pick_and_place", "--suite", "{}"], ".yaml"),
    (["evaluate", "{}"], ""),
    (["evidence", "--failure-rate", "0.1", "--sim", "{}"], ".json"),
    (["add", "{}"], ""),
    (["scenario", "search", "{}"], ".yaml"),
    (["scenario", "show", "{}"], ""),
    (["sensors", "show", "{}"], ".xml"),
    (["identify", "--twin", "simple_pendulum", "--data", "{}"], ".csv"),
    (["identify", "--twin", "simple_pendulum", "--data", "{log}", "--fit", "{}"], ".yaml"),
    (["gap", "dynamics", "--twin", "simple_pendulum", "--data", "{}"], ".csv"),
    (["replay", "{}", "0"], ""),
    (["export", "lerobot", "{}", "--output", "{out}"], ""),
    (["edit", "select", "{}", "--output", "{out}", "--episodes", "0"], ""),
    (["curate", "{}"], ""),
    (["serve", "--policy", "{}"], ""),
    (["monitor", "calibrate", "--twin", "so101_tabletop", "--data", "{}", "--output", "{out}"], ""),
    (["label", "--from", "{}"], ".csv"),
    (["label", "--from", "{}"], ".jsonl"),
    (["label", "--rule", "{}"], ".yaml"),
    (["policies", "add", "{}"], ""),
]


@pytest.mark.parametrize(
    ("words", "suffix"),
    [
        attack(
            f"A pipe as an argument: `twinloop {' '.join(words)}`".format("PIPE" + suffix, out="OUT", log="LOG"),
            words,
            suffix,
            expected="refused at once with exit code 2: nothing waits for a writer",
            name=f"{words[0]}-{i}{suffix}",
            slow=i % 3 != 0,
        )
        for i, (words, suffix) in enumerate(COMMANDS)
    ],
)
def test_a_pipe_as_an_argument_does_not_hang_a_command(
    limited: Limited, cell: Path, tmp_path: Path, words: list[str], suffix: str, observed: Observed
) -> None:
    log = tmp_path / "log.csv"
    log.write_text("time_s,state/hinge,action/hinge\n" + "".join(f"{i / 50},0,0\n" for i in range(50)))
    pipe = tmp_path / f"sent{suffix}"
    os.mkfifo(pipe)
    outcome = limited.run("main", *(word.format(pipe, out=tmp_path / "out", log=log) for word in words), folder=cell)
    observed(outcome)
    assert outcome.kind == "refused", outcome
    assert "Traceback" not in outcome.message
    assert pipe.name in outcome.message


def _npz(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in members.items():
            packed.writestr(f"{name}.npy", data)
    return buffer.getvalue()


def _npy(shape: str, descr: str = "'<f8'", data: bytes = b"") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        attack("npz: a header of 10¹² numbers", _npz(a=_npy(f"(1{'0' * 12},)")), "too few", name="shape"),
        attack("npz: a header of 10⁴⁰⁰ numbers", _npz(a=_npy(f"(1{'0' * 400},)")), "too few", name="digits"),
        attack("npz: a negative length", _npz(a=_npy("(-1,)", data=b"\0" * 8)), "too few", name="negative"),
        attack("npz: an array of objects", _npz(a=_npy("(1,)", "'|O'")), "array of objects", name="objects"),
        attack("npz: a record with an object", _npz(a=_npy("(1,)", "[('a','|O')]")), "array of objects", name="record"),
        attack("npz: 256 MiB of zeros in 260 kB", _npz(a=_npy("(1,)") + bytes(1 << 28)), "unpacks to", name="bomb"),
        attack("npz: a text that is no header", _npz(a=b"hello"), "is not a numpy array", name="header"),
        attack("npz: a header that is a call", _npz(a=_npy("__import__('os')")), "is not a numpy array", name="call"),
        attack("npz: no zip file at all", b"PK\x03\x04" + b"\0" * 100, "is damaged", name="no-zip"),
    ],
)
def test_a_hostile_array_file_is_refused(
    limited: Limited, tmp_path: Path, data: bytes, message: str, observed: Observed
) -> None:
    (tmp_path / "sent.npz").write_bytes(data)
    outcome = limited.refused("_limited_calls:read_npz", tmp_path / "sent.npz")
    observed(outcome)
    assert message in outcome.message


def test_arrays_are_read_back(tmp_path: Path) -> None:
    from twinloop.core.documents import read_arrays

    np.savez_compressed(tmp_path / "a.npz", x=np.arange(6.0).reshape(2, 3), names=np.array(["a", "bc"]))
    read = read_arrays(tmp_path / "a.npz", max_bytes=1 << 20, where="a")
    assert read["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert read["names"].tolist() == ["a", "bc"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with images, states and side tables."""
    return image_dataset(tmp_path_factory.mktemp("dataset") / "sent")


PLACES = (
    "meta/info.json",
    "meta/stats.json",
    "meta/tasks.parquet",
    "meta/episodes/*/*.parquet",
    "data/*/*.parquet",
    "videos/*front/*/*.mp4",
    "twinloop/dataset.json",
    "twinloop/unit_map.json",
    "twinloop/progress.json",
    "twinloop/provenance/*/*.jsonl",
    "twinloop/states/*/*.parquet",
    "twinloop/annotations/contacts/*/*.parquet",
)
QUICK_PLACES = ("meta/info.json", "data/*/*.parquet", "videos/*front/*/*.mp4", "twinloop/provenance/*/*.jsonl")
QUICK_READERS = (
    ("add", "{}"),
    ("export", "lerobot", "{}", "--output", "{out}"),
    ("edit", "select", "{}", "--output", "{out}", "--episodes", "0"),
)
SLOW_READERS = (
    ("curate", "{}"),
    ("gap", "vision", "--real", "{0}", "--sim", "{0}"),
    ("replay", "{}", "0"),
    ("coverage", "--real", "{0}", "--sim", "{0}"),
    ("export", "mcap", "{}", "--output", "{out}"),
    ("export", "groot", "{}", "--output", "{out}"),
    ("monitor", "calibrate", "--twin", "so101_tabletop", "--data", "{}", "--output", "{out}"),
)


@pytest.mark.parametrize(
    ("place", "commands"),
    [
        pytest.param(
            place,
            commands,
            marks=[
                pytest.mark.attack(
                    f"Dataset: a pipe in the place of {place}, for {', '.join(words[0] for words in commands)}",
                    expected="refused or left out by name: nothing waits for a writer, and no traceback",
                ),
                *([] if commands is QUICK_READERS and place in QUICK_PLACES else [pytest.mark.slow]),
            ],
            id=f"{place}-{commands[0][0]}",
        )
        for place in PLACES
        for commands in (QUICK_READERS, SLOW_READERS)
    ],
)
def test_a_pipe_in_a_dataset_does_not_hang_a_command(
    limited: Limited,
    cell: Path,
    dataset: Path,
    tmp_path: Path,
    place: str,
    commands: tuple[tuple[str, ...], ...],
    observed: Observed,
) -> None:
    sent = tmp_path / "sent"
    shutil.copytree(dataset, sent)
    file = min(sent.glob(place))
    file.unlink()
    os.mkfifo(file)
    kinds = list[str]()
    for number, words in enumerate(commands):
        line = [word.format(sent, out=tmp_path / f"out{number}") for word in words]
        outcome = limited.run("main", *line, folder=cell)
        assert outcome.kind in ("refused", "exit 0", "exit 1", "exit 3"), (words, outcome)
        kinds.append(f"{words[0]}: {outcome.kind}")
    observed(", ".join(kinds))


FOLDERS = [
    ("twinloop.policies.folder:read_config", "config.json", "a policy"),
    ("twinloop.policies.weights:read_weights", "model.safetensors", "a policy"),
    ("twinloop.rollout.scenario_files:read_scenario", "scenario.yaml", "a scenario"),
    ("twinloop.release.monitor.calibration:read_monitor_calibration", "monitor.json", "a monitor"),
    ("twinloop.randomize.sources:read_identified", "result.json", "an identify run"),
    ("twinloop.core.evaluation:Evaluation.read", "evaluation.json", "an evaluation"),
    ("twinloop.dataset.lerobot.calibration:read_calibration", "calibration.json", "a calibration"),
]


@pytest.mark.parametrize(
    ("reader", "name"),
    [
        attack(f"Folder: {name} of {what} is a pipe", reader, name, name=name, expected="refused at once: no wait")
        for reader, name, what in FOLDERS
    ],
)
def test_a_pipe_in_a_folder_that_was_sent_does_not_hang(
    limited: Limited, tmp_path: Path, reader: str, name: str, observed: Observed
) -> None:
    if "weights" in reader:
        _ = importlib.util.find_spec("torch") or pytest.skip("torch is not installed")
    os.mkfifo(tmp_path / name)
    outcome = limited.refused(reader, tmp_path / name if "calibration" in name else tmp_path)
    observed(outcome)
    assert name in outcome.message


def _png(width: int, height: int) -> bytes:
    """Return an image of one grey: a kilobyte for every million of its pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    rows = b"".join([packer.compress(bytes(1 + 3 * width)) for _ in range(height)] + [packer.flush()])
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        attack("Picture: 9,000 × 9,000 pixels in 240 kB", _png(9_000, 9_000), "at most 67,108,864", name="bomb"),
        attack(
            "Picture: a header of 2³¹ × 2³¹ pixels",
            _png(1, 1).replace(b"\0\0\0\1" * 2, b"\x7f\xff\xff\xff" * 2),
            "cannot be read",
            name="header",
        ),
        attack("Picture: a PNG file that is cut off", _png(64, 64)[:60], "cannot be read", name="cut"),
        attack(
            "Picture: PostScript, which a converter would run",
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
            "cannot be read",
            name="postscript",
        ),
        attack("Picture: a GIF file with one colour table and no end", b"GIF89a" + b"\xff" * 64, "", name="gif"),
    ],
)
def test_a_hostile_image_is_refused(
    limited: Limited, tmp_path: Path, data: bytes, message: str, observed: Observed
) -> None:
    (tmp_path / "sent.png").write_bytes(data)
    outcome = limited.refused("_limited_calls:read_image", tmp_path / "sent.png")
    observed(outcome)
    assert message in outcome.message


@pytest.mark.parametrize(
    "text",
    [
        attack(
            "Video: a playlist called .mp4 that names another video",
            "ffconcat version 1.0\nfile real.mp4\n",
            name="concat",
        ),
        attack(
            "Video: a playlist called .mp4 that names an address",
            "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nhttp://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n",
            name="hls",
        ),
        attack(
            "Video: a session description called .mp4",
            "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nm=video 9 RTP/AVP 96\n",
            name="sdp",
        ),
        attack("Video: a picture sequence called .mp4", "P6\n99999 99999\n255\n", name="ppm"),
        attack("Video: text", "hello", name="text"),
    ],
)
def test_a_video_that_is_a_reference_is_refused(
    limited: Limited, dataset: Path, tmp_path: Path, text: str, observed: Observed
) -> None:
    shutil.copy(min(dataset.glob("videos/*front/*/*.mp4")), tmp_path / "real.mp4")
    assert limited.run("_limited_calls:read_video", tmp_path / "real.mp4").kind == "done"
    (tmp_path / "sent.mp4").write_text(text)
    outcome = limited.refused("_limited_calls:read_video", tmp_path / "sent.mp4")
    observed(outcome)
    assert "cannot be read as a video" in outcome.message


@pytest.mark.parametrize(
    ("rows", "width", "group"),
    [
        attack("Parquet: 3·10⁸ equal numbers in a small file", 300_000_000, 1, 3_000_000, name="numbers", slow=True),
        attack("Parquet: lists of 3·10⁸ equal numbers in 300 rows", 300, 1_000_000, 2, name="lists", slow=True),
        attack("Parquet: 100,001 row groups of one row", 100_001, 1, 1, name="groups", slow=True),
    ],
)
def test_a_table_that_unpacks_to_gigabytes_is_refused(
    limited: Limited, tmp_path: Path, rows: int, width: int, group: int, observed: Observed
) -> None:
    kind = pa.float64() if width == 1 else pa.list_(pa.float64(), width)
    with pq.ParquetWriter(tmp_path / "sent.parquet", pa.schema({"a": kind}), compression="zstd") as writer:
        values = pa.array(np.zeros(group * width))
        part = values if width == 1 else pa.FixedSizeListArray.from_arrays(values, width)
        for _ in range(rows // group):
            writer.write_table(pa.table({"a": part}, schema=pa.schema({"a": kind})), row_group_size=group)
    size = (tmp_path / "sent.parquet").stat().st_size
    outcome = limited.refused("_limited_calls:read_parquet", tmp_path / "sent.parquet")
    observed(f"{size:,} bytes: {outcome}")
    assert "are read" in outcome.message
