"""Score localizers on a person's own photos of a robot, rank them, and correct one for this robot.

Photos and their labels are listed in a file ``photos.yaml``. The position of a body is known from the readings of
the joints when the tool touched it (``touched``), from clicks on its centre in an image (``clicks``), or given
(``positions``). A click is a ray; the body is where the ray meets the height at which it rests in the twin. The height
itself stays unknown: it would become a correction of the localizer's heights, and policies stand errors of few
millimetres there. Where the tool itself was clicked in six photos or more of a camera, the pose of this camera is
estimated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray
from pydantic import Field
from scipy.optimize import least_squares
from scipy.spatial.transform import Rotation

from twinloop.core.contract import ENVIRONMENT, IMAGES, STATE
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.units import UnitMap
from twinloop.core.yaml_documents import load_yaml
from twinloop.dataset.media.images import fit_images
from twinloop.policies.localizer import Localizer
from twinloop.render.cameras import opencv_pose
from twinloop.render.scene import camera_ids
from twinloop.rollout.camera import TwinCamera, camera_sensors
from twinloop.simulate.protocol import STATE_SPEC
from twinloop.stats import bootstrap_paired
from twinloop.tasks import open_task
from twinloop.tasks.protocol import has_tracked_values
from twinloop.train.config import StrictConfig
from twinloop.train.localize import measure_distances, measure_errors, position_columns
from twinloop.train.tool import ToolKinematics
from twinloop.twin import Twin

TOOL = "tool"  # name of the tool in clicks
_LEAST_CLICKS = 6  # clicks of the tool from which the pose of a camera is estimated
_CLICK = 0.01  # rad: error of a click of the tool, of a few pixels, and of the arm's zeros, of a few millimetres
# How far a camera may be from where the twin has it: m and rad. Our choice; clicks in a small part of the image hardly
# tell a shift from a turn, and this chooses between them.
_MOVED = np.array([0.03, 0.03, 0.03, 0.07, 0.07, 0.07])
_SAME_M = 2e-3  # difference of two localizers' mean errors that does not matter for the choice: our choice
_UNSEEN = 0.7  # of the standard deviation over all training worlds: the images then tell nothing
_BYTES = 100 << 20  # of a photo's file
_PIXELS = 60_000_000  # of a photo
Point = tuple[float, float, float]
Numbers = tuple[float, ...]


class PhotoEntry(StrictConfig):
    """One moment: an image of each camera, the readings of the joints, and the known positions of bodies.

    Attributes:
        images: file of the image by camera, relative to the folder of ``photos.yaml``.
        joints: readings of the joints in the order of the twin.
        touched: readings of the joints when the tool was at the body's centre, by body.
        clicks: column and row of the body's centre in pixels of the photo, by body and camera; ``tool`` for the tool.
        positions: position of the body in the frame of the twin's world in m, by body.
    """

    images: dict[str, str] = Field(min_length=1)
    joints: Numbers
    touched: dict[str, Numbers] = Field(default_factory=dict)
    clicks: dict[str, dict[str, tuple[float, float]]] = Field(default_factory=dict)
    positions: dict[str, Point] = Field(default_factory=dict)


class PhotosFile(StrictConfig):
    """Content of ``photos.yaml``.

    Attributes:
        units: unit of the joints (rad, deg, …), one for all or one per joint; by default the twin's.
        photos: the photos.
    """

    units: tuple[str, ...] | str | None = None
    photos: tuple[PhotoEntry, ...] = Field(min_length=1)


@dataclass(frozen=True, kw_only=True)
class LabelledPhotos:
    """Photos of a robot, as a localizer reads them; n photos.

    Attributes:
        observation: images and joint readings by key, one row per photo.
        truth: position of each tracked body, ``(n, d)`` in the order of the tracked values; NaN where it is unknown.
        names: names of the d values.
        files: names of the photos, for messages.
        notes: sentences for people about the labels.
    """

    observation: Mapping[str, NDArray[Any]]
    truth: NDArray[np.float64]
    names: tuple[str, ...]
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()


def read_photos(path: Path, localizer: Localizer, twin: Twin) -> LabelledPhotos:
    """Read ``photos.yaml`` (or the folder with it), and prepare its photos for a localizer.

    Photos of other sizes are cut to the localizer's aspect ratio around their middle and reduced.

    Args:
        path: the file or its folder.
        localizer: the localizer.
        twin: twin of the robot, for its geometry and its cameras.

    Raises:
        InputError: If a file, a camera or a label is missing or wrong, or a photo is too small, grey or no photo.
        UnknownNameError: If a camera or a body does not exist.
    """
    file = path / "photos.yaml" if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"{file} does not exist. It lists the photos and their labels: docs/guides/localize.md.")
    content = PhotosFile.of(load_yaml(file), where=str(file))
    names, wanted = localizer.settings.tracked, localizer.contract.cameras
    bodies = tuple(dict.fromkeys(name.partition(".")[0] for name in names))
    units = _read_units(content.units, twin)
    for number, entry in enumerate(content.photos):
        _check_entry(entry, f"{file}, photo {number + 1}", wanted, bodies, len(twin.robot.joints))
    joints = np.array([entry.joints for entry in content.photos])
    photos = [{name: _open_photo(file.parent / entry.images[name]) for name in entry.images}
                for entry in content.photos]  # fmt: skip
    geometry = _Geometry(twin)
    clicked = any(body in entry.clicks for entry in content.photos for body in bodies)
    heights = _read_resting_heights(localizer.contract.task, twin) if clicked else {}
    known, notes = _locate_bodies(content.photos, photos, units.to_si(joints), heights, geometry, units, bodies)
    seen: dict[str, NDArray[Any]] = {
        f"{IMAGES}{name}": np.stack([fit_images(shown[name][None], size) for shown in photos])
        for name, size in wanted.items()
    }
    state = localizer.contract.state
    if state is not None:
        seen[STATE] = state.from_si(units.to_si(joints)).astype(np.float32)[:, None]
    truth = np.full((len(photos), len(names)), np.nan)
    for column, name in enumerate(names):
        body, _, axis = name.partition(".")
        if axis in ("x", "y", "z"):
            truth[:, column] = known[body][:, "xyz".index(axis)]
    if not np.isfinite(truth).any():
        raise InputError(f"{file} has no label of {', '.join(bodies)}. Give touched, clicks or positions.")
    shown = tuple(next(iter(entry.images.values())) for entry in content.photos)
    return LabelledPhotos(observation=seen, truth=truth, names=names, files=shown, notes=notes)


def score_photos(localizer: Localizer, photos: LabelledPhotos) -> dict[str, Any]:
    """Return the errors of a localizer on photos, and how well its standard deviations fit them.

    The notes name photos in which the localizer does not see a body, and say if its standard deviations are smaller for
    the photos with red and blue exchanged.
    """
    found, deviation = localizer.estimate_tracked(photos.observation)
    error = found - photos.truth
    known = np.isfinite(error)
    prior = localizer.normalizer.scale(ENVIRONMENT).numpy()
    place = [i for i, name in enumerate(photos.names) if name.rpartition(".")[2] in ("x", "y")]
    unseen = (deviation[:, place] > _UNSEEN * prior[place]).any(axis=1)
    swapped = {key: values[..., ::-1].copy() if key.startswith(IMAGES) else values
               for key, values in photos.observation.items()}  # fmt: skip
    surer = np.log(localizer.estimate_tracked(swapped)[1][:, place] / deviation[:, place]).mean()
    notes = list(photos.notes)
    if unseen.any():
        files = [photos.files[i] for i in np.flatnonzero(unseen)]
        notes.append(f"In {len(files)} photos a body is not seen, such as {', '.join(files[:3])}.")
    if surer < math.log(0.7):
        notes.append("The localizer is surer of the photos with red and blue exchanged: are they BGR?")
    return {
        "bodies": measure_errors(photos.names, found, photos.truth, np.arange(len(found))),
        "inside_95": float((np.abs(error) <= 1.96 * deviation)[known].mean()),
        "photos": len(found),
        "unseen": int(unseen.sum()),
        "errors": _distances(photos, found).tolist(),
        "notes": notes,
    }


def rank_localizers(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Rank localizers by their mean error on the labelled ones of the same photos, and return whether these decide.

    Returns:
        ``order``, the names from the smallest error; ``differences``, for each other than the best the mean difference
        to it with its 95 % interval (paired by photo, in m); and ``decision``: ``best`` if all intervals are above
        zero, ``equal`` if none can be above 2 mm, else ``undecided`` with ``photos``, how many would decide.
    """
    table = np.array([score["errors"] for score in scores.values()])
    errors = dict(zip(scores, table[:, np.isfinite(table).all(axis=0)], strict=True))
    order = sorted(errors, key=lambda name: float(errors[name].mean()))
    best, count = order[0], len(errors[order[0]])
    differences, needed = dict[str, dict[str, float]](), count
    for name in order[1:]:
        interval = bootstrap_paired(errors[best], errors[name])
        estimate, low, high = (float(interval.estimate), float(interval.low), float(interval.high))
        differences[name] = {"estimate": estimate, "low": low, "high": high}
        if low <= 0 and high > _SAME_M:
            half = (high - low) / 2.0
            needed = max(needed, math.ceil(count * (half / max(abs(estimate), _SAME_M)) ** 2))
    rows = list(differences.values())
    decided = "best" if all(row["low"] > 0 for row in rows) else "equal" if needed == count else "undecided"
    mean = {name: float(errors[name].mean()) for name in order}
    return {"order": order, "mean": mean, "differences": differences, "decision": decided, "photos": needed}


