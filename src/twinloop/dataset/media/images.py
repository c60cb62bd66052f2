"""Read images of episodes from any storage, and sample them for measurements.

An episode is read when it is needed and then released, so memory does not grow with the number of episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinloop.core.documents import MOST_PIXELS, open_regular, read_arrays, require_plain_array, require_regular
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.seeds import generator

Pictures = NDArray[np.uint8]
Size = tuple[int, int]  # height, width in pixels
LEAST_EPISODES = 4  # a permutation test of 4 against 4 reaches p = 2/70; 3 against 3 only 2/20, never below 0.05
_STREAM = "gap/vision/frames"
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
_ARRAYS = (".npy", ".npz")
_MOST_ARRAY_BYTES = 4 << 30  # of an npz file, which is unpacked into memory; an npy file is read from the disk
_PLAIN = 0.5  # standard deviation in 8-bit steps below which an image has a single colour; rounding alone gives 0.29


@dataclass(frozen=True, kw_only=True)
class EpisodeImages:
    """One episode: its name, its number of images, and ``read(rows)``, which returns sRGB images ``(n, h, w, 3)``."""

    name: str
    frames: int
    read: Callable[[Sequence[int]], Pictures]


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """Images of one camera, episode by episode.

    ``described`` is the number of episodes in the source's metadata; some of them may have no images.
    """

    name: str
    camera: str
    episodes: tuple[EpisodeImages, ...]
    described: int = 0

    def __len__(self) -> int:
        return len(self.episodes)

    def require_episodes(self, least: int = LEAST_EPISODES) -> None:
        """Check that there are enough episodes for a test.

        Raises:
            InputError: names the present and the required number.
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
    """Images sampled from one episode, and the number of images left out because they have a single colour."""

    name: str
    pictures: Pictures
    plain: int


def sample_images(pictures: ImageSet, frames: int, *, seed: int = 0, size: Size | None = None) -> Iterator[ImageSample]:
    """Yield up to ``frames`` random images of each episode in turn, drawn without replacement.

    Args:
        pictures: the images to sample from.
        frames: number of images per episode.
        seed: run seed; the drawn frames depend on it and on the episode's position.
        size: height and width to which images are averaged down (or stretched); None keeps their size.

    Raises:
        InputError: ``frames`` is less than one, images differ in size, or they do not have three colour channels.
    """
    if frames < 1:
        raise InputError(f"{frames} images per episode is too few. Take at least one.")
    shape: tuple[int, ...] | None = None
    for place, episode in enumerate(pictures.episodes):
        count = min(frames, episode.frames)
        rows = np.sort(generator(seed, _STREAM, place).choice(episode.frames, size=count, replace=False))
        seen = check_images(episode.read(rows.tolist()), where=f"{pictures.name}, {episode.name}")
        if shape is not None and seen.shape[1:] != shape and size is None:
            raise InputError(
                f"{pictures.name}: images of {episode.name} are {_format_size(seen.shape[1:])}, earlier ones "
                f"{_format_size(shape)}. Give --size to scale all images, or leave such episodes out."
            )
        shape = seen.shape[1:]
        seen = resize_images(seen, size) if size is not None else seen
        kept = seen[seen.std(axis=(1, 2)).max(axis=-1) >= _PLAIN]
        yield ImageSample(name=episode.name, pictures=kept, plain=len(seen) - len(kept))


def check_images(pictures: NDArray, *, where: str) -> Pictures:
    """Check that images are uint8 of shape ``(n, h, w, 3)``, and return them.

    Raises:
        InputError: another shape, type or number of channels.
    """
    if pictures.ndim != 4 or pictures.shape[-1] != 3 or pictures.dtype != np.uint8:
        raise InputError(
            f"{where}: images are {pictures.dtype} of shape {pictures.shape}; they must be uint8 sRGB of shape (n, "
            "height, width, 3). Give colour images with three channels and values from 0 to 255."
        )
    return pictures


def resize_images(pictures: Pictures, size: Size) -> Pictures:
    """Resize images to ``(height, width)``: each pixel is the mean of the area it covers."""
    from PIL import Image

    if pictures.shape[1:3] == size:
        return pictures
    made = np.empty((len(pictures), *size, 3), dtype=np.uint8)
    for row, picture in enumerate(pictures):
        made[row] = np.asarray(Image.fromarray(picture).resize((size[1], size[0]), Image.Resampling.BOX))
    return made


