"""`requirements.txt`: every package of `constraints.txt` with the hashes of its files.

    python tools/lock.py [--index ADDRESS]

The hashes are those that the package index states for all files of that version, so that one file
serves every common platform. torch is left out: which build of it is right depends on the machine,
and `make setup` takes it from where pip is told to look (see SECURITY.md).
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from packaging.utils import canonicalize_name
from pypi_simple import PYPI_SIMPLE_ENDPOINT, PyPISimple

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = {"torch"}

# Other interpreters, Python before 3.11, and machines that torch has no wheels for.
ELSEWHERE = re.compile(
    r"-(cp2\d|cp3[5-9]|cp310|pp\d+|graalpy\d+)-(?!abi3)|musllinux|win32|i686|armv7l|ppc64|s390x|riscv"
    r"|emscripten|pyodide|android|ios_|-cp31\dt?-cp31\dt-"
)
HEAD = (
    "# Made by tools/lock.py from constraints.txt: `make setup` installs nothing else but torch.\n"
)


def pinned(text: str) -> dict[str, str]:
    """Names and versions of a constraints file."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    return dict(line.split("==") for line in lines if line)


def locked(client: PyPISimple, name: str, version: str) -> str:
    """The lines of one package."""
    page = client.get_project_page(canonicalize_name(name))
    hashes = sorted(
        package.digests["sha256"]
        for package in page.packages
        if package.version == version
        and "sha256" in package.digests
        and not ELSEWHERE.search(package.filename)
    )
    if not hashes:
        raise SystemExit(f"The index states no hashes of {name} {version}.")
    return " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{h}" for h in hashes)])


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--index", default=PYPI_SIMPLE_ENDPOINT)
    packages = pinned((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    with PyPISimple(parser.parse_args().index) as client:
        lines = [
            locked(client, name, version)
            for name, version in packages.items()
            if canonicalize_name(name) not in LEFT_OUT
        ]
    (ROOT / "requirements.txt").write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
