"""Write one world's model, with its parameter values, as MJCF text that MuJoCo compiles without twinloop.

MuJoCo writes numbers with six digits; seventeen are needed to read the same float64 again. The number of digits is a
setting of MuJoCo's C library without a Python binding, so it is changed there for the time of writing.
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
from twinloop.twin.twin import Twin

_DIGITS = 17  # decimal digits that determine a float64 exactly (IEEE 754-2019, 5.12.2)
_ONE_AT_A_TIME = threading.Lock()  # the setting applies to the whole process


@dataclass(frozen=True, kw_only=True)
class ModelText:
    """Model as text: MJCF in ``xml``, and the files that it names (meshes, textures) in ``assets``, by name.

    ``mujoco.MjModel.from_xml_string(text.xml, dict(text.assets))`` compiles it.
    """

    xml: str
    assets: Mapping[str, bytes]


def model_text(twin: Twin, params: ParamTable) -> ModelText:
    """Return the model of the one world of ``params``, physics and appearance, as text.

    Raises:
        InputError: there are several worlds, MJCF cannot express a change, or a file of the model is missing.
    """
    if params.nworld != 1:
        raise InputError(f"{params.nworld} rows of parameters for one model. Give one world's own row.")
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
    assets = _collect_files(spec, twin)
    with _write_all_digits():
        return ModelText(xml=spec.to_xml(), assets=assets)


def world_model_inplace(twin: Twin, params: ParamTable, model: mujoco.MjModel) -> None:
    """Write physics and appearance of the one world of ``params`` into a copy of the twin's model.

    Physics is written last: a size changes both, and its inertia needs the mass.
    """
    for visual in (True, False):
        twin.fields(params, visual=visual).write_inplace(model, 0)


def _collect_files(spec: mujoco.MjSpec, twin: Twin) -> dict[str, bytes]:
    """Return the files of a spec by new unique names, and rename them in the spec."""
    found: dict[str, bytes] = {}
    places = [
        *((item, spec.meshdir) for item in [*spec.meshes, *spec.hfields, *spec.skins]),
        *((item, spec.texturedir) for item in spec.textures),
    ]
    for number, (item, folder) in enumerate(places):
        if not item.file:
            continue
        name = f"{number:03d}_{Path(item.file).name}"
        found[name] = _read_content(spec, item.file, folder, twin)
        item.file = name
    spec.meshdir = spec.texturedir = ""
    spec.assets = found  # writing compiles the spec again, which reads them
    return found


def _read_content(spec: mujoco.MjSpec, file: str, folder: str, twin: Twin) -> bytes:
    if file in spec.assets:
        return bytes(spec.assets[file])
    path = Path(spec.modelfiledir) / folder / file
    if not path.is_file():
        raise InputError(f"{path}, a file of the model of {twin.name}, is gone. Restore it.")
    return path.read_bytes()


@contextmanager
def _write_all_digits() -> Iterator[None]:
    """Make MuJoCo write numbers with all digits, if its library has that setting."""
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
    """Return MuJoCo's library, which is already loaded, or None if it lacks the setting."""
    folder = Path(mujoco.__file__).parent
    for path in sorted([*folder.glob("libmujoco*.so*"), *folder.glob("libmujoco*.dylib"), *folder.glob("mujoco.dll")]):
        library = ctypes.CDLL(str(path))
        if hasattr(library, "_mjPRIVATE__set_xml_precision"):
            return library
    return None
