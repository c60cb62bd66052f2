"""Tasks come in through one door, the user's own like the built-in ones."""

from __future__ import annotations

import pytest

from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.tasks import Task, open_task, task_names
from twinloop.twin import load_twin
from twinloop.twin.load import builtin_names, library_names, read_spec

OWN = '''
from twinloop.tasks.pick_and_place import PickAndPlace

class Slower(PickAndPlace):
    """The same, with more time."""
    name = "slower"
    def __init__(self, twin):
        super().__init__(twin)
        self.nstep *= 2

class Broken:
    def __init__(self, twin):
        {}["left"]

class NoTask:
    def __init__(self, twin): ...
'''


@pytest.fixture(scope="module")
def twin():
    return load_twin("so101_tabletop")


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


@pytest.mark.parametrize("name", task_names())
def test_built_in_tasks_are_tasks_of_a_built_in_twin(name):
    first = next(twin for twin in (*builtin_names(), *library_names()) if name in read_spec(twin).task)
    try:
        task = open_task(name, load_twin(first))
    except MissingDependencyError as error:
        pytest.skip(str(error))
    assert isinstance(task, Task)
    assert task.name == name


def test_a_users_own_task_comes_from_a_file(twin, own):
    task = open_task(f"{own}:Slower", twin)
    assert isinstance(task, Task)
    assert task.nstep == 2 * open_task("pick_and_place", twin).nstep


def test_what_cannot_be_opened_says_why(twin, own):
    with pytest.raises(UnknownNameError, match="Unknown task 'pick_n_place'.* Nearest existing: pick_and_place"):
        open_task("pick_n_place", twin)
    with pytest.raises(UnknownNameError, match=r"Unknown task class 'Slow' in .*own\.py\. Nearest existing: Slower"):
        open_task(f"{own}:Slow", twin)
    with pytest.raises(InputError, match="NoTask is not a task: it lacks instruction"):
        open_task(f"{own}:NoTask", twin)
    with pytest.raises(InputError, match=r"Broken could not be created for .*KeyError: 'left' \(.*own.py:\d+\)"):
        open_task(f"{own}:Broken", twin)
    with pytest.raises(UnknownNameError, match=r"in elsewhere/own.py: there is no such file"):
        open_task("elsewhere/own.py:Slower", twin)
    own.write_text("import nothing_of_that_name")
    with pytest.raises(InputError, match=r"own\.py does not run: ModuleNotFoundError"):
        open_task(f"{own}:Slower", twin)
