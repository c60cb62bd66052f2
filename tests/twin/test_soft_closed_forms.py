"""Soft bodies with written parameters agree with textbook formulas.

In every test the model has other values than those that are written, so that an ignored parameter fails it.
"""

from __future__ import annotations

import copy

import mujoco
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.signal import find_peaks

from twinloop.twin import load_twin

GRAVITY = 9.81
NO_CONTACT = '<contact selfcollide="none" contype="0" conaffinity="0"/>'


def write(tmp_path, body, values, *, option='integrator="discrete" timestep="0.002"'):
    """Compile a model and return it with parameter values of its flex ``soft``."""
    path = tmp_path / "soft.xml"
    path.write_text(f"<mujoco><option {option} jacobian='dense'/><worldbody>{body}</worldbody></mujoco>")
    twin = load_twin(path)
    model = copy.copy(twin.model)
    named = {f"soft/soft/{quantity}": value for quantity, value in values.items()}
    twin.fields(twin.table(1, named)).write_inplace(model, 0)
    return model


def settle(model, nstep):
    """Return the state of rest: the velocity is set to zero whenever the kinetic energy falls (dynamic relaxation)."""
    data, last = mujoco.MjData(model), 0.0
    for _ in range(nstep):
        mujoco.mj_step(model, data)
        energy = float(data.qvel @ data.qvel)
        data.qvel[:] *= energy >= last
        last = float(data.qvel @ data.qvel)
    mujoco.mj_forward(model, data)
    return data


def beam(cells, *, mass, young, length=0.4, width=0.04, poisson=0.0, dof="quadratic"):
    order = 2 if dof == "quadratic" else 1
    return f"""<flexcomp name="soft" type="grid" dim="3" dof="{dof}" cellcount="{cells} 1 1" count="17 3 3" radius="0"
      spacing="{length / 16} {width / 2} {width / 2}" mass="{mass}" pos="{length / 2} 0 0">
      <elasticity young="{young}" poisson="{poisson}" damping=".02"/>{NO_CONTACT}
      <pin gridrange="0 0 0 0 {order} {order}"/></flexcomp>"""


@pytest.mark.parametrize("count", [11, 21])
def test_a_soft_hanging_rope_is_a_catenary(tmp_path, count):
    """Its sag is a (cosh(s / 2a) − 1) for a span s and a length 2 a sinh(s / 2a).

    The stiff rope of the model sags 9 % more.
    """
    length, span = 1.0, 0.7
    along = np.linspace(0, 1, count)
    depth = np.sqrt(length**2 - span**2) / 2
    points = np.stack([span * (along - 0.5), 0 * along, 1 - depth * (1 - np.abs(2 * along - 1))], axis=-1)
    numbers = " ".join(f"{x:.12g}" for x in points.ravel())
    edges = " ".join(f"{i} {i + 1}" for i in range(count - 1))
    body = f"""<flexcomp name="soft" type="direct" dim="1" point="{numbers}" element="{edges}" radius=".002" mass=".1">
      <elasticity young="1e8" damping=".05"/><edge equality="true" solref=".004 1" solimp=".99 .999 .001"/>
      {NO_CONTACT}<pin id="0 {count - 1}"/></flexcomp>"""
    scale = brentq(lambda a: 2 * a * np.sinh(span / (2 * a)) - length, 1e-2, 1e2)
    sag = scale * (np.cosh(span / (2 * scale)) - 1)
    data = settle(write(tmp_path, body, {"young": 1e4}), 2500)
    x, _, z = data.flexvert_xpos.T
    assert 1 - z.min() == pytest.approx(sag, rel=0.01)
    np.testing.assert_allclose(z, 1 - sag + scale * (np.cosh(x / scale) - 1), atol=0.01 * sag)


def test_a_clamped_rod_bends_as_euler_and_bernoulli_say(tmp_path):
    """A point load w at the distance x from the clamp bends the end of a beam by w x² (3 L − x) / (6 E I).

    The clamped edge bends over half its length, because the rod bends at its vertices.
    """
    length, radius, young, count = 0.4, 0.004, 2e8, 21
    body = f"""<flexcomp name="soft" type="grid" dim="1" count="{count} 1 1" radius="{radius}" mass=".02"
      spacing="{length / (count - 1)} .1 .1" pos="{length / 2} 0 0"><elasticity young="1e9" damping=".05"/>
      <edge equality="true"/>{NO_CONTACT}<pin id="0 1"/></flexcomp>"""
    model = write(tmp_path, body, {"young": young, "mass": 0.01})
    data = settle(model, 2500)
    clamp, inertia = 0.5 * length / (count - 1), np.pi * radius**4 / 4
    place, load = (
        np.maximum(model.body_pos[:, 0] - clamp, 0.0),
        GRAVITY * 0.01 * model.body_mass / model.body_mass.sum(),
    )
    deflection = (load * place**2 * (3 * (length - clamp) - place)).sum() / (6 * young * inertia)
    assert -data.flexvert_xpos[-1, 2] == pytest.approx(deflection, rel=0.05)


