"""Use a LeRobot checkpoint as a twinloop policy: a folder with contract, model card and hash, run by LeRobot itself.

The folder holds our ``config.json`` and ``README.md``, and LeRobot's files unchanged in ``pretrained_model``.
`policies.open_policy` opens it through the entry point ``lerobot`` of the group ``twinloop.policies``. A Python
interpreter that has LeRobot runs as a subprocess, keeps the checkpoint open, and exchanges messages with this process
over pipes.
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
from twinloop.core.assignment import copy_sources
from twinloop.core.contract import IMAGES, Contract
from twinloop.core.documents import MAX_JSON_BYTES, open_regular, parse_json, read_json
from twinloop.core.errors import CheckFailedError, InputError, MissingDependencyError
from twinloop.core.extension import PICKLE_SUFFIXES
from twinloop.core.files import sha256_file, sha256_json, write_bytes, write_json
from twinloop.policies.config import CONFIG, RESTORE, SCHEMA
from twinloop.policies.folder import README, PolicyCard, read_config, render_card
from twinloop.policies.settings import CommonSettings
from twinloop.policies.statistics import vector_sizes
from twinloop.train.lerobot_side import ACTION, FEATURES, SEEDS, receive, send
from twinloop.twin.spec import describe_errors

VARIABLE = "TWINLOOP_LEROBOT_PYTHON"
# -P: do not import from the script's folder, which contains `lerobot.py`.
SIDE = ("-P", str(Path(__file__).with_name("lerobot_side.py")))
_REMEDY = f"pip install lerobot, or sh scripts/lerobot_env.sh DIR and then export {VARIABLE}=DIR/bin/python"
_ASK = "import importlib.metadata as m; print(m.version('lerobot'))"
_PATIENCE_S = 120.0


def require_lerobot(python: Path | None = None) -> tuple[str, str]:
    """Find the Python interpreter that has LeRobot; return its path and LeRobot's version.

    Args:
        python: the interpreter; by default the one in the variable ``TWINLOOP_LEROBOT_PYTHON``, else the running one.

    Raises:
        MissingDependencyError: If the interpreter has no LeRobot. The message gives both ways to install it.
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
        reason = getattr(error, "strerror", None) or "no answer"
        raise MissingDependencyError(f"{interpreter} does not start ({reason}).", remedy=_REMEDY) from error
    if done.returncode != 0:
        raise MissingDependencyError(f"{interpreter} has no LeRobot.", remedy=_REMEDY)
    return interpreter, done.stdout.strip()


_LAST_LINES = 12  # of the program's output, in a message
_ENDING_S = 5.0  # a process that has not ended after this time is killed; normally it ends in a tenth of a second


class LeRobotEndedError(CheckFailedError):
    """Error: LeRobot's interpreter ended, could not open the checkpoint, or its policy raised an error."""


