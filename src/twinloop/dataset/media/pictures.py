"""Pictures of episodes, whichever way they are stored: what a measurement samples, and what it leaves out.

An episode is read when it is asked for and then forgotten, so memory does not grow with the number of episodes.
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
LEAST_EPISODES = 4  # relabelling 4 against 4 reaches p = 2/70; 3 against 3 only 2/20, which never is below 0.05
_STREAM = "gap/vision/frames"
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
_ARRAYS = (".npy", ".npz")
_MOST_ARRAY_BYTES = 4 << 30  # of an npz file, which is unpacked whole; an npy file is read from the disk
_PLAIN = 0.5  # standard deviation in 8-bit steps below which a picture is one colour: rounding alone makes 0.29


@dataclass(frozen=True, kw_only=True)
class EpisodeImages:
    """One episode: its name, how many pictures it has, and ``read(rows)`` that gives some, ``(n, h, w, 3)`` sRGB."""

    name: str
    frames: int
    read: Callable[[Sequence[int]], Pictures]


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """Pictures of one camera, episode by episode.

    ``described`` is how many episodes the source says it has, where some of them lack pictures.
    """

    name: str
    camera: str
    episodes: tuple[EpisodeImages, ...]
    described: int = 0

    def __len__(self) -> int:
        return len(self.episodes)

    def require(self, least: int = LEAST_EPISODES) -> None:
        """Refuse fewer episodes than a test needs.

        Raises:
            InputError: says how many there are and how many are needed.
        """
        if len(self) >= least:
            return
        of = f" (of {self.described} that it describes)" if self.described > len(self) else ""
        raise InputError(
            f"{self.name} has pictures of {len(self)} episode{'s' * (len(self) != 1)}{of} from {self.camera}; a test "
            f"that takes episodes for its unit needs at least {least} on each side. Pictures of one episode resemble "
            "each other, so more of them do not help. Record or generate more episodes."
        )


@dataclass(frozen=True, kw_only=True)
class ImageSample:
    """The pictures that were taken of one episode, and how many were left out because they are one single colour."""

    name: str
    pictures: Pictures
    plain: int


def samples(pictures: ImageSet, frames: int, *, seed: int = 0, size: Size | None = None) -> Iterator[ImageSample]:
    """Some pictures of every episode in turn, at most ``frames`` of each, chosen by seed without replacement.

    Args:
        pictures: where they come from.
        frames: how many of each episode.
        seed: the run seed; which frames are taken depends on it and on the episode's place.
        size: height and width to average them down (or stretch them) to; None leaves them as they are.

    Raises:
        InputError: fewer than one picture is asked for, or pictures differ in size or are none in three colours.
    """
    if frames < 1:
        raise InputError(f"{frames} pictures of each episode say nothing. Take at least one.")
    shape: tuple[int, ...] | None = None
    for place, episode in enumerate(pictures.episodes):
        count = min(frames, episode.frames)
        rows = np.sort(generator(seed, _STREAM, place).choice(episode.frames, size=count, replace=False))
        seen = checked(episode.read(rows.tolist()), where=f"{pictures.name}, {episode.name}")
        if shape is not None and seen.shape[1:] != shape and size is None:
            raise InputError(
                f"{pictures.name}: pictures of {episode.name} are {_size(seen.shape[1:])}, those before "
                f"{_size(shape)}. Give --size, to which all are scaled, or leave such episodes out."
            )
        shape = seen.shape[1:]
        seen = resized(seen, size) if size is not None else seen
        kept = seen[seen.std(axis=(1, 2)).max(axis=-1) >= _PLAIN]
        yield ImageSample(name=episode.name, pictures=kept, plain=len(seen) - len(kept))


def checked(pictures: NDArray, *, where: str) -> Pictures:
    """Pictures ``(n, h, w, 3)`` uint8 as they are.

    Raises:
        InputError: another shape, type or number of colours.
    """
    if pictures.ndim != 4 or pictures.shape[-1] != 3 or pictures.dtype != np.uint8:
        raise InputError(
            f"{where}: pictures are {pictures.dtype} of shape {pictures.shape}; wanted are uint8 sRGB of shape (n, "
            "height, width, 3). Give colour pictures with three channels and values from 0 to 255."
        )
    return pictures


def resized(pictures: Pictures, size: Size) -> Pictures:
    """Pictures in another size ``(height, width)``: each pixel the mean of the area that it covers."""
    from PIL import Image

    if pictures.shape[1:3] == size:
        return pictures
    made = np.empty((len(pictures), *size, 3), dtype=np.uint8)
    for row, picture in enumerate(pictures):
        made[row] = np.asarray(Image.fromarray(picture).resize((size[1], size[0]), Image.Resampling.BOX))
    return made


def picture_arrays(name: str, episodes: Sequence[Pictures], *, camera: str = "memory") -> ImageSet:
    """Pictures that are in memory, one array ``(n, h, w, 3)`` uint8 per episode.

    Raises:
        InputError: one of them is no pictures.
    """
    whole = [checked(np.asarray(array), where=f"{name}, episode {i}") for i, array in enumerate(episodes)]
    rows = [
        EpisodeImages(name=f"episode {i}", frames=len(array), read=array.__getitem__) for i, array in enumerate(whole)
    ]
    return ImageSet(name=name, camera=camera, episodes=tuple(row for row in rows if row.frames))


def picture_folder(folder: Path) -> ImageSet:
    """A folder with one folder of pictures, or one array ``.npy`` or ``.npz``, for each episode, in order of names.

    Raises:
        InputError: it holds neither.
    """
    episodes = []
    for place in sorted(folder.iterdir()):
        if place.is_dir():
            files = sorted(file for file in place.iterdir() if file.suffix.lower() in _SUFFIXES)
            if files:
                episodes.append(EpisodeImages(name=place.name, frames=len(files), read=_files_reader(files)))
        elif place.suffix in _ARRAYS:
            array = _array(place)
            episodes.append(EpisodeImages(name=place.stem, frames=len(array), read=_array_reader(place)))
    if not episodes:
        loose = sum(file.suffix.lower() in _SUFFIXES for file in folder.iterdir())
        raise InputError(
            f"{folder} holds {loose} pictures and no episodes. Give a folder with one folder of pictures "
            f"({', '.join(_SUFFIXES)}) or one array (.npy, .npz) for each episode, or a LeRobot dataset."
        )
    return ImageSet(name=str(folder), camera="pictures", episodes=tuple(episodes))


def camera_named(camera: str | None, cameras: Sequence[str], *, where: str) -> str:
    """The camera that is asked for, or the only one.

    Raises:
        UnknownNameError: there is none of that name.
        InputError: there are none, or several and none is asked for.
    """
    if not cameras:
        raise InputError(f"{where} has no pictures: none of its features is a video or an image.")
    if camera is None and len(cameras) > 1:
        raise InputError(f"{where} has the cameras {', '.join(cameras)}. Say which, as in --camera {cameras[0]}.")
    chosen = cameras[0] if camera is None else camera
    if chosen not in cameras:
        raise UnknownNameError("camera", chosen, cameras, where=where)
    return chosen


def decoded(source: Path | bytes, *, where: str) -> Pictures:
    """One stored picture ``(h, w, 3)``.

    Raises:
        InputError: it cannot be read, or is not in three colours.
    """
    import io

    from PIL import Image, UnidentifiedImageError

    try:
        if isinstance(source, Path):
            require_regular(source)
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                size = f"{picture.width} × {picture.height}"
                raise InputError(f"{where} has {size} pixels, and at most {MOST_PIXELS:,} are read. Make it smaller.")
            if picture.mode != "RGB":
                raise InputError(
                    f"{where} is a picture of mode {picture.mode}, not of three colours. Convert it to RGB."
                )
            return np.asarray(picture)
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise InputError(f"{where} cannot be read as a picture ({error}).") from error


def stacked(pictures: Sequence[Pictures], *, where: str) -> Pictures:
    """Pictures of one episode in one array.

    Raises:
        InputError: they differ in size.
    """
    sizes = {picture.shape for picture in pictures}
    if len(sizes) > 1:
        raise InputError(f"{where}: pictures of several sizes, {' and '.join(sorted(_size(s) for s in sizes))}.")
    return np.stack(pictures)


def _files_reader(files: Sequence[Path]) -> Callable[[Sequence[int]], Pictures]:
    def read(rows: Sequence[int]) -> Pictures:
        return stacked([decoded(files[row], where=str(files[row])) for row in rows], where=str(files[0].parent))

    return read


def _array_reader(file: Path) -> Callable[[Sequence[int]], Pictures]:
    return lambda rows: np.array(_array(file)[list(rows)])


def _array(file: Path) -> NDArray:
    """The array of a file, on disk where it can stay there.

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
            raise InputError(f"{file} holds the arrays {', '.join(arrays)}. Give one array of pictures.")
        held = next(iter(arrays.values()))
    if held.ndim != 4:
        raise InputError(f"{file} holds an array of shape {held.shape}. Give pictures (n, height, width, 3).")
    return held


def _size(shape: Sequence[int]) -> str:
    return f"{shape[1]}x{shape[0]}"
