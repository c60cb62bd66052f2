"""A checkpoint of LeRobot's as one of our policies: a folder with contract, card and hash, that LeRobot itself runs.

The folder holds our ``config.json`` and ``README.md``, and LeRobot's files as they are in ``pretrained_model``. It is
opened by `policies.open_policy`, by the entry point ``lerobot`` of the group ``twinloop.policies``. The interpreter
that has LeRobot keeps the checkpoint open, and is asked over pipes.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from twinloop import __version__
from twinloop.core.contract import IMAGES, Contract
from twinloop.core.documents import MOST_JSON_BYTES, open_regular, parse_json, read_json
from twinloop.core.errors import CheckFailedError, InputError, MissingDependencyError
from twinloop.core.extension import PICKLE_SUFFIXES
from twinloop.core.files import sha256_file, sha256_json, write_bytes, write_json
from twinloop.policies.folder import CONFIG, README, RESTORE, SCHEMA, PolicyCard, read_config, render_card
from twinloop.policies.settings import CommonSettings
from twinloop.policies.statistics import vector_sizes
from twinloop.train.lerobot_side import ACTION, FEATURES, SEEDS, receive, send
from twinloop.twin.spec import describe

VARIABLE = "TWINLOOP_LEROBOT_PYTHON"
# -P: the folder of the file, where `lerobot.py` lies, is no place to import from.
SIDE = ("-P", str(Path(__file__).with_name("lerobot_side.py")))
_REMEDY = f"pip install lerobot, or sh scripts/lerobot_env.sh DIR and then export {VARIABLE}=DIR/bin/python"
_ASK = "import importlib.metadata as m; print(m.version('lerobot'))"
_PATIENCE_S = 120.0


def require_lerobot(python: Path | None = None) -> tuple[str, str]:
    """The interpreter that has LeRobot, and LeRobot's version.

    Args:
        python: the one to take; by default that which the variable ``TWINLOOP_LEROBOT_PYTHON`` names, else this one.

    Raises:
        MissingDependencyError: it has none; says both ways to get it.
    """
    named = python or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if named is None and find_spec("lerobot") is None:
        raise MissingDependencyError("LeRobot's policies need LeRobot, which is not installed here.", remedy=_REMEDY)
    interpreter = sys.executable if named is None else str(named)
    try:
        done = subprocess.run(  # noqa: S603 - an interpreter that the user names
            [interpreter, "-c", _ASK], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        said = getattr(error, "strerror", None) or "it does not answer"
        raise MissingDependencyError(f"{interpreter} does not start ({said}).", remedy=_REMEDY) from error
    if done.returncode != 0:
        raise MissingDependencyError(f"{interpreter} has no LeRobot.", remedy=_REMEDY)
    return interpreter, done.stdout.strip()


_LAST_LINES = 12  # of what the program said, in a message
_ENDING_S = 5.0  # a process that was told to end and has not by then is killed; ending takes it a tenth of a second


class LeRobotEndedError(CheckFailedError):
    """LeRobot's interpreter ended, or could not open the checkpoint, or its policy raised."""


