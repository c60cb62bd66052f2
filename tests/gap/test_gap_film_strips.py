"""The images of the worst clips show the recording and the twin from the same start."""

import numpy as np
import pytest

from support.gap_logs import log_of
from support.pages import fetched
from twinloop.core.errors import InputError
from twinloop.gap import measure_gap
from twinloop.gap.dynamics.film_strips import film_strips, measured_qpos
from twinloop.report import ReportPage
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay_motion
from twinloop.simulate.replay_logs import ReplayOptions, prepare_replay
from twinloop.twin import load_twin
from twinloop.workflows.gap.dynamics import clips_section, horizon_section

PLANTED = {"joint/elbow_flex/damping": 8.0}
OPTIONS = ReplayOptions()


@pytest.fixture(scope="module")
def twin():
    return load_twin("so101_tabletop")


@pytest.fixture(scope="module")
def backend():
    return open_backend("threads", nthread=1)


def test_the_measured_robot_is_drawn_where_it_was(twin, backend):
    logs = prepare_replay(twin, log_of(twin, backend, PLANTED, count=1), OPTIONS)
    simulated = np.asarray(replay_motion(backend, logs, logs.twin.table(1)).qpos[0])
    same = np.asarray(replay_motion(backend, logs, logs.twin.table(1, PLANTED)).qpos[0])
    drawn = measured_qpos(logs, {}, simulated)
    assert drawn == pytest.approx(same[: len(drawn)], abs=1e-6)
    assert np.abs(drawn - simulated).max() > 0.01
    other = np.setdiff1d(np.arange(drawn.shape[1]), twin.encoder_qpos)
    assert (drawn[:, other] == simulated[:, other]).all()


@pytest.mark.slow
def test_strips_are_equal_where_the_twin_is_right_and_part_where_it_is_not(twin, backend):
    episodes = log_of(twin, backend, PLANTED, count=2)
    gap = measure_gap(twin, episodes, backend=backend, options=OPTIONS)
    assert {clip.channel for clip in gap.worst} == {"position/elbow_flex"}
    wrong, right = (
        film_strips(twin, episodes, gap.worst, backend=backend, values=values, options=OPTIONS, height=90, width=120)[0]
        for values in (None, PLANTED)
    )
    assert wrong.measured.shape == (6, 90, 120, 3)
    assert (wrong.measured[0] == wrong.simulated[0]).all()
    assert np.mean(wrong.measured[-1] != wrong.simulated[-1]) > 0.01
    assert np.mean(right.measured != right.simulated) < 0.002
    assert right.series["simulated"] == pytest.approx(right.series["measured"], abs=1e-6)
    assert wrong.times[0] == wrong.clip.begin
    assert wrong.times[-1] == pytest.approx(wrong.clip.begin + wrong.clip.length)


@pytest.mark.slow
def test_the_page_holds_curves_and_images_and_needs_no_network(twin, backend, tmp_path):
    pytest.importorskip("plotly")
    episodes = log_of(twin, backend, PLANTED, count=2)
    gap = measure_gap(twin, episodes, backend=backend, options=OPTIONS)
    page = ReportPage("gap")
    horizon_section(page, gap)
    clips_section(page, gap, twin, episodes, None, options=OPTIONS)
    text = page.write(tmp_path / "report.html").read_text()
    assert text.count("<img") == len(gap.worst)
    assert "elbow_flex is off by" in text
    assert fetched(text) == []


def test_a_twin_without_a_camera_is_refused(backend, tmp_path):
    (tmp_path / "arm.xml").write_text(
        '<mujoco><worldbody><body><joint name="j" axis="0 1 0"/><geom size=".1" pos=".3 0 0"/></body></worldbody>'
        '<actuator><position name="j" joint="j" kp="5" dampratio="1"/></actuator></mujoco>'
    )
    with pytest.raises(InputError, match="has no camera to render the clips with"):
        film_strips(load_twin(str(tmp_path / "arm.xml")), [], [], backend=backend)
