"""A servo that lifts a weight: logs of it with planted parameters, and what other physics would have logged."""

from __future__ import annotations

import numpy as np
from scipy.signal import lfilter

from twinloop.core.records import Episode
from twinloop.core.seeds import generator
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.twin import load_twin

MODEL = """
<mujoco model="swing">
  <option integrator="implicitfast"/>
  <worldbody>
    <body>
      <joint name="swing" axis="0 1 0" range="-180 180" damping="0.6" frictionloss="0.05" armature="0.03"
             solimpfriction="0.999 0.999 0.001"/>
      <geom type="capsule" fromto="0 0 0 0.25 0 0" size="0.02" mass="0.4"/>
    </body>
  </worldbody>
  <actuator>
    <general name="swing" joint="swing" gaintype="fixed" biastype="affine" gainprm="9" biasprm="0 -9"
             forcelimited="true" forcerange="-3 3"/>
  </actuator>
</mujoco>
"""
SPEC = """
name: swing
model: swing.xml
control_hz: 30
substeps: 32
robot: {type: swing, joints: [swing], units: [deg]}
params:
  - {name: "joint/*/damping", low: 0.0, high: 10.0, range: [0.5, 2.0], op: scale, source: test}
  - {name: "joint/*/frictionloss", low: 0.0, high: 2.0, source: test}
  - {name: "joint/*/load_friction", source: test}
  - {name: "joint/*/stiction", source: test}
  - {name: "joint/*/stribeck_velocity", source: test}
  - {name: "actuator/*/kp", low: 0.5, high: 100.0, transform: log, source: test}
  - {name: "actuator/*/delay", low: 0.0, high: 0.3, range: [0.0, 0.05], source: test}
"""
TRUTH = {
    "joint/swing/damping": 1.0,
    "joint/swing/frictionloss": 0.09,
    "actuator/swing/kp": 12.0,
    "actuator/swing/delay": 0.03,
}


def swing_twin(folder):
    """The twin, compiled from files in ``folder``."""
    (folder / "swing.xml").write_text(MODEL)
    (folder / "swing.yaml").write_text(SPEC)
    return load_twin(folder / "swing.yaml")


def clips(twin, backend, truths, *, count, nframe=90, seed=0, noise_deg=0.1, rho=0.9, first=0, reach=60.0):
    """Episodes of random strokes; ``truths`` is one set of planted values, or a function of the episode's number."""
    rng = generator(seed, "test/swing")
    time = np.arange(nframe) / twin.control_hz
    blank = []
    for index in range(first, first + count):
        knots = rng.uniform(-reach, reach, size=(nframe // 20 + 2, 1))
        knots[0] = 0.0
        at = np.arange(nframe) / 20
        ease = np.clip(2 * (at - at.astype(int)), 0, 1)[:, None]
        action = (1 - ease) * knots[at.astype(int)] + ease * knots[at.astype(int) + 1]
        units = twin.unit_map(["deg"])
        blank.append(Episode(index=index, time=time, action=action, state=action, units=units, source="sim"))
    of = truths if callable(truths) else lambda _: truths
    white = rng.normal(size=(count, nframe, 1))
    noise = noise_deg * np.sqrt(1 - rho**2) * lfilter([1.0], [1.0, -rho], white, axis=1)
    made = []
    for row, episode in enumerate(blank):
        table = twin.table(1, of(episode.index))
        clean = replay(backend, prepare_replay(twin, [episode]), table)[0, 0]
        made.append(
            Episode(
                index=episode.index,
                time=time,
                action=episode.action,
                state=clean + noise[row],
                units=episode.units,
                source="sim",
            )
        )
    return made
