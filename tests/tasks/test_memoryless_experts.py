"""An expert without memory solves its task from any state, and its labels depend on the present state alone."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from twinloop.randomize import Plan, default_draws
from twinloop.rollout.episodes import run_batch
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.simulate.command import command_map
from twinloop.tasks import open_task
from twinloop.tasks.grasping import GraspFromAbove
from twinloop.twin import load_twin

TWIN = load_twin("so101_tabletop")
TASK = open_task("pick_and_place", TWIN)


class Memoryless:
    """Actor that runs the expert without memory, after ``wrong`` steps of random motion."""

    name = "memoryless"

    def __init__(self, task, wrong=0):
        self.task, self.wrong = task, wrong

    def begin(self, worlds):
        expert, random = self.task.memoryless_expert(worlds.initial, worlds.params), np.random.default_rng(0)
        held, earlier = worlds.initial.command, worlds.initial.command

        def command(simulation):
            nonlocal held, earlier
            chosen = expert.label(simulation, held, earlier)
            if simulation.step_index < self.wrong:
                chosen = held + random.uniform(-0.1, 0.1, held.shape)
            held, earlier = chosen, held
            return chosen

        return command


def draw(twin, seed, number):
    return Plan(twin=twin, run_seed=seed, draws=tuple(default_draws(twin))).draw(range(number))


def run(twin, task, seed, number, **options):
    made = draw(twin, seed, number)
    return run_batch(twin, task, made, run_seed=seed, episodes=range(number), actor=Memoryless(task, **options))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["so101_tabletop", "panda_tabletop"])
def test_nearly_all_randomized_worlds_are_solved(name):
    twin = load_twin(name)
    assert run(twin, open_task("pick_and_place", twin), 901, 400).success.mean() >= 0.99


def test_worlds_are_solved_after_random_motion():
    longer = open_task("pick_and_place", TWIN)
    longer.nstep = 300
    assert run(TWIN, longer, 31, 32, wrong=45).success.mean() >= 0.8


def test_a_label_depends_on_the_present_state_alone():
    made = draw(TWIN, 5, 4)
    initial = TASK.reset(made, run_seed=5, episodes=range(4))
    expert = TASK.memoryless_expert(initial, made)
    simulation = open_backend("threads", nthread=1).start(TWIN, made, initial, 60)
    held = earlier = initial.command
    for step in range(60):
        command = expert.label(simulation, held, earlier)
        if step % 20 == 0:
            fresh = TASK.memoryless_expert(initial, made)
            np.testing.assert_array_equal(fresh.label(simulation, held, earlier), command)
            alone = TASK.memoryless_expert(initial.take([2]), made.take(np.array([2])))
            np.testing.assert_array_equal(alone.label(_Only(simulation, 2), held[[2]], earlier[[2]]), command[[2]])
        simulation.advance(command)
        held, earlier = command, held


@dataclasses.dataclass
class _Only:
    """The state of one world of a simulation."""

    simulation: object
    world: int

    def __getattr__(self, name):
        return getattr(self.simulation, name)[[self.world]]


def test_a_teacher_cannot_tell_worlds_whose_readings_are_equal():
    made = draw(TWIN, 5, 1)
    initial = TASK.reset(made, run_seed=5, episodes=range(1))
    chain, columns = TASK.arm.chain, TASK.arm.servo.actuators
    labels = {True: [], False: []}
    offsets, scale = (part[:, columns] for part in command_map(TWIN, made))
    read = (initial.qpos[:, chain.qpos] - offsets) / scale
    for offset in (0.0, 0.02):
        values = made.values.copy()
        values[:, [made.names.index(f"sensor/{joint}/offset") for joint in TWIN.robot.joints]] = offset
        params, qpos = replace(made, values=values), initial.qpos.copy()
        qpos[:, chain.qpos] = offset + scale * read
        state = _State(qpos=qpos, qvel=np.zeros_like(initial.qvel))
        for informed, found in labels.items():
            believed = None if informed else TWIN.table(1)
            expert = TASK.memoryless_expert(initial, params, believed=believed)
            found.append(expert.label(state, initial.command, initial.command)[:, :5])
    np.testing.assert_allclose(*labels[False], atol=1e-12)
    assert np.abs(labels[True][0] - labels[True][1]).max() > 1e-3


def test_commands_keep_the_limit_of_speed():
    batch = run(TWIN, TASK, 7, 8)
    speed = np.abs(np.diff(batch.trajectories.commands, axis=1)) * TWIN.control_hz
    assert speed[..., :5].max() <= 1.6 + 1e-9
    assert speed[..., 5].max() <= 1.65  # of an envelope for the gripper


def test_diverged_worlds_get_finite_labels():
    made = draw(TWIN, 5, 2)
    initial = TASK.reset(made, run_seed=5, episodes=range(2))
    expert = TASK.memoryless_expert(initial, made)
    broken = _State(qpos=np.full_like(initial.qpos, np.nan), qvel=np.full_like(initial.qvel, np.inf))
    assert np.isfinite(expert.label(broken, initial.command, initial.command)).all()


@dataclasses.dataclass
class _State:
    qpos: np.ndarray
    qvel: np.ndarray


def test_an_object_that_begins_on_its_target_is_lifted():
    initial = TASK.reset(draw(TWIN, 5, 8), run_seed=5, episodes=range(8))
    qpos = initial.qpos.copy()
    row = TASK.object.qpos
    qpos[:, row : row + 2] = initial.mocap_pos[:, TASK._target, :2]
    placed = dataclasses.replace(initial, qpos=qpos)
    assert isinstance(placed, InitialState)
    batch = run_batch(
        TWIN, TASK, draw(TWIN, 5, 8), run_seed=5, episodes=range(8), actor=Memoryless(TASK), initial=placed
    )
    assert batch.success.mean() >= 0.75


@pytest.mark.parametrize("name", ["so101_tabletop", "panda_tabletop"])
def test_the_object_comes_to_the_middle_between_open_jaws(name):
    """On the way down, a fixed finger is as far from it as the open jaw; of two driven fingers both always are."""
    twin = load_twin(name)
    task = open_task("pick_and_place", twin)
    initial = task.reset(draw(twin, 3, 5), run_seed=3, episodes=range(5))
    grasp = task.make_grasp(initial)
    before, width = grasp.clearance.copy(), 2.0 * grasp.rest
    heights = np.linspace(0.0, 0.1, 11)
    openings = width.max() + np.where(heights > 0.05, 0.0, 0.04 - 0.4 * heights)  # jaws that narrow upwards
    grasp.centre_between_jaws(heights, openings)
    if not task.hand.one_sided:
        assert not before.any()
        assert not grasp.clearance.any()
        return
    free = np.interp(width - 0.003, heights, openings) - width  # at the object's top, above the tips
    np.testing.assert_allclose(grasp.clearance, np.maximum(before, free / 2), atol=1e-12)
    assert (grasp.clearance > before + 0.003).all()
    narrow = task.make_grasp(initial)
    narrow.centre_between_jaws(heights, np.full(11, width.max()))
    np.testing.assert_array_equal(narrow.clearance, before)


def test_the_middle_is_that_of_the_jaws_of_the_robot(monkeypatch):
    given = []
    monkeypatch.setattr(GraspFromAbove, "centre_between_jaws", lambda _, *measured: given.append(measured))
    made = draw(TWIN, 3, 2)
    TASK.memoryless_expert(TASK.reset(made, run_seed=3, episodes=range(2)), made)
    ((heights, openings),) = given
    assert np.interp(0.026, heights, openings) == pytest.approx(0.057, abs=0.003)  # m, at the top of the cube


PEG = open_task("insert_peg", load_twin("panda_peg"))


def insert(change=lambda initial: initial, **values):
    """Return the states of four nominal worlds with parameters ``values`` and changed initial states."""
    made = PEG.twin.table(4, values)
    initial = change(PEG.reset(made, run_seed=5, episodes=range(4)))
    expert = PEG.memoryless_expert(initial, made, believed=PEG.twin.table(4))
    return rollout(open_backend("threads", nthread=1), PEG.twin, made, initial, expert, PEG.nstep).states


def test_a_peg_is_turned_to_fit_a_socket_that_is_turned():
    turned = np.array([np.cos(0.3), 0.0, 0.0, np.sin(0.3)])
    states = insert(lambda initial: replace(initial, mocap_quat=np.broadcast_to(turned, (4, 1, 4)).copy()))
    assert PEG.success(states)[:, -1].all()


def test_a_peg_that_begins_in_the_hole_is_let_go():
    row = PEG.objects["peg"].qpos

    def inside(initial):
        qpos = initial.qpos.copy()
        qpos[:, row : row + 2] = initial.mocap_pos[:, 0, :2]
        qpos[:, row + 3 : row + 7] = initial.mocap_quat[:, 0]
        return replace(initial, qpos=qpos)

    assert PEG.success(insert(inside))[:, -1].all()


def test_a_peg_that_is_too_wide_is_pressed_gently():
    """Pressed any harder, it slips by centimetres between the fingers."""
    states = insert(**{"object/peg/size": 1.2})
    peg, tool = PEG.position(states, "peg"), PEG.position(states, "tool")
    socket = PEG.position(states, "socket")
    above = np.linalg.norm((peg - socket)[..., :2], axis=-1) < 0.003
    assert above[:, -1].all()
    assert not PEG.success(states).any()
    slip = np.array([np.ptp(high[there]) for high, there in zip((tool - peg)[..., 2], above, strict=True)])
    assert slip.max() < 0.008