class LeRobotProcess:
    """Subprocess of LeRobot's interpreter that keeps one checkpoint open until this object is closed or deleted.

    Args:
        interpreter: path of the Python interpreter that has LeRobot.
        folder: folder of the checkpoint.
        device: torch device for the policy.

    Raises:
        LeRobotEndedError: If LeRobot cannot open the checkpoint. The message contains LeRobot's error.
    """

    def __init__(self, interpreter: str, folder: Path, device: str) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process, which writes into it
        self._process = subprocess.Popen(  # noqa: S603 - an interpreter that the user names
            [interpreter, *SIDE, "serve", str(folder.resolve()), device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        self.close = weakref.finalize(self, _end_process, self._process, self._stderr)
        try:
            self._receive_answer()
        except BaseException:
            self.close()
            raise

    def predict(self, arrays: Mapping[str, NDArray[Any]], task: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return chunks of commands ``(n, chunk, k)`` for n samples and k joints, and features ``(n, d)``.

        Args:
            arrays: observations, and optionally ``seeds``; see `lerobot_side.ServedCheckpoint.predict_chunks`.
            task: task text for the policy.

        Raises:
            LeRobotEndedError: If the process ended, or the policy raised an error.
        """
        with self._lock:
            try:
                send(self._require_stream(self._process.stdin), "act", arrays, task)
            except (OSError, ValueError) as error:
                raise self._make_ended_error() from error
            made = self._receive_answer()
        return made[ACTION], made[FEATURES]

    def _receive_answer(self) -> dict[str, NDArray[Any]]:
        try:
            kind, arrays, message = receive(self._require_stream(self._process.stdout))
        except (EOFError, OSError, ValueError, KeyError) as error:
            raise self._make_ended_error() from error
        if kind == "error":
            raise LeRobotEndedError(f"LeRobot cannot run {self._folder}: {message}")
        return arrays

    def _make_ended_error(self) -> LeRobotEndedError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_ENDING_S)
        self._stderr.seek(0)
        lines = "\n".join(self._stderr.read().decode(errors="replace").splitlines()[-_LAST_LINES:])
        return LeRobotEndedError(
            f"LeRobot's interpreter for {self._folder} ended (code {self._process.poll()}). Its last lines:"
            f"\n{lines or '(none)'}"
        )

    @staticmethod
    def _require_stream(stream: IO[bytes] | None) -> Any:
        if stream is None or stream.closed:
            raise ValueError("the pipe is closed")
        return stream


def _end_process(process: subprocess.Popen[bytes], output: IO[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    try:
        process.wait(timeout=_ENDING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    output.close()


KIND = "lerobot"
CHECKPOINT = "pretrained_model"
DEVICE = "TWINLOOP_LEROBOT_DEVICE"
_BESIDE = ("train_config.json", "README.md")  # files of a checkpoint that do not affect the commands
_DETERMINISTIC = ("act",)  # types that do not sample at inference; ACT's latent is zero then
_MODES = {"MEAN_STD": "mean_std", "MIN_MAX": "min_max", "QUANTILES": "quantile", "QUANTILE10": "quantile10"}
# Rows per forward pass, always the same number: see `policies.policy`. One row if there are images, because a robot
# asks for one: with a ResNet18 four rows take four times as long.
_TILE, _TILE_IMAGES = 16, 1


class LeRobotSettings(CommonSettings):
    """Settings from LeRobot's ``config.json`` under twinloop's names.

    Attributes:
        type: LeRobot's name of the policy type.
        instruction: task text given to the policy.
        normalization: LeRobot's mode of action normalization.
    """

    kind: Literal["lerobot"] = "lerobot"
    type: str
    instruction: str = ""
    normalization: str = "mean_std"  # pyright: ignore[reportIncompatibleVariableOverride] - LeRobot knows more ways


class LeRobotPolicy:
    """A saved LeRobot policy with the interface `policies.policy_loop.Predictor`.

    LeRobot's own processors normalize observations and commands. A policy that samples at random takes all randomness
    from the given noise. Therefore an episode gets the same commands when it runs alone and when it runs in a batch.

    Args:
        folder: folder of the policy.
        config: content of its ``config.json``.

    Raises:
        InputError: If the files do not match the stored hash.
        MissingDependencyError: If no interpreter with LeRobot was found. The message explains how to get one.
        LeRobotEndedError: If LeRobot cannot open the checkpoint.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.folder, self.hash = folder, str(config["hash"])
        self.contract, self.settings = _parse_config(config, where=folder / CONFIG)
        found = content_hash(folder / CHECKPOINT, self.contract, self.settings)
        if found != self.hash:
            raise InputError(
                f"{folder} stores the hash {self.hash}, but its content has {found}: the checkpoint, settings or "
                f"contract were changed after it was saved. {RESTORE}"
            )
        require_registered_steps(folder / CHECKPOINT)
        interpreter, self.version = require_lerobot()
        self._sizes = vector_sizes(self.contract, last_command=False)
        self._child = LeRobotProcess(interpreter, folder / CHECKPOINT, os.environ.get(DEVICE, "cpu"))

    @property
    def kind(self) -> str:
        """Kind of policy, ``lerobot``."""
        return KIND

    @property
    def noise_size(self) -> int:
        """Number of noise values per sample: 0 for a deterministic policy, else 1, which is used as random seed."""
        return 0 if self.settings.type in _DETERMINISTIC else 1

    @property
    def observation_keys(self) -> tuple[str, ...]:
        """Required keys of an observation: vectors first, then images."""
        return (*self._sizes, *(IMAGES + name for name in self.contract.cameras))

    def predict_with_features(
        self, observation: Mapping[str, NDArray], noise: NDArray | None = None, domain: str | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return chunks of commands ``(n, chunk_size, k)`` and features ``(n, d)``, for n samples and k joints.

        Commands are in the dataset's units. The features are the latent of an ACT policy; for other types d is 0.

        Args:
            observation: histories ``(n, n_obs_steps, …)`` by key, see `observation_keys`.
            noise: ``(n, noise_size)``; None for zeros.
            domain: must be None, because LeRobot's policies have no domains.

        Raises:
            InputError: If an observation has a wrong shape or type, or a domain is given.
            LeRobotEndedError: If LeRobot raised an error, or its interpreter ended.
        """
        if domain is not None:
            raise InputError(f"LeRobot's policies have no domains, but domain {domain!r} was given. Leave it out.")
        self._check_observation(observation)
        count = len(observation[self.observation_keys[0]])
        tile = count if self.noise_size else _TILE_IMAGES if self.contract.cameras else _TILE
        chunks, features = [], []
        for start in range(0, count, tile):
            rows = np.arange(start, start + tile).clip(max=count - 1)
            part = {key: _convert_for_transfer(observation[key][rows]) for key in self.observation_keys}
            if self.noise_size:
                part[SEEDS] = _noise_seeds(np.zeros((count, 1)) if noise is None else noise)[rows]
            chunk, latent = self._child.predict(part, self.settings.instruction)
            chunks.append(self._check_chunk(chunk))
            features.append(latent)
        return np.concatenate(chunks)[:count], np.concatenate(features)[:count]

    def predict(
        self, observation: Mapping[str, NDArray], noise: NDArray | None = None, domain: str | None = None
    ) -> NDArray[np.float64]:
        """Return only the chunks ``(n, chunk_size, k)`` of `predict_with_features`, in the dataset's units."""
        return self.predict_with_features(observation, noise, domain)[0]

    def close(self) -> None:
        """End LeRobot's interpreter. This also happens when the object is deleted."""
        self._child.close()

    def _check_observation(self, observation: Mapping[str, NDArray]) -> None:
        for key in self.observation_keys:
            if key not in observation:
                raise InputError(f"The observation lacks {key}. It has: {', '.join(observation) or 'nothing'}.")
            image = key.startswith(IMAGES)
            one = (*self.contract.cameras[key.removeprefix(IMAGES)], 3) if image else (self._sizes[key],)
            wanted, shape = (self.settings.n_obs_steps, *one), np.shape(observation[key])
            if shape[1:] != wanted:
                raise InputError(f"{key} has shape {shape}; the policy needs (n, {', '.join(map(str, wanted))}).")
            if image and observation[key].dtype != np.uint8:
                raise InputError(f"{key} is {observation[key].dtype}; the policy needs images in uint8, 0 to 255.")

    def _check_chunk(self, chunk: NDArray[np.float64]) -> NDArray[np.float64]:
        size, wanted = self.settings.chunk_size, len(self.contract.action.names)
        if chunk.ndim != 3 or chunk.shape[1] < size or chunk.shape[2] != wanted:
            raise LeRobotEndedError(
                f"LeRobot's {self.settings.type} gave commands of shape {chunk.shape} instead of (n, {size}, {wanted})."
                " This type of policy cannot be run here."
            )
        return chunk[:, :size]


def open_lerobot(folder: Path) -> LeRobotPolicy:
    """Open the LeRobot policy saved in a folder; see `LeRobotPolicy`."""
    return LeRobotPolicy(folder, read_config(folder))


def save_lerobot(checkpoint: Path, folder: Path, contract: Contract, *, instruction: str = "", card: PolicyCard) -> str:
    """Save a LeRobot checkpoint as a policy folder; return the policy's hash.

    Args:
        checkpoint: LeRobot's folder ``pretrained_model``; it is copied.
        folder: folder of the new policy.
        contract: joints with units, cameras and rate of the training data.
        instruction: task text that the policy was trained with.
        card: facts about the training for the README, see `policies.folder.PolicyCard`.

    Raises:
        InputError: If the checkpoint has no LeRobot ``config.json``.
    """
    settings = _read_settings(checkpoint, instruction)
    place = folder / CHECKPOINT
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(checkpoint, place)
    identity = {"kind": KIND, "settings": settings.model_dump(mode="json"), "contract": contract.to_json()}
    made = {
        "schema": SCHEMA,
        **identity,
        "hash": content_hash(place, contract, settings),
        "parameters": _count_weights(place),
        "statistics": {"source": f"its own processors, in {CHECKPOINT}"},
        "versions": {"twinloop": __version__, "lerobot": str(card.provenance.get("lerobot", ""))},
        "card": card.to_json(),
    }
    copy_sources(card.sources, folder)
    write_bytes(folder / README, render_card(card, made).encode())
    write_json(folder / CONFIG, made)
    return str(made["hash"])


def content_hash(checkpoint: Path, contract: Contract, settings: LeRobotSettings) -> str:
    """Return a SHA-256 over everything that determines the commands: LeRobot's files, settings and contract.

    Raises:
        InputError: If the checkpoint is missing.
    """
    if not (checkpoint / CONFIG).is_file():
        raise InputError(f"{checkpoint} is not a LeRobot checkpoint: it has no {CONFIG}. {RESTORE}")
    paths = [path for path in sorted(checkpoint.rglob("*")) if path.is_file() and path.name not in _BESIDE]
    files = {path.relative_to(checkpoint).as_posix(): sha256_file(path) for path in paths}
    return sha256_json([KIND, settings.model_dump(mode="json"), contract.to_json(), files])


def require_registered_steps(checkpoint: Path) -> None:
    """Raise an error if a checkpoint could run foreign code when LeRobot opens it.

    Only processor steps that LeRobot registers by name are allowed. LeRobot imports the module of a step given by its
    ``class`` and calls that class with the step's ``config`` (0.4.4 and 0.6.1, ``processor/pipeline.py``). A checkpoint
    could therefore start any program.

    Raises:
        InputError: If a step names a class, or a file is a pickle. The message names the file and the step.
    """
    for path in sorted(checkpoint.rglob("*")):
        if path.suffix in PICKLE_SUFFIXES:
            raise InputError(f"{path} may run code when it is opened. LeRobot saves weights as safetensors. {RESTORE}")
        if path.suffix != ".json":
            continue
        for where, owner in _iterate_objects(read_json(path)):
            if "class" in owner and "registry_name" not in owner:
                raise InputError(
                    f"{path}: {where} names the class {owner['class']!r} instead of a step that LeRobot registers. "
                    "Such a class could run any program, so the checkpoint was not opened. Save the processor with "
                    "registered steps."
                )


def _iterate_objects(value: Any, where: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every object (dictionary) of a JSON value with its path, such as ``steps.0.config``."""
    if isinstance(value, dict):
        yield where or "(top)", value
    rows = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in rows:
        yield from _iterate_objects(item, f"{where}.{key}" if where else str(key))


def _read_settings(checkpoint: Path, instruction: str) -> LeRobotSettings:
    if not (checkpoint / CONFIG).is_file():
        raise InputError(f"{checkpoint} is not a LeRobot checkpoint: it has no {CONFIG}. Train again.")
    stored = read_json(checkpoint / CONFIG)
    steps = stored.get("n_action_steps")
    # A diffusion policy returns only the commands of its horizon that will be executed.
    whole = stored.get("chunk_size") or stored.get("action_chunk_size") or steps
    if not whole:
        raise InputError(f"{checkpoint / CONFIG} does not state the chunk size of its {stored.get('type')} policy.")
    mode = str((stored.get("normalization_mapping") or {}).get("ACTION", ""))
    made = {
        "type": str(stored["type"]),
        "n_obs_steps": int(stored.get("n_obs_steps") or 1),
        "chunk_size": int(whole),
        "n_action_steps": int(steps or whole),
        "ensemble": stored.get("temporal_ensemble_coeff"),
        "normalization": _MODES.get(mode, mode.lower() or "none"),
        "instruction": instruction,
    }
    try:
        return LeRobotSettings.model_validate(made)
    except ValidationError as error:
        raise InputError(describe_errors(error, where=str(checkpoint / CONFIG), model=LeRobotSettings)) from error


def _parse_config(config: Mapping[str, Any], *, where: Path) -> tuple[Contract, LeRobotSettings]:
    try:
        return Contract.from_json(config["contract"]), LeRobotSettings.model_validate(config["settings"])
    except ValidationError as error:
        raise InputError(describe_errors(error, where=str(where), model=LeRobotSettings)) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{where} is damaged: its contract cannot be read ({type(error).__name__}: {error}). {RESTORE}"
        ) from error


def _count_weights(checkpoint: Path) -> int:
    """Return the number of weights in a checkpoint, from the header of its safetensors file.

    The header is 8 bytes of length, then JSON.
    """
    path = checkpoint / "model.safetensors"
    with open_regular(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_JSON_BYTES:
            raise InputError(f"{path} states a header of {length:,} bytes. It is damaged. {RESTORE}")
        head = parse_json(file.read(length), where=f"The header of {path}")
    return sum(math.prod(row["shape"]) for name, row in head.items() if name != "__metadata__")


def _convert_for_transfer(values: NDArray[Any]) -> NDArray[Any]:
    array = np.asarray(values)
    return array if array.dtype in (np.uint8, np.float32) else array.astype(np.float32)


def _noise_seeds(noise: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return a seed of eight bytes per row of noise, ``(n, 8)``; each seed depends on its own row alone."""
    rows = np.ascontiguousarray(noise, dtype=np.float64)
    return np.stack([np.frombuffer(hashlib.sha256(row.tobytes()).digest()[:8], np.uint8) for row in rows])
