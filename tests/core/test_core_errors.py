"""Errors name the nearest, carry their exit code, and cross process borders as themselves."""

from __future__ import annotations

import pickle

import pytest

from twinloop.core.errors import CheckFailedError, InputError, MissingDependencyError, TwinloopError, UnknownNameError
from twinloop.core.pool import LocalProcesses


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("x"), 2),
        (UnknownNameError("joint", "elbo", ["elbow", "wrist"], where="arm"), 2),
        (CheckFailedError("no"), 1),
        (MissingDependencyError("No renderer works.", remedy="apt-get install libegl1"), 3),
    ],
)
def test_errors_carry_their_exit_code_across_processes(error, code):
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, type(error))
    assert isinstance(again, TwinloopError)
    assert (str(again), again.exit_code, again.__dict__) == (str(error), code, error.__dict__)


@pytest.mark.parametrize(
    ("name", "existing", "hint"),
    [
        ("elbo", ["elbow", "wrist"], "Nearest existing: elbow."),
        ("zzz", ["a", "b"], "Existing: a, b."),
        ("x", [], "None exist"),
    ],
)
def test_an_unknown_name_says_what_exists(name, existing, hint):
    assert hint in str(UnknownNameError("joint", name, existing))


def refuse(item):
    raise UnknownNameError("item", str(item), ["one"])


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_a_worker_arrives_as_itself(workers):
    with (
        LocalProcesses(workers) as engine,
        pytest.raises(UnknownNameError, match="Unknown item '3'. Existing: one"),
    ):
        list(engine.map(refuse, [3]))
