"""Reject a model file that would take too much memory or time, before MuJoCo reads it.

The limits apply to MJCF and URDF text, to the files that the text includes, and to its meshes and images. The memory
that MuJoCo's compiler needs for a model is estimated from the elements of the text.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

import mujoco

from twinloop.core.documents import MAX_PIXELS, DocumentError, open_regular, read_bytes, require_regular
from twinloop.core.errors import InputError
from twinloop.core.files import absolute_path

# Most tags and comments of one file: 20 times those of the largest robots.
_MOST_TAGS = 200_000
# A tag with its attributes. No part can match in two ways, so matching takes linear time.
_TAG = re.compile(rb"<(?:[^<>\"']|\"[^\"]*\"|'[^']*')*+>")
_BOM = b"\xef\xbb\xbf"
Start = Callable[[str, dict[str, str], int], None]


def read_elements(data: bytes, *, where: str, start: Start, end: Callable[[], None]) -> None:
    """Parse XML and call a function at the start and at the end of every element.

    Args:
        data: Content of the file.
        where: Name of the file, for error messages.
        start: Function that is called at the start of every element with its name, attributes and line number.
        end: Function that is called at the end of every element.

    Raises:
        DocumentError: If the content is not well-formed XML in UTF-8, contains entities, or has too many tags; the
            message names the line.
    """
    try:
        text = _without_comments(data.removeprefix(_BOM), where).decode()
    except UnicodeDecodeError as error:
        raise DocumentError(f"{where} is not well-formed XML: it is not text in UTF-8 ({error.reason}).") from error
    parser = expat.ParserCreate("utf-8")
    parser.StartElementHandler = lambda name, attributes: start(name, attributes, parser.CurrentLineNumber)
    parser.EndElementHandler = lambda _: end()
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise DocumentError(f"{where}, line {error.lineno} is not well-formed XML: {_error_text(error)}.") from error


def _without_comments(data: bytes, where: str) -> bytes:
    """Return XML with its comments replaced by their line breaks, because MuJoCo accepts comments that are invalid XML.

    Args:
        data: Content of the file.
        where: Name of the file, for error messages.
    """
    parts, position, tags = list[bytes](), 0, 0
    while (begin := data.find(b"<", position)) >= 0:
        parts.append(data[position:begin])
        position = _find_tag_end(data, begin, where)
        tag, tags = data[begin:position], tags + 1
        parts.append(b"\n" * tag.count(b"\n") if tag.startswith((b"<!--", b"<?")) else tag)
        if tags > _MOST_TAGS:
            raise DocumentError(f"{where} has more than {_MOST_TAGS:,} tags and comments. Make the model smaller.")
    return b"".join([*parts, data[position:]])


def _find_tag_end(data: bytes, begin: int, where: str) -> int:
    if data.startswith(b"<!--", begin):
        end = data.find(b"-->", begin + 4) + 3
    elif data.startswith(b"<?", begin):
        end = data.find(b"?>", begin + 2) + 2
    elif data.startswith(b"<!", begin):
        raise DocumentError(
            f"{where}, line {_line_number(data, begin)}: DOCTYPE, entities and CDATA are not allowed in a model. "
            "Remove them."
        )
    else:
        match = _TAG.match(data, begin)
        end = match.end() if match else 0
    if end <= begin:
        raise DocumentError(f"{where}, line {_line_number(data, begin)} is not well-formed XML: the tag does not end.")
    return end


def _line_number(data: bytes, position: int) -> int:
    return data.count(b"\n", 0, position) + 1


def _error_text(error: expat.ExpatError) -> str:
    return expat.errors.messages.get(error.code, str(error.code))


# Largest estimated memory for compiling a model. The largest robots of MuJoCo's Menagerie take 40 MiB.
MAX_MODEL_BYTES = 512 << 20
# Largest size in bytes of one text, of one file that it names, and of all these files. A robot's meshes take 200 MB.
MAX_XML_BYTES = 32 << 20
MAX_ASSET_BYTES = 256 << 20
MAX_ASSETS_BYTES = 1 << 30
MAX_STL_FACES = 200_000  # of MuJoCo's decoder; its error comes after the whole file was read
# Limits of the physics step, in seconds. Arms use 0.5 to 10 ms.
SHORTEST_STEP, LONGEST_STEP = 1e-6, 1.0
# Largest number of solver iterations in one physics step. MuJoCo's defaults are 100 and 50.
MAX_ITERATIONS = 10_000
# Errors of MuJoCo for a model that it rejects, or for too little memory.
ENGINE_ERRORS = (ValueError, RuntimeError, MemoryError, mujoco.FatalError)
# Largest depth of files that include or attach one another.
_MOST_FILES_DEEP = 16
# Levels above a model's folder in which its files may be; dm_control's dog names `../../../../suite/dog_assets`.
_LEVELS_UP = 4
# Bytes that count for an element: 9,000 of memory (measured with 10,000 bodies), and more because the time grows
# quadratically.
_ELEMENT = 25_000
# Bytes for each unit of the product of some attributes, measured with MuJoCo 4.0.
_COSTS: Mapping[str, tuple[tuple[tuple[str, ...], float], ...]] = {
    "flexcomp": ((("count",), _ELEMENT),),
    "hfield": ((("nrow", "ncol"), 16),),
    "texture": ((("width", "height"), 6),),
    "general": ((("actdim",), 16),),
    "contact": ((("num",), 8),),
    "numeric": ((("size",), 16),),
    "global": ((("offwidth", "offheight"), 4),),
    "quality": ((("shadowsize", "shadowsize"), 2),),
    "camera": ((("resolution",), 8),),
    "user": ((("dim",), 16),),
    # Virtual memory, of which only the part that contacts need is used: an eighth of it counts.
    "size": (
        (("memory",), 1 / 8),
        (("nstack",), 1),
        (("njmax", "njmax"), 1),
        (("nconmax",), 1_000),
        (("nuserdata",), 8),
        (("nkey",), 2 * _ELEMENT),
        *(
            ((f"nuser_{kind}",), 100_000)
            for kind in ("body", "jnt", "geom", "site", "cam", "tendon", "actuator", "sensor")
        ),
    ),
}
_MANY = 1 << 60  # limit of counted repetitions
_PER_SAMPLE = 16  # bytes of a sample of a sensor's or an actuator's history
_PER_VERTEX = 1_400  # bytes per vertex of a built-in mesh, which has resolution² vertices
_CUBE = 36  # bytes for each pixel of one of the six square faces of a cube texture
_FILES = ("file", "filename", "fileright", "fileleft", "fileup", "filedown", "filefront", "fileback")
_FOLDERS = ("meshdir", "texturedir", "assetdir")
_UNITS = {"K": 10, "M": 20, "G": 30, "T": 40, "P": 50, "E": 60}
_WHOLE = re.compile(r"(\d+)([KMGTPE]?)", re.IGNORECASE)
_HEAD_STL = 84  # bytes of a binary STL file up to the end of its number of faces
_HEAD = 24  # bytes of a PNG image up to the end of its size
_PNG = b"\x89PNG\r\n\x1a\n"


def check_model_file(path: Path) -> None:
    """Raise an error for a model file that is too large to compile, or that names files outside its package.

    Raises:
        InputError: If the text is not XML or contains entities; if a file is missing, not a regular file, too large,
            outside the model's package, or includes itself; or if compiling needs more than 512 MiB
            (``MAX_MODEL_BYTES``). The message names the line.
    """
    _read_model_files(path)


def list_model_files(path: Path) -> list[Path]:
    """Return a model file and all files that it includes, attaches or names, as absolute paths; the model file first.

    Raises:
        InputError: See `check_model_file`.
    """
    model = _read_model_files(path)
    found = {absolute_path(file) for file in [*model.texts, *(path for path, _ in model.find_assets())]}
    first = absolute_path(path)
    return [first, *sorted(found - {first})]


def _read_model_files(path: Path) -> _Model:
    model = _Model(folder=path.parent, roots=_find_roots(path))
    _require_small_cost(model.add(path), str(path))
    model.check_files()
    return model


def check_model_text(text: str, assets: Mapping[str, bytes], *, where: str) -> None:
    """Raise an error for a model text, or a file stored with it, that is too large to compile.

    Args:
        text: MJCF text.
        assets: Content of the meshes and images by file name.
        where: Name of the text, for error messages.

    Raises:
        InputError: If the limits of `check_model_file` are exceeded, or if the text names a file that is not in
            ``assets``.
    """
    document = _Document(Path(where), _Model(folder=Path(), roots=()))
    read_elements(text.encode(), where=where, start=document.start, end=document.end)
    _require_small_cost(document.cost, where)
    stored = {*assets, *(name.removeprefix(f"{inner}/") for name in assets for inner in document.model.folders)}
    named = {*(name for _, name in document.model.files), *(name for name, _ in document.included), *document.attached}
    if named - stored:
        raise InputError(f"{where} names the file {min(named - stored)}, which is not stored with it.")
    for name, data in assets.items():
        _require_small_image(data[:_HEAD], f"{where}: {name}")


def check_asset(path: Path) -> int:
    """Return the size of a mesh or image file in bytes, or raise an error if the file is too large to read.

    Raises:
        InputError: If the file is not a regular file or too large; the message names the file.
    """
    require_regular(path)
    size = path.stat().st_size
    if size > MAX_ASSET_BYTES:
        raise InputError(f"{path} has {size:,} bytes; at most {MAX_ASSET_BYTES:,} are read. Make it smaller.")
    with open_regular(path) as file:
        head = file.read(_HEAD_STL)
    _require_small_image(head, str(path))
    faces = int.from_bytes(head[80:84], "little")
    if path.suffix.lower() == ".stl" and faces > MAX_STL_FACES:
        raise InputError(
            f"{path} has {faces:,} faces; MuJoCo reads at most {MAX_STL_FACES:,} of a binary STL file, and no other "
            "kind. Simplify the mesh, or save it as OBJ."
        )
    return size


def _require_small_cost(cost: _Cost, where: str) -> None:
    if cost.total > MAX_MODEL_BYTES:
        raise InputError(
            f"{where} would take about {_format_size(cost.total)} of memory to compile, most of it for "
            f"{cost.largest}; at "
            f"most {_format_size(MAX_MODEL_BYTES)} are allowed. Make the model smaller."
        )


def _require_small_image(head: bytes, where: str) -> None:
    """Raise an error for a PNG image that is too large according to its header."""
    width, height = (int.from_bytes(head[i : i + 4], "big") for i in (16, 20))
    if head.startswith(_PNG) and width * height > MAX_PIXELS:
        raise InputError(
            f"{where} is an image of {width} × {height} pixels; at most {MAX_PIXELS:,} are read. Make it smaller."
        )


def check_options(mjspec: mujoco.MjSpec, where: str) -> None:
    """Raise an error for a time step or a number of solver iterations with which a simulation would never finish.

    The limits are `SHORTEST_STEP`, `LONGEST_STEP` and `MAX_ITERATIONS`.

    Args:
        mjspec: Model specification.
        where: Name of the model file, for error messages.

    Raises:
        InputError: If an option is outside its limits; the message names the option.
    """
    step = float(mjspec.option.timestep)
    if not SHORTEST_STEP <= step <= LONGEST_STEP:
        raise InputError(
            f"{where}: the option timestep is {step:g} s; it must be from {SHORTEST_STEP:g} s to {LONGEST_STEP:g} s."
        )
    for name in ("iterations", "ls_iterations", "noslip_iterations", "ccd_iterations", "sdf_iterations"):
        if getattr(mjspec.option, name) > MAX_ITERATIONS:
            raise InputError(f"{where}: the option {name} is {getattr(mjspec.option, name)}; at most {MAX_ITERATIONS}.")


@dataclass
class _Cost:
    """Estimated memory of a model or of a file of a model.

    Attributes:
        total: Memory of all elements in bytes.
        most: Memory in bytes of the element that needs most.
        largest: Description of that element, with file and line.
    """

    total: float = 0.0
    most: float = 0.0
    largest: str = ""

    def add(self, amount: float, what: str) -> None:
        self.total += amount
        if amount > self.most:
            self.most, self.largest = amount, what


@dataclass
class _Model:
    """A model file with the files that it includes, attaches or names, and their estimated memory.

    Attributes:
        folder: Folder of the model file.
        roots: Folders in which the model's files must be.
        costs: Estimated memory of every text, by its path.
        texts: Paths of the texts as they were given.
        files: Location (file and line) at which each mesh or image file is named. The key is the path of the text that
            names it, and the name.
        folders: Values of the compiler attributes ``meshdir``, ``texturedir`` and ``assetdir``.
        strips: Values of the compiler attribute ``strippath``: whether MuJoCo removes folders from file names.
    """

    folder: Path
    roots: tuple[Path, ...]
    costs: dict[Path, _Cost] = field(default_factory=dict[Path, _Cost])
    texts: set[Path] = field(default_factory=set[Path])
    # Location (file and line) at which a file is named, by the text and the name in it.
    files: dict[tuple[Path, str], str] = field(default_factory=dict[tuple[Path, str], str])
    folders: set[str] = field(default_factory=lambda: {""})
    strips: set[bool] = field(default_factory=set[bool])

    def add(self, path: Path, above: tuple[Path, ...] = ()) -> _Cost:
        """Add an XML file, and return the estimated memory of it with all files that it includes and attaches.

        Args:
            path: Path of the XML file.
            above: Files that include or attach this file, to detect a cycle.
        """
        place = _resolve_links(path)
        self.texts.add(path)
        if place in above:
            raise InputError(
                f"{path} includes or attaches itself, directly or through other files. Remove the reference."
            )
        if len(above) > _MOST_FILES_DEEP:
            raise InputError(
                f"{path} is nested in more than {_MOST_FILES_DEEP} files by include or attach. Merge some of them."
            )
        if place not in self.costs:
            document = _Document(path, self)
            read_elements(read_bytes(path, MAX_XML_BYTES), where=str(path), start=document.start, end=document.end)
            self.costs[place] = document.compute_cost((*above, place))
        return self.costs[place]

    def find_paths(self, name: str, text_folder: Path) -> list[Path]:
        """Return the existing files to which a file name may refer.

        They are searched in the model's folder, in the folder of the text, and in the subfolders that the model's
        compiler settings name.

        Args:
            name: File name in the text.
            text_folder: Folder of the text that contains the name.
        """
        bases = {self.folder, text_folder} | {
            base / inner for base in (self.folder, text_folder) for inner in self.folders
        }
        return sorted({base / name for base in bases if os.path.lexists(base / name)})

    def find_assets(self) -> Iterator[tuple[Path, str]]:
        """Yield the existing mesh and image files of the model, each with the place that names it; some repeatedly."""
        for (text, name), where in self.files.items():
            plain = name.removeprefix("package://").removeprefix("file://")
            for inner in {Path(plain).name if strip else plain for strip in self.strips or {False}}:
                for path in self.find_paths(inner, text.parent):
                    yield path, where

    def check_files(self) -> None:
        """Raise an error if a mesh or image is too large, not a regular file or outside the package.

        The sum of all file sizes is limited too.
        """
        size = 0
        for path, where in self.find_assets():
            self.require_inside(path, where)
            size += check_asset(path)
        if size > MAX_ASSETS_BYTES:
            raise InputError(
                f"The files of the model in {self.folder} have {size:,} bytes; at most {MAX_ASSETS_BYTES:,} are read. "
                "Make its meshes smaller."
            )

    def require_inside(self, path: Path, where: str) -> None:
        """Raise an error if a file is outside the folders of the model's package.

        Args:
            path: Path of the file.
            where: File and line that name it, for the error message.
        """
        place = _resolve_links(path)
        if not any(place.is_relative_to(root) for root in self.roots):
            raise InputError(
                f"{where} names {path}, which is outside the model's package ({self.roots[0]}). Copy the file into it."
            )


@dataclass
class _Document:
    """State of the parser while it reads one XML file of a model.

    Attributes:
        path: Path of the XML file.
        model: Model to which the file belongs.
        repeats: Number of copies that ``<replicate>`` makes of each open element, from the outermost element inwards.
        cost: Estimated memory of the elements read so far.
        included: Names of the files that the file includes, with the number of copies of each.
        attached: Names of the model files in ``<model>`` elements, which ``<attach>`` elements can add.
        attaches: Number of ``<attach>`` elements, including their copies.
    """

    path: Path
    model: _Model
    repeats: list[int] = field(default_factory=lambda: [1])
    cost: _Cost = field(default_factory=_Cost)
    included: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    attached: list[str] = field(default_factory=list[str])
    attaches: int = 0

    def start(self, name: str, attributes: dict[str, str], line: int) -> None:
        """Add an element to the estimated memory, and record the files that it names."""
        times = self.repeats[-1] * (_attribute_product(attributes, ("count",)) if name == "replicate" else 1)
        self.repeats.append(min(times, _MANY))
        where = f"<{name}> in {self.path}, line {line}"
        self.cost.add(times * _estimate_bytes(name, attributes), where)
        if name == "compiler":
            self.model.folders |= {attributes[key] for key in _FOLDERS if key in attributes}
            self.model.strips |= {attributes["strippath"] == "true"} if "strippath" in attributes else set()
        elif name == "robot":
            self.model.strips |= set() if self.model.strips else {True}
        elif name == "include" and "file" in attributes:
            self.included.append((attributes["file"], times))
        elif name == "model" and "file" in attributes:
            self.attached.append(attributes["file"])
        elif name == "attach":
            self.attaches += times
        else:
            self.model.files |= {(self.path, attributes[key]): where for key in _FILES if attributes.get(key)}

    def end(self) -> None:
        """Leave an XML element: restore the number of copies that ``<replicate>`` makes of its parent."""
        self.repeats.pop()

    def compute_cost(self, above: tuple[Path, ...]) -> _Cost:
        """Return the estimated memory of the XML file with its included and attached files.

        Each ``<attach>`` element is counted with the memory of the largest model that the file can attach.

        Args:
            above: Files that include or attach this file, and the file itself, to detect a cycle.
        """
        for name, times in self.included:
            for path in self._find_paths(name):
                self.cost.add(times * self.model.add(path, above).total, f"<include> of {path}")
        costs = [(self.model.add(path, above).total, path) for name in self.attached for path in self._find_paths(name)]
        if costs:
            largest, path = max(costs)
            self.cost.add((self.attaches + 1) * largest, f"the attachments of {path}")
        return self.cost

    def _find_paths(self, name: str) -> list[Path]:
        paths = self.model.find_paths(name, self.path.parent)
        for path in paths:
            self.model.require_inside(path, str(self.path))
        return paths


def _estimate_bytes(name: str, attributes: Mapping[str, str]) -> float:
    """Return the estimated memory of one XML element in bytes, from its name and attributes."""
    total = _ELEMENT + sum(
        unit * _attribute_product(attributes, keys) for keys, unit in _COSTS.get(name, ()) if keys[0] in attributes
    )
    if name == "texture" and attributes.get("type") != "2d":
        total += _CUBE * _attribute_product(attributes, ("width", "width"))
    if name == "mesh" and "builtin" in attributes:
        total += _PER_VERTEX * max(map(abs, _numbers(attributes.get("params", ""))), default=0) ** 2
    return total + _PER_SAMPLE * (_attribute_product(attributes, ("nsample",)) if "nsample" in attributes else 0)


def _attribute_product(attributes: Mapping[str, str], keys: tuple[str, ...]) -> int:
    """Return the product of all integers in the given attributes; suffixes as in ``16M`` are powers of 1024."""
    numbers = [match for key in keys for match in _WHOLE.findall(attributes.get(key, ""))]
    return math.prod(max(1, int(digits[:18])) << _UNITS.get(unit.upper(), 0) for digits, unit in numbers)


def _numbers(text: str) -> list[float]:
    try:
        return [value for item in text.split() if not math.isnan(value := float(item))]
    except ValueError:  # MuJoCo rejects it later
        return []


def _find_roots(path: Path) -> tuple[Path, ...]:
    """Return the folders that may contain a model's files: the folder of the model file, or up to four levels above.

    The search goes up from the folder of the model file, and stops below the user's home folder, the folder of
    temporary files, and parents of these two. Two folders are returned: one for the path as given, and one for the path
    with symbolic links resolved.
    """
    shared = [Path.home(), Path(tempfile.gettempdir()), Path("/")]
    roots = list[Path]()
    for place in (path.absolute(), _resolve_links(path)):
        root = _resolve_links(place.parent)
        for parent in list(root.parents)[:_LEVELS_UP]:
            if any(folder.is_relative_to(parent) for folder in shared):
                break
            root = parent
        roots.append(root)
    return tuple(roots)


def _resolve_links(path: Path) -> Path:
    """Return a path without symbolic links; unlike `pathlib.Path.resolve`, it accepts a link that points to itself."""
    return Path(os.path.realpath(path))


def _format_size(amount: float) -> str:
    return f"{amount / (1 << 20):,.0f} MiB"
