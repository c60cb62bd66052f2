"""A command names its request and its workflow, and the workflow takes that request."""

from __future__ import annotations

import importlib
import inspect
import typing

import pytest

from twinloop.cli.commands import Group
from twinloop.cli.main import TWINLOOP

EVERY = [part for one in TWINLOOP.commands for part in (one.commands if isinstance(one, Group) else (one,))]


@pytest.mark.parametrize("command", [pytest.param(one, id=one.request.__name__) for one in EVERY])
def test_the_workflow_of_a_command_takes_its_request(command):
    module, _, name = command.workflow.partition(":")
    function = inspect.unwrap(getattr(importlib.import_module(module), name))
    first = next(iter(inspect.signature(function).parameters))
    assert typing.get_type_hints(function)[first] is command.request


def test_a_request_belongs_to_one_command():
    assert len({one.request for one in EVERY}) == len(EVERY)
