"""Policies that see are tried with clean images or through the twin's camera models, and the record says which."""

import numpy as np
import pytest

from twinloop.evaluate.candidates import make_candidate
from twinloop.evaluate.run import evaluate
from twinloop.policies.settings import read_settings
from twinloop.render import probe_renderer
from twinloop.rollout.observing import offered_contract
from twinloop.tasks import open_task
from twinloop.twin import load_twin

pytestmark = pytest.mark.skipif(not probe_renderer("gl").available, reason="renderer gl is not available")


class Stares:
    """A policy that holds its pose and keeps the images that it is given, in chunks of 60 steps."""

    hash, noise_size = "ef" * 32, 0

    def __init__(self, twin, task, cameras):
        self.contract = offered_contract(twin, task, cameras=dict.fromkeys(cameras, (32, 48)))
        self.settings = read_settings("mlp", {"chunk_size": 60, "n_action_steps": 60})
        self.observation_keys = ("observation.state", *(f"observation.images.{name}" for name in cameras))
        self.seen = []

    def predict_with_features(self, seen, noise=None, domain=None):
        self.seen.append(seen["observation.images.front"][:, 0].copy())
        state = seen["observation.state"][:, -1:]
        return np.repeat(state, 60, axis=1), state[:, 0]


def test_a_policy_sees_through_the_devices_where_that_is_asked_for():
    twin = load_twin("so101_tabletop")
    task, shown = open_task("pick_and_place", twin), {}
    for sensors in (False, True):
        policy = Stares(twin, task, ["front", "wrist"])
        made = evaluate(make_candidate(policy, sensors=sensors), twin, suite="nominal", episodes=2)
        assert made.extra["sensors"] == ("device" if sensors else "clean")
        assert len(made) == 2
        shown[sensors] = np.stack(policy.seen[:3])  # later calls measure the time of a command
        assert shown[sensors].shape == (3, 2, 32, 48, 3)  # one image per chunk and world
    assert 5 < np.abs(shown[True].astype(float) - shown[False]).mean() < 80  # noise, lens and exposure: another image
    assert "sensors" not in evaluate("expert", twin, suite="nominal", episodes=1).extra
