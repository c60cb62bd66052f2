"""What a teleoperated log leaves open, a suggested excitation determines: the promise is held by the fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from twinloop.hardware import VirtualRobot
from twinloop.hardware.excite import ExcitationPlan
from twinloop.hardware.excite_drive import excite
from twinloop.hardware.limits import motion_limits
from twinloop.hardware.record import record
from twinloop.hardware.teleop_motion import teleop_commands
from twinloop.identify import FitConfig, identify
from twinloop.identify.excitation import ExcitationOptions, suggest_excitation
from twinloop.identify.excitation_motions import MotionTrials
from twinloop.identify.plan import plan_identification
from twinloop.identify.survey import survey
from twinloop.simulate import open_backend
from twinloop.twin import load_twin

SEED = 3
TWIN = load_twin("so101_tabletop")
REPEAT = 3


class Plain(VirtualRobot):
    """A virtual SO-101 whose hidden physics the twin can express: no backlash, load-independent friction."""

    def __init__(self, session: int) -> None:
        super().__init__("so101_tabletop", seed=SEED, session=session)
        hidden = self._hidden
        self._hidden = replace(hidden, backlash=0 * hidden.backlash, load_friction=0 * hidden.load_friction)


def teleoperated(episodes=2, seconds=8.0):
    for number, commands in enumerate(teleop_commands(TWIN, seed=SEED, episodes=range(episodes), seconds=seconds)):
        robot = Plain(number)
        robot.connect()
        yield record(robot, commands, TWIN.control_hz, index=number)
        robot.disconnect()


def excited(commands, limits, following):
    made = ExcitationPlan(
        twin="so101_tabletop",
        twin_hash=TWIN.hash,
        joints=tuple(TWIN.robot.joints),
        control="position",
        hz=TWIN.control_hz,
        commands=commands,
        home=TWIN.home()[1],
        limits=limits,
        tracking_error=following,
        repeat=REPEAT,
    )
    robot = Plain(10)
    robot.connect()
    found = excite(robot, made)
    robot.disconnect()
    assert found.completed, found.reason
    return found.episodes


@pytest.mark.slow
def test_a_suggested_excitation_determines_what_teleoperation_leaves_open_and_the_fit_finds_the_truth():
    backend, limits = open_backend(), motion_limits(TWIN, speed=0.8)
    log = list(teleoperated())
    seen = survey(TWIN, log, backend=backend)
    before = plan_identification(seen)
    trials = MotionTrials(
        twin=TWIN,
        space=replace(seen.space, twin=TWIN),
        points=seen.points,
        noise=seen.joint_noise(),
        config=FitConfig(),
        backend=backend,
        limits=limits,
    )
    columns = [i for i, name in enumerate(seen.space.names) if name in before.undetermined_parameters]
    found = suggest_excitation(
        trials, seen.information, columns, ExcitationOptions(duration=20.0, repeat=REPEAT, seed=1)
    )
    assert found.gain > found.random_gain[1] > found.random_gain[0]
    rows = plan_identification(seen, found, repeat=REPEAT).parameters

    both = [replace(e, index=i) for i, e in enumerate([*log, *excited(found.commands, limits, found.tracking_error)])]
    fine = FitConfig(physics_hz=480.0)  # the arm's own; at half of it errors of the physics exceed those of the noise
    poor, rich = (identify(TWIN, episodes, backend=backend, config=fine) for episodes in (log, both))
    assert sum(row.determined for row in rich.estimates) > sum(row.determined for row in poor.estimates)
    known = {r.name: r for r, p in zip(rich.estimates, poor.estimates, strict=True) if r.determined and p.determined}
    rows = [row for row in rows if row.name in known and row.with_excitation]
    smaller = np.log([error(poor, row.name) / error(rich, row.name) for row in rows])
    expected = np.log([row.with_data.error[0] / row.with_excitation.error[0] for row in rows if row.with_excitation])
    assert np.exp(smaller.mean()) > 1.8  # what physics steps and undeclared parameters add does not become smaller
    assert abs(smaller.mean() - expected.mean()) < np.log(2.0)
    hidden = Plain(0).reveal().params
    away = []
    for row in rows:
        truth, value = hidden.get(row.name, TWIN.params[row.name].nominal), known[row.name].value
        away.append((abs(np.log(value / truth)) if row.log else abs(value - truth)) / row.prior)
    assert np.median(away) < 0.1  # of the prior knowledge


def error(result, name):
    """Standard error of a parameter where the solver walks."""
    at = result.distribution.names.index(name)
    return np.sqrt(result.distribution.covariance[at, at])
