"""Transfer datasets between a local folder, an object store such as S3, and the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from twinloop.dataset.storage.hub import pull_dataset, push_dataset
from twinloop.dataset.storage.targets import fetch_dataset
from twinloop.workflows.data.requests import FetchRequest, PullRequest, PushRequest

_NAMED = 20  # printed names of files that were left out; --json has all


def run_fetch(request: FetchRequest, console: Console) -> dict[str, Any]:
    """Copy a dataset from an object store to a local folder, and print the number of downloaded files."""
    result = fetch_dataset(request.address, request.output)
    console.print(
        f"{result['episodes']} episodes, {result['frames']} frames; {result['downloaded']} of "
        f"{result['files']} files downloaded: {request.output}"
    )
    _print_left_out(console, result["left_out"])
    return result


def run_push(request: PushRequest, console: Console) -> dict[str, Any]:
    """Upload a dataset folder to the Hugging Face Hub as one commit, and print its address."""
    how = {"private": request.private, "branch": request.branch, "allow": request.allow, "ignore": request.ignore}
    done = push_dataset(request.dataset, request.repo_id, **how)
    tag = f", tag {done.tag}" if done.tag else ""
    console.print(
        f"{done.files} files, {done.bytes / 1e6:.1f} MB pushed to {done.repo_id} ({done.branch}{tag}): {done.url}"
    )
    return {"schema": 1, "verb": "push", **vars(done)}


def run_pull(request: PullRequest, console: Console) -> dict[str, Any]:
    """Download a dataset from the Hugging Face Hub to a new folder, with a check of every file's hash."""
    how = {"revision": request.revision, "allow": request.allow, "ignore": request.ignore}
    done = pull_dataset(request.repo_id, request.output, **how)
    console.print(
        f"{done.files} files, {done.bytes / 1e6:.1f} MB of {done.repo_id} at {done.commit[:12]}, verified: "
        f"{done.output}"
    )
    _print_left_out(console, done.left_out)
    return {"schema": 1, "verb": "pull", **vars(done)}


def _print_left_out(console: Console, names: Sequence[str]) -> None:
    """Print the names of files that were not copied because they are not part of the dataset."""
    if names:
        shown = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
        console.print(f"Left out {len(names)} files that belong to no dataset: {shown}")
