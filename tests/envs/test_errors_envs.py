"""A wrong option, seed, episode or action of an environment is answered with what would be right."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from twinloop.core.errors import InputError
from twinloop.envs import TwinVectorEnv
from twinloop.envs.options import EnvOptions


@pytest.fixture(scope="module")
def envs():
    made = TwinVectorEnv(2, twin="so101_tabletop", goal="reach", randomization=None, nthread=1)
    made.reset(seed=0)
    yield made
    made.close()


@pytest.mark.parametrize("count", [0, -1, 2.5, "many", True, None])
def test_the_number_of_environments_is_a_whole_one(count):
    with pytest.raises(InputError, match=r"num_envs = .*: at least one environment is needed; give a whole number"):
        TwinVectorEnv(count, twin="so101_tabletop")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"delta": "x"}, r"delta = 'x' is not a part of a joint's range; give a number in \(0, 1\]"),
        ({"max_episode_steps": 2.5}, "max_episode_steps = 2.5: an episode has at least one step"),
        ({"height": 0}, "height = 0: an image has 16 to 8192 pixels per side"),
        ({"width": 10**6}, "width = 1000000: an image has 16 to 8192 pixels per side"),
        ({"nthread": -1}, "nthread = -1: 0 uses every core"),
        ({"report_params": "yes"}, "report_params = 'yes': give True or False"),
    ],
)
def test_an_option_of_the_wrong_kind_is_named(option, message):
    with pytest.raises(InputError, match=message):
        EnvOptions(twin="so101_tabletop", **option)


def test_one_camera_may_be_given_by_its_name():
    assert EnvOptions(twin="so101_tabletop", observation="lerobot", cameras="front").cameras == ("front",)


@pytest.mark.parametrize(
    ("reset", "message"),
    [
        ({"seed": -1}, "seed = -1: a run seed is a whole number from 0"),
        ({"seed": 2**70}, "a run seed is a whole number from 0"),
        ({"seed": "x"}, "Episodes are 2 whole numbers from 0, one per environment; given 'x'"),
        ({"options": {"episodes": [1.5, 2]}}, r"Episodes are 2 whole numbers from 0.*given \[1.5, 2\]"),
        ({"options": {"episodes": [2**70, 1]}}, "Episodes are 2 whole numbers from 0"),
        ({"options": {"episode": [1, 2]}}, "Unknown option 'episode' in reset. Nearest existing: episodes"),
        ({"options": [1]}, r"The options of reset are a mapping.*given \[1\]"),
    ],
)
def test_worlds_are_named_by_whole_numbers(envs, reset, message):
    with pytest.raises(InputError, match=message):
        envs.reset(**reset)


@pytest.mark.parametrize("kind", [complex, object, "U1"])
def test_actions_are_numbers(envs, kind):
    with pytest.raises(InputError, match="Actions are of type .*; numbers are expected"):
        envs.step(np.zeros((2, 6)).astype(kind))
