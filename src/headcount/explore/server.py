"""The page's server: fixed files, and questions about sentences as JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headcount.errors import UserError
from headcount.explore.answers import KINDS, Answers, UnknownRun
from headcount.explore.desk import Desk, Overtaken
from headcount.explore.guard import Guard

REQUEST = 20_000
"""Bytes of a request at most."""

# Address -> the package and the file. The drawing code is the report's own.
FILES = {
    "/": ("headcount.explore", "page.html"),
    "/static/report.css": ("headcount.study.report", "report.css"),
    "/static/explore.css": ("headcount.explore", "explore.css"),
    "/static/report.js": ("headcount.study.report", "report.js"),
    "/static/drawing.js": ("headcount.study.report", "drawing.js"),
    "/static/view.js": ("headcount.explore", "view.js"),
    "/static/picture.js": ("headcount.explore", "picture.js"),
    "/static/explore.js": ("headcount.explore", "explore.js"),
}
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}


def make_app(
    answers: Answers, hosts: Collection[str] | None = None, token: str | None = None
) -> Starlette:
    """The application; `hosts` and `token` as in `Guard`."""
    desk = Desk()

    async def about(request: Request) -> Response:
        return JSONResponse(answers.about())

    async def ask(request: Request) -> Response:
        try:
            asked = await _body(request)
            page, turn = str(asked.get("page", ""))[:40], asked.get("turn", 0)
            kind = request.path_params["kind"]
            if kind not in KINDS or not isinstance(turn, int):
                raise UserError("There is no such question.", "Reload the page.")
            job = lambda: answers.answer(kind, asked)  # noqa: E731
            return JSONResponse(await desk.work(page, kind, turn, job))
        except UserError as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        except UnknownRun as error:
            return JSONResponse({"error": str(error)}, status_code=404)
        except Overtaken:
            return JSONResponse({"overtaken": True}, status_code=409)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        desk.close()

    return Starlette(
        routes=[
            *(Route(path, _file(*where), methods=["GET"]) for path, where in FILES.items()),
            Route("/api/about", about, methods=["GET"]),
            Route("/api/{kind}", ask, methods=["POST"]),
        ],
        middleware=[Middleware(Guard, hosts=hosts, token=token)],
        lifespan=lifespan,
    )


def _file(package: str, name: str) -> Any:
    content = (files(package) / name).read_bytes()
    media = TYPES[name.rsplit(".", 1)[1]]

    async def respond(request: Request) -> Response:
        return Response(content, media_type=media)

    return respond


async def _body(request: Request) -> dict[str, Any]:
    """The JSON of a request, which must be small."""
    if request.headers.get("content-type") != "application/json":
        raise UserError("The request is not JSON.", "Reload the page.")
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > REQUEST:
            raise UserError("The request is too long.", "Shorten the text.")
    try:
        asked = json.loads(content)
    except ValueError as error:
        raise UserError("The request is not JSON.", "Reload the page.") from error
    if not isinstance(asked, dict):
        raise UserError("The request is not complete.", "Reload the page.")
    return asked
