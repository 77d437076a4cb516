"""The page's server: who may ask, fixed files, and questions about sentences as JSON.

Any web page that is open in the same browser can send requests to this machine. So a request must
name this server as its host (else a foreign name could be pointed at this machine), and must come
from this server's own page.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headcount.errors import UserError
from headcount.explore.answers import KINDS, Answers, UnknownRun

T = TypeVar("T")

PAGES = 200
"""How many pages and kinds of requests are remembered."""


class Overtaken(Exception):
    """The same page has sent a newer request in the meantime."""


class Desk:
    """A single worker: models carry gates while they work, so they serve one request at a time."""

    def __init__(self) -> None:
        self.worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headcount")
        self.newest: OrderedDict[tuple[str, str], int] = OrderedDict()

    async def work(self, page: str, kind: str, turn: int, job: Callable[[], T]) -> T:
        """Do a job for a page; of each kind of request only the newest turn counts."""
        key = (page, kind)
        self.newest[key] = max(turn, self.newest.pop(key, turn))
        while len(self.newest) > PAGES:
            self.newest.popitem(last=False)

        def when_its_turn_comes() -> T:
            if turn < self.newest.get(key, turn):
                raise Overtaken
            return job()

        return await asyncio.get_running_loop().run_in_executor(self.worker, when_its_turn_comes)

    def close(self) -> None:
        """Wait for the running job, and drop those that are waiting."""
        self.worker.shutdown(cancel_futures=True)


TOKEN = "x-headcount-token"
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' blob: data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",  # the token is in the address
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def loopback_hosts(port: int) -> frozenset[str]:
    """The names under which a server on the loopback address is reached."""
    return frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]"))


class Guard:
    """Refuses requests that do not come from the page itself; adds headers to all answers."""

    def __init__(
        self, app: ASGIApp, hosts: Collection[str] | None = None, token: str | None = None
    ) -> None:
        """`hosts` are the allowed values of `Host` (None: any, then a token is needed)."""
        if hosts is None and not token:
            raise ValueError("without a list of hosts a token is needed")
        self.app, self.hosts, self.token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # there are no web sockets here

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self.refusal(Request(scope))
        if refusal is not None:
            status, reason = refusal
            response = JSONResponse({"error": reason}, status_code=status)
            await response(scope, receive, send_guarded)
            return
        await self.app(scope, receive, send_guarded)

    def refusal(self, request: Request) -> tuple[int, str] | None:
        """The status and the reason with which a request is refused, or None."""
        headers, path = request.headers, request.url.path
        host = headers.get("host", "")
        if self.hosts is not None and host not in self.hosts:
            return 421, "This server has another name."
        if not _own_page(headers, host, request.method, navigation=path == "/"):
            return 403, "Only the page of this server may ask this."
        if self.token is not None and not path.startswith("/static/"):
            token = headers.get(TOKEN) or request.query_params.get("token", "")
            if not secrets.compare_digest(token.encode(), self.token.encode()):
                return 403, "The token in the address is missing or wrong."
        return None


def _own_page(headers: Headers, host: str, method: str, navigation: bool) -> bool:
    """Whether a request comes from this server's own page, according to the browser."""
    origin = headers.get("origin")
    if origin is not None and origin != f"http://{host}":
        return False
    if method not in ("GET", "HEAD") and origin is None:
        return False  # browsers always name the origin of a POST
    site = headers.get("sec-fetch-site", "none")
    return navigation or site in ("same-origin", "none")


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
