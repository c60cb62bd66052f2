"""A residual finds a planted effect that no parameter has, and nothing in logs without one."""

import mujoco
import numpy as np
import pytest
from rich.console import Console

from support.pages import KeptReport
from twinloop.core.errors import InputError
from twinloop.core.records import Episode
from twinloop.core.seeds import generator
from twinloop.identify import FitConfig
from twinloop.identify.residual import fit_residual
from twinloop.simulate import open_backend
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.simulate.residual import ResidualShape
from twinloop.twin import load_twin
from twinloop.twin.variant import add_twin_residual
from twinloop.workflows.data.logs import LogEpisodes
from twinloop.workflows.identify.identify import _run_analyses, _write_twin
from twinloop.workflows.identify.identify import fit as fit_log
from twinloop.workflows.identify.page import residual_section
from twinloop.workflows.identify.requests import PostFitAnalyses

HZ, SUBSTEPS = 30, 8
MODEL = """
<mujoco model="turret">
  <option integrator="implicitfast" timestep="{dt}"/>
  <default>
    <joint damping="0.6" frictionloss="0.05" armature="0.03"/>
    <general gaintype="fixed" biastype="affine" gainprm="9" biasprm="0 -9" forcelimited="true" forcerange="-3 3"/>
  </default>
  <worldbody>
    <body>
      <joint name="turn" axis="0 0 1" range="-180 180"/>
      <geom type="cylinder" size="0.05 0.05" mass="0.2"/>
      <body pos="0 0 0.1">
        <joint name="tilt" axis="0 1 0" range="-180 180"/>
        <geom type="capsule" fromto="0 0 0 0.1 0 0" size="0.02" mass="0.1"/>
      </body>
    </body>
  </worldbody>
  <actuator><general name="turn" joint="turn"/><general name="tilt" joint="tilt"/></actuator>
</mujoco>
"""
SPEC = f"""
name: turret
model: turret.xml
control_hz: {HZ}
substeps: {SUBSTEPS}
robot: {{type: turret, joints: [turn, tilt], units: [rad, rad]}}
params:
  - {{name: "joint/*/damping", source: test}}
"""
KP, COGGING, TEETH = 9.0, 0.6, 3.0


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    folder = tmp_path_factory.mktemp("turret")
    (folder / "turret.xml").write_text(MODEL.format(dt=1 / (HZ * SUBSTEPS)))
    (folder / "turret.yaml").write_text(SPEC)
    return load_twin(folder / "turret.yaml")