def adapt_localizer(localizer: Localizer, photos: LabelledPhotos) -> dict[str, Any]:
    """Correct a localizer for the robot of labelled photos, in place, and return the errors.

    The correction of a body is an affine function of its estimated horizontal position (`Localizer.correction`), not of
    its height, which is the same in most photos. It is shrunk towards no correction (ridge regression); its strength,
    and whether there is one at all, is the one with the smallest leave-one-out error on the photos. Standard
    deviations are then scaled to these errors.

    Returns:
        ``before`` and ``after``: the root mean square error by body in m, ``after`` left out; ``strength`` by body.

    Raises:
        InputError: If no body is labelled in enough photos.
    """
    localizer.correction.zero_()
    found, deviation = localizer.estimate_tracked(photos.observation)
    scale = localizer.normalizer.scale(ENVIRONMENT).numpy().astype(np.float64)
    offset = localizer.normalizer.inverse(ENVIRONMENT, torch.zeros(len(scale))).numpy()
    unit = np.where(scale > 0, scale, 1.0)  # a value that is constant in all worlds has scale 0
    estimate, truth = (found - offset) / unit, (photos.truth - offset) / unit
    correction = np.zeros_like(localizer.correction.numpy())
    report: dict[str, Any] = {"before": {}, "after": {}, "strength": {}}
    for body in dict.fromkeys(name.partition(".")[0] for name in photos.names):
        columns = position_columns(photos.names, body)
        columns = columns[np.isfinite(truth[:, columns]).sum(axis=0) >= _LEAST_ROWS]
        rows = np.flatnonzero(np.isfinite(truth[:, columns]).all(axis=1))
        if not len(columns) or len(rows) < _LEAST_ROWS:
            continue
        flat = columns[[not photos.names[i].endswith(".z") for i in columns]]
        features = np.concatenate([estimate[np.ix_(rows, flat)], np.ones((len(rows), 1))], axis=1)
        residual = truth[np.ix_(rows, columns)] - estimate[np.ix_(rows, columns)]
        choices = [(_leave_one_out(features, residual, ridge) * scale[columns], ridge) for ridge in _RIDGES]
        left, ridge = min(choices, key=lambda choice: float((choice[0] ** 2).sum()))
        change = _solve_ridge(features, residual, ridge)
        correction[np.ix_(columns, flat)] = change[:-1].T
        correction[columns, -1] = change[-1]
        spread = np.sqrt(np.mean((left / deviation[np.ix_(rows, columns)]) ** 2, axis=0))
        localizer.spread[columns] *= torch.from_numpy(np.maximum(spread, 1.0).astype(np.float32))
        report["before"][body] = _root_mean_square(residual * scale[columns])
        report["after"][body] = _root_mean_square(left)
        report["strength"][body] = None if math.isinf(ridge) else ridge
    if not report["before"]:
        raise InputError(f"No body is labelled in {_LEAST_ROWS} photos. Label more; 10 to 20 are a good number.")
    localizer.correction.copy_(torch.from_numpy(correction))
    return report


