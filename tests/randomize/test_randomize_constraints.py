"""Constraints condition the draws and nothing else; unsatisfiable or unreadable ones are named."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.randomize import Draw, Plan, make_design, section_plan
from twinloop.randomize.constraints import Constraint, RejectionCounter, parse_constraint
from twinloop.randomize.distributions import LogUniform, MultivariateNormal, Uniform
from twinloop.randomize.draws import JointDraw
from twinloop.tasks import open_task
from twinloop.tasks.hand import FITS, measure_jaw_openings, object_fits_constraint
from twinloop.twin import load_twin

SO101 = load_twin("so101_tabletop")
PANDA = load_twin("panda_tabletop")
X, Y = "object/cube/position/x", "object/cube/position/y"
DRAWS = (
    Draw(names=(X,), distribution=Uniform(low=0.1, high=0.3)),
    Draw(names=(Y,), distribution=Uniform(low=-0.1, high=0.1)),
    Draw(names=("object/cube/mass",), distribution=LogUniform(low=0.02, high=0.1)),
)


def read(text, names=(X, Y)):
    return parse_constraint(text, names, where="t")


def plan(*texts, draws=DRAWS, design="independent", seed=0):
    constraints = tuple(parse_constraint(text, SO101.params, where="t") for text in texts)
    built = make_design(design, episodes=64, where="t")
    return Plan(twin=SO101, run_seed=seed, draws=draws, constraints=constraints, design=built)


@settings(deadline=None)
@given(x=st.floats(-3, 3), y=st.floats(-3, 3))
@pytest.mark.parametrize(
    ("text", "same"),
    [
        (f"{X} < 2 * {Y} + 0.5", lambda x, y: x < 2 * y + 0.5),
        (f"-1 <= {X} < {Y} <= 2", lambda x, y: -1 <= x < y <= 2),
        (f"hypot({X}, {Y}) > 1 or not {X} > 0", lambda x, y: np.hypot(x, y) > 1 or not x > 0),
        (f"{X} ** 2 - {Y} / 2 >= abs({Y}) and {X} != {Y}", lambda x, y: x**2 - y / 2 >= abs(y) and x != y),
        (
            f"max(sin({X}), min({Y}, 0)) <= cos(pi * {Y}) / 2",
            lambda x, y: max(np.sin(x), min(y, 0)) <= np.cos(np.pi * y) / 2,
        ),
    ],
)
def test_a_text_means_what_it_says(text, same, x, y):
    table = ParamTable(names=(X, Y), values=np.array([[x, y], [y, x]]))
    assert read(text).holds(table).tolist() == [bool(same(x, y)), bool(same(y, x))]


def test_a_path_beside_a_division_and_one_that_begins_another_are_told_apart():
    names = ("geom/a/size", "geom/a/size/x", "geom/a-b/size")
    table = ParamTable(names=names, values=np.array([[2.0, 8.0, 5.0]]))
    constraint = parse_constraint("geom/a/size/x / geom/a/size == 4 and geom/a-b/size == 5", names, where="t")
    assert constraint.holds(table).all()
    assert set(constraint.names) == set(names)


def test_what_is_undefined_does_not_hold():
    table = ParamTable(names=(X, Y), values=np.array([[-1.0, 0.0]]))
    assert not read(f"sqrt({X}) < 10").holds(table).any()
    assert not read(f"{Y} / {Y} < 10").holds(table).any()


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (f"{X} + 1", InputError, "is not a comparison. Compare parameters with <"),
        (f"{X} <", InputError, "cannot be read as arithmetic"),
        (f"__import__('os').system('true') < {X}", UnknownNameError, "Unknown function"),
        (f"open({X}) < 1", UnknownNameError, "Unknown function 'open'.*Existing: abs, cos"),
        (f"{X}.real < 1", InputError, "contains Attribute, which is not arithmetic"),
        (f"[{X}][0] < 1", InputError, "contains Subscript, which is not arithmetic"),
        (f"(lambda: 1)() < {X}", UnknownNameError, "Unknown function"),
        (f"'a' < {X}", InputError, "contains Constant"),
        (f"True < {X}", InputError, "contains Constant"),
        (f"hypot({X}) < 1", InputError, "calls hypot with 1 arguments, but it takes 2"),
        (f"{X} < 1 and {Y}", InputError, "combines something that is not a comparison"),
        (f"{X} in {Y}", InputError, "combines something that is not a comparison"),
        (
            "object/cube/positon/x < 1",
            UnknownNameError,
            "Unknown parameter 'object/cube/positon/x'.*object/cube/position",
        ),
        ("width < 1", UnknownNameError, "Unknown parameter 'width'"),
        ("object fits between the jaws", UnknownNameError, "Unknown constraint 'object fits between the jaws'"),
        (3, InputError, "a constraint is a text of at most 1000 characters; given 3"),
        ("(" * 900 + X, InputError, "cannot be read as arithmetic"),
    ],
)
def test_what_is_no_comparison_of_parameters_is_refused(text, error, message):
    with pytest.raises(error, match=message):
        read(text)


@pytest.mark.parametrize("design", ["independent", "sobol"])
def test_accepted_draws_have_the_conditional_distribution(design):
    """Uniform on a square, conditioned on a disc: the radius squared is uniform, the angle too."""
    table = plan(f"hypot({X} - 0.2, {Y}) < 0.1", design=design).draw(range(4000))
    radius, angle = np.hypot(table[X] - 0.2, table[Y]), np.arctan2(table[Y], table[X] - 0.2)
    assert stats.kstest(radius**2, stats.uniform(0, 0.01).cdf).pvalue > 1e-3
    assert stats.kstest(angle, stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > 1e-3


def test_what_a_constraint_does_not_read_keeps_its_draws():
    free, bound = plan().draw(range(50)), plan(f"{X} < 0.2").draw(range(50))
    np.testing.assert_array_equal(free["object/cube/mass"], bound["object/cube/mass"])
    np.testing.assert_array_equal(free[Y], bound[Y])
    kept = free[X] < 0.2
    np.testing.assert_array_equal(free[X][kept], bound[X][kept])
    assert (bound[X] < 0.2).all()


@settings(max_examples=15, deadline=None)
@given(episodes=st.lists(st.integers(0, 10**6), min_size=1, max_size=6))
def test_an_episode_is_drawn_again_the_same_alone(episodes):
    one = plan(f"{X} + {Y} > 0.33", design="sobol")
    together = one.draw_worlds(episodes)
    for row, episode in enumerate(episodes):
        alone = one.draw_worlds([episode])
        np.testing.assert_array_equal(together.table.values[row], alone.table.values[0])
        assert together.redraws[row] == alone.redraws[0]


def test_refusals_measure_the_acceptance():
    """The corner x + y > 0.33 of the square is 0.07² / 2 of 0.2²."""
    redraws = plan(f"{X} + {Y} > 0.33").draw_worlds(range(3000)).redraws
    rate = 3000 / (3000 + redraws.sum())
    assert rate == pytest.approx(0.07**2 / 2 / 0.2**2, rel=0.06)


def test_a_correlated_draw_is_redrawn_whole():
    normal = MultivariateNormal(mean=(0.2, 0.0), covariance=((1e-4, 0.8e-4), (0.8e-4, 1e-4)))
    joint = JointDraw(names=(X, Y), distribution=normal, transforms=("identity", "identity"))
    table = plan(f"{X} > 0.2", draws=(joint,)).draw(range(4000))
    expected = np.sqrt(2 / np.pi) * 1e-2  # mean of a half normal, and 0.8 of it across
    assert (table[X] > 0.2).all()
    assert table[X].mean() - 0.2 == pytest.approx(expected, rel=0.05)
    assert table[Y].mean() == pytest.approx(0.8 * expected, rel=0.08)


def test_a_constraint_that_accepts_almost_nothing_is_named_with_its_rate():
    with pytest.raises(
        InputError, match=r"constraint 'object/cube/position/x > 0.2999' held for \d of 2000 candidates"
    ):
        plan(f"{Y} < 0.09", f"{X} > 0.2999")
    with pytest.raises(InputError, match="all 2 constraints together for 0. At least 1% must be accepted. Change its"):
        plan(f"{X} < 0.15", f"{X} > 0.25")


def test_redrawing_ends():
    never = Constraint(name="never", names=(X,), holds=lambda table: np.zeros(table.nworld, dtype=bool))
    rejection = RejectionCounter([never], 1)
    table = ParamTable(names=(X,), values=np.zeros((1, 1)))
    with pytest.raises(InputError, match="'never' held for 0 of 10001 candidates"):
        while len(rejection.find_rejected(table, np.array([0]))):
            rejection.next_redraw()


@pytest.mark.parametrize(
    ("text", "draws", "design", "message"),
    [
        ("object/target/position/x < 1", DRAWS, "independent", "contains no parameter that is drawn per episode, so"),
        (
            f"{X} < 0.2",
            (*DRAWS[1:], Draw(names=(X,), distribution=Uniform(low=0.1, high=0.3), scope="run")),
            "independent",
            "contains no parameter that is drawn per episode",
        ),
        (
            f"{X} < {Y} + 1",
            (*DRAWS[1:], Draw(names=(X,), distribution=Uniform(low=0.1, high=0.3), scope="step")),
            "independent",
            "which changes at every control step",
        ),
        (
            f"{X} < 0.2",
            DRAWS,
            {"kind": "grid", "levels": 3, "names": [X]},
            "which is on the grid: a level that the constraint",
        ),
    ],
)
def test_a_constraint_that_no_redraw_can_meet_is_refused(text, draws, design, message):
    with pytest.raises(InputError, match=message):
        plan(text, draws=draws, design=design)


def test_constraints_are_part_of_what_names_a_plan():
    assert len({plan().hash, plan(f"{X} < 0.2").hash, plan(f"{X} < 0.21").hash}) == 3


def touches(twin, task, width, height):
    """Whether a box on one finger of the open hand, ``height`` deep from its tips, touches the other."""
    spec = twin.mjspec.copy()
    sides = np.full(3, 0.01)
    (approach, forward), (across, outward) = task.hand.approach, task.hand.opening
    sides[approach], sides[across] = height, width
    spec.geom("cube").size = sides / 2
    model = spec.compile()
    data = mujoco.MjData(model)
    data.qpos[:], _ = twin.home()
    data.qpos[task.hand.joint_qpos] = task.hand.open
    if not task.hand.one_sided:
        data.qpos[task.hand.joint_qpos + 1] = task.hand.open
    mujoco.mj_kinematics(model, data)
    site = data.site(twin.robot.tcp)
    frame = site.xmat.reshape(3, 3)
    fixed = 0.0 if not task.hand.one_sided else width / 2 - 0.014 + 1e-4
    row = task.object.qpos
    data.qpos[row : row + 3] = (
        site.xpos + (task.hand.tip - height / 2) * forward * frame[:, approach] + fixed * outward * frame[:, across]
    )
    mujoco.mju_mat2Quat(data.qpos[row + 3 : row + 7], frame.ravel())
    mujoco.mj_forward(model, data)
    cube = model.geom("cube").id
    return any(cube in data.contact[i].geom and data.contact[i].dist < 0 for i in range(data.ncon))


@pytest.mark.parametrize("twin", [PANDA, SO101], ids=["panda", "so101"])
@pytest.mark.parametrize("height", [0.015, 0.03, 0.04])
def test_what_is_narrower_than_the_opening_goes_in_and_what_is_wider_does_not(twin, height):
    task = open_task("pick_and_place", twin)
    opening = measure_jaw_openings(twin, task.hand, height)[1][-1]
    assert not touches(twin, task, opening - 0.001, height)
    assert touches(twin, task, opening + 0.001, height)


def test_the_jaws_open_as_wide_as_their_maker_says():
    assert measure_jaw_openings(PANDA, open_task("pick_and_place", PANDA).hand, 0.04)[1][-1] == pytest.approx(
        0.08, abs=1e-6
    )


def test_an_object_fits_where_its_wider_side_does():
    """The Panda's cube has sides of 50 mm; 78 mm go in with the clearance. Its fingers are 48 mm long."""
    fits = object_fits_constraint(PANDA, open_task("pick_and_place", PANDA).hand, "cube", tips=0.01)
    names = ("object/cube/size", "object/cube/size/x", "object/cube/size/y")
    table = ParamTable(names=names, values=np.array([[1, 1, 1.55], [1, 1, 1.57], [1.1, 1.45, 0.2], [1.3, 1, 1]]))
    assert fits.holds(table).tolist() == [True, False, False, False]
    assert fits.holds(ParamTable(names=(), values=np.empty((2, 0)))).tolist() == [True, True]