@pytest.mark.parametrize(("cells", "error"), [(2, 0.07), (4, 0.05), (6, 0.05)])
def test_a_quadratic_beam_bends_as_euler_and_bernoulli_say(tmp_path, cells, error):
    """Measured errors: −6 % with 2 cells along the beam, −0.6 % with 4, 0.0 % with 6.

    Trilinear cells are too stiff in bending ("shear locking"): with 4, 8, 16 and 32 cells the beam bends by 24, 56, 84
    and 96 % of the formula. So are full ones: 21, 50 and 80 % with 2, 3 and 5 vertices over the height.
    """
    length, width, young = 0.4, 0.04, 8e6
    model = write(tmp_path, beam(cells, mass=0.32, young=2e7), {"young": young, "mass": 0.64})
    data = settle(model, 1000)
    place, load = model.body_pos[:, 0], GRAVITY * 0.64 * model.body_mass / model.body_mass.sum()
    deflection = (load * place**2 * (3 * length - place)).sum() / (6 * young * width**4 / 12)
    tip = -data.flexvert_xpos[model.flex_vert0[:, 0] > 0.999, 2].mean()
    assert tip == pytest.approx(deflection, rel=error)


def test_a_trilinear_beam_is_too_stiff(tmp_path):
    """The limit of the trilinear kind that the reference of the quantity names."""
    young = 8e6
    model = write(tmp_path, beam(4, mass=0.64, young=young, dof="trilinear"), {})
    place, load = model.body_pos[:, 0], GRAVITY * 0.64 * model.body_mass / model.body_mass.sum()
    deflection = (load * place**2 * (3 * 0.4 - place)).sum() / (6 * young * 0.04**4 / 12)
    tip = -settle(model, 500).flexvert_xpos[model.flex_vert0[:, 0] > 0.999, 2].mean()
    assert tip == pytest.approx(0.24 * deflection, rel=0.1)


BLOCK = """<flexcomp name="soft" type="grid" dim="3" {kind} count="3 3 3" spacing=".03 .03 .03" radius="1e-5" mass=".2"
  pos="0 0 .03"><elasticity young="{young}" poisson="0" damping=".01"/>
  <contact selfcollide="none" solref=".004 1" solimp=".99 .999 1e-4"/>{pin}</flexcomp>"""


@pytest.mark.parametrize(
    ("kind", "pin"), [('dof="trilinear"', '<pin id="0 2 4 6"/>'), ("", '<pin gridrange="0 0 0 2 2 0"/>')]
)
def test_a_block_is_compressed_by_f_h_over_e_a(tmp_path, kind, pin):
    """A plate that presses with F on a block of height h and area A, without lateral strain, moves by F h / (E A)."""
    force, height, area, young = 10.0, 0.06, 0.06**2, 8e4
    plate = f"""<body pos="0 0 {height + 0.0051}"><joint name="lift" type="slide" axis="0 0 1"/>
      <geom type="box" size=".05 .05 .005" mass="{force / GRAVITY}"/></body>"""
    body = BLOCK.format(kind=kind, young=3e5, pin=pin) + plate
    heavy, light = (
        settle(write(tmp_path, text, {"young": young}), 1500)
        for text in (body, BLOCK.format(kind=kind, young=3e5, pin=pin))
    )
    pressed = light.flexvert_xpos[:, 2].max() - heavy.flexvert_xpos[:, 2].max()
    assert pressed == pytest.approx(force * height / (young * area), rel=0.05)


def vibrate(model, seconds):
    """Return times and heights of a block's top after a vertical kick of all its nodes."""
    model.opt.gravity[:] = 0.0
    data = mujoco.MjData(model)
    data.qvel[2::3] = 0.01
    height = np.empty(round(seconds / model.opt.timestep))
    for step in range(len(height)):
        mujoco.mj_step(model, data)
        height[step] = data.qpos[2]
    return model.opt.timestep * np.arange(1, len(height) + 1), height


@pytest.mark.parametrize(("integrator", "timestep"), [("Euler", 2e-5), ("discrete", 2e-5), ("discrete", 4e-4)])
def test_a_block_vibrates_with_its_frequency_and_rayleigh_damping(tmp_path, integrator, timestep):
    """ω² = E A / (h m) and the damping ratio β ω / 2; the integrator "discrete" adds one physics step to β."""
    young, damping, mass = 8e4, 1.5e-3, 0.15
    body = BLOCK.format(kind='dof="trilinear"', young=2e5, pin='<pin id="0 2 4 6"/>')
    option = f'integrator="{integrator}" timestep="{timestep}"'
    model = write(tmp_path, body, {"young": young, "damping": damping, "mass": mass}, option=option)
    time, height = vibrate(model, 0.25)
    peaks = find_peaks(height)[0][:4]
    omega = np.sqrt(young * 0.06 / mass)
    ratio = omega * (damping + (timestep if integrator == "discrete" else 0.0)) / 2
    decay = -np.diff(np.log(height[peaks])).mean()
    assert 2 * np.pi / np.diff(time[peaks]).mean() == pytest.approx(omega * np.sqrt(1 - ratio**2), rel=0.02)
    assert decay == pytest.approx(2 * np.pi * ratio / np.sqrt(1 - ratio**2), rel=0.05)
