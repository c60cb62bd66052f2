"""Write the model of one world, with its parameter values, as MJCF text that MuJoCo compiles without twinloop.

MuJoCo writes numbers with six digits, but seventeen are needed to read the same float64 again. The number of digits is
a setting of MuJoCo's C library without a Python binding, so it is changed there during writing.
"""

from __future__ import annotations

import copy
import ctypes
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import mujoco

from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.twin.quantities.soft import YOUNG, find_flex
from twinloop.twin.twin import Twin

_DIGITS = 17  # decimal digits that determine a float64 exactly (IEEE 754-2019, 5.12.2)
_FLEX = ("damping", "friction", "solref", "solimp")  # a flex's properties that parameters change, but for its modulus
_ONE_AT_A_TIME = threading.Lock()  # the setting applies to the whole process


@dataclass(frozen=True, kw_only=True)
class ModelText:
    """A model as MJCF text, with the content of the files that the text names.

    ``mujoco.MjModel.from_xml_string(text.xml, dict(text.assets))`` compiles it.

    Attributes:
        xml: MJCF text.
        assets: Content of the meshes and textures by file name.
    """

    xml: str
    assets: Mapping[str, bytes]


def model_text(twin: Twin, params: ParamTable) -> ModelText:
    """Return the model of one world as MJCF text, with its physics and its appearance.

    Args:
        twin: The twin of the world.
        params: Parameter table with one row, the values of the world.

    Raises:
        InputError: If the table has several rows, if MJCF cannot express a change, or if a file of the model is
            missing.
    """
    if params.nworld != 1:
        raise InputError(
            f"The parameter table has {params.nworld} rows, but a model has one world. Give a table with one row."
        )
    spec = twin.mjspec.copy()
    spec.compile()
    model = copy.copy(twin.model)
    world_model_inplace(twin, params, model)
    try:
        spec.copy_back(model)
    except ValueError as error:
        raise InputError(
            f"The parameters of a world of {twin.name} cannot be written as MJCF ({error}). Leave its model out."
        ) from error
    _copy_flexes_inplace(spec, model, params)
    assets = embed_files(spec, owner=f"the model of {twin.name}")
    with _write_all_digits():
        return ModelText(xml=spec.to_xml(), assets=assets)


def _copy_flexes_inplace(spec: mujoco.MjSpec, model: mujoco.MjModel, params: ParamTable) -> None:
    """Copy the properties of one world's flexes into a model specification, because ``copy_back`` omits flexes."""
    for flex in spec.flexes:
        row, young = find_flex(model, flex.name), YOUNG.format(flex.name)
        for field in _FLEX if row >= 0 else ():
            setattr(flex, field, getattr(model, f"flex_{field}")[row])
        if young in params:
            flex.young = float(params[young][0])
            spec.numeric(young).data = [flex.young]


def world_model_inplace(twin: Twin, params: ParamTable, model: mujoco.MjModel) -> None:
    """Write the physics and the appearance of one world into a model.

    Appearance is written first and physics last, because sizes belong to both, and the physics of a size includes the
    mass and inertia.

    Args:
        twin: The twin of the world.
        params: Parameter table with one row, the values of the world.
        model: Copy of the twin's compiled model, changed in place.
    """
    for visual in (True, False):
        twin.fields(params, visual=visual).write_inplace(model, 0)


def embed_files(spec: mujoco.MjSpec, *, owner: str, prefix: str = "") -> dict[str, bytes]:
    """Rename all files of a model specification to unique names, and return their content by new name.

    Args:
        spec: Model specification; its file names, folders and assets are changed in place.
        owner: Description of the model, for error messages.
        prefix: Text before the new names.

    Raises:
        InputError: If a file is missing.
    """
    contents: dict[str, bytes] = {}
    places = [
        *((item, spec.meshdir) for item in [*spec.meshes, *spec.hfields, *spec.skins]),
        *((item, spec.texturedir) for item in spec.textures),
    ]
    for number, (item, folder) in enumerate(places):
        if not item.file:
            continue
        name = f"{prefix}{number:03d}_{Path(item.file).name}"
        contents[name] = _read_content(spec, item.file, folder, owner)
        item.file = name
    spec.meshdir = spec.texturedir = ""
    spec.assets = contents  # writing compiles the spec again, which reads them
    return contents


def _read_content(spec: mujoco.MjSpec, file: str, folder: str, owner: str) -> bytes:
    if file in spec.assets:
        return bytes(spec.assets[file])
    path = Path(spec.modelfiledir) / folder / file
    if not path.is_file():
        raise InputError(f"{path}, a file of {owner}, is missing. Restore it.")
    return path.read_bytes()


@contextmanager
def _write_all_digits() -> Iterator[None]:
    """Return a context manager in which MuJoCo writes numbers with all digits, if its library has that setting."""
    with _ONE_AT_A_TIME:
        library = _find_library()
        if library is None:
            yield
            return
        before = int(library._mjPRIVATE__get_xml_precision())
        library._mjPRIVATE__set_xml_precision(_DIGITS)
        try:
            yield
        finally:
            library._mjPRIVATE__set_xml_precision(before)


def _find_library() -> ctypes.CDLL | None:
    """Return MuJoCo's C library, which is already loaded.

    Return None if it lacks the setting for the number of digits with which numbers are written to XML.
    """
    folder = Path(mujoco.__file__).parent
    for path in sorted([*folder.glob("libmujoco*.so*"), *folder.glob("libmujoco*.dylib"), *folder.glob("mujoco.dll")]):
        library = ctypes.CDLL(str(path))
        if hasattr(library, "_mjPRIVATE__set_xml_precision"):
            return library
    return None
