"""A person's own photos: positions from clicks and touches, planted errors of a localizer, ranking, bad input."""

import dataclasses

import numpy as np
import pytest
import yaml
from PIL import Image

from support.running import said, saved_localizer
from twinloop.core.contract import ACTION, ENVIRONMENT, STATE
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.policies import Statistics, new_policy
from twinloop.rollout.camera import TwinCamera
from twinloop.rollout.observing import offered_contract
from twinloop.tasks import open_task
from twinloop.twin import load_twin
from twinloop.workflows.localize.localize import LocalizeScoreRequest, run_localize_score

torch = pytest.importorskip("torch")

from twinloop.train.photos import (  # noqa: E402
    LabelledPhotos,
    _Geometry,
    adapt_localizer,
    rank_localizers,
    read_photos,
    score_photos,
)

TWIN = load_twin("so101_tabletop")
NAMES = ("cube.x", "cube.y", "cube.z", "target.x", "target.y", "target.z")


@pytest.fixture
def localizer():
    task = open_task("pick_and_place", TWIN)
    contract = dataclasses.replace(offered_contract(TWIN, task, cameras={"front": (24, 32)}), environment=())
    rng = np.random.default_rng(0)
    # heights of the table differ by ±4 mm between training worlds
    low = rng.uniform([0.1, -0.1, 0.010, 0.1, -0.1, -0.004], [0.3, 0.1, 0.018, 0.3, 0.1, 0.004], (500, 6))
    low[:50, 2] += 0.1
    joints = rng.normal(0, 20, (500, len(TWIN.robot.joints)))
    statistics = Statistics.measure({STATE: joints, ACTION: joints, ENVIRONMENT: low}, source="test")
    settings = {"tracked": NAMES, "images": {"channels": (8,), "per_camera": True}, "width": 8, "depth": 1}
    return new_policy("localizer", contract, settings, statistics, seed=1)


def write(folder, entries, **more):
    (folder / "photos.yaml").write_text(yaml.safe_dump({"photos": entries, **more}))
    return folder


def save_photo(folder, name, size=(480, 640), mode="RGB", seed=0):
    rng = np.random.default_rng(seed)
    image = Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).convert(mode)
    image.save(folder / name)
    return name


