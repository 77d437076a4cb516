"""Who may talk to the page: this machine's own browser, or one that has the token.

Any web page that is open in the same browser can send requests to this machine. So a request must
name this server as its host (else a foreign name could be pointed at this machine), and must come
from this server's own page.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
