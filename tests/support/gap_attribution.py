"""What tests of several files share: gap attribution."""

from dataclasses import replace

import numpy as np

from twinloop.core.distribution import ParamDistribution
from twinloop.core.records import Episode
from twinloop.core.seeds import generator
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay

DELAY, KP, DAMPING, LIMIT = "actuator/j0/delay", "actuator/j0/kp", "joint/j0/damping", "actuator/j0/torque_limit"


def log_of(twin, backend, values, *, count=6, noise=0.0, seed=0, same=False):
    """Episodes of the twin at given parameters, each with a different motion; ``same`` for all joints."""
    rng, blank, n = generator(seed, "test/attribution"), [], len(twin.robot.joints)
    time = np.arange(60) / twin.control_hz
    for index in range(count):
        hz, phase = rng.uniform(0.5, 2.0, size=(3, 1 if same else n)), rng.uniform(0, 6, size=(3, 1 if same else n))
        action = 0.2 * np.sin(2 * np.pi * hz * time[:, None, None] + phase).sum(axis=1) * np.ones(n)
        state = np.tile(action[:1], (len(time), 1))
        blank.append(Episode(index=index, time=time, action=action, state=state, units=twin.units, source="sim"))
    readings = replay(backend, prepare_replay(twin, blank), twin.table(1, values))[0]
    measured = readings + noise * rng.standard_normal(readings.shape)
    return [replace(e, state=state) for e, state in zip(blank, measured, strict=True)]


def known(values, sd, twin, clusters=20):
    """Return an identification result with ``values`` and standard deviations ``sd``, one common or one each."""
    names = tuple(values)
    spread = np.broadcast_to(np.asarray(sd, dtype=float), len(names))
    return ParamDistribution(
        names=names,
        transforms=("identity",) * len(names),
        mean=np.array(list(values.values())),
        covariance=np.diag(spread**2),
        low=np.array([twin.params[name].low for name in names]),
        high=np.array([twin.params[name].high for name in names]),
        determined=(True,) * len(names),
        clusters=clusters,
    )


def moved(twin, factors):
    """Values by name: nominal times a factor, or a delay in s."""
    return {name: f if name.endswith("delay") else f * twin.params[name].nominal for name, f in factors.items()}
