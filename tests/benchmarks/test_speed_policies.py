"""The benchmark of policies: its observations fit every kind."""

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.speed.policies import ACTING, _observed
from twinloop.core.contract import ENVIRONMENT, STATE
from twinloop.policies import Statistics, new_policy
from twinloop.rollout import offered_contract
from twinloop.tasks import open_task
from twinloop.twin import load_twin


@pytest.mark.parametrize("kind", ACTING)
def test_the_benchmark_observes_what_each_kind_reads(kind):
    twin = load_twin("so101_tabletop")
    contract = offered_contract(twin, open_task("pick_and_place", twin))
    sizes = {STATE: 6, ENVIRONMENT: len(contract.environment), "action": 6}
    known = Statistics.measure({key: np.ones((9, size)) for key, size in sizes.items()}, source="test")
    policy = new_policy(kind, contract, {}, known)
    assert policy.layout.check(_observed(policy, 3)) == 3
    assert np.isfinite(policy.predict(_observed(policy, 3))).all()