_RIDGES = (math.inf, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03)  # infinite: no correction
_LEAST_ROWS = 5


def _root_mean_square(errors: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean((errors**2).sum(axis=1))))


def _solve_ridge(features: NDArray[np.float64], target: NDArray[np.float64], ridge: float) -> NDArray[np.float64]:
    """Return the coefficients ``(k, m)`` of a linear regression of targets ``(n, m)`` on features ``(n, k)``."""
    if math.isinf(ridge):
        return np.zeros((features.shape[1], target.shape[1]))
    return np.asarray(
        np.linalg.solve(features.T @ features + ridge * np.eye(features.shape[1]), features.T @ target), float
    )


def _leave_one_out(features: NDArray[np.float64], target: NDArray[np.float64], ridge: float) -> NDArray[np.float64]:
    """Return the error of each row's prediction from the other rows, ``(n, m)``."""
    if math.isinf(ridge):
        return target
    inverse = np.linalg.inv(features.T @ features + ridge * np.eye(features.shape[1]))
    leverage = np.einsum("ni,ij,nj->n", features, inverse, features)
    error = target - features @ _solve_ridge(features, target, ridge)
    return np.asarray(error / (1.0 - leverage)[:, None], dtype=np.float64)


class _Geometry(ToolKinematics):
    """Poses of the tool and of the cameras of a twin whose joints have given positions."""

    def __init__(self, twin: Twin) -> None:
        super().__init__(twin)
        self._sensors = camera_sensors(twin)

    def tool(self, joints: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the position of the tool centre point in the world in m, ``(3,)``, for positions of the joints."""
        return self.locate(joints[None])[0]

    def camera(self, name: str, joints: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the pose of a camera in the world as a matrix ``(4, 4)`` in OpenCV's axes."""
        data, row = self.pose(joints), camera_ids(self.twin.model, [name])[name]
        mujoco.mj_camlight(self.twin.model, data)
        return opencv_pose(data.cam_xpos[row], data.cam_xmat[row])

    def rays(self, name: str, pixels: NDArray[np.float64], height: int, width: int) -> NDArray[np.float64]:
        """Return the directions ``(n, 3)`` in OpenCV's camera axes in which a camera sees pixels ``(n, 2)``."""
        if name not in self._sensors:
            raise InputError(
                f"The twin {self.twin.name} has no camera model of {name}, which clicks need. Add `sensors:`."
            )
        camera = TwinCamera.of(self.twin, self.twin.table(1), self._sensors[name], height=height, width=width)
        target = camera.target
        return camera.lens.rays((pixels - [target.cx, target.cy]) / [target.fx, target.fy])


def _locate_bodies(
    entries: Sequence[PhotoEntry],
    photos: Sequence[Mapping[str, NDArray[np.uint8]]],
    joints: NDArray[np.float64],
    heights: Mapping[str, float],
    geometry: _Geometry,
    units: UnitMap,
    bodies: Sequence[str],
) -> tuple[dict[str, NDArray[np.float64]], tuple[str, ...]]:
    """Return the position of each body in each photo, ``(n, 3)`` in m with NaN where it is unknown, and notes."""
    rays = _click_rays(entries, photos, geometry)
    corrections, notes = _estimate_cameras(rays, joints, geometry)
    known = {body: np.full((len(entries), 3), np.nan) for body in bodies}
    for number, entry in enumerate(entries):
        for body in bodies:
            if body in entry.positions:
                known[body][number] = entry.positions[body]
            elif body in entry.touched:
                known[body][number] = geometry.tool(units.to_si(np.array(entry.touched[body])))
            elif body in entry.clicks and body in heights:
                places = [
                    _meet_plane(
                        geometry.camera(name, joints[number]) @ corrections.get(name, np.eye(4)), ray, heights[body]
                    )
                    for name, ray in ((name, rays[number, body, name]) for name in entry.clicks[body])
                ]
                known[body][number, :2] = np.mean(places, axis=0)[:2]
                if np.isnan(known[body][number, :2]).any():
                    notes.append(f"The click on {body} in photo {number + 1} is above the horizon, and was not used.")
    return known, tuple(notes)


def _read_resting_heights(task_name: str, twin: Twin) -> dict[str, float]:
    """Return the height in m at which each tracked body of a task lies in the nominal world, by body."""
    task = open_task(task_name, twin)
    if not has_tracked_values(task):
        return {}
    start, data = task.reset(twin.table(1), run_seed=0, episodes=[0]), mujoco.MjData(twin.model)
    data.qpos[:], data.mocap_pos[:], data.mocap_quat[:] = start.qpos[0], start.mocap_pos[0], start.mocap_quat[0]
    state = np.empty(mujoco.mj_stateSize(twin.model, STATE_SPEC))
    mujoco.mj_getState(twin.model, data, state, STATE_SPEC)
    values = dict(zip(task.environment_names, task.environment(state).tolist(), strict=True))
    return {name.removesuffix(".z"): value for name, value in values.items() if name.endswith(".z")}


def _click_rays(
    entries: Sequence[PhotoEntry], photos: Sequence[Mapping[str, NDArray[np.uint8]]], geometry: _Geometry
) -> dict[tuple[int, str, str], NDArray[np.float64]]:
    """Return the direction of each click in camera axes, ``(3,)``, by photo, body and camera."""
    rays = dict[tuple[int, str, str], NDArray[np.float64]]()
    for number, entry in enumerate(entries):
        for body, clicks in entry.clicks.items():
            for name, pixel in clicks.items():
                height, width = photos[number][name].shape[:2]
                if not (0 <= pixel[0] <= width and 0 <= pixel[1] <= height):
                    raise InputError(
                        f"The click {list(pixel)} on {body} is outside {entry.images[name]}, which has "
                        f"{width}×{height} pixels. Give its column, then its row."
                    )
                rays[number, body, name] = geometry.rays(name, np.array([pixel]), height, width)[0]
    return rays


def _estimate_cameras(
    rays: Mapping[tuple[int, str, str], NDArray[np.float64]], joints: NDArray[np.float64], geometry: _Geometry
) -> tuple[dict[str, NDArray[np.float64]], list[str]]:
    """Return corrections ``(4, 4)`` of the poses of cameras in which the tool was clicked often enough, and notes."""
    corrections, notes = dict[str, NDArray[np.float64]](), list[str]()
    for name in dict.fromkeys(camera for _, body, camera in rays if body == TOOL):
        numbers = [number for number, body, camera in rays if (body, camera) == (TOOL, name)]
        if len(numbers) < _LEAST_CLICKS:
            notes.append(f"The tool was clicked in {len(numbers)} photos of {name}: its pose is that of the twin.")
            continue
        poses = np.stack([geometry.camera(name, joints[number]) for number in numbers])
        tools = np.stack([geometry.tool(joints[number]) for number in numbers])
        seen = np.stack([rays[number, TOOL, name] for number in numbers])

        def errors(change: NDArray, poses: NDArray = poses, tools: NDArray = tools, seen: NDArray = seen) -> NDArray:
            moved = poses @ _make_pose(change)
            toward = np.einsum("nji,nj->ni", moved[:, :3, :3], tools - moved[:, :3, 3])
            missed = toward / np.linalg.norm(toward, axis=1, keepdims=True) - seen
            return np.concatenate([missed.ravel() / _CLICK, change / _MOVED])

        found = least_squares(errors, np.zeros(6), loss="soft_l1")
        corrections[name] = _make_pose(found.x)
        shift, turn = 1e3 * np.linalg.norm(found.x[:3]), np.degrees(np.linalg.norm(found.x[3:]))
        notes.append(
            f"The camera {name} was moved by {shift:.0f} mm and {turn:.1f}° to fit {len(numbers)} clicks of the tool."
        )
    return corrections, notes


def _make_pose(change: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the matrix ``(4, 4)`` of a translation in m and a rotation vector in rad, ``(6,)``."""
    pose = np.eye(4)
    pose[:3, 3], pose[:3, :3] = change[:3], Rotation.from_rotvec(change[3:]).as_matrix()
    return pose


def _meet_plane(pose: NDArray[np.float64], ray: NDArray[np.float64], height: float) -> NDArray[np.float64]:
    """Return where a ray of a camera meets a horizontal plane, ``(3,)`` in m; NaN if it does not.

    Args:
        pose: pose of the camera in the world, ``(4, 4)``.
        ray: direction in camera axes, ``(3,)``.
        height: height of the plane in m.
    """
    eye, toward = pose[:3, 3], pose[:3, :3] @ ray
    along = (height - eye[2]) / toward[2] if toward[2] else -1.0
    return np.asarray(eye + along * toward if along > 0 else np.full(3, np.nan), dtype=np.float64)


def _distances(photos: LabelledPhotos, found: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean distance of the known bodies from their estimates in each photo, ``(n,)`` in m; NaN without."""
    bodies = dict.fromkeys(name.partition(".")[0] for name in photos.names)
    table = np.stack([measure_distances(photos.names, found, photos.truth, body) for body in bodies])
    known = np.isfinite(table)
    with np.errstate(invalid="ignore"):
        return np.where(known, table, 0.0).sum(axis=0) / known.sum(axis=0)


def _read_units(units: tuple[str, ...] | str | None, twin: Twin) -> UnitMap:
    if units is None:
        return twin.units
    return twin.unit_map([units] * len(twin.robot.joints) if isinstance(units, str) else list(units))


def _check_entry(entry: PhotoEntry, where: str, cameras: Mapping[str, Any], bodies: Sequence[str], joints: int) -> None:
    for name in entry.images:
        if name not in cameras:
            raise UnknownNameError("camera", name, cameras, where=f"the localizer ({where})")
    missing = [name for name in cameras if name not in entry.images]
    if missing:
        raise InputError(f"{where} has no image of {', '.join(missing)}, which the localizer reads.")
    for row in (entry.joints, *entry.touched.values()):
        if len(row) != joints or not np.isfinite(row).all():
            raise InputError(f"{where} has {len(row)} joint readings; give {joints} finite numbers.")
    unknown = [body for body in (*entry.touched, *entry.clicks, *entry.positions) if body not in (*bodies, TOOL)]
    if unknown:
        raise UnknownNameError("body", unknown[0], (*bodies, TOOL), where=where)
    clicked = [name for clicks in entry.clicks.values() for name in clicks if name not in entry.images]
    if clicked:
        raise UnknownNameError("camera", clicked[0], entry.images, where=f"the clicks of {where}")


def _open_photo(path: Path) -> NDArray[np.uint8]:
    """Return the pixels of a photo, ``(height, width, 3)`` uint8 sRGB, upright.

    Raises:
        InputError: If the file is missing, too large, no photo, or has no colours.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if not path.is_file() or path.stat().st_size > _BYTES:
        raise InputError(f"{path} {'is larger than 100 MiB' if path.is_file() else 'does not exist'}.")
    try:
        with Image.open(path) as photo:
            if photo.width * photo.height > _PIXELS:
                raise InputError(f"{path} has {photo.width}×{photo.height} pixels. Reduce it.")
            if photo.mode not in ("RGB", "RGBA", "P"):
                raise InputError(f"{path} has no colours (mode {photo.mode}). Take colour photos, RGB with 8 bits.")
            return np.array(ImageOps.exif_transpose(photo).convert("RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{path} is not a readable photo ({error}). Give PNG or JPEG files.") from error
