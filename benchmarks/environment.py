"""The peers' own Python environment: made once, from package names and exact versions.

    python benchmarks/environment.py [--out DIR]

torch is the same build as headcount's, so that contenders differ in their own code only. JoeyNMT
2.3 asks for older versions of some packages, and eole for dozens that its training never imports
(speech, web servers, corpora); both are installed without their dependencies, and what they really
import is listed here. eole needs a compiled tokenizer that is not made for every machine: where it
does not install the benchmarks go on without eole.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from measuring import HERE

DEFAULT = HERE / ".peers"

WITH_DEPENDENCIES = (
    "transformers==5.22.2",
    "sentencepiece==0.2.2",
    "ctranslate2==4.8.4",
    "subword-nmt==0.3.8",
    "safetensors==0.8.0",
    # What JoeyNMT imports.
    "importlib_metadata==10.2.0",
    "matplotlib==3.11.2",
    "sacrebleu==2.6.0",
    "tensorboard==2.21.0",
    # What eole imports beside that.
    "pydantic==2.14.3",
)
ALONE = ("joeynmt==2.3.0",)
OPTIONAL = ("eole==0.6.4", "pyonmttok==1.38.1")


def peers_python(folder: Path = DEFAULT) -> Path:
    """The interpreter of the peers' environment, which is created if it is missing or outdated."""
    python = folder / "bin" / "python"
    torch = f"torch=={_installed('torch').split('+')[0]}"
    wanted = "\n".join([torch, *WITH_DEPENDENCIES, *ALONE, *OPTIONAL])
    stamp = folder / f"ready-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    if stamp.exists():
        return python
    print(f"Making the peers' environment in {folder} (once; some minutes) ...", flush=True)
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(folder)])
    # torch first and alone: with it in place nothing else can pull in a larger build of it.
    constraints = str(HERE.parent / "constraints.txt")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    _run([*pip, "-c", constraints, torch])
    _run([*pip, "-c", constraints, torch, *WITH_DEPENDENCIES])
    _run([*pip, "--no-deps", *ALONE])
    try:
        _run([*pip, "--no-deps", *OPTIONAL])
    except subprocess.CalledProcessError:
        again = f"delete {stamp} to try again"
        print(f"Not installed: {', '.join(OPTIONAL)}; benchmarks run without ({again}).")
    stamp.write_text(wanted + "\n", encoding="utf-8")
    return python


def _installed(package: str) -> str:
    from importlib.metadata import version

    return version(package)


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, env=os.environ | {"PIP_NO_INPUT": "1"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DEFAULT)
    print(peers_python(parser.parse_args().out))
