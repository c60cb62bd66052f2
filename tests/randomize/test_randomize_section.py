"""A randomization section as a whole: what goes together becomes one plan, what does not is refused."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.files import write_json
from twinloop.generate import resolve_config
from twinloop.generate.config import load_plan
from twinloop.randomize import default_draws, section_plan
from twinloop.twin import load_twin

SO101 = load_twin("so101_tabletop")
KP, DAMPING, MASS = "actuator/elbow_flex/kp", "joint/elbow_flex/damping", "object/cube/mass"
IDENTIFIED = ParamDistribution(
    names=(KP, DAMPING),
    transforms=("log", "identity"),
    mean=np.array([np.log(9.0), 0.6]),
    covariance=np.array([[0.01, 0.005], [0.005, 0.01]]),
    low=np.zeros(2),
    high=np.full(2, 100.0),
    determined=(True, True),
    clusters=30,
)


def plan(section, **options):
    return section_plan(section, SO101, run_seed=0, episodes=16, where="g.yaml", **options)


def config(section, folder):
    write_json(folder / "run" / "result.json", {"distribution": IDENTIFIED.to_json()})
    value = {"scene": {"robot": "so101", "task": "pick_and_place"}, "randomization": section}
    return resolve_config(value, where="g.yaml", folder=folder)


def drawn(one):
    return [name for draw in one.draws for name in draw.names]


def test_default_means_the_twins_own_ranges():
    assert plan("default").hash == plan({"default": True}).hash
    assert drawn(plan("default")) == [name for draw in default_draws(SO101) for name in draw.names]
    assert drawn(plan({})) == []


def test_own_ranges_take_the_place_of_default_ones():
    mixed = plan({"default": True, "physics": {"object_mass_g": [30, 31]}})
    assert sorted(drawn(mixed)) == sorted(drawn(plan("default")))
    assert np.ptp(mixed.draw(range(50))[MASS]) < 0.001


def test_an_identified_plan_takes_a_design_constraints_and_adaptive_ranges(tmp_path):
    section = {
        "identified": "run",
        "kappa": 2.0,
        "design": "latin_hypercube",
        "constraints": [f"{KP} > 9"],
        "adaptive": {"names": [MASS], "every": 256},
    }
    one = load_plan(config(section, tmp_path))
    table = one.draw(range(256))
    assert (table[KP] > 9).all()
    assert np.corrcoef(np.log(table[KP]), table[DAMPING])[0, 1] > 0.1
    assert drawn(one).count(MASS) == 1
    assert one.design.strata == 256
    friction = table["object/cube/friction/slide"]
    low, high = SO101.params["object/cube/friction/slide"].default_range
    strata = np.floor((friction - low) / (high - low) * 256).astype(int)
    np.testing.assert_array_equal(np.sort(strata), np.arange(256))


@pytest.mark.parametrize(
    ("section", "error", "message"),
    [
        ({"identified": "run", "physics": {}}, InputError, "default ranges for the others. Remove physics"),
        ({"identified": "run", "default": True}, InputError, "default ranges for the others. Remove default"),
        ({"identified": "run", "adaptive": {"names": [KP]}}, InputError, f"{KP} is drawn twice"),
        (
            {"identified": "run", "design": {"kind": "grid", "levels": 2, "names": [KP]}},
            InputError,
            f"{KP} is named by the design grid, but is drawn together with other identified parameters",
        ),
        (
            {"identified": "run", "design": {"kind": "stratified", "strata": 2, "names": [DAMPING, MASS]}},
            InputError,
            f"{DAMPING} is named by the design stratified, but is drawn together",
        ),
        ({"kappa": 2.0}, InputError, "g.*: randomization.kappa widens an identified distribution. Add identified"),
        ({"default": "yes"}, InputError, "randomization.default is true or false; given 'yes'"),
        ({"desing": "sobol"}, UnknownNameError, "Unknown section 'desing'.*Nearest existing: design"),
        ({"design": "sobol"}, InputError, "sobol places nothing, because no parameter is drawn per episode. Add"),
        ({"default": True, "constraints": f"{MASS} < 1"}, InputError, "a list of comparisons is expected"),
        (
            {"default": True, "constraints": [f"{MASS} < 1", f"{MASS} <"]},
            InputError,
            r"randomization.constraints\[1\]: the constraint 'object/cube/mass <' cannot be read as arithmetic",
        ),
        (
            {"default": True, "constraints": ["object fits in the jaws"]},
            UnknownNameError,
            "Nearest existing: object fits between the jaws",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_next_step(section, error, message, tmp_path):
    with pytest.raises(error, match=message):
        load_plan(config(section, tmp_path))