def planted(folder, count=12, *, moved=True):
    """Photos with clicks of cube and tool through a camera that is 2 cm and 2° off; return them and the cubes."""
    rng, geometry = np.random.default_rng(3), _Geometry(TWIN)
    camera = TwinCamera.of(TWIN, TWIN.table(1), "front", height=480, width=640)
    shift = np.eye(4)
    if moved:
        angle = np.radians(2.0)
        shift[:3, 3] = [0.012, -0.016, 0.0]
        shift[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    entries, cubes = [], []
    while len(entries) < count:
        joints = rng.uniform(-0.6, 0.6, len(TWIN.robot.joints))
        cube = np.array([*rng.uniform([0.15, -0.08], [0.28, 0.08]), 0.014])
        pose = geometry.camera("front", joints) @ shift
        clicks = {}
        for body, place in (("cube", cube), ("tool", geometry.tool(joints))):
            toward = pose[:3, :3].T @ (place - pose[:3, 3])
            bent = camera.lens.project(toward[None])[0]
            clicks[body] = {"front": [float(bent[0] * camera.target.fx + camera.target.cx),
                                      float(bent[1] * camera.target.fy + camera.target.cy)]}  # fmt: skip
        places = np.array([click["front"] for click in clicks.values()])
        if not ((places >= 0) & (places <= [640, 480])).all():  # also not a number
            continue
        name = save_photo(folder, f"{len(entries)}.png", seed=len(entries))
        entries.append({"images": {"front": name}, "joints": joints.tolist(), "clicks": clicks})
        cubes.append(cube)
    return entries, np.array(cubes)


def test_clicks_give_positions_also_of_a_camera_that_was_moved(tmp_path, localizer):
    entries, cubes = planted(tmp_path)
    photos = read_photos(write(tmp_path, entries, units="rad"), localizer, TWIN)
    np.testing.assert_allclose(photos.truth[:, :2], cubes[:, :2], atol=1e-3)
    assert np.isnan(photos.truth[:, 2:]).all()  # a click does not tell the height
    assert "The camera front was moved by 20 mm and 2.0°" in photos.notes[0]
    few = [{**entry, "clicks": {"cube": entry["clicks"]["cube"]}} for entry in entries]
    assumed = read_photos(write(tmp_path, few, units="rad"), localizer, TWIN)
    assert np.abs(assumed.truth[:, :2] - cubes[:, :2]).max() > 0.01


def test_clicks_correct_no_heights(tmp_path, localizer, monkeypatch):
    """A localizer that sees the cube 4 mm too high, and 10 mm too far to one side, keeps the height."""
    entries, cubes = planted(tmp_path, 20)
    photos = read_photos(write(tmp_path, entries, units="rad"), localizer, TWIN)
    wrong = np.concatenate([cubes + np.array([0.01, 0.0, 0.004]), np.zeros((20, 3))], axis=1)
    see_with(localizer, wrong, monkeypatch)
    assert score_photos(localizer, photos)["bodies"]["cube, m"]["median"] == pytest.approx(0.01, abs=1e-3)
    adapt_localizer(localizer, photos)
    correction = localizer.correction.numpy()
    assert (correction[2] == 0).all()
    assert (correction[0] != 0).any()


def test_a_touched_body_is_where_the_tool_was(tmp_path, localizer):
    joints = [0.3, -0.2, 0.4, 0.1, 0.0, 0.2]
    entry = {"images": {"front": save_photo(tmp_path, "a.jpg")}, "joints": joints}
    entry |= {"touched": {"cube": joints}, "positions": {"target": [0.2, 0.1, 0.001]}}
    photos = read_photos(write(tmp_path, [entry], units="rad"), localizer, TWIN)
    np.testing.assert_allclose(photos.truth[0, :3], _Geometry(TWIN).tool(np.array(joints)), atol=1e-12)
    np.testing.assert_allclose(photos.truth[0, 3:], [0.2, 0.1, 0.001])
    state = TWIN.units.to_si(photos.observation[STATE][:, 0])
    np.testing.assert_allclose(state[0], joints, atol=1e-6)


def fake(count=20, seed=0):
    rng = np.random.default_rng(seed)
    seen = {STATE: rng.normal(0, 20, (count, 1, len(TWIN.robot.joints))).astype(np.float32)}
    seen["observation.images.front"] = rng.integers(0, 256, (count, 1, 24, 32, 3), dtype=np.uint8)
    truth = rng.uniform([0.1, -0.1, 0.015, 0.1, -0.1, 0.001], [0.3, 0.1, 0.015, 0.3, 0.1, 0.001], (count, 6))
    return LabelledPhotos(observation=seen, truth=truth, names=NAMES, files=tuple(map(str, range(count))))


def see_with(localizer, wrong, monkeypatch, deviation=0.004):
    """Let the localizer estimate given values, through its correction."""
    scale = localizer.normalizer.scale(ENVIRONMENT)

    def locate(observation):
        rows = locate.rows[: len(next(iter(observation.values())))]
        found = localizer.normalizer(ENVIRONMENT, torch.from_numpy(rows).float())
        found = found + found @ localizer.correction[:, :-1].T + localizer.correction[:, -1]
        return localizer.normalizer.inverse(ENVIRONMENT, found), torch.full_like(found, deviation) * localizer.spread

    locate.rows = wrong
    assert (scale > 0).any()
    monkeypatch.setattr(localizer.layout.__class__, "tile", len(wrong))
    monkeypatch.setattr(localizer, "locate", locate)


def test_a_planted_affine_error_is_corrected(localizer, monkeypatch):
    photos, rng = fake(), np.random.default_rng(5)
    turn = np.radians(3.0)
    wrong = photos.truth + rng.normal(0, 1e-3, (20, 6))
    wrong[:, :2] = wrong[:, :2] @ [[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]] + [0.015, -0.02]
    see_with(localizer, wrong, monkeypatch)
    before = score_photos(localizer, photos)
    report = adapt_localizer(localizer, photos)
    after = score_photos(localizer, photos)
    assert before["bodies"]["cube, m"]["median"] > 0.015
    assert after["bodies"]["cube, m"]["median"] < 0.003
    assert report["before"]["cube"] > 5 * report["after"]["cube"]
    again = adapt_localizer(localizer, photos)
    assert again == report  # from the network's own estimates, not on top of the former correction


def test_right_estimates_are_left_alone(localizer, monkeypatch):
    photos, rng = fake(), np.random.default_rng(6)
    see_with(localizer, photos.truth + rng.normal(0, 3e-3, (20, 6)), monkeypatch)
    report = adapt_localizer(localizer, photos)
    assert report["after"]["cube"] <= report["before"]["cube"]
    see_with(localizer, photos.truth + np.random.default_rng(7).normal(0, 3e-3, (20, 6)), monkeypatch)
    median = score_photos(localizer, photos)["bodies"]["cube, m"]["median"]
    assert median == pytest.approx(1.538 * 3e-3, rel=0.25)  # median of a Maxwell distribution
    lifted = photos.truth + np.array([0, 0, 0.1, 0, 0, 0])
    see_with(localizer, lifted, monkeypatch)
    found = localizer.estimate_tracked(photos.observation)[0]
    np.testing.assert_allclose(found[:, 2], 0.115, atol=0.003)  # a height that no photo showed


def test_ranking_names_the_best_or_says_how_many_photos_are_missing():
    rng = np.random.default_rng(2)
    good = np.abs(rng.normal(0.005, 0.001, 30))
    scores = {"good": {"errors": good}, "bad": {"errors": good + 0.006 + rng.normal(0, 0.001, 30)}}
    made = rank_localizers(scores)
    assert (made["order"], made["decision"]) == (["good", "bad"], "best")
    close = rank_localizers({"a": {"errors": good}, "b": {"errors": good + rng.normal(1e-4, 1e-4, 30)}})
    assert close["decision"] in ("equal", "best")
    noisy = rank_localizers({"a": {"errors": good}, "b": {"errors": good + rng.normal(0.0, 0.02, 30)}})
    assert noisy["decision"] == "undecided"
    assert noisy["photos"] > 30


def test_photos_without_labels_count_for_nothing(localizer, monkeypatch):
    photos, rng = fake(), np.random.default_rng(8)
    wrong = photos.truth + rng.normal(0, 4e-3, (20, 6))
    unlabelled = photos.truth.copy()
    unlabelled[:5] = np.nan
    unlabelled[5:, 3:] = np.nan
    see_with(localizer, wrong, monkeypatch)
    errors = score_photos(localizer, dataclasses.replace(photos, truth=unlabelled))["errors"]
    ranking = rank_localizers({"one": {"errors": errors}, "other": {"errors": [2 * error for error in errors]}})
    expected = np.linalg.norm((wrong - photos.truth)[5:, :3], axis=1).mean()
    assert ranking["mean"]["one"] == pytest.approx(expected, rel=1e-4)
    unlabelled[4:] = np.nan
    with pytest.raises(InputError, match="No body is labelled in 5 photos"):
        adapt_localizer(localizer, dataclasses.replace(photos, truth=unlabelled))


def test_a_click_above_the_horizon_is_told(tmp_path, localizer, monkeypatch):
    upward = np.eye(4)  # a camera that looks up
    upward[2, 3] = 1.0
    monkeypatch.setattr(_Geometry, "camera", lambda *_: upward)
    entry = entry_of(tmp_path, clicks={"cube": {"front": [320, 240]}}, positions={"target": [0.2, 0.1, 0.001]})
    photos = read_photos(write(tmp_path, [entry]), localizer, TWIN)
    assert photos.notes == ("The click on cube in photo 1 is above the horizon, and was not used.",)
    assert np.isnan(photos.truth[0, :3]).all()
    upward[2, 3] = -1.0  # below the table
    assert np.isfinite(read_photos(tmp_path, localizer, TWIN).truth[:, [0, 1, 3, 4, 5]]).all()


def entry_of(folder, **changes):
    good = {"images": {"front": save_photo(folder, "p.png")}, "joints": [0.0] * 6, "positions": {"cube": [0.2, 0, 0]}}
    return {**good, **changes}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"images": {"side": "p.png"}}, UnknownNameError, "camera 'side'"),
        ({"images": {"front": "none.png"}}, InputError, "none.png does not exist"),
        ({"images": {"front": "grey.png"}}, InputError, "no colours"),
        ({"images": {"front": "small.png"}}, InputError, "20×10 pixels; at least 32×24"),
        ({"images": {"front": "text.png"}}, InputError, "not a readable photo"),
        ({"joints": [0.0] * 5}, InputError, "5 joint readings; give 6"),
        ({"positions": {"ball": [0, 0, 0]}}, UnknownNameError, "body 'ball'"),
        ({"positions": {}}, InputError, "no label of cube, target"),
        ({"clicks": {"cube": {"wrist": [1, 2]}}}, UnknownNameError, "camera 'wrist'"),
        (
            {"clicks": {"cube": {"front": [20, 500]}}},
            InputError,
            r"\[20.0, 500.0\] on cube is outside p.png",
        ),
        ({"typo": 1}, InputError, "typo"),
    ],
)
def test_wrong_photos_and_labels_are_named(tmp_path, localizer, change, error, message):
    save_photo(tmp_path, "grey.png", mode="L")
    save_photo(tmp_path, "small.png", (10, 20))
    (tmp_path / "text.png").write_text("not an image")
    with pytest.raises(error, match=message):
        read_photos(write(tmp_path, [entry_of(tmp_path, **change)]), localizer, TWIN)


def test_a_folder_without_a_list_says_what_it_needs(tmp_path, localizer):
    with pytest.raises(InputError, match=r"photos\.yaml does not exist"):
        read_photos(tmp_path, localizer, TWIN)


def test_localizers_of_other_bodies_are_not_ranked(tmp_path, localizer):
    eyes = saved_localizer(tmp_path / "seeing") / "eyes"
    localizer.save(tmp_path / "both")
    request = LocalizeScoreRequest(localizers=(eyes, tmp_path / "both"), photos=eyes.parent / "photos")
    with pytest.raises(InputError, match="both localizes other values than .*eyes"):
        run_localize_score(request, said()[0])
