"""Read images of episodes from videos, tables, folders or memory, and sample them for measurements.

An episode is read when it is needed and then released, so memory does not grow with the number of episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import IMAGES, Contract
from twinloop.core.documents import MAX_PIXELS, open_regular, read_arrays, require_plain_array, require_regular
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.seeds import generator

Images = NDArray[np.uint8]
Size = tuple[int, int]  # height, width in pixels
LEAST_EPISODES = 4  # a permutation test of 4 against 4 reaches p = 2/70; 3 against 3 only 2/20, never below 0.05
_STREAM = "gap/vision/frames"
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
_ARRAYS = (".npy", ".npz")
_MOST_ARRAY_BYTES = 4 << 30  # of an npz file, which is unpacked into memory; an npy file is read from the disk
_PLAIN = 0.5  # standard deviation in 8-bit steps below which an image has a single colour; rounding alone gives 0.29


@dataclass(frozen=True, kw_only=True)
class EpisodeImages:
    """Images of one episode, read on demand.

    Attributes:
        name: Name of the episode for messages.
        frames: Number of images.
        read: Function that returns the images with the given numbers, shape ``(n, height, width, 3)``, 8-bit sRGB.
    """

    name: str
    frames: int
    read: Callable[[Sequence[int]], Images]


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """Images of one camera, by episode.

    Attributes:
        name: Name of the source, such as its path.
        camera: Name of the camera.
        episodes: The episodes that have images.
        described: Number of all episodes in the metadata of the source, including episodes that have no images.
    """

    name: str
    camera: str
    episodes: tuple[EpisodeImages, ...]
    described: int = 0

    def __len__(self) -> int:
        return len(self.episodes)

    def require_episodes(self, least: int = LEAST_EPISODES) -> None:
        """Check that there are at least ``least`` episodes with images (by default 4).

        With fewer than 4 episodes on each side, a permutation test of episodes cannot reach p < 0.05.

        Raises:
            InputError: If there are fewer; the message gives the present and the required number.
        """
        if len(self) >= least:
            return
        of = f" (of {self.described} in its metadata)" if self.described > len(self) else ""
        raise InputError(
            f"{self.name} has images of {len(self)} episode{'s' * (len(self) != 1)}{of} from {self.camera}; a test "
            f"that compares episodes needs at least {least} on each side. Images of one episode are similar to "
            "each other, so more of them do not replace episodes. Record or generate more episodes."
        )


@dataclass(frozen=True, kw_only=True)
class ImageSample:
    """Images sampled from one episode.

    Attributes:
        name: Name of the episode.
        images: The sampled images, shape ``(n, height, width, 3)``.
        plain: Number of images that were omitted because they have a single colour.
    """

    name: str
    images: Images
    plain: int


def sample_images(images: ImageSet, frames: int, *, seed: int = 0, size: Size | None = None) -> Iterator[ImageSample]:
    """Yield random images of each episode in turn, sampled without replacement.

    Args:
        images: The images to sample from.
        frames: Largest number of images per episode.
        seed: Run seed. The sampled frames depend on it and on the position of the episode.
        size: Height and width in px to which images are scaled; None keeps their size.

    Raises:
        InputError: If ``frames`` is less than one, images differ in size, or images do not have three colour channels.
    """
    if frames < 1:
        raise InputError(f"{frames} images per episode is too few. Take at least one.")
    shape: tuple[int, ...] | None = None
    for place, episode in enumerate(images.episodes):
        count = min(frames, episode.frames)
        rows = np.sort(generator(seed, _STREAM, place).choice(episode.frames, size=count, replace=False))
        seen = check_images(episode.read(rows.tolist()), where=f"{images.name}, {episode.name}")
        if shape is not None and seen.shape[1:] != shape and size is None:
            raise InputError(
                f"{images.name}: images of {episode.name} are {_format_size(seen.shape[1:])}, earlier ones "
                f"{_format_size(shape)}. Give --size to scale all images, or leave such episodes out."
            )
        shape = seen.shape[1:]
        seen = resize_images(seen, size) if size is not None else seen
        kept = seen[seen.std(axis=(1, 2)).max(axis=-1) >= _PLAIN]
        yield ImageSample(name=episode.name, images=kept, plain=len(seen) - len(kept))


def check_images(images: NDArray, *, where: str) -> Images:
    """Check that images are uint8 of shape ``(n, height, width, 3)``, and return them.

    Raises:
        InputError: If the shape or the type is different.
    """
    if images.ndim != 4 or images.shape[-1] != 3 or images.dtype != np.uint8:
        raise InputError(
            f"{where}: images are {images.dtype} of shape {images.shape}; they must be uint8 sRGB of shape (n, "
            "height, width, 3). Give colour images with three channels and values from 0 to 255."
        )
    return images


def resize_images(images: Images, size: Size) -> Images:
    """Resize images to ``(height, width)``; each new pixel is the mean of the area that it covers (box filter)."""
    from PIL import Image

    if images.shape[1:3] == size:
        return images
    made = np.empty((len(images), *size, 3), dtype=np.uint8)
    for row, image in enumerate(images):
        made[row] = np.asarray(Image.fromarray(image).resize((size[1], size[0]), Image.Resampling.BOX))
    return made


def fit_images(images: Images, size: Size) -> Images:
    """Cut images ``(n, height, width, 3)`` to the aspect ratio of ``size`` around their middle, and reduce them to it.

    Raises:
        InputError: If the images are smaller than ``size``.
    """
    height, width = images.shape[1:3]
    if height < size[0] or width < size[1]:
        raise InputError(f"An image has {width}×{height} pixels; at least {size[1]}×{size[0]} are needed.")
    scale = min(height / size[0], width / size[1])
    rows, columns = round(size[0] * scale), round(size[1] * scale)
    top, left = (height - rows) // 2, (width - columns) // 2
    return resize_images(images[:, top : top + rows, left : left + columns], size)


def fit_observation(observation: Mapping[str, NDArray], contract: Contract) -> dict[str, NDArray]:
    """Return an observation of n robots, by LeRobot's names, with the images that a policy reads in its size.

    Images of other cameras are left out; missing ones are not noticed.

    Raises:
        InputError: If an image is smaller than that of the policy.
    """
    sizes = {f"{IMAGES}{name}": size for name, size in contract.cameras.items()}
    kept = {key: rows for key, rows in observation.items() if key in sizes or not key.startswith(IMAGES)}
    return {key: fit_images(rows, sizes[key]) if key in sizes else rows for key, rows in kept.items()}


def images_from_arrays(name: str, episodes: Sequence[Images], *, camera: str = "memory") -> ImageSet:
    """Return an image set of arrays in memory.

    Args:
        name: Name of the set for messages.
        episodes: One uint8 array ``(n, height, width, 3)`` per episode; empty arrays are omitted.
        camera: Name of the camera for messages.

    Raises:
        InputError: If an array has another shape or type.
    """
    whole = [check_images(np.asarray(array), where=f"{name}, episode {i}") for i, array in enumerate(episodes)]
    rows = [
        EpisodeImages(name=f"episode {i}", frames=len(array), read=array.__getitem__) for i, array in enumerate(whole)
    ]
    return ImageSet(name=name, camera=camera, episodes=tuple(row for row in rows if row.frames))


def open_image_folder(folder: Path) -> ImageSet:
    """Open a folder that has for each episode a subfolder of images, or an array file (``.npy`` or ``.npz``).

    The episodes are sorted by name.

    Raises:
        InputError: If the folder has no such episodes.
    """
    episodes = []
    for place in sorted(folder.iterdir()):
        if place.is_dir():
            files = sorted(file for file in place.iterdir() if file.suffix.lower() in _SUFFIXES)
            if files:
                episodes.append(EpisodeImages(name=place.name, frames=len(files), read=_files_reader(files)))
        elif place.suffix in _ARRAYS:
            array = _open_array(place)
            episodes.append(EpisodeImages(name=place.stem, frames=len(array), read=_array_reader(place)))
    if not episodes:
        loose = sum(file.suffix.lower() in _SUFFIXES for file in folder.iterdir())
        raise InputError(
            f"{folder} has {loose} images but no episodes. Give a folder with one subfolder of images "
            f"({', '.join(_SUFFIXES)}) or one array (.npy, .npz) for each episode, or a LeRobot dataset."
        )
    return ImageSet(name=str(folder), camera="images", episodes=tuple(episodes))


def choose_camera(camera: str | None, cameras: Sequence[str], *, where: str) -> str:
    """Return the given camera name; if it is None, return the only camera.

    Args:
        camera: Name of a camera, or None.
        cameras: Names of the existing cameras.
        where: Name of the source for messages.

    Raises:
        UnknownNameError: If there is no camera of that name.
        InputError: If there are no cameras, or several and ``camera`` is None.
    """
    if not cameras:
        raise InputError(f"{where} has no images: none of its features is a video or an image.")
    if camera is None and len(cameras) > 1:
        raise InputError(f"{where} has the cameras {', '.join(cameras)}. Choose one, as in --camera {cameras[0]}.")
    chosen = cameras[0] if camera is None else camera
    if chosen not in cameras:
        raise UnknownNameError("camera", chosen, cameras, where=where)
    return chosen


def decode_image(source: Path | bytes, *, where: str) -> Images:
    """Decode one image file, or its bytes, to shape ``(height, width, 3)``.

    Raises:
        InputError: If the image cannot be read, is too large, or does not have three colour channels.
    """
    import io

    from PIL import Image, UnidentifiedImageError

    try:
        if isinstance(source, Path):
            require_regular(source)
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            if image.width * image.height > MAX_PIXELS:
                size = f"{image.width} × {image.height}"
                raise InputError(f"{where} has {size} pixels; at most {MAX_PIXELS:,} are read. Make it smaller.")
            if image.mode != "RGB":
                raise InputError(f"{where} is an image of mode {image.mode}, not RGB. Convert it to RGB.")
            return np.asarray(image)
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise InputError(f"{where} cannot be read as an image ({error}).") from error


def stack_images(images: Sequence[Images], *, where: str) -> Images:
    """Stack the images of one episode into one array ``(n, height, width, 3)``.

    Raises:
        InputError: If the images differ in size.
    """
    sizes = {image.shape for image in images}
    if len(sizes) > 1:
        raise InputError(f"{where}: images of several sizes, {' and '.join(sorted(_format_size(s) for s in sizes))}.")
    return np.stack(images)


def _files_reader(files: Sequence[Path]) -> Callable[[Sequence[int]], Images]:
    def read(rows: Sequence[int]) -> Images:
        return stack_images(
            [decode_image(files[row], where=str(files[row])) for row in rows], where=str(files[0].parent)
        )

    return read


def _array_reader(file: Path) -> Callable[[Sequence[int]], Images]:
    return lambda rows: np.array(_open_array(file)[list(rows)])


def _open_array(file: Path) -> NDArray:
    """Open the array of an ``.npy`` or ``.npz`` file; an ``.npy`` file is read from disk when needed.

    Raises:
        InputError: If the file cannot be read, has several arrays, or its array is not four-dimensional.
    """
    if file.suffix == ".npy":
        with open_regular(file) as opened:
            require_plain_array(opened, file.stat().st_size, where=str(file))
        held = np.load(file, mmap_mode="r")
    else:
        arrays = read_arrays(file, max_bytes=_MOST_ARRAY_BYTES, where=str(file))
        if len(arrays) != 1:
            raise InputError(f"{file} holds the arrays {', '.join(arrays)}. Give one array of images.")
        held = next(iter(arrays.values()))
    if held.ndim != 4:
        raise InputError(f"{file} holds an array of shape {held.shape}. Give images (n, height, width, 3).")
    return held


def _format_size(shape: Sequence[int]) -> str:
    return f"{shape[1]}x{shape[0]}"
