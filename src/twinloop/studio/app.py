"""Answer the studio's web requests: pages, static files, data as JSON, images and videos."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any

from starlette.applications import Starlette  # pyright: ignore[reportMissingImports]
from starlette.concurrency import run_in_threadpool  # pyright: ignore[reportMissingImports]
from starlette.requests import Request  # pyright: ignore[reportMissingImports]
from starlette.responses import (  # pyright: ignore[reportMissingImports]
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
)
from starlette.routing import Mount, Route  # pyright: ignore[reportMissingImports]
from starlette.staticfiles import StaticFiles  # pyright: ignore[reportMissingImports]

from twinloop import __version__
from twinloop.cli.main import STAGES
from twinloop.core.documents import parse_json
from twinloop.core.errors import InputError, TwinloopError, UnknownNameError
from twinloop.studio import decisions, episode, episode_list, labelling, runs
from twinloop.studio.data import StudioData
from twinloop.studio.forms import describe_commands
from twinloop.studio.jobs import Jobs

STATIC = resources.files("twinloop.studio") / "static"
PER_PAGE = 60  # episodes of a list
_LONGEST = 1 << 20  # bytes of a request's body
_REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; frame-ancestors 'self'"
)
_log = logging.getLogger(__name__)


class Studio:
    """Handlers of all requests for one workspace; `app` is the ASGI application, without access control.

    Modules that take seconds to import are imported by the handlers that need them, so that the studio starts at once.

    Args:
        data: the workspace.
    """

    def __init__(self, data: StudioData) -> None:
        self._data, self._jobs = data, Jobs(root=data.workspace.root)
        self._values: tuple[tuple[int, int], dict[str, Any]] = ((-1, -1), {})

    def warm_up(self) -> None:
        """Answer the first question of a browser in advance while it opens, and import what other pages need."""
        with contextlib.suppress(TwinloopError):
            episode_list.list_episodes(self._data, episode_list.build_sql({}), offset=0, limit=PER_PAGE)
        for module in ("gap", "coverage", "scene"):
            importlib.import_module(f"twinloop.studio.{module}")

    @functools.cached_property
    def _commands(self) -> list[dict[str, Any]]:
        return describe_commands(STAGES)

    @property
    def app(self) -> Starlette:
        """ASGI application."""
        return Starlette(
            routes=[
                Route("/api/about", _answering(self.about)),
                Route("/api/episodes", _answering(self.list_episodes)),
                Route("/api/episodes.csv", _answering(self.write_csv)),
                Route("/api/values", _answering(self.count_values)),
                Route("/api/words", _answering(lambda _: episode.list_words(self._data))),
                Route("/api/episodes/{id}", _answering(self.describe_episode)),
                Route("/api/episodes/{id}/signals", _answering(self.read_signals)),
                Route("/api/gap", _answering(self.describe_gap)),
                Route("/api/coverage", _answering(self.describe_map)),
                Route("/api/coverage/{encoder}/points", _answering(self.read_points)),
                Route("/api/coverage/{encoder}/clips/{row:int}", _answering(self.describe_clip)),
                Route("/api/parameters", _answering(self.describe_parameters)),
                Route("/api/quality", _answering(lambda _: decisions.describe_quality(self._data))),
                Route("/api/datasets", _answering(lambda _: decisions.list_datasets(self._data))),
                Route("/api/datasets/difference", _answering(self.compare_datasets)),
                Route("/api/policies", _answering(lambda _: decisions.list_policies(self._data))),
                Route("/api/policies/comparison", _answering(self.compare_policies)),
                Route("/api/releases", _answering(lambda _: decisions.describe_releases(self._data))),
                Route("/api/runs", _answering(self.list_runs)),
                Route(
                    "/api/runs/{id}", _answering(lambda given: runs.describe_run(self._data, given.path_params["id"]))
                ),
                Route("/reports/{id}.html", _answering(self.show_report)),
                Route("/api/episodes/{id}/scene", _answering(self.describe_scene)),
                Route("/api/episodes/{id}/poses", _answering(self.read_poses)),
                Route("/api/episodes/{id}/replay", _answering(self.replay_in_twin)),
                Route("/api/scenarios", _answering(self.list_scenarios)),
                Route("/api/scenarios/{name}", _answering(self.describe_scenario)),
                Route("/api/labels", _changing(self.write_labels), methods=["POST"]),
                Route("/api/commands", _answering(lambda _: self._commands)),
                Route("/api/jobs", _answering(lambda _: self._jobs.list_jobs())),
                Route("/api/jobs", _changing(lambda _, given: self._jobs.start(given)), methods=["POST"]),
                Route("/api/jobs/{id}", _answering(lambda given: self._jobs.describe(given.path_params["id"]))),
                Route("/api/robot", _answering(self.describe_robot)),
                Route("/api/jobs/{id}/poses", _answering(self.read_job_poses)),
                Route("/api/jobs/{id}/stop", _changing(self.stop_job), methods=["POST"]),
                Route("/media/{id}/{camera}/{frame:int}.jpg", _answering(self.read_frame)),
                Route("/media/{id}/{camera}.mp4", _answering(self.find_video)),
                *(Route(f"/{folder}/{{rest:path}}", _refuse_unknown) for folder in ("api", "media", "reports")),
                Mount("/static", StaticFiles(directory=str(STATIC))),
                Route("/{page:path}", _show_page),
            ]
        )

    def about(self, _: Request) -> dict[str, Any]:
        """Return what the pages show of the workspace itself."""
        data = self._data
        name = data.workspace.config.get("name")
        return {"name": name, "folder": str(data.where), "author": data.author, "version": __version__}

    def list_episodes(self, request: Request) -> dict[str, Any]:
        """Return one page of the episodes that filters or a statement select."""
        given = dict(request.query_params)
        offset, limit = (
            _parse_count(given.pop(name, default)) for name, default in (("offset", "0"), ("limit", str(PER_PAGE)))
        )
        return episode_list.list_episodes(self._data, _read_sql(given), offset=offset, limit=limit)

    def write_csv(self, request: Request) -> Response:
        """Return all episodes that filters or a statement select as CSV."""
        given = {name: value for name, value in request.query_params.items() if name != "offset"}
        headers = {"Content-Disposition": 'attachment; filename="episodes.csv"'}
        return Response(episode_list.write_csv(self._data, _read_sql(given)), media_type="text/csv", headers=headers)

    def count_values(self, _: Request) -> dict[str, Any]:
        """Return the values of all filters; they are counted again after a commit."""
        moment = self._data.moment
        if self._values[0] != moment:
            self._values = (moment, episode_list.count_values(self._data))
        return self._values[1]

    def describe_episode(self, request: Request) -> dict[str, Any]:
        """Return what is known of an episode."""
        return episode.describe_episode(self._data, request.path_params["id"])

    def read_signals(self, request: Request) -> dict[str, Any]:
        """Return the numeric signals of an episode."""
        return episode.read_signals(self._data, request.path_params["id"])

    def describe_scene(self, request: Request) -> dict[str, Any]:
        """Return the shapes of an episode's twin."""
        from twinloop.studio import scene

        return scene.describe_scene(self._data, request.path_params["id"])

    def read_poses(self, request: Request) -> Response:
        """Return the poses of these shapes in all frames."""
        from twinloop.studio import scene

        of_twin = request.query_params.get("of") == "twin"
        made = scene.read_poses(self._data, request.path_params["id"], of_twin=of_twin)
        return Response(made, media_type="application/octet-stream")

    def replay_in_twin(self, request: Request) -> dict[str, Any]:
        """Return the measured channels of an episode beside those of the twin's replay."""
        from twinloop.studio.twin_replay import replay_in_twin

        return replay_in_twin(self._data, request.path_params["id"]).to_json()

    def read_frame(self, request: Request) -> Response:
        """Return one image of an episode."""
        given, width = request.path_params, _parse_count(request.query_params.get("width", "640"))
        width = max(16, min(1280, width))
        annotated = request.query_params.get("annotated") == "yes"
        made = episode.read_frame(
            self._data, given["id"], given["camera"], given["frame"], width=width, annotated=annotated
        )
        return Response(made, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})

    def find_video(self, request: Request) -> Response:
        """Return the requested part of a video file."""
        given = request.path_params
        return FileResponse(str(episode.find_video(self._data, given["id"], given["camera"])), media_type="video/mp4")

    def compare_datasets(self, request: Request) -> dict[str, Any]:
        """Return the difference of two dataset versions."""
        return decisions.compare_datasets(self._data, *_read_words(request, "one", "other"))

    def compare_policies(self, request: Request) -> dict[str, Any]:
        """Return the paired comparison of two policies on a suite."""
        return decisions.compare_policies(self._data, *_read_words(request, "a", "b", "suite"))

    def describe_map(self, request: Request) -> dict[str, Any]:
        """Return what the map of clips shows."""
        from twinloop.studio import coverage

        return coverage.describe_map(self._data, request.query_params.get("encoder", ""))

    def read_points(self, request: Request) -> Response:
        """Return the points of the map."""
        from twinloop.studio import coverage

        made = coverage.read_points(self._data, request.path_params["encoder"])
        return Response(made, media_type="application/octet-stream")

    def describe_clip(self, request: Request) -> dict[str, Any]:
        """Return a clip of the map and those nearest to it."""
        from twinloop.studio import coverage

        return coverage.describe_clip(self._data, request.path_params["encoder"], request.path_params["row"])

    def describe_gap(self, _: Request) -> dict[str, Any]:
        """Return all measurements of the gap."""
        from twinloop.studio import gap

        return gap.describe_gap(self._data)

    def describe_parameters(self, request: Request) -> dict[str, Any]:
        """Return the parameters that a run identified."""
        from twinloop.studio import gap

        return gap.describe_parameters(self._data, request.query_params.get("run", ""))

    def list_scenarios(self, _: Request) -> list[dict[str, Any]]:
        """Return all stored scenarios."""
        from twinloop.studio import scenarios

        return scenarios.describe_scenarios(self._data)

    def describe_scenario(self, request: Request) -> dict[str, Any]:
        """Return a scenario with all parameters of its world."""
        from twinloop.studio import scenarios

        return scenarios.describe_scenario(self._data, request.path_params["name"])

    def list_runs(self, request: Request) -> dict[str, Any]:
        """Return the recorded runs, newest first."""
        given = request.query_params
        return runs.list_runs(self._data, given.get("verb", ""), offset=_parse_count(given.get("offset", "0")))

    def show_report(self, request: Request) -> Response:
        """Return the report of a run, confined so that its scripts reach neither this server nor any other."""
        path = runs.find_report(self._data, request.path_params["id"])
        return FileResponse(str(path), media_type="text/html", headers={"Content-Security-Policy": _REPORT_POLICY})

    def write_labels(self, _: Request, given: Any) -> dict[str, Any]:
        """Change what the user says of episodes; return the change that undoes it."""
        return labelling.write(self._data, given)

    def describe_robot(self, _: Request) -> dict[str, Any]:
        """Return the shapes of the workspace's twin."""
        from twinloop.studio import scene

        return scene.describe_robot(self._data)

    def read_job_poses(self, request: Request) -> Response:
        """Return the poses of the twin with the joints that a running robot measured last, and as it was commanded."""
        from twinloop.studio import scene

        rows = self._jobs.read_joints(request.path_params["id"])
        return Response(scene.read_robot_poses(self._data, rows), media_type="application/octet-stream")

    def stop_job(self, request: Request, _: Any) -> dict[str, Any]:
        """Stop a command."""
        return self._jobs.stop(request.path_params["id"])