def images_from_arrays(name: str, episodes: Sequence[Pictures], *, camera: str = "memory") -> ImageSet:
    """Return a set of images in memory, one array ``(n, h, w, 3)`` uint8 per episode.

    Raises:
        InputError: an array has another shape or type.
    """
    whole = [check_images(np.asarray(array), where=f"{name}, episode {i}") for i, array in enumerate(episodes)]
    rows = [
        EpisodeImages(name=f"episode {i}", frames=len(array), read=array.__getitem__) for i, array in enumerate(whole)
    ]
    return ImageSet(name=name, camera=camera, episodes=tuple(row for row in rows if row.frames))


def open_image_folder(folder: Path) -> ImageSet:
    """Open a folder with one subfolder of images, or one array ``.npy`` or ``.npz``, per episode, in order of names.

    Raises:
        InputError: it has neither.
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
    return ImageSet(name=str(folder), camera="pictures", episodes=tuple(episodes))


def choose_camera(camera: str | None, cameras: Sequence[str], *, where: str) -> str:
    """Return the given camera, or the only one if none is given.

    Raises:
        UnknownNameError: there is no camera of that name.
        InputError: there are no cameras, or several and none is given.
    """
    if not cameras:
        raise InputError(f"{where} has no images: none of its features is a video or an image.")
    if camera is None and len(cameras) > 1:
        raise InputError(f"{where} has the cameras {', '.join(cameras)}. Choose one, as in --camera {cameras[0]}.")
    chosen = cameras[0] if camera is None else camera
    if chosen not in cameras:
        raise UnknownNameError("camera", chosen, cameras, where=where)
    return chosen


def decode_image(source: Path | bytes, *, where: str) -> Pictures:
    """Decode one stored image to ``(h, w, 3)``.

    Raises:
        InputError: it cannot be read, or does not have three colour channels.
    """
    import io

    from PIL import Image, UnidentifiedImageError

    try:
        if isinstance(source, Path):
            require_regular(source)
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                size = f"{picture.width} × {picture.height}"
                raise InputError(f"{where} has {size} pixels; at most {MOST_PIXELS:,} are read. Make it smaller.")
            if picture.mode != "RGB":
                raise InputError(f"{where} is an image of mode {picture.mode}, not RGB. Convert it to RGB.")
            return np.asarray(picture)
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise InputError(f"{where} cannot be read as an image ({error}).") from error


def stack_images(pictures: Sequence[Pictures], *, where: str) -> Pictures:
    """Stack the images of one episode into one array.

    Raises:
        InputError: they differ in size.
    """
    sizes = {picture.shape for picture in pictures}
    if len(sizes) > 1:
        raise InputError(f"{where}: images of several sizes, {' and '.join(sorted(_format_size(s) for s in sizes))}.")
    return np.stack(pictures)


def _files_reader(files: Sequence[Path]) -> Callable[[Sequence[int]], Pictures]:
    def read(rows: Sequence[int]) -> Pictures:
        return stack_images(
            [decode_image(files[row], where=str(files[row])) for row in rows], where=str(files[0].parent)
        )

    return read


def _array_reader(file: Path) -> Callable[[Sequence[int]], Pictures]:
    return lambda rows: np.array(_open_array(file)[list(rows)])


def _open_array(file: Path) -> NDArray:
    """Open the array of a file; an npy file stays on disk.

    Raises:
        InputError: it cannot be read, or holds several arrays.
    """
    if file.suffix == ".npy":
        with open_regular(file) as opened:
            require_plain_array(opened, file.stat().st_size, where=str(file))
        held = np.load(file, mmap_mode="r")
    else:
        arrays = read_arrays(file, most=_MOST_ARRAY_BYTES, where=str(file))
        if len(arrays) != 1:
            raise InputError(f"{file} holds the arrays {', '.join(arrays)}. Give one array of images.")
        held = next(iter(arrays.values()))
    if held.ndim != 4:
        raise InputError(f"{file} holds an array of shape {held.shape}. Give images (n, height, width, 3).")
    return held


def _format_size(shape: Sequence[int]) -> str:
    return f"{shape[1]}x{shape[0]}"
