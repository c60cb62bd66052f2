"""A small Hub on this machine: the endpoints by which huggingface_hub makes, fills, lists and reads a dataset."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_of_the_test"


class Repository:
    """Commits of one dataset by id, each a table of files, and the names that lead to them."""

    def __init__(self, *, private: bool) -> None:
        first = "0" * 40
        self.private, self.commits, self.refs, self.tags = private, {first: {}}, {"main": first}, {}

    def at(self, revision: str) -> str | None:
        name = self.refs.get(revision) or self.tags.get(revision) or revision
        return name if name in self.commits else None

    def commit(self, branch: str, files: dict[str, bytes | None]) -> str:
        content = {**self.commits[self.refs[branch]], **files}
        whole = {path: data for path, data in content.items() if data is not None}
        oid = hashlib.sha1(repr((len(self.commits), sorted(whole))).encode()).hexdigest()
        self.commits[oid], self.refs[branch] = whole, oid
        return oid


class Hub:
    """State of the server: repositories, large files by hash, received requests, and planned faults."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.seen: list[str] = []
        self.large = 4096  # bytes from which on a file is stored by hash
        self.damage = ""  # path whose content is sent wrong
        self.extra: dict[str, bytes] = {}  # paths listed together with the real ones
        self.address = ""


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that it has there
        pass

    def answer(self, value: object = None, status: int = 200, headers: dict | None = None, body: bytes = b"") -> None:
        data = json.dumps(value).encode() if value is not None else body
        self.send_response(status)
        for name, text in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def refuse(self, code: str, status: int) -> None:
        self.answer({"error": code}, status, {"X-Error-Code": code, "X-Error-Message": code})

    def do(self) -> None:
        url = urlsplit(self.path)
        path, query = unquote(url.path), parse_qs(url.query)
        self.hub.seen.append(f"{self.command} {path}")
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command == "PUT":
            self.hub.objects[path.rsplit("/", 1)[1]] = data
            return self.answer({})
        if self.command == "POST" and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.refuse("Unauthorized", 401)
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if path == "/api/repos/create":
            return self.create(json.loads(data))
        found = re.match(r"(?:/api)?/datasets/([^/]+/[^/]+?)(?:\.git/info)?(?:/(.*))?$", path)
        repository = self.hub.repositories.get(found[1]) if found else None
        if found is None or repository is None:
            return self.refuse("RepoNotFound", 404)
        return self.within(found[1], repository, (found[2] or "").split("/"), query, data)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do

    def create(self, said: dict) -> None:
        name = f"{said.get('organization') or 'me'}/{said['name']}"
        if name in self.hub.repositories:
            return self.answer({"error": "exists", "url": f"{self.hub.address}/datasets/{name}"}, 409)
        self.hub.repositories[name] = Repository(
            private="private" in (said.get("visibility"), said.get("private") and "private")
        )
        return self.answer({"url": f"{self.hub.address}/datasets/{name}", "id": name, "name": name})

    def within(self, name: str, repository: Repository, words: list[str], query: dict, data: bytes) -> None:
        verb, rest = words[0], words[1:]
        if verb == "lfs":
            return self.batch(json.loads(data))
        if verb in ("tag", "branch"):
            return self.point(repository, verb, "/".join(rest), data)
        revision = unquote(rest[0]) if rest else "main"
        commit = repository.at(revision)
        if commit is None:
            return self.refuse("RevisionNotFound", 404)
        if verb == "preupload":
            rows = json.loads(data)["files"]
            modes = [{**row, "uploadMode": "lfs" if row["size"] >= self.hub.large else "regular"} for row in rows]
            return self.answer({"files": [{**row, "shouldIgnore": False} for row in modes]})
        if verb == "commit":
            oid = repository.commit(revision, self.changes(data))
            return self.answer({"commitUrl": f"{self.hub.address}/datasets/{name}/commit/{oid}", "commitOid": oid})
        if verb == "tree":
            return self.answer(self.tree(repository.commits[commit]))
        if verb == "resolve":
            return self.send(repository.commits[commit], commit, "/".join(rest[1:]))
        files = [{"rfilename": path} for path in repository.commits[commit]]
        return self.answer({"id": name, "sha": commit, "siblings": files, "private": repository.private, "tags": []})

    def point(self, repository: Repository, verb: str, name: str, data: bytes) -> None:
        if self.command == "DELETE":
            return self.answer({}) if repository.tags.pop(name, None) else self.refuse("RevisionNotFound", 404)
        said = json.loads(data) if data else {}
        if verb == "tag":
            repository.tags[said["tag"]] = repository.at(name) or ""
        elif name in repository.refs:
            return self.answer({"error": "exists"}, 409)
        else:
            repository.refs[name] = repository.refs["main"]
        return self.answer({})

    def batch(self, said: dict) -> None:
        rows = []
        for row in said["objects"]:
            href = f"{self.hub.address}/objects/{row['oid']}"
            known = row["oid"] in self.hub.objects
            rows.append({**row, **({} if known else {"actions": {"upload": {"href": href}}})})
        self.answer({"transfer": "basic", "objects": rows}, headers={"Content-Type": "application/vnd.git-lfs+json"})

    def changes(self, data: bytes) -> dict[str, bytes | None]:
        files: dict[str, bytes | None] = {}
        for row in map(json.loads, data.splitlines()):
            value = row["value"]
            if row["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif row["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif row["key"] == "deletedFile":
                files[value["path"]] = None
        return files

    def tree(self, files: dict[str, bytes]) -> list[dict]:
        rows = []
        for path, data in {**files, **self.hub.extra}.items():
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            row = {"type": "file", "path": path, "size": len(data), "oid": blob}
            if len(data) >= self.hub.large:
                row["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            rows.append(row)
        return rows

    def send(self, files: dict[str, bytes], commit: str, path: str) -> None:
        if path not in files:
            return self.refuse("EntryNotFound", 404)
        data = files[path]
        tag = hashlib.sha256(data).hexdigest()
        if path == self.hub.damage:
            data = bytes(len(data))
        return self.answer(headers={"X-Repo-Commit": commit, "ETag": f'"{tag}"'}, body=data)


@contextmanager
def hub_server():
    """A Hub that answers on this machine while the block runs."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