def record(twin, torque, *, count, seed, nframe=90, noise=0.002):
    """Episodes of the turret in plain MuJoCo, with a torque about ``turn`` that depends on the data of each step."""
    rng, model, episodes = generator(seed, "test/residual"), twin.model, []
    for index in range(count):
        knots = rng.uniform(-1.0, 1.0, size=(nframe // 15 + 2, 2))
        knots[0] = 0.0
        at = np.arange(nframe) / 15
        ease = np.clip(2 * (at % 1), 0, 1)[:, None]
        action = (1 - ease) * knots[at.astype(int)] + ease * knots[at.astype(int) + 1]
        data, state = mujoco.MjData(model), np.empty((nframe, 2))
        for frame in range(nframe):
            state[frame] = data.qpos
            data.ctrl = action[frame]
            for _ in range(SUBSTEPS):
                data.qfrc_applied[0] = torque(data, rng)
                mujoco.mj_step(model, data)
        state += rng.normal(scale=noise, size=state.shape)
        time, units = np.arange(nframe) / HZ, twin.unit_map(["rad", "rad"])
        episodes.append(Episode(index=index, time=time, action=action, state=state, units=units, source="sim"))
    return episodes


def fit(twin, torque, *, count=14, held=6, seed=0, **options):
    logs = prepare_replay(twin, record(twin, torque, count=count, seed=seed, **options))
    training, test = (logs.select_episodes(rows) for rows in (range(count - held), range(count - held, count)))
    return fit_residual(open_backend("threads", nthread=2), training, test, {})


def cogging(data, rng):
    return COGGING * np.sin(TEETH * data.qpos[0])


def no_torque(data, rng):
    return 0.0


class Gusts:
    """A torque that is an Ornstein-Uhlenbeck process, new in every episode."""

    sd, time = 0.3, 0.6

    def __call__(self, data, rng):
        decay = np.exp(-1 / (HZ * SUBSTEPS * self.time)) if data.time else 0.0
        self.value = decay * (self.value if data.time else 0.0) + np.sqrt(1 - decay**2) * rng.normal(scale=self.sd)
        return self.value


@pytest.fixture(scope="module")
def found(twin):
    return fit(twin, cogging)


def test_a_planted_cogging_is_admitted_and_recovered(twin, found):
    turn, tilt = range(2)
    assert found.action.admitted
    assert found.action.after[turn] < 0.5 * found.action.before[turn]
    assert found.action.after[tilt] == pytest.approx(found.action.before[tilt], rel=0.01)
    assert found.admitted is not None
    assert "admitted" in found.text()
    joint = found.admitted.joints["turn"]
    at = np.linspace(-0.8, 0.8, 33)
    rows = [np.stack([each, 0 * each], axis=1) for each in (at, 0 * at, 0 * at)]
    shape = ResidualShape(twin, found.admitted)
    offset = shape.compute_offsets(shape.compute_features(*rows))[:, turn]
    planted = COGGING * np.sin(TEETH * at) / KP
    assert np.corrcoef(offset, planted)[0, 1] > 0.97
    assert offset @ planted / (planted @ planted) == pytest.approx(1.0, abs=0.15)
    assert joint.bound <= 0.05 * 2.0  # a twentieth of the range of commands


@pytest.mark.slow
def test_the_same_log_gives_the_same_residual(twin, found):
    assert str(fit(twin, cogging).to_json()) == str(found.to_json())  # text, because it has NaN


@pytest.mark.parametrize("seed", [0, pytest.param(range(1, 9), marks=pytest.mark.slow)])
def test_a_log_without_unknown_physics_has_no_residual(twin, seed):
    for each in np.atleast_1d(seed):
        result = fit(twin, no_torque, seed=int(each))
        assert not result.action.admitted
        assert not result.disturbance.admitted
        assert result.admitted is None
        assert "NOT ADMITTED" in result.text()


@pytest.mark.slow
def test_a_planted_disturbance_is_admitted_with_its_size_and_time(twin):
    result = fit(twin, Gusts(), count=40, held=10)
    assert not result.action.admitted
    assert result.disturbance.admitted
    assert result.admitted is not None
    joint = result.admitted.joints["turn"]
    assert joint.sd == pytest.approx(Gusts.sd / KP, rel=0.3)
    assert joint.time == pytest.approx(Gusts.time, rel=0.5)
    assert result.admitted.joints["tilt"].sd < 0.2 * joint.sd


def test_too_few_held_out_episodes_and_a_second_residual_are_refused(twin, found):
    with pytest.raises(InputError, match="--holdout last:6"):
        fit(twin, no_torque, count=6, held=5, nframe=20)
    with pytest.raises(InputError, match="already has a residual"):
        fit(add_twin_residual(twin, found.admitted), no_torque, count=7, nframe=20)


def test_the_page_shows_both_decisions_and_the_errors_of_each_joint(found):
    page = KeptReport()
    residual_section(page, found)
    assert page.heads == ["Residual"]
    assert "8 training episodes; 6 held-out episodes decide" in page.said
    assert f"Action: {found.action.text()}." in page.words
    table = page.tables[0]
    assert table["joint"] == ["turn", "tilt"]
    assert table["error before"] == found.action.before.tolist()
    assert table["with action"] == found.action.after.tolist()
    assert table["bound in rad"][0] == found.fitted.joints["turn"].bound


@pytest.mark.slow
def test_the_command_writes_a_twin_that_moves_with_the_residual(twin, tmp_path):
    episodes = record(twin, cogging, count=14, seed=0)
    log = LogEpisodes(name="test", label="test", hash="", episodes=tuple(episodes))
    config = FitConfig(free=("joint/turn/damping",), iterations=2)
    console = Console(quiet=True)
    outcome = fit_log(twin, log, "last:6", config)
    outcome = _run_analyses(outcome, PostFitAnalyses(residual=True), "last:6", console)
    assert outcome.residual is not None
    assert outcome.residual.admitted is not None
    assert outcome.metrics()["residual"]["admitted"]["joints"]["turn"]["bound"] > 0
    base = tmp_path / "turret.yaml"
    base.write_text(SPEC)
    (tmp_path / "turret.xml").write_text(MODEL.format(dt=1 / (HZ * SUBSTEPS)))
    _write_twin(str(base), outcome.residual.admitted, tmp_path / "run" / "twin.yaml", console)
    assert load_twin(tmp_path / "run" / "twin.yaml").spec.residual == outcome.residual.admitted
