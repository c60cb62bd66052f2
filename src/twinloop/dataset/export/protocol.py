"""Define the protocol of built-in and custom exporters, with their options and results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.dataset.lerobot import layout
from twinloop.dataset.storage.snapshot import create_locked_snapshot, forget_locks, wrap_write_errors


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of an export.

    Attributes:
        episodes: Indices in the source, in the order of the export; None exports all episodes.
        settings: Options of the format, by the names in `Exporter.settings`.
    """

    episodes: tuple[int, ...] | None = None
    settings: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if "pictures" in self.settings:  # the former name
            settings = {"images" if name == "pictures" else name: value for name, value in self.settings.items()}
            object.__setattr__(self, "settings", settings)


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """Result of an export.

    Attributes:
        output: The written file or folder.
        episodes: Indices of the exported episodes in the source, in the order of the export.
        frames: Number of frames of all exported episodes.
        notes: Content of this dataset that was left out or changed, excluding content that the format never supports.
    """

    output: Path
    episodes: tuple[int, ...]
    frames: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        files = [path for path in self.output.rglob("*") if path.is_file()] if self.output.is_dir() else [self.output]
        return {
            "output": str(self.output),
            "episodes": len(self.episodes),
            "frames": self.frames,
            "files": len(files),
            "bytes": sum(path.stat().st_size for path in files),
            "notes": list(self.notes),
        }


class ExportReader(Protocol):
    """Reader of single frames of a dataset in any format, used to compare an export with its source.

    Episodes and frames are counted from 0.
    """

    @property
    def lengths(self) -> Sequence[int]:
        """Number of frames of each episode."""
        ...

    @property
    def cameras(self) -> Sequence[str]:
        """Feature keys of the cameras, as in the source dataset."""
        ...

    def read_numeric_features(self, episode: int, frame: int) -> Mapping[str, NDArray[Any]]:
        """Return the numeric features of one frame as 1-D arrays of the stored type, by feature key of the source."""
        ...

    def read_image(self, episode: int, camera: str, frame: int) -> NDArray[np.uint8]:
        """Return one RGB image of a camera, shape ``(height, width, 3)``; ``camera`` is a feature key."""
        ...


@dataclass(frozen=True, kw_only=True)
class Exporter:
    """One export format.

    Attributes:
        name: Name of the format.
        description: Description of the format for users.
        unsupported: Description of the content that the format never supports.
        write: Function that writes a source folder to an output path.
        open_reader: Function that opens an exported output for reading.
        settings: Description of each option of the format, by name.
    """

    name: str
    description: str
    unsupported: str
    write: Callable[[Path, Path, ExportOptions], ExportResult]
    open_reader: Callable[[Path], ExportReader]
    settings: Mapping[str, str] = field(default_factory=dict[str, str])

    def export(self, source: Path | str, output: Path | str, options: ExportOptions | None = None) -> ExportResult:
        """Write a dataset folder in this format.

        Raises:
            UnknownNameError: If the format has no such setting.
            InputError: If an episode does not exist, or the output is not empty.
            DatasetError: If the source is damaged, or the disk is full. Nothing is left at ``output`` then.
        """
        options = options or ExportOptions()
        for name in options.settings:
            if name not in self.settings:
                raise UnknownNameError("setting", name, self.settings, where=f"the format {self.name}")
        return self.write(Path(source), Path(output), options)


IMAGES = {"images": "all (default), or none to leave videos out, also for episodes whose videos are missing"}


def includes_videos(options: ExportOptions) -> bool:
    """Return whether the export includes videos, according to the setting ``images``.

    Raises:
        InputError: If the setting is neither ``all`` nor ``none``.
    """
    value = options.settings.get("images", "all")
    if value not in ("all", "none"):
        raise InputError(f"The setting images is {value!r}. Give all or none.")
    return value == "all"


def select_episodes(options: ExportOptions, present: Sequence[int], *, where: Path) -> tuple[int, ...]:
    """Return the indices of the episodes to export; all episodes in ``present`` by default.

    Args:
        options: Options of the export.
        present: Indices of the existing episodes.
        where: Path of the dataset, for error messages.

    Raises:
        InputError: If an episode does not exist or is given twice, or if no episode is selected.
    """
    wanted = tuple(present) if options.episodes is None else options.episodes
    missing = sorted(set(wanted) - set(present))
    if missing:
        listed = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
        raise InputError(f"{where} has no episode {listed}; it has {_format_spans(present)}.")
    if len(set(wanted)) != len(wanted):
        raise InputError(f"An episode is given twice: {', '.join(map(str, wanted))}. Name each once.")
    if not wanted:
        raise InputError(f"{where} has no episodes to export.")
    return wanted


@contextlib.contextmanager
def create_output_folder(output: Path) -> Iterator[Path]:
    """Context manager: yield a temporary folder for an export.

    If the ``with`` block succeeds, the folder is renamed to ``output``; otherwise it is removed.

    Raises:
        InputError: If ``output`` is not empty, is a file, or is inside a dataset.
        DatasetLockedError: If another process exports to it.
        DatasetError: If the disk is full, or no folder can be created there.
    """
    output = output.absolute()
    _require_absent(output)
    for above in output.resolve().parents:
        if (above / layout.INFO).is_file():
            raise InputError(f"{output} is inside the dataset {above}. Choose an output outside it.")
    with wrap_write_errors(output), create_locked_snapshot(output) as stage:
        _require_absent(output)  # another process may have finished in between
        yield stage


def _require_absent(output: Path) -> None:
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        forget_locks(output)
        raise InputError(f"{output} exists and is not an empty folder. Nothing is written over: choose another output.")


def _format_spans(numbers: Sequence[int]) -> str:
    """Format integers as ranges, such as ``0 to 10, 29``."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    shown = [f"{low} to {high}" if high > low else str(low) for low, high in spans[:8]]
    return ", ".join([*shown, "…"] if len(spans) > 8 else shown) or "none"