class LeRobotProcess:
    """LeRobot's interpreter with one checkpoint open, until this object is gone or closed.

    Args:
        interpreter: which has LeRobot.
        folder: of the checkpoint.
        device: where it computes.

    Raises:
        LeRobotEndedError: LeRobot cannot open the checkpoint; says what LeRobot says.
    """

    def __init__(self, interpreter: str, folder: Path, device: str) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process, which writes into it
        self._process = subprocess.Popen(  # noqa: S603 - an interpreter that the user names
            [interpreter, *SIDE, "serve", str(folder.resolve()), device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
        )
        self.close = weakref.finalize(self, _end, self._process, self._said)
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def predict(self, arrays: Mapping[str, NDArray[Any]], task: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Chunks ``(n, chunk, k)`` and features ``(n, d)``; see `lerobot_side.Served.chunk`.

        Raises:
            LeRobotEndedError: the process ended, or the policy raised.
        """
        with self._lock:
            try:
                send(self._stream(self._process.stdin), "act", arrays, task)
            except (OSError, ValueError) as error:
                raise self._ended() from error
            made = self._answer()
        return made[ACTION], made[FEATURES]

    def _answer(self) -> dict[str, NDArray[Any]]:
        try:
            kind, arrays, message = receive(self._stream(self._process.stdout))
        except (EOFError, OSError, ValueError, KeyError) as error:
            raise self._ended() from error
        if kind == "error":
            raise LeRobotEndedError(f"LeRobot cannot run {self._folder}: {message}")
        return arrays

    def _ended(self) -> LeRobotEndedError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_ENDING_S)
        self._said.seek(0)
        said = "\n".join(self._said.read().decode(errors="replace").splitlines()[-_LAST_LINES:])
        return LeRobotEndedError(
            f"LeRobot's interpreter, which ran {self._folder}, ended (code {self._process.poll()}). Its last lines:"
            f"\n{said or '(none)'}"
        )

    @staticmethod
    def _stream(stream: IO[bytes] | None) -> Any:
        if stream is None or stream.closed:
            raise ValueError("the pipe is closed")
        return stream


def _end(process: subprocess.Popen[bytes], said: IO[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    try:
        process.wait(timeout=_ENDING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    said.close()


KIND = "lerobot"
CHECKPOINT = "pretrained_model"
DEVICE = "TWINLOOP_LEROBOT_DEVICE"
_BESIDE = ("train_config.json", "README.md")  # of a checkpoint, which decide nothing
_DETERMINISTIC = ("act",)  # types that draw nothing when they act; ACT's latent is zero then
_MODES = {"MEAN_STD": "mean_std", "MIN_MAX": "min_max", "QUANTILES": "quantile", "QUANTILE10": "quantile10"}
# Rows that go through a network at once, always as many: see `policies.policy`. With pictures one, because a robot
# waits for one: of a ResNet18 four take four times as long.
_TILE, _TILE_PICTURES = 16, 1


class LeRobotSettings(CommonSettings):
    """What LeRobot's own ``config.json`` says, in our words. ``instruction`` is the task as it is told to a policy."""

    kind: Literal["lerobot"] = "lerobot"
    type: str
    instruction: str = ""
    normalization: str = "mean_std"  # pyright: ignore[reportIncompatibleVariableOverride] - LeRobot knows more ways


class LeRobotPolicy:
    """A saved policy of LeRobot's; see `policies.Predicts`.

    Its processors, which normalize, are LeRobot's. Where a policy draws by chance, what it draws is a function of the
    noise that it is given: an episode is the same alone and in company.

    Args:
        folder: of the policy.
        config: what stands in its ``config.json``.

    Raises:
        InputError: its files are not those that its hash names.
        MissingDependencyError: no interpreter with LeRobot is there; says how to get one.
        LeRobotEndedError: LeRobot cannot open it.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.folder, self.hash = folder, str(config["hash"])
        self.contract, self.settings = _described(config, where=folder / CONFIG)
        found = content_hash(folder / CHECKPOINT, self.contract, self.settings)
        if found != self.hash:
            raise InputError(
                f"{folder} says its hash is {self.hash}, and its content has {found}: the checkpoint, settings or "
                f"contract were changed after it was saved. {RESTORE}"
            )
        require_registered_steps(folder / CHECKPOINT)
        interpreter, self.version = require_lerobot()
        self._sizes = vector_sizes(self.contract, last_command=False)
        self._child = LeRobotProcess(interpreter, folder / CHECKPOINT, os.environ.get(DEVICE, "cpu"))

    @property
    def kind(self) -> str:
        """``lerobot``."""
        return KIND

    @property
    def noise_size(self) -> int:
        """1 where it draws by chance: a number that seeds its draws."""
        return 0 if self.settings.type in _DETERMINISTIC else 1

    @property
    def observation_keys(self) -> tuple[str, ...]:
        """What must be given: keys of rows, then of pictures."""
        return (*self._sizes, *(IMAGES + name for name in self.contract.cameras))

    def predict_with_features(
        self, observation: Mapping[str, NDArray], noise: NDArray | None = None, domain: str | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Chunks ``(n, chunk_size, k)`` in the dataset's units and features ``(n, d)``: ACT's latent, else none.

        Raises:
            InputError: an observation has another shape or type; names it.
            LeRobotEndedError: LeRobot raised, or its interpreter ended.
        """
        if domain is not None:
            raise InputError(f"LeRobot's policies know no domains, and {domain!r} is asked for. Leave it out.")
        self._check(observation)
        count = len(observation[self.observation_keys[0]])
        tile = count if self.noise_size else _TILE_PICTURES if self.contract.cameras else _TILE
        chunks, features = [], []
        for start in range(0, count, tile):
            rows = np.arange(start, start + tile).clip(max=count - 1)
            part = {key: _travelling(observation[key][rows]) for key in self.observation_keys}
            if self.noise_size:
                part[SEEDS] = _seeds(np.zeros((count, 1)) if noise is None else noise)[rows]
            chunk, latent = self._child.predict(part, self.settings.instruction)
            chunks.append(self._checked(chunk))
            features.append(latent)
        return np.concatenate(chunks)[:count], np.concatenate(features)[:count]

    def predict(
        self, observation: Mapping[str, NDArray], noise: NDArray | None = None, domain: str | None = None
    ) -> NDArray[np.float64]:
        """Chunks alone; see `predict_with_features`."""
        return self.predict_with_features(observation, noise, domain)[0]

    def close(self) -> None:
        """End LeRobot's interpreter; it also ends with this object."""
        self._child.close()

    def _check(self, observation: Mapping[str, NDArray]) -> None:
        for key in self.observation_keys:
            if key not in observation:
                raise InputError(f"The observation lacks {key}. It has: {', '.join(observation) or 'nothing'}.")
            picture = key.startswith(IMAGES)
            one = (*self.contract.cameras[key.removeprefix(IMAGES)], 3) if picture else (self._sizes[key],)
            wanted, shape = (self.settings.n_obs_steps, *one), np.shape(observation[key])
            if shape[1:] != wanted:
                raise InputError(f"{key} has shape {shape}; the policy wants (n, {', '.join(map(str, wanted))}).")
            if picture and observation[key].dtype != np.uint8:
                raise InputError(f"{key} is {observation[key].dtype}; the policy wants pictures in uint8, 0 to 255.")

    def _checked(self, chunk: NDArray[np.float64]) -> NDArray[np.float64]:
        size, wanted = self.settings.chunk_size, len(self.contract.action.names)
        if chunk.ndim != 3 or chunk.shape[1] < size or chunk.shape[2] != wanted:
            raise LeRobotEndedError(
                f"LeRobot's {self.settings.type} gave commands of shape {chunk.shape}, where (n, {size}, {wanted}) "
                "belongs. This type of policy cannot be run here."
            )
        return chunk[:, :size]


def open_lerobot(folder: Path) -> LeRobotPolicy:
    """The policy of LeRobot's that is saved in a folder; see `LeRobotPolicy`."""
    return LeRobotPolicy(folder, read_config(folder))


def save_lerobot(checkpoint: Path, folder: Path, contract: Contract, *, instruction: str = "", card: PolicyCard) -> str:
    """Make a policy's folder of a checkpoint of LeRobot's; returns the policy's hash.

    Args:
        checkpoint: LeRobot's folder ``pretrained_model``, which is copied.
        folder: the policy's.
        contract: what the data that trained it hold.
        instruction: the task as it was told to the policy.
        card: see `policies.Card`.

    Raises:
        InputError: the checkpoint has no ``config.json`` of LeRobot's.
    """
    settings = _settings_of(checkpoint, instruction)
    place = folder / CHECKPOINT
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(checkpoint, place)
    identity = {"kind": KIND, "settings": settings.model_dump(mode="json"), "contract": contract.to_json()}
    made = {
        "schema": SCHEMA,
        **identity,
        "hash": content_hash(place, contract, settings),
        "parameters": _parameters(place),
        "statistics": {"source": f"its own processors, in {CHECKPOINT}"},
        "versions": {"twinloop": __version__, "lerobot": str(card.provenance.get("lerobot", ""))},
        "card": card.to_json(),
    }
    write_bytes(folder / README, render_card(card, made).encode())
    write_json(folder / CONFIG, made)
    return str(made["hash"])


def content_hash(checkpoint: Path, contract: Contract, settings: LeRobotSettings) -> str:
    """SHA-256 over what decides the commands: LeRobot's files, settings and contract.

    Raises:
        InputError: the checkpoint is missing.
    """
    if not (checkpoint / CONFIG).is_file():
        raise InputError(f"{checkpoint} holds no checkpoint of LeRobot's: it has no {CONFIG}. {RESTORE}")
    paths = [path for path in sorted(checkpoint.rglob("*")) if path.is_file() and path.name not in _BESIDE]
    files = {path.relative_to(checkpoint).as_posix(): sha256_file(path) for path in paths}
    return sha256_json([KIND, settings.model_dump(mode="json"), contract.to_json(), files])


def require_registered_steps(checkpoint: Path) -> None:
    """Refuse a checkpoint whose processors are anything but steps that LeRobot registers by name.

    LeRobot imports the module of a step that is named by its ``class`` and calls what it finds there with the step's
    ``config`` (0.4.4 and 0.6.1, ``processor/pipeline.py``): any program could be started that way.

    Raises:
        InputError: a step names a class, or a file is a pickle; names the file and the step.
    """
    for path in sorted(checkpoint.rglob("*")):
        if path.suffix in PICKLE_SUFFIXES:
            raise InputError(f"{path} may run code when it is opened. LeRobot saves weights as safetensors. {RESTORE}")
        if path.suffix != ".json":
            continue
        for where, owner in _objects(read_json(path)):
            if "class" in owner and "registry_name" not in owner:
                raise InputError(
                    f"{path}: {where} names the class {owner['class']!r} instead of a step that LeRobot registers. A "
                    "class by its path could be any program, so the checkpoint was not opened. Save the processor with "
                    "registered steps."
                )


def _objects(value: Any, where: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Iterate over every object of a JSON value, with its path."""
    if isinstance(value, dict):
        yield where or "(top)", value
    rows = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in rows:
        yield from _objects(item, f"{where}.{key}" if where else str(key))


def _settings_of(checkpoint: Path, instruction: str) -> LeRobotSettings:
    if not (checkpoint / CONFIG).is_file():
        raise InputError(f"{checkpoint} holds no checkpoint of LeRobot's: it has no {CONFIG}. Train again.")
    said = read_json(checkpoint / CONFIG)
    steps = said.get("n_action_steps")
    # A diffusion policy gives only those commands of its horizon that are to be carried out.
    whole = said.get("chunk_size") or said.get("action_chunk_size") or steps
    if not whole:
        raise InputError(f"{checkpoint / CONFIG} does not say how many commands a {said.get('type')} policy gives.")
    mode = str((said.get("normalization_mapping") or {}).get("ACTION", ""))
    made = {
        "type": str(said["type"]),
        "n_obs_steps": int(said.get("n_obs_steps") or 1),
        "chunk_size": int(whole),
        "n_action_steps": int(steps or whole),
        "ensemble": said.get("temporal_ensemble_coeff"),
        "normalization": _MODES.get(mode, mode.lower() or "none"),
        "instruction": instruction,
    }
    try:
        return LeRobotSettings.model_validate(made)
    except ValidationError as error:
        raise InputError(describe(error, where=str(checkpoint / CONFIG), model=LeRobotSettings)) from error


def _described(config: Mapping[str, Any], *, where: Path) -> tuple[Contract, LeRobotSettings]:
    try:
        return Contract.from_json(config["contract"]), LeRobotSettings.model_validate(config["settings"])
    except ValidationError as error:
        raise InputError(describe(error, where=str(where), model=LeRobotSettings)) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{where} is damaged: its contract cannot be read ({type(error).__name__}: {error}). {RESTORE}"
        ) from error


def _parameters(checkpoint: Path) -> int:
    """Numbers in a checkpoint's weights, by the header of the file (8 bytes of length, then JSON)."""
    path = checkpoint / "model.safetensors"
    with open_regular(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MOST_JSON_BYTES:
            raise InputError(f"{path} states a header of {length:,} bytes. It is damaged. {RESTORE}")
        head = parse_json(file.read(length), where=f"The header of {path}")
    return sum(math.prod(row["shape"]) for name, row in head.items() if name != "__metadata__")


def _travelling(values: NDArray[Any]) -> NDArray[Any]:
    array = np.asarray(values)
    return array if array.dtype in (np.uint8, np.float32) else array.astype(np.float32)


def _seeds(noise: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Eight bytes ``(n, 8)`` that are a function of each row of noise."""
    rows = np.ascontiguousarray(noise, dtype=np.float64)
    return np.stack([np.frombuffer(hashlib.sha256(row.tobytes()).digest()[:8], np.uint8) for row in rows])
