"""A user's file imports its neighbours, and nothing runs that was not approved."""

import sys

import pytest

from twinloop.core.errors import InputError
from twinloop.core.extension import NotApprovedError, list_source_files, load_class, mark_references

MAIN = """
import math
import sizes
from shapes import area

class Task:
    size = sizes.SIZE
    area = area(sizes.SIZE)

    def late(self):
        import lazy
        return lazy.VALUE
"""


@pytest.fixture(autouse=True)
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("TWINLOOP_HOME", str(tmp_path / "settings"))


def write_files(folder, size=3, **more):
    folder.mkdir()
    texts = {
        "main": MAIN, "sizes": f"SIZE = {size}", "lazy": "VALUE = 5", "unused": "raise SystemExit",
        "shapes": "from .sizes import SIZE as OWN\nfrom . import sizes\ndef area(a): return a * sizes.SIZE + OWN - OWN",
        **more,
    }  # fmt: skip
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    return folder / "main.py"


def test_a_file_imports_its_neighbours_also_later_and_leaves_no_modules_behind(tmp_path):
    task = load_class("task", f"{write_files(tmp_path / 'own')}:Task", [])
    assert (task.size, task.area, task().late()) == (3, 9, 5)
    assert not {"sizes", "shapes", "lazy"} & sys.modules.keys()


def test_equal_files_with_other_neighbours_are_other_modules(tmp_path):
    one = load_class("task", f"{write_files(tmp_path / 'one', size=2)}:Task", [])
    two = load_class("task", f"{write_files(tmp_path / 'two', size=7)}:Task", [])
    assert (one.size, two.size) == (2, 7)


def test_source_files_are_found_without_running_them(tmp_path):
    main = write_files(tmp_path / "own")
    assert [path.name for path in list_source_files(main)] == ["main.py", "lazy.py", "shapes.py", "sizes.py"]
    (tmp_path / "own" / "shapes.py").write_text("def (")
    with pytest.raises(InputError, match="shapes.py cannot be read as Python"):
        list_source_files(main)


def test_the_standard_library_takes_precedence_and_a_missing_neighbour_is_named(tmp_path):
    main = write_files(tmp_path / "own", math="raise SystemExit")
    assert load_class("task", f"{main}:Task", []).size == 3
    (tmp_path / "own" / "sizes.py").unlink()
    main.write_text("from .sizes import SIZE\nclass Task: pass")
    with pytest.raises(InputError, match=r"there is no .*sizes\.py"):
        load_class("task", f"{main}:Task", [])


def test_neighbours_of_a_file_that_data_name_must_be_approved_too(tmp_path):
    main = write_files(tmp_path / "own")
    load_class("task", f"{main}:Task", [])
    reference = mark_references(f"{main}:Task", "data.yaml")
    assert load_class("task", reference, []).size == 3
    (tmp_path / "own" / "sizes.py").write_text("SIZE = 4")
    with pytest.raises(NotApprovedError, match=r"sizes\.py"):
        load_class("task", reference, [])


def test_the_message_has_one_command_for_a_file_and_all_that_it_imports(tmp_path):
    main = write_files(tmp_path / "own")
    with pytest.raises(NotApprovedError, match=r"twinloop approve \S+main\.py \S+lazy\.py \S+shapes\.py \S+sizes\.py$"):
        load_class("task", mark_references(f"{main}:Task", "data.yaml"), [])
