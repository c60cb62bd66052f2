"""Figures of running computations reach the programs that plot them."""

from __future__ import annotations

import json
import sys
import types

import pytest

from twinloop.core import metrics
from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError


class Kept:
    def __init__(self, verb, output):
        self.verb, self.output, self.rows, self.closed = verb, output, [], False
        ALL.append(self)

    def log(self, step, values):
        self.rows.append((step, dict(values)))

    def close(self):
        self.closed = True


ALL: list[Kept] = []


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    ALL.clear()
    monkeypatch.setitem(metrics.TRACKERS, "kept", Kept)


def test_figures_reach_open_trackers_only_and_they_are_closed_after_an_error(tmp_path):
    metrics.log_metrics(1, {"loss": 1.0})
    with pytest.raises(ZeroDivisionError), metrics.open_trackers(["kept", "kept"], verb="train", output=tmp_path / "p"):
        metrics.log_metrics(2, {"loss": 0.5, "count": 3})
        raise ZeroDivisionError
    metrics.log_metrics(3, {"loss": 0.25})
    (tracker,) = ALL
    assert (tracker.verb, tracker.output.name, tracker.closed) == ("train", "p", True)
    assert tracker.rows == [(2, {"loss": 0.5, "count": 3.0})]


def test_wrong_trackers_are_named(tmp_path, monkeypatch):
    with (
        pytest.raises(UnknownNameError, match="tensorboard"),
        metrics.open_trackers(["tensorbord"], verb="train", output=tmp_path),
    ):
        pass
    with pytest.raises(InputError, match="--output"), metrics.open_trackers(["tensorboard"], verb="train", output=None):
        pass
    monkeypatch.setitem(sys.modules, "trackio", None)
    with (
        pytest.raises(MissingDependencyError, match="pip install trackio"),
        metrics.open_trackers(["trackio"], verb="train", output=tmp_path),
    ):
        pass


@pytest.mark.parametrize("name", ["mlflow", "trackio"])
def test_a_run_has_the_name_of_its_folder(tmp_path, monkeypatch, name):
    """The packages are not installed here: a module that notes its calls takes their place."""
    calls = []

    class Module(types.ModuleType):
        def __getattr__(self, function):
            if function.startswith("__"):
                raise AttributeError(function)
            return lambda *given, **named: calls.append((function, given, named))

    monkeypatch.setitem(sys.modules, name, Module(name))
    with metrics.open_trackers([name], verb="identify", output=tmp_path / "fit"):
        metrics.log_metrics(7, {"loss/walk": 0.5})
    said = json.dumps(calls)
    assert "fit" in said
    assert "identify" in said
    assert [call for call in calls if call[1] == ({"loss/walk": 0.5},) and call[2] == {"step": 7}]
    assert calls[-1][0] in ("end_run", "finish")
