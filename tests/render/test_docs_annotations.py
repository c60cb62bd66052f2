"""The page on annotations names every annotation, table, column and class, and its examples work."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from twinloop.dataset.annotations import TABLES, CameraAnnotations
from twinloop.render.annotate import ANNOTATIONS, AnnotationSettings
from twinloop.render.annotate.frame import MOST_RAYS
from twinloop.render.annotate.instances import CLASSES

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "annotations.md").read_text()
SHARED = {"number", "frame_index", "camera"}


def test_every_annotation_and_class_is_named():
    assert re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)[: len(ANNOTATIONS)] == list(ANNOTATIONS)
    assert ", ".join(CLASSES) in " ".join(PAGE.split())
    assert f"{MOST_RAYS:,}" in PAGE
    assert f"({1e3 * AnnotationSettings().depth_unit:g} mm)" in PAGE


def test_every_column_of_every_table_is_named():
    for name, columns in TABLES.items():
        own = [column for column in columns if column not in SHARED]
        assert f"| `annotations/{name}` | {', '.join(f'`{column}`' for column in own)} |" in PAGE


def test_what_is_read_exists():
    names = set(re.findall(r"\bfront\.(\w+)", PAGE))
    fields = set(CameraAnnotations.__dataclass_fields__)
    assert names <= fields | set(dir(CameraAnnotations)), names


def test_classes_of_the_page_are_a_section_of_a_twin():
    from twinloop.twin.spec import TwinSpec

    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    spec = {"name": "t", "model": "m.xml", "control_hz": 1, "substeps": 1, **yaml.safe_load(text)}
    assert TwinSpec.model_validate(spec).classes == {"cube": "food", "table": "fixture"}