def _answering(make: Callable[[Request], Any]) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler that computes an answer in another thread and turns errors into messages."""

    async def handle(request: Request) -> Response:
        return await run_in_threadpool(_answer, make, request)

    return handle


def _changing(make: Callable[[Request, Any], Any]) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler as `_answering` does, for requests with a JSON value."""

    async def handle(request: Request) -> Response:
        body = await _read_body(request)
        return await run_in_threadpool(_answer, lambda it: make(it, parse_json(body, where="The request")), request)

    return handle


def _answer(make: Callable[[Request], Any], request: Request) -> Response:
    try:
        made = make(request)
    except TwinloopError as error:
        status = 404 if isinstance(error, UnknownNameError) else 400
        return JSONResponse({"error": type(error).__name__, "message": str(error)}, status)
    except Exception as error:  # noqa: BLE001  # an error of the studio: the page shows that there was one, the log which
        _log.exception("a request failed")
        return JSONResponse({"error": "Failed", "message": f"The studio failed ({type(error).__name__})."}, 500)
    return made if isinstance(made, Response) else JSONResponse(made, headers={"Cache-Control": "no-store"})


async def _read_body(request: Request) -> str:
    """Return the body of a request; an empty text if it is too long or no UTF-8."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _LONGEST:
            return ""
    return body.decode(errors="replace")


def _parse_count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise InputError(f"{text[:20]!r} is not a count. Give a number from 0 upwards.")
    return int(text)


def _read_words(request: Request, *names: str) -> list[str]:
    missing = [name for name in names if not request.query_params.get(name)]
    if missing:
        raise InputError(f"The address lacks {', '.join(missing)}.")
    return [request.query_params[name] for name in names]


def _read_sql(given: dict[str, str]) -> str:
    return given.pop("sql", None) or episode_list.build_sql(given)


async def _refuse_unknown(_: Request) -> Response:
    return PlainTextResponse("The studio has no such address.", 404)


async def _show_page(_: Request) -> Response:
    return FileResponse(str(STATIC / "index.html"), headers={"Cache-Control": "no-store"})
