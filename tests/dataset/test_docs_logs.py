"""Check the statements of the page on logs."""

from __future__ import annotations

import re

import numpy as np

from support.docs_sections import section
from support.import_csv import FOREIGN
from twinloop.dataset.logs.formats import list_importers, load_log
from twinloop.dataset.logs.importers.tables import KNOWN, UNITS
from twinloop.dataset.logs.sets.registry import SETS

PAGE = section("guides/import_logs.md", "Import logs")


def table(title):
    """Names in the first column of the table below a heading."""
    text = section("guides/import_logs.md", title)
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([\w./-]+)`", row.split("|")[1])]


def test_every_format_set_and_unit_is_named():
    assert table("Formats") == [importer.name for importer in list_importers()]
    assert table("Public sets") == list(SETS)
    assert {name.partition("/")[0] for name in table("Signals")} == {
        *KNOWN,
        "joint_velocity",
        "joint_torque",
        "motor",
        "enabled",
    }
    for kind, (columns, _) in KNOWN.items():
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{kind}/"))
        assert [word for cell in re.findall(r"`([a-z ]+)`", row) for word in cell.split()] == list(columns)
    listed = PAGE.split("measured columns in\n")[1].split(".\n")[0].replace("\n", " ")
    assert listed == ", ".join(UNITS)


def test_the_tables_on_the_page_are_read(tmp_path):
    (example,) = re.findall(r"```csv\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "arm.csv").write_text(example)
    (episode,) = load_log(tmp_path / "arm.csv")
    assert episode.joints == ("elbow", "gripper")
    assert episode.conditions == {"payload": 0.1}
    assert len(episode.signals["acceleration/imu"]) == 1
    (description,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "run.yaml").write_text(description)
    header, *rows = FOREIGN.splitlines()
    lines = [f"{header};q2;q2_des;tau2", *(f"{row};1;2;500" for row in rows)]
    (tmp_path / "run.csv").write_text("\n".join(lines) + "\n")
    episodes = load_log(tmp_path / "run.csv")
    assert episodes[0].joints == ("hip", "knee")
    np.testing.assert_allclose(episodes[0].signals["joint_torque"].values, 0.5)
