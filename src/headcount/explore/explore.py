"""`headcount.explore`: start the live page."""

from __future__ import annotations

import secrets
import signal
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from headcount.errors import SHIPPED, UserError
from headcount.files import read_lines
from headcount.interop.checking import require_extra
from headcount.loaded.load import load
from headcount.loaded.model import Model
from headcount.progress import Progress, silent
from headcount.run import Run

LOOPBACK = "127.0.0.1"
SENTENCES = 200


def explore(
    runs: Run | Path | str | Sequence[Run | Path | str] = "demo",
    *,
    src: Path | str | Iterable[str] | None = None,
    host: str = LOOPBACK,
    port: int = 8765,
    browser: bool = True,
    progress: Progress = silent,
    started: Callable[[str], None] = lambda address: None,
) -> None:
    """Open a page to type sentences, look at heads and switch them off.

    runs     a run to look at, "demo", or a list of them: two can be compared side by side
    src      sentences to pick from: a file with one per line, or a list
    host     the address to listen at; other machines can reach any but the default, and then only
             with the token that is in the printed address
    port     0 takes any that is free
    browser  open the page in the browser
    started  is called with the page's address

    Returns when it is interrupted (Ctrl-C).
    """
    require_extra("explore")
    import uvicorn

    from headcount.explore.answers import Answers
    from headcount.explore.server import loopback_hosts, make_app

    models = open_models([runs] if isinstance(runs, Run | Path | str) else runs, progress)
    answers = Answers(models, _sentences(src))
    sock = _listen(host, port)
    port = sock.getsockname()[1]
    alone = _is_loopback(host)
    token = None if alone else secrets.token_urlsafe(24)
    app = make_app(answers, loopback_hosts(port) if alone else None, token)
    address = f"http://{_shown(host)}:{port}/" + (f"?token={token}" if token else "")
    started(address)
    if browser:
        webbrowser.open(address)
    config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
    server = uvicorn.Server(config)
    server.capture_signals = lambda: _ending(server)
    try:
        server.run(sockets=[sock])
    finally:
        sock.close()


@contextmanager
def _ending(server: Any) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the server in good order, and are not passed on to the caller."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def open_models(runs: Sequence[Run | Path | str], progress: Progress = silent) -> dict[str, Model]:
    """The models by the names that the page shows: the last part of their folder."""
    models: dict[str, Model] = {}
    for number, run in enumerate(runs):
        progress("Loading models", number, len(runs))
        model = load(run, progress=progress)
        name = str(run) if str(run) in SHIPPED else model.folder.resolve().name
        while name in models:
            name += "'"
        models[name] = model
    progress("Loading models", len(runs), len(runs))
    return models


def _sentences(src: Path | str | Iterable[str] | None) -> list[str]:
    if src is None:
        return []
    lines = read_lines(Path(src)) if isinstance(src, str | Path) else src
    chosen = [line.strip() for line in lines if line.strip()][:SENTENCES]
    if not chosen:
        raise UserError(f"{src} has no sentence.", "Give a file that has some.")
    return chosen


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port < 65536:
        raise UserError(f"There is no port {port}.", "Choose one from 1024 to 65535.")
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(kind, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"The page cannot be served at {host}, port {port} ({reason}).",
            "Choose another --port.",
        ) from error
    return sock


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _shown(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
