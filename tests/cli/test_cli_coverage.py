"""`twinloop coverage` reports the coverage of a dataset in a table, a page and JSON."""

from __future__ import annotations

import json

import pytest
import yaml

from twinloop.cli.main import main
from twinloop.workflows.coverage.coverage import format_hole

FILE = {
    "scene": {"robot": "so101", "task": "pick_and_place"},
    "randomization": {
        "physics": {"object_mass_g": {"low": 20, "high": 100, "proposal": [20, 110]}},
        "params": {"object/cube/yaw": [-0.7, 0.7]},
        "constraints": ["abs(object/cube/yaw) > 0.1"],
        "adaptive": {"names": ["object/cube/friction/slide"], "every": 4, "buffer": 1, "start": "default"},
        "design": "latin_hypercube",
    },
    "rollout": {"parallel_envs": 4, "episodes_per_env": 2},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("coverage")
    (folder / "generate.yaml").write_text(yaml.safe_dump(FILE))
    arguments = [
        "generate",
        str(folder / "generate.yaml"),
        "--output",
        str(folder / "batch"),
        "--workers",
        "1",
        "--json",
    ]
    return folder / "batch", main(arguments)


def test_generate_prints_what_became_of_its_draws(made, capsys, tmp_path):
    file = tmp_path / "generate.yaml"
    file.write_text(yaml.safe_dump(FILE))
    assert main(["generate", str(file), "--output", str(tmp_path / "batch"), "--workers", "1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Constraints accepted 8 of" in said
    assert "Importance weights: the kept episodes weigh as" in said
    assert "Adaptive ranges after 2 rounds: object/cube/friction/slide [" in said
    assert "of the cells of 3 parameters taken in pairs (independent draws:" in said


def test_coverage_is_printed_and_drawn(made, capsys, tmp_path):
    folder, code = made
    assert code == 0
    capsys.readouterr()
    page = tmp_path / "page.html"
    assert main(["coverage", str(folder), "--output", str(page), "--triples", "--json"]) == 0
    captured = capsys.readouterr()
    metrics = json.loads(captured.out.splitlines()[-1])
    written = json.loads((folder / "twinloop" / "coverage.json").read_text())
    assert metrics["kept"]["pairs"] == written["kept"]["pairs"]
    assert metrics["kept"]["triples"]["occupied"] > 0
    assert len(metrics["adaptive"]["rounds"]) == 2
    said = " ".join(captured.err.split())
    for words in (
        "object/cube/yaw",
        "8 attempted, 3 axes",
        "Triples of parameters",
        "Largest hole:",
        "Adaptive ranges",
    ):
        assert words in said
    html = page.read_text()
    for words in ("Each parameter", "Pairs of parameters", "least covered pair", "Adaptive ranges", "widen"):
        assert words in html


def test_a_folder_that_is_no_dataset_is_refused(tmp_path, capsys):
    assert main(["coverage", str(tmp_path)]) == 2
    assert "is not a LeRobot dataset" in " ".join(capsys.readouterr().err.split())


def test_a_dataset_in_which_nothing_varied_has_nothing_to_cover(tmp_path, capsys):
    file = tmp_path / "generate.yaml"
    file.write_text(yaml.safe_dump({**FILE, "randomization": {}, "rollout": {"parallel_envs": 1}}))
    assert main(["generate", str(file), "--output", str(tmp_path / "batch"), "--workers", "1"]) == 0
    assert main(["coverage", str(tmp_path / "batch")]) == 2
    assert "No parameter was randomized per episode" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("by_chance", "said"),
    [(436.8, "leave 440 such"), (0.0312, "leave 0.031 such"), (1.6e-56, "leave fewer than 0.001 such")],
)
def test_a_hole_is_told_in_plain_numbers(by_chance, said):
    hole = {"names": ["a", "b"], "low": [0, 1], "high": [2, 3], "probability": 0.9, "by_chance": by_chance}
    assert said in format_hole(hole)
