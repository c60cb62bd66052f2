"""ULIDs sort by time and stay unique in processes with a shared past: forks after a jump of the clock."""

from __future__ import annotations

import os

from twinloop.catalog.parts import ulid

AHEAD = "02" + "0" * 24  # a name of a clock that is decades ahead


def forked(after: str | None) -> str:
    """The name that a fork of this process gives."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, ulid(after=after).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as answer:
        return answer.read()


def test_forks_give_different_names_after_the_same_one():
    first = ulid(after=AHEAD)
    assert first > AHEAD
    names = [forked(None), forked(None), forked(first), forked(first)]
    assert len(set(names)) == 4
    assert min(names) > first


def test_names_of_one_process_rise_also_behind_a_name_that_is_ahead():
    names = [ulid() for _ in range(200)]
    assert names == sorted(set(names))