@pytest.mark.parametrize("twin", [PANDA, SO101], ids=["panda", "so101"])
def test_a_constraint_that_the_task_offers_by_name_keeps_objects_that_go_in(twin):
    task = open_task("pick_and_place", twin)
    section = {"params": {"object/cube/size": [0.8, 2.0]}, "constraints": [FITS]}
    plan = section_plan(section, twin, run_seed=0, episodes=200, where="g.yaml", named=lambda: task.constraints)
    sizes = np.sort(plan.draw(range(200))["object/cube/size"])
    side, tips = 2 * twin.model.geom("cube").size[0], task.config.grasp_height - task.hand.tip
    for size in sizes[[0, 100, -1]]:
        assert not touches(twin, task, size * side, size * side - tips)
    wider = sizes[-1] * side + 0.005
    assert touches(twin, task, wider, wider - tips)
    assert 1.0 < sizes[-1] < 2.0


def test_a_constraint_by_name_needs_something_to_condition():
    task = open_task("pick_and_place", PANDA)
    with pytest.raises(InputError, match=f"The constraint '{FITS}' contains no parameter that is drawn per episode"):
        section_plan(
            {"physics": {"object_mass_g": [20, 100]}, "constraints": [FITS]},
            PANDA,
            run_seed=0,
            episodes=8,
            where="g.yaml",
            named=lambda: task.constraints,
        )
