"""Virtual robots at their task: hidden parameters, new placement per episode, equal results single and in batch."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.core.errors import BoundsError, InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.hardware import (
    NotConnectedError,
    Robot,
    VirtualCell,
    check_robot,
    fault_names,
    make_hidden_cell,
    open_robot,
)
from twinloop.hardware.hidden import draw_hidden
from twinloop.hardware.record import record
from twinloop.randomize import Plan, default_draws
from twinloop.rollout import EpisodeStart, WorldObserver, run_batch
from twinloop.simulate import open_backend
from twinloop.tasks import open_task
from twinloop.twin import load_twin

TWIN = load_twin("so101_tabletop")
CELL = make_hidden_cell(TWIN, 3)
TASK = open_task("pick_and_place", CELL.twin)
JOINTS = TWIN.robot.joints


class Waving:
    """An actor that keeps what a policy would have seen, and sends a slow wave."""

    name = "waving"

    def begin(self, worlds: EpisodeStart):
        observer = WorldObserver(CELL.twin, TASK, worlds, tracker=CELL.tracker)
        self.seen = []

        def act(simulation):
            step = simulation.step_index
            self.seen.append(observer.observe_worlds(simulation.state, step))
            return CELL.twin.units.to_si(wave(step, len(worlds.numbers)))

        return act


def wave(step, nworld=1):
    home = TWIN.units.from_si(TWIN.home()[1])
    return np.tile(home, (nworld, 1)) + 15.0 * np.sin(0.1 * step)


class TestTruth:
    def test_it_is_what_the_robot_of_that_seed_hides(self):
        hidden = draw_hidden(TWIN, 3)
        for name, value in hidden.params.items():
            assert CELL.values[name] == value
        for row, joint in enumerate(JOINTS):
            assert CELL.values[f"joint/{joint}/backlash"] == hidden.backlash[row]
            assert CELL.values[f"sensor/{joint}/noise"] == hidden.read_noise[row]
        assert CELL.values["timing/command/jitter"] == hidden.command_jitter_s

    def test_a_scene_lies_within_the_twins_own_ranges_and_differs_between_robots(self):
        names = ["object/cube/mass", "object/cube/friction/slide", "geom/table/position/z", "light/key/intensity"]
        cells = [make_hidden_cell(TWIN, seed) for seed in range(8)]
        for name in names:
            param = TWIN.params[name]
            assert param.default_range is not None
            low, high = param.absolute(param.default_range, param.op)
            values = [cell.values[name] for cell in cells]
            assert len(set(values)) == 8
            assert all(low <= value <= high for value in values)

    def test_places_are_drawn_per_episode_and_nothing_else_is(self):
        everything = Plan(twin=TWIN, run_seed=1, draws=tuple(default_draws(TWIN))).draw(range(6))
        table = CELL.table(everything)
        for name in table.names:
            if name.endswith(("position/x", "position/y", "yaw")) and name.startswith("object/"):
                np.testing.assert_array_equal(table[name], everything[name])
            else:
                assert np.ptp(table[name]) == 0.0, name
        assert table.seeds is everything.seeds

    def test_its_own_plan_places_as_the_nominal_twins(self):
        drawn, nominal = CELL.plan(7).draw([4]), Plan(twin=TWIN, run_seed=7, draws=tuple(default_draws(TWIN))).draw([4])
        for axis in "xy":
            for thing in ("cube", "target"):
                name = f"object/{thing}/position/{axis}"
                assert drawn[name] == nominal[name]

    def test_a_twin_that_declares_no_effects_is_given_them(self):
        cell = make_hidden_cell(load_twin("double_pendulum"), 1)
        hidden = draw_hidden(load_twin("double_pendulum"), 1)
        joint = cell.twin.robot.joints[0]
        assert cell.values[f"joint/{joint}/backlash"] == hidden.backlash[0]
        assert cell.values["timing/control/jitter"] == hidden.clock_jitter_s


class TestFaults:
    @pytest.mark.parametrize("fault", fault_names())
    def test_each_changes_what_it_says(self, fault):
        faulty = make_hidden_cell(TWIN, 3, fault=fault)
        changed = {name for name, value in faulty.values.items() if CELL.values.get(name) != value}
        words = {
            "backlash_grown": {f"joint/{joint}/backlash" for joint in JOINTS},
            "camera_moved_3cm": {"camera/front/position/y"},
            "latency_80ms": {f"actuator/{joint}/delay" for joint in JOINTS},
            "light_halved": {name for name in TWIN.params if name.startswith("light/") and name.endswith("/intensity")},
            "object_heavier": {"object/cube/mass"},
        }
        assert changed
        assert changed == words.get(fault, changed)
        assert faulty.fault == fault

    def test_sizes(self):
        late, doubled = (
            make_hidden_cell(TWIN, 3, fault="latency_80ms"),
            make_hidden_cell(TWIN, 3, fault="friction_doubled"),
        )
        name = "actuator/elbow_flex/delay"
        assert late.values[name] == pytest.approx(CELL.values[name] + 0.08)
        name = "joint/elbow_flex/frictionloss"
        assert doubled.values[name] == pytest.approx(2 * CELL.values[name])

    def test_one_parameter_by_name(self):
        assert make_hidden_cell(TWIN, 3, changed={"object/cube/mass": 0.2}).values["object/cube/mass"] == 0.2
        with pytest.raises(UnknownNameError, match="object/cube/mass"):
            make_hidden_cell(TWIN, 3, changed={"object/cube/mas": 0.2})
        with pytest.raises(BoundsError, match="physical bounds"):
            make_hidden_cell(TWIN, 3, changed={"object/cube/mass": 20.0})

    def test_what_cannot_be(self):
        with pytest.raises(UnknownNameError, match="friction_doubled"):
            make_hidden_cell(TWIN, 3, fault="friction_double")
        with pytest.raises(InputError, match=r"camera/front/position/y, but double_pendulum has no such parameter"):
            make_hidden_cell(load_twin("double_pendulum"), 3, fault="camera_moved_3cm")


class TestBehindTheProtocol:
    def test_an_episode_is_the_same_step_by_step_and_in_a_batch(self):
        numbers, nstep = [5, 2], 20
        actor, params = Waving(), CELL.table(CELL.plan(7).draw(numbers))
        short = open_task("pick_and_place", CELL.twin)
        short.nstep = nstep
        batch = run_batch(
            CELL.twin,
            short,
            params,
            run_seed=7,
            episodes=numbers,
            actor=actor,
            backend=open_backend("threads", nthread=1),
        )
        robot = open_robot("virtual:so101_tabletop?seed=3&task=pick_and_place&session=2&run_seed=7")
        assert isinstance(robot, VirtualCell)
        robot.connect()
        begin = robot.clock.now()
        for step in range(nstep):
            seen = np.array(list(robot.get_observation().values()))
            expected = actor.seen[step]
            np.testing.assert_array_equal(seen[:6], expected["observation.state"][1])
            np.testing.assert_array_equal(seen[6:], expected["observation.environment_state"][1])
            np.testing.assert_array_equal(seen[:6], batch.observation[1, step])
            robot.send_action(dict(zip(robot.action_features, wave(step)[0].tolist(), strict=True)))
            robot.clock.wait_until(begin + (step + 1) / TWIN.control_hz)
        np.testing.assert_array_equal(robot.states(), batch.trajectories.states[1])
        assert robot.success() == batch.success[1]

    def test_every_connection_is_another_episode_and_the_laws_hold(self):
        robot = open_robot("virtual:so101_tabletop?seed=1&task=pick_and_place")
        assert isinstance(robot, Robot)
        check_robot(robot)
        seen = []
        for _ in range(2):
            robot.connect()
            seen.append(robot.get_observation())
            robot.disconnect()
        assert seen[0]["environment.cube.x"] != seen[1]["environment.cube.x"]
        with pytest.raises(NotConnectedError, match="virtual:so101_tabletop.seed=1&task=pick_and_place"):
            robot.get_observation()

    def test_a_recording_holds_joints(self):
        robot = VirtualCell("so101_tabletop", seed=1)
        robot.connect()
        episode = record(robot, (wave(step)[0] for step in range(4)), TWIN.control_hz)
        assert episode.state.shape == (4, 6)

    def test_a_command_that_is_none(self):
        robot = VirtualCell("so101_tabletop", seed=1)
        robot.connect()
        with pytest.raises(InputError, match="The command of gripper is not finite"):
            robot.send_action({**dict.fromkeys(robot.action_features, 0.0), "gripper.pos": float("nan")})

    def test_addresses(self):
        with pytest.raises(UnknownNameError, match="task"):
            open_robot("virtual:so101_tabletop?tasks=pick_and_place")
        with pytest.raises(InputError, match=r"Add task=NAME \(.*pick_and_place"):
            open_robot("virtual:so101_tabletop?fault=latency_80ms")
        with pytest.raises(UnknownNameError, match="latency_80ms"):
            open_robot("virtual:so101_tabletop?task=pick_and_place&fault=latency")


@pytest.mark.slow
def test_the_script_succeeds_on_most_robots():
    rates = []
    for seed in range(5):
        cell = make_hidden_cell(TWIN, seed)
        table: ParamTable = cell.table(cell.plan(0).draw(range(20)))
        batch = run_batch(cell.twin, open_task("pick_and_place", cell.twin), table, run_seed=0, episodes=range(20))
        rates.append(batch.success.mean())
    assert np.mean(rates) > 0.9
