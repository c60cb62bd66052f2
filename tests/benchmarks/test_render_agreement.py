"""Figures of agreement are those of planted differences; the renderers here meet their targets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks.error_rates.renderers import (
    DEPTH_TARGET_M,
    IOU_TARGET,
    PLACE,
    SMALLEST,
    agreement,
    difference,
    poses,
    run_bench_renderers,
)
from benchmarks.studies import marks
from twinloop.core.errors import InputError
from twinloop.render import probe_renderer
from twinloop.render.annotate import InstanceTable
from twinloop.twin import load_twin

SIZE = 100

BEGIN, END = marks(PLACE)


@pytest.fixture(scope="module")
def table() -> InstanceTable:
    return InstanceTable.of(load_twin("cube_toss"))


def scene(rows: slice, columns: slice, geom: int = 4) -> dict[str, np.ndarray]:
    """A rectangle of one geom 2 m away that faces the camera."""
    seen = {
        "rgb": np.full((1, SIZE, SIZE, 3), 100, dtype=np.uint8),
        "depth": np.full((1, SIZE, SIZE), np.inf, dtype=np.float32),
        "geom": np.full((1, SIZE, SIZE), -1, dtype=np.int32),
        "normal": np.zeros((1, SIZE, SIZE, 3), dtype=np.float32),
    }
    seen["geom"][0, rows, columns], seen["depth"][0, rows, columns] = geom, 2.0
    seen["normal"][0, rows, columns] = [0, 0, -1]
    return seen


def test_a_scene_agrees_with_itself(table: InstanceTable) -> None:
    one = scene(slice(10, 60), slice(10, 60))
    found = agreement([difference(one, one, table)])
    assert (found.scenes, found.iou, found.iou_least, found.same_ids) == (1, 1.0, 1.0, 1.0)
    assert (found.depth_95_m, found.normal_95_deg, found.colour_95) == (0.0, 0.0, 0.0)


def test_planted_differences_come_back(table: InstanceTable) -> None:
    one, other = scene(slice(10, 60), slice(10, 60)), scene(slice(10, 60), slice(20, 70))
    other["depth"] *= np.float32(1.001)
    other["normal"][..., 0], other["normal"][..., 2] = np.sin(0.02), -np.cos(0.02)
    other["rgb"][..., 1] += 7
    found = agreement([difference(one, other, table), difference(one, one, table)])
    assert found.scenes == 2
    assert found.iou == pytest.approx((40 / 60 + 1.0) / 2)
    assert found.iou_least == pytest.approx(40 / 60)
    assert found.same_ids == pytest.approx(1.0 - 0.5 * 2 * 50 * 10 / SIZE**2)
    apart = agreement([difference(one, other, table)])
    assert apart.depth_m == pytest.approx(1e-3, rel=1e-3)
    assert apart.normal_deg == pytest.approx(np.degrees(0.02), rel=1e-3)
    assert (apart.colour, apart.colour_95) == (7.0, 7.0)


def test_what_is_a_few_pixels_large_does_not_count(table: InstanceTable) -> None:
    large, small = scene(slice(10, 60), slice(10, 60)), scene(slice(10, 60), slice(10, 60))
    small["geom"][0, 90, : SMALLEST - 1] = 0
    assert agreement([difference(large, small, table)]).iou == 1.0
    small["geom"][0, 90, :SMALLEST] = 0
    assert agreement([difference(large, small, table)]).iou_least == 0.0


def test_states_are_the_home_and_positions_in_range() -> None:
    twin = load_twin("so101_tabletop")
    states = poses(twin, 4)
    np.testing.assert_array_equal(states.qpos[0], twin.home()[0])
    np.testing.assert_array_equal(states.qpos, poses(twin, 4).qpos)
    joints = [twin.model.joint(name).id for name in twin.robot.joints]
    drawn = states.qpos[1:, twin.model.jnt_qposadr[joints]]
    assert (drawn >= twin.model.jnt_range[joints, 0]).all()
    assert (drawn <= twin.model.jnt_range[joints, 1]).all()
    assert (np.ptp(drawn, axis=0) > 0.1).all()


def both() -> None:
    for name in ("gl", "warp"):
        if not probe_renderer(name).available:
            pytest.skip(f"renderer {name} is not available; two are needed to compare")


@pytest.mark.slow
def test_the_rasterizer_and_the_ray_tracer_agree_on_a_twin_and_the_page_takes_the_tables(tmp_path: Path) -> None:
    both()
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    quiet = Console(quiet=True)
    found = run_bench_renderers(
        quiet, twins=["cube_toss"], renderers=["gl", "warp"], frames=1, height=120, width=160, page=page
    )
    pair = found["pairs"]["gl and warp"]
    assert pair["iou"] > IOU_TARGET
    assert pair["depth_m"] < 1e-5 < DEPTH_TARGET_M
    assert pair["same_ids"] > 0.998
    assert pair["normal_deg"] < 0.01
    assert pair["colour"] <= 2
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n1 states of each built-in twin at 160×120.")
    assert text.endswith(f"{END}\nafter\n")
    assert "| cube_toss, side |" in text
    assert "old" not in text


@pytest.mark.slow
def test_all_twins_agree() -> None:
    both()
    found = run_bench_renderers(Console(quiet=True), renderers=["gl", "warp"], frames=2)
    assert found["pairs"]["gl and warp"]["iou"] > 0.99
    for name, each in found["scenes"]["gl and warp"].items():
        assert each["iou"] > IOU_TARGET, name
        assert each["depth_95_m"] < 1e-4, name
        assert each["colour_95"] < 10, name


def test_one_renderer_is_none_to_compare_and_a_page_needs_its_marks(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="A comparison needs two renderers; available here: gl"):
        run_bench_renderers(Console(quiet=True), renderers=["gl"])
    both()
    bare = tmp_path / "bare.md"
    bare.write_text("# Page\n")
    with pytest.raises(InputError, match=r"bare\.md has no place for the tables\. Put these two lines into it"):
        run_bench_renderers(
            Console(quiet=True), twins=["cube_toss"], renderers=["gl", "warp"], frames=1, height=32, width=32, page=bare
        )
